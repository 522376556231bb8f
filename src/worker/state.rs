//! What a worker holds beside its engine, and what it does with each event.

use super::Shared;
use super::shell::WorkerShell;
use crate::engine::io_uring::Uring;
use crate::engine::{Datagram, Handler, Outbox, SocketKey};
use crate::flow::dns::{self, SendTag};
use crate::flow::oneway;
use crate::model::{IpFamily, ServicePortKey};
use crate::net::{errqueue, socket};
use crate::table::publish::TableReader;
use crate::table::{ServicePortEntry, Vip};
use crate::telemetry::{DropReason, MAX_RANKS, Registry, ServicePortCounters, WorkerCounters};
use crate::topology::Profile;
use rand::rngs::StdRng;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

/// Errors read from one error queue before the loop goes on; the rest waits for the next event.
const ERRORS_PER_READ: usize = 64;
/// How often the kernel's drop counters are read.
const DROPS_EVERY: u64 = 1000;

/// Clients of one-way services remembered per worker; beyond it the quietest one is forgotten.
const ONEWAY_CLIENTS: usize = 65_536;

/// What a socket is for, packed into the engine's token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Token {
    Probe,
    Upstream(u16),
    Vip(u32),
}

impl Token {
    pub fn pack(self) -> u32 {
        match self {
            Self::Probe => 0,
            Self::Upstream(n) => 1 << 28 | u32::from(n),
            Self::Vip(n) => 2 << 28 | n,
        }
    }

    fn unpack(token: u32) -> Self {
        match token >> 28 {
            0 => Self::Probe,
            1 => Self::Upstream(token as u16),
            _ => Self::Vip(token & 0x0fff_ffff),
        }
    }
}

/// What a send was, packed into the engine's 56-bit tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tag {
    Probe,
    Reply(u32),
    Query(u16, SendTag),
    Oneway { service: u32, socket: u16, rank: u8 },
}

impl Tag {
    pub fn pack(self) -> u64 {
        match self {
            Self::Probe => 0,
            Self::Reply(service) => 1 << 54 | u64::from(service),
            Self::Query(socket, tag) => 2 << 54 | u64::from(socket) << SendTag::BITS | tag.0,
            Self::Oneway { service, socket, rank } => {
                3 << 54 | u64::from(rank) << 44 | u64::from(socket) << 28 | u64::from(service & 0x0fff_ffff)
            }
        }
    }

    fn unpack(tag: u64) -> Self {
        match tag >> 54 {
            0 => Self::Probe,
            1 => Self::Reply(tag as u32),
            3 => Self::Oneway {
                service: tag as u32 & 0x0fff_ffff,
                socket: (tag >> 28) as u16,
                rank: (tag >> 44) as u8,
            },
            _ => {
                let socket = (tag >> SendTag::BITS) & 0x1fff;
                Self::Query(socket as u16, SendTag(tag & ((1 << SendTag::BITS) - 1)))
            }
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

/// Everything a worker holds beside its engine.
pub struct State {
    index: usize,
    core: dns::Core,
    oneway: oneway::Core,
    reader: TableReader,
    shared: Shared,
    counters: Arc<WorkerCounters>,
    vips: Vec<Option<VipSlot>>,
    upstream: Vec<SocketKey>,
    probe: SocketKey,
    /// Upstream sockets whose error queue should be read.
    errors: Vec<u16>,
    rng: StdRng,
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
            upstream: &$self.upstream,
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
        reader: TableReader,
        shared: Shared,
        upstream: Vec<SocketKey>,
        probe: SocketKey,
    ) -> Self {
        let counters = shared.registry.worker(index).unwrap_or_default();
        Self {
            index,
            core,
            oneway: oneway::Core::new(ONEWAY_CLIENTS),
            reader,
            counters,
            vips: Vec::new(),
            errors: Vec::with_capacity(upstream.len()),
            upstream,
            probe,
            // Seeded by the operating system: which socket carries a query must not be guessed (RFC 5452 §4.5).
            rng: rand::make_rng(),
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
        self.core
            .service_gone(index as u32, &mut shell!(self, &mut engine.outbox()));
        match self.vips[index].take() {
            Some(slot) => engine.remove_socket(slot.socket),
            None => Ok(()),
        }
    }

    pub fn timers(&mut self, out: &mut dyn Outbox) {
        self.oneway.expire(self.now);
        self.core.timers(self.now, &mut shell!(self, out));
    }

    /// Reads the error queues of sockets whose sends failed because of an earlier refusal.
    pub fn read_error_queues(&mut self, engine: &mut Uring) {
        while let Some(socket) = self.errors.pop() {
            let Some(&key) = self.upstream.get(usize::from(socket)) else {
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

    fn from_client(&mut self, out: &mut dyn Outbox, service: u32, datagram: Datagram<'_>) {
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
        let rank = usize::from(target.rank).min(MAX_RANKS - 1);
        counters.forwarded[rank].add(1);
        counters.forwarded_bytes.add(payload.len() as u64);
        counters.panics.add(target.panic.into());
        let tag = Tag::Oneway {
            service,
            socket,
            rank: rank as u8,
        };
        if let Some(&key) = self.upstream.get(usize::from(socket)) {
            out.send(key, &target.endpoint, payload, tag.pack());
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

impl Handler for State {
    fn datagram(&mut self, out: &mut dyn Outbox, token: u32, datagram: Datagram<'_>) {
        match Token::unpack(token) {
            Token::Vip(service) => self.from_client(out, service, datagram),
            Token::Upstream(_) if datagram.truncated => self.counters.stray_answers.add(1),
            Token::Upstream(socket) => {
                let (from, payload) = (datagram.from, datagram.payload);
                self.core
                    .answer(self.now, socket, from, payload, &mut shell!(self, out));
            }
            Token::Probe => out.send(self.probe, &datagram.from, datagram.payload, Tag::Probe.pack()),
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
                    slot.counters.drop_one(DropReason::SendFailed);
                }
            }
            Tag::Oneway { service, socket, rank } => {
                if errno == libc::ECONNREFUSED {
                    self.read_errors_of(socket);
                }
                if let Some(slot) = self.vips.get(service as usize).and_then(Option::as_ref) {
                    slot.counters.forwarded[usize::from(rank).min(MAX_RANKS - 1)].take_back(1);
                    slot.counters.drop_one(DropReason::SendFailed);
                }
            }
            Tag::Query(socket, tag) => {
                // With an error queue on, a send fails once with the refusal of an earlier datagram (ip(7), IP_RECVERR).
                let pending = errno == libc::ECONNREFUSED;
                if pending {
                    self.read_errors_of(socket);
                }
                self.core.send_failed(self.now, tag, pending, &mut shell!(self, out));
            }
        }
    }

    fn woken(&mut self, _: &mut dyn Outbox) {
        self.woken = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_and_tags_survive_packing() {
        for token in [
            Token::Probe,
            Token::Upstream(0),
            Token::Upstream(511),
            Token::Vip(0),
            Token::Vip(100_000),
        ] {
            assert_eq!(Token::unpack(token.pack()), token);
        }
        let tags = [
            Tag::Probe,
            Tag::Reply(0),
            Tag::Reply(70_000),
            Tag::Query(0, SendTag(0)),
            Tag::Query(8191, SendTag((1 << SendTag::BITS) - 1)),
            Tag::Oneway {
                service: 0x0fff_ffff,
                socket: u16::MAX,
                rank: 7,
            },
        ];
        for tag in tags {
            assert!(tag.pack() < 1 << 56);
            assert_eq!(Tag::unpack(tag.pack()), tag);
        }
    }
}
