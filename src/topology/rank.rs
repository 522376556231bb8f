//! `ranked`: endpoints ordered by where they are, one by one. Hints play no part.
//!
//! Readiness comes first: every tier of ready endpoints, nearest first, precedes every tier of serving-terminating ones.
//! So a terminating local endpoint never holds traffic that a ready remote one could take (unlike Calico's eBPF ladder),
//! and one remote endpoint without a zone never switches the ladder off (unlike hints).

use super::location::Location;
use super::{Decision, NodeContext, Placement, Policy, PortEndpoint, Rank, RankInput, Ranker, Reason, Tier, Verdict};
use crate::model::Conditions;

/// The `ranked` interpretation.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ranked;

/// Whether conditions let an endpoint serve, and how well.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Standing {
    Ready = 0,
    Terminating = 1,
}

impl Standing {
    fn of(conditions: Conditions) -> Option<Self> {
        if conditions.ready {
            Some(Self::Ready)
        } else if conditions.is_serving_terminating() {
            Some(Self::Terminating)
        } else {
            None
        }
    }
}

/// The tier rank the policy gives an endpoint, `None` where it does not allow it.
fn tier_rank(policy: Policy, node: &NodeContext, place: &Location<'_>, ep: &PortEndpoint, rank: Rank) -> Option<Rank> {
    match policy {
        Policy::Cluster => Some(node.cluster_rank()),
        Policy::PreferSameNode => Some(rank),
        Policy::PreferSameZone => Some(place.rank_from(&ep.endpoint, node.zone_rank())),
        Policy::Local => (rank == Rank::NODE).then_some(rank),
        Policy::PreferLocal if rank == Rank::NODE => Some(rank),
        Policy::PreferLocal => Some(node.cluster_rank()),
    }
}

impl Ranker for Ranked {
    fn rank(&self, input: &RankInput<'_>) -> Decision {
        let node = input.node;
        let place = Location::new(node);
        // Which (standing, rank) pairs occur; later the index of the tier each became.
        let mut tier_of = [[None::<u8>; 256]; 2];
        let mut any_usable = false;
        let mut placements = Vec::with_capacity(input.endpoints.len());
        // First pass: `tier` holds the tier's rank until the tiers are known.
        for ep in input.endpoints {
            let rank = place.rank(&ep.endpoint);
            let (tier, reason) = match Standing::of(ep.endpoint.conditions) {
                None => (None, Reason::NotReady),
                Some(standing) => {
                    any_usable = true;
                    match tier_rank(input.policy, node, &place, ep, rank) {
                        None => (None, Reason::OutsidePolicy),
                        Some(r) => {
                            tier_of[standing as usize][usize::from(r.0)] = Some(0);
                            let reason = match standing {
                                Standing::Ready => Reason::Fallback,
                                Standing::Terminating => Reason::Terminating,
                            };
                            (Some(r.0), reason)
                        }
                    }
                }
            };
            placements.push(Placement { rank, tier, reason });
        }
        let mut tiers = Vec::new();
        for standing in [Standing::Ready, Standing::Terminating] {
            for (rank, slot) in tier_of[standing as usize].iter_mut().enumerate() {
                if slot.is_some() {
                    *slot = Some(tiers.len() as u8);
                    tiers.push(Tier {
                        rank: Rank(rank as u8),
                        terminating: standing == Standing::Terminating,
                    });
                }
            }
        }
        for placement in &mut placements {
            let Some(rank) = placement.tier else { continue };
            let standing = match placement.reason {
                Reason::Terminating => Standing::Terminating,
                _ => Standing::Ready,
            };
            placement.tier = tier_of[standing as usize][usize::from(rank)];
            if placement.tier == Some(0) {
                placement.reason = Reason::Chosen;
            }
        }
        let verdict = match (tiers.is_empty(), any_usable) {
            (false, _) => Verdict::Forward,
            (true, true) => Verdict::Drop,
            (true, false) => Verdict::Reject,
        };
        Decision {
            tiers,
            placements,
            verdict,
            any_usable,
        }
    }
}
