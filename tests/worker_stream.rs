//! Other UDP through a worker on loopback: a flow keeps its endpoint, answers come from the VIP.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod worker_support;

use nodeward::topology::Profile;
use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};
use worker_support::{Rig, address, endpoint, until};

fn rig(endpoints: &[(SocketAddr, u8)]) -> Rig {
    Rig::at(
        SocketAddr::new(address().into(), 5140),
        Profile::Stream,
        endpoints,
        |_| {},
    )
}

/// Answers every datagram with its name and what it got.
fn named(name: &'static str) -> SocketAddr {
    endpoint(move |socket, from, message| {
        let answer = [name.as_bytes(), message].concat();
        let _ = socket.send_to(&answer[..answer.len().min(65_507)], from);
    })
}

fn ask(client: &UdpSocket, message: &[u8]) -> Vec<u8> {
    client.send(message).unwrap();
    let mut buffer = vec![0; 65_536];
    let n = client.recv(&mut buffer).unwrap();
    buffer.truncate(n);
    buffer
}

#[test]
fn any_payload_of_any_size_comes_back_from_the_vip() {
    let rig = rig(&[(named("a"), 0)]);
    let client = rig.client();
    for size in [0usize, 1, 1432, 8932, 65_000] {
        let message = vec![0xff; size];
        assert_eq!(ask(&client, &message), [b"a".as_slice(), &message].concat());
    }
    until("the counters", || rig.counts().answered == 5);
    assert_eq!(rig.counts().forwarded[0], 5);
    rig.worker.stop();
}

#[test]
fn a_flow_stays_until_its_endpoint_goes_and_answers_under_way_still_arrive() {
    let slow = endpoint(|socket, from, message| {
        let (socket, message) = (socket.try_clone().unwrap(), message.to_vec());
        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(300));
            let _ = socket.send_to(&[b"slow".as_slice(), &message].concat(), from);
        });
    });
    let quick = named("quick");
    let mut rig = rig(&[(slow, 1)]);
    let client = rig.client();
    assert_eq!(ask(&client, b"1"), b"slow1");
    rig.publish(&[(slow, 1), (quick, 0)]);
    assert_eq!(ask(&client, b"2"), b"slow2", "a better rank moves no flow");
    client.send(b"3").unwrap();
    until("the datagram to be forwarded", || rig.counts().forwarded[1] == 3);
    rig.publish(&[(quick, 0)]);
    assert_eq!(
        ask(&client, b"4"),
        b"quick4",
        "the next datagram goes elsewhere at once"
    );
    let mut buffer = [0; 64];
    let n = client.recv(&mut buffer).unwrap();
    assert_eq!(&buffer[..n], b"slow3", "and what was under way still arrives");
    assert_eq!(rig.counts().moved, 1);
    rig.worker.stop();
}

/// D7: nothing new goes to a terminating endpoint while a ready one is listed, wherever it is.
#[test]
fn a_flow_leaves_an_endpoint_that_is_terminating() {
    let (a, b) = (named("a"), named("b"));
    let mut rig = rig(&[(a, 0), (b, 1)]);
    let client = rig.client();
    assert_eq!(ask(&client, b"1"), b"a1");
    rig.publish_with(&[(a, 0, true), (b, 1, false)]);
    assert_eq!(ask(&client, b"2"), b"b2");
    rig.publish_with(&[(a, 0, true), (b, 1, true)]);
    assert_eq!(
        ask(&client, b"3"),
        b"b3",
        "when all are terminating, it stays where it is"
    );
    rig.worker.stop();
}

#[test]
fn a_refusal_moves_the_flow() {
    let closed = UdpSocket::bind((address(), 0)).unwrap().local_addr().unwrap();
    let rig = rig(&[(closed, 0), (named("b"), 1)]);
    let client = rig.client();
    client.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    let start = Instant::now();
    let mut buffer = [0; 64];
    // The first datagrams are lost: nobody keeps them. Then the refusal is known.
    while client.send(b"?").is_ok() && client.recv(&mut buffer).is_err() {
        assert!(start.elapsed() < Duration::from_secs(3), "the flow never moved");
    }
    assert_eq!(&buffer[..2], b"b?");
    let counts = rig.counts();
    let accounted = counts.forwarded.iter().sum::<u64>() + counts.dropped.iter().sum::<u64>();
    assert_eq!(counts.received, accounted);
    rig.worker.stop();
}

#[test]
fn clients_never_get_each_others_answers() {
    let rig = rig(&[(named(""), 0)]);
    // As many flows to one endpoint as there are sockets for them, and one more.
    let clients: Vec<UdpSocket> = (0..17).map(|_| rig.client()).collect();
    for client in &clients {
        client.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    }
    let mut served = 0;
    for round in 0..5u32 {
        for (n, client) in clients.iter().enumerate() {
            client.send(&[n as u8, round as u8]).unwrap();
        }
        served = 0;
        for (n, client) in clients.iter().enumerate() {
            let mut buffer = [0; 8];
            if let Ok(len) = client.recv(&mut buffer) {
                assert_eq!(&buffer[..len], &[n as u8, round as u8]);
                served += 1;
            }
        }
    }
    assert!((8..=16).contains(&served), "{served} of 17 flows share 16 sockets");
    let refused = rig.dropped(nodeward::telemetry::DropReason::PoolExhausted);
    assert!(refused > 0, "the others are counted");
    rig.worker.stop();
}
