//! The laboratory's network: pods reach each other and nodes, in both families, on both pod networks, with both MTUs.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::net::IpAddr;
use std::time::{Duration, Instant};

use nodeward_lab::{EchoMode, EchoServer, Error, Host, Lab, PodNetwork};

const SECOND: Duration = Duration::from_secs(1);
const FAMILIES: [IpAddr; 2] = [
    IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED),
    IpAddr::V6(std::net::Ipv6Addr::UNSPECIFIED),
];

fn three_nodes(network: PodNetwork) -> Lab {
    Lab::builder()
        .pod_network(network)
        .node("n1", "za")
        .node("n2", "za")
        .node("n3", "zb")
        .pod("n1", "a")
        .pod("n1", "b")
        .pod("n3", "c")
        .build()
        .unwrap()
}

/// Every pair of hosts, both families: the answer carries the server's tag, the server sees the client's own address.
fn everyone_reaches_everyone(network: PodNetwork) {
    let start = Instant::now();
    let lab = three_nodes(network);
    eprintln!("{network:?}: built in {:?}", start.elapsed());
    let (n1, n2, n3) = (
        lab.node("n1").unwrap(),
        lab.node("n2").unwrap(),
        lab.node("n3").unwrap(),
    );
    let (a, b, c) = (n1.pod("a").unwrap(), n1.pod("b").unwrap(), n3.pod("c").unwrap());
    let hosts: [&dyn Host; 6] = [n1, n2, n3, &a, &b, &c];
    for family in FAMILIES {
        let servers: Vec<_> = [(&a, "a"), (&b, "b"), (&c, "c")]
            .map(|(pod, tag)| EchoServer::start(pod, family, 7000, tag).unwrap())
            .into();
        for host in hosts {
            for (server, tag) in servers.iter().zip(["a", "b", "c"]) {
                let name = format!("{} to {tag} {}", host.netns().name(), server.address());
                let answer = host
                    .netns()
                    .udp_exchange(server.address(), b"hello", SECOND)
                    .unwrap()
                    .expect(&name);
                assert_eq!(answer.payload, [tag.as_bytes(), b"|hello"].concat(), "{name}");
                assert_eq!(answer.from, server.address(), "{name}");
                let peer = server.seen().last().unwrap().peer.ip();
                // A node speaks to its own pods from the bridge's address.
                let bridges = ["10.244.1.1", "fd00:10:244:1::1", "10.244.3.1", "fd00:10:244:3::1"];
                let from_bridge = network == PodNetwork::Bridge
                    && host.netns().name() == host.node_name()
                    && bridges.contains(&peer.to_string().as_str());
                assert!(peer == host.ip_like(family) || from_bridge, "{name}: seen from {peer}");
                let stream = host
                    .netns()
                    .tcp_exchange(server.address(), b"hi", SECOND)
                    .unwrap()
                    .expect(&name);
                assert_eq!(stream, [tag.as_bytes(), b"|hi"].concat(), "{name}");
            }
        }
        for size in [1, 1473, 4096, 8932, 65_507] {
            servers[2].set_mode(EchoMode::Echo);
            let payload: Vec<u8> = (0..size).map(|i| (i * 7) as u8).collect();
            let answer = a.netns().udp_exchange(servers[2].address(), &payload, SECOND).unwrap();
            assert_eq!(answer.expect("large datagram").payload, payload, "{size} bytes");
        }
    }
    lab.finish().unwrap().assert_clean();
}

#[test]
fn routed_pods_reach_everyone() {
    everyone_reaches_everyone(PodNetwork::Routed);
}

#[test]
fn bridged_pods_reach_everyone() {
    everyone_reaches_everyone(PodNetwork::Bridge);
}

/// Two laboratories with the same names and addresses do not see each other, and each can be built again.
#[test]
fn laboratories_do_not_interfere() {
    let family = FAMILIES[0];
    for round in 0..2 {
        let threads: Vec<_> = ["left", "right"]
            .map(|tag| {
                std::thread::spawn(move || {
                    let lab = three_nodes(PodNetwork::Routed);
                    let pod = lab.node("n3").unwrap().pod("c").unwrap();
                    let server = EchoServer::start(&pod, family, 7000, tag).unwrap();
                    let client = lab.node("n1").unwrap().pod("a").unwrap();
                    for _ in 0..50 {
                        let answer = client
                            .netns()
                            .udp_exchange(server.address(), b"x", SECOND)
                            .unwrap()
                            .unwrap();
                        assert_eq!(answer.payload, format!("{tag}|x").as_bytes(), "round {round}");
                    }
                    assert_eq!(server.count(), 50);
                    lab.finish().unwrap().assert_clean();
                })
            })
            .into();
        threads.into_iter().for_each(|t| t.join().unwrap());
    }
}

#[test]
fn a_removed_pod_is_unreachable_and_its_name_free() {
    for network in [PodNetwork::Routed, PodNetwork::Bridge] {
        let lab = three_nodes(network);
        let (n1, n3) = (lab.node("n1").unwrap(), lab.node("n3").unwrap());
        let a = n1.pod("a").unwrap();
        let old = n3.pod("c").unwrap();
        let server = EchoServer::start(&old, FAMILIES[0], 7000, "old").unwrap();
        let ask = |to| a.netns().udp_exchange(to, b"x", Duration::from_millis(200)).unwrap();
        assert!(ask(server.address()).is_some());
        n3.remove_pod("c").unwrap();
        assert_eq!(ask(server.address()), None, "{network:?}");
        assert!(matches!(old.netns().run(|| ()), Err(Error::Gone(_))));
        let new = n3.add_pod("c").unwrap();
        assert_ne!(new.ipv4(), old.ipv4());
        let again = EchoServer::start(&new, FAMILIES[0], 7000, "new").unwrap();
        assert_eq!(ask(again.address()).unwrap().payload, b"new|x");
        lab.finish().unwrap().assert_clean();
    }
}

#[test]
fn echo_modes() {
    let lab = Lab::builder()
        .node("n1", "za")
        .pod("n1", "client")
        .pod("n1", "server")
        .build()
        .unwrap();
    let node = lab.node("n1").unwrap();
    let (client, pod) = (node.pod("client").unwrap(), node.pod("server").unwrap());
    let server = EchoServer::start(&pod, FAMILIES[0], 7000, "s").unwrap();
    let ask = || client.netns().udp_exchange(server.address(), b"q", SECOND).unwrap();
    server.set_mode(EchoMode::Size(65_507));
    assert_eq!(ask().unwrap().payload.len(), 65_507);
    server.set_mode(EchoMode::Silent);
    assert_eq!(ask(), None);
    server.set_mode(EchoMode::WrongSource);
    let wrong = ask().unwrap().from;
    assert!(
        wrong.ip() == server.address().ip() && wrong.port() != server.address().port(),
        "{wrong}"
    );
    server.set_mode(EchoMode::Delay(Duration::from_millis(50)));
    let start = Instant::now();
    assert_eq!(ask().unwrap().payload, b"s|q");
    assert!(start.elapsed() >= Duration::from_millis(50));
    server.close();
    assert_eq!(ask(), None);
    assert_eq!(server.count(), 4);
}
