//! Per-worker counters with one writer each, and the registry that sums them.

use crate::model::{IpFamily, ServicePortKey};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Ranks a counter distinguishes: node, up to six levels, cluster. Configuration refuses more levels.
pub const MAX_RANKS: usize = 8;

/// A number that one thread raises and any thread reads.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `n`. Only the owning thread may call this: it is a plain load and store, not a locked instruction.
    pub fn add(&self, n: u64) {
        self.0
            .store(self.0.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }

    /// Takes back what was counted too early: a send that the kernel refused after it was queued.
    pub fn take_back(&self, n: u64) {
        self.0
            .store(self.0.load(Ordering::Relaxed).wrapping_sub(n), Ordering::Relaxed);
    }

    /// Sets a gauge.
    pub fn set(&self, n: u64) {
        self.0.store(n, Ordering::Relaxed);
    }

    /// The value now.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

macro_rules! drop_reasons {
    ($($(#[$doc:meta])* $variant:ident => $name:literal,)*) => {
        /// Why a datagram was not forwarded. Every drop has exactly one reason and is counted.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum DropReason { $($(#[$doc])* $variant,)* }

        impl DropReason {
            /// All reasons.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The metric label.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }
        }
    };
}

drop_reasons! {
    /// The policy allows no endpoint (`Local` without a local one), or none exists.
    NoEndpoint => "no_endpoint",
    /// The kernel cut the datagram or its control data: never forwarded in part.
    Truncated => "truncated",
    /// Not what the profile carries (no DNS header, a response sent as a query).
    Malformed => "malformed",
    /// A table of outstanding work is full.
    Limit => "limit",
    /// No upstream socket was free of a clash with a query under way.
    PoolExhausted => "pool_exhausted",
    /// The kernel refused to send it.
    SendFailed => "send_failed",
    /// An answer from an address other than the endpoint asked.
    WrongSource => "wrong_source",
    /// The kernel dropped it: our socket's receive buffer was full.
    SocketOverflow => "socket_overflow",
    /// The kernel refused to send an answer back.
    AnswerNotSent => "answer_not_sent",
}

impl DropReason {
    /// Whether it is about answers. Offered datagrams are forwarded or dropped for one of the other reasons.
    pub fn is_answer(self) -> bool {
        matches!(self, Self::WrongSource | Self::AnswerNotSent)
    }
}

/// What one worker counted for one service port and family.
#[derive(Debug, Default)]
pub struct ServicePortCounters {
    /// Datagrams received from clients.
    pub received: Counter,
    /// Their bytes.
    pub received_bytes: Counter,
    /// Datagrams sent to endpoints the first time, by rank.
    pub forwarded: [Counter; MAX_RANKS],
    /// Their bytes.
    pub forwarded_bytes: Counter,
    /// Answers sent back to clients.
    pub answered: Counter,
    /// Their bytes.
    pub answered_bytes: Counter,
    /// Answers sent back, by the low four bits of their response code (`dns` profile).
    pub rcodes: [Counter; 16],
    /// Answers we made ourselves (SERVFAIL) because no endpoint was left to ask.
    pub synthesized: Counter,
    /// Queries asked again elsewhere because the first endpoint stayed silent.
    pub retries: Counter,
    /// Queries moved to another endpoint because theirs refused or went away.
    pub moved: Counter,
    /// New flows sent to a worse rank than the best one listed, because of health.
    pub fallbacks: Counter,
    /// Picks under the panic rule: nothing was usable, so everything was.
    pub panics: Counter,
    /// Queries that got no answer in their life time.
    pub unanswered: Counter,
    /// Datagrams dropped, by [`DropReason`].
    pub dropped: [Counter; DropReason::ALL.len()],
}

impl ServicePortCounters {
    /// Counts one dropped datagram.
    pub fn drop_one(&self, reason: DropReason) {
        self.dropped[reason as usize].add(1);
    }
}

/// What one worker counted about itself.
#[derive(Debug, Default)]
pub struct WorkerCounters {
    /// Loop turns; the watchdog looks at whether it moves.
    pub turns: Counter,
    /// Generation of the table in use.
    pub table_generation: Counter,
    /// Queries waiting for an answer now.
    pub outstanding: Counter,
    /// Bytes of queries kept for being asked again.
    pub stored_bytes: Counter,
    /// Multishot receives armed again, whatever ended them.
    pub rearmed: Counter,
    /// Times the buffer ring ran empty.
    pub buffers_exhausted: Counter,
    /// Times the completion queue overflowed into the kernel's backlog.
    pub cq_overflow: Counter,
    /// Socket errors read from error queues (ICMP).
    pub socket_errors: Counter,
    /// Answers on upstream sockets that belong to no service port (wrong source, never asked for).
    pub stray_answers: Counter,
}

/// Sums of one service port and family over all workers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServicePortSnapshot {
    /// See [`ServicePortCounters::received`].
    pub received: u64,
    /// See [`ServicePortCounters::received_bytes`].
    pub received_bytes: u64,
    /// See [`ServicePortCounters::forwarded`].
    pub forwarded: [u64; MAX_RANKS],
    /// See [`ServicePortCounters::forwarded_bytes`].
    pub forwarded_bytes: u64,
    /// See [`ServicePortCounters::answered`].
    pub answered: u64,
    /// See [`ServicePortCounters::answered_bytes`].
    pub answered_bytes: u64,
    /// See [`ServicePortCounters::rcodes`].
    pub rcodes: [u64; 16],
    /// See [`ServicePortCounters::synthesized`].
    pub synthesized: u64,
    /// See [`ServicePortCounters::retries`].
    pub retries: u64,
    /// See [`ServicePortCounters::moved`].
    pub moved: u64,
    /// See [`ServicePortCounters::fallbacks`].
    pub fallbacks: u64,
    /// See [`ServicePortCounters::panics`].
    pub panics: u64,
    /// See [`ServicePortCounters::unanswered`].
    pub unanswered: u64,
    /// See [`ServicePortCounters::dropped`], in the order of [`DropReason::ALL`].
    pub dropped: [u64; DropReason::ALL.len()],
}

impl ServicePortSnapshot {
    fn add(&mut self, c: &ServicePortCounters) {
        self.received += c.received.get();
        self.received_bytes += c.received_bytes.get();
        for (sum, c) in self.forwarded.iter_mut().zip(&c.forwarded) {
            *sum += c.get();
        }
        self.forwarded_bytes += c.forwarded_bytes.get();
        self.answered += c.answered.get();
        self.answered_bytes += c.answered_bytes.get();
        for (sum, c) in self.rcodes.iter_mut().zip(&c.rcodes) {
            *sum += c.get();
        }
        self.synthesized += c.synthesized.get();
        self.retries += c.retries.get();
        self.moved += c.moved.get();
        self.fallbacks += c.fallbacks.get();
        self.panics += c.panics.get();
        self.unanswered += c.unanswered.get();
        for (sum, c) in self.dropped.iter_mut().zip(&c.dropped) {
            *sum += c.get();
        }
    }
}

type PortCounters = BTreeMap<(ServicePortKey, IpFamily), Vec<Arc<ServicePortCounters>>>;

/// All counters of the process. Locked only by the control thread and by a worker that opens a VIP (a rare event), never
/// per packet. Bounded by the number of service ports taken.
#[derive(Debug)]
pub struct Registry {
    workers: Vec<Arc<WorkerCounters>>,
    ports: Mutex<PortCounters>,
}

impl Registry {
    /// A registry for `workers` workers.
    pub fn new(workers: usize) -> Self {
        Self {
            workers: (0..workers).map(|_| Arc::default()).collect(),
            ports: Mutex::default(),
        }
    }

    /// One worker's own counters.
    pub fn worker(&self, index: usize) -> Option<Arc<WorkerCounters>> {
        self.workers.get(index).cloned()
    }

    /// All workers' counters.
    pub fn workers(&self) -> &[Arc<WorkerCounters>] {
        &self.workers
    }

    /// One worker's counters for a service port, made on first use and kept: counters never go back while a Service is
    /// taken, released and taken again.
    pub fn service_port(&self, worker: usize, key: &ServicePortKey, family: IpFamily) -> Arc<ServicePortCounters> {
        let mut ports = self.ports.lock().unwrap_or_else(PoisonError::into_inner);
        let per_worker = ports
            .entry((key.clone(), family))
            .or_insert_with(|| (0..self.workers.len()).map(|_| Arc::default()).collect());
        per_worker.get(worker).cloned().unwrap_or_default()
    }

    /// Forgets service ports that `keep` does not name; called when Services are deleted.
    pub fn retain(&self, keep: impl Fn(&ServicePortKey, IpFamily) -> bool) {
        self.ports
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .retain(|(key, family), _| keep(key, *family));
    }

    /// Sums over all workers, by service port and family.
    pub fn snapshot(&self) -> BTreeMap<(ServicePortKey, IpFamily), ServicePortSnapshot> {
        let ports = self.ports.lock().unwrap_or_else(PoisonError::into_inner);
        ports
            .iter()
            .map(|(key, counters)| {
                let mut sum = ServicePortSnapshot::default();
                for c in counters {
                    sum.add(c);
                }
                (key.clone(), sum)
            })
            .collect()
    }
}
