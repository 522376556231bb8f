//! The open-loop sender for traffic that nobody answers. Same schedule and sockets as the other clients; each socket is
//! a sender with its own sequence numbers.

use super::load::{Load, Plan, Ports, ns};
use super::sockets::Sockets;
use crate::error::Error;
use crate::report::{OneWayInterval, OneWayReport, SCHEMA};
use crate::sys::{ErrorQueue, MAX_DATAGRAM, Poller, SendBatch, errno_name, is_icmp, thread_cpu};
use hdrhistogram::Histogram;
use nix::errno::Errno;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Datagrams sent per turn at most, so that ICMP errors and a stop request are noticed in between.
const PER_TURN: usize = 256;
const SEND_ATTEMPTS: usize = 4;
const MAX_SLEEP_NS: u64 = 50_000_000;
const SPIN_NS: u64 = 50_000;

#[derive(Clone)]
struct Counts {
    datagrams: u64,
    sent: u64,
    bytes: u64,
    not_sent: u64,
    icmp: BTreeMap<&'static str, u64>,
    send_errors: BTreeMap<&'static str, u64>,
    send_lag: Histogram<u64>,
    last_send_ns: u64,
    cpu: (Duration, Duration),
    timeline: Vec<(u64, u64)>,
}

struct Sender<'a, W> {
    load: &'a Load,
    plan: &'a Plan,
    write: W,
    poller: Poller,
    sockets: Sockets,
    /// Number of the first sender of this thread, and the next sequence number of each.
    first_sender: u32,
    next_seq: Vec<u64>,
    batch: SendBatch,
    /// When each datagram of the batch was due.
    due_ns: Vec<u64>,
    errors: ErrorQueue,
    next: u64,
    counts: Counts,
    /// What `live` was told already.
    shown: (u64, u64),
}

/// Sends one-way datagrams written by `write(sender, seq, buffer)` and returns what was sent.
pub(crate) fn run(
    load: &Load,
    write: impl Fn(u32, u64, &mut [u8]) -> usize + Copy + Send,
) -> Result<OneWayReport, Error> {
    let plan = Plan::new(load, 1)?;
    let Ports::Fixed { clients } = load.ports else {
        return Err(Error::option("ports", "must be fixed for one-way traffic"));
    };
    let mut senders = Vec::with_capacity(load.threads);
    let mut first_sender = 0;
    for thread in 0..load.threads {
        let here = clients / load.threads + usize::from(thread < clients % load.threads);
        senders.push(Sender::new(load, &plan, write, thread, first_sender, here)?);
        // At most the number of open files.
        first_sender += here as u32;
    }
    let start = Instant::now() + Duration::from_millis(5);
    let results: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = senders
            .into_iter()
            .enumerate()
            .map(|(i, sender)| {
                let cpu = load.pin.get(i).copied();
                scope.spawn(move || {
                    super::prepare_thread(cpu)?;
                    sender.run(start)
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|t| t.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    });
    let mut total = Counts::new(&plan);
    for result in results {
        total.merge(result?);
    }
    Ok(total.into_report(load, &plan, clients))
}

impl Counts {
    fn new(plan: &Plan) -> Self {
        Counts {
            datagrams: 0,
            sent: 0,
            bytes: 0,
            not_sent: 0,
            icmp: BTreeMap::new(),
            send_errors: BTreeMap::new(),
            send_lag: super::stats::histogram(),
            last_send_ns: 0,
            cpu: (Duration::ZERO, Duration::ZERO),
            timeline: vec![(0, 0); plan.intervals],
        }
    }

    fn merge(&mut self, other: Counts) {
        self.datagrams += other.datagrams;
        self.sent += other.sent;
        self.bytes += other.bytes;
        self.not_sent += other.not_sent;
        for (ours, theirs) in [(&mut self.icmp, other.icmp), (&mut self.send_errors, other.send_errors)] {
            for (name, n) in theirs {
                *ours.entry(name).or_default() += n;
            }
        }
        // Same bounds, so adding cannot fail.
        let _ = self.send_lag.add(&other.send_lag);
        self.last_send_ns = self.last_send_ns.max(other.last_send_ns);
        self.cpu.0 += other.cpu.0;
        self.cpu.1 += other.cpu.1;
        for (slice, add) in self.timeline.iter_mut().zip(other.timeline) {
            slice.0 += add.0;
            slice.1 += add.1;
        }
    }

    /// Counts a datagram in the interval it was due in.
    fn interval(&mut self, plan: &Plan, due_ns: u64, failed: bool) {
        let last = self.timeline.len() - 1;
        let index = usize::try_from(due_ns / plan.interval_ns).unwrap_or(last).min(last);
        let slice = &mut self.timeline[index];
        if failed { slice.1 += 1 } else { slice.0 += 1 }
    }

    fn into_report(self, load: &Load, plan: &Plan, clients: usize) -> OneWayReport {
        let round = |v: f64| (v * 10.0).round() / 10.0;
        let planned = load.duration.as_secs_f64();
        let last = self.last_send_ns as f64 / 1e9;
        let stopped_early = self.not_sent > 0 && self.last_send_ns < ns(load.duration);
        let duration_s = if stopped_early { last } else { planned.max(last) };
        let cpu = (self.cpu.0 + self.cpu.1).as_secs_f64();
        let named = |map: BTreeMap<&'static str, u64>| map.into_iter().map(|(k, v)| (k.to_owned(), v)).collect();
        let interval_ms = plan.interval_ns as f64 / 1e6;
        OneWayReport {
            schema: SCHEMA.to_owned(),
            workload: "oneway".to_owned(),
            server: load.server.to_string(),
            run: String::new(),
            senders: clients as u64,
            duration_s,
            datagrams: self.datagrams,
            sent: self.sent,
            failed: self.datagrams - self.sent,
            not_sent: self.not_sent,
            bytes: self.bytes,
            icmp_errors: self.icmp.values().sum(),
            icmp: named(self.icmp),
            send_errors: self.send_errors.values().sum(),
            send_errors_by: named(self.send_errors),
            rate_target: load.rate,
            rate_achieved: if duration_s > 0.0 {
                round(self.sent as f64 / duration_s)
            } else {
                0.0
            },
            send_lag_p99_us: round(self.send_lag.value_at_quantile(0.99) as f64 / 1e3),
            send_lag_max_us: round(self.send_lag.max() as f64 / 1e3),
            cpu_user_s: self.cpu.0.as_secs_f64(),
            cpu_system_s: self.cpu.1.as_secs_f64(),
            cpu_us_per_datagram: if self.sent > 0 {
                round(cpu * 1e6 / self.sent as f64)
            } else {
                0.0
            },
            interval_ms,
            timeline: (0..)
                .zip(self.timeline)
                .map(|(i, (sent, failed))| OneWayInterval {
                    at_ms: (f64::from(i) * interval_ms).round() as u64,
                    sent,
                    failed,
                })
                .collect(),
        }
    }
}

impl<'a, W: Fn(u32, u64, &mut [u8]) -> usize> Sender<'a, W> {
    fn new(
        load: &'a Load,
        plan: &'a Plan,
        write: W,
        thread: usize,
        first_sender: u32,
        sockets_here: usize,
    ) -> Result<Self, Error> {
        let poller = Poller::new().map_err(|e| Error::system("cannot make an epoll set", e))?;
        let sockets = Sockets::new(load, sockets_here, &poller)?;
        Ok(Sender {
            load,
            plan,
            write,
            poller,
            sockets,
            first_sender,
            next_seq: vec![0; sockets_here],
            batch: SendBatch::new(MAX_DATAGRAM, load.server),
            due_ns: Vec::new(),
            errors: ErrorQueue::new(),
            next: thread as u64,
            counts: Counts::new(plan),
            shown: (0, 0),
        })
    }

    fn run(mut self, start: Instant) -> Result<Counts, Error> {
        std::thread::sleep(start.saturating_duration_since(Instant::now()));
        let cpu_before = thread_cpu();
        let stride = self.load.threads as u64;
        let mut ready = Vec::new();
        while self.next < self.plan.queries {
            let now = super::worker::elapsed(start);
            let stop = self.load.stop.as_ref().is_some_and(|stop| stop.load(Ordering::Relaxed));
            if stop || now > self.plan.cutoff_ns {
                self.counts.not_sent += (self.plan.queries - self.next).div_ceil(stride);
                break;
            }
            self.send_due(now, start, stride)?;
            self.show();
            let until = match self.next < self.plan.queries {
                true => self.plan.intended_ns(self.next).min(now + MAX_SLEEP_NS),
                false => 0,
            };
            let mut sleep = until.saturating_sub(super::worker::elapsed(start));
            if self.load.spin && sleep < SPIN_NS {
                sleep = 0;
            }
            self.poller
                .wait(Duration::from_nanos(sleep), &mut ready)
                .map_err(|e| Error::system("cannot wait for sockets", e))?;
            for event in ready.drain(..) {
                if let Some((socket, udp)) = self.sockets.by_token(event.token) {
                    // Nobody answers statsd; what comes anyway is read away so that it does not wake us for ever.
                    let _ = udp.recv(&mut [0; 16]);
                    self.drain_errors(socket);
                }
            }
        }
        self.show();
        let cpu = thread_cpu();
        self.counts.cpu = (cpu.0.saturating_sub(cpu_before.0), cpu.1.saturating_sub(cpu_before.1));
        Ok(self.counts)
    }

    fn send_due(&mut self, now: u64, start: Instant, stride: u64) -> Result<(), Error> {
        let is_due = |plan: &Plan, n: u64| n < plan.queries && plan.intended_ns(n) <= now;
        let due = (0..PER_TURN)
            .take_while(|&i| is_due(self.plan, self.next + i as u64 * stride))
            .count();
        // When many are due at once, several go out through one socket in one system call.
        let run = (due / 4).clamp(1, crate::sys::BATCH);
        let mut left = due;
        while left > 0 {
            let acquired = self
                .sockets
                .acquire(&self.poller)
                .map_err(|e| Error::system("cannot open a socket", e))?;
            // Fixed sockets are always there.
            let Some(socket) = acquired else { return Ok(()) };
            for _ in 0..run.min(left) {
                let seq = self.next_seq[socket as usize];
                self.next_seq[socket as usize] += 1;
                self.due_ns.push(self.plan.intended_ns(self.next));
                self.next += stride;
                self.counts.datagrams += 1;
                let (write, sender) = (&self.write, self.first_sender + socket);
                self.batch.push(self.load.server, |buffer| write(sender, seq, buffer));
            }
            left -= run.min(left);
            self.flush(socket, start);
        }
        Ok(())
    }

    /// Sends the batch. A datagram the system refuses is counted and the rest goes on.
    fn flush(&mut self, socket: u32, start: Instant) {
        let now = super::worker::elapsed(start);
        let (mut first, mut attempts) = (0, 0);
        while first < self.batch.len() {
            let result = match self.sockets.get(socket) {
                Some(udp) => self.batch.send(udp, first),
                None => Err(Errno::EBADF),
            };
            match result {
                Ok(sent) => {
                    for i in first..first + sent {
                        let due_ns = self.due_ns[i];
                        self.counts.sent += 1;
                        self.counts.bytes += self.batch.length(i) as u64;
                        self.counts.send_lag.saturating_record(now.saturating_sub(due_ns));
                        self.counts.interval(self.plan, due_ns, false);
                    }
                    self.counts.last_send_ns = now;
                    first += sent;
                    attempts = 0;
                }
                Err(Errno::EINTR) => {}
                Err(error) if is_icmp(error) && attempts < SEND_ATTEMPTS => {
                    attempts += 1;
                    self.drain_errors(socket);
                }
                Err(error) => {
                    *self.counts.send_errors.entry(errno_name(error)).or_default() += 1;
                    let due_ns = self.due_ns[first];
                    self.counts.interval(self.plan, due_ns, true);
                    first += 1;
                    attempts = 0;
                }
            }
        }
        self.batch.clear();
        self.due_ns.clear();
    }

    fn drain_errors(&mut self, socket: u32) {
        let Some(udp) = self.sockets.get(socket) else { return };
        let icmp = &mut self.counts.icmp;
        self.errors
            .drain(udp, |errno| *icmp.entry(errno_name(errno)).or_default() += 1);
    }

    fn show(&mut self) {
        let Some(live) = &self.load.live else { return };
        let failed = self.counts.datagrams - self.counts.sent;
        live.sent
            .fetch_add(self.counts.datagrams - self.shown.0, Ordering::Relaxed);
        live.failed.fetch_add(failed - self.shown.1, Ordering::Relaxed);
        self.shown = (self.counts.datagrams, failed);
    }
}
