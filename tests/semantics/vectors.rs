//! `strict` is kube-proxy: its vectors, in any order and through the whole path.

use super::support::*;
use nodeward::model::{Conditions, Endpoint, Hints, Service, TrafficPolicy};
use nodeward::topology::strict::{HintMode, Traffic, categorize};
use nodeward::topology::{PortEndpoint, Verdict};
use nodeward::view::service_views;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use serde::Deserialize;
use std::sync::Arc;

const VECTORS: &str = include_str!("../vectors/kube-parity.json");

/// All vectors.
pub fn vectors() -> Vec<Vector> {
    let vectors: Vec<Vector> = serde_json::from_str(VECTORS).unwrap();
    assert_eq!(vectors.len(), 46);
    vectors
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Vector {
    pub id: String,
    pub desc: String,
    pub node: String,
    pub zone: String,
    pub node_hints_enabled: bool,
    pub internal_traffic_policy: String,
    pub external_traffic_policy: String,
    pub externally_accessible: bool,
    pub endpoints: Vec<VectorEndpoint>,
    pub expect: Expect,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct VectorEndpoint {
    pub id: String,
    pub ready: bool,
    pub serving: bool,
    pub terminating: bool,
    pub node_name: Option<String>,
    pub hint_nodes: Vec<String>,
    pub hint_zones: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Expect {
    pub mode: Option<String>,
    pub cluster: Option<Vec<String>>,
    pub local: Option<Vec<String>>,
    pub reachable: Vec<String>,
    pub any: bool,
}

pub fn arcs<S: AsRef<str>>(words: &[S]) -> Vec<Arc<str>> {
    words.iter().map(|w| w.as_ref().into()).collect()
}

pub fn hints<S: AsRef<str>>(nodes: &[S], zones: &[S]) -> Option<Arc<Hints>> {
    let hints = Hints {
        for_nodes: arcs(nodes),
        for_zones: arcs(zones),
    };
    (hints != Hints::default()).then(|| Arc::new(hints))
}

fn policy(word: &str) -> TrafficPolicy {
    match word {
        "Cluster" => TrafficPolicy::Cluster,
        "Local" => TrafficPolicy::Local,
        other => panic!("unknown traffic policy {other}"),
    }
}

impl Vector {
    pub fn endpoints(&self) -> Vec<Endpoint> {
        let convert = |e: &VectorEndpoint| Endpoint {
            address: address(&e.id),
            conditions: Conditions {
                ready: e.ready,
                serving: e.serving,
                terminating: e.terminating,
            },
            node: e.node_name.as_deref().map(Arc::from),
            zone: None,
            hints: hints(&e.hint_nodes, &e.hint_zones),
            target_uid: 0,
        };
        self.endpoints.iter().map(convert).collect()
    }

    fn traffic(&self) -> Traffic {
        Traffic {
            internal: policy(&self.internal_traffic_policy),
            external: policy(&self.external_traffic_policy),
            externally_accessible: self.externally_accessible,
        }
    }

    fn service(&self) -> Service {
        let mut service = service();
        service.internal_traffic_policy = policy(&self.internal_traffic_policy);
        service.external_traffic_policy = policy(&self.external_traffic_policy);
        service.ports[0].node_port = if self.externally_accessible { 30_080 } else { 0 };
        service
    }
}

fn ids(endpoints: &[PortEndpoint], indices: &[usize]) -> Vec<String> {
    let mut ids: Vec<String> = indices
        .iter()
        .map(|i| letter(endpoints[*i].address.ip()).to_string())
        .collect();
    ids.sort();
    ids
}

pub fn mode_word(mode: HintMode) -> &'static str {
    match mode {
        HintMode::None => "none",
        HintMode::Zone => "zone",
        HintMode::Node => "node",
    }
}

pub fn verdict_word(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Forward => "forward",
        Verdict::Reject => "reject",
        Verdict::Drop => "drop",
    }
}

/// Forward, reversed, and ten shuffles.
fn orders<T: Clone>(items: &[T], rng: &mut SmallRng) -> Vec<Vec<T>> {
    let mut orders = vec![items.to_vec(), items.iter().rev().cloned().collect()];
    for _ in 0..10 {
        let mut shuffled = items.to_vec();
        shuffled.shuffle(rng);
        orders.push(shuffled);
    }
    orders
}

#[test]
fn all_parity_vectors_in_any_order() {
    let vectors = vectors();
    let mut rng = rng("parity vectors");
    for v in &vectors {
        let context = context(&v.node, &v.zone);
        for endpoints in orders(&port_endpoints(&v.endpoints()), &mut rng) {
            let got = categorize(&endpoints, v.traffic(), &context, v.node_hints_enabled);
            let name = format!("{} {}", v.id, v.desc);
            assert_eq!(got.mode.map(mode_word), v.expect.mode.as_deref(), "mode of {name}");
            assert_eq!(
                got.cluster.as_deref().map(|s| ids(&endpoints, s)),
                v.expect.cluster,
                "cluster of {name}"
            );
            assert_eq!(
                got.local.as_deref().map(|s| ids(&endpoints, s)),
                v.expect.local,
                "local of {name}"
            );
            assert_eq!(
                ids(&endpoints, &got.reachable),
                v.expect.reachable,
                "reachable of {name}"
            );
            assert_eq!(got.any, v.expect.any, "any of {name}");
        }
    }
}

/// The same vectors through the whole path: slices in any order, one endpoint per slice, down to the verdict.
#[test]
fn all_parity_vectors_through_views() {
    let vectors = vectors();
    let mut rng = rng("parity vectors through views");
    for v in vectors.iter().filter(|v| v.node_hints_enabled) {
        let context = context(&v.node, &v.zone);
        let service = v.service();
        let one = |(i, e): (usize, Endpoint)| Arc::new(slice(&format!("svc-{i}"), vec![e]));
        let slices: Vec<_> = v.endpoints().into_iter().enumerate().map(one).collect();
        let confined = v.internal_traffic_policy == "Local";
        let expected = if confined { &v.expect.local } else { &v.expect.cluster };
        let expected = expected.clone().unwrap_or_default();
        let verdict = match (v.expect.any, expected.is_empty()) {
            (false, _) => Verdict::Reject,
            (true, true) => Verdict::Drop,
            (true, false) => Verdict::Forward,
        };
        for slices in orders(&slices, &mut rng) {
            let views = service_views(&service, &slices, &context, &strict());
            assert_eq!(views.len(), 1);
            assert_eq!(chosen(&views[0]), expected.concat(), "{} {}", v.id, v.desc);
            assert_eq!(views[0].decision.verdict, verdict, "{} {}", v.id, v.desc);
            assert_eq!(views[0].decision.any_usable, v.expect.any, "{} {}", v.id, v.desc);
        }
    }
}

#[test]
fn external_verdicts_of_the_vectors() {
    let vectors = vectors();
    // (vector, outsiders, pods and the node itself)
    let expected = [
        ("V02", None),
        ("V51", None),
        ("V52", Some((Verdict::Forward, Verdict::Forward))),
        ("V53", Some((Verdict::Forward, Verdict::Forward))),
        ("V54", Some((Verdict::Drop, Verdict::Forward))),
        ("V55", Some((Verdict::Drop, Verdict::Forward))),
        ("V58", Some((Verdict::Forward, Verdict::Forward))),
        ("V60", Some((Verdict::Drop, Verdict::Forward))),
    ];
    for (id, expected) in expected {
        let v = vectors.iter().find(|v| v.id == id).unwrap();
        let slices = [Arc::new(slice("svc-1", v.endpoints()))];
        let views = service_views(&v.service(), &slices, &context(&v.node, &v.zone), &strict());
        let got = views[0].external.map(|e| (e.outsiders, e.insiders));
        assert_eq!(got, expected, "{id} {}", v.desc);
    }
}

#[test]
fn external_traffic_without_any_endpoint_is_rejected() {
    let mut service = service();
    service.ports[0].node_port = 30_080;
    let view = view(&service, "a:U@n1 b:X@n2", &context("n1", "za"), &strict());
    let external = view.external.unwrap();
    assert_eq!(
        (external.outsiders, external.insiders),
        (Verdict::Reject, Verdict::Reject)
    );
}

#[test]
fn external_addresses_count_for_their_own_family_only() {
    let mut service = service();
    service.external_ips = vec!["2001:db8::1".parse().unwrap()];
    assert_eq!(view(&service, "a:R@n1", &context("n1", "za"), &strict()).external, None);
    service.load_balancer_ips = vec!["192.0.2.1".parse().unwrap()];
    assert!(
        view(&service, "a:R@n1", &context("n1", "za"), &strict())
            .external
            .is_some()
    );
}

#[test]
fn node_hint_gate_off_falls_to_zone_hints() {
    let node = context("n1", "za");
    let endpoints = port_endpoints(&endpoints("a:R@n1/hn=n1/hz=za b:R@n2/hn=n2/hz=za c:R@n3/hn=n3/hz=zb"));
    let mode = |gate| nodeward::topology::strict::hint_mode(&endpoints, &node, gate);
    assert_eq!((mode(true), mode(false)), (HintMode::Node, HintMode::Zone));
}
