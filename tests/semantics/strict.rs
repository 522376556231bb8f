//! `strict` against a naive kube-proxy on random states.

use super::naive::{Answer, Ep, Set, State};
use super::support::*;
use super::vectors::{hints, mode_word, verdict_word};
use nodeward::model::{Conditions, Endpoint, IpFamily, Protocol, Service, ServicePortKey, TrafficPolicy};
use nodeward::topology::strict::{Categories, Traffic, categorize, external_verdict};
use nodeward::topology::{NodeContext, PortEndpoint, RankInput, Ranker, Reason, Strict};
use rand::RngExt;
use rand::rngs::SmallRng;
use std::sync::Arc;

const NODES: [&str; 4] = ["n1", "n2", "n3", "n4"];
const ZONES: [&str; 3] = ["za", "zb", "zc"];

/// Hints as a controller would write them most of the time (own node, own zone), else missing or at random, so that
/// complete and broken sets of hints both occur often.
fn random_state(rng: &mut SmallRng) -> State {
    let node_style = rng.random_range(0..3);
    let zone_style = rng.random_range(0..3);
    let some = |rng: &mut SmallRng, all: &[&'static str]| -> Vec<&'static str> {
        all.iter().copied().filter(|_| rng.random_bool(0.4)).collect()
    };
    let endpoints = (0..rng.random_range(0..=7u8)).map(|i| {
        let node = NODES[rng.random_range(0..NODES.len())];
        let zone = ZONES[rng.random_range(0..ZONES.len())];
        let kind = rng.random_range(0..10);
        let (ready, serving, terminating) = match kind {
            0..=3 => (true, true, false),
            4 => (false, false, false),
            5..=6 => (false, true, true),
            _ => (rng.random(), rng.random(), rng.random()),
        };
        let hint = |rng: &mut SmallRng, style, own, all: &[&'static str]| match style {
            0 => Vec::new(),
            1 if rng.random_bool(0.9) => vec![own],
            _ => some(rng, all),
        };
        Ep {
            id: char::from(b'a' + i),
            ready,
            serving,
            terminating,
            node: rng.random_bool(0.9).then_some(node),
            node_hints: hint(rng, node_style, node, &NODES),
            zone_hints: hint(rng, zone_style, zone, &ZONES),
        }
    });
    let endpoints = endpoints.collect();
    State {
        node: NODES[rng.random_range(0..2)],
        zone: rng.random_bool(0.85).then_some(ZONES[rng.random_range(0..2)]),
        gate: rng.random_bool(0.8),
        internal_local: rng.random_bool(0.3),
        external_local: rng.random_bool(0.4),
        accessible: rng.random_bool(0.4),
        endpoints,
    }
}

fn local_if(local: bool) -> TrafficPolicy {
    if local {
        TrafficPolicy::Local
    } else {
        TrafficPolicy::Cluster
    }
}

fn model_endpoints(state: &State) -> Vec<PortEndpoint> {
    let convert = |e: &Ep| Endpoint {
        address: address(&e.id.to_string()),
        conditions: Conditions {
            ready: e.ready,
            serving: e.serving,
            terminating: e.terminating,
        },
        node: e.node.map(Arc::from),
        zone: None,
        hints: hints(&e.node_hints, &e.zone_hints),
        target_uid: 0,
    };
    let endpoints: Vec<Endpoint> = state.endpoints.iter().map(convert).collect();
    port_endpoints(&endpoints)
}

fn letters(endpoints: &[PortEndpoint], indices: &[usize]) -> Set {
    indices.iter().map(|i| letter(endpoints[*i].address.ip())).collect()
}

fn as_answer(endpoints: &[PortEndpoint], got: &Categories) -> Answer {
    Answer {
        mode: got.mode.map(mode_word),
        cluster: got.cluster.as_deref().map(|s| letters(endpoints, s)),
        local: got.local.as_deref().map(|s| letters(endpoints, s)),
        reachable: letters(endpoints, &got.reachable),
        any: got.any,
    }
}

/// Everything `strict` says about a state, against the naive model.
fn check(state: &State, contexts: &dyn Fn(&State) -> NodeContext, service: &mut Service) {
    let node = contexts(state);
    let endpoints = model_endpoints(state);
    service.internal_traffic_policy = local_if(state.internal_local);
    service.external_traffic_policy = local_if(state.external_local);
    service.ports[0].node_port = if state.accessible { 30_080 } else { 0 };
    let traffic = Traffic {
        internal: service.internal_traffic_policy,
        external: service.external_traffic_policy,
        externally_accessible: state.accessible,
    };
    let got = categorize(&endpoints, traffic, &node, state.gate);
    assert_eq!(as_answer(&endpoints, &got), state.answer(), "{state:?}");

    let key = ServicePortKey {
        service: service.name.clone(),
        port_name: "".into(),
        port: 80,
        protocol: Protocol::Tcp,
    };
    let decision = Strict { node_hints: state.gate }.rank(&RankInput {
        service,
        port: &key,
        endpoints: &endpoints,
        policy: Default::default(),
        node: &node,
    });
    let (verdict, set) = state.cluster_ip();
    assert_eq!(verdict_word(decision.verdict), verdict, "{state:?}");
    assert_eq!(decision.any_usable, state.answer().any, "{state:?}");
    assert_eq!(decision.placements.len(), endpoints.len());
    let chosen: Vec<usize> = (0..endpoints.len())
        .filter(|i| decision.placements[*i].tier == Some(0))
        .collect();
    assert_eq!(letters(&endpoints, &chosen), set, "{state:?}");
    assert_eq!(decision.tiers.len(), usize::from(!set.is_empty()), "{state:?}");
    for (p, e) in decision.placements.iter().zip(&state.endpoints) {
        let expected = match (set.contains(&e.id), e.ready, e.serving && e.terminating) {
            (true, ..) => Reason::Chosen,
            (_, false, false) => Reason::NotReady,
            _ if state.internal_local && e.node != Some(state.node) => Reason::OutsidePolicy,
            (_, true, _) => Reason::HintedElsewhere,
            (_, false, true) => Reason::Terminating,
        };
        assert_eq!(p.reason, expected, "{} of {state:?}", e.id);
    }
    let external = external_verdict(&endpoints, service, &service.ports[0], IpFamily::V4, &node, state.gate);
    assert_eq!(
        external.map(|e| verdict_word(e.outsiders)),
        state.outside(),
        "{state:?}"
    );
}

#[test]
fn strict_equals_a_naive_model_on_random_states() {
    let mut rng = rng("strict against the naive model");
    let mut service = service();
    let mut seen = std::collections::BTreeMap::new();
    for _ in 0..120_000 {
        let state = random_state(&mut rng);
        check(&state, &|s| context(s.node, s.zone.unwrap_or("")), &mut service);
        *seen.entry((state.answer().mode, state.cluster_ip().0)).or_insert(0) += 1;
    }
    // The states must really visit every mode and verdict, or the comparison says little.
    for mode in [None, Some("none"), Some("zone"), Some("node")] {
        assert!(
            seen.iter().any(|((m, _), n)| *m == mode && *n > 1000),
            "mode {mode:?} is rare: {seen:?}"
        );
    }
    for verdict in ["forward", "reject", "drop"] {
        let n: i32 = seen.iter().filter(|((_, v), _)| *v == verdict).map(|(_, n)| n).sum();
        assert!(n > 1000, "{verdict} is rare: {seen:?}");
    }
}
