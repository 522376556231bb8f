//! The retry budget: what keeps retries from turning a slow resolver into a dead one.

use crate::flow::Millis;

const SECONDS: usize = 10;
/// Retries are allowed for one query in ten.
const SHARE: u64 = 10;
/// What a quiet service may always spend, so that a single lost datagram is asked again.
const FLOOR: u64 = 5;

/// Counts queries and retries of the last ten seconds, one bucket per second. A retry is allowed while the retries of the
/// window stay within a tenth of its queries and those of this second within this second's share plus the burst: a
/// second's worth of traffic.
#[derive(Clone, Debug, Default)]
pub struct Budget {
    queries: [u32; SECONDS],
    retries: [u32; SECONDS],
    second: u64,
}

impl Budget {
    fn advance(&mut self, now: Millis) -> usize {
        let second = now / 1000;
        if second > self.second {
            let passed = (second - self.second).min(SECONDS as u64);
            for back in 0..passed {
                let index = ((second - back) % SECONDS as u64) as usize;
                self.queries[index] = 0;
                self.retries[index] = 0;
            }
            self.second = second;
        }
        (self.second % SECONDS as u64) as usize
    }

    /// A query came.
    pub fn query(&mut self, now: Millis) {
        let index = self.advance(now);
        self.queries[index] = self.queries[index].saturating_add(1);
    }

    /// Spends one retry if there is one.
    pub fn try_retry(&mut self, now: Millis) -> bool {
        let index = self.advance(now);
        let queries: u64 = self.queries.iter().map(|&n| u64::from(n)).sum();
        let retries: u64 = self.retries.iter().map(|&n| u64::from(n)).sum();
        let last = self.queries[(index + SECONDS - 1) % SECONDS];
        let second = u64::from(self.queries[index].max(last));
        let within_window = retries < (queries / SHARE).max(FLOOR);
        let within_burst = u64::from(self.retries[index]) < second.max(FLOOR);
        if within_window && within_burst {
            self.retries[index] += 1;
        }
        within_window && within_burst
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_in_ten_over_ten_seconds() {
        let mut budget = Budget::default();
        let mut allowed = 0;
        for second in 0..30 {
            for n in 0..1000 {
                let now = second * 1000 + n;
                budget.query(now);
                if budget.try_retry(now) {
                    allowed += 1;
                }
            }
        }
        // 30 000 queries that all want a retry.
        assert!((2_900..=3_100).contains(&allowed), "{allowed}");
    }

    #[test]
    fn a_quiet_service_may_retry_and_a_burst_after_calm_is_served() {
        let mut budget = Budget::default();
        budget.query(5_000);
        assert!(budget.try_retry(5_100));
        let mut budget = Budget::default();
        for second in 0..10 {
            for _ in 0..1000 {
                budget.query(second * 1000);
            }
        }
        // A whole second's traffic finds its endpoint silent: all of it may be asked again.
        let granted = (0..1500).filter(|_| budget.try_retry(9_999)).count();
        assert_eq!(granted, 1000);
    }

    #[test]
    fn the_window_forgets() {
        let mut budget = Budget::default();
        for _ in 0..1000 {
            budget.query(0);
        }
        while budget.try_retry(0) {}
        assert!(!budget.try_retry(9_000));
        assert!(budget.try_retry(60_000));
    }
}
