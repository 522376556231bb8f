//! The node view compiled for lookups: immutable, swapped whole, one generation.
//!
//! Workers read it without locks and never see a partial state. Nothing here knows sockets.

use crate::model::{Protocol, ServicePortKey, SessionAffinity};
use crate::topology::{Profile, Rank, SourceAddress, Verdict};
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;

/// A VIP: what a client dials.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Vip {
    /// ClusterIP and port.
    pub address: SocketAddr,
    /// Protocol.
    pub protocol: Protocol,
}

/// One step of preference: a run of [`ServicePortEntry::endpoints`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TierRange {
    /// Rank of its endpoints.
    pub rank: Rank,
    /// Whether they are terminating.
    pub terminating: bool,
    /// Which endpoints.
    pub range: Range<u32>,
}

/// One service port of one family, ready for picking.
#[derive(Debug)]
pub struct ServicePortEntry {
    /// The service port.
    pub key: Arc<ServicePortKey>,
    /// What clients dial.
    pub vip: Vip,
    /// Kind of traffic.
    pub profile: Profile,
    /// Source address towards endpoints.
    pub source_address: SourceAddress,
    /// Affinity.
    pub affinity: SessionAffinity,
    /// What to do with a new flow.
    pub verdict: Verdict,
    /// Generation of the table in which this entry last changed; a flow that remembers it need not look again.
    pub generation: u64,
    /// Most preferred first.
    pub tiers: Box<[TierRange]>,
    /// Endpoints by tier, sorted by address within each.
    pub endpoints: Box<[SocketAddr]>,
}

/// What [`ServicePortEntry::pick`] chose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Picked {
    /// The endpoint.
    pub endpoint: SocketAddr,
    /// Its rank.
    pub rank: Rank,
    /// Whether it was chosen although it is not usable, because nothing is (the panic rule).
    pub panic: bool,
}

impl ServicePortEntry {
    /// Picks an endpoint: uniformly by `random` within the first tier that has a usable one. When nothing is usable,
    /// uniformly within the first tier. `None` where there are no tiers.
    pub fn pick(&self, random: u64, usable: impl Fn(&SocketAddr) -> bool) -> Option<Picked> {
        for tier in self.tiers.iter() {
            let run = &self.endpoints[tier.range.start as usize..tier.range.end as usize];
            // Multiply-shift keeps the choice uniform without a division.
            let start = ((u128::from(random) * run.len() as u128) >> 64) as usize;
            // The first try is uniform; where it is not usable, the choice among the usable ones must stay uniform too.
            if usable(&run[start]) {
                return Some(Picked {
                    endpoint: run[start],
                    rank: tier.rank,
                    panic: false,
                });
            }
            let count = run.iter().filter(|e| usable(e)).count();
            if count > 0 {
                let nth = ((u128::from(random.rotate_left(32)) * count as u128) >> 64) as usize;
                if let Some(endpoint) = run.iter().filter(|e| usable(e)).nth(nth) {
                    return Some(Picked {
                        endpoint: *endpoint,
                        rank: tier.rank,
                        panic: false,
                    });
                }
            }
        }
        let first = self.tiers.first()?;
        let run = &self.endpoints[first.range.start as usize..first.range.end as usize];
        let start = ((u128::from(random) * run.len() as u128) >> 64) as usize;
        Some(Picked {
            endpoint: run[start],
            rank: first.rank,
            panic: true,
        })
    }
}

/// All service ports this node carries.
#[derive(Debug, Default)]
pub struct Table {
    /// Rises by one with each published table.
    pub generation: u64,
    entries: hashbrown::HashMap<Vip, Arc<ServicePortEntry>, foldhash::fast::RandomState>,
}

impl Table {
    /// The service port behind a VIP.
    pub fn get(&self, vip: &Vip) -> Option<&Arc<ServicePortEntry>> {
        self.entries.get(vip)
    }

    /// All entries, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<ServicePortEntry>> {
        self.entries.values()
    }
}
