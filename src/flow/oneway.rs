//! One-way datagrams (statsd): state per client address, nothing awaited.
//!
//! What an agent aggregates must not be spread over several (gauges, sets and timers are kept per agent), so a client stays
//! with its endpoint while that one is usable and no better rank has an endpoint. On fall-back all datagrams of one client
//! go to one remote endpoint, the same from every worker and after every restart: the one with the highest hash of client
//! and endpoint. Back in a better rank after it has been there for [`RETURN_AFTER`], so that an agent that flaps does not
//! drag its clients along.

use super::Millis;
use super::ages::Ages;
use crate::telemetry::DropReason;
use foldhash::fast::RandomState;
use hashbrown::HashMap;

use std::net::{IpAddr, SocketAddr};

/// How long a better rank must have had a usable endpoint before a client returns to it.
pub const RETURN_AFTER: Millis = 2_000;
/// A client that has sent nothing for so long is forgotten.
pub const IDLE: Millis = 60_000;

/// An endpoint and its rank's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// The endpoint.
    pub endpoint: SocketAddr,
    /// Its rank's number.
    pub rank: u8,
    /// Chosen although nothing was acceptable.
    pub panic: bool,
}

/// What the core needs from outside.
pub trait Shell {
    /// The best endpoint for a client: the highest hash of client and endpoint within the first rank that has a usable one.
    /// `None` where the policy allows none.
    fn best(&mut self, service: u32, client: IpAddr) -> Option<Target>;

    /// Whether an endpoint is still allowed and healthy, and its rank.
    fn usable(&self, service: u32, endpoint: &SocketAddr) -> Option<u8>;

    /// A number that changes when the service port's endpoints or anybody's health may have changed; while it stays the
    /// same, a client's endpoint need not be looked at again.
    fn version(&self, service: u32) -> u64;
}

/// What to do with a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Send it there.
    Send(Target),
    /// Drop and count it.
    Drop(DropReason),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Key {
    service: u32,
    client: IpAddr,
}

#[derive(Clone, Debug)]
struct Client {
    key: Key,
    target: Target,
    version: u64,
    /// Since when a better rank has had an endpoint.
    better_since: Option<Millis>,
    seen: Millis,
}

/// The clients of one worker.
pub struct Core {
    clients: Vec<Client>,
    free: Vec<u32>,
    index: HashMap<Key, u32, RandomState>,
    capacity: usize,
    ages: Ages,
}

impl Core {
    /// Room for `capacity` clients; beyond it the one that was quiet for longest is forgotten.
    pub fn new(capacity: usize) -> Self {
        let capacity = capacity.max(1);
        Self {
            clients: Vec::with_capacity(capacity),
            free: Vec::with_capacity(capacity),
            index: HashMap::with_capacity_and_hasher(capacity, RandomState::default()),
            capacity,
            ages: Ages::new(capacity),
        }
    }

    /// Clients remembered.
    pub fn len(&self) -> usize {
        self.index.len()
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.index.is_empty()
    }

    /// A datagram from a client.
    pub fn datagram(&mut self, now: Millis, service: u32, client: IpAddr, shell: &mut impl Shell) -> Verdict {
        let key = Key { service, client };
        let target = match self.index.get(&key).copied() {
            Some(slot) => self.known(now, slot, shell),
            None => self.unknown(now, key, shell),
        };
        target.map_or(Verdict::Drop(DropReason::NoEndpoint), Verdict::Send)
    }

    /// Forgets clients that have been quiet for [`IDLE`]; called once a turn, and done in constant time when there are none.
    pub fn expire(&mut self, now: Millis) {
        while let Some(oldest) = self.ages.oldest() {
            if self.clients[oldest as usize].seen + IDLE > now {
                return;
            }
            self.forget(oldest);
        }
    }

    /// Forgets the clients of a service port that is gone.
    pub fn service_gone(&mut self, service: u32) {
        let slots: Vec<u32> = self
            .index
            .iter()
            .filter(|(k, _)| k.service == service)
            .map(|(_, s)| *s)
            .collect();
        for slot in slots {
            self.forget(slot);
        }
    }

    fn known(&mut self, now: Millis, slot: u32, shell: &mut impl Shell) -> Option<Target> {
        self.ages.touch(slot);
        let client = &mut self.clients[slot as usize];
        client.seen = now;
        let version = shell.version(client.key.service);
        if client.version == version && client.better_since.is_none() {
            return Some(client.target);
        }
        let best = shell.best(client.key.service, client.key.client);
        let Some(best) = best else {
            self.forget(slot);
            return None;
        };
        client.version = version;
        match shell.usable(client.key.service, &client.target.endpoint) {
            // Better ranks have lower numbers.
            Some(rank) if best.rank < rank && !best.panic => {
                client.target.rank = rank;
                let since = *client.better_since.get_or_insert(now);
                if now >= since + RETURN_AFTER {
                    client.better_since = None;
                    client.target = best;
                }
            }
            Some(rank) => {
                client.target.rank = rank;
                client.target.panic = false;
                client.better_since = None;
            }
            None => {
                client.target = best;
                client.better_since = None;
            }
        }
        Some(client.target)
    }

    fn unknown(&mut self, now: Millis, key: Key, shell: &mut impl Shell) -> Option<Target> {
        let target = shell.best(key.service, key.client)?;
        if self.index.len() >= self.capacity
            && let Some(oldest) = self.ages.oldest()
        {
            self.forget(oldest);
        }
        let client = Client {
            key,
            target,
            version: shell.version(key.service),
            better_since: None,
            seen: now,
        };
        let slot = match self.free.pop() {
            Some(slot) => {
                self.clients[slot as usize] = client;
                slot
            }
            None => {
                self.clients.push(client);
                self.clients.len() as u32 - 1
            }
        };
        self.ages.touch(slot);
        self.index.insert(key, slot);
        Some(target)
    }

    fn forget(&mut self, slot: u32) {
        self.ages.remove(slot);
        let key = self.clients[slot as usize].key;
        self.index.remove(&key);
        self.free.push(slot);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use rand::rngs::SmallRng;
    use rand::{RngExt, SeedableRng};
    use std::collections::{BTreeMap, HashMap as StdMap};

    #[derive(Default)]
    struct World {
        /// Endpoint → (rank, healthy).
        endpoints: BTreeMap<SocketAddr, (u8, bool)>,
        version: u64,
    }

    impl World {
        fn set(&mut self, n: u8, rank: u8, healthy: bool) {
            self.endpoints.insert(endpoint(n), (rank, healthy));
            self.version += 1;
        }

        fn remove(&mut self, n: u8) {
            self.endpoints.remove(&endpoint(n));
            self.version += 1;
        }
    }

    impl Shell for World {
        fn best(&mut self, _: u32, client: IpAddr) -> Option<Target> {
            let healthy = self.endpoints.values().filter(|e| e.1).map(|e| e.0).min();
            let rank = healthy.or(self.endpoints.values().map(|e| e.0).min())?;
            let weight = |e: &SocketAddr| {
                let mut seed = 0u64;
                for byte in format!("{client}{e}").bytes() {
                    seed = (seed ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3).rotate_left(29);
                }
                seed
            };
            self.endpoints
                .iter()
                .filter(|(_, (r, h))| *r == rank && (*h || healthy.is_none()))
                .max_by_key(|(e, _)| weight(e))
                .map(|(e, _)| Target {
                    endpoint: *e,
                    rank,
                    panic: healthy.is_none(),
                })
        }

        fn usable(&self, _: u32, endpoint: &SocketAddr) -> Option<u8> {
            self.endpoints.get(endpoint).filter(|e| e.1).map(|e| e.0)
        }

        fn version(&self, _: u32) -> u64 {
            self.version
        }
    }

    fn endpoint(n: u8) -> SocketAddr {
        SocketAddr::new([10, 0, 0, n].into(), 8125)
    }

    fn client(n: u8) -> IpAddr {
        [10, 1, 0, n].into()
    }

    fn send(core: &mut Core, world: &mut World, now: Millis, n: u8) -> Option<SocketAddr> {
        match core.datagram(now, 0, client(n), world) {
            Verdict::Send(target) => Some(target.endpoint),
            Verdict::Drop(reason) => {
                assert_eq!(reason, DropReason::NoEndpoint);
                None
            }
        }
    }

    #[test]
    fn local_then_one_remote_then_back_after_two_seconds() {
        let (mut core, mut world) = (Core::new(10), World::default());
        world.set(1, 0, true);
        for n in 2..6 {
            world.set(n, 1, true);
        }
        assert_eq!(send(&mut core, &mut world, 0, 1), Some(endpoint(1)));
        world.remove(1);
        let remote = send(&mut core, &mut world, 10, 1).unwrap();
        assert_ne!(remote, endpoint(1));
        for now in 11..100 {
            assert_eq!(send(&mut core, &mut world, now, 1), Some(remote), "never sprayed");
        }
        world.set(1, 0, true);
        assert_eq!(send(&mut core, &mut world, 1_000, 1), Some(remote));
        assert_eq!(send(&mut core, &mut world, 2_999, 1), Some(remote));
        assert_eq!(send(&mut core, &mut world, 3_000, 1), Some(endpoint(1)));
    }

    #[test]
    fn an_endpoint_that_flaps_does_not_drag_its_clients_along() {
        let (mut core, mut world) = (Core::new(10), World::default());
        world.set(2, 1, true);
        let remote = send(&mut core, &mut world, 0, 1);
        for second in 1..20 {
            world.set(1, 0, second % 2 == 1);
            assert_eq!(send(&mut core, &mut world, second * 1_000, 1), remote);
        }
    }

    #[test]
    fn a_failing_local_endpoint_is_left_at_once() {
        let (mut core, mut world) = (Core::new(10), World::default());
        world.set(1, 0, true);
        world.set(2, 1, true);
        assert_eq!(send(&mut core, &mut world, 0, 1), Some(endpoint(1)));
        world.set(1, 0, false);
        assert_eq!(send(&mut core, &mut world, 1, 1), Some(endpoint(2)));
    }

    #[test]
    fn a_second_local_endpoint_moves_nobody() {
        let (mut core, mut world) = (Core::new(100), World::default());
        world.set(1, 0, true);
        for n in 0..50 {
            send(&mut core, &mut world, 0, n);
        }
        world.set(2, 0, true);
        for n in 0..50 {
            assert_eq!(send(&mut core, &mut world, 10_000, n), Some(endpoint(1)));
        }
        // New clients are spread over both.
        let fresh: Vec<_> = (50..100)
            .filter_map(|n| send(&mut core, &mut world, 10_000, n))
            .collect();
        assert!(fresh.contains(&endpoint(1)) && fresh.contains(&endpoint(2)));
    }

    #[test]
    fn two_workers_choose_the_same_remote() {
        let mut world = World::default();
        for n in 1..8 {
            world.set(n, 2, true);
        }
        let (mut a, mut b) = (Core::new(100), Core::new(100));
        for n in 0..50 {
            assert_eq!(send(&mut a, &mut world, 0, n), send(&mut b, &mut world, 99, n));
        }
    }

    #[test]
    fn without_endpoints_it_drops_and_recovers() {
        let (mut core, mut world) = (Core::new(10), World::default());
        assert_eq!(send(&mut core, &mut world, 0, 1), None);
        world.set(1, 0, true);
        assert_eq!(send(&mut core, &mut world, 1, 1), Some(endpoint(1)));
        world.remove(1);
        assert_eq!(send(&mut core, &mut world, 2, 1), None);
        assert!(core.is_empty());
    }

    #[test]
    fn bounded_and_forgetful() {
        let (mut core, mut world) = (Core::new(4), World::default());
        world.set(1, 0, true);
        for n in 0..100 {
            send(&mut core, &mut world, u64::from(n), n);
            assert!(core.len() <= 4);
        }
        core.expire(IDLE + 96);
        assert_eq!(core.len(), 3, "the one seen at 96 is gone");
        core.service_gone(0);
        assert!(core.is_empty());
    }

    /// Random churn: a client is never sent to an endpoint that is gone, nor to a worse rank than a usable one for longer
    /// than the return time, and within one version it never changes.
    #[test]
    fn random_churn_keeps_the_promises() {
        for seed in 0..200 {
            let mut rng = SmallRng::seed_from_u64(seed);
            let (mut core, mut world) = (Core::new(8), World::default());
            let mut now = 0;
            let mut last: StdMap<u8, (u64, SocketAddr, Millis)> = StdMap::new();
            for _ in 0..300 {
                match rng.random_range(0..10) {
                    0 => world.set(rng.random_range(0..6), rng.random_range(0..3), rng.random_bool(0.7)),
                    1 => world.remove(rng.random_range(0..6)),
                    2 => {
                        now += rng.random_range(0..70_000);
                        core.expire(now);
                    }
                    _ => {
                        now += rng.random_range(0..500);
                        let n = rng.random_range(0..12);
                        let Some(to) = send(&mut core, &mut world, now, n) else {
                            assert!(world.endpoints.is_empty(), "seed {seed}");
                            continue;
                        };
                        let (rank, healthy) = world.endpoints[&to];
                        let best = world.endpoints.values().filter(|e| e.1).map(|e| e.0).min();
                        assert!(
                            healthy || best.is_none(),
                            "seed {seed}: {to} is failing and another is not"
                        );
                        if let Some((version, before, at)) = last.get(&n)
                            && *version == world.version
                            && best.is_some_and(|b| b == rank)
                            && now < at + 1_000
                        {
                            let same_rank = world.endpoints[before].0 == rank;
                            assert!(!same_rank || *before == to, "seed {seed}: moved without a cause");
                        }
                        last.insert(n, (world.version, to, now));
                    }
                }
            }
        }
    }
}
