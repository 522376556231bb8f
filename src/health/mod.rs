//! Evidence about endpoints, shared by all workers: which of them are failing now.
//!
//! Only failing endpoints take memory, in a fixed table of atomics; while there is none, asking costs one load. Nothing
//! here locks, allocates after start, or knows why an endpoint is wanted. Health never empties a service: that rule
//! belongs to whoever picks.

use crate::model::Protocol;
use foldhash::quality::RandomState;
use std::hash::BuildHasher;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Milliseconds on the process's monotonic clock.
pub type Millis = u64;

const WAYS: usize = 8;
const BUCKETS: usize = 1024;
/// First hold-down after a refusal; doubles with each further one that follows a trial.
const HOLD_FIRST: Millis = 500;
/// Longest hold-down.
const HOLD_MAX: Millis = 30_000;
/// An endpoint that nobody tried for so long after its hold-down is forgotten.
const FORGET_AFTER: Millis = 60_000;

#[derive(Default)]
struct Slot {
    /// Fingerprint of (endpoint, protocol); 0 is an empty slot.
    key: AtomicU64,
    /// End of the hold-down.
    until: AtomicU64,
    failures: AtomicU32,
}

/// The endpoints that are failing.
pub struct FailingEndpoints {
    slots: Box<[Slot]>,
    len: AtomicU32,
    evicted: AtomicU64,
    keys: RandomState,
}

impl Default for FailingEndpoints {
    fn default() -> Self {
        Self {
            slots: (0..WAYS * BUCKETS).map(|_| Slot::default()).collect(),
            len: AtomicU32::new(0),
            evicted: AtomicU64::new(0),
            keys: RandomState::default(),
        }
    }
}

impl FailingEndpoints {
    /// Whether an endpoint should be passed over now: it refused, and its hold-down is not over. After the hold-down it
    /// is tried again by whatever query comes first.
    pub fn is_failing(&self, endpoint: &SocketAddr, protocol: Protocol, now: Millis) -> bool {
        if self.len.load(Ordering::Relaxed) == 0 {
            return false;
        }
        let key = self.fingerprint(endpoint, protocol);
        self.find(key)
            .is_some_and(|slot| slot.until.load(Ordering::Relaxed) > now)
    }

    /// Evidence: the endpoint refused, or could not be reached. `random` spreads the ends of hold-downs by a quarter.
    pub fn refused(&self, endpoint: &SocketAddr, protocol: Protocol, now: Millis, random: u64) {
        let key = self.fingerprint(endpoint, protocol);
        let slot = match self.find(key) {
            Some(slot) => slot,
            None => self.claim(key),
        };
        if slot.until.load(Ordering::Relaxed) > now && slot.failures.load(Ordering::Relaxed) > 0 {
            // One failure, however many datagrams it hit.
            return;
        }
        let failures = slot.failures.fetch_add(1, Ordering::Relaxed).min(16);
        let hold = (HOLD_FIRST << failures).min(HOLD_MAX);
        slot.until.store(now + hold - random % (hold / 4), Ordering::Relaxed);
    }

    /// Evidence: the endpoint answered. Clears it when its hold-down is over; an answer before that was on its way when
    /// the endpoint failed.
    pub fn answered(&self, endpoint: &SocketAddr, protocol: Protocol, now: Millis) {
        if self.len.load(Ordering::Relaxed) == 0 {
            return;
        }
        let key = self.fingerprint(endpoint, protocol);
        if let Some(slot) = self.find(key)
            && slot.until.load(Ordering::Relaxed) <= now
        {
            self.clear(slot, key);
        }
    }

    /// Forgets endpoints that nobody has tried for long; the control thread calls it now and then.
    pub fn sweep(&self, now: Millis) {
        for slot in &self.slots {
            let key = slot.key.load(Ordering::Relaxed);
            if key != 0 && slot.until.load(Ordering::Relaxed) + FORGET_AFTER < now {
                self.clear(slot, key);
            }
        }
    }

    /// How many endpoints are failing or on trial.
    pub fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed) as usize
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Endpoints forgotten early because the table was full.
    pub fn evicted(&self) -> u64 {
        self.evicted.load(Ordering::Relaxed)
    }

    fn fingerprint(&self, endpoint: &SocketAddr, protocol: Protocol) -> u64 {
        self.keys.hash_one((endpoint, protocol)).max(1)
    }

    fn bucket(&self, key: u64) -> &[Slot] {
        let start = (key % BUCKETS as u64) as usize * WAYS;
        &self.slots[start..start + WAYS]
    }

    fn find(&self, key: u64) -> Option<&Slot> {
        self.bucket(key)
            .iter()
            .find(|slot| slot.key.load(Ordering::Relaxed) == key)
    }

    fn claim(&self, key: u64) -> &Slot {
        let bucket = self.bucket(key);
        for slot in bucket {
            if slot
                .key
                .compare_exchange(0, key, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
            {
                slot.failures.store(0, Ordering::Relaxed);
                slot.until.store(0, Ordering::Relaxed);
                self.len.fetch_add(1, Ordering::Relaxed);
                return slot;
            }
        }
        // Full: the one whose hold-down ends first makes room.
        let slot = bucket
            .iter()
            .min_by_key(|slot| slot.until.load(Ordering::Relaxed))
            .unwrap_or(&bucket[0]);
        slot.key.store(key, Ordering::Relaxed);
        slot.failures.store(0, Ordering::Relaxed);
        slot.until.store(0, Ordering::Relaxed);
        self.evicted.fetch_add(1, Ordering::Relaxed);
        slot
    }

    fn clear(&self, slot: &Slot, key: u64) {
        if slot
            .key
            .compare_exchange(key, 0, Ordering::Relaxed, Ordering::Relaxed)
            .is_ok()
        {
            self.len.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn endpoint(n: u32) -> SocketAddr {
        SocketAddr::new(std::net::Ipv4Addr::from(n).into(), 53)
    }

    #[test]
    fn a_refusal_holds_and_an_answer_after_the_hold_clears() {
        let failing = FailingEndpoints::default();
        let e = endpoint(1);
        assert!(!failing.is_failing(&e, Protocol::Udp, 1000));
        failing.refused(&e, Protocol::Udp, 1000, 0);
        assert!(failing.is_failing(&e, Protocol::Udp, 1499));
        assert!(!failing.is_failing(&e, Protocol::Tcp, 1499), "protocols are apart");
        failing.answered(&e, Protocol::Udp, 1200);
        assert!(
            failing.is_failing(&e, Protocol::Udp, 1300),
            "an answer that was on its way proves nothing"
        );
        assert!(!failing.is_failing(&e, Protocol::Udp, 1500));
        failing.answered(&e, Protocol::Udp, 1500);
        assert!(failing.is_empty());
    }

    #[test]
    fn the_hold_doubles_with_each_failed_trial_only() {
        let failing = FailingEndpoints::default();
        let e = endpoint(1);
        let mut now = 0;
        let mut holds = Vec::new();
        for _ in 0..9 {
            for _ in 0..50 {
                failing.refused(&e, Protocol::Udp, now, 0);
            }
            let start = now;
            while failing.is_failing(&e, Protocol::Udp, now) {
                now += 1;
            }
            holds.push(now - start);
        }
        assert_eq!(holds, [500, 1000, 2000, 4000, 8000, 16_000, 30_000, 30_000, 30_000]);
    }

    #[test]
    fn a_full_table_forgets_the_one_nearest_to_its_end() {
        let failing = FailingEndpoints::default();
        for n in 0..100_000 {
            failing.refused(&endpoint(n), Protocol::Udp, u64::from(n), 0);
        }
        assert!(failing.len() <= WAYS * BUCKETS);
        assert!(failing.evicted() > 0);
        assert!(failing.is_failing(&endpoint(99_999), Protocol::Udp, 99_999));
        failing.sweep(1_000_000);
        assert!(failing.is_empty());
    }

    #[test]
    fn threads_agree_on_the_count() {
        let failing = FailingEndpoints::default();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for round in 0..200u64 {
                        for n in 0..50 {
                            failing.refused(&endpoint(n), Protocol::Udp, round * 100_000, n.into());
                            failing.answered(&endpoint(n), Protocol::Udp, round * 100_000 + 90_000);
                        }
                    }
                });
            }
        });
        failing.sweep(u64::MAX);
        assert_eq!(failing.len(), 0);
        assert!(failing.slots.iter().all(|s| s.key.load(Ordering::Relaxed) == 0));
    }
}
