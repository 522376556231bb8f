//! Other UDP: state per client address and port. A flow stays with its endpoint while that one is usable.
//!
//! Several flows share an upstream socket, so an answer is told by socket and endpoint alone: no two flows may share both.
//! When a flow moves, answers of the endpoint before are still delivered for [`DRAIN`]; what nobody waits for is dropped and
//! counted.

use super::Millis;
use super::ages::Ages;
use crate::telemetry::DropReason;
use foldhash::fast::RandomState;
use hashbrown::HashMap;
use std::net::SocketAddr;
use std::ops::Range;

/// A flow in which nothing has passed for so long is forgotten.
pub const IDLE: Millis = 60_000;
/// How long answers of an endpoint that a flow has left are still delivered.
pub const DRAIN: Millis = 10_000;
/// Tries to find an upstream socket that no other flow uses towards the same endpoint.
const SOCKET_TRIES: u64 = 8;

/// An endpoint and its rank's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// The endpoint.
    pub endpoint: SocketAddr,
    /// Its rank's number.
    pub rank: u8,
    /// Chosen from a worse rank than the best one listed, because of health.
    pub fallback: bool,
    /// Chosen although nothing was acceptable.
    pub panic: bool,
}

/// What the core needs from outside.
pub trait Shell {
    /// A random number.
    fn random(&mut self) -> u64;

    /// An endpoint for a new flow of a client. `None` where the policy allows none.
    fn choose(&mut self, service: u32, client: &SocketAddr) -> Option<Target>;

    /// Whether an endpoint is still allowed and healthy, and its rank.
    fn usable(&self, service: u32, endpoint: &SocketAddr) -> Option<u8>;

    /// A number that changes when the service port's endpoints or anybody's health may have changed.
    fn version(&self, service: u32) -> u64;
}

/// What to do with a client's datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Send it there from this upstream socket. `moved` says that the flow had another endpoint before.
    Send {
        /// Where.
        target: Target,
        /// From which socket.
        socket: u16,
        /// Whether the flow moved.
        moved: bool,
    },
    /// Drop and count it.
    Drop(DropReason),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct ClientKey {
    service: u32,
    client: SocketAddr,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct PathKey {
    socket: u16,
    endpoint: SocketAddr,
}

/// One way to an endpoint and back: a flow's present one, or one that it has left and that drains.
#[derive(Clone, Debug)]
struct Path {
    client: ClientKey,
    key: PathKey,
    target: Target,
    version: u64,
    /// A flow's present path; otherwise it only drains.
    present: bool,
    seen: Millis,
}

/// The flows of one worker.
pub struct Core {
    paths: Vec<Path>,
    free: Vec<u32>,
    flows: HashMap<ClientKey, u32, RandomState>,
    answers: HashMap<PathKey, u32, RandomState>,
    capacity: usize,
    /// Present paths by their last datagram.
    present: Ages,
    /// Draining ones by when they were left.
    draining: Ages,
    sockets_v4: Range<u16>,
    sockets_v6: Range<u16>,
}

impl Core {
    /// Room for `capacity` paths over these upstream sockets; beyond it a draining one, else the flow that was quiet for
    /// longest, makes room.
    pub fn new(capacity: usize, sockets_v4: Range<u16>, sockets_v6: Range<u16>) -> Self {
        let capacity = capacity.max(1);
        Self {
            paths: Vec::with_capacity(capacity),
            free: Vec::with_capacity(capacity),
            flows: HashMap::with_capacity_and_hasher(capacity, RandomState::default()),
            answers: HashMap::with_capacity_and_hasher(capacity, RandomState::default()),
            capacity,
            present: Ages::new(capacity),
            draining: Ages::new(capacity),
            sockets_v4,
            sockets_v6,
        }
    }

    /// Flows and draining paths.
    pub fn len(&self) -> usize {
        self.answers.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.answers.is_empty()
    }

    /// A datagram from a client.
    pub fn datagram(&mut self, now: Millis, service: u32, client: SocketAddr, shell: &mut impl Shell) -> Verdict {
        let key = ClientKey { service, client };
        let Some(slot) = self.flows.get(&key).copied() else {
            return self.begin(now, key, false, shell);
        };
        let version = shell.version(service);
        let path = &self.paths[slot as usize];
        if path.version != version {
            match shell.usable(service, &path.key.endpoint) {
                Some(rank) => {
                    let path = &mut self.paths[slot as usize];
                    path.version = version;
                    path.target.rank = rank;
                    path.target.panic = false;
                }
                None => return self.move_flow(now, slot, shell),
            }
        }
        self.touch(now, slot);
        let path = &self.paths[slot as usize];
        Verdict::Send {
            target: path.target,
            socket: path.key.socket,
            moved: false,
        }
    }

    /// A datagram from upstream: whose it is, as service and client.
    pub fn answer(&mut self, now: Millis, socket: u16, from: SocketAddr) -> Option<(u32, SocketAddr)> {
        let slot = *self.answers.get(&PathKey { socket, endpoint: from })?;
        let path = &self.paths[slot as usize];
        let client = path.client;
        if path.present {
            self.touch(now, slot);
        }
        Some((client.service, client.client))
    }

    /// Forgets what has been quiet for [`IDLE`] or has drained for [`DRAIN`]. Constant time when there is nothing.
    pub fn expire(&mut self, now: Millis) {
        let due = |ages: &Ages, paths: &[Path], limit: Millis| {
            ages.oldest().filter(|&slot| paths[slot as usize].seen + limit <= now)
        };
        while let Some(slot) = due(&self.draining, &self.paths, DRAIN).or_else(|| due(&self.present, &self.paths, IDLE))
        {
            self.forget(slot);
        }
    }

    /// Forgets the flows of a service port that is gone.
    pub fn service_gone(&mut self, service: u32) {
        let gone = |slot: &&u32| self.paths[**slot as usize].client.service == service;
        let slots: Vec<u32> = self.answers.values().filter(gone).copied().collect();
        for slot in slots {
            self.forget(slot);
        }
    }

    fn move_flow(&mut self, now: Millis, slot: u32, shell: &mut impl Shell) -> Verdict {
        let key = self.paths[slot as usize].client;
        let choice = shell.choose(key.service, &key.client);
        let present = self.paths[slot as usize].key.endpoint;
        if let Some(choice) = choice.filter(|c| c.endpoint == present) {
            // Nobody better is left: it stays.
            let version = shell.version(key.service);
            let path = &mut self.paths[slot as usize];
            path.version = version;
            path.target = choice;
            self.touch(now, slot);
            let path = &self.paths[slot as usize];
            return Verdict::Send {
                target: path.target,
                socket: path.key.socket,
                moved: false,
            };
        }
        self.leave(now, slot);
        match choice {
            Some(target) => self.place(now, key, target, true, shell),
            None => Verdict::Drop(DropReason::NoEndpoint),
        }
    }

    fn begin(&mut self, now: Millis, key: ClientKey, moved: bool, shell: &mut impl Shell) -> Verdict {
        match shell.choose(key.service, &key.client) {
            Some(target) => self.place(now, key, target, moved, shell),
            None => Verdict::Drop(DropReason::NoEndpoint),
        }
    }

    /// Gives a flow a path of its own to an endpoint.
    fn place(
        &mut self,
        now: Millis,
        client: ClientKey,
        target: Target,
        moved: bool,
        shell: &mut impl Shell,
    ) -> Verdict {
        let range = match target.endpoint {
            SocketAddr::V4(_) => self.sockets_v4.clone(),
            SocketAddr::V6(_) => self.sockets_v6.clone(),
        };
        let count = u64::from(range.end.saturating_sub(range.start));
        let start = ((u128::from(shell.random()) * u128::from(count)) >> 64) as u64;
        let endpoint = target.endpoint;
        let socket = (0..SOCKET_TRIES.min(count))
            .map(|n| range.start + ((start + n) % count) as u16)
            .find(|&socket| !self.answers.contains_key(&PathKey { socket, endpoint }));
        let Some(socket) = socket else {
            return Verdict::Drop(DropReason::PoolExhausted);
        };
        if self.answers.len() >= self.capacity {
            // The cheapest to lose first.
            if let Some(slot) = self.draining.oldest().or(self.present.oldest()) {
                self.forget(slot);
            }
        }
        let path = Path {
            client,
            key: PathKey { socket, endpoint },
            target,
            version: shell.version(client.service),
            present: true,
            seen: now,
        };
        let slot = match self.free.pop() {
            Some(slot) => {
                self.paths[slot as usize] = path;
                slot
            }
            None => {
                self.paths.push(path);
                self.paths.len() as u32 - 1
            }
        };
        self.present.touch(slot);
        self.flows.insert(client, slot);
        self.answers.insert(PathKey { socket, endpoint }, slot);
        Verdict::Send { target, socket, moved }
    }

    /// A flow leaves its path, which drains.
    fn leave(&mut self, now: Millis, slot: u32) {
        let path = &mut self.paths[slot as usize];
        path.present = false;
        path.seen = now;
        self.flows.remove(&path.client);
        self.present.remove(slot);
        self.draining.touch(slot);
    }

    fn touch(&mut self, now: Millis, slot: u32) {
        self.paths[slot as usize].seen = now;
        self.present.touch(slot);
    }

    fn forget(&mut self, slot: u32) {
        self.present.remove(slot);
        self.draining.remove(slot);
        let path = &self.paths[slot as usize];
        self.answers.remove(&path.key);
        if path.present {
            self.flows.remove(&path.client);
        }
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

    struct World {
        rng: SmallRng,
        endpoints: BTreeMap<SocketAddr, (u8, bool)>,
        version: u64,
    }

    impl World {
        fn new(seed: u64) -> Self {
            Self {
                rng: SmallRng::seed_from_u64(seed),
                endpoints: BTreeMap::new(),
                version: 0,
            }
        }

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
        fn random(&mut self) -> u64 {
            self.rng.random()
        }

        fn choose(&mut self, _: u32, _: &SocketAddr) -> Option<Target> {
            let healthy = self.endpoints.values().filter(|e| e.1).map(|e| e.0).min();
            let rank = healthy.or(self.endpoints.values().map(|e| e.0).min())?;
            let run: Vec<_> = self
                .endpoints
                .iter()
                .filter(|(_, (r, h))| *r == rank && (*h || healthy.is_none()))
                .map(|(e, _)| *e)
                .collect();
            Some(Target {
                endpoint: run[self.rng.random_range(0..run.len())],
                rank,
                fallback: false,
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
        SocketAddr::new([10, 0, 0, n].into(), 514)
    }

    fn client(n: u16) -> SocketAddr {
        SocketAddr::new([10, 1, 0, 1].into(), 30_000 + n)
    }

    fn send(core: &mut Core, world: &mut World, now: Millis, n: u16) -> Option<(SocketAddr, u16)> {
        match core.datagram(now, 0, client(n), world) {
            Verdict::Send { target, socket, .. } => Some((target.endpoint, socket)),
            Verdict::Drop(_) => None,
        }
    }

    #[test]
    fn a_flow_stays_while_its_endpoint_is_usable_and_answers_find_their_client() {
        let (mut core, mut world) = (Core::new(100, 0..8, 8..8), World::new(1));
        world.set(1, 1, true);
        let (to, socket) = send(&mut core, &mut world, 0, 1).unwrap();
        world.set(2, 0, true);
        assert_eq!(
            send(&mut core, &mut world, 1, 1),
            Some((to, socket)),
            "a better rank moves no flow"
        );
        assert_eq!(core.answer(2, socket, to), Some((0, client(1))));
        assert_eq!(core.answer(2, socket, endpoint(9)), None);
        assert_eq!(core.answer(2, socket + 1, to), None);
    }

    #[test]
    fn a_moved_flow_still_gets_the_answers_under_way() {
        let (mut core, mut world) = (Core::new(100, 0..8, 8..8), World::new(1));
        world.set(1, 0, true);
        let (old, socket) = send(&mut core, &mut world, 0, 1).unwrap();
        world.set(2, 1, true);
        world.remove(1);
        let (new, _) = send(&mut core, &mut world, 10, 1).unwrap();
        assert_eq!(new, endpoint(2));
        assert_eq!(core.answer(20, socket, old), Some((0, client(1))));
        core.expire(10 + DRAIN);
        assert_eq!(core.answer(10 + DRAIN, socket, old), None);
        assert_eq!(core.len(), 1);
    }

    #[test]
    fn flows_that_would_share_socket_and_endpoint_are_refused() {
        let (mut core, mut world) = (Core::new(100, 0..3, 3..3), World::new(1));
        world.set(1, 0, true);
        let sockets: std::collections::BTreeSet<u16> =
            (0..3).map(|n| send(&mut core, &mut world, 0, n).unwrap().1).collect();
        assert_eq!(sockets.len(), 3);
        assert_eq!(
            core.datagram(0, 0, client(9), &mut world),
            Verdict::Drop(DropReason::PoolExhausted)
        );
    }

    #[test]
    fn bounded_and_forgetful() {
        let (mut core, mut world) = (Core::new(4, 0..64, 64..64), World::new(1));
        world.set(1, 0, true);
        for n in 0..50 {
            send(&mut core, &mut world, u64::from(n), n);
            assert!(core.len() <= 4);
        }
        core.expire(49 + IDLE);
        assert!(core.is_empty());
        assert_eq!(core.free.len(), core.paths.len());
    }

    /// Against a shadow model: an answer reaches the client that last used socket and endpoint, and nobody else; a flow
    /// never goes to an endpoint that is gone, nor to a failing one while another is usable.
    #[test]
    fn random_worlds_keep_every_invariant() {
        for seed in 0..300 {
            let mut rng = SmallRng::seed_from_u64(seed);
            let (mut core, mut world) = (Core::new(16, 0..6, 6..6), World::new(seed));
            let mut now = 0;
            let mut sent: StdMap<(u16, SocketAddr), SocketAddr> = StdMap::new();
            for _ in 0..400 {
                match rng.random_range(0..12) {
                    0 => world.set(rng.random_range(0..5), rng.random_range(0..3), rng.random_bool(0.7)),
                    1 => world.remove(rng.random_range(0..5)),
                    2 => {
                        now += rng.random_range(0..40_000);
                        core.expire(now);
                    }
                    3..6 => {
                        let (socket, from) = (rng.random_range(0..6), endpoint(rng.random_range(0..5)));
                        if let Some((_, to)) = core.answer(now, socket, from) {
                            assert_eq!(sent.get(&(socket, from)), Some(&to), "seed {seed}");
                        }
                    }
                    _ => {
                        now += rng.random_range(0..500);
                        let n = rng.random_range(0..20);
                        if let Some((to, socket)) = send(&mut core, &mut world, now, n) {
                            let (_, healthy) = world.endpoints[&to];
                            assert!(healthy || world.endpoints.values().all(|e| !e.1), "seed {seed}");
                            sent.insert((socket, to), client(n));
                            assert_eq!(core.answer(now, socket, to), Some((0, client(n))), "seed {seed}");
                        }
                    }
                }
                assert!(core.len() <= 16);
                assert!(core.flows.len() <= core.answers.len());
            }
            core.expire(now + IDLE);
            assert!(core.is_empty() && core.flows.is_empty(), "seed {seed}");
        }
    }
}
