//! Requirements on ranking, rows A28 to A58; the number in a test's name is the row's.

use super::custom_ranker;
use super::rows_support::*;
use super::support::*;
use nodeward::model::{Protocol, Service, ZONE_LABEL};
use nodeward::topology::{Policy, Profile, TopologyConfig, Verdict};
use nodeward::view::{ServicePortView, SettingOrigin, explain_views, service_views};
use rand::seq::SliceRandom;
use std::sync::Arc;

#[test]
fn a28_statsd_on_all_nodes_but_a_handful() {
    let mut service = service();
    service.ports = vec![port("statsd", Protocol::Udp, 8125)];
    let mut s = slice("svc-1", endpoints("a:R@n1(za) b:R@n2(za) c:R@n3(zb)"));
    s.ports = vec![slice_port("statsd", Protocol::Udp, 8125)];
    let slices = [Arc::new(s)];
    for (me, zone, expected) in [
        ("n1", "za", "a"),
        ("n2", "za", "b"),
        ("n8", "za", "ab"),
        ("n9", "zc", "abc"),
    ] {
        let views = service_views(&service, &slices, &context(me, zone), &TopologyConfig::default());
        assert_eq!(views[0].settings.profile, (Profile::Oneway, SettingOrigin::Default));
        assert_eq!(chosen(&views[0]), expected, "{me}");
        assert_eq!(views[0].decision.verdict, Verdict::Forward);
    }
}

#[test]
fn a31_policies_are_per_service_by_field_annotation_and_configuration() {
    let node = context("n1", "za");
    let mut config = with_policy(Policy::Cluster);
    config.rules.push(rule("ns/configured"));
    config.rules[0].policy = Some(Policy::PreferLocal);
    let mut annotated = service();
    annotated
        .annotations
        .insert("nodeward.io/policy".into(), "PreferSameNode".into());
    let mut configured = service();
    configured.name.name = "configured".into();
    let policy = |service: &Service| service_views(service, &[], &node, &config)[0].settings.policy;
    assert_eq!(policy(&service()), (Policy::Cluster, SettingOrigin::Default));
    assert_eq!(
        policy(&distributed("PreferSameZone")),
        (Policy::PreferSameZone, SettingOrigin::Field)
    );
    assert_eq!(policy(&annotated), (Policy::PreferSameNode, SettingOrigin::Annotation));
    assert_eq!(policy(&configured), (Policy::PreferLocal, SettingOrigin::Configuration));
}

#[test]
fn a37_a47_prefer_same_node_is_taken_at_its_word_however_small_the_node_rank() {
    let node = context("n1", "za");
    let crowd: Vec<String> = (1..20u8)
        .map(|i| format!("{}:R@n{}(za)", char::from(b'a' + i), i + 1))
        .collect();
    let text = format!("a:R@n1(za) {}", crowd.join(" "));
    let view = view(&distributed("PreferSameNode"), &text, &node, &TopologyConfig::default());
    let picks = picks(&view, &node, 20_000, &mut rng("a37"));
    assert_eq!(picks.by_letter.into_iter().collect::<Vec<_>>(), [('a', 20_000)]);
}

#[test]
fn a38_prefer_close_equals_kube_proxy_on_random_states() {
    let mut rng = rng("a38");
    let service = distributed("PreferClose");
    let node = context("n1", "za");
    let (mut compared, mut without_zone) = (0, 0);
    for _ in 0..3_000 {
        let set = random_set(&mut rng, 5, 0..=8);
        let text = controller("PreferClose", &set);
        let ready = letters(&set, |e| e.1 == "R");
        let near = letters(&set, |e| e.1 == "R" && e.3 == "za");
        let incomplete = set.iter().any(|e| e.1 == "R" && e.3.is_empty());
        // kube-proxy's own answer, from its rule.
        let expected = match () {
            () if ready.is_empty() => letters(&set, |e| e.1 == "T"),
            () if near.is_empty() || incomplete => ready.clone(),
            () => near,
        };
        let kube_proxy = view(&service, &text, &node, &strict());
        assert_eq!(chosen(&kube_proxy), expected, "{text}");
        // `ranked` says the same wherever hints are complete and somebody is ready; elsewhere it keeps to the zone.
        let ours = view(&service, &text, &node, &TopologyConfig::default());
        assert_eq!(ours.decision.verdict, kube_proxy.decision.verdict, "{text}");
        if !incomplete && !ready.is_empty() {
            assert_eq!(chosen(&ours), expected, "{text}");
            compared += 1;
        }
        without_zone += usize::from(incomplete);
    }
    assert!(compared > 1_000 && without_zone > 500, "{compared} {without_zone}");
}

#[test]
fn a39_uniform_inside_the_rank() {
    let node = context("n1", "za");
    let text = "a:R@n2(za) b:R@n3(za) c:R@n4(za) d:R@n5(za) e:R@n6(za) f:R@n7(zb)";
    let view = view(&service(), text, &node, &TopologyConfig::default());
    let picks = picks(&view, &node, 100_000, &mut rng("a39"));
    assert_eq!(picks.by_letter.keys().collect::<String>(), "abcde");
    let expected = 20_000.0;
    let chi_square: f64 = picks
        .by_letter
        .values()
        .map(|n| (*n as f64 - expected).powi(2) / expected)
        .sum();
    // Four degrees of freedom, p = 0.01.
    assert!(chi_square < 13.277, "chi square {chi_square}: {picks:?}");
}

#[test]
fn a44_a_custom_ranker_plugs_in_without_touching_the_data_plane() {
    let node = context("n1", "za");
    let slices = |text| [Arc::new(slice("svc-1", endpoints(text)))];
    let text = "a:R@n1(za) b:R@canary(zb) c:U@canary(zb)";
    let views = custom_ranker::rank(&service(), &slices(text), &node);
    assert_eq!(tiers(&views[0], &node), "node{b} cluster{a}");
    let picks = picks(&views[0], &node, 1_000, &mut rng("a44"));
    assert_eq!(picks.by_letter.keys().collect::<String>(), "b");
    let views = custom_ranker::rank(&service(), &slices("a:R@n1(za) c:U@canary(zb)"), &node);
    assert_eq!(tiers(&views[0], &node), "cluster{a}");
    assert_eq!(
        custom_ranker::rank(&service(), &[], &node)[0].decision.verdict,
        Verdict::Reject
    );
}

#[test]
fn a45_the_same_objects_explain_alike_however_they_arrived() {
    let mut rng = rng("a45");
    let node = context("n1", "za");
    let all = endpoints("a:R@n1(za) b:R@n2(za)/hz=za c:T@n3(zb) d:U@n4(zb) e:R@n5(zb)/hz=zb");
    let explain_json = |slices: &[Arc<_>]| {
        let views: Vec<ServicePortView> = service_views(&service(), slices, &node, &TopologyConfig::default());
        serde_json::to_string(&explain_views(&views, &node, None)).unwrap()
    };
    let one = explain_json(&[Arc::new(slice("svc-1", all.clone()))]);
    for _ in 0..50 {
        let mut parts: Vec<_> = all.iter().map(|e| Arc::new(slice("svc-x", vec![e.clone()]))).collect();
        parts.shuffle(&mut rng);
        assert_eq!(explain_json(&parts), one);
    }
    // What an agent sends over its socket reads back as the very same explanation.
    let read: Vec<nodeward::view::Explanation> = serde_json::from_str(&one).unwrap();
    assert_eq!(serde_json::to_string(&read).unwrap(), one);
}

#[test]
fn a48_zone_hints_are_all_or_nothing_also_for_topology_mode_auto() {
    let node = context("n1", "za");
    let mut auto = service();
    auto.annotations
        .insert("service.kubernetes.io/topology-mode".into(), "Auto".into());
    for service in [service(), auto] {
        let look = |text| chosen(&view(&service, text, &node, &strict()));
        assert_eq!(look("a:R@n2/hz=za b:R@n3/hz=zb"), "a");
        assert_eq!(look("a:R@n2/hz=za b:R@n3"), "ab");
        assert_eq!(look("a:R@n2/hz=za b:U@n3"), "a");
        // A rebalanced hint: the endpoint of another zone serves ours.
        assert_eq!(look("a:R@n2(za)/hz=zb b:R@n3(zb)/hz=za"), "b");
    }
}

#[test]
fn a49_three_spellings_of_the_zone_policy_and_one_is_deprecated() {
    let node = context("n1", "za");
    let config = with_policy(Policy::Cluster);
    let by_field = |v: &str| view(&distributed(v), LADDER, &node, &config);
    let by_annotation = |v: &str| {
        let mut service = service();
        service.annotations.insert("nodeward.io/policy".into(), v.into());
        view(&service, LADDER, &node, &config)
    };
    for (view, deprecated) in [
        (by_field("PreferClose"), true),
        (by_field("PreferSameZone"), false),
        (by_annotation("PreferClose"), true),
        (by_annotation("PreferSameZone"), false),
    ] {
        assert_eq!(view.settings.policy.0, Policy::PreferSameZone);
        assert_eq!(chosen(&view), "ab");
        assert_eq!(
            view.settings.notices.iter().any(|n| n.contains("deprecated")),
            deprecated
        );
    }
    let configured: Policy = serde_json::from_value("PreferClose".into()).unwrap();
    assert_eq!(configured, Policy::PreferSameZone);
}

#[test]
fn a47_a50_hostname_zone_region_and_any_node_label_work_as_levels() {
    let hostname = "kubernetes.io/hostname";
    let disk = "example.com/disk";
    let levels = [
        ("hostname", hostname),
        ("disk", disk),
        ("zone", ZONE_LABEL),
        ("region", REGION_LABEL),
    ];
    let place = |name: &str, host: &str, disk_: &str, zone, region| {
        node(
            name,
            &[
                (hostname, host),
                (disk, disk_),
                (ZONE_LABEL, zone),
                (REGION_LABEL, region),
            ],
        )
    };
    let nodes = [
        place("n1", "h1", "ssd", "za", "eu"),
        // Another Node of the same host name: a virtual node, say.
        place("n2", "h1", "hdd", "zb", "us"),
        place("n3", "h3", "ssd", "zc", "us"),
        place("n4", "h4", "hdd", "za", "eu"),
        place("n5", "h5", "hdd", "zb", "eu"),
        place("n6", "h6", "hdd", "zc", "us"),
    ];
    let context = context_with_levels(&levels, &nodes);
    let text = "b:R@n2(zb) c:R@n3(zc) d:R@n4(za) e:R@n5(zb) f:R@n6(zc) g:R@nowhere(zc)";
    let expected = "hostname{b} disk{c} zone{d} region{e} cluster{f g}";
    assert_eq!(ranked(Policy::PreferSameNode, text, &context), expected);
}

#[test]
fn a58_region_is_a_rank_like_any_other() {
    let nodes = [
        node("n1", &[(ZONE_LABEL, "za"), (REGION_LABEL, "eu")]),
        node("n2", &[(ZONE_LABEL, "zb"), (REGION_LABEL, "eu")]),
        node("n3", &[(ZONE_LABEL, "zc"), (REGION_LABEL, "us")]),
        // An empty label is no label.
        node("n4", &[(ZONE_LABEL, "zd"), (REGION_LABEL, "")]),
    ];
    let context = context_with_levels(&[("zone", ZONE_LABEL), ("region", REGION_LABEL)], &nodes);
    let text = "b:R@n2(zb) c:R@n3(zc) d:R@n4(zd)";
    assert_eq!(ranked(Policy::PreferSameNode, text, &context), "region{b} cluster{c d}");
    assert_eq!(ranked(Policy::PreferSameZone, text, &context), "region{b} cluster{c d}");
    // Not even for two Nodes that share it.
    let (mine, theirs) = (&nodes[3], node("n5", &[(ZONE_LABEL, "ze"), (REGION_LABEL, "")]));
    let context = context_with_levels(&[("region", REGION_LABEL)], &[mine.clone(), theirs]);
    assert_eq!(ranked(Policy::PreferSameNode, "e:R@n5(ze)", &context), "cluster{e}");
}
