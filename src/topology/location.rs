//! Distance of an endpoint from this node, from node names, zones and node labels. Never looks at hints or conditions.

use super::{NodeContext, Rank, same};
use crate::model::{Endpoint, ZONE_LABEL};
use std::sync::Arc;

/// This node's own place, looked up once per ranking.
pub(super) struct Location<'a> {
    node: &'a NodeContext,
    levels: Vec<OwnLevel<'a>>,
}

/// One configured level with this node's value. Without one (label missing or empty) the level never matches.
struct OwnLevel<'a> {
    label: &'a str,
    is_zone: bool,
    value: Option<&'a Arc<str>>,
}

impl<'a> Location<'a> {
    pub(super) fn new(node: &'a NodeContext) -> Self {
        let own = node.node.as_deref();
        let levels = node.levels.iter().map(|level| OwnLevel {
            label: &level.label,
            is_zone: *level.label == *ZONE_LABEL,
            value: own.and_then(|n| n.labels.get(&*level.label)).filter(|v| !v.is_empty()),
        });
        Self {
            node,
            levels: levels.collect(),
        }
    }

    /// The nearest rank that matches. What is not known about an endpoint never matches, so it ranks last.
    pub(super) fn rank(&self, endpoint: &Endpoint) -> Rank {
        if self.node.is_local(endpoint) {
            return Rank::NODE;
        }
        self.level(endpoint, Rank(1))
    }

    /// As [`Location::rank`], but looking no nearer than `nearest`: closer endpoints count as there.
    pub(super) fn rank_from(&self, endpoint: &Endpoint, nearest: Rank) -> Rank {
        if nearest == Rank::NODE {
            return self.rank(endpoint);
        }
        if !self.node.is_local(endpoint) {
            return self.level(endpoint, nearest);
        }
        // An endpoint on this node shares every label this node has, whether or not it says so itself.
        let skip = usize::from(nearest.0) - 1;
        let own = self.levels.iter().skip(skip).position(|l| l.value.is_some());
        own.map_or(self.node.cluster_rank(), |i| Rank((skip + i) as u8 + 1))
    }

    fn level(&self, endpoint: &Endpoint, nearest: Rank) -> Rank {
        let mut their_node = None;
        for (i, level) in self.levels.iter().enumerate().skip(usize::from(nearest.0) - 1) {
            let Some(own) = level.value else { continue };
            let theirs = if level.is_zone {
                // Only the endpoint's own zone counts: looking at its Node too would rank differently where Nodes are
                // not watched (the agent by default) and where they are (a dump).
                endpoint.zone.as_ref()
            } else {
                if their_node.is_none() {
                    their_node = Some(endpoint.node.as_ref().and_then(|n| self.node.nodes.get(n)));
                }
                their_node.flatten().and_then(|n| n.labels.get(level.label))
            };
            if theirs.is_some_and(|t| same(t, own)) {
                return Rank(i as u8 + 1);
            }
        }
        self.node.cluster_rank()
    }
}
