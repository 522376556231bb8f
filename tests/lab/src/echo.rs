//! A UDP and TCP server whose answers say who they are, and which can misbehave on demand.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::dnswire::echo_reply;
use crate::netns::{Stop, lock};
use crate::node::Host;
use crate::{Error, Result};

/// What the server does with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EchoMode {
    /// Answers `TAG|` followed by the request.
    Answer,
    /// Answers the request as it is; a request of 65,507 bytes fits back.
    Echo,
    /// Answers a DNS query with the tag and what followed the question, see [`crate::echo_reply`]; ignores anything else.
    Dns,
    /// Answers like [`EchoMode::Answer`] after a delay. Requests queue behind each other.
    Delay(Duration),
    /// Answers `TAG|` filled up to exactly this many bytes, at most 65,507.
    Size(usize),
    /// Receives and stays silent.
    Silent,
    /// UDP: answers from another port, a DNS query like [`EchoMode::Dns`], anything else like [`EchoMode::Answer`].
    WrongSource,
}

/// One request as the server saw it.
#[derive(Clone, Debug)]
pub struct Seen {
    /// The sender.
    pub peer: SocketAddr,
    /// Bytes received.
    pub length: usize,
    /// When.
    pub at: Instant,
}

/// Peers remembered; older ones are forgotten, the count goes on.
const REMEMBERED: usize = 10_000;
/// How often blocked threads look whether they should end.
const TICK: Duration = Duration::from_millis(20);

/// An echo server with both protocols on one port of a pod or node, in threads of this process. Stops when dropped.
pub struct EchoServer {
    shared: Arc<Shared>,
}

struct Shared {
    tag: String,
    address: SocketAddr,
    mode: Mutex<EchoMode>,
    seen: Mutex<VecDeque<Seen>>,
    count: AtomicU64,
    stop: AtomicBool,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl EchoServer {
    /// Starts a server on all addresses of one family of `host`. The address of [`EchoServer::address`] is the host's own.
    pub fn start(host: &impl Host, like: std::net::IpAddr, port: u16, tag: &str) -> Result<EchoServer> {
        let own = host.ip_like(like);
        let bound = SocketAddr::new(own, port);
        let open = move || -> std::io::Result<(UdpSocket, UdpSocket, TcpListener)> {
            let tcp = TcpListener::bind(bound)?;
            let bound = tcp.local_addr()?;
            Ok((UdpSocket::bind(bound)?, UdpSocket::bind(SocketAddr::new(own, 0))?, tcp))
        };
        let (udp, other, tcp) = host
            .netns()
            .run(open)?
            .map_err(Error::io(format!("bind {bound} in {}", host.netns().name())))?;
        let shared = Arc::new(Shared {
            tag: tag.to_string(),
            address: tcp.local_addr().map_err(Error::io("local address"))?,
            mode: Mutex::new(EchoMode::Answer),
            seen: Mutex::new(VecDeque::new()),
            count: AtomicU64::new(0),
            stop: AtomicBool::new(false),
            threads: Mutex::new(Vec::new()),
        });
        udp.set_read_timeout(Some(TICK))
            .map_err(Error::io("set a read timeout"))?;
        tcp.set_nonblocking(true).map_err(Error::io("set non-blocking"))?;
        let (for_udp, for_tcp) = (shared.clone(), shared.clone());
        let threads = vec![
            std::thread::spawn(move || serve_udp(&for_udp, &udp, &other)),
            std::thread::spawn(move || serve_tcp(&for_tcp, &tcp)),
        ];
        *lock(&shared.threads) = threads;
        let stop: Arc<dyn Stop> = shared.clone();
        host.netns().register(Arc::downgrade(&stop));
        Ok(EchoServer { shared })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.shared.address
    }

    /// Changes what it does from the next request on.
    pub fn set_mode(&self, mode: EchoMode) {
        *lock(&self.shared.mode) = mode;
    }

    /// Closes the sockets: later datagrams meet ICMP port unreachable, later connections a reset.
    pub fn close(&self) {
        self.shared.stop();
    }

    /// Requests received so far.
    pub fn count(&self) -> u64 {
        self.shared.count.load(Ordering::Relaxed)
    }

    /// The latest requests, oldest first, at most 10 000.
    pub fn seen(&self) -> Vec<Seen> {
        lock(&self.shared.seen).iter().cloned().collect()
    }
}

impl Drop for EchoServer {
    fn drop(&mut self) {
        self.shared.stop();
    }
}

impl Stop for Shared {
    fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
        let threads: Vec<_> = lock(&self.threads).drain(..).collect();
        for thread in threads {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn note(&self, peer: SocketAddr, length: usize) {
        self.count.fetch_add(1, Ordering::Relaxed);
        let mut seen = lock(&self.seen);
        if seen.len() == REMEMBERED {
            seen.pop_front();
        }
        seen.push_back(Seen {
            peer,
            length,
            at: Instant::now(),
        });
    }

    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// The answer to a request, and whether it comes from the wrong source; `None` is silence.
    fn answer(&self, request: &[u8]) -> Option<(Vec<u8>, bool)> {
        let mode = *lock(&self.mode);
        let tagged = || [self.tag.as_bytes(), b"|", request].concat();
        match mode {
            EchoMode::Answer => Some((tagged(), false)),
            EchoMode::WrongSource => Some((echo_reply(request, &self.tag).unwrap_or_else(tagged), true)),
            EchoMode::Echo => Some((request.to_vec(), false)),
            EchoMode::Dns => Some((echo_reply(request, &self.tag)?, false)),
            EchoMode::Delay(time) => {
                std::thread::sleep(time);
                Some((tagged(), false))
            }
            EchoMode::Size(size) => {
                let mut answer = [self.tag.as_bytes(), b"|"].concat();
                answer.extend((answer.len()..size).map(|i| b'a' + (i % 26) as u8));
                answer.truncate(size);
                Some((answer, false))
            }
            EchoMode::Silent => None,
        }
    }
}

fn serve_udp(shared: &Shared, socket: &UdpSocket, other: &UdpSocket) {
    let mut buffer = vec![0; 65_536];
    while !shared.stopped() {
        let Ok((length, peer)) = socket.recv_from(&mut buffer) else {
            continue;
        };
        shared.note(peer, length);
        if let Some((answer, wrong)) = shared.answer(&buffer[..length]) {
            let _ = if wrong { other } else { socket }.send_to(&answer, peer);
        }
    }
}

fn serve_tcp(shared: &Arc<Shared>, listener: &TcpListener) {
    while !shared.stopped() {
        match listener.accept() {
            Ok((stream, peer)) => {
                let shared = shared.clone();
                // Not joined: it ends within a tick of `stop`.
                std::thread::spawn(move || serve_connection(&shared, stream, peer));
            }
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
        }
    }
}

fn serve_connection(shared: &Shared, mut stream: TcpStream, peer: SocketAddr) {
    if stream.set_nonblocking(false).is_err() || stream.set_read_timeout(Some(TICK)).is_err() {
        return;
    }
    let mut buffer = vec![0; 65_536];
    while !shared.stopped() {
        match stream.read(&mut buffer) {
            Ok(0) => return,
            Ok(length) => {
                shared.note(peer, length);
                if let Some((answer, _)) = shared.answer(&buffer[..length])
                    && stream.write_all(&answer).is_err()
                {
                    return;
                }
            }
            Err(e) if matches!(e.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut) => {}
            Err(_) => return,
        }
    }
}
