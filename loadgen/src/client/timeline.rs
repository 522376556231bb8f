//! What happened to the queries of each interval of the run. A query belongs to the interval it was due in, whenever
//! it ended: so per interval sent = answered + failed, and a fault shows where it struck.

use super::Who;
use crate::report::Interval;
use hdrhistogram::Histogram;
use std::collections::BTreeMap;
use std::net::IpAddr;

/// Answerers told apart at most; the rest is counted as `(other)`.
const MAX_ANSWERERS: usize = 256;

enum Name {
    Unknown,
    Text(Box<[u8]>),
    Address(IpAddr),
    Other,
}

/// Names of those who answered, as small numbers.
pub(super) struct Answerers {
    names: Vec<Name>,
    last: usize,
}

impl Answerers {
    pub fn new() -> Self {
        Answerers {
            names: Vec::new(),
            last: 0,
        }
    }

    fn is(&self, index: usize, who: Who) -> bool {
        match (self.names.get(index), who) {
            (Some(Name::Unknown), Who::Unknown) => true,
            (Some(Name::Text(name)), Who::Text(text)) => **name == *text,
            (Some(Name::Address(name)), Who::Address(address)) => *name == address,
            _ => false,
        }
    }

    /// The number of this answerer; allocates only for a new one.
    pub fn number(&mut self, who: Who) -> usize {
        if self.is(self.last, who) {
            return self.last;
        }
        self.last = match (0..self.names.len()).find(|&i| self.is(i, who)) {
            Some(index) => index,
            None if self.names.len() > MAX_ANSWERERS => MAX_ANSWERERS,
            None => {
                self.names.push(match who {
                    _ if self.names.len() == MAX_ANSWERERS => Name::Other,
                    Who::Unknown => Name::Unknown,
                    Who::Text(text) => Name::Text(text.into()),
                    Who::Address(address) => Name::Address(address),
                });
                self.names.len() - 1
            }
        };
        self.last
    }

    /// Takes over another list's names and says which number each of them has here.
    pub fn absorb(&mut self, other: &Answerers) -> Vec<usize> {
        let number = |name: &Name| match name {
            Name::Unknown => self.number(Who::Unknown),
            Name::Text(text) => self.number(Who::Text(text)),
            Name::Address(address) => self.number(Who::Address(*address)),
            Name::Other => MAX_ANSWERERS,
        };
        other.names.iter().map(number).collect()
    }

    fn name(&self, number: usize) -> String {
        match self.names.get(number) {
            Some(Name::Text(text)) => String::from_utf8_lossy(text).into_owned(),
            Some(Name::Address(address)) => address.to_string(),
            Some(Name::Other) => "(other)".to_owned(),
            None if number == MAX_ANSWERERS => "(other)".to_owned(),
            Some(Name::Unknown) | None => "(unknown)".to_owned(),
        }
    }

    /// Counts by number as counts by name.
    pub fn named(&self, counts: &[u64]) -> BTreeMap<String, u64> {
        counts
            .iter()
            .enumerate()
            .filter(|&(_, &n)| n > 0)
            .map(|(i, &n)| (self.name(i), n))
            .collect()
    }
}

/// Adds one to a counter in a list that grows as needed.
pub(super) fn count(counts: &mut Vec<u64>, number: usize) {
    if counts.len() <= number {
        counts.resize(number + 1, 0);
    }
    counts[number] += 1;
}

#[derive(Clone, Default)]
struct Slice {
    sent: u64,
    answered: u64,
    failed: u64,
    answered_by: Vec<u64>,
    latency: Option<Box<Histogram<u32>>>,
}

pub(super) struct Timeline {
    interval_ns: u64,
    slices: Vec<Slice>,
}

/// Two digits: 1 %, 10 KB per interval.
fn histogram() -> Option<Box<Histogram<u32>>> {
    Histogram::new_with_bounds(1, 120_000_000, 2).ok().map(Box::new)
}

impl Timeline {
    pub fn new(interval_ns: u64, intervals: usize) -> Self {
        Timeline {
            interval_ns,
            slices: vec![Slice::default(); intervals],
        }
    }

    fn slice(&mut self, intended_ns: u64) -> &mut Slice {
        let last = self.slices.len() - 1;
        let index = usize::try_from(intended_ns / self.interval_ns)
            .unwrap_or(last)
            .min(last);
        &mut self.slices[index]
    }

    pub fn sent(&mut self, intended_ns: u64) {
        self.slice(intended_ns).sent += 1;
    }

    pub fn failed(&mut self, intended_ns: u64) {
        self.slice(intended_ns).failed += 1;
    }

    pub fn answered(&mut self, intended_ns: u64, latency_ns: u64, answerer: usize) {
        let slice = self.slice(intended_ns);
        slice.answered += 1;
        count(&mut slice.answered_by, answerer);
        if slice.latency.is_none() {
            slice.latency = histogram();
        }
        if let Some(latency) = &mut slice.latency {
            latency.saturating_record(latency_ns / 1_000);
        }
    }

    /// Adds another thread's timeline of the same run; `theirs` names its answerers, `ours` this one's.
    pub fn merge(&mut self, other: Timeline, renumber: &[usize]) {
        for (slice, add) in self.slices.iter_mut().zip(other.slices) {
            slice.sent += add.sent;
            slice.answered += add.answered;
            slice.failed += add.failed;
            for (theirs, &n) in add.answered_by.iter().enumerate() {
                if let Some(&ours) = renumber.get(theirs) {
                    if slice.answered_by.len() <= ours {
                        slice.answered_by.resize(ours + 1, 0);
                    }
                    slice.answered_by[ours] += n;
                }
            }
            match (&mut slice.latency, add.latency) {
                // Same bounds, so adding cannot fail.
                (Some(latency), Some(more)) => drop(latency.add(&*more)),
                (latency @ None, more) => *latency = more,
                _ => {}
            }
        }
    }

    pub fn into_report(self, answerers: &Answerers) -> Vec<Interval> {
        let interval_ms = self.interval_ns as f64 / 1e6;
        self.slices
            .into_iter()
            .enumerate()
            .map(|(i, slice)| Interval {
                at_ms: (i as f64 * interval_ms).round() as u64,
                sent: slice.sent,
                answered: slice.answered,
                failed: slice.failed,
                p99_us: slice.latency.map(|h| h.value_at_quantile(0.99) as f64),
                answered_by: answerers.named(&slice.answered_by),
            })
            .collect()
    }
}
