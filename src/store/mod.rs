//! The revisioned cluster state: what every source feeds and every view is computed from.
//!
//! Holds Services, EndpointSlices and Nodes by name, tolerates any order of arrival (a slice before its Service, a deleted
//! Service with slices left), and says after each batch which Services and Nodes really changed. Values are compared, so a
//! relist or a re-read of unchanged input changes nothing. Never ranks, never knows which node it runs on.

use crate::model::{Change, EndpointSlice, Node, NodeName, ObjectName, Service};
use foldhash::fast::RandomState;
use hashbrown::HashMap;
use hashbrown::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A Service and the slices that name it. Either may be missing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceState {
    service: Option<Arc<Service>>,
    slices: Vec<Arc<EndpointSlice>>,
}

impl ServiceState {
    /// The Service; `None` while only slices are known.
    pub fn service(&self) -> Option<&Arc<Service>> {
        self.service.as_ref()
    }

    /// Its slices of all families, sorted by the slices' names.
    pub fn slices(&self) -> &[Arc<EndpointSlice>] {
        &self.slices
    }

    fn is_empty(&self) -> bool {
        self.service.is_none() && self.slices.is_empty()
    }

    /// Whether both hold the same values. Shared objects are not looked into.
    fn same(&self, other: &Self) -> bool {
        let same_service = match (&self.service, &other.service) {
            (Some(a), Some(b)) => Arc::ptr_eq(a, b) || a == b,
            (None, None) => true,
            _ => false,
        };
        same_service
            && self.slices.len() == other.slices.len()
            && self
                .slices
                .iter()
                .zip(&other.slices)
                .all(|(a, b)| Arc::ptr_eq(a, b) || a == b)
    }
}

/// What one batch really changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// The store's revision after the batch; as before where nothing changed.
    pub revision: u64,
    /// Services whose object or slices differ from before, deleted ones included.
    pub services: BTreeSet<ObjectName>,
    /// Nodes that differ from before, deleted ones included.
    pub nodes: BTreeSet<NodeName>,
}

impl Changes {
    /// Whether nothing changed.
    pub fn is_empty(&self) -> bool {
        self.services.is_empty() && self.nodes.is_empty()
    }
}

/// Cluster state with a revision that rises by one with each batch that changes something.
#[derive(Debug, Default)]
pub struct Store {
    revision: u64,
    services: HashMap<ObjectName, ServiceState, RandomState>,
    /// Slice name → the Service it belongs to, because deletions carry the slice's name alone and a slice may be
    /// re-labelled.
    slices: HashMap<ObjectName, ObjectName, RandomState>,
    nodes: BTreeMap<NodeName, Arc<Node>>,
}

impl Store {
    /// An empty store at revision 0.
    pub fn new() -> Self {
        Self::default()
    }

    /// Rises by one with each batch that changed something.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// One Service with its slices; `None` where neither is known.
    pub fn get(&self, name: &ObjectName) -> Option<&ServiceState> {
        self.services.get(name)
    }

    /// All names with a Service or at least one slice, in no particular order.
    pub fn services(&self) -> impl Iterator<Item = (&ObjectName, &ServiceState)> {
        self.services.iter()
    }

    /// One Node.
    pub fn node(&self, name: &str) -> Option<&Arc<Node>> {
        self.nodes.get(name)
    }

    /// All Nodes by name.
    pub fn nodes(&self) -> &BTreeMap<NodeName, Arc<Node>> {
        &self.nodes
    }

    /// How many slices are held.
    pub fn slice_count(&self) -> usize {
        self.slices.len()
    }

    /// Applies one batch. Everything in it becomes visible at once, and what cancels out within it (an endpoint moved from
    /// one slice to another and back, a delete followed by the same object) is no change.
    pub fn update(&mut self, batch: impl FnOnce(&mut Transaction<'_>)) -> Changes {
        let mut transaction = Transaction {
            store: self,
            services: HashMap::default(),
            nodes: HashMap::default(),
        };
        batch(&mut transaction);
        transaction.finish()
    }

    /// Applies a source's changes as one batch.
    pub fn apply(&mut self, changes: impl IntoIterator<Item = Change>) -> Changes {
        self.update(|tx| changes.into_iter().for_each(|change| tx.apply(change)))
    }
}

/// One batch in progress, see [`Store::update`].
#[derive(Debug)]
pub struct Transaction<'s> {
    store: &'s mut Store,
    /// What was there before the batch touched it.
    services: HashMap<ObjectName, ServiceState, RandomState>,
    nodes: HashMap<NodeName, Option<Arc<Node>>, RandomState>,
}

impl Transaction<'_> {
    /// Applies one change of a source.
    pub fn apply(&mut self, change: Change) {
        match change {
            Change::Service(service) => self.set_service(service),
            Change::ServiceDeleted(name) => self.delete_service(&name),
            Change::Slice(slice) => self.set_slice(slice),
            Change::SliceDeleted(name) => self.delete_slice(&name),
            Change::Node(node) => self.set_node(node),
            Change::NodeDeleted(name) => self.delete_node(&name),
        }
    }

    /// Adds or replaces a Service.
    pub fn set_service(&mut self, service: Arc<Service>) {
        let name = service.name.clone();
        self.touch(&name).service = Some(service);
    }

    /// Deletes a Service. Its slices stay until they are deleted themselves.
    pub fn delete_service(&mut self, name: &ObjectName) {
        if self.store.services.contains_key(name) {
            self.touch(name).service = None;
            self.forget_if_empty(name);
        }
    }

    /// Adds or replaces a slice, which may have come to belong to another Service.
    pub fn set_slice(&mut self, slice: Arc<EndpointSlice>) {
        let before = self.store.slices.insert(slice.name.clone(), slice.service.clone());
        if let Some(before) = before.filter(|b| *b != slice.service) {
            self.take_slice(&before, &slice.name);
        }
        let slices = &mut self.touch(&slice.service.clone()).slices;
        match slices.binary_search_by(|s| s.name.cmp(&slice.name)) {
            Ok(at) => slices[at] = slice,
            Err(at) => slices.insert(at, slice),
        }
    }

    /// Deletes a slice by its own name.
    pub fn delete_slice(&mut self, name: &ObjectName) {
        if let Some(service) = self.store.slices.remove(name) {
            self.take_slice(&service, name);
        }
    }

    /// Adds or replaces a Node.
    pub fn set_node(&mut self, node: Arc<Node>) {
        let name = node.name.clone();
        let before = self.store.nodes.insert(name.clone(), node);
        self.nodes.entry(name).or_insert(before);
    }

    /// Deletes a Node.
    pub fn delete_node(&mut self, name: &NodeName) {
        if let Some(before) = self.store.nodes.remove(name) {
            self.nodes.entry(name.clone()).or_insert(Some(before));
        }
    }

    fn take_slice(&mut self, service: &ObjectName, slice: &ObjectName) {
        self.touch(service).slices.retain(|s| s.name != *slice);
        self.forget_if_empty(service);
    }

    /// The state of a Service for writing; what it was before the batch is kept at the first touch.
    fn touch(&mut self, name: &ObjectName) -> &mut ServiceState {
        let state = match self.store.services.entry(name.clone()) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => entry.insert(ServiceState::default()),
        };
        if !self.services.contains_key(name) {
            self.services.insert(name.clone(), state.clone());
        }
        state
    }

    fn forget_if_empty(&mut self, name: &ObjectName) {
        if self.store.services.get(name).is_some_and(ServiceState::is_empty) {
            self.store.services.remove(name);
        }
    }

    fn finish(self) -> Changes {
        let Self { store, services, nodes } = self;
        let absent = ServiceState::default();
        let mut changes = Changes::default();
        for (name, before) in services {
            let now = store.services.get_mut(&name);
            if !now.as_ref().map_or(&absent, |s| &**s).same(&before) {
                changes.services.insert(name);
            } else if let Some(now) = now {
                // Equal values in new copies: keep the old ones, which others may share.
                *now = before;
            }
        }
        for (name, before) in nodes {
            if store.nodes.get(&name) != before.as_ref() {
                changes.nodes.insert(name);
            }
        }
        store.revision += u64::from(!changes.is_empty());
        changes.revision = store.revision;
        changes
    }
}
