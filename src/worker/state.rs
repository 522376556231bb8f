//! What a worker holds beside its engine, and what it does with each event.

use super::Shared;
use super::shell::WorkerShell;
use super::tag::{Tag, Token};
use crate::engine::io_uring::Uring;
use crate::engine::{Datagram, Handler, Outbox, SocketKey};
use crate::flow::dns;
use crate::flow::{oneway, stream};
use crate::model::{IpFamily, Protocol, ServicePortKey};
use crate::net::{errqueue, socket};
use crate::table::publish::TableReader;
use crate::table::{ServicePortEntry, Vip};
use crate::telemetry::{DropReason, MAX_RANKS, Registry, ServicePortCounters, WorkerCounters};
use crate::topology::Profile;
use rand::rngs::StdRng;
use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

/// Errors read from one error queue before the loop goes on; the rest waits for the next event.
const ERRORS_PER_READ: usize = 64;
/// How often the kernel's drop counters are read.
const DROPS_EVERY: u64 = 1000;

/// Clients of one-way services remembered per worker; beyond it the quietest one is forgotten.
const ONEWAY_CLIENTS: usize = 65_536;

/// Records of datagrams sent lately. The kernel reports a failed send with the next enter, which is never more than two
/// batches and one submission queue away.
const RECORDS: usize = 8192;

/// What is remembered of a datagram until the kernel can no longer report that it failed.
#[derive(Clone, Copy, Debug)]
struct Record {
    number: u32,
    service: u32,
    socket: u16,
    rank: u8,
    endpoint: SocketAddr,
}

impl Default for Record {
    fn default() -> Self {
        Self {
            number: 0,
            service: 0,
            socket: 0,
            rank: 0,
            endpoint: SocketAddr::new(std::net::Ipv4Addr::UNSPECIFIED.into(), 0),
        }
    }
}

/// A VIP this worker receives for.
pub struct VipSlot {
    pub vip: Vip,
    pub socket: SocketKey,
    /// Its service port in the current table; none while the VIP drains.
    pub entry: Option<Arc<ServicePortEntry>>,
    pub counters: Arc<ServicePortCounters>,
    /// Whose counters they are.
    key: Option<Arc<ServicePortKey>>,
    kernel_drops: u32,
}

impl VipSlot {
    /// Takes over what the current table says of the VIP. Where it belongs to another Service now, its traffic counts there
    /// from now on.
    fn adopt(&mut self, entry: Option<&Arc<ServicePortEntry>>, worker: usize, registry: &Registry) {
        self.entry = entry.cloned();
        if let Some(entry) = entry
            && self.key.as_ref() != Some(&entry.key)
        {
            let family = IpFamily::of(self.vip.address.ip());
            self.counters = registry.service_port(worker, &entry.key, family);
            self.key = Some(entry.key.clone());
        }
    }
}

/// A worker's sockets that belong to no VIP.
pub struct Sockets {
    /// Towards endpoints.
    pub upstream: Vec<SocketKey>,
    /// Which of them carry flows; the others carry queries and one-way datagrams.
    pub stream: Range<u16>,
    /// The probes'.
    pub probe: SocketKey,
}

/// Everything a worker holds beside its engine.
pub struct State {
    index: usize,
    core: dns::Core,
    oneway: oneway::Core,
    stream: stream::Core,
    reader: TableReader,
    shared: Shared,
    counters: Arc<WorkerCounters>,
    vips: Vec<Option<VipSlot>>,
    sockets: Sockets,
    /// Upstream sockets whose error queue should be read.
    errors: Vec<u16>,
    rng: StdRng,
    /// Number of the last datagram of which only a record is kept, and the records.
    forwards: u32,
    records: Box<[Record]>,
    generation: u64,
    now: u64,
    drops_read: u64,
    woken: bool,
}

macro_rules! shell {
    ($self:ident, $out:expr) => {
        WorkerShell {
            out: $out,
            vips: &$self.vips,
            upstream: &$self.sockets.upstream,
            failing: &$self.shared.failing,
            affinity: &$self.shared.affinity,
            counters: &$self.counters,
            rng: &mut $self.rng,
            now: $self.now,
        }
    };
}

impl State {
    pub fn new(
        index: usize,
        core: dns::Core,
        stream: stream::Core,
        reader: TableReader,
        shared: Shared,
        sockets: Sockets,
    ) -> Self {
        let counters = shared.registry.worker(index).unwrap_or_default();
        Self {
            index,
            core,
            oneway: oneway::Core::new(ONEWAY_CLIENTS),
            stream,
            reader,
            counters,
            vips: Vec::new(),
            errors: Vec::with_capacity(sockets.upstream.len()),
            sockets,
            // Seeded by the operating system: which socket carries a query must not be guessed (RFC 5452 §4.5).
            rng: rand::make_rng(),
            forwards: 0,
            records: vec![Record::default(); RECORDS].into(),
            generation: 0,
            now: shared.clock.now(),
            drops_read: 0,
            woken: true,
            shared,
        }
    }

    pub fn index(&self) -> usize {
        self.index
    }

    pub fn next_deadline(&self) -> Option<u64> {
        self.core.next_deadline()
    }

    pub fn take_woken(&mut self) -> bool {
        std::mem::take(&mut self.woken)
    }

    /// Starts a turn: takes the time and the current table.
    pub fn begin(&mut self, now: u64) {
        self.now = now;
        let table = self.reader.load();
        if table.generation == self.generation {
            return;
        }
        self.generation = table.generation;
        for slot in self.vips.iter_mut().flatten() {
            slot.adopt(table.get(&slot.vip), self.index, &self.shared.registry);
        }
        self.counters.table_generation.set(self.generation);
    }

    /// Ends a turn: publishes the worker's own numbers.
    pub fn end(&mut self, engine: &Uring) {
        let stats = engine.stats();
        self.counters.turns.add(1);
        self.counters.outstanding.set(self.core.outstanding() as u64);
        self.counters.stored_bytes.set(self.core.stored_bytes() as u64);
        self.counters.rearmed.set(stats.rearmed);
        self.counters.buffers_exhausted.set(stats.buffers_exhausted);
        self.counters.cq_overflow.set(stats.cq_overflow);
        if self.now >= self.drops_read + DROPS_EVERY {
            self.drops_read = self.now;
            self.read_kernel_drops(engine);
        }
    }

    fn read_kernel_drops(&mut self, engine: &Uring) {
        for slot in self.vips.iter_mut().flatten() {
            let Some(drops) = engine.fd(slot.socket).and_then(|fd| socket::receive_drops(fd).ok()) else {
                continue;
            };
            let new = drops.wrapping_sub(slot.kernel_drops);
            slot.kernel_drops = drops;
            slot.counters.received.add(new.into());
            slot.counters.dropped[DropReason::SocketOverflow as usize].add(new.into());
        }
    }

    pub fn add_vip(&mut self, engine: &mut Uring, vip: Vip, socket: OwnedFd) -> io::Result<()> {
        let free = self.vips.iter().position(Option::is_none);
        let index = free.unwrap_or(self.vips.len());
        let key = match engine.add_socket(socket, Token::Vip(index as u32).pack()) {
            Ok(key) => key,
            Err(error) => {
                // The VIP stays with kube-proxy on this worker's share only if the kernel finds no socket, and the other
                // workers' sockets take all of it; so serving goes on.
                tracing::error!(worker = self.index, vip = %vip.address, %error, "cannot receive for a VIP");
                return Ok(());
            }
        };
        let mut slot = VipSlot {
            vip,
            socket: key,
            entry: None,
            counters: Arc::default(),
            key: None,
            kernel_drops: 0,
        };
        slot.adopt(self.reader.load().get(&vip), self.index, &self.shared.registry);
        match free {
            Some(index) => self.vips[index] = Some(slot),
            None => self.vips.push(Some(slot)),
        }
        Ok(())
    }

    pub fn remove_vip(&mut self, engine: &mut Uring, vip: Vip) -> io::Result<()> {
        let Some(index) = self.vips.iter().position(|s| s.as_ref().is_some_and(|s| s.vip == vip)) else {
            return Ok(());
        };
        self.oneway.service_gone(index as u32);
        self.stream.service_gone(index as u32);
        self.core
            .service_gone(index as u32, &mut shell!(self, &mut engine.outbox()));
        match self.vips[index].take() {
            Some(slot) => engine.remove_socket(slot.socket),
            None => Ok(()),
        }
    }

    pub fn timers(&mut self, out: &mut dyn Outbox) {
        self.oneway.expire(self.now);
        self.stream.expire(self.now);
        self.core.timers(self.now, &mut shell!(self, out));
    }

    /// Reads the error queues of sockets whose sends failed because of an earlier refusal.
    pub fn read_error_queues(&mut self, engine: &mut Uring) {
        while let Some(socket) = self.errors.pop() {
            let Some(&key) = self.sockets.upstream.get(usize::from(socket)) else {
                continue;
            };
            let mut read = 0;
            while read < ERRORS_PER_READ {
                let error = engine.fd(key).and_then(|fd| errqueue::read(fd, &mut []).ok().flatten());
                let Some(error) = error else {
                    break;
                };
                read += 1;
                self.upstream_error(&error, &mut engine.outbox());
            }
        }
    }

    fn upstream_error(&mut self, error: &errqueue::SocketError, out: &mut dyn Outbox) {
        self.counters.socket_errors.add(1);
        if means_unreachable(error.errno) {
            self.core.refused(self.now, &error.destination, &mut shell!(self, out));
        }
    }

    fn client_datagram(&mut self, out: &mut dyn Outbox, service: u32, datagram: Datagram<'_>) {
        let Some(slot) = self.vips.get(service as usize).and_then(Option::as_ref) else {
            return;
        };
        slot.counters.received.add(1);
        slot.counters.received_bytes.add(datagram.payload.len() as u64);
        if datagram.truncated {
            return slot.counters.drop_one(DropReason::Truncated);
        }
        let profile = slot.entry.as_ref().map(|e| e.profile);
        let (from, payload) = (datagram.from, datagram.payload);
        match profile {
            Some(Profile::Oneway) => self.oneway(out, service, from, payload),
            Some(Profile::Stream) => self.stream(out, service, from, payload),
            _ => self
                .core
                .query(self.now, service, from, payload, &mut shell!(self, out)),
        }
    }

    /// A one-way datagram goes to its client's endpoint from its client's socket.
    fn oneway(&mut self, out: &mut dyn Outbox, service: u32, from: SocketAddr, payload: &[u8]) {
        let client = from.ip();
        let verdict = self.oneway.datagram(self.now, service, client, &mut shell!(self, out));
        let Some(counters) = self
            .vips
            .get(service as usize)
            .and_then(Option::as_ref)
            .map(|v| &v.counters)
        else {
            return;
        };
        let target = match verdict {
            oneway::Verdict::Send(target) => target,
            oneway::Verdict::Drop(reason) => return counters.drop_one(reason),
        };
        let Some(socket) = self.core.socket_for(&target.endpoint, client) else {
            return counters.drop_one(DropReason::PoolExhausted);
        };
        counters.panics.add(target.panic.into());
        self.forward(out, service, socket, (target.endpoint, target.rank), payload);
    }

    /// A datagram of a flow goes to its endpoint.
    fn stream(&mut self, out: &mut dyn Outbox, service: u32, from: SocketAddr, payload: &[u8]) {
        let verdict = self.stream.datagram(self.now, service, from, &mut shell!(self, out));
        let Some(counters) = self
            .vips
            .get(service as usize)
            .and_then(Option::as_ref)
            .map(|v| &v.counters)
        else {
            return;
        };
        match verdict {
            stream::Verdict::Drop(reason) => counters.drop_one(reason),
            stream::Verdict::Send { target, socket, moved } => {
                counters.panics.add(target.panic.into());
                counters.fallbacks.add(target.fallback.into());
                counters.moved.add(moved.into());
                self.forward(out, service, socket, (target.endpoint, target.rank), payload);
            }
        }
    }

    /// A datagram from an endpoint of a flow goes back to its client.
    fn stream_answer(&mut self, out: &mut dyn Outbox, socket: u16, from: SocketAddr, payload: &[u8]) {
        let Some((service, client)) = self.stream.answer(self.now, socket, from) else {
            return self.counters.stray_answers.add(1);
        };
        let Some(slot) = self.vips.get(service as usize).and_then(Option::as_ref) else {
            return;
        };
        slot.counters.answered.add(1);
        slot.counters.answered_bytes.add(payload.len() as u64);
        self.shared.failing.answered(&from, Protocol::Udp, self.now);
        out.send(slot.socket, &client, payload, Tag::Reply(service).pack());
    }

    /// Counts and sends a datagram whose endpoint and socket are decided.
    fn forward(&mut self, out: &mut dyn Outbox, service: u32, socket: u16, to: (SocketAddr, u8), payload: &[u8]) {
        let slot = self.vips.get(service as usize).and_then(Option::as_ref);
        let (Some(slot), Some(&key)) = (slot, self.sockets.upstream.get(usize::from(socket))) else {
            return;
        };
        let rank = usize::from(to.1).min(MAX_RANKS - 1);
        slot.counters.forwarded[rank].add(1);
        slot.counters.forwarded_bytes.add(payload.len() as u64);
        self.forwards = self.forwards.wrapping_add(1);
        let number = self.forwards;
        self.records[number as usize % RECORDS] = Record {
            number,
            service,
            socket,
            rank: rank as u8,
            endpoint: to.0,
        };
        out.send(key, &to.0, payload, Tag::Forward(number).pack());
    }

    /// A datagram of which nothing was kept did not leave.
    fn forward_failed(&mut self, out: &mut dyn Outbox, number: u32, errno: i32) {
        let record = self.records[number as usize % RECORDS];
        if record.number != number {
            return;
        }
        if let Some(slot) = self.vips.get(record.service as usize).and_then(Option::as_ref) {
            slot.counters.forwarded[usize::from(record.rank)].take_back(1);
            slot.counters.drop_one(DropReason::SendFailed);
        }
        match errno {
            // The refusal of an earlier datagram, perhaps to somebody else: the error queue tells.
            libc::ECONNREFUSED => self.read_errors_of(record.socket),
            errno if cannot_be_sent(errno) => {
                self.core.refused(self.now, &record.endpoint, &mut shell!(self, out));
            }
            _ => {}
        }
    }

    fn read_errors_of(&mut self, socket: u16) {
        if self.errors.len() < self.errors.capacity() && !self.errors.contains(&socket) {
            self.errors.push(socket);
        }
    }
}

/// ICMP and local errors that say: nobody is there. Anything else (too big, a parameter problem) says nothing about the
/// endpoint.
fn means_unreachable(errno: i32) -> bool {
    matches!(
        errno,
        libc::ECONNREFUSED | libc::EHOSTUNREACH | libc::ENETUNREACH | libc::EHOSTDOWN | libc::EACCES | libc::EPERM
    )
}

/// What a send is answered with when the node itself knows no way to the endpoint: no route, a blackhole or prohibiting
/// route, a neighbour that does not resolve (`ip_route_output_key` in net/ipv4/route.c).
fn cannot_be_sent(errno: i32) -> bool {
    errno == libc::EINVAL || (errno != libc::ECONNREFUSED && means_unreachable(errno))
}

impl Handler for State {
    fn datagram(&mut self, out: &mut dyn Outbox, token: u32, datagram: Datagram<'_>) {
        match Token::unpack(token) {
            Token::Vip(service) => self.client_datagram(out, service, datagram),
            Token::Upstream(_) if datagram.truncated => self.counters.stray_answers.add(1),
            Token::Upstream(socket) if self.sockets.stream.contains(&socket) => {
                self.stream_answer(out, socket, datagram.from, datagram.payload);
            }
            Token::Upstream(socket) => {
                let (from, payload) = (datagram.from, datagram.payload);
                self.core
                    .answer(self.now, socket, from, payload, &mut shell!(self, out));
            }
            Token::Probe => out.send(self.sockets.probe, &datagram.from, datagram.payload, Tag::Probe.pack()),
        }
    }

    fn socket_error(&mut self, out: &mut dyn Outbox, token: u32, fd: BorrowedFd<'_>, _: i32) {
        if !matches!(Token::unpack(token), Token::Upstream(_)) {
            self.counters.socket_errors.add(1);
            return;
        }
        for _ in 0..ERRORS_PER_READ {
            match errqueue::read(fd, &mut []) {
                Ok(Some(error)) => self.upstream_error(&error, out),
                _ => return,
            }
        }
    }

    fn send_failed(&mut self, out: &mut dyn Outbox, tag: u64, errno: i32) {
        match Tag::unpack(tag) {
            Tag::Probe => {}
            Tag::Reply(service) => {
                if let Some(slot) = self.vips.get(service as usize).and_then(Option::as_ref) {
                    slot.counters.drop_one(DropReason::AnswerNotSent);
                }
            }
            Tag::Forward(number) => self.forward_failed(out, number, errno),
            Tag::Query(socket, tag) => {
                // With an error queue on, a send fails once with the refusal of an earlier datagram (ip(7), IP_RECVERR).
                let pending = errno == libc::ECONNREFUSED;
                if pending {
                    self.read_errors_of(socket);
                }
                if cannot_be_sent(errno)
                    && let Some(endpoint) = self.core.endpoint_of(tag)
                {
                    return self.core.refused(self.now, &endpoint, &mut shell!(self, out));
                }
                self.core.send_failed(self.now, tag, pending, &mut shell!(self, out));
            }
        }
    }

    fn woken(&mut self, _: &mut dyn Outbox) {
        self.woken = true;
    }
}
