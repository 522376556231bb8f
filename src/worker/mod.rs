//! Workers: one pinned thread each, with its own engine, sockets and flows.
//!
//! The loop joins the engine, the flow cores, the table and health; it is the only room that knows both sides. A worker
//! never locks, never allocates per datagram, never logs per datagram, and shares nothing but the table, health and
//! session affinity. The control thread talks to it through a queue of [`Command`]s and a wake-up.

mod shell;
mod state;
mod tag;

use crate::engine::io_uring::{Config as EngineConfig, SetupError, Uring};
use crate::flow::{dns, stream};
use crate::health::FailingEndpoints;
use crate::model::IpFamily;
use crate::net::cpu;
use crate::net::socket::{local_addr, loopback_udp, upstream_udp};
use crate::net::wake::Waker;
use crate::table::Vip;

use crate::table::affinity::AffinityMemory;
use crate::table::publish::TableReader;
use crate::telemetry::Registry;
use state::{Sockets, State};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};
use tag::Token;

/// Longest wait of a turn. Nothing depends on it but the age of the kernel's drop counters.
const MAX_WAIT: Duration = Duration::from_secs(1);

/// Flows and draining paths per worker.
const STREAM_PATHS: usize = 65_536;

/// The process's monotonic clock in milliseconds, shared by everything that exchanges times.
#[derive(Clone, Copy, Debug)]
pub struct Clock(Instant);

impl Clock {
    /// Starts the clock. It starts at an hour, so that times before now can be told.
    pub fn start() -> Self {
        Self(Instant::now())
    }

    /// Now.
    pub fn now(&self) -> u64 {
        3_600_000 + self.0.elapsed().as_millis() as u64
    }
}

/// What the control thread asks of a worker.
pub enum Command {
    /// Receive for a VIP on this socket.
    AddVip {
        /// The VIP.
        vip: Vip,
        /// A socket bound to it.
        socket: OwnedFd,
    },
    /// Stop receiving for a VIP and close its socket. Queries still under way are given up: drain first.
    RemoveVip(Vip),
    /// Leave the loop.
    Stop,
}

/// How a worker is made.
#[derive(Clone, Debug)]
pub struct WorkerConfig {
    /// Its number, from 0.
    pub index: usize,
    /// The CPU to run on.
    pub cpu: Option<usize>,
    /// Sizes of its ring.
    pub engine: EngineConfig,
    /// Bounds of its DNS core; the socket ranges are filled in by the worker.
    pub max_outstanding: usize,
    /// Bytes of queries kept.
    pub stored_bytes: usize,
    /// Life of a query without an answer, milliseconds.
    pub dns_timeout: u64,
    /// Upstream sockets per family, for queries and one-way datagrams, and as many again for flows.
    pub upstream_sockets: u16,
    /// Receive buffer of each upstream socket, bytes.
    pub upstream_receive_buffer: usize,
}

/// What all workers share.
#[derive(Clone)]
pub struct Shared {
    /// The clock.
    pub clock: Clock,
    /// Which endpoints are failing.
    pub failing: Arc<FailingEndpoints>,
    /// Session affinity.
    pub affinity: Arc<AffinityMemory>,
    /// Counters.
    pub registry: Arc<Registry>,
}

/// Why a worker could not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// No thread.
    #[error("starting the thread of worker {0}: {1}")]
    Thread(usize, io::Error),
    /// No engine.
    #[error("engine of worker {0}: {1}")]
    Engine(usize, SetupError),
    /// No sockets.
    #[error("worker {index} cannot open its {what}: {error}")]
    Socket {
        /// The worker.
        index: usize,
        /// Which sockets.
        what: &'static str,
        /// Why.
        error: io::Error,
    },
}

/// The control thread's end of a running worker.
pub struct Handle {
    commands: mpsc::Sender<Command>,
    sent: u64,
    done: Arc<AtomicU64>,
    waker: Waker,
    thread: Option<thread::JoinHandle<()>>,
    started: Started,
}

/// What a worker says once it runs.
#[derive(Clone, Debug)]
pub struct Started {
    /// A datagram sent here comes back if the worker turns.
    pub probe: SocketAddr,
    /// The engine in words.
    pub engine: String,
    /// Families it can reach endpoints of.
    pub families: Vec<IpFamily>,
}

impl Handle {
    /// Starts a worker and waits until it runs or says why it cannot.
    pub fn start(config: WorkerConfig, reader: TableReader, shared: Shared) -> Result<Self, StartError> {
        let index = config.index;
        let waker = Waker::new().map_err(|e| StartError::Thread(index, e))?;
        let (commands, inbox) = mpsc::channel();
        let done = Arc::new(AtomicU64::new(0));
        let (report, started) = mpsc::sync_channel(1);
        let (thread_waker, thread_done) = (waker.clone(), done.clone());
        let body = move || {
            let worker = match Worker::new(config, reader, shared, thread_waker, inbox, thread_done) {
                Ok((worker, started)) => {
                    if report.send(Ok(started)).is_err() {
                        return;
                    }
                    worker
                }
                Err(error) => {
                    // Nobody listens only when the starter has gone, and then nobody wants to know.
                    let _ = report.send(Err(error));
                    return;
                }
            };
            worker.run();
        };
        let thread = thread::Builder::new()
            .name(format!("worker-{index}"))
            .spawn(body)
            .map_err(|e| StartError::Thread(index, e))?;
        let gone = || StartError::Thread(index, io::Error::other("it ended before it said anything"));
        let started = started.recv().map_err(|_| gone())??;
        Ok(Self {
            commands,
            sent: 0,
            done,
            waker,
            thread: Some(thread),
            started,
        })
    }

    /// What it said when it started.
    pub fn started(&self) -> &Started {
        &self.started
    }

    /// Queues a command and wakes the worker.
    pub fn send(&mut self, command: Command) {
        // A worker that is gone takes the process with it, so there is nobody to tell.
        if self.commands.send(command).is_ok() {
            self.sent += 1;
            self.waker.wake();
        }
    }

    /// Wakes the worker, so that it looks at the table.
    pub fn wake(&self) {
        self.waker.wake();
    }

    /// Whether every command sent so far has been carried out.
    pub fn is_caught_up(&self) -> bool {
        self.done.load(Ordering::Acquire) == self.sent
    }

    /// Whether its thread has ended.
    pub fn is_finished(&self) -> bool {
        self.thread.as_ref().is_none_or(thread::JoinHandle::is_finished)
    }

    /// Tells it to stop and waits for its thread.
    pub fn stop(mut self) {
        self.send(Command::Stop);
        if let Some(thread) = self.thread.take() {
            // A panic in the worker has already been reported by its hook.
            let _ = thread.join();
        }
    }
}

struct Worker {
    engine: Uring,
    state: State,
    inbox: mpsc::Receiver<Command>,
    done: Arc<AtomicU64>,
    clock: Clock,
}

impl Worker {
    fn new(
        config: WorkerConfig,
        reader: TableReader,
        shared: Shared,
        waker: Waker,
        inbox: mpsc::Receiver<Command>,
        done: Arc<AtomicU64>,
    ) -> Result<(Self, Started), StartError> {
        let index = config.index;
        if let Some(cpu) = config.cpu
            && let Err(error) = cpu::pin(cpu)
        {
            tracing::warn!(worker = index, cpu, %error, "cannot pin the worker to its CPU; it runs unpinned");
        }
        let mut engine = Uring::new(config.engine, waker).map_err(|e| StartError::Engine(index, e))?;
        let socket_error = |what| move |error| StartError::Socket { index, what, error };
        let probe = loopback_udp().map_err(socket_error("probe socket"))?;
        let probe_addr = local_addr(probe.as_fd()).map_err(socket_error("probe socket"))?;
        let probe_key = engine
            .add_socket(probe, Token::Probe.pack())
            .map_err(socket_error("probe socket"))?;
        let mut upstream = Vec::new();
        let mut families = Vec::new();
        // Queries and one-way datagrams first, then flows: per family each.
        let wildcards: [(IpFamily, IpAddr); 4] = [
            (IpFamily::V4, Ipv4Addr::UNSPECIFIED.into()),
            (IpFamily::V6, Ipv6Addr::UNSPECIFIED.into()),
            (IpFamily::V4, Ipv4Addr::UNSPECIFIED.into()),
            (IpFamily::V6, Ipv6Addr::UNSPECIFIED.into()),
        ];
        let mut ranges = [0..0, 0..0, 0..0, 0..0];
        for ((family, wildcard), range) in wildcards.into_iter().zip(&mut ranges) {
            let first = upstream.len() as u16;
            for _ in 0..config.upstream_sockets {
                let socket = match upstream_udp(wildcard, config.upstream_receive_buffer) {
                    Ok(socket) => socket,
                    // A node without IPv6 has no IPv6 endpoints to reach either.
                    Err(e) if is_family_missing(&e) => break,
                    Err(error) => return Err(socket_error("upstream sockets")(error)),
                };
                let token = Token::Upstream(upstream.len() as u16);
                let key = engine
                    .add_socket(socket, token.pack())
                    .map_err(socket_error("upstream sockets"))?;
                upstream.push(key);
            }
            *range = first..upstream.len() as u16;
            if range.start < range.end && !families.contains(&family) {
                families.push(family);
            }
        }
        let [sockets_v4, sockets_v6, stream_v4, stream_v6] = ranges;
        let sockets = Sockets {
            upstream,
            stream: stream_v4.start..stream_v6.end,
            probe: probe_key,
        };
        let now = shared.clock.now();
        let core = dns::Core::new(
            dns::Config {
                max_outstanding: config.max_outstanding,
                stored_bytes: config.stored_bytes,
                timeout: config.dns_timeout,
                retry_min: 50,
                retry_max: 500,
                sockets_v4,
                sockets_v6,
            },
            now,
        );
        let started = Started {
            probe: probe_addr,
            engine: format!("io_uring ({})", engine.flags()),
            families,
        };
        let clock = shared.clock;
        let flows = stream::Core::new(STREAM_PATHS, stream_v4, stream_v6);
        let state = State::new(index, core, flows, reader, shared, sockets);
        let worker = Self {
            engine,
            state,
            inbox,
            done,
            clock,
        };
        Ok((worker, started))
    }

    /// Turns until told to stop. An engine that fails for good ends the process: kube-proxy serves from then on.
    fn run(mut self) {
        loop {
            match self.turn() {
                Ok(true) => {}
                Ok(false) => return,
                Err(error) => {
                    tracing::error!(worker = self.state.index(), %error, "the engine failed; ending the process so that kube-proxy serves");
                    std::process::abort();
                }
            }
        }
    }

    fn turn(&mut self) -> io::Result<bool> {
        let now = self.clock.now();
        let wait = self.state.next_deadline().map_or(MAX_WAIT, |at| {
            Duration::from_millis(at.saturating_sub(now)).min(MAX_WAIT)
        });
        self.engine.wait(Some(wait))?;
        self.state.begin(self.clock.now());
        self.engine.dispatch(&mut self.state)?;
        self.state.read_error_queues(&mut self.engine);
        self.state.timers(&mut self.engine.outbox());
        let go_on = !self.state.take_woken() || self.commands()?;
        self.state.end(&self.engine);
        Ok(go_on)
    }

    /// Carries out what the control thread asked; false when told to stop.
    fn commands(&mut self) -> io::Result<bool> {
        while let Ok(command) = self.inbox.try_recv() {
            match command {
                Command::AddVip { vip, socket } => self.state.add_vip(&mut self.engine, vip, socket)?,
                Command::RemoveVip(vip) => self.state.remove_vip(&mut self.engine, vip)?,
                Command::Stop => return Ok(false),
            }
            self.done.fetch_add(1, Ordering::Release);
        }
        Ok(true)
    }
}

fn is_family_missing(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EAFNOSUPPORT | libc::EADDRNOTAVAIL | libc::EPROTONOSUPPORT)
    )
}
