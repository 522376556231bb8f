//! `ranked`: tiers by location, readiness first.

use super::support::*;
use nodeward::model::{TrafficPolicy, ZONE_LABEL};
use nodeward::topology::{Policy, Rank, Reason, Verdict};
use nodeward::view::{ServicePortView, explain};
use rand::RngExt;
use rand::rngs::SmallRng;

const EVERYWHERE: &str = "a:R@n1(za) b:R@n2(za) c:R@n3(zb)";

#[test]
fn each_policy_makes_its_own_tiers() {
    let node = context("n1", "za");
    let tiers = |policy| ranked(policy, EVERYWHERE, &node);
    assert_eq!(tiers(Policy::Cluster), "cluster{a b c}");
    assert_eq!(tiers(Policy::PreferSameZone), "zone{a b} cluster{c}");
    assert_eq!(tiers(Policy::PreferSameNode), "node{a} zone{b} cluster{c}");
    assert_eq!(tiers(Policy::Local), "node{a}");
    assert_eq!(tiers(Policy::PreferLocal), "node{a} cluster{b c}");
}

#[test]
fn x1_location_decides_without_hints() {
    let node = context("n1", "za");
    assert_eq!(
        ranked(Policy::PreferSameNode, EVERYWHERE, &node),
        "node{a} zone{b} cluster{c}"
    );
    // Hints that say otherwise change nothing.
    let hinted = "a:R@n1(za)/hn=n9/hz=zb b:R@n2(za)/hn=n1/hz=zb c:R@n3(zb)/hn=n1/hz=za";
    assert_eq!(
        ranked(Policy::PreferSameNode, hinted, &node),
        "node{a} zone{b} cluster{c}"
    );
    assert_eq!(chosen(&view(&service(), EVERYWHERE, &node, &strict())), "abc");
}

#[test]
fn x2_a_terminating_local_endpoint_holds_no_traffic_a_ready_one_could_take() {
    let node = context("n1", "za");
    let text = "a:T@n1(za) b:R@n2(za) c:R@n3(zb)";
    assert_eq!(
        ranked(Policy::PreferSameNode, text, &node),
        "zone{b} cluster{c} node!{a}"
    );
    assert_eq!(chosen(&view(&service(), text, &node, &strict())), "bc");
}

#[test]
fn x5_when_all_terminate_the_nearest_serves() {
    let node = context("n1", "za");
    let text = "a:T@n1(za) b:T@n2(za) c:T@n3(zb)";
    assert_eq!(
        ranked(Policy::PreferSameNode, text, &node),
        "node!{a} zone!{b} cluster!{c}"
    );
    assert_eq!(chosen(&view(&service(), text, &node, &strict())), "abc");
}

#[test]
fn x7_without_a_zone_of_our_own_the_zone_never_matches() {
    let node = context("n1", "");
    assert_eq!(
        ranked(Policy::PreferSameNode, "b:R@n2(za) c:R@n3(zb)", &node),
        "cluster{b c}"
    );
    assert_eq!(ranked(Policy::PreferSameZone, EVERYWHERE, &node), "cluster{a b c}");
    // Nor does an unknown own Node.
    let mut unknown = context("n1", "za");
    unknown.node = None;
    assert_eq!(
        ranked(Policy::PreferSameNode, EVERYWHERE, &unknown),
        "node{a} cluster{b c}"
    );
}

#[test]
fn what_is_not_known_about_an_endpoint_ranks_it_last() {
    let node = context("n1", "za");
    let text = "a:R b:R@n2 c:R(za) d:R@n4(zb)";
    assert_eq!(ranked(Policy::PreferSameNode, text, &node), "zone{c} cluster{a b d}");
    // One endpoint without a zone does not switch the ladder off for the others, as it does with hints.
    assert_eq!(ranked(Policy::PreferSameZone, text, &node), "zone{c} cluster{a b d}");
}

#[test]
fn an_endpoint_here_without_a_zone_is_in_our_zone() {
    let node = context("n1", "za");
    assert_eq!(
        ranked(Policy::PreferSameZone, "a:R@n1 b:R@n2(za) c:R@n3(zb)", &node),
        "zone{a b} cluster{c}"
    );
}

#[test]
fn local_stays_here_drops_or_rejects() {
    let node = context("n1", "za");
    let decide = |text| view(&service(), text, &node, &with_policy(Policy::Local)).decision;
    let verdict = |text| (decide(text).verdict, decide(text).any_usable);
    assert_eq!(verdict("a:R@n1 b:R@n2"), (Verdict::Forward, true));
    assert_eq!(verdict("a:T@n1 b:R@n2"), (Verdict::Forward, true));
    assert_eq!(verdict("a:U@n1 b:R@n2"), (Verdict::Drop, true));
    assert_eq!(verdict("a:U@n1 b:T@n2"), (Verdict::Drop, true));
    assert_eq!(verdict("a:U@n1 b:X@n2"), (Verdict::Reject, false));
    assert_eq!(verdict(""), (Verdict::Reject, false));
    assert_eq!(ranked(Policy::Local, "a:R@n1 b:T@n1 c:R@n2", &node), "node{a} node!{b}");
    assert_eq!(decide("a:R@n1 b:R@n2").placements[1].reason, Reason::OutsidePolicy);
}

#[test]
fn conditions_alone_do_not_keep_an_endpoint() {
    let node = context("n1", "za");
    // U not ready, S serving but not ready, X terminating and dead: never. P, Q: ready is what counts.
    assert_eq!(
        ranked(Policy::PreferSameNode, "a:U@n1 b:S@n1 c:X@n1 d:R@n2", &node),
        "cluster{d}"
    );
    assert_eq!(
        ranked(Policy::PreferSameNode, "a:P@n1 b:Q@n1 c:R@n2", &node),
        "node{a b} cluster{c}"
    );
}

#[test]
fn reasons_and_distances_are_given_for_every_endpoint() {
    let node = context("n1", "za");
    let text = "a:R@n1(za) b:R@n2(za) c:T@n1(za) d:U@n3(zb)";
    let decision = view(&service(), text, &node, &with_policy(Policy::PreferSameNode)).decision;
    let got: Vec<_> = decision.placements.iter().map(|p| (p.rank, p.tier, p.reason)).collect();
    let expected = [
        (Rank(0), Some(0), Reason::Chosen),
        (Rank(1), Some(1), Reason::Fallback),
        (Rank(0), Some(2), Reason::Terminating),
        (Rank(2), None, Reason::NotReady),
    ];
    assert_eq!(got, expected);
}

#[test]
fn prefer_same_zone_asks_the_zone_itself_not_a_narrower_level() {
    // Rack names are not unique over zones here: the same rack word in another zone is another zone.
    let rack = "example.com/rack";
    let nodes = [
        node("n1", &[(ZONE_LABEL, "za"), (rack, "r1")]),
        node("n2", &[(ZONE_LABEL, "zb"), (rack, "r1")]),
        node("n3", &[(ZONE_LABEL, "za"), (rack, "r2")]),
    ];
    let context = context_with_levels(&[("rack", rack), ("zone", ZONE_LABEL)], &nodes);
    let text = "a:R@n1(za) b:R@n2(zb) c:R@n3(za)";
    assert_eq!(ranked(Policy::PreferSameZone, text, &context), "zone{a c} cluster{b}");
    assert_eq!(
        ranked(Policy::PreferSameNode, text, &context),
        "node{a} rack{b} zone{c}"
    );
}

#[test]
fn prefer_same_zone_without_a_zone_level_is_cluster() {
    let region = "topology.kubernetes.io/region";
    let nodes = [node("n1", &[(ZONE_LABEL, "za"), (region, "r1")])];
    let context = context_with_levels(&[("region", region)], &nodes);
    assert_eq!(ranked(Policy::PreferSameZone, EVERYWHERE, &context), "cluster{a b c}");
}

#[test]
fn no_levels_leave_node_and_cluster() {
    let context = context_with_levels(&[], &[node("n1", &[(ZONE_LABEL, "za")])]);
    assert_eq!(
        ranked(Policy::PreferSameNode, EVERYWHERE, &context),
        "node{a} cluster{b c}"
    );
}

/// An endpoint of the reference, in plain words.
#[derive(Debug)]
struct Plain {
    id: char,
    state: &'static str,
    node: Option<u8>,
    zone: Option<&'static str>,
}

fn random_plain(rng: &mut SmallRng) -> Vec<Plain> {
    let states = ["R", "R", "R", "U", "T", "T", "X", "P", "Q", "S"];
    let count = rng.random_range(0..=8);
    let one = |i| Plain {
        id: char::from(b'a' + i),
        state: states[rng.random_range(0..states.len())],
        node: rng.random_bool(0.9).then(|| rng.random_range(1..=4)),
        zone: rng.random_bool(0.8).then(|| ["za", "zb", "zc"][rng.random_range(0..3)]),
    };
    (0..count).map(one).collect()
}

fn text(plain: &[Plain]) -> String {
    let one = |e: &Plain| {
        let node = e.node.map_or(String::new(), |n| format!("@n{n}"));
        let zone = e.zone.map_or(String::new(), |z| format!("({z})"));
        format!("{}:{}{node}{zone}", e.id, e.state)
    };
    plain.iter().map(one).collect::<Vec<_>>().join(" ")
}

/// The reference ranking for levels node, zone, cluster: filter again and again, nearest first, ready before leaving.
fn reference(policy: Policy, zone: &str, all: &[Plain]) -> Vec<(String, Vec<char>)> {
    let here = |e: &Plain| e.node == Some(1);
    let in_zone = |e: &Plain| !zone.is_empty() && (here(e) || e.zone == Some(zone));
    type Test<'a> = &'a dyn Fn(&Plain) -> bool;
    let steps: Vec<(&str, Test<'_>)> = match policy {
        Policy::Cluster => vec![("cluster", &|_| true)],
        Policy::PreferSameZone => vec![("zone", &in_zone), ("cluster", &|_| true)],
        Policy::PreferSameNode => vec![("node", &here), ("zone", &in_zone), ("cluster", &|_| true)],
        Policy::Local => vec![("node", &here)],
        Policy::PreferLocal => vec![("node", &here), ("cluster", &|_| true)],
    };
    let mut tiers = Vec::new();
    for (suffix, states) in [("", ["R", "P", "Q"].as_slice()), ("!", &["T"])] {
        let mut left: Vec<&Plain> = all.iter().filter(|e| states.contains(&e.state)).collect();
        for (word, test) in &steps {
            let taken: Vec<char> = left.iter().filter(|e| test(e)).map(|e| e.id).collect();
            left.retain(|e| !test(e));
            if !taken.is_empty() {
                tiers.push((format!("{word}{suffix}"), taken));
            }
        }
    }
    tiers
}

fn as_reference(view: &ServicePortView, zone: &str) -> Vec<(String, Vec<char>)> {
    let explanation = explain(view, &context("n1", zone));
    let mut tiers: Vec<(String, Vec<char>)> = Vec::new();
    for (i, tier) in explanation.tiers.iter().enumerate() {
        let members = explanation.endpoints.iter().filter(|e| e.tier == Some(i as u8));
        let members: Vec<char> = members
            .map(|e| letter(e.address.parse::<std::net::SocketAddr>().unwrap().ip()))
            .collect();
        assert_eq!(tier.endpoints, members.len());
        tiers.push((
            format!("{}{}", tier.rank, if tier.terminating { "!" } else { "" }),
            members,
        ));
    }
    tiers
}

#[test]
fn explain_equals_a_naive_reference_ranking_on_random_states() {
    let mut rng = rng("explain against the reference");
    for _ in 0..5_000 {
        let plain = random_plain(&mut rng);
        let zone = ["za", "zb", ""][rng.random_range(0..3)];
        for &policy in Policy::ALL {
            let view = view(&service(), &text(&plain), &context("n1", zone), &with_policy(policy));
            assert_eq!(
                as_reference(&view, zone),
                reference(policy, zone, &plain),
                "{policy:?} {zone} {}",
                text(&plain)
            );
        }
    }
}

#[test]
fn a30_soft_policies_never_black_hole_while_anything_is_ready() {
    let mut rng = rng("a30");
    let mut dropped = 0;
    for _ in 0..5_000 {
        let plain = random_plain(&mut rng);
        let zone = ["za", ""][rng.random_range(0..2)];
        let ready: Vec<char> = plain
            .iter()
            .filter(|e| ["R", "P", "Q"].contains(&e.state))
            .map(|e| e.id)
            .collect();
        for &policy in Policy::ALL {
            let view = view(&service(), &text(&plain), &context("n1", zone), &with_policy(policy));
            if policy == Policy::Local {
                dropped += usize::from(view.decision.verdict == Verdict::Drop);
                continue;
            }
            assert_eq!(
                ready.is_empty(),
                !chosen(&view).chars().any(|c| ready.contains(&c)),
                "{policy:?} {plain:?}"
            );
            // Every ready endpoint is reachable in some tier, so health can always fall back to it.
            let allowed = view
                .decision
                .placements
                .iter()
                .filter(|p| p.tier.is_some() && p.reason != Reason::Terminating);
            assert!(allowed.count() >= ready.len());
            assert_ne!(view.decision.verdict, Verdict::Drop);
        }
    }
    assert!(
        dropped > 500,
        "Local dropped only {dropped} times: the states are too easy"
    );
}

#[test]
fn internal_traffic_policy_of_the_service_is_not_read_twice() {
    // An explicit policy beats the field: ranked then follows the policy alone.
    let mut service = service();
    service.internal_traffic_policy = TrafficPolicy::Local;
    let mut config = with_policy(Policy::Cluster);
    config.rules.push(rule("ns/svc"));
    config.rules[0].policy = Some(Policy::PreferSameNode);
    let node = context("n1", "za");
    assert_eq!(tiers(&view(&service, "b:R@n2(za)", &node, &config), &node), "zone{b}");
}
