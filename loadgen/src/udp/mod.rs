//! The request/response client for plain UDP services: numbered datagrams whose every byte is checked. Works with
//! `serve udp` and with any server that sends back what it got.

pub mod payload;

use crate::client::{self, Load, Protocol, Query, Verdict, Who};
use crate::error::Error;
use crate::report::Report;
use payload::{HEADER, Kind, Payload};
use std::net::SocketAddr;

/// What to send and how much of it.
#[derive(Debug, Clone)]
pub struct Config {
    /// Rate, ports, timeouts.
    pub load: Load,
    /// Size of each request's UDP payload, 24 to 65 507 bytes.
    pub size: usize,
}

impl Config {
    /// Requests of 64 bytes.
    pub fn new(server: SocketAddr) -> Self {
        Config {
            load: Load::new(server),
            size: 64,
        }
    }
}

/// Sends the requests and waits for the outcome of each. Blocks for the duration, the timeout and the linger time.
///
/// # Errors
/// [`Error::Option`] before anything is sent; [`Error::System`] when sockets cannot be watched.
pub fn run(config: &Config) -> Result<Report, Error> {
    if !(HEADER..=crate::sys::MAX_DATAGRAM).contains(&config.size) {
        return Err(Error::option(
            "size",
            format!("{} is not {HEADER} to 65507 bytes", config.size),
        ));
    }
    let run = rand::random();
    client::run("udp", &config.load, || Udp { size: config.size, run })
}

struct Udp {
    size: usize,
    /// Tells this run's datagrams from those of others.
    run: u64,
}

impl Protocol for Udp {
    const MAX_DATAGRAM: usize = crate::sys::MAX_DATAGRAM;

    fn key(&mut self, seq: u64) -> u64 {
        seq
    }

    fn write(&self, query: Query, buffer: &mut [u8]) -> usize {
        payload::write(buffer, self.size, Kind::Request, self.run, query.key, b"")
    }

    fn key_of(&self, datagram: &[u8]) -> Option<u64> {
        Payload::parse(datagram)
            .filter(|payload| payload.run == self.run)
            .map(|payload| payload.seq)
    }

    fn judge<'a>(&self, _query: Query, datagram: &'a [u8]) -> Verdict<'a> {
        match Payload::parse(datagram).filter(Payload::is_whole) {
            Some(payload) => {
                let who = if payload.tag.is_empty() {
                    Who::Unknown
                } else {
                    Who::Text(payload.tag)
                };
                Verdict::Right {
                    who,
                    rcode: None,
                    truncated: false,
                }
            }
            None => Verdict::Wrong,
        }
    }
}
