//! DNS through a worker on loopback: real sockets, a real table.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod worker_support;

use nodeward::model::SessionAffinity;
use nodeward::telemetry::DropReason;
use nodeward::topology::Profile;
use nodeward::worker::Command;
use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};
use worker_support::{Rig, address, echo, endpoint, until};

fn query(id: u16, name: &str) -> Vec<u8> {
    let mut m = id.to_be_bytes().to_vec();
    m.extend([1, 0, 0, 1, 0, 0, 0, 0, 0, 0, name.len() as u8]);
    m.extend(name.as_bytes());
    m.extend([0, 0, 1, 0, 1]);
    m
}

fn exchange(client: &UdpSocket, message: &[u8]) -> Vec<u8> {
    client.send(message).unwrap();
    let mut buffer = vec![0; 65_536];
    let n = client.recv(&mut buffer).unwrap();
    buffer.truncate(n);
    buffer
}

#[test]
fn a_query_comes_back_from_the_vip() {
    let rig = Rig::new(&[(echo(), 0)]);
    let client = rig.client();
    for id in 0..50 {
        let sent = query(id, "kubernetes");
        let answer = exchange(&client, &sent);
        assert_eq!(answer[..2], sent[..2]);
        assert_eq!(answer[3..], sent[3..]);
    }
    until("the counters", || rig.counts().answered == 50);
    let counts = rig.counts();
    assert_eq!(
        (counts.received, counts.forwarded[0], counts.dropped.iter().sum()),
        (50, 50, 0)
    );
    rig.worker.stop();
}

#[test]
fn large_messages_pass_whole_both_ways() {
    let rig = Rig::new(&[(echo(), 0)]);
    let client = rig.client();
    for size in [512usize, 1232, 4096, 8932, 65_507] {
        let mut sent = query(size as u16, "large");
        sent.resize(size, 0xa5);
        let answer = exchange(&client, &sent);
        assert_eq!(answer.len(), size);
        assert_eq!(answer[3..], sent[3..]);
    }
    rig.worker.stop();
}

#[test]
fn empty_and_malformed_datagrams_are_counted_and_stop_nothing() {
    let rig = Rig::new(&[(echo(), 0)]);
    let client = rig.client();
    client.send(b"").unwrap();
    client.send(b"no dns").unwrap();
    exchange(&client, &query(1, "after"));
    until("the counters", || rig.dropped(DropReason::Malformed) == 2);
    let counts = rig.counts();
    assert_eq!(
        counts.received,
        counts.forwarded.iter().sum::<u64>() + counts.dropped.iter().sum::<u64>()
    );
    rig.worker.stop();
}

#[test]
fn a_refusing_endpoint_costs_no_query() {
    let closed = UdpSocket::bind((address(), 0)).unwrap().local_addr().unwrap();
    let rig = Rig::new(&[(closed, 0), (echo(), 1)]);
    let clients: Vec<UdpSocket> = (0..8).map(|_| rig.client()).collect();
    let start = Instant::now();
    for round in 0..100 {
        for (n, client) in clients.iter().enumerate() {
            client.send(&query(round * 8 + n as u16, "moved")).unwrap();
        }
        for client in &clients {
            client.recv(&mut [0; 512]).unwrap();
        }
    }
    assert!(
        start.elapsed() < Duration::from_secs(5),
        "moves take no time-out: {:?}",
        start.elapsed()
    );
    let counts = rig.counts();
    assert!(counts.moved > 0);
    assert_eq!(counts.synthesized, 0);
    assert!(
        counts.forwarded[1] > 700,
        "once it is known to refuse, nothing goes there: {:?}",
        counts.forwarded
    );
    rig.worker.stop();
}

#[test]
fn an_endpoint_that_cannot_be_reached_is_left_at_once() {
    let unreachable = SocketAddr::new([255, 255, 255, 255].into(), 53);
    let rig = Rig::new(&[(unreachable, 0), (echo(), 1)]);
    let client = rig.client();
    for id in 0..100 {
        let answer = exchange(&client, &query(id, "unreachable"));
        assert_eq!(answer[3] & 0x0f, 0);
    }
    let counts = rig.counts();
    assert!(
        counts.forwarded[1] >= 90,
        "nothing new goes there: {:?}",
        counts.forwarded
    );
    rig.worker.stop();
}

/// A hung endpoint keeps its socket and answers nobody.
#[test]
fn a_hung_endpoint_is_found_out() {
    let hung = endpoint(|_, _, _| {});
    let rig = Rig::new(&[(hung, 0), (echo(), 1)]);
    let client = rig.client();
    let start = Instant::now();
    for id in 0..20 {
        exchange(&client, &query(id, "hung"));
    }
    assert!(start.elapsed() < Duration::from_secs(6), "{:?}", start.elapsed());
    assert!(rig.counts().forwarded[1] >= 10, "{:?}", rig.counts().forwarded);
    rig.worker.stop();
}

#[test]
fn when_everybody_refuses_the_client_hears_servfail_at_once() {
    let closed = || UdpSocket::bind((address(), 0)).unwrap().local_addr().unwrap();
    let rig = Rig::new(&[(closed(), 0), (closed(), 1)]);
    let client = rig.client();
    let start = Instant::now();
    let answer = exchange(&client, &query(7, "nobody"));
    assert_eq!(answer[3] & 0x0f, 2);
    assert!(start.elapsed() < Duration::from_millis(500), "{:?}", start.elapsed());
    rig.worker.stop();
}

#[test]
fn a_silent_endpoint_is_asked_round() {
    let silent = endpoint(|_, _, _| {});
    let rig = Rig::new(&[(silent, 0), (echo(), 1)]);
    let client = rig.client();
    let start = Instant::now();
    let answer = exchange(&client, &query(7, "silence"));
    assert_eq!(answer[3] & 0x0f, 0);
    let took = start.elapsed();
    assert!(
        (Duration::from_millis(400)..Duration::from_secs(2)).contains(&took),
        "{took:?}"
    );
    assert_eq!(rig.counts().retries, 1);
    rig.worker.stop();
}

#[test]
fn an_answer_from_another_address_is_dropped_and_counted() {
    let liar = endpoint(|socket, from, message| {
        let mut answer = message.to_vec();
        answer[2] |= 0x80;
        // The right content from the wrong port first, then the right answer.
        let other = UdpSocket::bind((socket.local_addr().unwrap().ip(), 0)).unwrap();
        answer[3] = 5;
        other.send_to(&answer, from).unwrap();
        std::thread::sleep(Duration::from_millis(20));
        answer[3] = 0;
        socket.send_to(&answer, from).unwrap();
    });
    let rig = Rig::new(&[(liar, 0)]);
    let client = rig.client();
    let answer = exchange(&client, &query(7, "forged"));
    assert_eq!(answer[3] & 0x0f, 0, "the forged one said REFUSED");
    until("the counter", || rig.dropped(DropReason::WrongSource) == 1);
    rig.worker.stop();
}

#[test]
fn a_new_table_moves_the_next_query_of_a_fixed_port() {
    let (a, b) = (echo(), echo());
    let mut rig = Rig::new(&[(a, 0), (b, 1)]);
    let client = rig.client();
    exchange(&client, &query(1, "first"));
    rig.publish(&[(b, 1)]);
    exchange(&client, &query(2, "second"));
    rig.publish(&[(a, 0), (b, 1)]);
    exchange(&client, &query(3, "third"));
    until("the counters", || rig.counts().answered == 3);
    assert_eq!(rig.counts().forwarded[..2], [2, 1]);
    rig.worker.stop();
}

/// Session affinity: a client address keeps its endpoint whatever port it comes from, while that one may be used.
#[test]
fn session_affinity_keeps_a_client_with_its_endpoint() {
    let named = |rcode: u8| {
        endpoint(move |socket, from, message| {
            let mut answer = message.to_vec();
            answer[2] |= 0x80;
            answer[3] = rcode;
            socket.send_to(&answer, from).unwrap();
        })
    };
    // The response code tells who answered.
    let endpoints: Vec<(SocketAddr, u8)> = (3..9).map(|rcode| (named(rcode), 0)).collect();
    let mut rig = Rig::new(&endpoints);
    rig.affinity = SessionAffinity::ClientIp { timeout_seconds: 60 };
    rig.publish(&endpoints);
    let ask = |rig: &Rig, id: u16| exchange(&rig.client(), &query(id, "who"))[3] & 0x0f;
    let first = ask(&rig, 0);
    for id in 1..40 {
        assert_eq!(ask(&rig, id), first, "another port, the same client");
    }
    let gone = usize::from(first) - 3;
    let rest: Vec<_> = endpoints.iter().copied().filter(|e| *e != endpoints[gone]).collect();
    rig.publish(&rest);
    let second = ask(&rig, 100);
    assert_ne!(second, first);
    rig.publish(&endpoints);
    for id in 101..120 {
        assert_eq!(
            ask(&rig, id),
            second,
            "the new choice is remembered, the old one is not"
        );
    }
    rig.worker.stop();
}

#[test]
fn without_endpoints_queries_are_counted_as_dropped() {
    let mut rig = Rig::new(&[(echo(), 0)]);
    let client = rig.client();
    exchange(&client, &query(1, "served"));
    rig.publish(&[]);
    client.send(&query(2, "nobody")).unwrap();
    until("the counter", || rig.dropped(DropReason::NoEndpoint) == 1);
    rig.worker.stop();
}

#[test]
fn the_probe_comes_back_and_a_removed_vip_is_free_again() {
    let mut rig = Rig::new(&[(echo(), 0)]);
    let prober = UdpSocket::bind("127.0.0.1:0").unwrap();
    prober.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    prober.send_to(b"turning?", rig.worker.started().probe).unwrap();
    let mut back = [0; 16];
    assert_eq!(prober.recv(&mut back).unwrap(), 8);
    rig.worker.send(Command::RemoveVip(rig.vip));
    until("the socket to be closed", || UdpSocket::bind(rig.vip.address).is_ok());
    rig.worker.stop();
}

/// Offered = forwarded + dropped, exactly, also when the worker cannot keep up and the kernel drops.
#[test]
fn accounts_balance_under_overload() {
    let rig = Rig::with(&[(echo(), 0)], |config| {
        config.max_outstanding = 64;
        config.engine.buffers = 8;
    });
    let clients: Vec<UdpSocket> = (0..4).map(|_| rig.client()).collect();
    let mut offered = 0u64;
    for round in 0..5_000u16 {
        for client in &clients {
            offered += u64::from(client.send(&query(round, "flood")).is_ok());
        }
    }
    until("everything to be accounted for", || {
        let c = rig.counts();
        // The kernel's own drops are read once a second.
        c.received == offered && c.received == c.forwarded.iter().sum::<u64>() + c.dropped.iter().sum::<u64>()
    });
    rig.worker.stop();
}

#[test]
fn ipv6_vips_work_alike() {
    let Ok(free) = UdpSocket::bind("[::1]:0").and_then(|s| s.local_addr()) else {
        eprintln!("skipped: this machine has no IPv6 loopback");
        return;
    };
    let server = UdpSocket::bind("[::1]:0").unwrap();
    let closed = UdpSocket::bind("[::1]:0").unwrap().local_addr().unwrap();
    let endpoint = server.local_addr().unwrap();
    std::thread::spawn(move || {
        let mut buffer = [0; 65_536];
        while let Ok((n, from)) = server.recv_from(&mut buffer) {
            buffer[2] |= 0x80;
            server.send_to(&buffer[..n], from).unwrap();
        }
    });
    let rig = Rig::at(free, Profile::Dns, &[(closed, 0), (endpoint, 1)], |_| {});
    let client = rig.client();
    for id in 0..10 {
        let answer = exchange(&client, &query(id, "six"));
        assert_eq!(answer[3] & 0x0f, 0, "the refusal moved it");
    }
    rig.worker.stop();
}
