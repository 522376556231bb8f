//! The udp client against its server and against a plain echo; statsd with a receiver that loses and repeats.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use common::{MS, check, check_server, loopback, oddities};
use nodeward_loadgen::client::{Ports, Retransmit};
use nodeward_loadgen::report::Report;
use nodeward_loadgen::serve::{self, Server};
use nodeward_loadgen::{statsd, udp};
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

fn server(change: impl FnOnce(&mut serve::udp::Config)) -> Server {
    let mut config = serve::udp::Config::new(loopback(), "u1");
    change(&mut config);
    serve::udp::start(&config).unwrap()
}

fn requests(server: SocketAddr, count: u32, size: usize) -> udp::Config {
    let mut config = udp::Config::new(server);
    config.size = size;
    config.load.rate = 1_000.0;
    config.load.duration = count * MS;
    config.load.timeout = Some(2_000 * MS);
    config.load.linger = 100 * MS;
    config
}

fn run(config: &udp::Config) -> Report {
    let report = udp::run(config).unwrap();
    check(&report);
    report
}

#[test]
fn requests_of_every_size_come_back_whole_and_named() {
    let server = server(|_| {});
    for (size, ports) in [
        (24, Ports::Fresh),
        (64, Ports::Fixed { clients: 2 }),
        (4_096, Ports::Fresh),
        (65_507, Ports::Fresh),
    ] {
        let report = run(&requests(server.address(), 50, size));
        assert_eq!((report.answered, oddities(&report)), (50, [0; 6]), "{size} {ports:?}");
        // A datagram without room for the name comes back without it.
        let name = if size == 24 { "(unknown)" } else { "u1" };
        assert_eq!(report.answered_by.get(name), Some(&50), "{size}");
    }
    let served = server.stop().unwrap();
    check_server(&served);
    assert_eq!((served.received, served.malformed), (200, 0));
}

#[test]
fn damage_and_wrong_numbers_are_mismatches() {
    for (change, unknown) in [
        (
            Box::new(|c: &mut serve::udp::Config| c.corrupt = true) as Box<dyn FnOnce(&mut serve::udp::Config)>,
            0,
        ),
        (Box::new(|c: &mut serve::udp::Config| c.wrong_id = true), 50),
    ] {
        let server = server(change);
        let mut config = requests(server.address(), 50, 100);
        config.load.timeout = Some(500 * MS);
        let report = run(&config);
        assert_eq!(
            (report.timeouts, report.unknown_id, oddities(&report)),
            (50, unknown, [0, 0, 50, 0, 0, 0])
        );
    }
}

#[test]
fn duplicates_and_drops_are_counted_as_for_dns() {
    let server = server(|c| {
        c.behaviour.duplicate = true;
        c.behaviour.drop_percent = 20.0;
        c.size = 1_000;
    });
    let mut config = requests(server.address(), 200, 64);
    config.load.timeout = Some(1_000 * MS);
    config.load.ports = Ports::Fixed { clients: 2 };
    config.load.retransmit = Retransmit::None;
    let report = run(&config);
    let served = server.stop().unwrap();
    check_server(&served);
    assert!(served.dropped > 10, "{served:?}");
    assert_eq!(
        (report.timeouts, report.duplicates),
        (served.dropped, served.duplicated)
    );
}

/// Passes datagrams from `listen` on to `to` as `copies` says for the n-th; replies are not passed back.
fn relay(to: Option<SocketAddr>, copies: fn(u64) -> usize) -> (SocketAddr, Arc<AtomicBool>) {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(20 * MS)).unwrap();
    let address = socket.local_addr().unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let done = stop.clone();
    std::thread::spawn(move || {
        let mut buffer = [0; 65_536];
        let mut n = 0;
        while !done.load(Ordering::Relaxed) {
            let Ok((length, from)) = socket.recv_from(&mut buffer) else {
                continue;
            };
            for _ in 0..copies(n) {
                socket.send_to(&buffer[..length], to.unwrap_or(from)).unwrap();
            }
            n += 1;
        }
    });
    (address, stop)
}

#[test]
fn a_plain_echo_server_will_do() {
    let (echo, stop) = relay(None, |_| 1);
    let report = run(&requests(echo, 50, 200));
    assert_eq!((report.answered, oddities(&report)), (50, [0; 6]));
    stop.store(true, Ordering::Relaxed);
}

fn metrics(server: SocketAddr, count: u32, sizes: &[usize]) -> statsd::Config {
    let mut config = statsd::Config::new(server);
    config.load.rate = 2_000.0;
    config.load.duration = count * MS / 2;
    config.load.ports = Ports::Fixed { clients: 3 };
    config.sizes = sizes.to_vec();
    config
}

#[test]
fn every_metric_arrives_and_is_accounted_for() {
    let config = serve::statsd::Config {
        listen: loopback(),
        tag: "s1".to_owned(),
    };
    let server = serve::statsd::start(&config).unwrap();
    let report = statsd::run(&metrics(server.address(), 600, &[51, 64, 1_432, 8_932])).unwrap();
    std::thread::sleep(100 * MS);
    let served = server.stop().unwrap();
    assert_eq!(
        (report.datagrams, report.sent, report.failed, report.not_sent),
        (600, 600, 0, 0)
    );
    assert_eq!(report.timeline.iter().map(|i| i.sent).sum::<u64>(), 600);
    assert_eq!((served.received, served.bytes), (600, report.bytes));
    assert_eq!(
        (served.lost, served.duplicates, served.malformed, served.unfollowed),
        (0, 0, 0, 0)
    );
    assert_eq!(served.senders.len(), 3);
    for sender in &served.senders {
        assert_eq!((sender.run.as_str(), sender.lowest), (report.run.as_str(), 0));
        // Used in turn, but not evenly when several were due at once.
        assert_eq!(sender.received, sender.highest + 1);
        assert!((150..250).contains(&sender.received), "{}", sender.received);
    }
    assert_eq!(served.senders.iter().map(|sender| sender.received).sum::<u64>(), 600);
}

#[test]
fn lost_and_repeated_metrics_are_told_exactly() {
    let server = serve::statsd::start(&serve::statsd::Config {
        listen: loopback(),
        tag: "s1".to_owned(),
    })
    .unwrap();
    // Of each ten: two lost, one repeated; the first and the last come, so nothing is missing at the ends.
    let (address, stop) = relay(Some(server.address()), |n| match n % 10 {
        3 | 4 => 0,
        7 => 2,
        _ => 1,
    });
    let mut config = metrics(address, 600, &[64]);
    config.load.ports = Ports::Fixed { clients: 1 };
    let report = statsd::run(&config).unwrap();
    std::thread::sleep(100 * MS);
    stop.store(true, Ordering::Relaxed);
    let served = server.stop().unwrap();
    assert_eq!(report.sent, 600);
    assert_eq!(
        (served.received, served.lost, served.duplicates, served.reordered),
        (540, 120, 60, 0)
    );
}

#[test]
fn a_closed_port_shows_as_icmp_errors_and_sending_goes_on() {
    let closed = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let report = statsd::run(&metrics(closed, 100, &[64])).unwrap();
    assert_eq!((report.datagrams, report.sent, report.failed), (100, 100, 0));
    // Each of the three sockets may still have its last error unread when the run ends.
    assert!((97..=100).contains(&report.icmp_errors), "{}", report.icmp_errors);
}

#[test]
fn sizes_that_cannot_work_are_named() {
    let error = |sizes: &[usize]| statsd::run(&metrics(loopback(), 10, sizes)).unwrap_err().to_string();
    assert!(error(&[50]).starts_with("--size:"));
    assert!(error(&[]).starts_with("--size:"));
    assert!(
        udp::run(&requests(loopback(), 10, 23))
            .unwrap_err()
            .to_string()
            .starts_with("--size:")
    );
    assert!(
        udp::run(&requests(loopback(), 10, 65_508))
            .unwrap_err()
            .to_string()
            .starts_with("--size:")
    );
}
