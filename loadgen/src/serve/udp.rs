//! A server for the `udp` client: returns each whole request as a reply with its own name in it.

use super::responder::{self, Reply, Responder};
use super::{Behaviour, Server};
use crate::error::Error;
use crate::report::ServeReport;
use crate::udp::payload::{self, HEADER, Kind, Payload};
use std::net::SocketAddr;

/// How the server answers.
#[derive(Debug, Clone)]
pub struct Config {
    /// Where it listens; port 0 lets the kernel choose.
    pub listen: SocketAddr,
    /// Its name, told in replies that have room for it; at most 255 bytes.
    pub tag: String,
    /// Size of replies; 0: as large as the request.
    pub size: usize,
    /// Answer with another sequence number than asked.
    pub wrong_id: bool,
    /// Damage the last byte of every reply.
    pub corrupt: bool,
    /// How requests are treated.
    pub behaviour: Behaviour,
}

impl Config {
    /// Well-behaved, on this address, under this tag.
    pub fn new(listen: SocketAddr, tag: &str) -> Self {
        let behaviour = Behaviour::default();
        Config {
            listen,
            tag: tag.to_owned(),
            size: 0,
            wrong_id: false,
            corrupt: false,
            behaviour,
        }
    }
}

/// Starts the server; it runs until stopped.
///
/// # Errors
/// [`Error::Option`] when an option cannot work or an address cannot be bound.
pub fn start(config: &Config) -> Result<Server, Error> {
    if config.tag.len() > 255 {
        return Err(Error::option("tag", "is longer than 255 bytes"));
    }
    if config.size != 0 && !(HEADER..=crate::sys::MAX_DATAGRAM).contains(&config.size) {
        return Err(Error::option(
            "size",
            format!("{} is not 0 or {HEADER} to 65507 bytes", config.size),
        ));
    }
    responder::start(config.listen, &config.tag, &config.behaviour, |_| Udp {
        config: config.clone(),
    })
}

struct Udp {
    config: Config,
}

impl Responder for Udp {
    const WORKLOAD: &'static str = "serve-udp";

    fn reply(&mut self, request: &[u8], buffer: &mut [u8], _report: &mut ServeReport) -> Reply {
        let whole = Payload::parse(request).filter(|payload| payload.kind == Kind::Request && payload.is_whole());
        let Some(payload) = whole else { return Reply::Malformed };
        let size = if self.config.size == 0 {
            request.len()
        } else {
            self.config.size
        };
        let seq = if self.config.wrong_id {
            !payload.seq
        } else {
            payload.seq
        };
        let length = payload::write(buffer, size, Kind::Reply, payload.run, seq, self.config.tag.as_bytes());
        match length.checked_sub(1).and_then(|last| buffer.get_mut(last)) {
            Some(last) if self.config.corrupt => *last ^= 0xff,
            Some(_) => {}
            None => return Reply::Malformed,
        }
        Reply::Send(length)
    }
}
