//! Real clients: `dig`, `dnsperf` and the C library's resolver, run inside a namespace, their output read.

use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use crate::node::Host;
use crate::process::{Cmd, Finished, Process};
use crate::{Error, Result};

/// What `dig` was told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DigAnswer {
    /// Response code in words, such as `NOERROR`.
    pub status: String,
    /// Data of the answer section, without quotes.
    pub answers: Vec<String>,
}

/// Asks once with `dig`; `None` without an answer within 1 s. `options` are further arguments, such as `+tcp`.
pub fn dig(
    from: &impl Host,
    server: SocketAddr,
    name: &str,
    qtype: &str,
    options: &[&str],
) -> Result<Option<DigAnswer>> {
    let command = Cmd::new("dig")
        .args([format!("@{}", server.ip()), "-p".to_string(), server.port().to_string()])
        .args([
            name,
            qtype,
            "+time=1",
            "+tries=1",
            "+noall",
            "+comments",
            "+answer",
            "+nocookie",
        ])
        .args(options);
    let out = from.exec(command)?;
    let status = out.stdout.split("status: ").nth(1).and_then(|t| t.split(',').next());
    Ok(status.map(|status| DigAnswer {
        status: status.to_string(),
        answers: out
            .stdout
            .lines()
            .filter(|l| !l.starts_with(';') && !l.trim().is_empty())
            .filter_map(|l| l.split_whitespace().nth(4))
            .map(|d| d.trim_matches('"').to_string())
            .collect(),
    }))
}

/// What `dnsperf` counted.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DnsperfResult {
    /// Queries sent.
    pub sent: u64,
    /// Queries answered.
    pub completed: u64,
    /// Queries unanswered within the time-out, or refused.
    pub lost: u64,
    /// Mean latency in seconds.
    pub average_latency_s: f64,
}

/// Starts `dnsperf` at `rate` queries per second for `seconds`, with questions for names under `lab.`; read the process's
/// end with [`dnsperf_result`]. The questions' file is written to `directory`.
pub fn dnsperf(from: &impl Host, server: SocketAddr, rate: u32, seconds: u32, directory: &Path) -> Result<Process> {
    let file = directory.join(format!("questions-{}.txt", from.netns().name()));
    let questions: String = (0..100).map(|i| format!("q{i}.lab A\n")).collect();
    let written = std::fs::File::create(&file).and_then(|mut f| f.write_all(questions.as_bytes()));
    written.map_err(Error::io(format!("write {}", file.display())))?;
    let (rate, seconds) = (rate.to_string(), seconds.to_string());
    let command = Cmd::new("dnsperf")
        .args(["-s", &server.ip().to_string(), "-p", &server.port().to_string(), "-d"])
        .arg(&file)
        .args(["-Q", &rate, "-l", &seconds, "-t", "1", "-T", "1", "-c", "4"]);
    from.spawn(&command)
}

/// Reads what a finished `dnsperf` printed.
pub fn dnsperf_result(finished: Finished) -> Result<DnsperfResult> {
    let finished = finished.check()?;
    let field = |name: &str| {
        let line = finished.stdout.lines().find_map(|l| l.trim().strip_prefix(name));
        let word = line.and_then(|l| l.split_whitespace().next()).map(str::to_string);
        word.ok_or_else(|| Error::other(format!("dnsperf printed no `{name}`:\n{}", finished.stdout)))
    };
    let number = |name: &str| {
        field(name)?
            .parse::<u64>()
            .map_err(|e| Error::other(format!("dnsperf's `{name}`: {e}")))
    };
    Ok(DnsperfResult {
        sent: number("Queries sent:")?,
        completed: number("Queries completed:")?,
        lost: number("Queries lost:")?,
        average_latency_s: field("Average Latency (s):")?.parse().unwrap_or(f64::NAN),
    })
}

/// Resolves `name` with the C library as a pod would, with `nameserver` in its own `/etc/resolv.conf`; the resolver waits
/// 1 s and asks once. Addresses of the family of `nameserver`, without repetitions; empty if it did not resolve.
pub fn getent(from: &impl Host, nameserver: IpAddr, name: &str, directory: &Path) -> Result<Vec<IpAddr>> {
    let file = directory.join(format!("resolv-{}.conf", from.netns().name()));
    let text = format!("nameserver {nameserver}\noptions timeout:1 attempts:1\n");
    std::fs::write(&file, text).map_err(Error::io(format!("write {}", file.display())))?;
    let database = if nameserver.is_ipv4() { "ahostsv4" } else { "ahostsv6" };
    let command = Cmd::new("getent")
        .args([database, name])
        .resolv_conf(&file)
        .limit(Duration::from_secs(10));
    let out = from.exec(command)?;
    let mut found: Vec<IpAddr> = out
        .stdout
        .lines()
        .filter_map(|l| l.split_whitespace().next()?.parse().ok())
        .collect();
    found.dedup();
    found.sort_unstable();
    found.dedup();
    Ok(found)
}
