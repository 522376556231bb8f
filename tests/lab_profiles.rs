//! One-way datagrams and flows through the redirection: a statsd DaemonSet that rolls loses nothing, other UDP is answered
//! from the VIP on both families.
#![cfg(feature = "dataplane")]
#![allow(clippy::unwrap_used, clippy::expect_used)]

use nodeward_lab::{
    Agent, AgentOptions, EchoMode, EchoServer, EndpointState, Host, Lab, LabService, Manifests, Pod, Proto,
    ServicePortSpec, exchange_on, wait_until,
};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(10);

struct Bench {
    lab: Lab,
    manifests: Manifests,
    agent: Agent,
    near: Pod,
    far: Pod,
    client: Pod,
    key: String,
    vips: Vec<IpAddr>,
}

impl Bench {
    /// A service on this port with a pod on the client's node and one in the other zone; Nodeward on the client's node.
    fn new(name: &str, port: u16) -> Self {
        let lab = Lab::builder()
            .node("n1", "za")
            .node("n2", "zb")
            .pod("n1", "client")
            .pod("n1", "near")
            .pod("n2", "far")
            .build()
            .unwrap();
        let service = LabService {
            namespace: "monitoring".to_string(),
            name: name.to_string(),
            cluster_ips: vec![
                Ipv4Addr::new(10, 96, 0, 20).into(),
                Ipv6Addr::new(0xfd00, 0x10, 0x96, 0, 0, 0, 0, 0x14).into(),
            ],
            ports: vec![ServicePortSpec {
                name: name.to_string(),
                port,
                target_port: port,
                proto: Proto::Udp,
            }],
            ..LabService::default()
        };
        let (key, vips) = (service.key(), service.cluster_ips.clone());
        let manifests = Manifests::new(lab.directory().join("manifests"), &lab).unwrap();
        manifests.set_service(service).unwrap();
        let n1 = lab.node("n1").unwrap();
        let (near, client) = (n1.pod("near").unwrap(), n1.pod("client").unwrap());
        let far = lab.node("n2").unwrap().pod("far").unwrap();
        let ready = EndpointState::Ready;
        manifests.set_endpoints(&key, &[(&near, ready), (&far, ready)]).unwrap();
        let options = AgentOptions::new(env!("CARGO_BIN_EXE_nodeward"), &[&key]);
        let agent = Agent::start(n1, &manifests, &options, &lab.directory()).unwrap();
        agent.wait_ready(LIMIT).unwrap();
        let bench = Self {
            lab,
            manifests,
            agent,
            near,
            far,
            client,
            key,
            vips,
        };
        // The table, both VIPs and the lease are in place.
        bench.metric_becomes("nodeward_intercepting", 2);
        bench
    }

    /// The sum of all series of a metric.
    fn metric(&self, name: &str) -> u64 {
        let text = self.agent.metrics().unwrap();
        let series = text.lines().filter(|l| l.starts_with(name) && !l.starts_with('#'));
        series.filter_map(|l| l.rsplit(' ').next()?.parse::<u64>().ok()).sum()
    }

    fn metric_becomes(&self, name: &str, wanted: u64) {
        let what = format!("{name} {wanted}");
        let waited = wait_until(&what, LIMIT, || self.metric(name) == wanted);
        waited.unwrap_or_else(|e| panic!("{e}: it is {}\n{}", self.metric(name), self.agent.process().stderr()));
    }

    fn finish(self) {
        self.agent.process().stop(LIMIT).unwrap();
        drop(self.agent);
        self.lab.finish().unwrap().assert_clean();
    }
}

/// Story S11 for statsd: the local agent is replaced, nothing is lost, and each client goes to one agent at a time.
#[test]
fn a_statsd_daemonset_rolls_without_loss() {
    let bench = Bench::new("statsd", 8125);
    let vip = bench.vips[0];
    let serve = |pod: &Pod, tag| {
        let server = EchoServer::start(pod, vip, 8125, tag).unwrap();
        server.set_mode(EchoMode::Silent);
        server
    };
    let (near, far) = (serve(&bench.near, "near"), serve(&bench.far, "far"));
    let socket = bench.client.netns().udp_socket("0.0.0.0:0".parse().unwrap()).unwrap();
    let send = |n: usize| {
        for i in 0..n {
            socket
                .send_to(format!("m:{i}|c").as_bytes(), SocketAddr::new(vip, 8125))
                .unwrap();
            std::thread::sleep(Duration::from_micros(500));
        }
    };
    send(200);
    wait_until("the local agent's datagrams", LIMIT, || near.count() == 200).unwrap();
    let generation = bench.metric("nodeward_table_generation");
    bench
        .manifests
        .set_endpoint(&bench.key, &bench.near, EndpointState::Terminating)
        .unwrap();
    wait_until("the change", LIMIT, || {
        bench.metric("nodeward_table_generation") > generation
    })
    .unwrap();
    send(200);
    bench
        .manifests
        .set_endpoint(&bench.key, &bench.near, EndpointState::Gone)
        .unwrap();
    send(200);
    wait_until("the remote agent's datagrams", LIMIT, || far.count() >= 400).unwrap_or_else(|e| {
        let metrics = bench.agent.metrics().unwrap();
        let told: Vec<&str> = metrics
            .lines()
            .filter(|l| l.contains("IPv4") && !l.ends_with(" 0"))
            .collect();
        panic!("{e}: near {} far {}\n{}", near.count(), far.count(), told.join("\n"));
    });
    assert_eq!((near.count(), far.count()), (200, 400));
    bench
        .manifests
        .set_endpoint(&bench.key, &bench.near, EndpointState::Ready)
        .unwrap();
    let mut sent = 600;
    wait_until("the return to the local agent", LIMIT, || {
        send(20);
        sent += 20;
        near.count() > 200
    })
    .unwrap();
    wait_until("every datagram", LIMIT, || near.count() + far.count() == sent).unwrap();
    assert_eq!(bench.metric("nodeward_dropped_datagrams_total"), 0);
    assert_eq!(bench.metric("nodeward_forwarded_datagrams_total"), sent);
    bench.finish();
}

/// Any other UDP service: the answer comes from the VIP, on both families and at sizes above the MTU.
#[test]
fn a_flow_is_answered_from_the_vip() {
    let bench = Bench::new("syslog", 5514);
    let servers: Vec<_> = bench
        .vips
        .iter()
        .map(|vip| EchoServer::start(&bench.near, *vip, 5514, "near").unwrap())
        .collect();
    for (vip, server) in bench.vips.iter().zip(&servers) {
        let any: SocketAddr = if vip.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" }.parse().unwrap();
        let socket = bench.client.netns().udp_socket(any).unwrap();
        let to = SocketAddr::new(*vip, 5514);
        for size in [1usize, 1400, 4096, 8932] {
            let payload = vec![b'x'; size];
            let back = exchange_on(&socket, to, &payload, Duration::from_secs(2)).unwrap();
            let back = back.unwrap_or_else(|| {
                panic!(
                    "{vip}: no answer to {size} bytes\n{}\n{}",
                    bench.agent.process().stderr(),
                    bench.agent.metrics().unwrap()
                )
            });
            assert_eq!(back.from, to);
            assert_eq!(back.payload, [b"near|".as_slice(), &payload].concat());
        }
        assert_eq!(server.count(), 4);
    }
    bench.finish();
}
