//! Service × slices: vectors S03, S09, S12–S15, S17, duplicates, and independence of any order.

use super::support::*;
use nodeward::model::{
    Conditions, Endpoint, EndpointSlice, IpFamily, ObjectName, Protocol, Service, ServiceType, SlicePort,
};
use nodeward::topology::TopologyConfig;
use nodeward::view::{ServicePortView, service_views};
use rand::RngExt;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use std::sync::Arc;

fn views(service: &Service, slices: &[EndpointSlice]) -> Vec<ServicePortView> {
    let slices: Vec<_> = slices.iter().cloned().map(Arc::new).collect();
    service_views(service, &slices, &context("n1", "za"), &TopologyConfig::default())
}

fn addresses(view: &ServicePortView) -> Vec<String> {
    view.endpoints.iter().map(|e| e.address.to_string()).collect()
}

fn ipv6(address: &str) -> Endpoint {
    Endpoint {
        address: address.parse().unwrap(),
        ..endpoints("a:R@n1").remove(0)
    }
}

#[test]
fn s03_an_address_of_another_family_inside_a_slice_is_ignored() {
    let s = slice("svc-1", vec![ipv6("2001:db8::1"), endpoints("a:R@n1").remove(0)]);
    assert_eq!(addresses(&views(&service(), &[s])[0]), ["10.0.0.1:8080"]);
}

#[test]
fn s06_an_empty_port_name_joins_an_empty_one_only() {
    let mut named = slice("svc-1", endpoints("a:R@n1"));
    named.ports[0].name = "web".into();
    let unnamed = slice("svc-2", endpoints("b:R@n1"));
    assert_eq!(addresses(&views(&service(), &[named, unnamed])[0]), ["10.0.0.2:8080"]);
}

#[test]
fn s09_slices_with_different_port_numbers_are_united_and_each_endpoint_keeps_its_own() {
    let first = slice("svc-1", endpoints("a:R@n1 c:R@n2"));
    let mut second = slice("svc-2", endpoints("b:R@n1"));
    second.ports[0].port = 9090;
    let views = views(&service(), &[first, second]);
    assert_eq!(
        addresses(&views[0]),
        ["10.0.0.1:8080", "10.0.0.2:9090", "10.0.0.3:8080"]
    );
}

#[test]
fn s12_udp_and_tcp_on_one_port_number_are_two_service_ports() {
    let mut service = service();
    service.ports = vec![port("dns", Protocol::Udp, 53), port("dns-tcp", Protocol::Tcp, 53)];
    let mut udp = slice("svc-1", endpoints("a:R@n1"));
    udp.ports = vec![slice_port("dns", Protocol::Udp, 5353)];
    let mut tcp = slice("svc-2", endpoints("b:R@n1"));
    tcp.ports = vec![slice_port("dns-tcp", Protocol::Tcp, 5354)];
    // The name alone does not join: the protocol must agree too.
    let mut crossed = slice("svc-3", endpoints("c:R@n1"));
    crossed.ports = vec![slice_port("dns", Protocol::Tcp, 5355)];
    let views = views(&service, &[udp, tcp, crossed]);
    assert_eq!(views.len(), 2);
    assert_eq!(
        (views[0].key.protocol, addresses(&views[0])),
        (Protocol::Udp, vec!["10.0.0.1:5353".to_owned()])
    );
    assert_eq!(
        (views[1].key.protocol, addresses(&views[1])),
        (Protocol::Tcp, vec!["10.0.0.2:5354".to_owned()])
    );
}

#[test]
fn s13_an_endpoint_that_moves_between_slices_is_there_once_at_every_step() {
    let (old, new) = (slice("svc-1", endpoints("a:R@n1")), slice("svc-2", endpoints("a:R@n1")));
    for slices in [vec![old.clone()], vec![old, new.clone()], vec![new]] {
        assert_eq!(addresses(&views(&service(), &slices)[0]), ["10.0.0.1:8080"]);
    }
}

#[test]
fn s15_slices_of_other_services_and_namespaces_do_not_join() {
    let mut other_name = slice("svc-1", endpoints("a:R@n1"));
    other_name.service = ObjectName::new("ns", "svc2");
    let mut other_namespace = slice("svc-1", endpoints("b:R@n1"));
    other_namespace.service = ObjectName::new("ns2", "svc");
    assert_eq!(
        addresses(&views(&service(), &[other_name, other_namespace])[0]),
        [""; 0]
    );
}

#[test]
fn s17_a_placeholder_slice_gives_no_endpoints() {
    let mut placeholder = slice("svc-1", Vec::new());
    placeholder.ports.clear();
    let views = views(&service(), &[placeholder]);
    assert_eq!(addresses(&views[0]), [""; 0]);
    assert!(!views[0].decision.any_usable);
}

#[test]
fn headless_and_external_name_services_are_never_proxied() {
    let slices = [slice("svc-1", endpoints("a:R@n1"))];
    let mut headless = service();
    headless.cluster_ips.clear();
    assert!(views(&headless, &slices).is_empty());
    let mut external_name = service();
    external_name.service_type = ServiceType::ExternalName;
    assert!(views(&external_name, &slices).is_empty());
}

#[test]
fn families_never_mix_and_vips_follow_ip_families() {
    let mut service = service();
    service.cluster_ips = vec![
        (IpFamily::V6, "fd00::10".parse().unwrap()),
        (IpFamily::V4, "10.96.0.10".parse().unwrap()),
    ];
    let mut v6 = slice("svc-6", vec![ipv6("2001:db8::1")]);
    v6.family = IpFamily::V6;
    let both = views(&service, &[slice("svc-4", endpoints("a:R@n1")), v6.clone()]);
    let got: Vec<_> = both
        .iter()
        .map(|v| (v.family, v.vip.to_string(), addresses(v)))
        .collect();
    let expected = [
        (
            IpFamily::V6,
            "[fd00::10]:80".to_owned(),
            vec!["[2001:db8::1]:8080".to_owned()],
        ),
        (
            IpFamily::V4,
            "10.96.0.10:80".to_owned(),
            vec!["10.0.0.1:8080".to_owned()],
        ),
    ];
    assert_eq!(got, expected);
    // The secondary family goes away live.
    service.cluster_ips.truncate(1);
    assert_eq!(views(&service, &[slice("svc-4", endpoints("a:R@n1")), v6]).len(), 1);
}

#[test]
fn sctp_ports_have_no_view_and_are_noted() {
    let mut service = service();
    service.ports.push(port("sctp", Protocol::Sctp, 80));
    let views = views(&service, &[]);
    assert_eq!(views.len(), 1);
    assert!(
        views[0].settings.notices[0].contains("SCTP"),
        "{:?}",
        views[0].settings.notices
    );
}

/// One endpoint in two slices: (uid, state, trigger time) of each, and which state stays.
fn duplicate(first: (u128, &str, i64), second: (u128, &str, i64)) -> Conditions {
    let made = [("svc-1", first), ("svc-2", second)].map(|(name, (uid, state, trigger))| {
        let mut s = slice(name, endpoints(&format!("a:{state}@n1")));
        s.endpoints[0].target_uid = uid;
        s.trigger_time_us = trigger;
        s
    });
    let [a, b] = made;
    let forward = views(&service(), &[a.clone(), b.clone()]).remove(0);
    let backward = views(&service(), &[b, a]).remove(0);
    assert_eq!(forward.endpoints, backward.endpoints);
    assert_eq!(forward.endpoints.len(), 1);
    forward.endpoints[0].endpoint.conditions
}

fn state(text: &str) -> Conditions {
    endpoints(&format!("a:{text}@n1")).remove(0).conditions
}

#[test]
fn duplicates_of_one_pod_the_newer_slice_wins() {
    assert_eq!(duplicate((7, "R", 1), (7, "U", 2)), state("U"));
    assert_eq!(duplicate((7, "R", 2), (7, "U", 1)), state("R"));
    assert_eq!(duplicate((7, "T", 9), (7, "R", 1)), state("T"));
}

#[test]
fn duplicates_of_different_pods_the_running_one_beats_the_ghost() {
    assert_eq!(duplicate((7, "T", 9), (8, "R", 1)), state("R"));
    assert_eq!(duplicate((7, "T", 9), (8, "U", 1)), state("U"));
    assert_eq!(duplicate((7, "U", 9), (8, "R", 1)), state("R"));
    // Terminating weighs more than ready (publishNotReadyAddresses makes a terminating pod ready).
    assert_eq!(duplicate((7, "P", 9), (8, "U", 1)), state("U"));
    // Without uids nothing says it is one pod, whatever the times.
    assert_eq!(duplicate((0, "T", 9), (0, "R", 1)), state("R"));
}

/// Newer word of one pod, running pod against ghost, ready against not ready: taken in pairs these rules run in a
/// circle (a beats b, b beats c, c beats a), so the outcome must not come from comparing in pairs as they arrive.
#[test]
fn duplicates_that_beat_each_other_in_a_circle_resolve_alike_in_any_order() {
    let make = |(name, uid, state, trigger): (&str, u128, &str, i64)| {
        let mut s = slice(name, endpoints(&format!("a:{state}@n1")));
        s.endpoints[0].target_uid = uid;
        s.trigger_time_us = trigger;
        s
    };
    let three = [("svc-a", 1, "T", 2), ("svc-b", 1, "R", 1), ("svc-c", 2, "U", 1)].map(make);
    let orders = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];
    for order in orders {
        let views = views(&service(), &order.map(|i| three[i].clone()));
        // Pod 1's newest word is that it terminates; pod 2 is not terminating.
        assert_eq!(views[0].endpoints[0].endpoint.conditions, state("U"), "{order:?}");
    }
}

#[test]
fn one_address_with_two_ports_is_two_endpoints() {
    let mut s = slice("svc-1", endpoints("a:R@n1"));
    s.ports.push(SlicePort {
        port: 8081,
        ..s.ports[0].clone()
    });
    assert_eq!(
        addresses(&views(&service(), &[s])[0]),
        ["10.0.0.1:8080", "10.0.0.1:8081"]
    );
}

/// Slices full of duplicates, equal triggers and missing uids.
fn random_slices(rng: &mut SmallRng) -> Vec<EndpointSlice> {
    let states = ["R", "U", "T", "X", "P", "Q", "S"];
    let mut slices = Vec::new();
    for n in 0..rng.random_range(1..=4) {
        let mut text = String::new();
        for _ in 0..rng.random_range(0..=6) {
            let id = char::from(b'a' + rng.random_range(0..4));
            let state = states[rng.random_range(0..states.len())];
            let node = rng.random_range(1..=3);
            let zone = ["", "(za)", "(zb)"][rng.random_range(0..3)];
            let hint = ["", "/hz=za", "/hn=n1/hz=zb"][rng.random_range(0..3)];
            text.push_str(&format!("{id}:{state}@n{node}{zone}{hint} "));
        }
        let mut s = slice(&format!("svc-{n}"), endpoints(&text));
        for e in &mut s.endpoints {
            e.target_uid = rng.random_range(0..3);
        }
        s.trigger_time_us = rng.random_range(0..3);
        slices.push(s);
    }
    slices
}

#[test]
fn a21_any_order_of_slices_and_endpoints_gives_the_identical_view() {
    let mut rng = rng("a21");
    let node = context("n1", "za");
    let mut duplicates = 0;
    for round in 0..3_000 {
        let mut slices = random_slices(&mut rng);
        for config in [TopologyConfig::default(), strict()] {
            let view = |slices: &[EndpointSlice]| {
                let slices: Vec<_> = slices.iter().cloned().map(Arc::new).collect();
                service_views(&service(), &slices, &node, &config).remove(0)
            };
            let before = view(&slices);
            for _ in 0..3 {
                slices.shuffle(&mut rng);
                for s in &mut slices {
                    s.endpoints.shuffle(&mut rng);
                }
                let after = view(&slices);
                assert_eq!(before.endpoints, after.endpoints, "round {round}");
                assert_eq!(before.decision, after.decision, "round {round}");
            }
            assert!(before.endpoints.is_sorted_by(|a, b| a.address < b.address));
            let told: usize = slices.iter().map(|s| s.endpoints.len()).sum();
            duplicates += told - before.endpoints.len();
        }
    }
    assert!(duplicates > 10_000, "only {duplicates} duplicates were made");
}
