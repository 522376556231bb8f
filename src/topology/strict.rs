//! `strict`: what kube-proxy does, endpoint by endpoint (Kubernetes 1.34–1.36, `pkg/proxy/topology.go`).
//!
//! Only conditions, hints and the traffic policies count. Hints are all or nothing per service port and family: they are
//! honoured only where every ready endpoint has them (KEP-2433, KEP-3015). Serving-terminating endpoints stand in when
//! nobody is ready, without topology (KEP-1669). `trafficDistribution`, annotations and location are not read: the
//! EndpointSlice controller has already turned the former into hints.

use super::location::Location;
use super::{Decision, NodeContext, Placement, PortEndpoint, Rank, RankInput, Ranker, Reason, Tier, Verdict, same};
use crate::model::{Hints, IpFamily, Service, ServicePortSpec, TrafficPolicy};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// The `strict` interpretation.
#[derive(Clone, Copy, Debug)]
pub struct Strict {
    /// Whether `hints.forNodes` is honoured: kube-proxy's gate `PreferSameTrafficDistribution`, on since 1.34.
    pub node_hints: bool,
}

impl Default for Strict {
    fn default() -> Self {
        Self { node_hints: true }
    }
}

/// Which hints select the cluster set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HintMode {
    /// None: every ready endpoint.
    None,
    /// Endpoints hinted to this zone.
    Zone,
    /// Endpoints hinted to this node.
    Node,
}

impl HintMode {
    /// The word of output.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Zone => "zone",
            Self::Node => "node",
        }
    }
}

/// The traffic policies of one service port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// `internalTrafficPolicy`.
    pub internal: TrafficPolicy,
    /// `externalTrafficPolicy`.
    pub external: TrafficPolicy,
    /// Whether it is reached from outside at all: by a nodePort, an external IP or a load balancer VIP.
    pub externally_accessible: bool,
}

impl Traffic {
    /// The policies of one port of a Service in one family.
    pub fn of(service: &Service, node_port: u16, family: IpFamily) -> Self {
        let outside = service.external_ips.iter().chain(&service.load_balancer_ips);
        Self {
            internal: service.internal_traffic_policy,
            external: service.external_traffic_policy,
            externally_accessible: node_port != 0 || outside.into_iter().any(|ip| IpFamily::of(*ip) == family),
        }
    }

    /// Whether any of its traffic may use the cluster set. External traffic always may: pods and the node itself reach
    /// an external VIP with cluster semantics even under `externalTrafficPolicy: Local`.
    fn uses_cluster(self) -> bool {
        self.internal == TrafficPolicy::Cluster || self.externally_accessible
    }

    fn uses_local(self) -> bool {
        self.internal == TrafficPolicy::Local || (self.external == TrafficPolicy::Local && self.externally_accessible)
    }
}

/// kube-proxy's sets for one service port, as indices of the endpoints given. `None` where its traffic never uses a set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Categories {
    /// How the cluster set was chosen; `None` without endpoints or without use of the cluster set.
    pub mode: Option<HintMode>,
    /// For traffic under policy `Cluster`.
    pub cluster: Option<Vec<usize>>,
    /// For traffic under policy `Local`.
    pub local: Option<Vec<usize>>,
    /// Everything some traffic may reach.
    pub reachable: Vec<usize>,
    /// Whether any endpoint anywhere could serve: decides between reject and drop.
    pub any: bool,
}

/// Sorts endpoints into kube-proxy's sets. `node_hints` is its gate `PreferSameTrafficDistribution`.
pub fn categorize(endpoints: &[PortEndpoint], traffic: Traffic, node: &NodeContext, node_hints: bool) -> Categories {
    let mut out = Categories {
        cluster: traffic.uses_cluster().then(Vec::new),
        local: traffic.uses_local().then(Vec::new),
        ..Categories::default()
    };
    if endpoints.is_empty() {
        return out;
    }
    let all = |keep: &dyn Fn(&PortEndpoint) -> bool| -> Vec<usize> {
        let kept = endpoints.iter().enumerate().filter(|(_, e)| keep(e));
        kept.map(|(i, _)| i).collect()
    };
    let ready = |e: &PortEndpoint| e.endpoint.conditions.ready;
    let terminating = |e: &PortEndpoint| e.endpoint.conditions.is_serving_terminating();
    let local = |e: &PortEndpoint| node.is_local(&e.endpoint);

    if let Some(cluster) = &mut out.cluster {
        let mode = hint_mode(endpoints, node, node_hints);
        *cluster = all(&|e| ready(e) && allows(mode, e, node));
        if cluster.is_empty() {
            *cluster = all(&terminating);
        }
        out.any = !cluster.is_empty();
        out.mode = Some(mode);
    }
    let mut local_terminating = false;
    if let Some(set) = &mut out.local {
        out.any |= endpoints.iter().any(|e| ready(e) || terminating(e));
        *set = all(&|e| local(e) && ready(e));
        if set.is_empty() {
            *set = all(&|e| local(e) && terminating(e));
            local_terminating = !set.is_empty();
        }
    }
    out.reachable = match (&out.cluster, &out.local) {
        (Some(cluster), None) => cluster.clone(),
        (None, Some(local)) => local.clone(),
        // Without hints the cluster set holds every ready endpoint, local ones included.
        (Some(cluster), Some(_)) if out.mode == Some(HintMode::None) && !local_terminating => cluster.clone(),
        (Some(cluster), Some(local)) => {
            let mut union: Vec<usize> = cluster.iter().chain(local).copied().collect();
            union.sort_unstable();
            union.dedup();
            union
        }
        (None, None) => Vec::new(),
    };
    out
}

/// Which hints are honoured: node hints where every ready endpoint has some and one names this node, else zone hints by
/// the same rule, else none. Endpoints that are not ready have no say.
pub fn hint_mode(endpoints: &[PortEndpoint], node: &NodeContext, node_hints: bool) -> HintMode {
    hint_coverage(endpoints, node).mode(node_hints)
}

/// How far one kind of hint covers the ready endpoints.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Coverage {
    /// Ready endpoints without such a hint; one is enough to have all of them ignored.
    pub missing: usize,
    /// Ready endpoints whose hint names this node, or its zone.
    pub naming_us: usize,
}

impl Coverage {
    fn add(&mut self, hints: &[Arc<str>], us: Option<&Arc<str>>) {
        self.missing += usize::from(hints.is_empty());
        self.naming_us += usize::from(names(hints, us));
    }

    fn holds(self) -> bool {
        self.missing == 0 && self.naming_us > 0
    }
}

/// Both kinds of hints over the ready endpoints: what decides the mode, and explains it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HintCoverage {
    /// Ready endpoints.
    pub ready: usize,
    /// `forNodes`.
    pub node: Coverage,
    /// `forZones`.
    pub zone: Coverage,
}

impl HintCoverage {
    /// The mode that follows; `node_hints` is kube-proxy's gate `PreferSameTrafficDistribution`.
    pub fn mode(self, node_hints: bool) -> HintMode {
        if node_hints && self.node.holds() {
            HintMode::Node
        } else if self.zone.holds() {
            HintMode::Zone
        } else {
            HintMode::None
        }
    }
}

/// Counts hints of the ready endpoints.
pub fn hint_coverage(endpoints: &[PortEndpoint], node: &NodeContext) -> HintCoverage {
    let mut coverage = HintCoverage::default();
    for e in endpoints.iter().filter(|e| e.endpoint.conditions.ready) {
        let hints = e.endpoint.hints.as_deref();
        coverage.ready += 1;
        coverage.node.add(hints.map_or(&[], |h| &h.for_nodes), Some(&node.name));
        coverage.zone.add(hints.map_or(&[], |h| &h.for_zones), node.zone());
    }
    coverage
}

fn names(hints: &[Arc<str>], us: Option<&Arc<str>>) -> bool {
    us.is_some_and(|us| hints.iter().any(|h| same(h, us)))
}

fn allows(mode: HintMode, e: &PortEndpoint, node: &NodeContext) -> bool {
    let hint = |of: fn(&Hints) -> &Vec<Arc<str>>, us| e.endpoint.hints.as_deref().is_some_and(|h| names(of(h), us));
    match mode {
        HintMode::None => true,
        HintMode::Zone => hint(|h| &h.for_zones, node.zone()),
        HintMode::Node => hint(|h| &h.for_nodes, Some(&node.name)),
    }
}

/// What kube-proxy does with traffic to a nodePort, an external IP or a load balancer VIP of a service port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExternalVerdict {
    /// `externalTrafficPolicy`.
    pub policy: TrafficPolicy,
    /// For clients outside the cluster.
    pub outsiders: Verdict,
    /// For pods and processes of the node itself, which get cluster semantics whatever the policy.
    pub insiders: Verdict,
}

/// The verdict on external traffic, `None` where the service port is not externally accessible. Nodeward does not carry
/// that traffic; it stays with kube-proxy, and this says what happens to it there.
pub fn external_verdict(
    endpoints: &[PortEndpoint],
    service: &Service,
    port: &ServicePortSpec,
    family: IpFamily,
    node: &NodeContext,
    node_hints: bool,
) -> Option<ExternalVerdict> {
    let traffic = Traffic::of(service, port.node_port, family);
    if !traffic.externally_accessible {
        return None;
    }
    let sets = categorize(endpoints, traffic, node, node_hints);
    let cluster = verdict(sets.cluster.as_deref(), sets.any);
    Some(match traffic.external {
        TrafficPolicy::Cluster => ExternalVerdict {
            policy: TrafficPolicy::Cluster,
            outsiders: cluster,
            insiders: cluster,
        },
        TrafficPolicy::Local => ExternalVerdict {
            policy: TrafficPolicy::Local,
            outsiders: verdict(sets.local.as_deref(), sets.any),
            insiders: cluster,
        },
    })
}

fn verdict(set: Option<&[usize]>, any: bool) -> Verdict {
    match set {
        _ if !any => Verdict::Reject,
        Some([_, ..]) => Verdict::Forward,
        _ => Verdict::Drop,
    }
}

impl Ranker for Strict {
    /// One tier at most: kube-proxy knows a set, not an order. [`RankInput::policy`] is not read.
    fn rank(&self, input: &RankInput<'_>) -> Decision {
        // External traffic changes none of the sets that traffic to the ClusterIP uses.
        let traffic = Traffic {
            internal: input.service.internal_traffic_policy,
            ..Traffic::default()
        };
        let confined = traffic.internal == TrafficPolicy::Local;
        let sets = categorize(input.endpoints, traffic, input.node, self.node_hints);
        let chosen = if confined { sets.local } else { sets.cluster }.unwrap_or_default();
        let is_ready = |i: &usize| input.endpoints[*i].endpoint.conditions.ready;
        let tier = chosen.first().map(|first| Tier {
            rank: match sets.mode {
                _ if confined => Rank::NODE,
                Some(HintMode::Node) => Rank::NODE,
                Some(HintMode::Zone) => input.node.zone_rank(),
                _ => input.node.cluster_rank(),
            },
            terminating: !is_ready(first),
        });
        let place = Location::new(input.node);
        let mut next = chosen.iter().copied().peekable();
        let placements = input.endpoints.iter().enumerate().map(|(i, ep)| {
            let conditions = ep.endpoint.conditions;
            let picked = next.next_if_eq(&i).is_some();
            let reason = if picked {
                Reason::Chosen
            } else if !conditions.ready && !conditions.is_serving_terminating() {
                Reason::NotReady
            } else if confined && !input.node.is_local(&ep.endpoint) {
                Reason::OutsidePolicy
            } else if conditions.ready {
                Reason::HintedElsewhere
            } else {
                Reason::Terminating
            };
            Placement {
                rank: place.rank(&ep.endpoint),
                tier: picked.then_some(0),
                reason,
            }
        });
        Decision {
            placements: placements.collect(),
            verdict: verdict(Some(&chosen), sets.any),
            any_usable: sets.any,
            tiers: tier.into_iter().collect(),
        }
    }
}
