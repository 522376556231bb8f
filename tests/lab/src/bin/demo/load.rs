//! Runs `nodeward-loadgen dns` in the client's pod and reads its report.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use nodeward_lab::{Cmd, Error, Host, Process, Result};
use serde::Deserialize;

/// What the load generator counted; the fields the demo uses.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Report {
    /// Queries begun.
    pub queries: u64,
    /// Queries without a right answer in time.
    pub failed: u64,
    /// Datagrams from another address than the one dialled.
    pub wrong_source: u64,
    /// Right answers beyond one per query.
    pub duplicates: u64,
    /// Queries of the plan never begun: the generator could not keep up.
    pub not_sent: u64,
    /// Median latency, µs; none without an answer.
    pub p50_us: Option<f64>,
    /// 99th percentile.
    pub p99_us: Option<f64>,
    /// Answers by the server's tag, `NODE/POD`.
    pub answered_by: BTreeMap<String, u64>,
    /// What became of the queries due in each interval.
    pub timeline: Vec<Interval>,
}

/// One interval of the run.
#[derive(Clone, Debug, Deserialize)]
pub struct Interval {
    /// From the start of the run, ms.
    pub at_ms: u64,
    /// Queries of it that failed.
    pub failed: u64,
}

/// A query not answered after this long has failed: well below a resolver's patience, well above any retry of ours.
const TIMEOUT_MS: u64 = 1000;

/// A running load.
pub struct Load {
    process: Process,
    limit: Duration,
}

impl Load {
    /// Starts `rate` queries per second for `seconds`, each from a fresh port, asking the VIP who it is.
    pub fn start(client: &dyn Host, loadgen: &Path, server: SocketAddr, rate: u32, seconds: f64) -> Result<Load> {
        let command = Cmd::new(loadgen)
            .args([
                "dns",
                "--json",
                "--ports",
                "fresh",
                "--identify",
                "txt",
                "--name",
                "whoami.lab",
            ])
            .args([
                "--server",
                &server.to_string(),
                "--rate",
                &rate.to_string(),
                "--duration",
                &seconds.to_string(),
            ])
            .args(["--timeout", &TIMEOUT_MS.to_string(), "--linger", "100"]);
        let process = client.spawn(&command)?;
        Ok(Load {
            process,
            limit: Duration::from_secs_f64(seconds + 15.0),
        })
    }

    /// Waits for the end and reads the report.
    pub fn report(self) -> Result<Report> {
        let finished = self.process.wait(self.limit)?.check()?;
        let line = finished.stdout.trim();
        serde_json::from_str(line).map_err(|e| Error::other(format!("the load generator's report: {e}:\n{line}")))
    }
}
