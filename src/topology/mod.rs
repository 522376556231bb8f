//! Ranking: which endpoints a service port may use from this node, in which order, and why.
//!
//! Pure functions of (Service, endpoints, own node, configuration). No clocks, no randomness, no health: the same inputs
//! give the same [`Decision`], whatever the order of events. `explain` prints the very values computed here.

mod location;
mod policy;
mod rank;
pub mod strict;

pub(crate) use policy::port_matches;
pub use policy::{
    Interpretation, InvalidServiceRef, Level, Policy, Profile, ServiceRef, ServiceRule, SourceAddress, TopologyConfig,
};
pub use rank::Ranked;
pub use strict::Strict;

use crate::model::{Endpoint, Node, NodeName, Service, ServicePortKey, ZONE_LABEL};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;

/// Distance class of an endpoint seen from this node: 0 is `node`, then the configured levels in order, the last one is
/// `cluster`. [`NodeContext::rank_name`] gives its word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Rank(pub u8);

impl Rank {
    /// This node.
    pub const NODE: Self = Self(0);
}

/// This node as ranking sees it.
#[derive(Clone, Debug)]
pub struct NodeContext {
    /// Own node's name.
    pub name: NodeName,
    /// Own Node object; `None` until it is known, or where the node is unknown: then only the name counts.
    pub node: Option<Arc<Node>>,
    /// Levels between node and cluster, nearest first; by default `zone`.
    pub levels: Arc<[Level]>,
    /// Other Nodes by name: needed only for levels whose label an endpoint does not carry itself (all but zone).
    pub nodes: Arc<HashMap<NodeName, Arc<Node>>>,
}

impl NodeContext {
    /// The rank meaning "anywhere in the cluster".
    pub fn cluster_rank(&self) -> Rank {
        Rank(self.levels.len() as u8 + 1)
    }

    /// Own zone, `None` where the own Node is unknown or carries no zone label.
    pub fn zone(&self) -> Option<&Arc<str>> {
        self.node.as_ref().and_then(|n| n.zone())
    }

    /// The rank of the level that compares zones; the cluster's rank where no such level is configured.
    pub fn zone_rank(&self) -> Rank {
        match self.levels.iter().position(|l| *l.label == *ZONE_LABEL) {
            Some(i) => Rank(i as u8 + 1),
            None => self.cluster_rank(),
        }
    }

    /// Whether an endpoint runs on this node: its `nodeName` is the own name. One without a `nodeName` never does.
    pub fn is_local(&self, endpoint: &Endpoint) -> bool {
        endpoint.node.as_ref().is_some_and(|n| same(n, &self.name))
    }

    /// The rank's word: `node`, a level's name, or `cluster`.
    pub fn rank_name(&self, rank: Rank) -> &str {
        match rank.0 as usize {
            0 => "node",
            n if n <= self.levels.len() => &self.levels[n - 1].name,
            _ => "cluster",
        }
    }
}

/// Equality of interned strings: the pointer settles nearly every match.
fn same(a: &Arc<str>, b: &Arc<str>) -> bool {
    Arc::ptr_eq(a, b) || a == b
}

/// An endpoint joined with the port number its slice gives it for one service port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortEndpoint {
    /// Address and port.
    pub address: SocketAddr,
    /// Location, conditions, hints.
    pub endpoint: Endpoint,
}

/// What one ranking is asked.
#[derive(Clone, Copy, Debug)]
pub struct RankInput<'a> {
    /// The Service.
    pub service: &'a Service,
    /// The service port being ranked.
    pub port: &'a ServicePortKey,
    /// All its endpoints of one family, sorted by address, without duplicates.
    pub endpoints: &'a [PortEndpoint],
    /// The policy in force.
    pub policy: Policy,
    /// This node.
    pub node: &'a NodeContext,
}

/// What kube-proxy would do with a new flow: forward it, reject it (ICMP port unreachable), or drop it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// At least one endpoint may be used.
    Forward,
    /// No endpoint anywhere could serve.
    Reject,
    /// Endpoints exist, but the policy allows none of them (`Local`).
    Drop,
}

impl Verdict {
    /// The word of output.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Forward => "forward",
            Self::Reject => "reject",
            Self::Drop => "drop",
        }
    }
}

/// Why an endpoint is where it is. The wording for people is in `explain`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// In the chosen tier.
    Chosen,
    /// Allowed, and used when every tier before it has nothing usable.
    Fallback,
    /// Not ready and not serving-terminating.
    NotReady,
    /// Serving while terminating; used only when nothing ready is allowed.
    Terminating,
    /// The policy confines traffic to another node, zone or level than this endpoint's.
    OutsidePolicy,
    /// `strict`: hints exclude it here (no hint names this node or zone).
    HintedElsewhere,
}

/// The verdict on one endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement {
    /// Distance from this node.
    pub rank: Rank,
    /// Index into [`Decision::tiers`], `None` where the endpoint is not allowed.
    pub tier: Option<u8>,
    /// Why.
    pub reason: Reason,
}

/// One step of preference. A tier is used when no earlier one has a usable endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tier {
    /// Rank of its endpoints (`strict` tiers are reported as the rank that the hint mode stands for).
    pub rank: Rank,
    /// Whether it holds serving-terminating endpoints, the last resort.
    pub terminating: bool,
}

/// The outcome of ranking one service port: tiers in order of preference and a placement per endpoint (same indices as
/// [`RankInput::endpoints`]). The chosen tier is tier 0; with no tiers the verdict is `Reject` or `Drop`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Tiers, most preferred first. Only tiers with endpoints are listed.
    pub tiers: Vec<Tier>,
    /// One per endpoint.
    pub placements: Vec<Placement>,
    /// What happens to a new flow to the ClusterIP.
    pub verdict: Verdict,
    /// Whether any endpoint anywhere could serve (kube-proxy's `hasAnyEndpoints`).
    pub any_usable: bool,
}

/// A ranking algorithm. `ranked` and `strict` are two; others plug in here without touching the data plane.
pub trait Ranker: Send + Sync {
    /// Ranks one service port. Must be pure.
    fn rank(&self, input: &RankInput<'_>) -> Decision;
}
