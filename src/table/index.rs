//! VIP → entry. Sharded so that a change copies one shard; the rest is shared with the table before.

use super::{ServicePortEntry, Vip};
use crate::model::Protocol;
use foldhash::fast::FixedState;
use hashbrown::HashTable;
use std::hash::{BuildHasher, Hasher};
use std::net::IpAddr;
use std::sync::Arc;

/// How many shards: few enough that a publication (one pointer copied per shard) stays below a microsecond or two, many
/// enough that a shard holds a few dozen entries at 5 000 Services. A power of two.
const SHARDS: usize = 256;

/// Entries by the hash of their VIP. The VIP is compared in the entry itself, which a lookup reads anyway.
type Shard = HashTable<Arc<ServicePortEntry>>;

/// All service ports this node carries.
#[derive(Clone, Debug)]
pub struct Table {
    /// Rises by one with each published table.
    pub generation: u64,
    shards: Box<[Arc<Shard>]>,
}

impl Default for Table {
    fn default() -> Self {
        let empty = Arc::new(Shard::new());
        Self {
            generation: 0,
            shards: (0..SHARDS).map(|_| empty.clone()).collect(),
        }
    }
}

impl Table {
    /// The service port behind a VIP.
    pub fn get(&self, vip: &Vip) -> Option<&Arc<ServicePortEntry>> {
        let hash = hash(vip);
        self.shards.get(shard_of(hash))?.find(hash, |e| e.vip == *vip)
    }

    /// All entries, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<ServicePortEntry>> {
        self.shards.iter().flat_map(|s| s.iter())
    }

    /// How many entries there are.
    pub fn len(&self) -> usize {
        self.shards.iter().map(|s| s.len()).sum()
    }

    /// Whether there is no entry.
    pub fn is_empty(&self) -> bool {
        self.shards.iter().all(|s| s.is_empty())
    }

    /// Puts an entry in the place of its VIP. Copies the shard if another table shares it.
    pub(super) fn insert(&mut self, entry: Arc<ServicePortEntry>) {
        let hash = hash(&entry.vip);
        if let Some(shard) = self.shards.get_mut(shard_of(hash)) {
            let shard = Arc::make_mut(shard);
            match shard.find_mut(hash, |e| e.vip == entry.vip) {
                Some(place) => *place = entry,
                None => {
                    shard.insert_unique(hash, entry, |e| self::hash(&e.vip));
                }
            }
        }
    }

    /// Removes the entry of a VIP.
    pub(super) fn remove(&mut self, vip: &Vip) {
        let hash = hash(vip);
        if let Some(shard) = self.shards.get_mut(shard_of(hash))
            && shard.find(hash, |e| e.vip == *vip).is_some()
            && let Ok(found) = Arc::make_mut(shard).find_entry(hash, |e| e.vip == *vip)
        {
            found.remove();
        }
    }
}

/// VIPs come from the cluster's administrators, so a fixed seed is safe; what clients send is only looked up.
fn hash(vip: &Vip) -> u64 {
    let mut state = FixedState::default().build_hasher();
    match vip.address.ip() {
        IpAddr::V4(ip) => state.write_u32(ip.to_bits()),
        IpAddr::V6(ip) => state.write_u128(ip.to_bits()),
    }
    let protocol = match vip.protocol {
        Protocol::Tcp => 0,
        Protocol::Udp => 1,
        Protocol::Sctp => 2,
    };
    state.write_u32(u32::from(vip.address.port()) << 2 | protocol);
    state.finish()
}

/// Bits that the shard's own table (top and bottom bits) does not use.
fn shard_of(hash: u64) -> usize {
    (hash >> 32) as usize % SHARDS
}
