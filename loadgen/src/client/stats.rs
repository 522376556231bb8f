//! What one thread counted, and the sum over threads.

use super::load::{Load, Plan, Ports};
use super::timeline::{Answerers, Timeline};
use crate::report::{Report, SCHEMA};
use hdrhistogram::Histogram;
use std::collections::BTreeMap;
use std::time::Duration;

/// 120 s in nanoseconds: above any latency a query can have (timeout ≤ 100 s).
const MAX_NS: u64 = 120_000_000_000;

#[derive(Default, Clone)]
pub(super) struct Counts {
    pub queries: u64,
    pub answered: u64,
    pub timeouts: u64,
    pub rcode_failed: u64,
    pub send_failed: u64,
    pub not_sent: u64,
    pub duplicates: u64,
    pub wrong_source: u64,
    pub mismatched: u64,
    pub unknown_id: u64,
    pub late: u64,
    pub truncated: u64,
    pub icmp_errors: u64,
    pub send_errors: u64,
    pub retransmits: u64,
    pub retransmit_answers: u64,
    pub forgotten_early: u64,
    pub sockets_opened: u64,
}

impl Counts {
    pub fn failed(&self) -> u64 {
        self.timeouts + self.rcode_failed + self.send_failed
    }

    fn add(&mut self, o: &Counts) {
        self.queries += o.queries;
        self.answered += o.answered;
        self.timeouts += o.timeouts;
        self.rcode_failed += o.rcode_failed;
        self.send_failed += o.send_failed;
        self.not_sent += o.not_sent;
        self.duplicates += o.duplicates;
        self.wrong_source += o.wrong_source;
        self.mismatched += o.mismatched;
        self.unknown_id += o.unknown_id;
        self.late += o.late;
        self.truncated += o.truncated;
        self.icmp_errors += o.icmp_errors;
        self.send_errors += o.send_errors;
        self.retransmits += o.retransmits;
        self.retransmit_answers += o.retransmit_answers;
        self.forgotten_early += o.forgotten_early;
        self.sockets_opened += o.sockets_opened;
    }
}

pub(super) struct Stats {
    pub counts: Counts,
    /// Answers in time by rcode (the header's four bits).
    pub rcodes: [u64; 16],
    pub icmp: BTreeMap<&'static str, u64>,
    pub send_errors_by: BTreeMap<&'static str, u64>,
    pub latency: Histogram<u64>,
    pub send_lag: Histogram<u64>,
    pub answerers: Answerers,
    pub answered_by: Vec<u64>,
    pub timeline: Timeline,
    pub last_send_ns: u64,
    pub cpu: (Duration, Duration),
}

pub(super) fn histogram() -> Histogram<u64> {
    // The bounds are constants that the constructor accepts; the smallest histogram is the fallback it demands.
    Histogram::new_with_bounds(1, MAX_NS, 3).unwrap_or_else(|_| Histogram::new(0).unwrap_or_else(|_| unreachable!()))
}

impl Stats {
    pub fn new(plan: &Plan) -> Self {
        Stats {
            counts: Counts::default(),
            rcodes: [0; 16],
            icmp: BTreeMap::new(),
            send_errors_by: BTreeMap::new(),
            latency: histogram(),
            send_lag: histogram(),
            answerers: Answerers::new(),
            answered_by: Vec::new(),
            timeline: Timeline::new(plan.interval_ns, plan.intervals),
            last_send_ns: 0,
            cpu: (Duration::ZERO, Duration::ZERO),
        }
    }

    pub fn send_error(&mut self, reason: &'static str) {
        self.counts.send_errors += 1;
        *self.send_errors_by.entry(reason).or_default() += 1;
    }

    pub fn merge(&mut self, other: Stats) {
        self.counts.add(&other.counts);
        for (sum, n) in self.rcodes.iter_mut().zip(other.rcodes) {
            *sum += n;
        }
        for (name, n) in other.icmp {
            *self.icmp.entry(name).or_default() += n;
        }
        for (name, n) in other.send_errors_by {
            *self.send_errors_by.entry(name).or_default() += n;
        }
        // Same bounds, so adding cannot fail.
        let _ = self.latency.add(&other.latency);
        let _ = self.send_lag.add(&other.send_lag);
        let renumber = self.answerers.absorb(&other.answerers);
        for (theirs, n) in other.answered_by.into_iter().enumerate() {
            if let Some(&ours) = renumber.get(theirs) {
                if self.answered_by.len() <= ours {
                    self.answered_by.resize(ours + 1, 0);
                }
                self.answered_by[ours] += n;
            }
        }
        self.timeline.merge(other.timeline, &renumber);
        self.last_send_ns = self.last_send_ns.max(other.last_send_ns);
        self.cpu.0 += other.cpu.0;
        self.cpu.1 += other.cpu.1;
    }

    pub fn into_report(self, workload: &str, load: &Load, plan: &Plan) -> Report {
        let c = self.counts;
        let stopped_early = c.not_sent > 0 && self.last_send_ns < super::load::ns(load.duration);
        let duration_s = match stopped_early {
            true => self.last_send_ns as f64 / 1e9,
            false => load.duration.as_secs_f64().max(self.last_send_ns as f64 / 1e9),
        };
        let per_second = |n: u64| if duration_s > 0.0 { n as f64 / duration_s } else { 0.0 };
        let round = |v: f64| (v * 10.0).round() / 10.0;
        let us = |ns: u64| round(ns as f64 / 1e3);
        let some = (!self.latency.is_empty()).then_some(());
        let quantile = |q: f64| some.map(|()| us(self.latency.value_at_quantile(q)));
        let cpu = (self.cpu.0 + self.cpu.1).as_secs_f64();
        let named = |map: BTreeMap<&'static str, u64>| map.into_iter().map(|(k, v)| (k.to_owned(), v)).collect();
        Report {
            schema: SCHEMA.to_owned(),
            workload: workload.to_owned(),
            server: load.server.to_string(),
            ports: match load.ports {
                Ports::Fresh => "fresh".to_owned(),
                Ports::Fixed { .. } => "fixed".to_owned(),
            },
            duration_s,
            queries: c.queries,
            answered: c.answered,
            failed: c.failed(),
            timeouts: c.timeouts,
            rcode_failed: c.rcode_failed,
            send_failed: c.send_failed,
            not_sent: c.not_sent,
            duplicates: c.duplicates,
            wrong_source: c.wrong_source,
            mismatched: c.mismatched,
            unknown_id: c.unknown_id,
            late: c.late,
            truncated: c.truncated,
            // By number; the protocol knows their names.
            rcodes: (0..16u8)
                .filter(|&r| self.rcodes[usize::from(r)] > 0)
                .map(|r| (r.to_string(), self.rcodes[usize::from(r)]))
                .collect(),
            icmp_errors: c.icmp_errors,
            icmp: named(self.icmp),
            send_errors: c.send_errors,
            send_errors_by: named(self.send_errors_by),
            retransmits: c.retransmits,
            retransmit_answers: c.retransmit_answers,
            forgotten_early: c.forgotten_early,
            rate_target: load.rate,
            rate_achieved: round(per_second(c.queries - c.send_failed)),
            p50_us: quantile(0.5),
            p90_us: quantile(0.9),
            p99_us: quantile(0.99),
            p999_us: quantile(0.999),
            max_us: some.map(|()| us(self.latency.max())),
            mean_us: some.map(|()| round(self.latency.mean() / 1e3)),
            send_lag_p99_us: us(self.send_lag.value_at_quantile(0.99)),
            send_lag_max_us: us(self.send_lag.max()),
            sockets_opened: c.sockets_opened,
            cpu_user_s: self.cpu.0.as_secs_f64(),
            cpu_system_s: self.cpu.1.as_secs_f64(),
            cpu_us_per_query: if c.queries > 0 {
                round(cpu * 1e6 / c.queries as f64)
            } else {
                0.0
            },
            answered_by: self.answerers.named(&self.answered_by),
            interval_ms: plan.interval_ns as f64 / 1e6,
            timeline: self.timeline.into_report(&self.answerers),
        }
    }
}
