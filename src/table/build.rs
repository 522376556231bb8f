//! Views of changed Services → the next table. Work is proportional to what changed; everything else is shared with the
//! table before.

use super::{ServicePortEntry, Table, TierRange, Vip};
use crate::model::{ObjectName, Service, ServicePortKey};
use crate::store::Store;
use crate::topology::{NodeContext, TopologyConfig};
use crate::view::{ServicePortView, service_views};
use foldhash::fast::{FixedState, RandomState};
use hashbrown::{HashMap, HashSet};
use std::hash::BuildHasher;
use std::net::SocketAddr;
use std::sync::Arc;

/// What a node view depends on besides the store. When one of these changes, all Services are views to compute anew;
/// entries that come out equal still keep their generation.
#[derive(Clone, Copy)]
pub struct ViewInputs<'a> {
    /// This node.
    pub node: &'a NodeContext,
    /// The configuration of ranking.
    pub config: &'a TopologyConfig,
    /// Which Services are taken.
    pub selected: &'a dyn Fn(&Service) -> bool,
}

/// A VIP that several Services claim. The first by namespace and name has it; the others are not served under it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// The VIP.
    pub vip: Vip,
    /// Whose entry the table holds.
    pub winner: ObjectName,
    /// The other claimants.
    pub losers: Vec<ObjectName>,
}

/// Keeps the current table and makes the next one.
#[derive(Debug, Default)]
pub struct TableBuilder {
    current: Arc<Table>,
    /// What each Service brings, whether or not it wins its VIPs.
    services: HashMap<ObjectName, Vec<Arc<ServicePortEntry>>, RandomState>,
    /// Who claims a VIP, sorted.
    claims: HashMap<Vip, Vec<ObjectName>, RandomState>,
}

impl TableBuilder {
    /// A builder whose current table is empty, generation 0.
    pub fn new() -> Self {
        Self::default()
    }

    /// The table made last.
    pub fn table(&self) -> &Arc<Table> {
        &self.current
    }

    /// VIPs claimed by more than one Service, sorted by VIP.
    pub fn conflicts(&self) -> Vec<Conflict> {
        let contested = self.claims.iter().filter(|(_, names)| names.len() > 1);
        let mut conflicts: Vec<_> = contested
            .filter_map(|(vip, names)| {
                let (winner, losers) = names.split_first()?;
                Some(Conflict {
                    vip: *vip,
                    winner: winner.clone(),
                    losers: losers.to_vec(),
                })
            })
            .collect();
        conflicts.sort_unstable_by_key(|c| c.vip);
        conflicts
    }

    /// Computes the views of these Services anew and puts them into the next table, see [`TableBuilder::update`].
    pub fn refresh<'n>(
        &mut self,
        store: &Store,
        names: impl IntoIterator<Item = &'n ObjectName>,
        inputs: ViewInputs<'_>,
    ) -> Option<Arc<Table>> {
        self.update(names.into_iter().map(|name| {
            let state = store.get(name);
            let views = match state.and_then(|s| Some((s.service()?, s.slices()))) {
                Some((service, slices)) if (inputs.selected)(service) => {
                    service_views(service, slices, inputs.node, inputs.config)
                }
                _ => Vec::new(),
            };
            (name.clone(), views)
        }))
    }

    /// The next table, in which each of these Services has exactly these views (none: it is gone or not taken). `None` where
    /// the table would not differ. All of it becomes visible at once, with the one published table.
    pub fn update(
        &mut self,
        services: impl IntoIterator<Item = (ObjectName, Vec<ServicePortView>)>,
    ) -> Option<Arc<Table>> {
        let mut next = Table::clone(&self.current);
        next.generation += 1;
        let mut touched = HashSet::with_hasher(RandomState::default());
        for (name, views) in services {
            self.replace(name, views, next.generation, &mut touched);
        }
        let mut changed = false;
        for vip in touched {
            let winner = self.claims.get(&vip).and_then(|names| names.first());
            let entries = winner.and_then(|name| self.services.get_mut(name));
            let entry = entries.and_then(|list| list.iter_mut().find(|e| e.vip == vip));
            match (entry, next.get(&vip)) {
                (Some(entry), Some(held)) if Arc::ptr_eq(entry, held) => continue,
                (Some(entry), _) => {
                    if entry.generation != next.generation {
                        // It was beaten to its VIP until now: new to the readers of this table, so it gets its generation.
                        *entry = Arc::new(entry.restamped(next.generation));
                    }
                    next.insert(entry.clone());
                }
                (None, Some(_)) => next.remove(&vip),
                (None, None) => continue,
            }
            changed = true;
        }
        if !changed {
            return None;
        }
        self.current = Arc::new(next);
        Some(self.current.clone())
    }

    /// Exchanges what one Service brings; entries with equal content stay as they are.
    fn replace(
        &mut self,
        name: ObjectName,
        views: Vec<ServicePortView>,
        generation: u64,
        touched: &mut HashSet<Vip, RandomState>,
    ) {
        let before = self.services.remove(&name).unwrap_or_default();
        let mut entries: Vec<Arc<ServicePortEntry>> = Vec::with_capacity(views.len());
        for view in views {
            let entry = compile(view, generation);
            if entries.iter().any(|e| e.vip == entry.vip) {
                continue;
            }
            let held = before.iter().find(|e| e.same_content(&entry));
            entries.push(held.cloned().unwrap_or_else(|| Arc::new(entry)));
        }
        for gone in before.iter().filter(|b| entries.iter().all(|e| e.vip != b.vip)) {
            touched.insert(gone.vip);
            if let Some(names) = self.claims.get_mut(&gone.vip) {
                names.retain(|n| *n != name);
                if names.is_empty() {
                    self.claims.remove(&gone.vip);
                }
            }
        }
        for entry in &entries {
            touched.insert(entry.vip);
            let names = self.claims.entry(entry.vip).or_default();
            if let Err(at) = names.binary_search(&name) {
                names.insert(at, name.clone());
            }
        }
        if !entries.is_empty() {
            self.services.insert(name, entries);
        }
    }
}

/// One view as an entry: endpoints grouped by tier, in each group still sorted by address.
fn compile(view: ServicePortView, generation: u64) -> ServicePortEntry {
    let decision = &view.decision;
    let mut ends = vec![0u32; decision.tiers.len()];
    let tier_of = |i: usize| decision.placements.get(i).and_then(|p| p.tier).map(usize::from);
    for i in 0..view.endpoints.len() {
        if let Some(count) = tier_of(i).and_then(|t| ends.get_mut(t)) {
            *count += 1;
        }
    }
    let mut total = 0;
    let mut tiers = Vec::with_capacity(ends.len());
    for (tier, count) in decision.tiers.iter().zip(&mut ends) {
        let range = total..total + *count;
        total = range.end;
        // From here on: where the tier's next endpoint goes.
        *count = range.start;
        tiers.push(TierRange {
            rank: tier.rank,
            terminating: tier.terminating,
            range,
        });
    }
    let unset = SocketAddr::from(([0, 0, 0, 0], 0));
    let mut endpoints = vec![unset; total as usize];
    for (i, endpoint) in view.endpoints.iter().enumerate() {
        if let Some(next) = tier_of(i).and_then(|t| ends.get_mut(t)) {
            if let Some(place) = endpoints.get_mut(*next as usize) {
                *place = endpoint.address;
            }
            *next += 1;
        }
    }
    tiers.retain(|t| !t.range.is_empty());
    ServicePortEntry {
        id: identity(&view.key, view.vip.is_ipv6()),
        vip: Vip {
            address: view.vip,
            protocol: view.key.protocol,
        },
        key: Arc::new(view.key),
        profile: view.settings.profile.0,
        source_address: view.settings.source_address.0,
        affinity: view.affinity,
        notices: view.settings.notices.len().try_into().unwrap_or(u16::MAX),
        verdict: view.decision.verdict,
        generation,
        tiers: tiers.into(),
        endpoints: endpoints.into(),
    }
}

/// A fixed seed: the same service port has the same identity whenever and wherever it is computed.
fn identity(key: &ServicePortKey, v6: bool) -> u64 {
    FixedState::default().hash_one((key, v6))
}
