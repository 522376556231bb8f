//! Shared by the tests: configurations for loopback and the sums that must hold for every report.
#![allow(dead_code, clippy::unwrap_used, clippy::expect_used)]

use nodeward_loadgen::dns::{Config, QueryType};
use nodeward_loadgen::report::{Report, ServeReport};
use nodeward_loadgen::serve::{self, Server};
use std::net::SocketAddr;
use std::time::Duration;

pub const MS: Duration = Duration::from_millis(1);

/// A free loopback address; the kernel chooses the port.
pub fn loopback() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

/// A DNS server in this process, changed by `change`.
pub fn dns_server(change: impl FnOnce(&mut serve::dns::Config)) -> Server {
    let mut config = serve::dns::Config::new(loopback(), "n1");
    change(&mut config);
    serve::dns::start(&config).unwrap()
}

/// `queries` TXT queries at 1 000/s. The timeout is long, because machines that run tests are busy.
pub fn txt(server: SocketAddr, queries: u32) -> Config {
    let mut config = Config::new(server);
    config.query_type = QueryType::Txt;
    config.load.rate = 1_000.0;
    config.load.duration = queries * MS;
    config.load.timeout = Some(2_000 * MS);
    config.load.linger = 100 * MS;
    config
}

/// Runs it and checks what must hold for every run.
pub fn run(config: &Config) -> Report {
    let report = nodeward_loadgen::dns::run(config).unwrap();
    check(&report);
    report
}

pub fn check(r: &Report) {
    assert_eq!(r.queries, r.answered + r.failed, "{r:#?}");
    assert_eq!(r.failed, r.timeouts + r.rcode_failed + r.send_failed, "{r:#?}");
    assert_eq!(r.answered, r.answered_by.values().sum::<u64>(), "{r:#?}");
    let sum = |of: fn(&nodeward_loadgen::report::Interval) -> u64| r.timeline.iter().map(of).sum::<u64>();
    assert_eq!(sum(|i| i.sent), r.queries);
    assert_eq!(sum(|i| i.answered), r.answered);
    assert_eq!(sum(|i| i.failed), r.failed);
    assert_eq!(sum(|i| i.answered_by.values().sum()), r.answered);
    assert!(r.timeline.iter().all(|i| i.sent == i.answered + i.failed));
    assert_eq!(r.send_errors, r.send_errors_by.values().sum::<u64>());
    assert_eq!(r.icmp_errors, r.icmp.values().sum::<u64>());
}

pub fn check_server(r: &ServeReport) {
    let sum = r.answered + r.dropped + r.silenced + r.malformed + r.delay_overflow + r.pending + r.send_errors;
    assert_eq!(r.received, sum, "{r:#?}");
}

/// What a run saw besides answers: (duplicates, wrong source, mismatched, late, ICMP errors, send errors).
pub fn oddities(r: &Report) -> [u64; 6] {
    [
        r.duplicates,
        r.wrong_source,
        r.mismatched,
        r.late,
        r.icmp_errors,
        r.send_errors,
    ]
}
