//! The outstanding queries and their three indices: by client, by what an answer carries, and by endpoint.
//!
//! Bookkeeping only: what to send where is decided in `core`. Slots, indices and lists are allocated once.

use crate::flow::Millis;
use crate::flow::ages::Ages;
use crate::flow::chunks::Stored;
use foldhash::fast::RandomState;
use hashbrown::{HashMap, HashTable};
use std::hash::BuildHasher;
use std::net::{IpAddr, SocketAddr};

const NONE: u32 = u32::MAX;
/// Endpoints one query remembers having tried; a query that needs more is given up.
pub const MAX_TRIED: usize = 8;
const GENERATION_MASK: u32 = 0xffff;

/// Which attempt of which query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttemptRef {
    pub slot: u32,
    pub attempt: u8,
}

impl AttemptRef {
    fn pack(self) -> u32 {
        self.slot << 1 | u32::from(self.attempt)
    }

    fn unpack(packed: u32) -> Self {
        Self {
            slot: packed >> 1,
            attempt: (packed & 1) as u8,
        }
    }
}

/// One sending of a query that may still be answered.
#[derive(Clone, Copy, Debug)]
pub struct Attempt {
    pub socket: u16,
    pub endpoint: SocketAddr,
    pub sent: Millis,
    endpoint_index: u32,
    prev: u32,
    next: u32,
}

/// One outstanding query.
#[derive(Clone, Debug)]
pub struct Query {
    pub service: u32,
    pub client: SocketAddr,
    pub id: u16,
    pub question: u64,
    pub stored: Option<Stored>,
    /// May be sent to a second endpoint although the first may have got it (only opcode QUERY).
    pub repeatable: bool,
    pub expires: Millis,
    /// When to ask elsewhere, then when to judge the endpoint; `None` once that is done.
    pub retry_at: Option<Millis>,
    /// Whether the time to ask elsewhere has come.
    pub retried: bool,
    pub attempts: [Option<Attempt>; 2],
    tried: [u32; MAX_TRIED],
    tried_len: u8,
    generation: u32,
}

struct EndpointList {
    /// Whose list it is, for the check of all indices.
    #[cfg(any(test, debug_assertions))]
    endpoint: SocketAddr,
    head: u32,
    /// When it last answered anything, or when something was first sent to it.
    heard: Millis,
}

/// What speaks for an endpoint being silent rather than slow with some names. Gone with its next answer.
#[derive(Clone, Copy, Debug)]
struct Suspicion {
    /// When the first query that waited too long was sent.
    since: Millis,
    /// Whose it was.
    client: IpAddr,
    /// How many queries waited too long since then.
    waited: u32,
    /// Whether somebody else answered one of them.
    answered_elsewhere: bool,
}

/// Suspicious endpoints remembered; when there are more, all are forgotten and those that are silent come up again.
const MAX_SUSPECTS: usize = 1024;
/// Queries of one single client that must have waited too long before its endpoint counts as silent; with a second client,
/// one of each is enough.
const WAITED_ALONE: u32 = 3;

/// What an answer matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Match {
    /// The attempt it answers.
    Attempt(AttemptRef),
    /// A query of that id and question was sent from that socket, but to somebody else.
    WrongSource(AttemptRef),
    /// Nothing.
    Nothing,
}

/// The outstanding queries.
pub struct Queries {
    slots: Vec<Option<Query>>,
    generations: Vec<u32>,
    free: Vec<u32>,
    capacity: usize,
    by_client: HashTable<u32>,
    by_answer: HashTable<u32>,
    by_endpoint: HashMap<SocketAddr, u32, RandomState>,
    suspects: HashMap<SocketAddr, Suspicion, RandomState>,
    endpoints: Vec<EndpointList>,
    free_endpoints: Vec<u32>,
    ages: Ages,
    keys: RandomState,
    len: usize,
}

impl Queries {
    /// Room for `capacity` queries.
    pub fn new(capacity: usize) -> Self {
        Self {
            slots: Vec::with_capacity(capacity),
            generations: Vec::with_capacity(capacity),
            free: Vec::with_capacity(capacity),
            capacity,
            by_client: HashTable::with_capacity(capacity),
            by_answer: HashTable::with_capacity(2 * capacity),
            by_endpoint: HashMap::with_capacity_and_hasher(1024, RandomState::default()),
            suspects: HashMap::default(),
            endpoints: Vec::new(),
            free_endpoints: Vec::new(),
            ages: Ages::new(capacity),
            keys: RandomState::default(),
            len: 0,
        }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_full(&self) -> bool {
        self.len >= self.capacity
    }

    /// The keys of all hashes here, for hashing questions.
    pub fn keys(&self) -> &RandomState {
        &self.keys
    }

    pub fn get(&self, slot: u32) -> Option<&Query> {
        self.slots.get(slot as usize)?.as_ref()
    }

    pub fn get_mut(&mut self, slot: u32) -> Option<&mut Query> {
        self.slots.get_mut(slot as usize)?.as_mut()
    }

    /// The query that has waited longest.
    pub fn oldest(&self) -> Option<u32> {
        self.ages.oldest()
    }

    /// Slots in use, in no particular order; for rare events only.
    pub fn slots(&self) -> impl Iterator<Item = u32> + '_ {
        (0..self.slots.len() as u32).filter(|&slot| self.get(slot).is_some())
    }

    fn client_hash(&self, service: u32, client: &SocketAddr, id: u16, question: u64) -> u64 {
        self.keys.hash_one((service, client, id, question))
    }

    fn answer_hash(&self, socket: u16, id: u16) -> u64 {
        self.keys.hash_one((socket, id))
    }

    pub fn find_client(&self, service: u32, client: &SocketAddr, id: u16, question: u64) -> Option<u32> {
        let hash = self.client_hash(service, client, id, question);
        self.by_client
            .find(hash, |&slot| {
                self.get(slot).is_some_and(|q| {
                    q.id == id && q.question == question && q.client == *client && q.service == service
                })
            })
            .copied()
    }

    /// Adds a query without attempts. `None` when full.
    #[allow(clippy::too_many_arguments)]
    pub fn insert(
        &mut self,
        service: u32,
        client: SocketAddr,
        id: u16,
        question: u64,
        stored: Option<Stored>,
        repeatable: bool,
        expires: Millis,
    ) -> Option<u32> {
        if self.is_full() {
            return None;
        }
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.generations.push(0);
            self.slots.len() as u32 - 1
        });
        let query = Query {
            service,
            client,
            id,
            question,
            stored,
            repeatable,
            expires,
            retry_at: None,
            retried: false,
            attempts: [None, None],
            tried: [0; MAX_TRIED],
            tried_len: 0,
            generation: self.generations[slot as usize],
        };
        self.slots[slot as usize] = Some(query);
        self.ages.touch(slot);
        self.len += 1;
        let hash = self.client_hash(service, &client, id, question);
        let (slots, keys) = (&self.slots, &self.keys);
        self.by_client.insert_unique(hash, slot, |&slot| {
            slots[slot as usize]
                .as_ref()
                .map_or(0, |q| keys.hash_one((q.service, &q.client, q.id, q.question)))
        });
        Some(slot)
    }

    /// Removes a query with its attempts and returns it.
    pub fn remove(&mut self, slot: u32) -> Option<Query> {
        for attempt in 0..2 {
            self.end_attempt(AttemptRef { slot, attempt });
        }
        let query = self.slots.get_mut(slot as usize)?.take()?;
        let hash = self.client_hash(query.service, &query.client, query.id, query.question);
        if let Ok(entry) = self.by_client.find_entry(hash, |&s| s == slot) {
            entry.remove();
        }
        self.ages.remove(slot);
        self.generations[slot as usize] = (query.generation + 1) & GENERATION_MASK;
        self.free.push(slot);
        self.len -= 1;
        Some(query)
    }

    /// A number of 41 bits for one attempt that changes when the slot is used again.
    pub fn tag(&self, at: AttemptRef) -> u64 {
        let generation = self.generations.get(at.slot as usize).copied().unwrap_or(0);
        u64::from(generation) << 25 | u64::from(at.pack() & 0x01ff_ffff)
    }

    /// The attempt a tag stands for, if it still lives.
    pub fn by_tag(&self, tag: u64) -> Option<AttemptRef> {
        let at = AttemptRef::unpack((tag & 0x01ff_ffff) as u32);
        let query = self.get(at.slot)?;
        (u64::from(query.generation) == tag >> 25 && query.attempts[usize::from(at.attempt)].is_some()).then_some(at)
    }

    /// Whether an answer on `socket` could not be told from another query's.
    pub fn clashes(&self, socket: u16, id: u16, question: u64) -> bool {
        self.answer_candidates(socket, id)
            .any(|at| self.get(at.slot).is_some_and(|q| q.question == question))
    }

    fn answer_candidates(&self, socket: u16, id: u16) -> impl Iterator<Item = AttemptRef> + '_ {
        let hash = self.answer_hash(socket, id);
        self.by_answer
            .iter_hash(hash)
            .map(|&packed| AttemptRef::unpack(packed))
            .filter(move |at| {
                self.get(at.slot).is_some_and(|q| {
                    q.id == id && q.attempts[usize::from(at.attempt)].is_some_and(|a| a.socket == socket)
                })
            })
    }

    /// What an answer belongs to. An answer without question matches by id alone, where that is unambiguous.
    pub fn find_answer(&self, socket: u16, from: &SocketAddr, id: u16, question: u64) -> Match {
        let found = if question == 0 {
            let mut candidates = self.answer_candidates(socket, id);
            let first = candidates.next();
            if candidates.next().is_some() { None } else { first }
        } else {
            self.answer_candidates(socket, id)
                .find(|at| self.get(at.slot).is_some_and(|q| q.question == question))
        };
        match found {
            None => Match::Nothing,
            Some(at) => match self.attempt(at) {
                Some(attempt) if attempt.endpoint == *from => Match::Attempt(at),
                _ => Match::WrongSource(at),
            },
        }
    }

    pub fn attempt(&self, at: AttemptRef) -> Option<&Attempt> {
        self.get(at.slot)?.attempts[usize::from(at.attempt)].as_ref()
    }

    /// Records that a query was sent to an endpoint.
    pub fn begin_attempt(&mut self, at: AttemptRef, socket: u16, endpoint: SocketAddr, now: Millis) {
        self.end_attempt(at);
        let index = self.endpoint_index(endpoint, now);
        let list = &mut self.endpoints[index as usize];
        let next = list.head;
        list.head = at.pack();
        if next != NONE
            && let Some(a) = self.attempt_mut(AttemptRef::unpack(next))
        {
            a.prev = at.pack();
        }
        let mark = self.mark(&endpoint);
        let Some(query) = self.get_mut(at.slot) else {
            return;
        };
        query.attempts[usize::from(at.attempt)] = Some(Attempt {
            socket,
            endpoint,
            sent: now,
            endpoint_index: index,
            prev: NONE,
            next,
        });
        let tried = usize::from(query.tried_len);
        if !query.tried[..tried].contains(&mark) && tried < MAX_TRIED {
            query.tried[tried] = mark;
            query.tried_len += 1;
        }
        let id = query.id;
        let hash = self.answer_hash(socket, id);
        let (slots, keys) = (&self.slots, &self.keys);
        self.by_answer.insert_unique(hash, at.pack(), |&packed| {
            let at = AttemptRef::unpack(packed);
            slots[at.slot as usize].as_ref().map_or(0, |q| {
                q.attempts[usize::from(at.attempt)].map_or(0, |a| keys.hash_one((a.socket, q.id)))
            })
        });
    }

    /// Forgets one attempt: its answer, if it comes, is nobody's.
    pub fn end_attempt(&mut self, at: AttemptRef) {
        let Some(query) = self.get_mut(at.slot) else {
            return;
        };
        let id = query.id;
        let Some(attempt) = query.attempts[usize::from(at.attempt)].take() else {
            return;
        };
        let hash = self.answer_hash(attempt.socket, id);
        if let Ok(entry) = self.by_answer.find_entry(hash, |&packed| packed == at.pack()) {
            entry.remove();
        }
        match attempt.prev {
            NONE => self.endpoints[attempt.endpoint_index as usize].head = attempt.next,
            prev => {
                if let Some(a) = self.attempt_mut(AttemptRef::unpack(prev)) {
                    a.next = attempt.next;
                }
            }
        }
        if attempt.next != NONE
            && let Some(a) = self.attempt_mut(AttemptRef::unpack(attempt.next))
        {
            a.prev = attempt.prev;
        }
        if self.endpoints[attempt.endpoint_index as usize].head == NONE {
            self.by_endpoint.remove(&attempt.endpoint);
            self.free_endpoints.push(attempt.endpoint_index);
        }
    }

    /// One attempt outstanding at an endpoint.
    pub fn first_at(&self, endpoint: &SocketAddr) -> Option<AttemptRef> {
        let &index = self.by_endpoint.get(endpoint)?;
        let head = self.endpoints[index as usize].head;
        (head != NONE).then(|| AttemptRef::unpack(head))
    }

    /// Notes that an endpoint answered.
    pub fn heard(&mut self, endpoint: &SocketAddr, now: Millis) {
        if let Some(&index) = self.by_endpoint.get(endpoint) {
            self.endpoints[index as usize].heard = now;
        }
        if !self.suspects.is_empty() {
            self.suspects.remove(endpoint);
        }
    }

    /// Notes that an attempt has waited too long (`elsewhere`: somebody else has answered its query), and says whether its
    /// endpoint must now count as silent: it has answered nothing at all for `bound`, while queries of two clients waited,
    /// or several of one of which somebody else answered one. A resolver that is slow with some names answers others in
    /// between.
    pub fn waited_too_long(
        &mut self,
        at: AttemptRef,
        now: Millis,
        bound: Millis,
        elsewhere: bool,
    ) -> Option<SocketAddr> {
        let client = self.get(at.slot)?.client.ip();
        let attempt = *self.attempt(at)?;
        if self.endpoints[attempt.endpoint_index as usize].heard > attempt.sent {
            return None;
        }
        if self.suspects.len() >= MAX_SUSPECTS && !self.suspects.contains_key(&attempt.endpoint) {
            self.suspects.clear();
        }
        let suspicion = self.suspects.entry(attempt.endpoint).or_insert(Suspicion {
            since: attempt.sent,
            client,
            waited: 0,
            answered_elsewhere: false,
        });
        suspicion.waited += 1;
        suspicion.answered_elsewhere |= elsewhere;
        let alone = suspicion.waited >= WAITED_ALONE && suspicion.answered_elsewhere;
        let silent = suspicion.since + bound <= now && (suspicion.client != client || alone);
        if silent {
            self.suspects.remove(&attempt.endpoint);
        }
        silent.then_some(attempt.endpoint)
    }

    /// The queries that wait at an endpoint and nowhere else.
    pub fn waiting_only_at(&self, endpoint: &SocketAddr) -> Vec<u32> {
        let mut slots = Vec::new();
        let mut next = self.first_at(endpoint);
        while let Some(at) = next {
            if self
                .get(at.slot)
                .is_some_and(|q| q.attempts.iter().flatten().count() == 1)
            {
                slots.push(at.slot);
            }
            next = self
                .attempt(at)
                .and_then(|a| (a.next != NONE).then(|| AttemptRef::unpack(a.next)));
        }
        slots
    }

    /// Whether a query has tried an endpoint, or has tried so many that it must count as having tried all.
    pub fn has_tried(&self, slot: u32, endpoint: &SocketAddr) -> bool {
        let mark = self.mark(endpoint);
        self.get(slot).is_none_or(|q| {
            let tried = usize::from(q.tried_len);
            tried == MAX_TRIED || q.tried[..tried].contains(&mark)
        })
    }

    fn mark(&self, endpoint: &SocketAddr) -> u32 {
        self.keys.hash_one(endpoint) as u32
    }

    fn attempt_mut(&mut self, at: AttemptRef) -> Option<&mut Attempt> {
        self.get_mut(at.slot)?.attempts[usize::from(at.attempt)].as_mut()
    }

    fn endpoint_index(&mut self, endpoint: SocketAddr, now: Millis) -> u32 {
        if let Some(&index) = self.by_endpoint.get(&endpoint) {
            return index;
        }
        let list = EndpointList {
            #[cfg(any(test, debug_assertions))]
            endpoint,
            head: NONE,
            heard: now,
        };
        let index = match self.free_endpoints.pop() {
            Some(index) => {
                self.endpoints[index as usize] = list;
                index
            }
            None => {
                self.endpoints.push(list);
                self.endpoints.len() as u32 - 1
            }
        };
        self.by_endpoint.insert(endpoint, index);
        index
    }

    /// Checks that all indices agree; for tests and debug builds.
    #[cfg(any(test, debug_assertions))]
    pub fn check(&self) {
        let live: Vec<u32> = self.slots().collect();
        assert_eq!(live.len(), self.len);
        assert_eq!(self.by_client.len(), self.len);
        let attempts: usize = live
            .iter()
            .filter_map(|&s| self.get(s))
            .map(|q| q.attempts.iter().flatten().count())
            .sum();
        assert_eq!(self.by_answer.len(), attempts);
        let mut listed = 0;
        for (endpoint, &index) in &self.by_endpoint {
            let list = &self.endpoints[index as usize];
            assert_eq!(list.endpoint, *endpoint);
            let (mut at, mut prev) = (list.head, NONE);
            assert_ne!(at, NONE, "an empty list must be gone");
            while at != NONE {
                let attempt = self.attempt(AttemptRef::unpack(at));
                let Some(attempt) = attempt else {
                    panic!("list of {endpoint} holds a dead attempt");
                };
                assert_eq!((attempt.endpoint, attempt.prev), (*endpoint, prev));
                listed += 1;
                (prev, at) = (at, attempt.next);
            }
        }
        assert_eq!(listed, attempts);
        let aged = self.ages.iter().count();
        assert_eq!(aged, self.len);
    }
}
