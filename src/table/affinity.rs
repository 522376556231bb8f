//! Session affinity `ClientIP`: which endpoint a client's earlier flows went to, shared by all workers.
//!
//! Per service port and client address, not per VIP and not per Service, as kube-proxy does. Topology and health come
//! first: what is remembered counts only while it is usable and inside the tier that would be chosen anyway. The window
//! restarts with each new flow.
//!
//! The memory is bounded, never locks and never allocates: buckets of eight slots in atomics; where a bucket is full the
//! slot that was longest unused makes room. A client that is not remembered gets the endpoint that a rendezvous hash of its
//! address names, so two workers that meet it at the same moment agree, and so do two processes.

use super::{Picked, ServicePortEntry, TierRange};
use crate::model::SessionAffinity;
use foldhash::fast::RandomState;
use std::hash::BuildHasher;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// Slots per bucket: two cache lines of 64 bytes.
const WAYS: usize = 8;

/// Enough for the clients of a node: 110 pods with some hundred service ports each. 16 bytes per slot: 1 MiB.
pub const DEFAULT_CAPACITY: usize = 65_536;

/// One remembered choice. The parts are written one after the other; a reader that sees parts of two choices notices,
/// because `key` holds the owner's hash combined with the endpoint's, and treats the slot as another client's.
#[derive(Debug, Default)]
struct Slot {
    /// Hash of (client, service port) ⊕ spread of `endpoint`; 0 with `used` 0 where the slot is empty.
    key: AtomicU64,
    /// Hash of the endpoint.
    endpoint: AtomicU32,
    /// Second of the newest flow, plus 1; 0 for never.
    used: AtomicU32,
}

#[derive(Debug, Default)]
#[repr(align(128))]
struct Bucket([Slot; WAYS]);

/// How often what happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AffinityCounters {
    /// Flows that went to the endpoint remembered for their client.
    pub kept: u64,
    /// Flows of clients that were not remembered, or whose time was over.
    pub fresh: u64,
    /// Flows whose remembered endpoint was not usable in the tier chosen.
    pub moved: u64,
    /// Choices forgotten before their time because their bucket was full.
    pub evicted: u64,
}

/// The memory. See the module's text.
#[derive(Debug)]
pub struct AffinityMemory {
    buckets: Box<[Bucket]>,
    hasher: RandomState,
    kept: AtomicU64,
    fresh: AtomicU64,
    moved: AtomicU64,
    evicted: AtomicU64,
}

impl Default for AffinityMemory {
    fn default() -> Self {
        Self::new(DEFAULT_CAPACITY)
    }
}

impl AffinityMemory {
    /// Room for at least `capacity` choices, rounded up to a power of two; 16 bytes each, allocated here and never again.
    pub fn new(capacity: usize) -> Self {
        let count = capacity.div_ceil(WAYS).max(1).next_power_of_two();
        Self {
            buckets: (0..count).map(|_| Bucket::default()).collect(),
            hasher: RandomState::default(),
            kept: AtomicU64::new(0),
            fresh: AtomicU64::new(0),
            moved: AtomicU64::new(0),
            evicted: AtomicU64::new(0),
        }
    }

    /// How many choices fit.
    pub fn capacity(&self) -> usize {
        self.buckets.len() * WAYS
    }

    /// What happened so far.
    pub fn counters(&self) -> AffinityCounters {
        AffinityCounters {
            kept: self.kept.load(Relaxed),
            fresh: self.fresh.load(Relaxed),
            moved: self.moved.load(Relaxed),
            evicted: self.evicted.load(Relaxed),
        }
    }

    /// Picks an endpoint for a new flow of `client`, and remembers it where the entry's affinity is `ClientIP`. `now` is in
    /// seconds on a clock that all workers share and that does not go back. As [`ServicePortEntry::pick`] otherwise: the
    /// first tier with a usable endpoint, the whole first tier where there is none, `None` without tiers.
    pub fn pick(
        &self,
        entry: &ServicePortEntry,
        client: IpAddr,
        now: u32,
        usable: impl Fn(&SocketAddr) -> bool,
    ) -> Option<Picked> {
        let chosen = entry.tiers.iter().find(|t| entry.endpoints_of(t).any(|e| usable(&e)));
        let (tier, panic): (&TierRange, bool) = match chosen {
            Some(tier) => (tier, false),
            None => (entry.tiers.first()?, true),
        };
        let allowed = || entry.endpoints_of(tier).filter(|e| panic || usable(e));
        let picked = |endpoint: SocketAddr| Picked {
            endpoint,
            rank: tier.rank,
            panic,
        };
        let client = client.to_canonical();
        let seed = digest(client, 0);
        let SessionAffinity::ClientIp { timeout_seconds } = entry.affinity else {
            return allowed().max_by_key(|e| weight(seed, e)).map(picked);
        };

        let hash = self.hasher.hash_one((client, entry.id));
        let bucket = self.bucket(hash);
        let remembered = bucket
            .iter()
            .find(|s| s.belongs_to(hash) && s.age(now) < timeout_seconds);
        if let Some(slot) = remembered {
            let tag = slot.endpoint.load(Relaxed);
            if let Some(endpoint) = allowed().find(|e| tag_of(e) == tag) {
                slot.touch(now);
                self.kept.fetch_add(1, Relaxed);
                return Some(picked(endpoint));
            }
        }
        let counter = if remembered.is_some() { &self.moved } else { &self.fresh };
        counter.fetch_add(1, Relaxed);
        let endpoint = allowed().max_by_key(|e| weight(seed, e))?;
        self.remember(bucket, hash, tag_of(&endpoint), now, timeout_seconds);
        Some(picked(endpoint))
    }

    fn bucket(&self, hash: u64) -> &[Slot] {
        // The top bits: the low ones are all that a short client address leaves mixed worst.
        let index = (hash >> 32) as usize & (self.buckets.len() - 1);
        self.buckets.get(index).map_or(&[], |b| &b.0)
    }

    fn remember(&self, bucket: &[Slot], hash: u64, tag: u32, now: u32, timeout: u32) {
        let own = bucket.iter().find(|s| s.belongs_to(hash));
        let Some(slot) = own.or_else(|| bucket.iter().min_by_key(|s| s.used.load(Relaxed))) else {
            return;
        };
        if own.is_none() && slot.used.load(Relaxed) != 0 && slot.age(now) < timeout {
            self.evicted.fetch_add(1, Relaxed);
        }
        slot.touch(now);
        slot.endpoint.store(tag, Relaxed);
        slot.key.store(hash ^ spread(tag), Relaxed);
    }
}

impl Slot {
    fn belongs_to(&self, hash: u64) -> bool {
        self.used.load(Relaxed) != 0 && self.key.load(Relaxed) ^ spread(self.endpoint.load(Relaxed)) == hash
    }

    /// Seconds since the newest flow; 0 where another worker's clock is ahead.
    fn age(&self, now: u32) -> u32 {
        now.saturating_add(1).saturating_sub(self.used.load(Relaxed))
    }

    fn touch(&self, now: u32) {
        // Only this word changes when a window restarts, so a reader never misses a client that is being refreshed.
        let used = now.saturating_add(1);
        if self.used.load(Relaxed) < used {
            self.used.store(used, Relaxed);
        }
    }
}

/// Spreads an endpoint's hash over 64 bits (the golden ratio's odd multiplier).
fn spread(tag: u32) -> u64 {
    u64::from(tag).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// What is remembered of an endpoint.
fn tag_of(endpoint: &SocketAddr) -> u32 {
    (digest(endpoint.ip(), endpoint.port()) >> 32) as u32
}

/// Rendezvous weight: of the endpoints allowed, a client's first choice is the one with the greatest. A function of our own,
/// so that two versions of the program agree, and a thorough one: the hasher of the tables is visibly uneven here.
fn weight(client: u64, endpoint: &SocketAddr) -> u64 {
    mix(client ^ digest(endpoint.ip(), endpoint.port()))
}

/// An address and port in 64 well mixed bits.
fn digest(ip: IpAddr, port: u16) -> u64 {
    let port = u64::from(port);
    match ip {
        IpAddr::V4(ip) => mix(u64::from(ip.to_bits()) << 16 | port),
        IpAddr::V6(ip) => {
            let bits = ip.to_bits();
            mix(mix(mix((bits >> 64) as u64) ^ bits as u64) ^ port)
        }
    }
}

/// One step of splitmix64 (Steele, Lea, Flood 2014).
fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}
