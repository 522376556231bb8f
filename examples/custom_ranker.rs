//! A ranking algorithm of your own: implement `Ranker`, rank a view with it. The data plane only reads the `Decision`.
//!
//! This one sends everything to the ready endpoints on one canary node, and to all other ready ones when it has none.

use nodeward::model::{EndpointSlice, Service};
use nodeward::topology::{
    Decision, NodeContext, Placement, Rank, RankInput, Ranker, Reason, Tier, TopologyConfig, Verdict,
};
use nodeward::view::{ServicePortView, service_views_ranked_by};
use std::sync::Arc;

/// Prefers one named node over every other, wherever the client runs.
pub struct CanaryFirst {
    /// The node's name.
    pub node: String,
}

impl Ranker for CanaryFirst {
    fn rank(&self, input: &RankInput<'_>) -> Decision {
        let on_canary = |i: usize| input.endpoints[i].endpoint.node.as_deref() == Some(&*self.node);
        let ready = |i: usize| input.endpoints[i].endpoint.conditions.ready;
        let all = || (0..input.endpoints.len()).filter(|i| ready(*i));
        // Tiers in order of preference; only those with endpoints are listed.
        let both = [
            (Rank::NODE, all().any(on_canary)),
            (input.node.cluster_rank(), all().any(|i| !on_canary(i))),
        ];
        let listed = both.iter().filter(|(_, occupied)| *occupied);
        let tiers: Vec<Tier> = listed
            .map(|(rank, _)| Tier {
                rank: *rank,
                terminating: false,
            })
            .collect();
        let placements = (0..input.endpoints.len()).map(|i| {
            let rank = if on_canary(i) {
                Rank::NODE
            } else {
                input.node.cluster_rank()
            };
            let tier = tiers.iter().position(|t| ready(i) && t.rank == rank);
            let reason = match tier {
                None => Reason::NotReady,
                Some(0) => Reason::Chosen,
                Some(_) => Reason::Fallback,
            };
            Placement {
                rank,
                tier: tier.map(|t| t as u8),
                reason,
            }
        });
        Decision {
            placements: placements.collect(),
            verdict: if tiers.is_empty() {
                Verdict::Reject
            } else {
                Verdict::Forward
            },
            any_usable: !tiers.is_empty(),
            tiers,
        }
    }
}

/// What the node would do with a Service under this ranking.
pub fn rank(service: &Service, slices: &[Arc<EndpointSlice>], node: &NodeContext) -> Vec<ServicePortView> {
    let ranker = CanaryFirst {
        node: "canary".to_owned(),
    };
    service_views_ranked_by(service, slices, node, &TopologyConfig::default(), &ranker)
}

fn main() {
    println!("CanaryFirst is a `Ranker`: see rank() for how a view is made with it");
}
