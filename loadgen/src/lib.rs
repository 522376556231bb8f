//! Open-loop load generator for UDP services: DNS queries, request/response datagrams and one-way statsd metrics,
//! together with the servers that answer them.
//!
//! Open loop means: every query has its place in time before the run starts, it is sent then whether or not earlier
//! queries were answered, and its latency counts from that intended instant. A server that stalls for 300 ms
//! therefore shows 300 ms, not the one query that happened to be waiting (no coordinated omission).
//!
//! Each query ends in exactly one of two ways, answered or failed, and everything else that arrives is counted under
//! the reason why it was no right answer: [`report::Report`].
//!
//! ```no_run
//! use nodeward_loadgen::dns;
//!
//! let mut config = dns::Config::new("10.96.0.10:53".parse()?);
//! config.load.rate = 2_000.0;
//! let report = dns::run(&config)?;
//! println!("{} of {} failed", report.failed, report.queries);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![deny(unsafe_code)]

pub mod client;
pub mod dns;
pub mod error;
pub mod report;
pub mod serve;
pub mod statsd;
pub mod udp;

mod sys;

pub use error::Error;
