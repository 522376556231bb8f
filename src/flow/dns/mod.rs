//! DNS over UDP: state per query.
//!
//! An endpoint is chosen for each query, so a client's fixed port never pins a dead endpoint. A query is kept until it is
//! answered: when an endpoint refuses, everything outstanding there moves at once; when it stays silent, the query is
//! asked once more elsewhere, as far as the retry budget allows; the first answer wins. Messages pass unchanged.
//!
//! Life of a query: [`Core::query`] → outstanding at one endpoint (two after a retry) → answered, or SERVFAIL when nothing
//! is left to ask, or forgotten at the end of its life.

mod budget;
mod core;
mod latency;
pub mod message;
mod queries;
#[cfg(test)]
mod tests;

pub use self::core::Core;

use crate::flow::Millis;
use crate::telemetry::DropReason;
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;

/// Bounds and times of a core.
#[derive(Clone, Debug)]
pub struct Config {
    /// Most queries outstanding; beyond it the oldest one is given up.
    pub max_outstanding: usize,
    /// Most bytes of queries kept for being asked again.
    pub stored_bytes: usize,
    /// Life of a query without an answer. glibc and c-ares wait 5 s, so a little more.
    pub timeout: Millis,
    /// Shortest wait before a silent endpoint's query is asked elsewhere.
    pub retry_min: Millis,
    /// Longest such wait.
    pub retry_max: Millis,
    /// Upstream sockets for IPv4 endpoints.
    pub sockets_v4: Range<u16>,
    /// Upstream sockets for IPv6 endpoints.
    pub sockets_v6: Range<u16>,
}

/// An endpoint chosen for a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Where to send it.
    pub endpoint: SocketAddr,
    /// Its rank's number, for the counters.
    pub rank: u8,
    /// Chosen from a worse rank than the best one listed, because of health.
    pub fallback: bool,
    /// Chosen although nothing was acceptable.
    pub panic: bool,
}

/// What happened, for the counters of a service port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Count {
    /// A client's datagram went to an endpoint.
    Forwarded {
        /// The choice.
        choice: Choice,
        /// Payload bytes.
        bytes: usize,
    },
    /// An answer went back.
    Answered {
        /// Payload bytes.
        bytes: usize,
        /// The response code.
        rcode: u8,
    },
    /// We answered SERVFAIL ourselves.
    Synthesized,
    /// Asked again elsewhere after silence.
    Retry,
    /// Moved to another endpoint after a refusal.
    Moved,
    /// Given up without an answer.
    Unanswered,
    /// A datagram was dropped.
    Dropped(DropReason),
}

/// Identifies one sending of one query; comes back if the send fails. Fits into [`SendTag::BITS`] bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendTag(pub u64);

impl SendTag {
    /// How many bits a tag takes.
    pub const BITS: u32 = 41;
}

/// What the core needs from outside. `service` is the number its caller gave the service port.
pub trait Shell {
    /// A random number.
    fn random(&mut self) -> u64;

    /// Chooses an endpoint, health respected unless `any_health`. `exclude` says which ones this query has tried. When
    /// nothing is acceptable the choice has `panic` set and may be an excluded one. `None` where the policy allows no
    /// endpoint at all. `first` is set for a query's first choice (session affinity counts only there).
    fn choose(
        &mut self,
        service: u32,
        client: IpAddr,
        first: bool,
        any_health: bool,
        exclude: &dyn Fn(&SocketAddr) -> bool,
    ) -> Option<Choice>;

    /// An endpoint's rank if the policy still allows it.
    fn rank(&self, service: u32, endpoint: &SocketAddr) -> Option<u8>;

    /// Evidence: an endpoint answered.
    fn answered(&mut self, endpoint: &SocketAddr);

    /// Evidence: an endpoint refused, or cannot be reached.
    fn refused(&mut self, endpoint: &SocketAddr);

    /// Sends to an endpoint from one of the upstream sockets.
    fn send_upstream(&mut self, socket: u16, endpoint: &SocketAddr, message: &[u8], tag: SendTag);

    /// Sends to a client from the service port's VIP.
    fn send_client(&mut self, service: u32, client: &SocketAddr, message: &[u8]);

    /// Counts.
    fn count(&mut self, service: u32, what: Count);

    /// Counts an answer that belongs to no query, so to no service port.
    fn stray_answer(&mut self);
}
