//! The loop of a request/response server: receive, decide, reply now or later. What a reply looks like comes from a
//! [`Responder`].

use super::{Behaviour, Server, Shared};
use crate::error::Error;
use crate::report::ServeReport;
use crate::sys::{self, MAX_DATAGRAM, Poller, RecvBatch, SendBatch};
use foldhash::fast::RandomState;
use nix::errno::Errno;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use std::collections::{HashSet, VecDeque};
use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

/// Replies waiting for their delay at most; beyond that requests are dropped and counted.
const MAX_DELAYED: usize = 65_536;
/// Client addresses told apart at most.
const MAX_CLIENTS: usize = 1 << 20;
/// Longest sleep: how fast a stop or a stall is noticed.
const MAX_SLEEP: Duration = Duration::from_millis(5);
/// Receive buffer asked for, bytes.
const RECEIVE_BUFFER: usize = 8 << 20;

/// What to do with one request.
pub(super) enum Reply {
    /// Send the first bytes of the buffer.
    Send(usize),
    /// Not a request: ignore it.
    Malformed,
}

/// The protocol of a server.
pub(super) trait Responder: Send + 'static {
    /// Name in the report.
    const WORKLOAD: &'static str;
    /// Writes the reply.
    fn reply(&mut self, request: &[u8], buffer: &mut [u8], report: &mut ServeReport) -> Reply;
    /// Adds what it counted itself, at the end.
    fn finish(&mut self, _report: &mut ServeReport) {}
}

struct Delayed {
    due: Instant,
    to: SocketAddr,
    bytes: Vec<u8>,
}

/// Binds the sockets and starts the thread; every error of the options shows here.
pub(super) fn start<R: Responder>(
    listen: SocketAddr,
    tag: &str,
    behaviour: &Behaviour,
    responder: impl FnOnce(SocketAddr) -> R,
) -> Result<Server, Error> {
    behaviour.check()?;
    let (socket, address) = bind(listen, "listen")?;
    let replies_from = match behaviour.wrong_source {
        Some(ip) if ip == address.ip() => {
            return Err(Error::option(
                "wrong-source",
                format!("{ip} is the right address; give another one"),
            ));
        }
        Some(ip) if ip.is_ipv4() != address.is_ipv4() => {
            return Err(Error::option(
                "wrong-source",
                format!("{ip} is not of the family of --listen {listen}"),
            ));
        }
        Some(ip) => Some(bind(SocketAddr::new(ip, address.port()), "wrong-source")?.0),
        None => None,
    };
    let behaviour = behaviour.clone();
    let responder = responder(address);
    let report = ServeReport::new(R::WORKLOAD, address, tag);
    Server::start(address, move |shared| {
        run(&socket, replies_from.as_ref(), &behaviour, responder, report, shared)
    })
}

pub(super) fn bind(address: SocketAddr, option: &'static str) -> Result<(UdpSocket, SocketAddr), Error> {
    let socket = sys::udp_socket(address).map_err(|e| Error::system("cannot open a socket", e))?;
    socket
        .bind(&address.into())
        .map_err(|e| Error::option(option, format!("cannot bind {address}: {e}")))?;
    let socket = UdpSocket::from(sys::enlarge(socket, RECEIVE_BUFFER));
    let address = socket
        .local_addr()
        .map_err(|e| Error::system("cannot read the socket's address", e))?;
    Ok((socket, address))
}

fn run<R: Responder>(
    socket: &UdpSocket,
    replies_from: Option<&UdpSocket>,
    behaviour: &Behaviour,
    mut responder: R,
    mut report: ServeReport,
    shared: &Shared,
) -> Result<ServeReport, Error> {
    sys::precise_timers();
    let mut poller = Poller::new().map_err(|e| Error::system("cannot make an epoll set", e))?;
    poller
        .add(socket, 0)
        .map_err(|e| Error::system("cannot watch the socket", e))?;
    let mut random = SmallRng::from_rng(&mut rand::rng());
    let mut clients: HashSet<SocketAddr, RandomState> = HashSet::default();
    let mut receive = RecvBatch::new(MAX_DATAGRAM);
    let local = socket
        .local_addr()
        .map_err(|e| Error::system("cannot read the socket's address", e))?;
    let mut out = Out {
        socket: replies_from.unwrap_or(socket),
        copies: if behaviour.duplicate { 2 } else { 1 },
        batch: SendBatch::new(MAX_DATAGRAM, local),
    };
    let mut delayed: VecDeque<Delayed> = VecDeque::new();
    let mut spare: Vec<Vec<u8>> = Vec::new();
    let mut scratch = vec![0; MAX_DATAGRAM].into_boxed_slice();
    let mut ready = Vec::new();
    while !shared.stopped() {
        let sleep = delayed
            .front()
            .map_or(MAX_SLEEP, |d| d.due.saturating_duration_since(Instant::now()));
        poller
            .wait(sleep.min(MAX_SLEEP), &mut ready)
            .map_err(|e| Error::system("cannot wait for the socket", e))?;
        shared.sit_out_stall();
        let readable = !ready.is_empty();
        ready.clear();
        let now = Instant::now();
        if readable {
            // Level-triggered: errors and what is left come back with the next turn.
            let _ = receive.recv(socket, |request, from| {
                report.received += 1;
                if clients.len() < MAX_CLIENTS {
                    clients.insert(from);
                }
                if behaviour.silent {
                    report.silenced += 1;
                } else if behaviour.drop_percent > 0.0 && random.random::<f64>() * 100.0 < behaviour.drop_percent {
                    report.dropped += 1;
                } else if behaviour.delay.is_zero() {
                    out.reserve(&mut report);
                    let mut reply = Reply::Malformed;
                    out.batch.push(from, |buffer| {
                        reply = responder.reply(request, buffer, &mut report);
                        if let Reply::Send(length) = reply { length } else { 0 }
                    });
                    match reply {
                        Reply::Send(_) => out.copy(from),
                        Reply::Malformed => {
                            out.batch.pop();
                            report.malformed += 1;
                        }
                    }
                } else if delayed.len() == MAX_DELAYED {
                    report.delay_overflow += 1;
                } else if let Reply::Send(length) = responder.reply(request, &mut scratch, &mut report) {
                    let mut bytes = spare.pop().unwrap_or_default();
                    bytes.clear();
                    bytes.extend_from_slice(&scratch[..length]);
                    delayed.push_back(Delayed {
                        due: now + behaviour.delay,
                        to: from,
                        bytes,
                    });
                } else {
                    report.malformed += 1;
                }
            });
        }
        while delayed.front().is_some_and(|reply| reply.due <= now) {
            let Some(reply) = delayed.pop_front() else { break };
            out.reserve(&mut report);
            out.batch.push(reply.to, |buffer| {
                buffer[..reply.bytes.len()].copy_from_slice(&reply.bytes);
                reply.bytes.len()
            });
            out.copy(reply.to);
            spare.push(reply.bytes);
        }
        out.flush(&mut report);
    }
    report.pending = delayed.len() as u64;
    report.clients = clients.len() as u64;
    responder.finish(&mut report);
    Ok(report)
}

/// Replies on their way out.
struct Out<'a> {
    socket: &'a UdpSocket,
    copies: usize,
    batch: SendBatch,
}

impl Out<'_> {
    /// Makes room for one reply and its copy.
    fn reserve(&mut self, report: &mut ServeReport) {
        if self.batch.room() < self.copies {
            self.flush(report);
        }
    }

    /// Repeats the last reply if every reply is to be sent twice.
    fn copy(&mut self, to: SocketAddr) {
        if self.copies > 1 {
            self.batch.push_copy(to);
        }
    }

    fn flush(&mut self, report: &mut ServeReport) {
        let mut first = 0;
        while first < self.batch.len() {
            let (sent, failed) = match self.batch.send(self.socket, first) {
                Ok(sent) => (sent, 0),
                Err(Errno::EINTR) => (0, 0),
                Err(_) => (0, 1),
            };
            for i in first..first + sent {
                // With copies, the odd ones are the second of each pair.
                if i % self.copies == 0 {
                    report.answered += 1
                } else {
                    report.duplicated += 1
                }
            }
            report.send_errors += failed as u64;
            first += sent + failed;
        }
        self.batch.clear();
    }
}
