//! The node view compiled for lookups: immutable, swapped whole, one generation.
//!
//! Workers read it without locks and never see a partial state. Nothing here knows sockets, health or clocks: what is
//! usable and what time it is are told by the caller.

pub mod affinity;
mod build;
mod endpoints;
mod index;
#[cfg(feature = "dataplane")]
pub mod publish;

pub use build::{Conflict, TableBuilder, ViewInputs};
pub use endpoints::Endpoints;
pub use index::Table;

use crate::model::{Protocol, ServicePortKey, SessionAffinity};
use crate::topology::{Profile, Rank, SourceAddress, Verdict};
use std::net::SocketAddr;
use std::ops::{Deref, Range};
use std::sync::Arc;

/// A VIP: what a client dials.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Vip {
    /// ClusterIP and port.
    pub address: SocketAddr,
    /// Protocol.
    pub protocol: Protocol,
}

/// One step of preference: a run of [`ServicePortEntry::endpoints`], never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TierRange {
    /// Rank of its endpoints.
    pub rank: Rank,
    /// Whether they are terminating.
    pub terminating: bool,
    /// Which endpoints.
    pub range: Range<u32>,
}

impl TierRange {
    /// The run as indices.
    fn run(&self) -> Range<usize> {
        self.range.start as usize..self.range.end as usize
    }

    /// How many endpoints it has.
    pub fn len(&self) -> usize {
        self.range.len()
    }

    /// Never in an entry.
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }
}

/// How many tiers an entry holds in place; more (many levels, with terminating endpoints on each) cost one more access.
const INLINE_TIERS: usize = 4;

/// The tiers of an entry, most preferred first; a slice that lies inside the entry, so that a pick touches one place less.
#[derive(Clone)]
pub struct Tiers {
    inline: [TierRange; INLINE_TIERS],
    len: u8,
    more: Option<Box<[TierRange]>>,
}

impl From<Vec<TierRange>> for Tiers {
    fn from(tiers: Vec<TierRange>) -> Self {
        const NONE: TierRange = TierRange {
            rank: Rank::NODE,
            terminating: false,
            range: 0..0,
        };
        let mut inline = [NONE; INLINE_TIERS];
        if tiers.len() > INLINE_TIERS {
            let more = Some(tiers.into());
            return Self { inline, len: 0, more };
        }
        let len = tiers.len() as u8;
        for (place, tier) in inline.iter_mut().zip(tiers) {
            *place = tier;
        }
        Self {
            inline,
            len,
            more: None,
        }
    }
}

impl Deref for Tiers {
    type Target = [TierRange];

    fn deref(&self) -> &[TierRange] {
        match &self.more {
            Some(more) => more,
            None => &self.inline[..usize::from(self.len)],
        }
    }
}

impl PartialEq for Tiers {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for Tiers {}

impl std::fmt::Debug for Tiers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// One service port of one family, ready for picking.
#[derive(Debug)]
pub struct ServicePortEntry {
    /// The service port.
    pub key: Arc<ServicePortKey>,
    /// Identity of (service port, family), the same in every table and process of one build; what [`affinity`] keys by.
    pub id: u64,
    /// What clients dial.
    pub vip: Vip,
    /// Kind of traffic.
    pub profile: Profile,
    /// Source address towards endpoints.
    pub source_address: SourceAddress,
    /// Affinity.
    pub affinity: SessionAffinity,
    /// How many of the Service's words were ignored or are deprecated; `explain` tells which.
    pub notices: u16,
    /// What to do with a new flow.
    pub verdict: Verdict,
    /// Generation of the table in which this entry last changed; a flow that remembers it need not look again.
    pub generation: u64,
    /// Most preferred first.
    pub tiers: Tiers,
    /// Endpoints by tier, sorted by address within each.
    pub endpoints: Endpoints,
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
    /// The endpoints of one tier, sorted by address.
    pub fn endpoints_of(&self, tier: &TierRange) -> impl Iterator<Item = SocketAddr> + '_ {
        self.endpoints.iter(tier.run())
    }

    /// Picks an endpoint: uniformly by `random` (64 uniform bits) within the first tier that has a usable one. When nothing
    /// is usable, uniformly within the first tier. `None` where there are no tiers.
    pub fn pick(&self, random: u64, usable: impl Fn(&SocketAddr) -> bool) -> Option<Picked> {
        for tier in self.tiers.iter() {
            let run = tier.run();
            // The first try is uniform; where it is not usable, the choice among the usable ones must be uniform too.
            let first = self.endpoints.get(run.start + scale(random, run.len()));
            let found = first.filter(&usable).or_else(|| {
                // The low bits have not been used yet.
                let count = self.endpoints_of(tier).filter(&usable).count();
                self.endpoints_of(tier)
                    .filter(&usable)
                    .nth(scale(random.rotate_left(32), count))
            });
            if let Some(endpoint) = found {
                return Some(Picked {
                    endpoint,
                    rank: tier.rank,
                    panic: false,
                });
            }
        }
        let first = self.tiers.first()?;
        let run = first.run();
        Some(Picked {
            endpoint: self.endpoints.get(run.start + scale(random, run.len()))?,
            rank: first.rank,
            panic: true,
        })
    }

    /// Whether an endpoint is still allowed, and the rank of its tier: what a flow asks about its endpoint after the
    /// entry's generation changed.
    pub fn contains(&self, endpoint: &SocketAddr) -> Option<Rank> {
        let holds = |t: &&TierRange| self.endpoints.sorted_run_contains(t.run(), endpoint);
        Some(self.tiers.iter().find(holds)?.rank)
    }

    /// Whether a flow may stay with an endpoint, and its rank: it is still allowed, and not terminating while ready ones are
    /// listed (KEP-1669).
    pub fn may_keep(&self, endpoint: &SocketAddr) -> Option<Rank> {
        let only_terminating = self.tiers.first()?.terminating;
        let holds = |t: &&TierRange| {
            (only_terminating || !t.terminating) && self.endpoints.sorted_run_contains(t.run(), endpoint)
        };
        Some(self.tiers.iter().find(holds)?.rank)
    }

    /// The same entry as of another generation.
    fn restamped(&self, generation: u64) -> Self {
        Self {
            generation,
            key: self.key.clone(),
            tiers: self.tiers.clone(),
            endpoints: self.endpoints.clone(),
            ..*self
        }
    }

    /// Whether everything but the generation is equal.
    fn same_content(&self, other: &Self) -> bool {
        self.vip == other.vip
            && self.endpoints == other.endpoints
            && self.tiers == other.tiers
            && self.verdict == other.verdict
            && self.profile == other.profile
            && self.source_address == other.source_address
            && self.affinity == other.affinity
            && self.notices == other.notices
            && self.key == other.key
    }
}

/// A uniform index below `len` from uniform bits, without a division; 0 where `len` is 0.
fn scale(random: u64, len: usize) -> usize {
    ((u128::from(random) * len as u128) >> 64) as usize
}
