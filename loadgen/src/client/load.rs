//! What load to offer: the options every request/response client shares, checked and turned into a plan.

use crate::error::Error;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;

/// Timeline intervals kept at most; each takes about 10 KB per thread once it has answers.
const MAX_INTERVALS: u64 = 6_000;
/// Queries per run at most: sequence numbers stay exact and the run ends within a human's patience.
const MAX_QUERIES: f64 = 1e12;

/// Which client ports queries come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ports {
    /// A new socket, so a new port, for each query (for each pair): what glibc and musl do.
    Fresh,
    /// This many sockets, used in turn for the whole run: c-ares, nginx, Netty.
    Fixed {
        /// Number of sockets, over all threads.
        clients: usize,
    },
}

/// When an unanswered query is sent again. Same socket, same id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Retransmit {
    /// Never.
    None,
    /// After 5 s, given up after 10 s (resolv.conf(5): `timeout:5 attempts:2`).
    Glibc,
    /// After 2.5 s, given up after 5 s (musl res_msend.c).
    Musl,
    /// After 2 s and 6 s, given up after 14 s (ares_init_options(3): 2 s, three tries, doubled each time).
    CAres,
    /// At these distances from the first send, given up 2 s after the last.
    After(Vec<Duration>),
}

impl Retransmit {
    /// The distances from the first send.
    pub fn offsets(&self) -> Vec<Duration> {
        match self {
            Retransmit::None => vec![],
            Retransmit::Glibc => vec![Duration::from_secs(5)],
            Retransmit::Musl => vec![Duration::from_millis(2_500)],
            Retransmit::CAres => vec![Duration::from_secs(2), Duration::from_secs(6)],
            Retransmit::After(offsets) => offsets.clone(),
        }
    }

    /// When this kind of client gives up.
    pub fn gives_up_after(&self) -> Duration {
        match self {
            Retransmit::None => Duration::from_secs(2),
            Retransmit::After(offsets) => Duration::from_secs(2) + offsets.last().copied().unwrap_or_default(),
            Retransmit::Glibc => Duration::from_secs(10),
            Retransmit::Musl => Duration::from_secs(5),
            Retransmit::CAres => Duration::from_secs(14),
        }
    }
}

/// Running totals, for a progress display while the run goes on.
#[derive(Debug, Default)]
pub struct Live {
    /// Queries sent so far.
    pub sent: AtomicU64,
    /// Queries answered so far.
    pub answered: AtomicU64,
    /// Queries failed so far.
    pub failed: AtomicU64,
}

/// The load a request/response client offers.
#[derive(Debug, Clone)]
pub struct Load {
    /// The address dialled; an answer from any other address or port is a wrong-source answer.
    pub server: SocketAddr,
    /// Queries per second, over all threads.
    pub rate: f64,
    /// For how long queries are sent.
    pub duration: Duration,
    /// Client ports.
    pub ports: Ports,
    /// A query without a right answer this long after its first send has failed. `None`: what `retransmit` says.
    pub timeout: Option<Duration>,
    /// When unanswered queries are sent again.
    pub retransmit: Retransmit,
    /// For how long a finished query is remembered, so that duplicate and late answers are recognised; also how long
    /// the run listens after its last query ended. With fresh ports, at most 2 048 finished queries are remembered.
    pub linger: Duration,
    /// Source address; the port is always the kernel's choice.
    pub bind: Option<IpAddr>,
    /// Sending threads.
    pub threads: usize,
    /// CPU of each thread; empty: not pinned.
    pub pin: Vec<usize>,
    /// Spin for the last 50 µs before each send instead of sleeping: more exact, costs CPU.
    pub spin: bool,
    /// Length of a timeline interval. `None`: 100 ms, or longer for runs over 10 minutes.
    pub interval: Option<Duration>,
    /// Open sockets at most, over all threads (fresh ports). 0: what the limit of open files allows, at most 16 384.
    pub max_sockets: usize,
    /// Receive buffer of each socket, bytes; 0: the system's default with fresh ports, 4 MiB with fixed ones.
    pub receive_buffer: usize,
    /// Where to show running totals.
    pub live: Option<Arc<Live>>,
    /// Set to true to stop sending; outstanding queries are still waited for.
    pub stop: Option<Arc<AtomicBool>>,
}

impl Load {
    /// 100 queries/s for 10 s from fresh ports.
    pub fn new(server: SocketAddr) -> Self {
        Load {
            server,
            rate: 100.0,
            duration: Duration::from_secs(10),
            ports: Ports::Fresh,
            timeout: None,
            retransmit: Retransmit::None,
            linger: Duration::from_millis(500),
            bind: None,
            threads: 1,
            pin: vec![],
            spin: false,
            interval: None,
            max_sockets: 0,
            receive_buffer: 0,
            live: None,
            stop: None,
        }
    }

    /// The timeout in force.
    pub fn effective_timeout(&self) -> Duration {
        self.timeout.unwrap_or_else(|| self.retransmit.gives_up_after())
    }
}

/// A checked [`Load`] in nanoseconds.
#[derive(Debug)]
pub(super) struct Plan {
    pub queries: u64,
    pub group: u64,
    pub ns_per_query: f64,
    pub timeout_ns: u64,
    pub retransmit_ns: Vec<u64>,
    pub linger_ns: u64,
    pub interval_ns: u64,
    pub intervals: usize,
    /// After this, queries still unsent are not sent: the generator cannot hold the rate.
    pub cutoff_ns: u64,
    pub sockets_per_thread: usize,
}

pub(super) fn ns(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

impl Plan {
    pub fn new(load: &Load, group: u64) -> Result<Self, Error> {
        if !(load.rate.is_finite() && load.rate > 0.0) {
            return Err(Error::option("rate", "must be above 0 queries per second"));
        }
        if load.duration.is_zero() {
            return Err(Error::option("duration", "must be above 0 seconds"));
        }
        let wanted = (load.rate * load.duration.as_secs_f64()).round();
        if !(1.0..=MAX_QUERIES).contains(&wanted) {
            let why = format!(
                "{} queries/s for {:?} is {wanted} queries; give 1 to 10^12",
                load.rate, load.duration
            );
            return Err(Error::option("rate", why));
        }
        // In range and whole, checked above.
        let queries = (wanted as u64).div_ceil(group) * group;
        if load.threads == 0 || load.threads > 256 {
            return Err(Error::option("threads", "must be 1 to 256"));
        }
        if !load.pin.is_empty() && load.pin.len() != load.threads {
            return Err(Error::option(
                "pin",
                format!(
                    "names {} CPUs for {} threads; give one for each thread",
                    load.pin.len(),
                    load.threads
                ),
            ));
        }
        if load.server.port() == 0 {
            return Err(Error::option("server", "port 0 cannot be dialled; give IP:PORT"));
        }
        if let Some(bind) = load.bind
            && bind.is_ipv4() != load.server.is_ipv4()
        {
            let why = format!("{bind} is not of the family of --server {}", load.server);
            return Err(Error::option("bind", why));
        }
        let timeout = load.effective_timeout();
        if timeout.is_zero() || timeout > Duration::from_secs(100) {
            return Err(Error::option("timeout", "must be above 0 and at most 100000 ms"));
        }
        let offsets = load.retransmit.offsets();
        if offsets.len() > 16 || !offsets.is_sorted() || offsets.iter().any(Duration::is_zero) {
            return Err(Error::option(
                "retransmit",
                "times must be above 0, in rising order, at most 16",
            ));
        }
        if let Some(first) = offsets.first().filter(|&&first| first >= timeout) {
            let why = format!("{timeout:?} is over before --retransmit sends again, after {first:?}");
            return Err(Error::option("timeout", why));
        }
        if load.linger > Duration::from_secs(60) {
            return Err(Error::option("linger", "must be at most 60000 ms"));
        }
        let (interval_ns, intervals) = intervals(load)?;
        let files = crate::sys::raise_open_files().saturating_sub(64);
        let sockets = match load.ports {
            Ports::Fixed { clients } => {
                if clients < load.threads {
                    return Err(Error::option(
                        "clients",
                        format!(
                            "{clients} sockets for {} threads; each needs one at least",
                            load.threads
                        ),
                    ));
                }
                if clients > files {
                    let why = format!("{clients} sockets, but the limit of open files (ulimit -n) leaves {files}");
                    return Err(Error::option("clients", why));
                }
                clients
            }
            Ports::Fresh if load.max_sockets > files => {
                let why = format!(
                    "{}, but the limit of open files (ulimit -n) leaves {files}",
                    load.max_sockets
                );
                return Err(Error::option("max-sockets", why));
            }
            Ports::Fresh if load.max_sockets > 0 => load.max_sockets,
            Ports::Fresh => files.min(16_384),
        };
        let duration_ns = ns(load.duration);
        Ok(Plan {
            queries,
            group,
            ns_per_query: 1e9 / load.rate,
            timeout_ns: ns(timeout),
            retransmit_ns: offsets.into_iter().map(ns).collect(),
            linger_ns: ns(load.linger),
            interval_ns,
            intervals,
            cutoff_ns: duration_ns + (duration_ns / 10).max(200_000_000),
            sockets_per_thread: (sockets / load.threads).max(1),
        })
    }

    /// When a query is due, from the start of the run.
    pub fn intended_ns(&self, seq: u64) -> u64 {
        // All queries of a group are due together. Exact to well below a microsecond for any run of days.
        (((seq / self.group) * self.group) as f64 * self.ns_per_query) as u64
    }
}

fn intervals(load: &Load) -> Result<(u64, usize), Error> {
    let duration = ns(load.duration);
    let interval = match load.interval {
        Some(interval) if interval < Duration::from_millis(1) => {
            return Err(Error::option("interval", "must be at least 1 ms"));
        }
        Some(interval) if duration / ns(interval) > MAX_INTERVALS => {
            let least = (duration / MAX_INTERVALS).div_ceil(1_000_000);
            let why = format!(
                "a run of {:?} needs at least {least} ms (at most {MAX_INTERVALS} intervals)",
                load.duration
            );
            return Err(Error::option("interval", why));
        }
        Some(interval) => ns(interval),
        None => 100_000_000_u64.max((duration / MAX_INTERVALS).next_multiple_of(1_000_000)),
    };
    // At most MAX_INTERVALS + 1.
    Ok((
        interval,
        usize::try_from(duration.div_ceil(interval)).unwrap_or(0).max(1),
    ))
}
