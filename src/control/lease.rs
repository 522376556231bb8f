//! Who may hold the lease: a probe datagram through each worker, sent and awaited here. The redirection takes new flows
//! only while every worker has sent its probe back lately; a worker that stays silent ends the process, because nobody
//! can take a hung worker's sockets away from outside.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::net::UdpSocket;

/// Between two probes.
pub const INTERVAL: Duration = Duration::from_millis(250);
/// A worker that sent its last probe back within this time counts as turning.
const FRESH: u64 = 1_000;
/// Probes in a row that a worker may miss before the process ends. With the lease of two seconds and [`FRESH`] this keeps
/// the whole outage of a hung worker below 2.5 s.
const MISSES: u32 = 6;
/// An interval that came this late says that we did not run ourselves, so that missed probes prove nothing.
const LATE: u64 = 2 * INTERVAL.as_millis() as u64;

/// What the probes say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// Every worker turns.
    Fresh,
    /// A worker has not answered for a while; the lease must not be renewed.
    Stale(usize),
    /// A worker hangs.
    Hung(usize),
}

#[derive(Clone, Debug)]
struct Worker {
    probe: SocketAddr,
    answered: Option<u64>,
    missed: u32,
}

/// The bookkeeping, without sockets.
#[derive(Clone, Debug)]
pub struct Turning {
    workers: Vec<Worker>,
    sequence: u64,
    last_round: u64,
}

impl Turning {
    /// Nobody has answered yet; the first probes have [`MISSES`] rounds.
    pub fn new(probes: impl IntoIterator<Item = SocketAddr>, now: u64) -> Self {
        let worker = |probe| Worker {
            probe,
            answered: None,
            missed: 0,
        };
        Self {
            workers: probes.into_iter().map(worker).collect(),
            sequence: 0,
            last_round: now,
        }
    }

    /// Starts a round and returns its number.
    pub fn round(&mut self, now: u64) -> u64 {
        let on_time = now.saturating_sub(self.last_round) <= LATE;
        self.last_round = now;
        self.sequence += 1;
        for worker in &mut self.workers {
            if on_time {
                worker.missed += 1;
            }
        }
        self.sequence
    }

    /// A probe came back.
    pub fn answered(&mut self, from: SocketAddr, sequence: u64, now: u64) {
        // An old one proves that the worker turned, but not when.
        if sequence + u64::from(MISSES) < self.sequence {
            return;
        }
        if let Some(worker) = self.workers.iter_mut().find(|w| w.probe == from) {
            worker.answered = Some(now);
            worker.missed = 0;
        }
    }

    /// The verdict now.
    pub fn health(&self, now: u64) -> Health {
        if let Some(hung) = self.workers.iter().position(|w| w.missed > MISSES) {
            return Health::Hung(hung);
        }
        match self
            .workers
            .iter()
            .position(|w| w.answered.is_none_or(|at| at + FRESH < now))
        {
            Some(stale) => Health::Stale(stale),
            None => Health::Fresh,
        }
    }
}

/// The probes' socket.
pub struct Prober {
    socket: UdpSocket,
    turning: Turning,
}

impl Prober {
    /// A prober for these workers.
    pub async fn new(probes: impl IntoIterator<Item = SocketAddr>, now: u64) -> io::Result<Self> {
        Ok(Self {
            socket: UdpSocket::bind("127.0.0.1:0").await?,
            turning: Turning::new(probes, now),
        })
    }

    /// Sends one probe to each worker. One that cannot be sent counts as missed.
    pub async fn send(&mut self, now: u64) {
        let sequence = self.turning.round(now).to_be_bytes();
        for worker in &self.turning.workers {
            let _ = self.socket.send_to(&sequence, worker.probe).await;
        }
    }

    /// Waits until a probe can be read.
    pub async fn readable(&self) -> io::Result<()> {
        self.socket.readable().await
    }

    /// Reads all probes that came back.
    pub fn receive(&mut self, now: u64) {
        let mut sequence = [0u8; 8];
        while let Ok((8, from)) = self.socket.try_recv_from(&mut sequence) {
            self.turning.answered(from, u64::from_be_bytes(sequence), now);
        }
    }

    /// The verdict now.
    pub fn health(&self, now: u64) -> Health {
        self.turning.health(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn probe(n: u16) -> SocketAddr {
        SocketAddr::new([127, 0, 0, 1].into(), n)
    }

    #[test]
    fn fresh_only_while_every_worker_answers() {
        let mut turning = Turning::new([probe(1), probe(2)], 1000);
        assert_ne!(turning.health(1000), Health::Fresh, "nobody has answered yet");
        let n = turning.round(1000);
        turning.answered(probe(1), n, 1001);
        assert_eq!(turning.health(1002), Health::Stale(1));
        turning.answered(probe(2), n, 1002);
        assert_eq!(turning.health(2001), Health::Fresh);
        assert_eq!(turning.health(2100), Health::Stale(0));
    }

    #[test]
    fn a_silent_worker_is_hung_within_two_seconds() {
        let mut turning = Turning::new([probe(1), probe(2)], 0);
        let mut now = 0;
        let mut hung_after = None;
        for _ in 0..20 {
            now += 250;
            let n = turning.round(now);
            turning.answered(probe(1), n, now);
            if turning.health(now) == Health::Hung(1) {
                hung_after.get_or_insert(now);
            }
        }
        assert!(hung_after.is_some_and(|at| at <= 2000), "{hung_after:?}");
    }

    #[test]
    fn a_pause_of_our_own_hangs_nobody() {
        let mut turning = Turning::new([probe(1)], 0);
        let n = turning.round(250);
        turning.answered(probe(1), n, 250);
        let mut now = 250;
        for _ in 0..50 {
            now += 3000;
            turning.round(now);
            assert_eq!(turning.health(now), Health::Stale(0));
        }
    }

    #[test]
    fn answers_from_long_ago_and_from_strangers_count_for_nothing() {
        let mut turning = Turning::new([probe(1)], 0);
        for round in 1..=10 {
            turning.round(round * 250);
        }
        turning.answered(probe(1), 1, 2500);
        turning.answered(probe(9), 10, 2500);
        assert_eq!(turning.health(2500), Health::Hung(0));
    }
}
