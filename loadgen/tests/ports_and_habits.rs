//! What the server sees of the client: ports, pairs, retransmissions.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use common::{MS, dns_server, oddities, run, txt};
use nodeward_loadgen::client::{Ports, Retransmit};
use nodeward_loadgen::dns::{Config, QueryType};
use std::collections::{HashMap, HashSet};
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// What a server saw: when, from where, the whole query.
type Seen = Vec<(Instant, SocketAddr, Vec<u8>)>;

/// Runs a client against a server written out by hand, so that the crate's own server proves nothing about itself.
/// `answer` says whether the n-th arrival of the same (client, id) is answered.
fn against_recorder(config: &mut Config, answer: fn(usize) -> bool) -> (nodeward_loadgen::report::Report, Seen) {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(20 * MS)).unwrap();
    config.load.server = socket.local_addr().unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    std::thread::scope(|scope| {
        let done = stop.clone();
        let recorder = scope.spawn(move || {
            let mut seen = Seen::new();
            let mut arrivals: HashMap<(SocketAddr, [u8; 2]), usize> = HashMap::new();
            let mut buffer = [0; 2_048];
            while !done.load(Ordering::Relaxed) {
                let Ok((length, from)) = socket.recv_from(&mut buffer) else {
                    continue;
                };
                seen.push((Instant::now(), from, buffer[..length].to_vec()));
                let count = arrivals.entry((from, [buffer[0], buffer[1]])).or_default();
                *count += 1;
                if answer(*count) {
                    buffer[2] |= 0x80;
                    socket.send_to(&buffer[..length], from).unwrap();
                }
            }
            seen
        });
        let report = run(config);
        stop.store(true, Ordering::Relaxed);
        (report, recorder.join().unwrap())
    })
}

fn anything() -> SocketAddr {
    "127.0.0.1:9".parse().unwrap()
}

#[test]
fn fresh_ports_differ_and_fixed_ports_stay() {
    let server = dns_server(|_| {});
    let mut config = txt(server.address(), 300);
    let report = run(&config);
    assert_eq!((report.answered, report.sockets_opened), (300, 300));
    let clients = server.stop().unwrap().clients;
    // The kernel may give a closed port again; all of them open at once it cannot.
    assert!(clients > 250, "{clients}");

    let server = dns_server(|_| {});
    config.load.server = server.address();
    config.load.ports = Ports::Fixed { clients: 5 };
    let report = run(&config);
    assert_eq!((report.answered, report.sockets_opened), (300, 5));
    assert_eq!(server.stop().unwrap().clients, 5);
}

#[test]
fn a_pair_is_a_and_aaaa_at_once_from_one_port() {
    let mut config = txt(anything(), 200);
    config.query_type = QueryType::Pair;
    config.names = vec!["one.test".to_owned(), "two.test".to_owned()];
    let (report, seen) = against_recorder(&mut config, |_| true);
    assert_eq!(
        (report.queries, report.answered, report.sockets_opened),
        (200, 200, 100)
    );
    assert_eq!(oddities(&report), [0; 6]);
    let qtype = |query: &[u8]| query[query.len() - 3];
    let name = |query: &[u8]| query[12..query.len() - 4].to_vec();
    let mut by_port: HashMap<SocketAddr, Vec<&Vec<u8>>> = HashMap::new();
    for (_, from, query) in &seen {
        by_port.entry(*from).or_default().push(query);
    }
    assert_eq!(seen.len(), 200);
    // A port may come back after its socket was closed; then it has two pairs.
    for queries in by_port.values() {
        for pair in queries.chunks(2) {
            assert_eq!((qtype(pair[0]), qtype(pair[1])), (1, 28));
            assert_eq!(name(pair[0]), name(pair[1]));
            assert_ne!(pair[0][..2], pair[1][..2], "same id");
        }
    }
    let names: HashSet<_> = seen.iter().map(|(_, _, query)| name(query)).collect();
    assert_eq!(names.len(), 2);
}

#[test]
fn only_opcode_query_and_random_ids() {
    let mut config = txt(anything(), 200);
    config.edns = Some(1_232);
    let (_, seen) = against_recorder(&mut config, |_| true);
    assert!(
        seen.iter().all(|(_, _, query)| query[2] == 0x01 && query[3] == 0),
        "flags are RD alone"
    );
    let ids: HashSet<_> = seen.iter().map(|(_, _, query)| [query[0], query[1]]).collect();
    assert!(ids.len() > 190, "{}", ids.len());
    let in_order = seen.windows(2).filter(|w| w[0].2[..2] <= w[1].2[..2]).count();
    assert!((60..140).contains(&in_order), "{in_order} of 199 ids rise");
}

/// The second arrival of each query comes `after` the first, from the same port with the same bytes.
fn check_second_arrivals(seen: &Seen, after: Duration) {
    let mut first: HashMap<(SocketAddr, &[u8]), Instant> = HashMap::new();
    for (at, from, query) in seen {
        if let Some(before) = first.insert((*from, query), *at) {
            let gap = *at - before;
            assert!(gap > after - 20 * MS && gap < after + 300 * MS, "{gap:?}");
        }
    }
    assert_eq!(first.len() * 2, seen.len());
}

#[test]
fn an_unanswered_query_is_sent_again_and_its_latency_counts_from_the_first() {
    let mut config = txt(anything(), 50);
    config.load.retransmit = Retransmit::After(vec![150 * MS]);
    let (report, seen) = against_recorder(&mut config, |arrival| arrival == 2);
    assert_eq!((report.queries, report.answered, report.retransmits), (50, 50, 50));
    assert_eq!((oddities(&report), report.retransmit_answers), ([0; 6], 0));
    assert!(report.p50_us.unwrap() > 150_000.0);
    check_second_arrivals(&seen, 150 * MS);
}

#[test]
fn answers_to_both_sends_are_no_duplicates() {
    let server = dns_server(|c| c.behaviour.delay = 300 * MS);
    let mut config = txt(server.address(), 50);
    config.load.retransmit = Retransmit::After(vec![100 * MS]);
    config.load.linger = 2_000 * MS;
    let report = run(&config);
    assert_eq!(
        (report.answered, report.retransmits, report.retransmit_answers),
        (50, 50, 50)
    );
    assert_eq!(oddities(&report), [0; 6]);
    assert_eq!(server.stop().unwrap().answered, 100);
}

#[test]
fn musl_asks_again_after_two_and_a_half_seconds() {
    let mut config = txt(anything(), 4);
    config.load.timeout = None;
    config.load.retransmit = Retransmit::Musl;
    let (report, seen) = against_recorder(&mut config, |arrival| arrival == 2);
    assert_eq!((report.answered, report.retransmits), (4, 4));
    check_second_arrivals(&seen, 2_500 * MS);
}

#[test]
fn habits_have_their_documented_times() {
    let seconds = |habit: Retransmit| {
        let offsets: Vec<f64> = habit.offsets().iter().map(Duration::as_secs_f64).collect();
        (offsets, habit.gives_up_after().as_secs_f64())
    };
    assert_eq!(seconds(Retransmit::None), (vec![], 2.0));
    assert_eq!(seconds(Retransmit::Glibc), (vec![5.0], 10.0));
    assert_eq!(seconds(Retransmit::Musl), (vec![2.5], 5.0));
    assert_eq!(seconds(Retransmit::CAres), (vec![2.0, 6.0], 14.0));
    assert_eq!(
        seconds(Retransmit::After(vec![MS * 500, MS * 1_000])),
        (vec![0.5, 1.0], 3.0)
    );
}

#[test]
fn too_many_open_sockets_fail_queries_by_name() {
    let server = dns_server(|c| c.behaviour.silent = true);
    let mut config = txt(server.address(), 50);
    config.load.max_sockets = 10;
    let report = run(&config);
    assert_eq!(
        (report.timeouts, report.send_failed, report.sockets_opened),
        (10, 40, 10)
    );
    assert_eq!(report.send_errors_by.get("socket-limit"), Some(&40));
    assert_eq!(server.stop().unwrap().received, 10);
}

#[test]
fn remembered_queries_make_room_for_new_ones() {
    // 10 sockets and a linger beyond the run: each new query must push out a finished one.
    let server = dns_server(|_| {});
    let mut config = txt(server.address(), 400);
    config.load.rate = 200.0;
    config.load.max_sockets = 10;
    config.load.linger = 2_000 * MS;
    config.load.duration = 1_000 * MS;
    let report = run(&config);
    assert_eq!(report.queries, 200);
    assert!(report.answered > 150, "{report:#?}");
    assert!(report.forgotten_early >= 100, "{}", report.forgotten_early);
}

#[test]
fn options_that_cannot_work_are_named_before_anything_is_sent() {
    let refused = |change: fn(&mut Config)| {
        let mut config = txt(anything(), 10);
        change(&mut config);
        nodeward_loadgen::dns::run(&config).unwrap_err().to_string()
    };
    type Change = fn(&mut Config);
    let cases: [(Change, &str); 14] = [
        (|c| c.load.rate = 0.0, "--rate"),
        (|c| c.load.rate = f64::NAN, "--rate"),
        (|c| c.load.rate = 1e300, "--rate"),
        (|c| c.load.duration = Duration::ZERO, "--duration"),
        (|c| c.load.threads = 0, "--threads"),
        (|c| c.load.pin = vec![0, 1], "--pin"),
        (|c| c.load.pin = vec![100_000], "--pin"),
        (|c| c.load.server.set_port(0), "--server"),
        (|c| c.load.bind = Some("::1".parse().unwrap()), "--bind"),
        (|c| c.load.bind = Some("192.0.2.99".parse().unwrap()), "--bind"),
        (|c| c.load.ports = Ports::Fixed { clients: 0 }, "--clients"),
        (|c| c.load.timeout = Some(Duration::ZERO), "--timeout"),
        (|c| c.load.retransmit = Retransmit::Glibc, "--timeout"),
        (|c| c.names = vec!["a..b".to_owned()], "--name"),
    ];
    for (i, (change, option)) in cases.iter().enumerate() {
        let message = refused(*change);
        assert!(message.starts_with(&format!("{option}:")), "case {i}: {message}");
    }
    let mut config = Config::new(anything());
    config.expect = vec!["no address".to_owned()];
    assert!(
        nodeward_loadgen::dns::run(&config)
            .unwrap_err()
            .to_string()
            .starts_with("--expect:")
    );
}
