//! Golden files of `explain`, `services` and `endpoints`. `UPDATE_GOLDEN=1 cargo test` writes them anew; read the diff.

use super::support::*;
use nodeward::model::{IpFamily, Protocol, Service, TrafficPolicy, ZONE_LABEL};
use nodeward::topology::{NodeContext, Policy, TopologyConfig};
use nodeward::view::{Explanation, ServicePortView, endpoint_rows, explain_views, service_rows, service_views, text};
use std::path::Path;
use std::sync::Arc;

fn golden(name: &str, got: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, got).unwrap();
        return;
    }
    let want = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{name}: {e}; UPDATE_GOLDEN=1 writes it"));
    if want != got {
        let (mut want, mut got, mut diff) = (want.lines(), got.lines(), String::new());
        loop {
            match (want.next(), got.next()) {
                (None, None) => break,
                (w, g) if w == g => diff.push_str(&format!("  {}\n", w.unwrap_or_default())),
                (w, g) => {
                    let line = |mark, text: Option<&str>| text.map(|t| format!("{mark} {t}\n")).unwrap_or_default();
                    diff.push_str(&line('-', w));
                    diff.push_str(&line('+', g));
                }
            }
        }
        panic!("{name} differs (- golden, + now); UPDATE_GOLDEN=1 accepts it:\n{diff}");
    }
}

/// A cluster DNS Service in the middle of a rollout, dual stack, also reachable from outside.
fn dns() -> (Service, Vec<Arc<nodeward::model::EndpointSlice>>) {
    let mut service = service();
    service.name.namespace = "kube-system".into();
    service.name.name = "kube-dns".into();
    service.cluster_ips.push((IpFamily::V6, "fd00::a".parse().unwrap()));
    service.ports = vec![
        port("dns", Protocol::Udp, 53),
        port("dns-tcp", Protocol::Tcp, 53),
        port("metrics", Protocol::Tcp, 9153),
    ];
    service.ports[2].node_port = 30_153;
    service.external_traffic_policy = TrafficPolicy::Local;
    service.traffic_distribution = Some("PreferClose".into());
    let text = "a:T@n1(za) b:R@n2(za)/hz=za c:R@n3(zb)/hz=zb j:U@n4(zb) d:X@n5(zb) e:R@n6/hz=zc";
    let mut s = slice("kube-dns-1", endpoints(text));
    s.service = service.name.clone();
    s.ports = vec![
        slice_port("dns", Protocol::Udp, 53),
        slice_port("metrics", Protocol::Tcp, 9153),
    ];
    (service, vec![Arc::new(s)])
}

fn seen(service: &Service, text: &str, node: &NodeContext, config: &TopologyConfig) -> Vec<Explanation> {
    explain_views(&[view(service, text, node, config)], node, None)
}

fn dns_views(config: &TopologyConfig, node: &NodeContext) -> Vec<ServicePortView> {
    let (service, slices) = dns();
    service_views(&service, &slices, node, config)
}

#[test]
fn explain_as_text() {
    let node = context("n1", "za");
    golden(
        "explain-ranked.txt",
        &text::explanations(
            &explain_views(&dns_views(&TopologyConfig::default(), &node), &node, None),
            false,
        ),
    );
    golden(
        "explain-strict.txt",
        &text::explanations(&explain_views(&dns_views(&strict(), &node), &node, None), false),
    );
}

#[test]
fn explain_as_json_keeps_its_contract() {
    let node = context("n1", "za");
    let filter = "kube-system/kube-dns:dns".parse().unwrap();
    let mut out = String::new();
    for config in [TopologyConfig::default(), strict()] {
        for explanation in explain_views(&dns_views(&config, &node), &node, Some(&filter)) {
            out.push_str(&serde_json::to_string_pretty(&explanation).unwrap());
            out.push('\n');
        }
    }
    golden("explain.json", &out);
    let contract = [
        "service",
        "port",
        "protocol",
        "family",
        "node",
        "zone",
        "policy",
        "interpretation",
        "chosen_rank",
        "any_usable",
        "verdict",
        "chosen",
        "endpoints",
    ];
    let endpoint = [
        "address",
        "node",
        "zone",
        "ready",
        "serving",
        "terminating",
        "rank",
        "chosen",
        "reason",
    ];
    let first = serde_json::to_string(&explain_views(&dns_views(&strict(), &node), &node, Some(&filter))[0]).unwrap();
    // Order matters as well as names: each key must come after the one before it.
    let mut at = 0;
    for key in contract.iter().chain(&endpoint) {
        let next = first[at..]
            .find(&format!("\"{key}\":"))
            .unwrap_or_else(|| panic!("{key} is missing or misplaced"));
        at += next + 1;
    }
}

#[test]
fn explain_of_every_kind_of_state() {
    let ladder = "a:R@n1(za) b:R@n2(za) c:R@n3(zb)";
    let hinted = "a:R@n1(za)/hn=n1/hz=za b:R@n2(za)/hn=n2/hz=za c:T@n3(zb)";
    let node = context("n1", "za");
    let mut local = service();
    local.internal_traffic_policy = TrafficPolicy::Local;
    let mut odd = service();
    odd.traffic_distribution = Some("PreferMoon".into());
    odd.annotations.insert("nodeward.io/profile".into(), "dns".into());
    let (rack, nodes) = (
        "example.com/rack",
        [
            node_in_rack("n1", "r1"),
            node_in_rack("n2", "r1"),
            node_in_rack("n3", "r2"),
        ],
    );
    let racks = context_with_levels(&[("rack", rack), ("zone", ZONE_LABEL)], &nodes);
    let states = [
        (
            "every policy: Cluster",
            service(),
            ladder,
            &node,
            with_policy(Policy::Cluster),
        ),
        (
            "every policy: PreferSameZone",
            service(),
            ladder,
            &node,
            with_policy(Policy::PreferSameZone),
        ),
        (
            "every policy: PreferSameNode",
            service(),
            ladder,
            &node,
            with_policy(Policy::PreferSameNode),
        ),
        (
            "every policy: Local",
            service(),
            ladder,
            &node,
            with_policy(Policy::Local),
        ),
        (
            "every policy: PreferLocal",
            service(),
            ladder,
            &node,
            with_policy(Policy::PreferLocal),
        ),
        (
            "nothing near",
            service(),
            "b:R@n2(zb) c:R@n3",
            &node,
            TopologyConfig::default(),
        ),
        (
            "PreferLocal, none here",
            service(),
            "b:R@n2(za) c:T@n1",
            &node,
            with_policy(Policy::PreferLocal),
        ),
        ("levels", service(), ladder, &racks, TopologyConfig::default()),
        ("strict, node hints", service(), hinted, &node, strict()),
        (
            "strict, incomplete hints",
            service(),
            "a:R@n1/hn=n1 b:R@n2/hz=za c:R@n3/hz=zb",
            &node,
            strict(),
        ),
        (
            "strict, zone hints without a zone of our own",
            service(),
            "b:R@n2/hz=za",
            &context("n1", ""),
            strict(),
        ),
        ("strict, Local", local.clone(), "a:T@n1 b:R@n2 c:X@n1", &node, strict()),
        ("strict, Local, none here", local.clone(), "b:R@n2", &node, strict()),
        (
            "Local, none here",
            local.clone(),
            "a:U@n1 b:R@n2",
            &node,
            TopologyConfig::default(),
        ),
        (
            "all terminating",
            service(),
            "a:T@n1(za) b:T@n2(za)",
            &node,
            TopologyConfig::default(),
        ),
        (
            "strict, all terminating",
            service(),
            "a:T@n1(za) b:T@n2(za)",
            &node,
            strict(),
        ),
        (
            "none could serve",
            service(),
            "a:U@n1 b:X@n2",
            &node,
            TopologyConfig::default(),
        ),
        ("no endpoints", service(), "", &node, strict()),
        ("bad values", odd, ladder, &node, TopologyConfig::default()),
    ];
    let mut out = String::new();
    for (title, service, endpoints, node, config) in states {
        out.push_str(&format!(
            "# {title}\n{}\n",
            text::explanations(&seen(&service, endpoints, node, &config), false)
        ));
    }
    golden("explain-states.txt", &out);
}

fn node_in_rack(name: &str, rack: &str) -> Arc<nodeward::model::Node> {
    node(name, &[("example.com/rack", rack), (ZONE_LABEL, "za")])
}

#[test]
fn lists_as_text() {
    let node = context("n1", "za");
    let mut views = dns_views(&TopologyConfig::default(), &node);
    views.extend(dns_views(&strict(), &node));
    views.push(view(&service(), "a:U@n1 b:R@n2", &node, &with_policy(Policy::Local)));
    views.push(view(&service(), "a:T@n1 b:U@n2", &node, &TopologyConfig::default()));
    golden(
        "services.txt",
        &text::services(&service_rows(&views, &node, None), false),
    );
    let filter = "kube-system/kube-dns:53".parse().unwrap();
    golden(
        "endpoints.txt",
        &text::endpoints(&endpoint_rows(&views, &node, Some(&filter)), false),
    );
}

#[test]
fn colour_changes_nothing_but_colour() {
    let node = context("n1", "za");
    let explanations = explain_views(&dns_views(&TopologyConfig::default(), &node), &node, None);
    let coloured = text::explanations(&explanations, true);
    assert!(coloured.contains("\x1b[32m") && coloured.contains("\x1b[0m"));
    let mut plain = coloured;
    for code in ["\x1b[0m", "\x1b[1m", "\x1b[2m", "\x1b[31m", "\x1b[32m"] {
        plain = plain.replace(code, "");
    }
    assert_eq!(plain, text::explanations(&explanations, false));
}

#[test]
fn chosen_is_sorted_as_text_and_endpoints_by_address() {
    let node = context("n1", "za");
    let explanation = &seen(&service(), "j:R@n1 b:R@n1 a:R@n1", &node, &TopologyConfig::default())[0];
    assert_eq!(explanation.chosen, ["10.0.0.10:8080", "10.0.0.1:8080", "10.0.0.2:8080"]);
    let addresses: Vec<_> = explanation.endpoints.iter().map(|e| e.address.as_str()).collect();
    assert_eq!(addresses, ["10.0.0.1:8080", "10.0.0.2:8080", "10.0.0.10:8080"]);
}
