//! Seeded simulation: random clients, endpoints, faults and clock steps against a shadow model, invariants after each
//! step. A failure prints its seed; `NODEWARD_SEED=N` replays it, `NODEWARD_SEEDS=N` runs more.
#![allow(clippy::unwrap_used)]

use super::*;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use std::collections::BTreeMap;

const SOCKETS: u16 = 4;
const TIMEOUT: Millis = 8_000;

fn config() -> Config {
    Config {
        max_outstanding: 64,
        stored_bytes: 32 * 1024,
        timeout: TIMEOUT,
        retry_min: 50,
        retry_max: 500,
        sockets_v4: 0..SOCKETS,
        sockets_v6: SOCKETS..SOCKETS,
    }
}

pub fn message(id: u16, opcode: u8, name: &str, response: bool) -> Vec<u8> {
    let flags = u8::from(response) << 7 | opcode << 3 | 1;
    let mut m = id.to_be_bytes().to_vec();
    m.extend([flags, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
    m.push(name.len() as u8);
    m.extend(name.as_bytes());
    m.extend([0, 0, 1, 0, 1]);
    m
}

fn endpoint(n: u8) -> SocketAddr {
    SocketAddr::new([10, 0, 0, n].into(), 53)
}

fn client(n: u8) -> SocketAddr {
    SocketAddr::new([10, 1, 0, n].into(), 4000 + u16::from(n))
}

#[derive(Clone, Debug)]
struct Sent {
    socket: u16,
    endpoint: SocketAddr,
    message: Vec<u8>,
    tag: SendTag,
}

/// The world around the core: which endpoints are allowed and healthy, and everything the core did.
struct World {
    rng: SmallRng,
    /// Endpoint → (rank, healthy). The core may send only to these.
    allowed: BTreeMap<SocketAddr, (u8, bool)>,
    sent: Vec<Sent>,
    to_clients: Vec<(u32, SocketAddr, Vec<u8>)>,
    refused: Vec<SocketAddr>,
    counts: Vec<(u32, Count)>,
    stray: usize,
}

impl World {
    fn new(seed: u64) -> Self {
        Self {
            rng: SmallRng::seed_from_u64(seed),
            allowed: BTreeMap::new(),
            sent: Vec::new(),
            to_clients: Vec::new(),
            refused: Vec::new(),
            counts: Vec::new(),
            stray: 0,
        }
    }

    fn allow(&mut self, n: u8, rank: u8) {
        self.allowed.insert(endpoint(n), (rank, true));
    }

    fn count_of(&self, wanted: impl Fn(&Count) -> bool) -> usize {
        self.counts.iter().filter(|(_, c)| wanted(c)).count()
    }
}

impl Shell for World {
    fn random(&mut self) -> u64 {
        self.rng.random()
    }

    fn choose(
        &mut self,
        _: u32,
        _: IpAddr,
        _: bool,
        any_health: bool,
        exclude: &dyn Fn(&SocketAddr) -> bool,
    ) -> Option<Choice> {
        let best_listed = self.allowed.values().map(|(rank, _)| *rank).min()?;
        let acceptable: Vec<(SocketAddr, u8)> = self
            .allowed
            .iter()
            .filter(|(e, (_, healthy))| (*healthy || any_health) && !exclude(e))
            .map(|(e, (rank, _))| (*e, *rank))
            .collect();
        let best = acceptable.iter().map(|(_, rank)| *rank).min();
        let (pool, panic): (Vec<(SocketAddr, u8)>, bool) = match best {
            Some(best) => (acceptable.into_iter().filter(|(_, r)| *r == best).collect(), false),
            None => (self.allowed.iter().map(|(e, (r, _))| (*e, *r)).collect(), true),
        };
        let (endpoint, rank) = pool[self.rng.random_range(0..pool.len())];
        Some(Choice {
            endpoint,
            rank,
            fallback: rank != best_listed,
            panic,
        })
    }

    fn rank(&self, _: u32, endpoint: &SocketAddr) -> Option<u8> {
        self.allowed.get(endpoint).map(|(rank, _)| *rank)
    }

    fn answered(&mut self, endpoint: &SocketAddr) {
        if let Some((_, healthy)) = self.allowed.get_mut(endpoint) {
            *healthy = true;
        }
    }

    fn refused(&mut self, endpoint: &SocketAddr) {
        self.refused.push(*endpoint);
        if let Some((_, healthy)) = self.allowed.get_mut(endpoint) {
            *healthy = false;
        }
    }

    fn send_upstream(&mut self, socket: u16, endpoint: &SocketAddr, message: &[u8], tag: SendTag) {
        assert!(socket < SOCKETS);
        assert!(
            self.allowed.contains_key(endpoint),
            "sent to {endpoint}, which is not allowed"
        );
        self.sent.push(Sent {
            socket,
            endpoint: *endpoint,
            message: message.to_vec(),
            tag,
        });
    }

    fn send_client(&mut self, service: u32, client: &SocketAddr, message: &[u8]) {
        self.to_clients.push((service, *client, message.to_vec()));
    }

    fn count(&mut self, service: u32, what: Count) {
        self.counts.push((service, what));
    }

    fn stray_answer(&mut self) {
        self.stray += 1;
    }
}

fn answer_to(message: &[u8]) -> Vec<u8> {
    let mut answer = message.to_vec();
    answer[2] |= 0x80;
    answer
}

/// Shadow model: what a client may expect. Keyed by the unique name in each query.
struct Expectation {
    client: SocketAddr,
    id: u16,
    service: u32,
    opcode: u8,
    client_sends: usize,
    unsent: usize,
    delivered: usize,
}

fn name_of(message: &[u8]) -> String {
    String::from_utf8(message[13..13 + usize::from(message[12])].to_vec()).unwrap()
}

fn simulate(seed: u64) {
    let mut world = World::new(seed);
    let mut rng = SmallRng::seed_from_u64(seed ^ 0x5eed);
    let mut now: Millis = rng.random_range(0..1 << 40);
    let mut core = Core::new(config(), now);
    let mut expected: BTreeMap<String, Expectation> = BTreeMap::new();
    let mut names: Vec<String> = Vec::new();
    for n in 0..rng.random_range(1..5) {
        world.allow(n, rng.random_range(0..3));
    }
    for step in 0..400 {
        match rng.random_range(0..100) {
            0..35 => {
                // Few ids, clients and sockets, so that clashes are the rule.
                let (id, service) = (rng.random_range(0..4), rng.random_range(0..2));
                let opcode = if rng.random_bool(0.1) { 5 } else { 0 };
                let name = format!("q{step}");
                let from = client(rng.random_range(0..3));
                expected.insert(
                    name.clone(),
                    Expectation {
                        client: from,
                        id,
                        service,
                        opcode,
                        client_sends: 1,
                        unsent: 0,
                        delivered: 0,
                    },
                );
                core.query(now, service, from, &message(id, opcode, &name, false), &mut world);
                names.push(name);
            }
            35..42 if !names.is_empty() => {
                let name = &names[rng.random_range(0..names.len())];
                let e = expected.get_mut(name).unwrap();
                // A retransmission of an answered query is a new query to the core and may be answered again.
                e.client_sends += 1;
                core.query(
                    now,
                    e.service,
                    e.client,
                    &message(e.id, e.opcode, name, false),
                    &mut world,
                );
            }
            42..68 if !world.sent.is_empty() => {
                // An answer, perhaps late, perhaps for the second time.
                let n = rng.random_range(world.sent.len().saturating_sub(20)..world.sent.len());
                let s = world.sent[n].clone();
                core.answer(now, s.socket, s.endpoint, &answer_to(&s.message), &mut world);
            }
            68..74 if !world.sent.is_empty() => {
                // Forgeries: wrong source, wrong socket, wrong id, a query instead of an answer, rubbish.
                let s = world.sent[rng.random_range(0..world.sent.len())].clone();
                let before = world.to_clients.len();
                let mut bytes = answer_to(&s.message);
                let (mut socket, mut from) = (s.socket, s.endpoint);
                match rng.random_range(0..5) {
                    0 => from = SocketAddr::new([192, 0, 2, 1].into(), 53),
                    1 => socket = (socket + 1) % SOCKETS,
                    2 => bytes[0] ^= 0x80,
                    3 => bytes[2] &= 0x7f,
                    _ => bytes.truncate(rng.random_range(0..12)),
                }
                core.answer(now, socket, from, &bytes, &mut world);
                // Another socket may by chance have the same query outstanding to the same endpoint; nothing else passes.
                if socket == s.socket {
                    assert_eq!(world.to_clients.len(), before, "a forged answer passed");
                }
            }
            74..80 if !world.allowed.is_empty() => {
                let n = rng.random_range(0..world.allowed.len());
                let e = *world.allowed.keys().nth(n).unwrap();
                core.refused(now, &e, &mut world);
            }
            80..83 if !world.sent.is_empty() => {
                let s = &world.sent[rng.random_range(0..world.sent.len())];
                let (tag, pending) = (s.tag, rng.random_bool(0.5) && world.allowed.contains_key(&s.endpoint));
                let before = world.sent.len();
                core.send_failed(now, tag, pending, &mut world);
                if pending && world.sent.len() > before {
                    // The kernel said that it had not sent this one, so sending it again is no repetition.
                    let name = name_of(&world.sent[before].message);
                    expected.get_mut(&name).unwrap().unsent += 1;
                }
            }
            83..90 => {
                if rng.random_bool(0.6) || world.allowed.is_empty() {
                    world.allow(rng.random_range(0..6), rng.random_range(0..3));
                } else {
                    let n = rng.random_range(0..world.allowed.len());
                    let e = *world.allowed.keys().nth(n).unwrap();
                    world.allowed.remove(&e);
                }
            }
            90..91 => core.service_gone(rng.random_range(0..2), &mut world),
            _ => {
                now += if rng.random_bool(0.05) {
                    20_000
                } else {
                    rng.random_range(0..400)
                };
                core.timers(now, &mut world);
                assert!(core.next_deadline().is_none_or(|d| d > now));
            }
        }
        core.check();
        check_deliveries(&mut world, &mut expected);
    }
    // The end: everything comes to rest.
    now += 2 * TIMEOUT;
    core.timers(now, &mut world);
    core.check();
    check_deliveries(&mut world, &mut expected);
    assert_eq!(core.outstanding(), 0);
    assert_eq!(core.stored_bytes(), 0);
    check_accounts(&world, &expected);
}

/// Each delivery is for the right client, id and question, and no client gets more answers than it sent queries.
fn check_deliveries(world: &mut World, expected: &mut BTreeMap<String, Expectation>) {
    for (service, client, bytes) in world.to_clients.drain(..) {
        let name = name_of(&bytes);
        let e = expected.get_mut(&name).unwrap();
        let header = message::header(&bytes).unwrap();
        assert!(header.response);
        assert_eq!((service, client, header.id), (e.service, e.client, e.id), "{name}");
        e.delivered += 1;
        assert!(
            e.delivered <= e.client_sends,
            "{name}: {} answers for {} queries",
            e.delivered,
            e.client_sends
        );
    }
}

/// Offered = forwarded + dropped; every query that went in came out; what must not be repeated was not.
fn check_accounts(world: &World, expected: &BTreeMap<String, Expectation>) {
    let offered: usize = expected.values().map(|e| e.client_sends).sum();
    let forwarded = world.count_of(|c| matches!(c, Count::Forwarded { .. }));
    let dropped = world.count_of(|c| matches!(c, Count::Dropped(r) if !r.is_answer()));
    assert_eq!(offered, forwarded + dropped);
    let answered = world.count_of(|c| matches!(c, Count::Answered { .. } | Count::Synthesized));
    let delivered: usize = expected.values().map(|e| e.delivered).sum();
    assert_eq!(answered, delivered);
    for (name, e) in expected.iter().filter(|(_, e)| e.opcode != 0) {
        let sends = world.sent.iter().filter(|s| name_of(&s.message) == *name).count();
        assert!(sends <= e.client_sends + e.unsent, "{name}: sent {sends} times");
    }
}

#[test]
fn random_worlds_keep_every_invariant() {
    if let Ok(seed) = std::env::var("NODEWARD_SEED") {
        return simulate(seed.parse().unwrap());
    }
    let seeds: u64 = std::env::var("NODEWARD_SEEDS").map_or(300, |n| n.parse().unwrap());
    for seed in 0..seeds {
        let result = std::panic::catch_unwind(|| simulate(seed));
        assert!(result.is_ok(), "replay with NODEWARD_SEED={seed}");
    }
}

/// One client, one endpoint at rank 0 (number 1), one at rank 1 (number 2).
fn two_ranks() -> (Core, World) {
    let mut world = World::new(1);
    world.allow(1, 0);
    world.allow(2, 1);
    (Core::new(config(), 0), world)
}

#[test]
fn a_and_aaaa_on_one_port_are_answered_in_any_order() {
    let (mut core, mut world) = two_ranks();
    let (a, aaaa) = (message(1, 0, "name", false), {
        let mut m = message(2, 0, "name", false);
        let at = m.len() - 3;
        m[at] = 28;
        m
    });
    core.query(0, 0, client(1), &a, &mut world);
    core.query(0, 0, client(1), &aaaa, &mut world);
    for s in world.sent.clone().into_iter().rev() {
        core.answer(1, s.socket, s.endpoint, &answer_to(&s.message), &mut world);
    }
    let ids: Vec<u16> = world
        .to_clients
        .iter()
        .map(|(_, _, m)| message::header(m).unwrap().id)
        .collect();
    assert_eq!(ids, [2, 1]);
}

#[test]
fn one_refusal_moves_everything_outstanding_at_once() {
    let (mut core, mut world) = two_ranks();
    for id in 0..20 {
        core.query(0, 0, client(id as u8), &message(id, 0, "name", false), &mut world);
    }
    assert!(world.sent.iter().all(|s| s.endpoint == endpoint(1)));
    world.sent.clear();
    core.refused(5, &endpoint(1), &mut world);
    assert_eq!(world.sent.len(), 20);
    assert!(world.sent.iter().all(|s| s.endpoint == endpoint(2)));
    assert_eq!(world.count_of(|c| *c == Count::Moved), 20);
    assert_eq!(world.refused, [endpoint(1)]);
}

#[test]
fn the_last_refusal_is_answered_with_servfail_at_once() {
    let (mut core, mut world) = two_ranks();
    core.query(0, 0, client(1), &message(9, 0, "name", false), &mut world);
    core.refused(1, &endpoint(1), &mut world);
    assert!(world.to_clients.is_empty());
    core.refused(2, &endpoint(2), &mut world);
    let (_, to, answer) = &world.to_clients[0];
    assert_eq!((*to, message::header(answer).unwrap().rcode), (client(1), 2));
    assert_eq!(core.outstanding(), 0);
}

#[test]
fn silence_is_asked_once_more_elsewhere_and_the_first_answer_wins() {
    let (mut core, mut world) = two_ranks();
    core.query(0, 0, client(1), &message(9, 0, "name", false), &mut world);
    core.timers(496, &mut world);
    assert_eq!(
        world.sent.len(),
        1,
        "not before the longest delay while nothing is known about latency"
    );
    core.timers(504, &mut world);
    assert_eq!(world.sent.len(), 2);
    assert_eq!(world.sent[1].endpoint, endpoint(2));
    assert_ne!(
        (world.sent[0].socket, world.sent[0].endpoint),
        (world.sent[1].socket, world.sent[1].endpoint)
    );
    let (first, second) = (world.sent[0].clone(), world.sent[1].clone());
    core.answer(
        600,
        second.socket,
        second.endpoint,
        &answer_to(&second.message),
        &mut world,
    );
    core.answer(
        601,
        first.socket,
        first.endpoint,
        &answer_to(&first.message),
        &mut world,
    );
    assert_eq!(world.to_clients.len(), 1);
    assert_eq!(world.stray, 1, "the late answer is counted");
}

/// Teaches a core that endpoint 1 answers within a few milliseconds.
fn warm(core: &mut Core, world: &mut World) {
    for id in 0..200u16 {
        core.query(u64::from(id), 0, client(9), &message(id, 0, "warm", false), world);
        let s = world.sent.last().unwrap().clone();
        core.answer(u64::from(id) + 2, s.socket, s.endpoint, &answer_to(&s.message), world);
    }
    world.sent.clear();
    world.to_clients.clear();
    world.counts.clear();
}

/// D8: an endpoint that answers nothing at all while two clients wait is failing, and nobody waits for it any longer.
#[test]
fn a_silent_endpoint_is_found_out_by_two_clients() {
    let (_, mut world) = two_ranks();
    let mut core = Core::new(
        Config {
            max_outstanding: 1024,
            sockets_v4: 0..SOCKETS,
            ..config()
        },
        0,
    );
    warm(&mut core, &mut world);
    for n in 0..100u16 {
        let now = 1_000 + u64::from(n) * 2;
        core.timers(now, &mut world);
        core.query(now, 0, client((n % 2) as u8), &message(n, 0, "name", false), &mut world);
    }
    for now in 1_200..1_260 {
        core.timers(now, &mut world);
    }
    assert!(world.refused.contains(&endpoint(1)), "noticed within 260 ms");
    let asked: std::collections::BTreeSet<String> = world
        .sent
        .iter()
        .filter(|s| s.endpoint == endpoint(2))
        .map(|s| format!("{:?}", message::header(&s.message).unwrap().id))
        .collect();
    assert_eq!(asked.len(), 100, "everything that waited has been asked elsewhere");
    core.query(1_300, 0, client(1), &message(999, 0, "next", false), &mut world);
    assert_eq!(
        world.sent.last().unwrap().endpoint,
        endpoint(2),
        "and what is new goes there at once"
    );
}

/// D8: slow names never eject a resolver that answers others.
#[test]
fn a_resolver_that_is_slow_with_some_names_is_not_silent() {
    let (mut core, mut world) = two_ranks();
    warm(&mut core, &mut world);
    for n in 0..600u16 {
        let now = 1_000 + u64::from(n) * 5;
        core.timers(now, &mut world);
        let slow = n % 10 == 0;
        let name = if slow { "slow" } else { "quick" };
        core.query(now, 0, client((n % 7) as u8), &message(n, 0, name, false), &mut world);
        let s = world.sent.last().unwrap().clone();
        if !slow {
            core.answer(now + 2, s.socket, s.endpoint, &answer_to(&s.message), &mut world);
        }
    }
    assert!(world.refused.is_empty(), "{:?}", world.refused);
}

/// One client alone: its endpoint is silent only when somebody else answers what it does not.
#[test]
fn a_single_client_needs_somebody_else_to_answer() {
    for elsewhere_answers in [true, false] {
        let (mut core, mut world) = two_ranks();
        warm(&mut core, &mut world);
        for n in 0..20u16 {
            let now = 1_000 + u64::from(n) * 100;
            core.timers(now, &mut world);
            core.query(now, 0, client(1), &message(n, 0, "name", false), &mut world);
            core.timers(now + 60, &mut world);
            let s = world.sent.last().unwrap().clone();
            if elsewhere_answers && s.endpoint == endpoint(2) {
                core.answer(now + 62, s.socket, s.endpoint, &answer_to(&s.message), &mut world);
            }
        }
        assert_eq!(world.refused.contains(&endpoint(1)), elsewhere_answers);
    }
}

/// Copies of a query that come at once are copies, not a sign that the endpoint is gone.
#[test]
fn a_copy_that_comes_at_once_stays_with_its_endpoint() {
    let (mut core, mut world) = two_ranks();
    for _ in 0..50 {
        core.query(0, 0, client(1), &message(9, 0, "name", false), &mut world);
    }
    assert!(world.sent.iter().all(|s| s.endpoint == endpoint(1)));
}

#[test]
fn without_endpoints_the_client_hears_servfail_at_once() {
    let mut world = World::new(1);
    let mut core = Core::new(config(), 0);
    core.query(0, 0, client(1), &message(9, 0, "name", false), &mut world);
    assert_eq!(message::header(&world.to_clients[0].2).unwrap().rcode, 2);
    assert_eq!(world.count_of(|c| *c == Count::Dropped(DropReason::NoEndpoint)), 1);
    assert_eq!(core.outstanding(), 0);
}

#[test]
fn the_retry_comes_sooner_once_latency_is_known() {
    let (mut core, mut world) = two_ranks();
    for id in 0..200u16 {
        core.query(u64::from(id), 0, client(1), &message(id, 0, "name", false), &mut world);
        let s = world.sent.last().unwrap().clone();
        core.answer(
            u64::from(id) + 2,
            s.socket,
            s.endpoint,
            &answer_to(&s.message),
            &mut world,
        );
    }
    world.sent.clear();
    core.query(1000, 0, client(1), &message(999, 0, "late", false), &mut world);
    core.timers(1056, &mut world);
    assert_eq!(
        world.sent.len(),
        2,
        "50 ms, the shortest delay, although the 99th percentile is a few milliseconds"
    );
}

#[test]
fn updates_are_never_asked_elsewhere() {
    let (mut core, mut world) = two_ranks();
    core.query(0, 0, client(1), &message(9, 5, "zone", false), &mut world);
    core.timers(5_000, &mut world);
    core.query(5_000, 0, client(1), &message(9, 5, "zone", false), &mut world);
    assert!(
        world.sent.iter().all(|s| s.endpoint == endpoint(1)),
        "the client's own repetition goes where the first went"
    );
    assert_eq!(world.sent.len(), 2);
    core.refused(5_001, &endpoint(1), &mut world);
    assert_eq!(world.sent.len(), 2);
    assert_eq!(message::header(&world.to_clients[0].2).unwrap().rcode, 2);
}

#[test]
fn a_clients_retransmission_goes_to_a_different_endpoint() {
    let (mut core, mut world) = two_ranks();
    let query = message(9, 0, "name", false);
    core.query(0, 0, client(1), &query, &mut world);
    core.query(100, 0, client(1), &query, &mut world);
    assert_eq!(
        world.sent.iter().map(|s| s.endpoint).collect::<Vec<_>>(),
        [endpoint(1), endpoint(2)]
    );
    assert_eq!(core.outstanding(), 1);
}

#[test]
fn queries_that_differ_only_in_their_client_never_share_a_socket() {
    let (mut core, mut world) = two_ranks();
    for n in 0..4 {
        core.query(0, 0, client(n), &message(9, 0, "same", false), &mut world);
    }
    let mut sockets: Vec<u16> = world.sent.iter().map(|s| s.socket).collect();
    sockets.sort_unstable();
    assert_eq!(sockets, [0, 1, 2, 3]);
    core.query(0, 0, client(9), &message(9, 0, "same", false), &mut world);
    assert_eq!(world.count_of(|c| *c == Count::Dropped(DropReason::PoolExhausted)), 1);
    for s in world.sent.clone() {
        core.answer(1, s.socket, s.endpoint, &answer_to(&s.message), &mut world);
    }
    let mut clients: Vec<SocketAddr> = world.to_clients.iter().map(|(_, c, _)| *c).collect();
    clients.sort_unstable();
    assert_eq!(clients, [client(0), client(1), client(2), client(3)]);
}

#[test]
fn an_answer_without_question_matches_by_id_where_that_is_clear() {
    let (mut core, mut world) = two_ranks();
    core.query(0, 0, client(1), &message(9, 0, "name", false), &mut world);
    let s = world.sent[0].clone();
    let mut formerr = answer_to(&s.message)[..12].to_vec();
    formerr[3] = 1;
    formerr[5] = 0;
    core.answer(1, s.socket, s.endpoint, &formerr, &mut world);
    assert_eq!(world.to_clients, [(0, client(1), formerr)]);
}

#[test]
fn the_oldest_query_makes_room() {
    let mut world = World::new(1);
    world.allow(1, 0);
    let mut core = Core::new(
        Config {
            max_outstanding: 3,
            ..config()
        },
        0,
    );
    for id in 0..5u16 {
        core.query(u64::from(id), 0, client(1), &message(id, 0, "name", false), &mut world);
    }
    assert_eq!(core.outstanding(), 3);
    assert_eq!(world.count_of(|c| *c == Count::Unanswered), 2);
    let s = world.sent[0].clone();
    core.answer(9, s.socket, s.endpoint, &answer_to(&s.message), &mut world);
    assert_eq!(world.stray, 1);
}

#[test]
fn without_room_to_store_a_query_is_forwarded_but_not_repeated() {
    let mut world = World::new(1);
    world.allow(1, 0);
    world.allow(2, 1);
    let mut core = Core::new(
        Config {
            stored_bytes: 0,
            ..config()
        },
        0,
    );
    core.query(0, 0, client(1), &message(1, 0, "name", false), &mut world);
    core.timers(1_000, &mut world);
    assert_eq!(world.sent.len(), 1);
    core.timers(TIMEOUT + 10, &mut world);
    assert_eq!(core.outstanding(), 0);
}

#[test]
fn rubbish_is_dropped_and_counted() {
    let (mut core, mut world) = two_ranks();
    core.query(0, 0, client(1), b"", &mut world);
    core.query(0, 0, client(1), b"short", &mut world);
    core.query(0, 0, client(1), &message(1, 0, "name", true), &mut world);
    assert_eq!(world.count_of(|c| *c == Count::Dropped(DropReason::Malformed)), 3);
    assert!(world.sent.is_empty());
}
