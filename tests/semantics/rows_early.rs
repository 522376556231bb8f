//! Requirements on ranking, rows A01 to A27; the number in a test's name is the row's.

use super::rows_support::*;
use super::support::*;
use nodeward::model::{TrafficPolicy, ZONE_LABEL};
use nodeward::topology::{Interpretation, Policy, TopologyConfig, Verdict};
use nodeward::view::{SettingOrigin, explain, service_rows};

#[test]
fn a01_everything_goes_to_this_node_while_it_has_a_ready_endpoint() {
    let node = context("n1", "za");
    let view = view(
        &distributed("PreferSameNode"),
        LADDER,
        &node,
        &TopologyConfig::default(),
    );
    let picks = picks(&view, &node, 100_000, &mut rng("a01"));
    assert_eq!(
        picks.by_rank.into_iter().collect::<Vec<_>>(),
        [("node".to_owned(), 100_000)]
    );
}

#[test]
fn a02_prefer_local_gives_local_endpoints_else_all_and_never_none() {
    let mut service = service();
    service
        .annotations
        .insert("nodeward.io/policy".into(), "PreferLocal".into());
    let node = context("n1", "za");
    let config = TopologyConfig::default();
    let look = |text| tiers(&view(&service, text, &node, &config), &node);
    assert_eq!(look(LADDER), "node{a} cluster{b c}");
    assert_eq!(look("a:U@n1(za) b:R@n2(za) c:R@n3(zb)"), "cluster{b c}");
    assert_eq!(look("a:T@n1(za) c:R@n3(zb)"), "cluster{c} node!{a}");
}

#[test]
fn a03_node_rank_is_a_rank_of_its_own_in_decisions_and_explanations() {
    let node = context("n1", "za");
    let view = view(&service(), LADDER, &node, &TopologyConfig::default());
    let explanation = explain(&view, &node);
    assert_eq!(explanation.chosen_rank.as_deref(), Some("node"));
    let ranks: Vec<_> = explanation.endpoints.iter().map(|e| e.rank.as_str()).collect();
    assert_eq!(ranks, ["node", "zone", "cluster"]);
    assert_eq!(entry(&view).tiers[0].rank, nodeward::topology::Rank::NODE);
}

#[test]
fn a04_a05_the_local_endpoint_if_there_is_one_else_zone_else_cluster() {
    let config = TopologyConfig::default();
    for (me, zone, expected) in [
        ("n1", "za", "a"),
        ("n9", "za", "ab"),
        ("n9", "zb", "c"),
        ("n9", "zd", "abc"),
    ] {
        let node = context(me, zone);
        assert_eq!(
            chosen(&view(&service(), LADDER, &node, &config)),
            expected,
            "{me} {zone}"
        );
    }
}

#[test]
fn a06_prefer_close_means_prefer_same_zone_and_explain_says_so() {
    let node = context("n1", "za");
    let view = view(&distributed("PreferClose"), LADDER, &node, &TopologyConfig::default());
    let explanation = explain(&view, &node);
    assert_eq!(
        (explanation.policy.as_str(), explanation.policy_origin.as_str()),
        ("PreferSameZone", "field")
    );
    assert_eq!(chosen(&view), "ab");
    assert!(
        explanation
            .notices
            .iter()
            .any(|n| n.contains("PreferClose") && n.contains("PreferSameZone"))
    );
}

#[test]
fn a07_five_levels_pick_the_nearest_non_empty() {
    let (rack, row) = ("example.com/rack", "example.com/row");
    let levels = [
        ("rack", rack),
        ("row", row),
        ("zone", ZONE_LABEL),
        ("region", REGION_LABEL),
    ];
    let place = |name, rack_, row_, zone, region| {
        node(
            name,
            &[(rack, rack_), (row, row_), (ZONE_LABEL, zone), (REGION_LABEL, region)],
        )
    };
    let nodes = [
        place("n1", "r1", "w1", "za", "eu"),
        place("n2", "r1", "w1", "za", "eu"),
        place("n3", "r2", "w1", "za", "eu"),
        place("n4", "r3", "w2", "za", "eu"),
        place("n5", "r4", "w3", "zb", "eu"),
        place("n6", "r5", "w4", "zc", "us"),
    ];
    let context = context_with_levels(&levels, &nodes);
    let all = [
        "a:R@n1(za)",
        "b:R@n2(za)",
        "c:R@n3(za)",
        "d:R@n4(za)",
        "e:R@n5(zb)",
        "f:R@n6(zc)",
    ];
    let everything = "node{a} rack{b} row{c} zone{d} region{e} cluster{f}";
    assert_eq!(ranked(Policy::PreferSameNode, &all.join(" "), &context), everything);
    for (gone, rank) in [
        (1, "rack{b}"),
        (2, "row{c}"),
        (3, "zone{d}"),
        (4, "region{e}"),
        (5, "cluster{f}"),
    ] {
        let left = ranked(Policy::PreferSameNode, &all[gone..].join(" "), &context);
        assert!(left.starts_with(rank), "{left}");
    }
    assert_eq!(
        ranked(Policy::PreferSameZone, &all.join(" "), &context),
        "zone{a b c d} region{e} cluster{f}"
    );
}

#[test]
fn a08_prefer_same_node_of_a_service_is_node_zone_cluster_as_in_kube_proxy() {
    let mut rng = rng("a08");
    let service = distributed("PreferSameNode");
    let mut modes = std::collections::BTreeSet::new();
    for _ in 0..2_000 {
        // With every node in a zone, hints are complete: then location and hints say the same.
        let set = random_set(&mut rng, 4, 1..=8);
        let text = controller("PreferSameNode", &set);
        let node = context("n1", "za");
        let kube_proxy = view(&service, &text, &node, &strict());
        let ours = view(&service, &text, &node, &TopologyConfig::default());
        if set.iter().any(|e| e.1 == "R") {
            assert_eq!(chosen(&ours), chosen(&kube_proxy), "{text}");
            assert_eq!(chosen_rank(&ours), chosen_rank(&kube_proxy), "{text}");
            modes.insert(chosen_rank(&ours).unwrap());
        }
        assert_eq!(ours.decision.verdict, kube_proxy.decision.verdict, "{text}");
    }
    assert_eq!(modes.len(), 3, "node, zone and cluster all occurred");
    // Unknown values count as unset, and can be counted.
    let node = context("n1", "za");
    let odd = view(
        &distributed("PreferREALLYClose"),
        LADDER,
        &node,
        &with_policy(Policy::Cluster),
    );
    assert_eq!(odd.settings.policy, (Policy::Cluster, SettingOrigin::Default));
    assert_eq!(service_rows(&[odd], &node, None)[0].notices, 1);
}

#[test]
fn a18_a40_an_explicit_policy_always_beats_the_default() {
    let node = context("n1", "za");
    for default in Policy::ALL {
        let view = view(&distributed("PreferSameNode"), LADDER, &node, &with_policy(*default));
        assert_eq!(view.settings.policy, (Policy::PreferSameNode, SettingOrigin::Field));
        assert_eq!(chosen(&view), "a");
    }
}

#[test]
fn a19_proximity_costs_evenness_and_both_can_be_measured() {
    // Nine of ten flows start on n1; three endpoints on three nodes.
    let text = "a:R@n1(za) b:R@n2(za) c:R@n3(zb)";
    let mut rng = rng("a19");
    let mut measure = |policy| {
        let mut load = std::collections::BTreeMap::new();
        let mut near = 0;
        for (me, zone, flows) in [("n1", "za", 9_000), ("n2", "za", 500), ("n3", "zb", 500)] {
            let node = context(me, zone);
            let picks = picks(
                &view(&service(), text, &node, &with_policy(policy)),
                &node,
                flows,
                &mut rng,
            );
            near += picks.by_rank.get("node").copied().unwrap_or(0);
            for (letter, n) in picks.by_letter {
                *load.entry(letter).or_insert(0) += n;
            }
        }
        let max = load.values().max().copied().unwrap_or(0) as f64;
        (near as f64 / 10_000.0, max / (10_000.0 / 3.0))
    };
    let (near, skew) = measure(Policy::PreferSameNode);
    assert_eq!(near, 1.0);
    assert!((skew - 2.7).abs() < 0.01, "max/mean {skew}");
    let (near, skew) = measure(Policy::Cluster);
    assert_eq!(near, 0.0);
    assert!(skew < 1.05, "max/mean {skew}");
}

#[test]
fn a20_smart_is_no_interpretation_and_asking_for_it_is_noted_not_fatal() {
    let mut service = service();
    service
        .annotations
        .insert("nodeward.io/interpretation".into(), "smart".into());
    let view = view(&service, LADDER, &context("n1", "za"), &TopologyConfig::default());
    assert_eq!(
        view.settings.interpretation,
        (Interpretation::Ranked, SettingOrigin::Default)
    );
    assert!(view.settings.notices[0].contains("smart"));
}

#[test]
fn a22_strict_knows_no_special_number_of_endpoints() {
    let mut rng = rng("a22");
    let node = context("n1", "za");
    for n in 0..=10 {
        for _ in 0..100 {
            let mut set = random_set(&mut rng, 4, n..=n);
            for e in &mut set {
                e.1 = "R";
            }
            let text = controller("PreferSameZone", &set);
            let mine = letters(&set, |e| e.3 == "za");
            let expected = if mine.is_empty() { letters(&set, |_| true) } else { mine };
            assert_eq!(chosen(&view(&service(), &text, &node, &strict())), expected, "{text}");
        }
    }
}

#[test]
fn a23_explain_gives_rank_conditions_hints_and_a_reason_for_each_endpoint() {
    let node = context("n1", "za");
    let text = "a:U@n1(za)/hz=za b:R@n2(za)/hz=za c:T@n3(zb) d:X@n3(zb) e:R@n3(zb)/hz=zb";
    for (config, reasons) in [
        (
            TopologyConfig::default(),
            [
                "not ready",
                "ready, same zone",
                "terminating; last resort when no ready endpoint is usable",
                "terminating and no longer serving",
                "ready; next when nothing nearer is usable",
            ],
        ),
        (
            strict(),
            [
                "not ready",
                "ready, hinted to zone za",
                "terminating; not used while an endpoint is ready",
                "terminating and no longer serving",
                "ready; not hinted to zone za, others are",
            ],
        ),
    ] {
        let explanation = explain(&view(&service(), text, &node, &config), &node);
        let got: Vec<_> = explanation.endpoints.iter().map(|e| e.reason.as_str()).collect();
        assert_eq!(got, reasons);
        assert_eq!(explanation.endpoints[1].hint_zones, ["za"]);
        let conditions: Vec<_> = explanation
            .endpoints
            .iter()
            .map(|e| (e.ready, e.serving, e.terminating))
            .collect();
        assert_eq!(
            conditions[..3],
            [(false, false, false), (true, true, false), (false, true, true)]
        );
    }
}

#[test]
fn a24_internal_traffic_policy_local_drops_or_rejects_exactly() {
    let mut service = service();
    service.internal_traffic_policy = TrafficPolicy::Local;
    let node = context("n1", "za");
    for config in [TopologyConfig::default(), strict()] {
        let verdict = |text| view(&service, text, &node, &config).decision.verdict;
        assert_eq!(verdict("a:R@n1 b:R@n2"), Verdict::Forward);
        assert_eq!(verdict("a:T@n1 b:R@n2"), Verdict::Forward);
        assert_eq!(verdict("a:U@n1 b:R@n2"), Verdict::Drop);
        assert_eq!(verdict("b:T@n2"), Verdict::Drop);
        assert_eq!(verdict("a:U@n1 b:X@n2"), Verdict::Reject);
        assert_eq!(verdict(""), Verdict::Reject);
        assert_eq!(
            chosen(&view(&service, "a:R@n1/hn=n2/hz=zb b:R@n2/hn=n1/hz=za", &node, &config)),
            "a"
        );
    }
}

#[test]
fn a26_one_update_brings_new_flows_back_to_this_node() {
    let node = context("n1", "za");
    let look = |text: &str| chosen(&view(&service(), text, &node, &TopologyConfig::default()));
    let rollout = ["a:R@n1(za)", "a:T@n1(za)", "a:X@n1(za)", "a:U@n1(za)", "a:R@n1(za)"];
    let seen: Vec<String> = rollout
        .iter()
        .map(|a| look(&format!("{a} b:R@n2(za) c:R@n3(zb)")))
        .collect();
    assert_eq!(seen, ["a", "b", "b", "b", "a"]);
}

#[test]
fn a27_other_nodes_without_endpoints_change_nothing_here() {
    let node = context("n1", "za");
    let mut set = vec!["a:R@n1(za)".to_owned()];
    set.extend((2..=9).map(|n| format!("{}:R@n{n}(za)", char::from(b'a' + n - 1))));
    let all = set.join(" ");
    for missing in 0..8 {
        let text = set[..set.len() - missing].join(" ");
        assert_eq!(chosen(&view(&service(), &text, &node, &TopologyConfig::default())), "a");
        // Nor does it matter whether they are gone or not ready.
        let unready = all.replace(":R@", ":U@").replacen(":U@", ":R@", set.len() - missing);
        assert_eq!(
            chosen(&view(&service(), &unready, &node, &TopologyConfig::default())),
            "a"
        );
    }
}
