//! What the demo tells: a line per phase as it happens, the final object, the promises that were broken.

use std::collections::BTreeMap;

use nodeward_lab::{Error, Result};
use serde::Serialize;

use crate::load::Report;

/// Shares of the answers by distance class, 0 to 1; they add up to 1 when anything was answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Shares {
    node: f64,
    zone: f64,
    cluster: f64,
}

impl Shares {
    /// From the answers by tag, seen from a client on `n1` in zone `za`.
    pub fn measured(answered_by: &BTreeMap<String, u64>, zone_of: impl Fn(&str) -> Option<String>) -> Shares {
        let total: u64 = answered_by.values().sum();
        let mut shares = Shares::default();
        for (tag, count) in answered_by {
            let node = tag.split('/').next().unwrap_or_default();
            let share = *count as f64 / total.max(1) as f64;
            match zone_of(node).as_deref() {
                _ if node == "n1" => shares.node += share,
                Some("za") => shares.zone += share,
                _ => shares.cluster += share,
            }
        }
        let round = |x: f64| (x * 1e4).round() / 1e4;
        Shares {
            node: round(shares.node),
            zone: round(shares.zone),
            cluster: round(shares.cluster),
        }
    }
}

#[derive(Clone, Debug, Serialize)]
struct Phase {
    name: String,
    queries: u64,
    failed: u64,
    share_by_rank: Shares,
    p50_us: Option<f64>,
    p99_us: Option<f64>,
}

#[derive(Clone, Copy, Debug, Default, Serialize)]
struct Killed {
    queries: u64,
    failed: u64,
}

/// Everything told so far.
#[derive(Default)]
pub struct Account {
    phases: Vec<Phase>,
    killed: Killed,
    broken: Vec<String>,
    headed: bool,
}

impl Account {
    /// Prints a line now.
    pub fn say(&mut self, line: &str) {
        println!("{line}");
    }

    /// Notes a broken promise.
    pub fn broke(&mut self, promise: String) {
        println!("  BROKEN: {promise}");
        self.broken.push(promise);
    }

    /// Prints a row of the table.
    pub fn row(&mut self, name: &str, report: &Report, shares: Shares) {
        if !self.headed {
            self.headed = true;
            println!(
                "\n{:<44} {:>7} {:>6}  {:>5} {:>5} {:>7}  {:>8} {:>8}",
                "", "queries", "failed", "node", "zone", "cluster", "p50 µs", "p99 µs"
            );
        }
        let number = |x: Option<f64>| x.map_or("-".to_string(), |x| format!("{x:.0}"));
        let percent = |x: f64| format!("{:.0}%", x * 100.0);
        println!(
            "{name:<44} {:>7} {:>6}  {:>5} {:>5} {:>7}  {:>8} {:>8}",
            report.queries,
            report.failed,
            percent(shares.node),
            percent(shares.zone),
            percent(shares.cluster),
            number(report.p50_us),
            number(report.p99_us)
        );
    }

    /// A phase with Nodeward; every failed, doubled or misaddressed answer breaks a promise.
    pub fn phase(&mut self, name: &str, report: &Report, shares: Shares) {
        self.row(name, report, shares);
        for (count, what) in [
            (report.failed, "queries failed"),
            (
                report.wrong_source,
                "answers came from another address than the one asked",
            ),
            (report.duplicates, "answers came twice"),
        ] {
            if count > 0 {
                self.broke(format!("{name}: {count} {what}"));
            }
        }
        if report.not_sent > 0 {
            self.say(&format!(
                "  (the load generator could not keep up: {} queries not sent)",
                report.not_sent
            ));
        }
        self.phases.push(Phase {
            name: name.to_string(),
            queries: report.queries,
            failed: report.failed,
            share_by_rank: shares,
            p50_us: report.p50_us,
            p99_us: report.p99_us,
        });
    }

    /// The kill of Nodeward: at most `allowed` may fail.
    pub fn killed(&mut self, name: &str, report: &Report, shares: Shares, allowed: u64) {
        self.row(name, report, shares);
        self.killed = Killed {
            queries: report.queries,
            failed: report.failed,
        };
        if report.failed > allowed {
            self.broke(format!("{name}: {} queries failed, more than {allowed}", report.failed));
        }
    }

    /// The final object, on one line.
    pub fn json(&self, leftovers: usize) -> Result<String> {
        let last = Final {
            phases: &self.phases,
            killed: self.killed,
            leftovers,
        };
        serde_json::to_string(&last).map_err(|e| Error::other(format!("the final object: {e}")))
    }

    /// All broken promises.
    pub fn broken(&self) -> &[String] {
        &self.broken
    }
}

#[derive(Serialize)]
struct Final<'a> {
    phases: &'a [Phase],
    killed: Killed,
    leftovers: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_come_from_the_tags() {
        let answered = [("n1/dns-1", 6), ("n2/dns-2", 3), ("n3/dns-3", 1), ("n1/dns-4", 2)];
        let answered = answered.map(|(tag, n)| (tag.to_string(), n)).into();
        let zone = |node: &str| Some(if node == "n3" { "zb" } else { "za" }.to_string());
        let shares = Shares::measured(&answered, zone);
        assert_eq!(
            shares,
            Shares {
                node: 0.6667,
                zone: 0.25,
                cluster: 0.0833
            }
        );
        assert_eq!(Shares::measured(&BTreeMap::new(), zone), Shares::default());
    }
}
