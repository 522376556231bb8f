//! A hashed timer wheel over slot numbers: one timer per slot, constant time to set, move and cancel.
//!
//! A deadline beyond the wheel's horizon waits in the farthest bucket; whoever owns the slot looks at the real deadline
//! when it comes up and sets it again. Deadlines are never early by more than nothing and late by at most one tick plus
//! the time between calls.

use super::Millis;

/// Width of a bucket.
pub const TICK: Millis = 4;
const BUCKETS: usize = 4096;
const WORDS: usize = BUCKETS / 64;
const NONE: u32 = u32::MAX;

#[derive(Clone, Copy)]
struct Link {
    prev: u32,
    next: u32,
    bucket: u16,
    set: bool,
}

/// The wheel.
pub struct Wheel {
    heads: Box<[u32]>,
    occupied: Box<[u64]>,
    links: Box<[Link]>,
    /// All buckets before this tick are empty.
    tick: u64,
    len: usize,
}

impl Wheel {
    /// A wheel for slots `0..slots`, at time `now`.
    pub fn new(slots: usize, now: Millis) -> Self {
        let idle = Link {
            prev: NONE,
            next: NONE,
            bucket: 0,
            set: false,
        };
        Self {
            heads: vec![NONE; BUCKETS].into(),
            occupied: vec![0; WORDS].into(),
            links: vec![idle; slots].into(),
            tick: now / TICK,
            len: 0,
        }
    }

    /// How many timers are set.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no timer is set.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Sets or moves a slot's timer.
    pub fn set(&mut self, slot: u32, at: Millis) {
        self.cancel(slot);
        // Rounded up: a timer never fires early.
        let due = at.div_ceil(TICK).clamp(self.tick, self.tick + BUCKETS as u64 - 1);
        let bucket = (due % BUCKETS as u64) as usize;
        let head = self.heads[bucket];
        self.links[slot as usize] = Link {
            prev: NONE,
            next: head,
            bucket: bucket as u16,
            set: true,
        };
        if head != NONE {
            self.links[head as usize].prev = slot;
        }
        self.heads[bucket] = slot;
        self.occupied[bucket / 64] |= 1 << (bucket % 64);
        self.len += 1;
    }

    /// Cancels a slot's timer; nothing happens where none is set.
    pub fn cancel(&mut self, slot: u32) {
        let link = self.links[slot as usize];
        if !link.set {
            return;
        }
        let bucket = usize::from(link.bucket);
        match link.prev {
            NONE => self.heads[bucket] = link.next,
            prev => self.links[prev as usize].next = link.next,
        }
        if link.next != NONE {
            self.links[link.next as usize].prev = link.prev;
        }
        if self.heads[bucket] == NONE {
            self.occupied[bucket / 64] &= !(1 << (bucket % 64));
        }
        self.links[slot as usize].set = false;
        self.len -= 1;
    }

    /// Takes one timer that is due at `now`.
    pub fn pop(&mut self, now: Millis) -> Option<u32> {
        let now_tick = now / TICK;
        let Some(tick) = self.next_tick().filter(|tick| *tick <= now_tick) else {
            // Everything before now is empty: the horizon moves on.
            self.tick = self.tick.max(now_tick);
            return None;
        };
        self.tick = tick;
        let slot = self.heads[(tick % BUCKETS as u64) as usize];
        self.cancel(slot);
        Some(slot)
    }

    /// When the next timer is due.
    pub fn next_deadline(&self) -> Option<Millis> {
        self.next_tick().map(|tick| tick * TICK)
    }

    /// The first tick at or after `self.tick` with a timer, by scanning the bitmap once around.
    fn next_tick(&self) -> Option<u64> {
        if self.len == 0 {
            return None;
        }
        let start = (self.tick % BUCKETS as u64) as usize;
        for step in 0..=WORDS {
            let word = (start / 64 + step) % WORDS;
            let mut bits = self.occupied[word];
            if step == 0 {
                bits &= u64::MAX << (start % 64);
            } else if step == WORDS {
                bits &= !(u64::MAX << (start % 64));
            }
            if bits != 0 {
                let bucket = word * 64 + bits.trailing_zeros() as usize;
                let ahead = (bucket + BUCKETS - start) % BUCKETS;
                return Some(self.tick + ahead as u64);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    #[derive(Clone, Debug)]
    enum Step {
        Set(u32, u64),
        Cancel(u32),
        Advance(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (0u32..32, 0u64..15_000).prop_map(|(s, d)| Step::Set(s, d)),
            1 => (0u32..32).prop_map(Step::Cancel),
            2 => (0u64..3_000).prop_map(Step::Advance),
        ]
    }

    proptest! {
        /// Against a plain map: never early, never later than one tick, nothing lost, nothing twice.
        #[test]
        fn behaves_like_a_sorted_map(steps in proptest::collection::vec(step(), 1..200), start in 0u64..1 << 40) {
            let mut now = start;
            let mut wheel = Wheel::new(32, now);
            let mut model: BTreeMap<u32, u64> = BTreeMap::new();
            for step in steps {
                match step {
                    Step::Set(slot, delay) => {
                        wheel.set(slot, now + delay);
                        model.insert(slot, now + delay);
                    }
                    Step::Cancel(slot) => {
                        wheel.cancel(slot);
                        model.remove(&slot);
                    }
                    Step::Advance(by) => {
                        now += by;
                        while let Some(slot) = wheel.pop(now) {
                            let due = model.remove(&slot);
                            prop_assert!(due.is_some_and(|d| d <= now), "slot {slot} due {due:?} fired at {now}");
                        }
                        prop_assert!(model.values().all(|&d| d + TICK > now), "missed at {now}: {model:?}");
                    }
                }
                prop_assert_eq!(wheel.len(), model.len());
                let first = model.values().min().copied();
                let next = wheel.next_deadline();
                prop_assert_eq!(next.is_some(), first.is_some());
                if let (Some(next), Some(first)) = (next, first) {
                    prop_assert!(next >= first.min(now) && next < first.max(now) + TICK, "{next} for {first}");
                }
            }
        }
    }

    #[test]
    fn beyond_the_horizon_it_comes_up_early_enough_to_be_set_again() {
        let mut wheel = Wheel::new(1, 0);
        wheel.set(0, 100_000);
        let horizon = (BUCKETS as u64 - 1) * TICK;
        assert_eq!(wheel.pop(horizon - 1), None);
        assert_eq!(wheel.pop(horizon), Some(0));
    }
}
