//! The I/O mechanism of a worker: receives datagrams, sends datagrams, waits.
//!
//! Knows sockets by [`SocketKey`] and nothing of Services, flows or tables. One of the two rooms where `unsafe` is
//! allowed. An engine belongs to the thread that made it.

pub mod io_uring;

use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::time::Duration;

/// The largest UDP payload over IPv4 without options (65 535 − 20 − 8); IPv6 without jumbograms allows 20 more.
pub const MAX_DATAGRAM: usize = 65_527;

/// A socket an engine holds. Valid until the socket is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SocketKey(pub(crate) u32);

/// A received datagram. The payload lives in the engine's buffer; passing it on with [`Outbox::send`] copies nothing.
#[derive(Clone, Copy, Debug)]
pub struct Datagram<'a> {
    /// Who sent it.
    pub from: SocketAddr,
    /// All of it, or as much as fitted.
    pub payload: &'a [u8],
    /// Whether the kernel cut it. Such a datagram must not be passed on.
    pub truncated: bool,
}

/// What an engine tells its user about. `token` is the number given when the socket was added.
pub trait Handler {
    /// A datagram arrived.
    fn datagram(&mut self, out: &mut dyn Outbox, token: u32, datagram: Datagram<'_>);
    /// A socket has an error to report (an ICMP message, for sockets with an error queue). Receiving goes on by itself.
    fn socket_error(&mut self, out: &mut dyn Outbox, token: u32, fd: BorrowedFd<'_>, errno: i32);
    /// A send failed; `tag` is the one given with it.
    fn send_failed(&mut self, out: &mut dyn Outbox, tag: u64, errno: i32);
    /// Somebody called the worker's waker.
    fn woken(&mut self, out: &mut dyn Outbox);
}

/// Where sends are queued. They leave at the latest when the turn ends.
pub trait Outbox {
    /// Queues a datagram from an unconnected socket. `tag` (56 bits) comes back if the send fails. The payload may be a
    /// received one (not copied) or any other (copied).
    fn send(&mut self, socket: SocketKey, to: &SocketAddr, payload: &[u8], tag: u64);
}

/// Counters an engine keeps about itself; read after a turn.
#[derive(Clone, Copy, Debug, Default)]
pub struct EngineStats {
    /// Receives armed again after something ended them.
    pub rearmed: u64,
    /// Times a receive found no buffer.
    pub buffers_exhausted: u64,
    /// Times the completion queue had overflowed.
    pub cq_overflow: u64,
}

/// How long a turn may wait: until something happens, or at most this long.
pub type Wait = Option<Duration>;
