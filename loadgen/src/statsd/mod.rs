//! The one-way client: statsd metrics whose values are sequence numbers, so that the receiving side can say exactly
//! what is missing. Nothing is answered and nothing is sent twice.

pub mod message;

use crate::client::{Load, Ports, oneway};
use crate::error::Error;
use crate::report::OneWayReport;
use std::net::SocketAddr;

/// What to send and how much of it.
#[derive(Debug, Clone)]
pub struct Config {
    /// Rate and sockets. Only fixed ports make sense (a statsd client keeps its socket); timeouts, retransmission and
    /// linger are not used.
    pub load: Load,
    /// Sizes of the UDP payload in bytes, used in turn.
    pub sizes: Vec<usize>,
}

impl Config {
    /// 64-byte datagrams from 8 senders.
    pub fn new(server: SocketAddr) -> Self {
        let mut load = Load::new(server);
        load.ports = Ports::Fixed { clients: 8 };
        Config { load, sizes: vec![64] }
    }
}

/// Sends the metrics. Blocks for the duration.
///
/// # Errors
/// [`Error::Option`] before anything is sent; [`Error::System`] when sockets cannot be watched.
pub fn run(config: &Config) -> Result<OneWayReport, Error> {
    if config.load.ports == Ports::Fresh {
        return Err(Error::option(
            "ports",
            "must be fixed: a statsd client keeps its socket",
        ));
    }
    if config.sizes.is_empty() {
        return Err(Error::option("size", "names no size"));
    }
    for &size in &config.sizes {
        if !(message::MIN_SIZE..=crate::sys::MAX_DATAGRAM).contains(&size) {
            return Err(Error::option(
                "size",
                format!("{size} is not {} to 65507 bytes", message::MIN_SIZE),
            ));
        }
    }
    let run: u32 = rand::random();
    let mut report = oneway::run(&config.load, |sender, seq, buffer| {
        // A size for each number, whichever sender sends it; the index is below the list's length.
        let size = config.sizes[(seq % config.sizes.len() as u64) as usize];
        message::write(buffer, size, run, sender, seq)
    })?;
    report.workload = "statsd".to_owned();
    report.run = message::run_name(run);
    Ok(report)
}
