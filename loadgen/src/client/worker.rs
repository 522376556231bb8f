//! One sending thread: sends what is due, receives what came, ends what timed out, sleeps until the next of these.
//! It never waits for an answer before it sends.

use super::judge::Judge;
use super::load::{Load, Plan};
use super::outstanding::{Entry, Outstanding, State};
use super::sockets::Sockets;
use super::stats::Stats;
use super::{Protocol, Query};
use crate::error::Error;
use crate::sys::{ErrorQueue, Poller, Ready, RecvBatch, SendBatch, errno_name, is_icmp, thread_cpu};
use nix::errno::Errno;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Units (queries or pairs) begun per turn at most, so that receiving is never starved.
const UNITS_PER_TURN: usize = 64;
/// Queries waited for or remembered per thread at most: 2^20 entries are about 100 MB.
const MAX_OUTSTANDING: usize = 1 << 20;
/// Finished fresh-port queries remembered at most, over all threads; each holds a socket.
const MAX_LINGERING_SOCKETS: usize = 2_048;
/// Attempts to find an id that is not in use on the socket.
const KEY_ATTEMPTS: usize = 64;
/// With `spin`: do not sleep when the next send is nearer than this.
const SPIN_NS: u64 = 50_000;
/// Longest sleep: how fast a stop request is noticed.
const MAX_SLEEP_NS: u64 = 50_000_000;
/// A send fails with the error of an earlier datagram (ICMP) without sending; tried again this often.
const SEND_ATTEMPTS: usize = 4;

pub(super) struct Worker<'a, P> {
    load: &'a Load,
    plan: &'a Plan,
    protocol: P,
    poller: Poller,
    ready: Vec<Ready>,
    sockets: Sockets,
    outstanding: Outstanding,
    max_lingering: usize,
    send: SendBatch,
    /// Entries in `send`, in the same order.
    burst: Vec<u32>,
    errors: ErrorQueue,
    stats: Stats,
    /// Next unit of this thread, and the distance to the one after it.
    next_unit: u64,
    stride: u64,
    shown: (u64, u64, u64),
}

impl<'a, P: Protocol> Worker<'a, P> {
    pub fn new(load: &'a Load, plan: &'a Plan, thread: usize, protocol: P) -> Result<Self, Error> {
        let poller = Poller::new().map_err(|e| Error::system("cannot make an epoll set", e))?;
        let mut sockets_here = plan.sockets_per_thread;
        if let super::Ports::Fixed { clients } = load.ports {
            // The first threads take the remainder.
            sockets_here += usize::from(thread < clients % load.threads);
        }
        let sockets = Sockets::new(load, sockets_here, &poller)?;
        let max_lingering = match sockets.is_fixed() {
            true => MAX_OUTSTANDING,
            false => (MAX_LINGERING_SOCKETS / load.threads).max(1),
        };
        Ok(Worker {
            load,
            plan,
            poller,
            ready: Vec::new(),
            sockets,
            outstanding: Outstanding::new(MAX_OUTSTANDING, plan.retransmit_ns.len()),
            max_lingering,
            send: SendBatch::new(P::MAX_DATAGRAM, load.server),
            burst: Vec::new(),
            errors: ErrorQueue::new(),
            stats: Stats::new(plan),
            next_unit: thread as u64,
            stride: load.threads as u64,
            protocol,
            shown: (0, 0, 0),
        })
    }

    pub fn run(mut self, start: Instant) -> Result<Stats, Error> {
        std::thread::sleep(start.saturating_duration_since(Instant::now()));
        let mut batch = RecvBatch::new(P::MAX_DATAGRAM);
        let cpu_before = thread_cpu();
        loop {
            let mut now = elapsed(start);
            self.send_due(start, now);
            now = elapsed(start);
            while let Some(index) = self.outstanding.pop_retransmit(now) {
                self.retransmit(index);
            }
            while let Some(index) = self.outstanding.pop_timeout(now) {
                self.time_out(index, now);
            }
            self.forget(now);
            self.show();
            let next_send = self.next_send_ns();
            if next_send.is_none() && self.outstanding.waiting() == 0 && self.outstanding.lingering() == 0 {
                break;
            }
            let until = next_send
                .unwrap_or(u64::MAX)
                .min(self.outstanding.next_ns())
                .min(now + MAX_SLEEP_NS);
            let mut sleep = until.saturating_sub(elapsed(start));
            if self.load.spin && sleep < SPIN_NS {
                sleep = 0;
            }
            let mut ready = std::mem::take(&mut self.ready);
            self.poller
                .wait(Duration::from_nanos(sleep), &mut ready)
                .map_err(|e| Error::system("cannot wait for sockets", e))?;
            for event in ready.drain(..) {
                self.receive(&mut batch, event, start);
            }
            self.ready = ready;
        }
        let cpu = thread_cpu();
        self.stats.cpu = (cpu.0.saturating_sub(cpu_before.0), cpu.1.saturating_sub(cpu_before.1));
        self.stats.counts.sockets_opened = self.sockets.opened();
        Ok(self.stats)
    }

    /// When the next unit is due; `None` when all are begun.
    fn next_send_ns(&self) -> Option<u64> {
        let seq = self.next_unit * self.plan.group;
        (seq < self.plan.queries).then(|| self.plan.intended_ns(seq))
    }

    /// Gives up what was not begun yet.
    fn stop_sending(&mut self) {
        while self.next_unit * self.plan.group < self.plan.queries {
            let left = (self.plan.queries / self.plan.group - self.next_unit).div_ceil(self.stride);
            self.stats.counts.not_sent += left * self.plan.group;
            self.next_unit += left * self.stride;
        }
    }

    fn send_due(&mut self, start: Instant, now: u64) {
        let stop = self.load.stop.as_ref().is_some_and(|stop| stop.load(Ordering::Relaxed));
        if stop || now > self.plan.cutoff_ns {
            self.stop_sending();
            return;
        }
        let mut due = 0;
        while due < UNITS_PER_TURN {
            let at = self
                .plan
                .intended_ns((self.next_unit + due as u64 * self.stride) * self.plan.group);
            let exists = (self.next_unit + due as u64 * self.stride) * self.plan.group < self.plan.queries;
            if !exists || at > now {
                break;
            }
            due += 1;
        }
        // When many are due at once, several go out through one socket in one system call.
        let run = if self.sockets.is_fixed() {
            (due / 4).clamp(1, 16)
        } else {
            1
        };
        while due > 0 {
            let units = run.min(due);
            due -= units;
            match self.acquire() {
                Some(socket) => {
                    for _ in 0..units {
                        self.begin_unit(Some(socket), start);
                    }
                    self.flush(socket, start);
                    self.sockets.release_unused(socket);
                }
                None => (0..units).for_each(|_| self.begin_unit(None, start)),
            }
        }
    }

    /// A socket for the next unit; makes room among the finished queries if need be.
    fn acquire(&mut self) -> Option<u32> {
        loop {
            match self.sockets.acquire(&self.poller) {
                Ok(Some(socket)) => return Some(socket),
                Ok(None) if self.forget_oldest() => {}
                Ok(None) => {
                    self.stats.send_error("socket-limit");
                    return None;
                }
                Err(e) => {
                    self.stats
                        .send_error(errno_name(Errno::from_raw(e.raw_os_error().unwrap_or(0))));
                    return None;
                }
            }
        }
    }

    /// Begins every query of the next unit; without a socket they fail at once.
    fn begin_unit(&mut self, socket: Option<u32>, start: Instant) {
        let first = self.next_unit * self.plan.group;
        self.next_unit += self.stride;
        let intended_ns = self.plan.intended_ns(first);
        for seq in first..first + self.plan.group {
            self.stats.counts.queries += 1;
            self.stats.timeline.sent(intended_ns);
            let Some(socket) = socket else {
                self.fail_to_send(intended_ns);
                continue;
            };
            if self.send.is_full() {
                self.flush(socket, start);
            }
            let Some(key) = self.free_key(socket, seq) else {
                self.stats.send_error("outstanding-limit");
                self.fail_to_send(intended_ns);
                continue;
            };
            let query = Query { seq, key };
            let entry = Entry {
                query,
                socket,
                state: State::Waiting,
                sends: 1,
                answers: 0,
                intended_ns,
                // Set when it is sent.
                deadline_ns: u64::MAX,
            };
            match self.outstanding.insert(entry) {
                Some(index) => {
                    self.sockets.add_user(socket);
                    self.burst.push(index);
                    let protocol = &self.protocol;
                    self.send.push(self.load.server, |buffer| protocol.write(query, buffer));
                }
                None => {
                    self.stats.send_error("outstanding-limit");
                    self.fail_to_send(intended_ns);
                }
            }
        }
    }

    fn free_key(&mut self, socket: u32, seq: u64) -> Option<u64> {
        if self.outstanding.is_full() && !self.forget_oldest() {
            return None;
        }
        (0..KEY_ATTEMPTS)
            .map(|_| self.protocol.key(seq))
            .find(|&key| !self.outstanding.in_use(socket, key))
    }

    fn fail_to_send(&mut self, intended_ns: u64) {
        self.stats.counts.send_failed += 1;
        self.stats.timeline.failed(intended_ns);
    }

    /// Sends the burst. A datagram the system refuses fails its query and the rest goes on.
    fn flush(&mut self, socket: u32, start: Instant) {
        let now = elapsed(start);
        let mut first = 0;
        let mut attempts = 0;
        while first < self.send.len() {
            let result = match self.sockets.get(socket) {
                Some(udp) => self.send.send(udp, first),
                None => Err(Errno::EBADF),
            };
            match result {
                Ok(sent) if sent > 0 => {
                    for i in first..first + sent {
                        self.sent(self.burst[i], now);
                    }
                    first += sent;
                    attempts = 0;
                }
                Ok(_) | Err(Errno::EINTR) => {}
                Err(error) if is_icmp(error) && attempts < SEND_ATTEMPTS => {
                    attempts += 1;
                    self.drain_errors(socket);
                }
                Err(error) => {
                    self.stats.send_error(errno_name(error));
                    let index = self.burst[first];
                    let intended_ns = self.outstanding.get(index).intended_ns;
                    self.fail_to_send(intended_ns);
                    let socket = self.outstanding.abandon(index);
                    self.sockets.release(socket);
                    first += 1;
                    attempts = 0;
                }
            }
        }
        self.send.clear();
        self.burst.clear();
    }

    fn sent(&mut self, index: u32, now: u64) {
        let entry = self.outstanding.get_mut(index);
        entry.deadline_ns = now + self.plan.timeout_ns;
        self.stats
            .send_lag
            .saturating_record(now.saturating_sub(entry.intended_ns));
        self.stats.last_send_ns = now;
        self.outstanding.start_timers(index, now, &self.plan.retransmit_ns);
    }

    fn retransmit(&mut self, index: u32) {
        let Entry { query, socket, .. } = *self.outstanding.get(index);
        let protocol = &self.protocol;
        self.send.push(self.load.server, |buffer| protocol.write(query, buffer));
        for attempt in 0.. {
            let result = match self.sockets.get(socket) {
                Some(udp) => self.send.send(udp, 0),
                None => Err(Errno::EBADF),
            };
            match result {
                Ok(_) => {
                    self.stats.counts.retransmits += 1;
                    self.outstanding.get_mut(index).sends += 1;
                    break;
                }
                Err(error) if (is_icmp(error) || error == Errno::EINTR) && attempt < SEND_ATTEMPTS => {
                    self.drain_errors(socket);
                }
                Err(error) => {
                    self.stats.send_error(errno_name(error));
                    break;
                }
            }
        }
        self.send.clear();
    }

    fn time_out(&mut self, index: u32, now: u64) {
        self.stats.counts.timeouts += 1;
        let intended_ns = self.outstanding.get(index).intended_ns;
        self.stats.timeline.failed(intended_ns);
        self.outstanding.end(index, State::TimedOut, now + self.plan.linger_ns);
    }

    /// Forgets finished queries whose time is over.
    fn forget(&mut self, now: u64) {
        while let Some(socket) = self.outstanding.pop_linger(now, false) {
            self.sockets.release(socket);
        }
        while self.outstanding.lingering() > self.max_lingering && self.forget_oldest() {}
    }

    fn forget_oldest(&mut self) -> bool {
        let Some(socket) = self.outstanding.pop_linger(0, true) else {
            return false;
        };
        self.stats.counts.forgotten_early += 1;
        self.sockets.release(socket);
        true
    }

    fn drain_errors(&mut self, socket: u32) {
        let Some(udp) = self.sockets.get(socket) else { return };
        let stats = &mut self.stats;
        self.errors.drain(udp, |errno| {
            stats.counts.icmp_errors += 1;
            *stats.icmp.entry(errno_name(errno)).or_default() += 1;
        });
    }

    fn receive(&mut self, batch: &mut RecvBatch, event: Ready, start: Instant) {
        // A socket closed by an earlier event of the same turn has nothing to say any more.
        let Some((socket, _)) = self.sockets.by_token(event.token) else {
            return;
        };
        if event.error {
            self.drain_errors(socket);
        }
        let Some((_, udp)) = self.sockets.by_token(event.token) else {
            return;
        };
        let now = elapsed(start);
        let mut judge = Judge {
            server: self.load.server,
            plan: self.plan,
            protocol: &self.protocol,
            outstanding: &mut self.outstanding,
            stats: &mut self.stats,
        };
        // Level-triggered: what is left, and any error, comes back with the next turn.
        let _ = batch.recv(udp, |bytes, from| judge.datagram(socket, bytes, from, now));
    }

    fn show(&mut self) {
        let Some(live) = &self.load.live else { return };
        let c = &self.stats.counts;
        let now = (c.queries, c.answered, c.failed());
        live.sent.fetch_add(now.0 - self.shown.0, Ordering::Relaxed);
        live.answered.fetch_add(now.1 - self.shown.1, Ordering::Relaxed);
        live.failed.fetch_add(now.2 - self.shown.2, Ordering::Relaxed);
        self.shown = now;
    }
}

/// Nanoseconds since the start of the run.
pub(super) fn elapsed(start: Instant) -> u64 {
    u64::try_from(Instant::now().saturating_duration_since(start).as_nanos()).unwrap_or(u64::MAX)
}
