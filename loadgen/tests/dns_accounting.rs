//! Every way an answer can go wrong is counted once, under its name, and exactly as often as the server did it.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use common::{MS, check_server, dns_server, oddities, run, txt};
use nodeward_loadgen::client::Ports;
use nodeward_loadgen::dns::{Identify, QueryType};
use nodeward_loadgen::serve;
use std::collections::BTreeMap;

fn names(pairs: &[(&str, u64)]) -> BTreeMap<String, u64> {
    pairs.iter().map(|&(name, n)| (name.to_owned(), n)).collect()
}

#[test]
fn a_good_server_answers_everything_and_is_named() {
    let server = dns_server(|_| {});
    for ports in [Ports::Fresh, Ports::Fixed { clients: 3 }] {
        let mut config = txt(server.address(), 200);
        config.load.ports = ports;
        config.identify = Some(Identify::Txt);
        config.expect = vec!["n1".to_owned()];
        let report = run(&config);
        assert_eq!((report.queries, report.answered), (200, 200));
        assert_eq!(oddities(&report), [0; 6]);
        assert_eq!(report.answered_by, names(&[("n1", 200)]));
        assert_eq!(report.rcodes, names(&[("NOERROR", 200)]));
    }
    let served = server.stop().unwrap();
    check_server(&served);
    assert_eq!((served.received, served.answered), (400, 400));
}

#[test]
fn dropped_requests_are_timeouts_one_to_one() {
    let server = dns_server(|c| c.behaviour.drop_percent = 30.0);
    let mut config = txt(server.address(), 400);
    config.load.timeout = Some(1_000 * MS);
    let report = run(&config);
    let served = server.stop().unwrap();
    check_server(&served);
    assert!(served.dropped > 60 && served.dropped < 180, "{served:?}");
    assert_eq!(
        (report.timeouts, report.failed, report.answered),
        (served.dropped, served.dropped, served.answered)
    );
    assert_eq!(oddities(&report), [0; 6]);
}

#[test]
fn duplicates_are_counted_and_change_nothing() {
    for ports in [Ports::Fresh, Ports::Fixed { clients: 2 }] {
        let server = dns_server(|c| c.behaviour.duplicate = true);
        let mut config = txt(server.address(), 150);
        config.load.ports = ports;
        config.load.linger = 1_000 * MS;
        let report = run(&config);
        let served = server.stop().unwrap();
        check_server(&served);
        assert_eq!((served.answered, served.duplicated), (150, 150));
        assert_eq!((report.answered, report.failed), (150, 0));
        assert_eq!(oddities(&report), [150, 0, 0, 0, 0, 0]);
    }
}

#[test]
fn answers_after_the_timeout_are_late_and_their_queries_failed() {
    for ports in [Ports::Fresh, Ports::Fixed { clients: 2 }] {
        let server = dns_server(|c| c.behaviour.delay = 500 * MS);
        let mut config = txt(server.address(), 100);
        config.load.ports = ports;
        config.load.timeout = Some(100 * MS);
        config.load.linger = 3_000 * MS;
        let report = run(&config);
        assert_eq!((report.answered, report.timeouts), (0, 100));
        assert_eq!(oddities(&report), [0, 0, 0, 100, 0, 0]);
        assert_eq!((report.p50_us, report.max_us), (None, None));
    }
}

#[test]
fn a_delay_within_the_timeout_is_latency() {
    let server = dns_server(|c| c.behaviour.delay = 100 * MS);
    let report = run(&txt(server.address(), 100));
    assert_eq!((report.answered, oddities(&report)), (100, [0; 6]));
    let p50 = report.p50_us.unwrap();
    assert!((100_000.0..400_000.0).contains(&p50), "{p50}");
}

#[test]
fn answers_from_another_address_answer_nothing() {
    for ports in [Ports::Fresh, Ports::Fixed { clients: 2 }] {
        let server = dns_server(|c| c.behaviour.wrong_source = Some("127.0.0.2".parse().unwrap()));
        let mut config = txt(server.address(), 100);
        config.load.ports = ports;
        config.load.timeout = Some(500 * MS);
        let report = run(&config);
        assert_eq!((report.answered, report.timeouts), (0, 100));
        assert_eq!(oddities(&report), [0, 100, 0, 0, 0, 0]);
        assert_eq!(server.stop().unwrap().answered, 100);
    }
}

#[test]
fn another_id_or_question_is_a_mismatch() {
    let run_against = |change: fn(&mut serve::dns::Config)| {
        let server = dns_server(change);
        let mut config = txt(server.address(), 100);
        config.load.timeout = Some(500 * MS);
        run(&config)
    };
    let report = run_against(|c| c.wrong_id = true);
    assert_eq!(
        (report.timeouts, report.unknown_id, oddities(&report)),
        (100, 100, [0, 0, 100, 0, 0, 0])
    );
    let report = run_against(|c| c.wrong_question = true);
    assert_eq!(
        (report.timeouts, report.unknown_id, oddities(&report)),
        (100, 0, [0, 0, 100, 0, 0, 0])
    );
}

#[test]
fn content_other_than_expected_is_a_mismatch() {
    let server = dns_server(|c| c.a = Some("192.0.2.7".parse().unwrap()));
    let mut config = txt(server.address(), 50);
    config.query_type = QueryType::A;
    config.identify = Some(Identify::Address);
    config.load.timeout = Some(500 * MS);
    config.expect = vec!["192.0.2.8".to_owned()];
    let report = run(&config);
    assert_eq!((report.timeouts, oddities(&report)), (50, [0, 0, 50, 0, 0, 0]));
    config.expect.push("192.0.2.7".to_owned());
    let report = run(&config);
    assert_eq!((report.answered, oddities(&report)), (50, [0; 6]));
    assert_eq!(report.answered_by, names(&[("192.0.2.7", 50)]));
}

#[test]
fn an_rcode_that_is_not_accepted_fails_at_once() {
    let server = dns_server(|c| c.rcode = 2);
    let mut config = txt(server.address(), 50);
    let report = run(&config);
    assert_eq!((report.rcode_failed, report.timeouts, report.answered), (50, 0, 0));
    assert_eq!(report.rcodes, names(&[("SERVFAIL", 50)]));
    config.accept_rcodes = vec![0, 2];
    let report = run(&config);
    assert_eq!((report.answered, report.failed), (50, 0));
}

#[test]
fn truncated_answers_are_answers_and_edns_avoids_them() {
    let server = dns_server(|c| c.truncate = true);
    let report = run(&txt(server.address(), 50));
    assert_eq!((report.answered, report.truncated), (50, 50));

    let server = dns_server(|c| c.size = 1_200);
    let mut config = txt(server.address(), 50);
    let report = run(&config);
    assert_eq!(
        (report.answered, report.truncated),
        (50, 50),
        "1 200 bytes do not fit 512"
    );
    config.edns = Some(1_232);
    config.expect = vec!["n1".to_owned()];
    let report = run(&config);
    assert_eq!((report.answered, report.truncated, report.mismatched), (50, 0, 0));
    let served = server.stop().unwrap();
    assert_eq!((served.answered, served.truncated), (100, 50));
}

#[test]
fn a_closed_port_gives_one_icmp_error_per_query() {
    let closed = std::net::UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    for ports in [Ports::Fresh, Ports::Fixed { clients: 2 }] {
        let mut config = txt(closed, 50);
        config.load.ports = ports;
        config.load.timeout = Some(300 * MS);
        let report = run(&config);
        assert_eq!((report.answered, report.timeouts), (0, 50));
        assert_eq!(oddities(&report), [0, 0, 0, 0, 50, 0], "{ports:?}");
        assert_eq!(report.icmp, names(&[("ECONNREFUSED", 50)]));
    }
}

#[test]
fn unreachable_destinations_are_send_errors_and_failures() {
    // From a loopback address only loopback can be reached; the kernel refuses the send itself.
    let mut config = txt("192.0.2.1:53".parse().unwrap(), 20);
    config.load.bind = Some("127.0.0.1".parse().unwrap());
    let report = run(&config);
    assert_eq!(
        (report.queries, report.send_failed, report.answered),
        (20, 20, 0),
        "{report:#?}"
    );
    assert_eq!(report.send_errors, 20);
}

#[test]
fn ipv6_is_no_different() {
    let server = serve::dns::start(&serve::dns::Config::new("[::1]:0".parse().unwrap(), "six")).unwrap();
    let mut config = txt(server.address(), 50);
    config.identify = Some(Identify::Txt);
    let report = run(&config);
    assert_eq!((report.answered_by, report.failed), (names(&[("six", 50)]), 0));
    let address = server.address();
    drop(server);
    config.load.server = address;
    config.load.timeout = Some(300 * MS);
    let report = run(&config);
    assert_eq!((report.timeouts, report.icmp), (50, names(&[("ECONNREFUSED", 50)])));
}
