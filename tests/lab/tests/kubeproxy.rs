//! The kube-proxy stand-ins: what they carry, refuse and drop, for pods and host clients, in both families.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use nodeward_lab::{
    Choice, Cmd, EchoServer, Host, KubeProxy, Lab, NatService, PodNetwork, Proto, ProxyMode, WhenEmpty, endpoint_of,
};

const SECOND: Duration = Duration::from_secs(1);
const SHORT: Duration = Duration::from_millis(150);

fn vips() -> [IpAddr; 2] {
    ["10.96.0.10".parse().unwrap(), "fd00:10:96::a".parse().unwrap()]
}

fn carries(network: PodNetwork, bridge_nf: bool, mode: ProxyMode) {
    let case = format!("{network:?} bridge-nf={bridge_nf} {mode:?}");
    let lab = Lab::builder()
        .pod_network(network)
        .bridge_nf(bridge_nf)
        .node("n1", "za")
        .node("n2", "zb")
        .pod("n1", "client")
        .pod("n1", "near")
        .pod("n2", "far")
        .build()
        .unwrap();
    let n1 = lab.node("n1").unwrap();
    let (client, near) = (n1.pod("client").unwrap(), n1.pod("near").unwrap());
    let far = lab.node("n2").unwrap().pod("far").unwrap();
    for vip in vips() {
        let dial = SocketAddr::new(vip, 53);
        let near_server = EchoServer::start(&near, vip, 5353, "near").unwrap();
        let far_server = EchoServer::start(&far, vip, 5353, "far").unwrap();
        let both = || [Proto::Udp, Proto::Tcp].into_iter();
        let far_only: Vec<_> = both()
            .map(|p| NatService::new(dial, p, [far_server.address()]))
            .collect();
        let proxy = KubeProxy::install(n1, mode, far_only).unwrap();
        let hosts: [&dyn Host; 2] = [&client, n1];
        for host in hosts {
            let name = format!("{case} {} {vip}", host.netns().name());
            let answer = host.netns().udp_exchange(dial, b"q", SECOND).unwrap().expect(&name);
            assert_eq!(
                (answer.payload.as_slice(), answer.from),
                (b"far|q".as_slice(), dial),
                "{name}"
            );
            assert_eq!(far_server.seen().last().unwrap().peer.ip(), host.ip_like(vip), "{name}");
            assert_eq!(
                host.netns().tcp_exchange(dial, b"q", SECOND).unwrap().expect(&name),
                b"far|q",
                "{name}"
            );
        }
        assert!(n1.conntrack_entries(vip, Proto::Udp).unwrap() >= 2, "{case}");

        // A near endpoint: on a bridge the reply reaches iptables only with bridge-nf.
        proxy
            .set_endpoints(dial, Proto::Udp, &[endpoint_of(&near, vip, 5353)])
            .unwrap();
        assert_eq!(
            n1.conntrack_entries(vip, Proto::Udp).unwrap(),
            0,
            "{case}: entries to the old endpoint are deleted"
        );
        let answer = client.netns().udp_exchange(dial, b"q", SHORT).unwrap();
        if network == PodNetwork::Bridge && !bridge_nf {
            assert_ne!(
                answer.map(|a| a.from),
                Some(dial),
                "{case}: without bridge-nf kube-proxy fails here, T0"
            );
        } else {
            assert_eq!(answer.expect(&case).payload, b"near|q", "{case}");
        }
        // A pod that reaches itself sees the node's address.
        if network == PodNetwork::Routed {
            let answer = near.netns().udp_exchange(dial, b"q", SECOND).unwrap().expect(&case);
            assert_eq!(
                (answer.payload.as_slice(), answer.from),
                (b"near|q".as_slice(), dial),
                "{case}"
            );
            assert_eq!(near_server.seen().last().unwrap().peer.ip(), n1.ip_like(vip), "{case}");
        }

        // Random choice uses all, fixed choice the first.
        let mut service = NatService::new(dial, Proto::Udp, [far_server.address(), near_server.address()]);
        for (choice, shares) in [(Choice::Random, 2), (Choice::First, 1)] {
            service.choice = choice;
            proxy.set_services(vec![service.clone()]).unwrap();
            // A client port used before would keep its endpoint.
            n1.netns().check(Cmd::new("conntrack").arg("-F")).unwrap();
            let (a, b) = (far_server.count(), near_server.count());
            for _ in 0..40 {
                n1.netns().udp_exchange(dial, b"q", SECOND).unwrap().expect(&case);
            }
            let used = [far_server.count() - a, near_server.count() - b];
            assert_eq!(
                used.iter().filter(|c| **c > 0).count(),
                shares,
                "{case} {choice:?} {used:?}"
            );
            assert!(used[0] > 0, "{case} {choice:?} {used:?}");
        }
        proxy.remove().unwrap();
    }
    lab.finish().unwrap().assert_clean();
}

#[test]
fn iptables_like_on_routed_pods() {
    carries(PodNetwork::Routed, true, ProxyMode::Iptables);
}

#[test]
fn nftables_like_on_routed_pods() {
    carries(PodNetwork::Routed, true, ProxyMode::Nftables);
}

#[test]
fn iptables_like_on_bridged_pods_without_bridge_nf() {
    carries(PodNetwork::Bridge, false, ProxyMode::Iptables);
}

#[test]
fn nftables_like_on_bridged_pods_with_bridge_nf() {
    carries(PodNetwork::Bridge, true, ProxyMode::Nftables);
}

/// Whether a datagram is refused by ICMP before the time-out. A connected socket reports it.
fn refused(host: &dyn Host, to: SocketAddr) -> bool {
    let any = SocketAddr::new(
        if to.is_ipv4() {
            [0, 0, 0, 0].into()
        } else {
            [0u16; 8].into()
        },
        0,
    );
    let socket = host.netns().udp_socket(any).unwrap();
    socket.connect(to).unwrap();
    socket.set_read_timeout(Some(SHORT)).unwrap();
    let start = Instant::now();
    // A reject or drop in the output hook fails the call itself, with EPERM; only a reject is reported afterwards.
    let _ = socket.send(b"q");
    let error = socket.recv(&mut [0; 16]).unwrap_err();
    error.kind() == std::io::ErrorKind::ConnectionRefused && start.elapsed() < SHORT
}

#[test]
fn empty_services_and_unknown_addresses() {
    let lab = Lab::builder().node("n1", "za").pod("n1", "client").build().unwrap();
    let n1 = lab.node("n1").unwrap();
    let client = n1.pod("client").unwrap();
    for vip in vips() {
        let dial = SocketAddr::new(vip, 53);
        for mode in [ProxyMode::Iptables, ProxyMode::Nftables] {
            let mut service = NatService::new(dial, Proto::Udp, []);
            let proxy = KubeProxy::install(n1, mode, vec![service.clone()]).unwrap();
            assert!(refused(&client, dial), "{mode:?} {vip}");
            assert!(refused(n1, dial), "{mode:?} {vip}");
            service.when_empty = WhenEmpty::Drop;
            proxy.set_services(vec![service]).unwrap();
            assert!(!refused(&client, dial), "{mode:?} {vip}");
            assert!(!refused(n1, dial), "{mode:?} {vip}");
            proxy.remove().unwrap();
        }
    }
    // Only the nftables mode drops other addresses of the ServiceCIDR on the node; else they leave by the default route.
    let count = |text: &str| text.lines().filter(|l| l.contains("10.96.0.99")).count();
    for (mode, leaves) in [(ProxyMode::Iptables, 1), (ProxyMode::Nftables, 0)] {
        let proxy = KubeProxy::install(n1, mode, vec![]).unwrap();
        n1.netns().nft("table ip watch {}\ndelete table ip watch\ntable ip watch {\n set left { type ipv4_addr; flags dynamic; }\n chain c { type filter hook postrouting priority 0; ip daddr 10.96.0.99 add @left { ip daddr }; }\n}").unwrap();
        client
            .netns()
            .udp_exchange("10.96.0.99:53".parse().unwrap(), b"q", Duration::from_millis(20))
            .unwrap();
        let listed = n1
            .exec(Cmd::new("nft").args(["list", "set", "ip", "watch", "left"]))
            .unwrap()
            .stdout;
        assert_eq!(count(&listed), leaves, "{mode:?}: {listed}");
        proxy.remove().unwrap();
    }
    lab.finish().unwrap().assert_clean();
}
