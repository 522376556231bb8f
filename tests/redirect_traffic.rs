//! What the rule set does to traffic beyond "who answers": TCP through taking and releasing, answers to a client's
//! address, large datagrams, reverse-path filters, a hung agent.
#![cfg(feature = "dataplane")]
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod redirect_support;

use nodeward::model::Protocol;
use nodeward::redirect::{Desired, Redirect, RedirectConfig};
use redirect_support::*;
use socket2::{Domain, SockRef, Socket, Type};
use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

fn config() -> RedirectConfig {
    RedirectConfig {
        instance: "test".into(),
        ..RedirectConfig::default()
    }
}

fn taking(vips: &[SocketAddr], protocol: Protocol) -> Desired {
    let svc: BTreeSet<_> = vips.iter().map(|v| (*v, protocol)).collect();
    let endpoints = [ENDPOINT4, "[fd00:1:1::2]:5300".parse().unwrap()];
    let ep = endpoints
        .iter()
        .flat_map(|e| [(*e, Protocol::Udp), (*e, Protocol::Tcp)])
        .collect();
    Desired {
        own: svc.clone(),
        svc,
        ep,
    }
}

async fn install() -> Redirect {
    Redirect::install_with(config(), program()).await.unwrap().0
}

/// Answers each byte with one byte that tells who it is.
fn tcp_server(listener: TcpListener, who: u8, mark: Option<u32>) {
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            if let Some(mark) = mark {
                SockRef::from(&stream).set_mark(mark).unwrap();
            }
            std::thread::spawn(move || {
                let mut byte = [0];
                while matches!(stream.read(&mut byte), Ok(1)) && stream.write_all(&[who]).is_ok() {}
            });
        }
    });
}

/// Our listener on a VIP; accepted sockets get the connection mark right after accept.
fn listen_on_vip(vip: SocketAddr) {
    let socket = Socket::new(Domain::for_address(vip), Type::STREAM, None).unwrap();
    if vip.is_ipv4() {
        socket.set_ip_transparent_v4(true).unwrap();
    } else {
        socket.set_ip_transparent_v6(true).unwrap();
    }
    socket.set_mark(config().marks().listener_socket).unwrap();
    socket.bind(&vip.into()).unwrap();
    socket.listen(128).unwrap();
    tcp_server(socket.into(), b'o', Some(config().marks().connection_socket));
}

fn connect(vip: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect_timeout(&vip, Duration::from_secs(2)).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
    stream
}

fn who(mut stream: &TcpStream) -> char {
    stream.write_all(b"?").unwrap();
    let mut byte = [0];
    stream.read_exact(&mut byte).unwrap();
    char::from(byte[0])
}

#[test]
fn taking_and_releasing_breaks_no_tcp_connection() {
    on_a_node(|| {
        let lab = Lab::new();
        nft("table inet standin_tcp {
              chain pre { type nat hook prerouting priority dstnat;
                ip daddr 10.96.0.10 tcp dport 53 dnat ip to 10.1.1.2:5300
                ip6 daddr fd00:96::10 tcp dport 53 dnat ip6 to [fd00:1:1::2]:5300; }
              chain out { type nat hook output priority -100;
                ip daddr 10.96.0.10 tcp dport 53 dnat ip to 10.1.1.2:5300
                ip6 daddr fd00:96::10 tcp dport 53 dnat ip6 to [fd00:1:1::2]:5300; }
            }");
        for address in ["10.1.1.2:5300", "[fd00:1:1::2]:5300"] {
            let listener = lab.endpoint.run(move || TcpListener::bind(address).unwrap());
            tcp_server(listener, b's', None);
        }
        block_on(async {
            let redirect = install().await;
            for vip in [VIP4, VIP6] {
                listen_on_vip(vip);
                // From the pod and from the host.
                let open = || vec![lab.pod.run(move || connect(vip)), connect(vip)];
                let all = |streams: &[TcpStream], whose: char, when: &str| {
                    for (n, stream) in streams.iter().enumerate() {
                        assert_eq!(who(stream), whose, "{vip}, client {n}: {when}");
                    }
                };
                let theirs = open();
                all(&theirs, 's', "before");
                redirect.apply(taking(&[vip], Protocol::Tcp)).await.unwrap();
                redirect.refresh_lease().await.unwrap();
                all(&theirs, 's', "kube-proxy's connection after the service was taken");
                let ours = open();
                all(&ours, 'o', "new connection");
                redirect.release_all().await.unwrap();
                redirect.refresh_lease().await.unwrap();
                all(&ours, 'o', "our connection after the release");
                all(&open(), 's', "new connection after the release");
                redirect.apply(taking(&[vip], Protocol::Tcp)).await.unwrap();
                tokio::time::sleep(Duration::from_millis(2100)).await;
                let before = redirect.counters().await.unwrap();
                all(&ours, 'o', "our connection after the lease ran out");
                all(&theirs, 's', "kube-proxy's connection after the lease ran out");
                all(&open(), 's', "new connection without a lease");
                let after = redirect.counters().await.unwrap();
                assert!(after.lease_expired > before.lease_expired, "the pod's SYN was counted");
                assert!(
                    after.host_lease_expired > before.host_lease_expired,
                    "the host's SYN was counted"
                );
                redirect.refresh_lease().await.unwrap();
                all(&open(), 'o', "new connection with the lease back");
                all(&theirs, 's', "kube-proxy's connection with the lease back");
                redirect.apply(Desired::default()).await.unwrap();
            }
            redirect.remove().await.unwrap();
        });
    });
}

/// Sends from the client's own address and a pool port, as the pool does, and returns the answer.
fn ask_as_client(client: SocketAddr, endpoint: SocketAddr) -> Option<String> {
    let socket = Socket::new(Domain::for_address(client), Type::DGRAM, None).unwrap();
    if client.is_ipv4() {
        socket.set_ip_transparent_v4(true).unwrap();
    } else {
        socket.set_ip_transparent_v6(true).unwrap();
    }
    socket.set_mark(config().marks().listener_socket).unwrap();
    socket.bind(&client.into()).unwrap();
    let socket: UdpSocket = socket.into();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket.send_to(b"who?", endpoint).unwrap();
    let mut buffer = [0; 64];
    let n = socket.recv(&mut buffer).ok()?;
    Some(String::from_utf8_lossy(&buffer[..n]).into_owned())
}

#[test]
fn answers_to_a_clients_address_reach_us_and_the_pods_own_reach_the_pod() {
    on_a_node(|| {
        let lab = Lab::new();
        block_on(async {
            let redirect = install().await;
            redirect.apply(taking(&[VIP4, VIP6], Protocol::Udp)).await.unwrap();
            redirect.refresh_lease().await.unwrap();
            for (client, endpoint) in [
                ("10.1.0.2:20001", "10.1.1.2:5300"),
                ("[fd00:1:0::2]:20001", "[fd00:1:1::2]:5300"),
            ] {
                let (client, endpoint): (SocketAddr, SocketAddr) = (client.parse().unwrap(), endpoint.parse().unwrap());
                assert_eq!(ask_as_client(client, endpoint).as_deref(), Some("standin"), "{client}");
                let outside = SocketAddr::new(client.ip(), 30_001);
                assert_eq!(ask_as_client(outside, endpoint), None, "{outside}: not a pool port");
                // The pod asks the same endpoint from a pool port while a socket of ours waits on it.
                let ours = Socket::new(Domain::for_address(client), Type::DGRAM, None).unwrap();
                if client.is_ipv4() {
                    ours.set_ip_transparent_v4(true).unwrap();
                } else {
                    ours.set_ip_transparent_v6(true).unwrap();
                }
                ours.set_mark(config().marks().listener_socket).unwrap();
                let shared = SocketAddr::new(client.ip(), 20_002);
                ours.bind(&shared.into()).unwrap();
                let answer = lab.pod.run(move || {
                    let socket = UdpSocket::bind(shared).unwrap();
                    socket.set_read_timeout(Some(PATIENCE)).unwrap();
                    socket.send_to(b"who?", endpoint).unwrap();
                    socket.recv(&mut [0; 64]).ok()
                });
                assert_eq!(answer, Some("standin".len()), "{shared}: the pod's own answer");
            }
            redirect.remove().await.unwrap();
        });
    });
}

#[test]
fn large_datagrams_arrive_whole_without_connection_tracking() {
    on_a_node(|| {
        let lab = Lab::new();
        // Without NAT rules there is no connection tracking, which would put fragments together for us.
        run("nft delete table inet standin");
        block_on(async {
            let redirect = install().await;
            redirect.apply(taking(&[VIP4, VIP6], Protocol::Udp)).await.unwrap();
            let _servers = [Server::on_vip(VIP4, &config()), Server::on_vip(VIP6, &config())];
            for vip in [VIP4, VIP6] {
                for size in [4096, 8932, 60_000] {
                    redirect.refresh_lease().await.unwrap();
                    let answer = lab.pod.run(move || {
                        let any = if vip.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
                        let socket = UdpSocket::bind(any).unwrap();
                        socket.set_read_timeout(Some(PATIENCE)).unwrap();
                        socket.connect(vip).unwrap();
                        socket.send(&vec![b'x'; size]).unwrap();
                        let mut buffer = [0; 64];
                        socket
                            .recv(&mut buffer)
                            .ok()
                            .map(|n| String::from_utf8_lossy(&buffer[..n]).into_owned())
                    });
                    assert_eq!(answer.as_deref(), Some("ours"), "{vip}, {size} bytes");
                }
            }
            redirect.remove().await.unwrap();
        });
    });
}

#[test]
fn reverse_path_filters() {
    on_a_node(|| {
        let lab = Lab::new();
        // Calico's and firewalld's way: a rule in raw prerouting, registered before ours.
        nft("table inet rpf { chain c { type filter hook prerouting priority raw;
              fib saddr . mark . iif oif 0 drop; }; }");
        block_on(async {
            let redirect = install().await;
            let _servers = [Server::on_vip(VIP4, &config()), Server::on_vip(VIP6, &config())];
            redirect.apply(taking(&[VIP4, VIP6], Protocol::Udp)).await.unwrap();
            for filter in ["0", "1", "2"] {
                for mark in ["0", "1"] {
                    for interface in ["all", "default", "veth0", "veth1", "lo"] {
                        sysctl(&format!("ipv4/conf/{interface}/rp_filter"), filter);
                        sysctl(&format!("ipv4/conf/{interface}/src_valid_mark"), mark);
                    }
                    for vip in [VIP4, VIP6] {
                        redirect.refresh_lease().await.unwrap();
                        let answers = (lab.pod_asks(vip), ask(vip));
                        let ours = (Some("ours".to_owned()), Some("ours".to_owned()));
                        assert_eq!(answers, ours, "{vip}, rp_filter {filter}, src_valid_mark {mark}");
                    }
                }
            }
            redirect.remove().await.unwrap();
        });
    });
}

#[test]
fn carried_flows_leave_no_connection_tracking_entry() {
    on_a_node(|| {
        let lab = Lab::new();
        block_on(async {
            let redirect = install().await;
            let _servers = [Server::on_vip(VIP4, &config())];
            assert_eq!(lab.pod_asks(VIP4).as_deref(), Some("standin"));
            let entries = || {
                std::fs::read_to_string("/proc/thread-self/net/nf_conntrack")
                    .unwrap()
                    .lines()
                    .count()
            };
            let before = entries();
            assert!(before > 0, "the stand-in's flow is tracked");
            redirect.apply(taking(&[VIP4], Protocol::Udp)).await.unwrap();
            redirect.refresh_lease().await.unwrap();
            assert_eq!(
                (lab.pod_asks(VIP4), ask(VIP4)),
                (Some("ours".into()), Some("ours".into()))
            );
            assert_eq!(entries(), before);
            redirect.remove().await.unwrap();
        });
    });
}

#[test]
fn dropping_the_handle_removes_everything() {
    on_a_node(|| {
        block_on(async {
            let redirect = install().await;
            assert!(table_exists("nodeward-test"));
            drop(redirect);
            tokio::task::yield_now().await;
            within(Duration::from_secs(2), "all gone", || {
                !table_exists("nodeward-test") && our_rules().is_empty() && our_routes().is_empty()
            });
        });
    });
}
