//! The decisions: where a query goes, what an answer, a refusal or silence means.

use super::budget::Budget;
use super::latency::Latency;
use super::message;
use super::queries::{AttemptRef, Match, Queries};
use super::{Choice, Config, Count, SendTag, Shell};
use crate::flow::Millis;
use crate::flow::chunks::Chunks;
use crate::flow::wheel::Wheel;
use crate::telemetry::DropReason;
use std::net::SocketAddr;

/// Tries to find an upstream socket on which a query's answer cannot be mistaken.
const SOCKET_TRIES: u64 = 8;
/// An endpoint that has answered nothing at all for so long may count as silent. Longer than the wait before a retry: names
/// that take long are common, a resolver that answers nobody is not.
const SILENCE: Millis = 250;

#[derive(Default)]
struct ServiceState {
    budget: Budget,
    latency: Latency,
}

/// DNS state of one worker.
pub struct Core {
    config: Config,
    queries: Queries,
    stored: Chunks,
    timers: Wheel,
    services: Vec<ServiceState>,
    /// Where stored messages are put together before they are sent.
    scratch: Box<[u8]>,
}

impl Core {
    /// A core with everything allocated; `now` starts its clock.
    pub fn new(config: Config, now: Millis) -> Self {
        Self {
            queries: Queries::new(config.max_outstanding),
            stored: Chunks::new(config.stored_bytes),
            timers: Wheel::new(config.max_outstanding, now),
            services: Vec::new(),
            scratch: vec![0; u16::MAX as usize].into(),
            config,
        }
    }

    /// Queries waiting for an answer.
    pub fn outstanding(&self) -> usize {
        self.queries.len()
    }

    /// Bytes kept for being asked again.
    pub fn stored_bytes(&self) -> usize {
        self.stored.used_bytes()
    }

    /// When [`Core::timers`] should be called next.
    pub fn next_deadline(&self) -> Option<Millis> {
        self.timers.next_deadline()
    }

    /// The upstream socket on which a client's one-way datagrams to an endpoint leave: always the same one.
    pub fn socket_for(&self, endpoint: &SocketAddr, client: std::net::IpAddr) -> Option<u16> {
        let range = self.sockets(endpoint);
        let count = range.end.saturating_sub(range.start);
        let hash = std::hash::BuildHasher::hash_one(self.queries.keys(), client);
        (count > 0).then(|| range.start + (hash % u64::from(count.max(1))) as u16)
    }

    fn sockets(&self, endpoint: &SocketAddr) -> &std::ops::Range<u16> {
        match endpoint {
            SocketAddr::V4(_) => &self.config.sockets_v4,
            SocketAddr::V6(_) => &self.config.sockets_v6,
        }
    }

    fn service(&mut self, service: u32) -> &mut ServiceState {
        let index = service as usize;
        if index >= self.services.len() {
            self.services.resize_with(index + 1, ServiceState::default);
        }
        &mut self.services[index]
    }

    /// A datagram from a client.
    pub fn query(&mut self, now: Millis, service: u32, client: SocketAddr, datagram: &[u8], shell: &mut impl Shell) {
        let header = match message::header(datagram) {
            Some(header) if !header.response => header,
            _ => return shell.count(service, Count::Dropped(DropReason::Malformed)),
        };
        let question = message::question_hash(datagram, self.queries.keys());
        self.service(service).budget.query(now);
        if let Some(slot) = self.queries.find_client(service, &client, header.id, question) {
            return self.retransmitted(now, slot, datagram, shell);
        }
        if self.queries.is_full()
            && let Some(oldest) = self.queries.oldest()
        {
            // The oldest one is the least likely to have somebody still waiting.
            self.give_up(oldest, shell);
        }
        let stored = self.stored.store(datagram);
        let repeatable = header.opcode == message::OPCODE_QUERY;
        let expires = now + self.config.timeout;
        let slot = self
            .queries
            .insert(service, client, header.id, question, stored, repeatable, expires);
        let Some(slot) = slot else {
            if let Some(stored) = stored {
                self.stored.free(stored);
            }
            return shell.count(service, Count::Dropped(DropReason::Limit));
        };
        let Some(choice) = shell.choose(service, client.ip(), true, false, &|_| false) else {
            // Answered at once rather than left to wait.
            self.servfail(slot, shell);
            self.forget(slot);
            return shell.count(service, Count::Dropped(DropReason::NoEndpoint));
        };
        let at = AttemptRef { slot, attempt: 0 };
        if !self.send(now, at, choice.endpoint, Some(datagram), shell) {
            self.forget(slot);
            return shell.count(service, Count::Dropped(DropReason::PoolExhausted));
        }
        let bytes = datagram.len();
        shell.count(service, Count::Forwarded { choice, bytes });
        let retry_at = (repeatable && stored.is_some()).then(|| now + self.retry_delay(service));
        self.set_timer(slot, retry_at);
    }

    /// The client asked again: the first try is as good as lost, so another endpoint gets this one. Messages that must not
    /// be repeated elsewhere, and those that nobody else is left for, go to the same endpoint once more.
    fn retransmitted(&mut self, now: Millis, slot: u32, datagram: &[u8], shell: &mut impl Shell) {
        let expires = now + self.config.timeout;
        let Some(query) = self.queries.get_mut(slot) else {
            return;
        };
        query.expires = expires;
        let (service, repeatable) = (query.service, query.repeatable);
        let last = query
            .attempts
            .iter()
            .flatten()
            .max_by_key(|a| a.sent)
            .map(|a| a.endpoint);
        // No stub waits less than this before it asks again; what comes sooner is a copy, and says nothing about the endpoint.
        let quick = query
            .attempts
            .iter()
            .flatten()
            .any(|a| a.sent + self.config.retry_min > now);
        let elsewhere = if repeatable && !quick {
            self.next_choice(slot, shell)
        } else {
            None
        };
        let again = || {
            last.and_then(|endpoint| {
                shell.rank(service, &endpoint).map(|rank| Choice {
                    endpoint,
                    rank,
                    fallback: false,
                    panic: false,
                })
            })
        };
        let Some(choice) = elsewhere.or_else(again) else {
            shell.count(service, Count::Dropped(DropReason::NoEndpoint));
            return self.fail(slot, shell);
        };
        let attempt = self.attempt_for_retry(slot);
        let bytes = datagram.len();
        if self.send(
            now,
            AttemptRef { slot, attempt },
            choice.endpoint,
            Some(datagram),
            shell,
        ) {
            shell.count(service, Count::Forwarded { choice, bytes });
        } else {
            shell.count(service, Count::Dropped(DropReason::PoolExhausted));
        }
        self.set_timer(slot, None);
    }

    /// A datagram from upstream.
    pub fn answer(&mut self, now: Millis, socket: u16, from: SocketAddr, datagram: &[u8], shell: &mut impl Shell) {
        let Some(header) = message::header(datagram).filter(|h| h.response) else {
            return shell.stray_answer();
        };
        let question = message::question_hash(datagram, self.queries.keys());
        let at = match self.queries.find_answer(socket, &from, header.id, question) {
            Match::Attempt(at) => at,
            Match::WrongSource(at) => {
                if let Some(query) = self.queries.get(at.slot) {
                    shell.count(query.service, Count::Dropped(DropReason::WrongSource));
                }
                return;
            }
            Match::Nothing => return shell.stray_answer(),
        };
        let sent = self.queries.attempt(at).map_or(now, |a| a.sent);
        self.queries.heard(&from, now);
        let other = AttemptRef {
            attempt: 1 - at.attempt,
            ..at
        };
        let silent = self.queries.waited_too_long(other, now, SILENCE, true);
        let Some(query) = self.forget(at.slot) else {
            return;
        };
        shell.send_client(query.service, &query.client, datagram);
        shell.answered(&from);
        let (bytes, rcode) = (datagram.len(), header.rcode);
        shell.count(query.service, Count::Answered { bytes, rcode });
        self.service(query.service).latency.add(now.saturating_sub(sent));
        if let Some(endpoint) = silent {
            self.silent(now, &endpoint, shell);
        }
    }

    /// An endpoint refused: it has nobody listening, or cannot be reached. ICMP is rate-limited by the other side, so one
    /// refusal speaks for everything outstanding there.
    pub fn refused(&mut self, now: Millis, endpoint: &SocketAddr, shell: &mut impl Shell) {
        shell.refused(endpoint);
        while let Some(at) = self.queries.first_at(endpoint) {
            self.queries.end_attempt(at);
            self.move_on(now, at, shell);
        }
    }

    /// Where a sending that may still be answered went.
    pub fn endpoint_of(&self, tag: SendTag) -> Option<SocketAddr> {
        let at = self.queries.by_tag(tag.0)?;
        Some(self.queries.attempt(at)?.endpoint)
    }

    /// The kernel did not take one sending. `pending` says that the error was an earlier refusal reported late, so that
    /// the same sending is worth repeating.
    pub fn send_failed(&mut self, now: Millis, tag: SendTag, pending: bool, shell: &mut impl Shell) {
        let Some(at) = self.queries.by_tag(tag.0) else {
            return;
        };
        let Some(endpoint) = self.queries.attempt(at).map(|a| a.endpoint) else {
            return;
        };
        let service = self.queries.get(at.slot).map_or(0, |q| q.service);
        if pending && shell.rank(service, &endpoint).is_some() && self.send(now, at, endpoint, None, shell) {
            return;
        }
        self.queries.end_attempt(at);
        self.move_on(now, at, shell);
    }

    /// Everything that is due.
    pub fn timers(&mut self, now: Millis, shell: &mut impl Shell) {
        while let Some(slot) = self.timers.pop(now) {
            let Some(query) = self.queries.get_mut(slot) else {
                continue;
            };
            if query.expires <= now {
                // Whoever asked has stopped waiting by now; an answer of ours would meet a port in other use.
                self.give_up(slot, shell);
                continue;
            }
            if query.retry_at.is_some_and(|at| at <= now) {
                query.retry_at = None;
                self.waited(now, slot, shell);
            }
            let retry_at = self.queries.get(slot).and_then(|q| q.retry_at);
            if self.queries.get(slot).is_some() {
                self.set_timer(slot, retry_at);
            }
        }
    }

    /// Forgets all queries of a service port that is gone.
    pub fn service_gone(&mut self, service: u32, shell: &mut impl Shell) {
        let slots: Vec<u32> = self
            .queries
            .slots()
            .filter(|&slot| self.queries.get(slot).is_some_and(|q| q.service == service))
            .collect();
        for slot in slots {
            self.give_up(slot, shell);
        }
        if let Some(state) = self.services.get_mut(service as usize) {
            *state = ServiceState::default();
        }
    }

    /// A query has waited: first it is asked elsewhere, later its endpoint may count as silent.
    fn waited(&mut self, now: Millis, slot: u32, shell: &mut impl Shell) {
        let first = AttemptRef { slot, attempt: 0 };
        let Some(sent) = self.queries.attempt(first).map(|a| a.sent) else {
            return;
        };
        let Some(query) = self.queries.get_mut(slot) else {
            return;
        };
        let judge_at = sent + SILENCE;
        if !std::mem::replace(&mut query.retried, true) {
            query.retry_at = (judge_at > now).then_some(judge_at);
            self.retry(now, slot, shell);
        }
        if now >= judge_at
            && let Some(endpoint) = self.queries.waited_too_long(first, now, SILENCE, false)
        {
            self.silent(now, &endpoint, shell);
        }
    }

    /// An endpoint answers nothing at all: it counts as failing, and everything that waits there is asked elsewhere as well.
    /// This is a move, paid from no budget; the queries stay where they are too, in case it answers after all.
    fn silent(&mut self, now: Millis, endpoint: &SocketAddr, shell: &mut impl Shell) {
        shell.refused(endpoint);
        for slot in self.queries.waiting_only_at(endpoint) {
            let Some(query) = self.queries.get(slot).filter(|q| q.repeatable) else {
                continue;
            };
            let service = query.service;
            let Some(choice) = self.next_choice(slot, shell) else {
                continue;
            };
            let attempt = self.attempt_for_retry(slot);
            if self.send(now, AttemptRef { slot, attempt }, choice.endpoint, None, shell) {
                shell.count(service, Count::Moved);
                self.set_timer(slot, None);
            }
        }
    }

    /// Silence: asks a second endpoint beside the first.
    fn retry(&mut self, now: Millis, slot: u32, shell: &mut impl Shell) {
        let Some(query) = self.queries.get(slot) else {
            return;
        };
        let service = query.service;
        let Some(choice) = self.next_choice(slot, shell) else {
            return;
        };
        if !self.service(service).budget.try_retry(now) {
            return;
        }
        let attempt = self.attempt_for_retry(slot);
        if self.send(now, AttemptRef { slot, attempt }, choice.endpoint, None, shell) {
            shell.count(service, Count::Retry);
        }
    }

    /// One attempt of a query is over without an answer: ask somebody else, unless another attempt still may be answered.
    fn move_on(&mut self, now: Millis, at: AttemptRef, shell: &mut impl Shell) {
        let Some(query) = self.queries.get(at.slot) else {
            return;
        };
        let service = query.service;
        if query.attempts.iter().any(Option::is_some) {
            return;
        }
        // The refusal may have been of another datagram, so this one may have been processed before the endpoint died.
        let choice = if query.repeatable {
            self.next_choice(at.slot, shell)
        } else {
            None
        };
        match choice {
            Some(choice) if self.send(now, at, choice.endpoint, None, shell) => shell.count(service, Count::Moved),
            _ => self.fail(at.slot, shell),
        }
    }

    /// An endpoint the query has not tried: a healthy one if there is one, else any.
    fn next_choice(&self, slot: u32, shell: &mut impl Shell) -> Option<Choice> {
        let query = self.queries.get(slot)?;
        let (service, client) = (query.service, query.client.ip());
        let tried = |endpoint: &SocketAddr| self.queries.has_tried(slot, endpoint);
        for any_health in [false, true] {
            let choice = shell.choose(service, client, false, any_health, &tried)?;
            if !tried(&choice.endpoint) {
                return Some(choice);
            }
        }
        None
    }

    /// The attempt to use for one more sending: a free one, or the older of the two.
    fn attempt_for_retry(&self, slot: u32) -> u8 {
        match self.queries.get(slot).map(|q| &q.attempts) {
            Some([None, _]) => 0,
            Some([Some(_), None]) => 1,
            Some([Some(a), Some(b)]) => u8::from(b.sent < a.sent),
            None => 0,
        }
    }

    /// Sends a query (the stored copy where `datagram` is `None`) and records the attempt. False where no socket is free
    /// of a clash or nothing is stored.
    fn send(
        &mut self,
        now: Millis,
        at: AttemptRef,
        endpoint: SocketAddr,
        datagram: Option<&[u8]>,
        shell: &mut impl Shell,
    ) -> bool {
        let Some(query) = self.queries.get(at.slot) else {
            return false;
        };
        let (id, question, stored) = (query.id, query.question, query.stored);
        let range = self.sockets(&endpoint);
        let count = u64::from(range.end.saturating_sub(range.start));
        if count == 0 {
            return false;
        }
        let start = ((u128::from(shell.random()) * u128::from(count)) >> 64) as u64;
        let socket = (0..SOCKET_TRIES.min(count))
            .map(|n| range.start + ((start + n) % count) as u16)
            .find(|&socket| !self.queries.clashes(socket, id, question));
        let Some(socket) = socket else {
            return false;
        };
        let message = match datagram {
            Some(datagram) => datagram,
            None => match stored.and_then(|stored| self.stored.read(stored, &mut self.scratch)) {
                Some(message) => message,
                None => return false,
            },
        };
        self.queries.begin_attempt(at, socket, endpoint, now);
        shell.send_upstream(socket, &endpoint, message, SendTag(self.queries.tag(at)));
        true
    }

    /// Nothing is left to ask: says so to the client, quickly, so that it goes on to its next resolver.
    fn fail(&mut self, slot: u32, shell: &mut impl Shell) {
        self.servfail(slot, shell);
        self.give_up(slot, shell);
    }

    fn servfail(&mut self, slot: u32, shell: &mut impl Shell) {
        let Some(query) = self.queries.get(slot) else {
            return;
        };
        let (service, client) = (query.service, query.client);
        let mut answer = [0u8; 512];
        let made = query
            .stored
            .and_then(|stored| self.stored.read(stored, &mut self.scratch))
            .and_then(|query| message::servfail(query, &mut answer));
        if let Some(answer) = made {
            shell.send_client(service, &client, answer);
            shell.count(service, Count::Synthesized);
        }
    }

    fn give_up(&mut self, slot: u32, shell: &mut impl Shell) {
        if let Some(query) = self.forget(slot) {
            shell.count(query.service, Count::Unanswered);
        }
    }

    fn forget(&mut self, slot: u32) -> Option<super::queries::Query> {
        self.timers.cancel(slot);
        let query = self.queries.remove(slot)?;
        if let Some(stored) = query.stored {
            self.stored.free(stored);
        }
        Some(query)
    }

    fn retry_delay(&mut self, service: u32) -> Millis {
        let (min, max) = (self.config.retry_min, self.config.retry_max);
        let p99 = self.service(service).latency.p99();
        p99.map_or(max, |p99| (3 * p99).clamp(min, max))
    }

    fn set_timer(&mut self, slot: u32, retry_at: Option<Millis>) {
        if let Some(query) = self.queries.get_mut(slot) {
            query.retry_at = retry_at;
            let at = retry_at.map_or(query.expires, |at| at.min(query.expires));
            self.timers.set(slot, at);
        }
    }

    /// Checks that all parts agree.
    #[cfg(any(test, debug_assertions))]
    pub fn check(&self) {
        self.queries.check();
        assert_eq!(
            self.timers.len(),
            self.queries.len(),
            "each query has exactly one timer"
        );
    }
}
