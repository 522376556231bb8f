//! The open-loop client: a fixed schedule, sockets, outstanding queries and exact accounting. What a query looks like
//! and what a right answer is comes from a `Protocol`; this room knows nothing of DNS.

mod judge;
mod load;
pub(crate) mod oneway;
mod outstanding;
mod sockets;
mod stats;
mod timeline;
mod worker;

pub use load::{Live, Load, Ports, Retransmit};

use crate::error::Error;
use crate::report::Report;
use load::Plan;
use stats::Stats;
use std::net::IpAddr;
use std::time::{Duration, Instant};
use worker::Worker;

/// One query as a protocol sees it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Query {
    /// Number of the query in the whole run, from 0.
    pub seq: u64,
    /// What the answer will repeat: a DNS id or a sequence number.
    pub key: u64,
}

/// Who sent an answer, as the answer itself says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Who<'a> {
    Unknown,
    Text(&'a [u8]),
    Address(IpAddr),
}

/// What a datagram with a known key is worth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict<'a> {
    /// The answer asked for.
    Right {
        who: Who<'a>,
        rcode: Option<u8>,
        truncated: bool,
    },
    /// A well-formed answer that says the query failed.
    Refused { rcode: u8 },
    /// Not an answer to this query.
    Wrong,
}

/// How queries of one kind are written and answers are judged.
pub(crate) trait Protocol: Send {
    /// Largest datagram written or read.
    const MAX_DATAGRAM: usize;
    /// Queries sent back-to-back on one socket as one unit (an A+AAAA pair is 2).
    fn group(&self) -> u64 {
        1
    }
    /// A key for query `seq`. Random keys may be asked for again when the first one is in use on that socket.
    fn key(&mut self, seq: u64) -> u64;
    /// Writes the query and returns its length.
    fn write(&self, query: Query, buffer: &mut [u8]) -> usize;
    /// The key an incoming datagram carries, if it is an answer at all.
    fn key_of(&self, datagram: &[u8]) -> Option<u64>;
    /// Judges a datagram that carries this query's key and came from the server.
    fn judge<'a>(&self, query: Query, datagram: &'a [u8]) -> Verdict<'a>;
}

/// Runs the load with one protocol instance per thread and returns the merged report.
pub(crate) fn run<P: Protocol>(
    workload: &'static str,
    load: &Load,
    mut protocol: impl FnMut() -> P,
) -> Result<Report, Error> {
    let group = protocol().group();
    let plan = Plan::new(load, group)?;
    let mut workers = Vec::with_capacity(load.threads);
    for thread in 0..load.threads {
        workers.push(Worker::new(load, &plan, thread, protocol())?);
    }
    // A little later than now, so that every thread is waiting when the first query is due.
    let start = Instant::now() + Duration::from_millis(5);
    let results: Vec<Result<Stats, Error>> = std::thread::scope(|scope| {
        let threads: Vec<_> = workers
            .into_iter()
            .enumerate()
            .map(|(i, worker)| {
                let cpu = load.pin.get(i).copied();
                scope.spawn(move || {
                    prepare_thread(cpu)?;
                    worker.run(start)
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|t| t.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    });
    let mut total = Stats::new(&plan);
    for result in results {
        total.merge(result?);
    }
    Ok(total.into_report(workload, load, &plan))
}

/// Pins the calling thread, if asked, and makes its timers exact.
fn prepare_thread(cpu: Option<usize>) -> Result<(), Error> {
    if let Some(cpu) = cpu {
        crate::sys::pin(cpu).map_err(|e| Error::option("pin", format!("CPU {cpu}: {e}")))?;
    }
    crate::sys::precise_timers();
    Ok(())
}
