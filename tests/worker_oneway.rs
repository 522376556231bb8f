//! One-way datagrams through a worker on loopback: nothing is awaited, nobody is sprayed, everything is counted.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod worker_support;

use nodeward::net::socket::vip_udp;
use nodeward::telemetry::DropReason;
use nodeward::topology::Profile;
use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};
use worker_support::{Rig, address, until};

/// An agent that loses nothing of its own: its receive buffer holds a test's whole traffic.
fn agent() -> UdpSocket {
    let socket: UdpSocket = vip_udp(SocketAddr::new(address().into(), 8126), 0, 8 << 20)
        .unwrap()
        .into();
    socket.set_nonblocking(false).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    socket
}

fn rig(endpoints: &[(SocketAddr, u8)]) -> Rig {
    Rig::at(
        SocketAddr::new(address().into(), 8125),
        Profile::Oneway,
        endpoints,
        |_| {},
    )
}

/// Reads everything an agent has got.
fn drain(agent: &UdpSocket) -> Vec<Vec<u8>> {
    agent.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    let mut all = Vec::new();
    let mut buffer = vec![0; 65_536];
    while let Ok(n) = agent.recv(&mut buffer) {
        all.push(buffer[..n].to_vec());
    }
    all
}

#[test]
fn every_size_arrives_whole_and_in_order() {
    let local = agent();
    let rig = rig(&[(local.local_addr().unwrap(), 0)]);
    let client = rig.client();
    let sizes = [0usize, 1, 512, 1432, 8192, 8932, 65_507];
    for size in sizes {
        client.send(&vec![b'm'; size]).unwrap();
        let mut buffer = vec![0; 65_536];
        assert_eq!(local.recv(&mut buffer).unwrap(), size);
    }
    until("the counters", || rig.counts().forwarded[0] == sizes.len() as u64);
    assert_eq!(rig.counts().dropped.iter().sum::<u64>(), 0);
    rig.worker.stop();
}

#[test]
fn one_remote_while_the_local_agent_is_away_then_back() {
    let (local, remotes) = (agent(), [agent(), agent(), agent()]);
    let at = |a: &UdpSocket| a.local_addr().unwrap();
    let fallback: Vec<_> = remotes.iter().map(|r| (at(r), 1)).collect();
    let with_local: Vec<_> = fallback.iter().copied().chain([(at(&local), 0)]).collect();
    let mut rig = rig(&with_local);
    let client = rig.client();
    let mut sent = 0u64;
    let mut send = |n: usize| {
        for _ in 0..n {
            client.send(format!("seq:{sent}|g").as_bytes()).unwrap();
            sent += 1;
            std::thread::sleep(Duration::from_micros(200));
        }
        sent
    };
    send(50);
    rig.publish(&fallback);
    send(50);
    rig.publish(&with_local);
    let back = Instant::now();
    let mut total = send(10);
    until("the local agent to be used again", || {
        total = send(1);
        rig.counts().forwarded[0] > 50
    });
    assert!(
        back.elapsed() >= Duration::from_millis(1_900),
        "back after {:?}",
        back.elapsed()
    );
    let at_local = drain(&local);
    let at_remotes: Vec<_> = remotes.iter().map(drain).collect();
    assert_eq!(
        at_remotes.iter().filter(|r| !r.is_empty()).count(),
        1,
        "one client goes to one remote agent"
    );
    let received = at_local.len() + at_remotes.iter().map(Vec::len).sum::<usize>();
    assert_eq!(received as u64, total, "nothing is lost by a planned absence");
    rig.worker.stop();
}

#[test]
fn a_dead_agent_costs_at_most_what_was_sent_before_its_refusal() {
    let remote = agent();
    let dead = agent().local_addr().unwrap();
    let rig = rig(&[(dead, 0), (remote.local_addr().unwrap(), 1)]);
    let client = rig.client();
    for n in 0..100 {
        client.send(format!("seq:{n}|g").as_bytes()).unwrap();
        std::thread::sleep(Duration::from_millis(2));
    }
    let received = drain(&remote).len();
    assert!(received >= 90, "{received} of 100 reached the remaining agent");
    let counts = rig.counts();
    let accounted = counts.forwarded.iter().sum::<u64>() + counts.dropped.iter().sum::<u64>();
    assert_eq!((counts.received, accounted), (100, 100));
    rig.worker.stop();
}

/// The node knows no way to an endpoint: the send itself fails, and that is evidence like a refusal.
#[test]
fn an_agent_that_cannot_be_reached_is_left_at_once() {
    let remote = agent();
    // The broadcast address needs an option that our sockets do not have, so the kernel refuses the send (EACCES).
    let unreachable = SocketAddr::new([255, 255, 255, 255].into(), 8126);
    let rig = rig(&[(unreachable, 0), (remote.local_addr().unwrap(), 1)]);
    let client = rig.client();
    for n in 0..100 {
        client.send(format!("seq:{n}|g").as_bytes()).unwrap();
        std::thread::sleep(Duration::from_millis(2));
    }
    let received = drain(&remote).len();
    assert!(received >= 90, "{received} of 100 reached the remaining agent");
    let counts = rig.counts();
    let forwarded = counts.forwarded.iter().sum::<u64>();
    assert_eq!((counts.received, forwarded), (100, received as u64));
    assert_eq!(rig.dropped(DropReason::SendFailed), 100 - forwarded);
    rig.worker.stop();
}

#[test]
fn without_an_agent_datagrams_are_dropped_and_counted() {
    let mut rig = rig(&[(agent().local_addr().unwrap(), 0)]);
    rig.publish(&[]);
    let client = rig.client();
    for _ in 0..20 {
        client.send(b"lost:1|c").unwrap();
    }
    until("the counter", || rig.dropped(DropReason::NoEndpoint) == 20);
    rig.worker.stop();
}

#[test]
fn answers_of_an_agent_reach_nobody() {
    let local = agent();
    let rig = rig(&[(local.local_addr().unwrap(), 0)]);
    let client = rig.client();
    client.send(b"metric:1|c").unwrap();
    let mut buffer = [0; 64];
    let (_, from) = local.recv_from(&mut buffer).unwrap();
    local.send_to(b"thanks", from).unwrap();
    until("the stray answer", || {
        rig.registry.workers()[0].stray_answers.get() == 1
    });
    client.set_nonblocking(true).unwrap();
    assert!(client.recv(&mut buffer).is_err());
    rig.worker.stop();
}
