//! Nodes: name and labels, the inputs of location.

use std::collections::BTreeMap;
use std::sync::Arc;

/// A Node's `metadata.name`.
pub type NodeName = Arc<str>;

/// The well-known label that names a Node's zone.
pub const ZONE_LABEL: &str = "topology.kubernetes.io/zone";

/// A Node, trimmed to name and labels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// `metadata.name`.
    pub name: NodeName,
    /// `metadata.labels`.
    pub labels: BTreeMap<Arc<str>, Arc<str>>,
}

impl Node {
    /// The zone label's value, `None` where it is missing or empty.
    pub fn zone(&self) -> Option<&Arc<str>> {
        self.labels.get(ZONE_LABEL).filter(|z| !z.is_empty())
    }
}
