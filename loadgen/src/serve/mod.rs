//! Servers to drive load against: they answer, or misbehave in one chosen way, and count exactly what they did. For
//! tests and laboratories; one thread each, no retransmission, no state about queries.

pub mod dns;
mod responder;
pub mod statsd;
pub mod udp;

use crate::error::Error;
use crate::report::ServeReport;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How a request/response server treats what it receives, whatever the protocol.
#[derive(Debug, Clone, PartialEq)]
pub struct Behaviour {
    /// Wait this long before each reply.
    pub delay: Duration,
    /// Share of requests to ignore, 0 to 100, chosen at random.
    pub drop_percent: f64,
    /// Ignore every request.
    pub silent: bool,
    /// Send every reply twice.
    pub duplicate: bool,
    /// Send every reply from this address (same port) instead of the one that was asked.
    pub wrong_source: Option<IpAddr>,
}

impl Default for Behaviour {
    /// Answers at once, once, from the right address.
    fn default() -> Self {
        Behaviour {
            delay: Duration::ZERO,
            drop_percent: 0.0,
            silent: false,
            duplicate: false,
            wrong_source: None,
        }
    }
}

impl Behaviour {
    fn check(&self) -> Result<(), Error> {
        if !(0.0..=100.0).contains(&self.drop_percent) {
            return Err(Error::option(
                "drop-percent",
                format!("{} is not 0 to 100", self.drop_percent),
            ));
        }
        if self.delay > Duration::from_secs(60) {
            return Err(Error::option("delay", "must be at most 60000 ms"));
        }
        Ok(())
    }
}

/// What the thread of a server and its owner share.
struct Shared {
    begun: Instant,
    stop: AtomicBool,
    /// Do nothing until this many milliseconds after `begun`.
    stalled_until_ms: AtomicU64,
}

impl Shared {
    fn new() -> Arc<Self> {
        let stop = AtomicBool::new(false);
        Arc::new(Shared {
            begun: Instant::now(),
            stop,
            stalled_until_ms: AtomicU64::new(0),
        })
    }

    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Sleeps through a stall, if one is on.
    fn sit_out_stall(&self) {
        let until = Duration::from_millis(self.stalled_until_ms.load(Ordering::Relaxed));
        let now = self.begun.elapsed();
        if until > now {
            std::thread::sleep(until - now);
        }
    }
}

/// A running server. Dropping it stops it too, without counts.
pub struct Server<R = ServeReport> {
    address: SocketAddr,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<Result<R, Error>>>,
}

impl<R: Send + 'static> Server<R> {
    fn start(
        address: SocketAddr,
        serve: impl FnOnce(&Shared) -> Result<R, Error> + Send + 'static,
    ) -> Result<Self, Error> {
        let shared = Shared::new();
        let theirs = shared.clone();
        let thread = std::thread::Builder::new()
            .name("serve".to_owned())
            .spawn(move || serve(&theirs))
            .map_err(|e| Error::system("cannot start the server's thread", e))?;
        Ok(Server {
            address,
            shared,
            thread: Some(thread),
        })
    }

    /// Where it listens; with port 0 asked for, the port the kernel chose.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Neither receives nor answers for this long; what arrives meanwhile waits in the socket's buffer.
    pub fn stall(&self, duration: Duration) {
        let until = self.shared.begun.elapsed() + duration;
        self.shared
            .stalled_until_ms
            .store(u64::try_from(until.as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Has it ended by itself? Only an error does that; [`Server::stop`] returns it.
    pub fn is_finished(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Stops it and returns what it counted.
    ///
    /// # Errors
    /// What ended it early, if something did.
    pub fn stop(mut self) -> Result<R, Error> {
        self.shared.stop.store(true, Ordering::Relaxed);
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(result)) => result,
            Some(Err(panic)) => std::panic::resume_unwind(panic),
            None => Err(Error::system("server", std::io::Error::other("was stopped before"))),
        }
    }
}

impl<R> Drop for Server<R> {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // Its outcome was not asked for.
            let _ = thread.join();
        }
    }
}
