//! How long a service port's endpoints take to answer: a small decaying histogram that knows its 99th percentile.

use crate::flow::Millis;

const BUCKETS: usize = 14;
/// Samples after which everything is halved, so that old times fade.
const HALVE_AT: u32 = 2048;
/// Fewer samples say nothing about a 99th percentile.
const ENOUGH: u32 = 50;

/// Powers of two of milliseconds: bucket n holds times below 2^n ms.
#[derive(Clone, Debug, Default)]
pub struct Latency {
    buckets: [u32; BUCKETS],
    total: u32,
    p99: Option<Millis>,
}

impl Latency {
    /// Adds one answer's time.
    pub fn add(&mut self, took: Millis) {
        let bucket = (u64::BITS - took.leading_zeros()).min(BUCKETS as u32 - 1) as usize;
        self.buckets[bucket] += 1;
        self.total += 1;
        if self.total.is_multiple_of(ENOUGH) {
            self.p99 = Some(self.quantile());
        }
        if self.total >= HALVE_AT {
            self.total = 0;
            for count in &mut self.buckets {
                *count /= 2;
                self.total += *count;
            }
        }
    }

    /// The 99th percentile, rounded up to a power of two milliseconds; `None` until there are enough samples.
    pub fn p99(&self) -> Option<Millis> {
        self.p99
    }

    fn quantile(&self) -> Millis {
        let mut above = self.total / 100;
        for bucket in (0..BUCKETS).rev() {
            if self.buckets[bucket] > above {
                return 1 << bucket;
            }
            above -= self.buckets[bucket];
        }
        1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn p99_follows_the_times() {
        let mut latency = Latency::default();
        assert_eq!(latency.p99(), None);
        for _ in 0..100 {
            latency.add(0);
        }
        assert_eq!(latency.p99(), Some(1));
        for n in 0..5000 {
            latency.add(if n % 50 == 0 { 100 } else { 1 });
        }
        assert_eq!(latency.p99(), Some(128), "two in a hundred take 100 ms");
        for _ in 0..20_000 {
            latency.add(3);
        }
        assert_eq!(latency.p99(), Some(4), "old times fade");
    }

    #[test]
    fn absurd_times_stay_in_the_last_bucket() {
        let mut latency = Latency::default();
        for _ in 0..100 {
            latency.add(u64::MAX);
        }
        assert_eq!(latency.p99(), Some(1 << (BUCKETS - 1)));
    }
}
