//! The schedule does not wait for the server, and the report shows what waiting clients would have felt.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use common::{MS, dns_server, run, txt};
use nodeward_loadgen::client::{Ports, Retransmit};
use nodeward_loadgen::dns::Identify;
use nodeward_loadgen::serve;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

#[test]
fn a_stall_shows_in_every_query_that_fell_into_it() {
    for ports in [Ports::Fresh, Ports::Fixed { clients: 4 }] {
        let server = dns_server(|_| {});
        let mut config = txt(server.address(), 1_000);
        config.load.ports = ports;
        let report = std::thread::scope(|scope| {
            let load = scope.spawn(|| run(&config));
            std::thread::sleep(300 * MS);
            server.stall(300 * MS);
            load.join().unwrap()
        });
        // 300 of 1 000 queries fell into the stall, so one in ten waited over 200 ms. A generator that waits for
        // answers would have had one slow query per client: nothing at the 90th percentile.
        assert_eq!((report.queries, report.answered), (1_000, 1_000));
        assert!(report.p90_us.unwrap() > 150_000.0, "{:?}", report.p90_us);
        assert!(report.max_us.unwrap() > 280_000.0, "{:?}", report.max_us);
        // And it was not the generator that stalled.
        assert!(report.send_lag_p99_us < 100_000.0, "{}", report.send_lag_p99_us);
        assert!(report.rate_achieved > 900.0, "{}", report.rate_achieved);
        // The intervals before it were untouched: the median of the first ones is far below the stall.
        assert!(report.timeline[0].p99_us.unwrap() < 250_000.0);
    }
}

#[test]
fn a_silent_server_does_not_slow_the_sending() {
    let server = dns_server(|c| c.behaviour.silent = true);
    let mut config = txt(server.address(), 500);
    config.load.timeout = Some(400 * MS);
    let begun = std::time::Instant::now();
    let report = run(&config);
    let served = server.stop().unwrap();
    assert_eq!((report.queries, report.timeouts, served.silenced), (500, 500, 500));
    assert_eq!(report.not_sent, 0);
    assert!(report.rate_achieved > 900.0, "{}", report.rate_achieved);
    // 500 ms of sending, 400 ms timeout, 100 ms linger; a closed loop would have needed 200 s.
    assert!(begun.elapsed() < 5_000 * MS);
}

#[test]
fn the_timeline_shows_a_change_of_endpoint() {
    let server = dns_server(|_| {});
    let address = server.address();
    let mut config = txt(address, 1_200);
    config.identify = Some(Identify::Txt);
    config.load.rate = 500.0;
    config.load.retransmit = Retransmit::After(vec![200 * MS, 500 * MS, 1_000 * MS]);
    let report = std::thread::scope(|scope| {
        let load = scope.spawn(|| run(&config));
        std::thread::sleep(500 * MS);
        server.stop().unwrap();
        let successor = serve::dns::start(&serve::dns::Config::new(address, "n2")).unwrap();
        let report = load.join().unwrap();
        successor.stop().unwrap();
        report
    });
    assert_eq!((report.queries, report.failed), (600, 0), "{report:#?}");
    assert_eq!(report.answered_by.keys().collect::<Vec<_>>(), ["n1", "n2"]);
    let (first, last) = (report.timeline.first().unwrap(), report.timeline.last().unwrap());
    assert_eq!(first.answered_by.keys().collect::<Vec<_>>(), ["n1"]);
    assert_eq!(last.answered_by.keys().collect::<Vec<_>>(), ["n2"]);
    assert_eq!(report.timeline.len(), 12);
}

#[test]
fn stopping_early_counts_what_was_not_sent() {
    let server = dns_server(|_| {});
    let mut config = txt(server.address(), 10_000);
    config.load.threads = 2;
    let stop = Arc::new(AtomicBool::new(false));
    config.load.stop = Some(stop.clone());
    let report = std::thread::scope(|scope| {
        let load = scope.spawn(|| run(&config));
        std::thread::sleep(300 * MS);
        stop.store(true, Ordering::Relaxed);
        load.join().unwrap()
    });
    assert_eq!(report.queries + report.not_sent, 10_000);
    assert!(report.queries > 50 && report.queries < 5_000, "{}", report.queries);
    assert_eq!((report.answered, report.failed), (report.queries, 0));
    assert_eq!(server.stop().unwrap().received, report.queries);
}

#[test]
fn threads_share_the_schedule() {
    let server = dns_server(|_| {});
    for (threads, ports) in [(2, Ports::Fresh), (3, Ports::Fixed { clients: 4 })] {
        let mut config = txt(server.address(), 300);
        config.load.threads = threads;
        config.load.ports = ports;
        config.identify = Some(Identify::Txt);
        let report = run(&config);
        assert_eq!((report.queries, report.answered), (300, 300));
        assert_eq!(
            report.timeline.iter().map(|i| i.sent).collect::<Vec<_>>(),
            [100, 100, 100]
        );
        assert_eq!(report.sockets_opened, if ports == Ports::Fresh { 300 } else { 4 });
    }
    assert_eq!(server.stop().unwrap().received, 600);
}
