//! Redirection in the laboratory, UDP: who answers a query to the VIP, Nodeward (ND) or the kube-proxy stand-in underneath
//! (KP), in every combination of pod network and kernel setting, alive, hung, killed, stopped and flushed.
//!
//! The manifests list only the endpoint tagged ND; the stand-in knows only the one tagged KP.
#![cfg(feature = "dataplane")]
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use nodeward_lab::{
    Agent, AgentOptions, Cmd, EchoMode, EchoServer, EndpointState, Host, KubeProxy, Lab, LabService, Manifests,
    NatService, Node, Pod, PodNetwork, Proto, ProxyMode, QType, padded_query, parse_reply, wait_until,
};

/// What lies underneath.
#[derive(Clone, Copy, Debug)]
struct Setting {
    network: PodNetwork,
    bridge_nf: bool,
    rp_filter: u8,
    src_valid_mark: bool,
    proxy: ProxyMode,
    /// Whether the stand-in serves the VIP; without, its drop rules remain (exclusive mode).
    dnat: bool,
    /// Whether the ND endpoint is on the client's node.
    local: bool,
}

const ROUTED: Setting = Setting {
    network: PodNetwork::Routed,
    bridge_nf: true,
    rp_filter: 0,
    src_valid_mark: false,
    proxy: ProxyMode::Nftables,
    dnat: true,
    local: true,
};

const BRIDGE: Setting = Setting {
    network: PodNetwork::Bridge,
    ..ROUTED
};

struct Bench {
    lab: Lab,
    setting: Setting,
    client: Pod,
    endpoint: Pod,
    vips: Vec<IpAddr>,
    nd: Vec<EchoServer>,
    _kp: Vec<EchoServer>,
    proxy: KubeProxy,
    manifests: Manifests,
    agent: Agent,
}

const KEY: &str = "kube-system/kube-dns";
const SIZES: [usize; 3] = [60, 4096, 8932];
/// A question whose answer is not awaited for long: the other path's answer is the usual reason for silence.
const PATIENCE: Duration = Duration::from_millis(300);

impl Bench {
    /// Builds everything, starts Nodeward and waits until it carries pod and host queries of both families.
    fn new(setting: Setting) -> Bench {
        let lab = Lab::builder()
            .pod_network(setting.network)
            .bridge_nf(setting.bridge_nf)
            .rp_filter(setting.rp_filter)
            .src_valid_mark(setting.src_valid_mark)
            .node("n1", "za")
            .node("n2", "zb")
            .pod("n1", "client")
            .pod("n1", "near")
            .pod("n2", "far")
            .pod("n2", "kube-proxy-s")
            .build()
            .unwrap();
        let service = LabService::kube_dns();
        let vips = service.cluster_ips.clone();
        let (n1, n2) = (lab.node("n1").unwrap().clone(), lab.node("n2").unwrap());
        let endpoint = if setting.local {
            n1.pod("near").unwrap()
        } else {
            n2.pod("far").unwrap()
        };
        let other = n2.pod("kube-proxy-s").unwrap();
        let start = |pod: &Pod, tag| -> Vec<EchoServer> {
            let servers = vips.iter().map(|vip| EchoServer::start(pod, *vip, 53, tag).unwrap());
            servers.inspect(|s| s.set_mode(EchoMode::Dns)).collect()
        };
        let (nd, kp) = (start(&endpoint, "ND"), start(&other, "KP"));
        let nat = vips.iter().zip(&kp).filter(|_| setting.dnat);
        let nat = nat
            .map(|(vip, s)| NatService::new(SocketAddr::new(*vip, 53), Proto::Udp, [s.address()]))
            .collect();
        let proxy = KubeProxy::install(&n1, setting.proxy, nat).unwrap();
        let manifests = Manifests::new(lab.directory().join("manifests"), &lab).unwrap();
        manifests.set_service(service).unwrap();
        manifests.set_endpoint(KEY, &endpoint, EndpointState::Ready).unwrap();
        let agent = start_agent(&lab, &n1, &manifests);
        let client = n1.pod("client").unwrap();
        let bench = Bench {
            lab,
            setting,
            client,
            endpoint,
            vips,
            nd,
            _kp: kp,
            proxy,
            manifests,
            agent,
        };
        bench.wait_for("ND", Duration::from_secs(5));
        bench
    }

    fn n1(&self) -> &Node {
        self.lab.node("n1").unwrap()
    }

    /// The tag in the answer to a query of this size from a fresh port. The answer must come from the VIP and bring back
    /// what was sent.
    fn ask(&self, host: &dyn Host, vip: IpAddr, size: usize) -> Option<String> {
        let (to, case) = (
            SocketAddr::new(vip, 53),
            format!("{:?} {} {vip}", self.setting, host.netns().name()),
        );
        let query = padded_query(rand::random(), "whoami.lab", QType::Txt, size);
        let received = host.netns().udp_exchange(to, &query, PATIENCE).unwrap()?;
        assert_eq!(received.from, to, "{case}: wrong source");
        let reply = parse_reply(&received.payload).expect("a whole reply");
        assert_eq!(query[..2], received.payload[..2], "{case}: the answer to another query");
        let sent = String::from_utf8_lossy(&query[28..]).into_owned();
        assert_eq!(
            reply.texts[1..].concat(),
            sent,
            "{case}: {size} bytes came back changed"
        );
        Some(reply.texts[0].clone())
    }

    /// Pod and host, IPv4 and IPv6.
    fn all(&self) -> Vec<(&dyn Host, IpAddr)> {
        let hosts: [&dyn Host; 2] = [&self.client, self.n1()];
        hosts.iter().flat_map(|h| self.vips.iter().map(|v| (*h, *v))).collect()
    }

    /// Every combination is answered by `tag`, at every size; for ND the endpoint sees the node's address.
    fn check(&self, tag: &str) {
        for (host, vip) in self.all() {
            for size in SIZES {
                let case = format!("{:?} {} {vip} {size} bytes", self.setting, host.netns().name());
                assert_eq!(self.ask(host, vip, size).as_deref(), Some(tag), "{case}");
                if tag == "ND" {
                    let server = self.nd.iter().find(|s| s.address().is_ipv4() == vip.is_ipv4()).unwrap();
                    let peer = server.seen().last().unwrap().peer.ip();
                    let bridge = ["10.244.1.1", "fd00:10:244:1::1"]
                        .iter()
                        .any(|a| peer.to_string() == *a);
                    let own = peer == self.n1().ip_like(vip);
                    assert!(
                        own || bridge && self.setting.network == PodNetwork::Bridge,
                        "{case}: seen from {peer}"
                    );
                }
            }
        }
    }

    /// Waits until every combination is answered by `tag`; returns how long it took.
    fn wait_for(&self, tag: &str, limit: Duration) -> Duration {
        let start = Instant::now();
        for (host, vip) in self.all() {
            let what = format!("answer by {tag} to {} {vip}", host.netns().name());
            let waited = wait_until(&what, limit, || self.ask(host, vip, SIZES[0]).as_deref() == Some(tag));
            waited.unwrap_or_else(|e| {
                panic!(
                    "{:?}: {e}; nodeward wrote:\n{}",
                    self.setting,
                    self.agent.process().stderr()
                )
            });
        }
        start.elapsed()
    }

    /// No connection-tracking entry for the VIPs comes from what Nodeward carries.
    fn check_untracked(&self) {
        self.n1().netns().check(Cmd::new("conntrack").arg("-F")).unwrap();
        self.check("ND");
        for vip in &self.vips {
            assert_eq!(
                self.n1().conntrack_entries(*vip, Proto::Udp).unwrap(),
                0,
                "{:?} {vip}",
                self.setting
            );
        }
    }

    /// Nothing that changes traffic is left on any node.
    fn check_clean(&self) {
        self.lab
            .leftovers_within(Duration::from_secs(2), &self.vips)
            .unwrap()
            .assert_clean();
    }
}

fn start_agent(lab: &Lab, node: &Node, manifests: &Manifests) -> Agent {
    let options = AgentOptions::new(env!("CARGO_BIN_EXE_nodeward"), &[KEY]);
    let agent = Agent::start(node, manifests, &options, &lab.directory()).unwrap();
    agent.wait_ready(Duration::from_secs(10)).unwrap();
    agent
}

/// One test per line: its name, the setting, and what is done once Nodeward carries everything.
macro_rules! rows {
    ($($name:ident: $setting:expr, $act:expr;)*) => { $(
        #[test]
        fn $name() {
            let bench = Bench::new($setting);
            let act: fn(&Bench) = $act;
            act(&bench);
            if bench.agent.process().is_running() {
                bench.agent.process().kill().unwrap();
            }
            bench.check_clean();
            drop(bench.agent);
            bench.lab.finish().unwrap().assert_clean();
        }
    )* };
}

rows! {
    t1_basic: ROUTED, Bench::check_untracked;
    t1_basic_iptables: Setting { proxy: ProxyMode::Iptables, ..ROUTED }, Bench::check_untracked;
    t1_remote_endpoint: Setting { local: false, ..ROUTED }, Bench::check_untracked;
    t2_rp_filter_0_mark_1: Setting { rp_filter: 0, src_valid_mark: true, ..ROUTED }, |b| b.check("ND");
    t2_rp_filter_1_mark_0: Setting { rp_filter: 1, src_valid_mark: false, ..ROUTED }, |b| b.check("ND");
    t2_rp_filter_1_mark_1: Setting { rp_filter: 1, src_valid_mark: true, ..ROUTED }, |b| b.check("ND");
    t2_rp_filter_2_mark_0: Setting { rp_filter: 2, src_valid_mark: false, ..ROUTED }, |b| b.check("ND");
    t2_rp_filter_2_mark_1: Setting { rp_filter: 2, src_valid_mark: true, ..ROUTED }, |b| b.check("ND");
    t2_remote_rp_filter_1_mark_1: Setting { rp_filter: 1, src_valid_mark: true, local: false, ..ROUTED }, |b| b.check("ND");
    t8_foreign_flush_and_writes: ROUTED, foreign_writes;
    t9_hung: ROUTED, hung;
    t11_killed: ROUTED, |b| killed(b, false);
    t11_killed_with_its_children: ROUTED, |b| killed(b, true);
    t11_killed_on_bridge: BRIDGE, |b| killed(b, false);
    t12_bridge_nf_0: Setting { bridge_nf: false, ..BRIDGE }, Bench::check_untracked;
    t12_bridge_nf_1: BRIDGE, Bench::check_untracked;
    t12_bridge_nf_0_remote: Setting { bridge_nf: false, local: false, ..BRIDGE }, Bench::check_untracked;
    t12_bridge_nf_1_remote: Setting { local: false, ..BRIDGE }, Bench::check_untracked;
    t12_bridge_nf_1_rp_filter_1_mark_1: Setting { rp_filter: 1, src_valid_mark: true, ..BRIDGE }, |b| b.check("ND");
    exclusive: Setting { dnat: false, ..ROUTED }, |b| b.check("ND");
    exclusive_on_bridge: Setting { dnat: false, ..BRIDGE }, |b| b.check("ND");
    terminated: ROUTED, end_on_sigterm;
    no_endpoint_left: ROUTED, release_and_retake;
    bypass_is_told: ROUTED, bypass_counted;
    flapping_endpoint: ROUTED, flap;
    wrong_source: ROUTED, answer_from_elsewhere;
    routing_rules_removed: ROUTED, lose_routing_rules;
}

/// T8: `nft flush ruleset` takes the stand-in, not our table; nobody else may write to it.
fn foreign_writes(bench: &Bench) {
    let ns = bench.n1().netns();
    ns.nft("flush ruleset").unwrap();
    bench.check("ND");
    for change in [
        "delete table inet nodeward-main",
        "flush table inet nodeward-main",
        "add chain inet nodeward-main foreign",
    ] {
        let error = ns.nft(change).expect_err(change).to_string();
        assert!(error.contains("not permitted"), "{change}: {error}");
    }
    bench.check("ND");
}

/// The only endpoint goes and comes back again and again: every query is answered, by Nodeward or by kube-proxy, because the
/// VIP is released before the workers have nobody to ask.
fn flap(bench: &Bench) {
    let done = std::sync::atomic::AtomicBool::new(false);
    let to = SocketAddr::new(bench.vips[0], 53);
    let any = "0.0.0.0:0".parse().unwrap();
    let (asked, unanswered) = std::thread::scope(|scope| {
        let client = scope.spawn(|| {
            let (mut asked, mut unanswered) = (0u16, 0);
            while !done.load(std::sync::atomic::Ordering::Relaxed) {
                // A fresh port each time, so that the stand-in's connection tracking pins nothing.
                let socket = bench.client.netns().udp_socket(any).unwrap();
                let query = nodeward_lab::query(asked, "flap.lab", QType::A);
                let back = nodeward_lab::exchange_on(&socket, to, &query, PATIENCE).unwrap();
                let answered = back.and_then(|b| parse_reply(&b.payload)).is_some_and(|r| r.rcode == 0);
                unanswered += u32::from(!answered);
                asked += 1;
            }
            (asked, unanswered)
        });
        for round in 0..40 {
            let state = if round % 2 == 0 {
                EndpointState::Gone
            } else {
                EndpointState::Ready
            };
            bench.manifests.set_endpoint(KEY, &bench.endpoint, state).unwrap();
            std::thread::sleep(Duration::from_millis(60));
        }
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        client.join().unwrap()
    });
    assert!(asked > 100, "only {asked} queries");
    assert_eq!(unanswered, 0, "of {asked}");
    let metrics = bench.agent.metrics().unwrap();
    let dropped = metrics
        .lines()
        .filter(|l| l.contains("reason=\"no_endpoint\"") && !l.ends_with(" 0"));
    assert_eq!(dropped.collect::<Vec<_>>(), Vec::<&str>::new());
}

/// What kube-proxy gets although the service is taken is counted, by reason.
fn bypass_counted(bench: &Bench) {
    let told = |reason: &str| {
        let metrics = bench.agent.metrics().unwrap();
        let series = format!("nodeward_bypassed_packets_total{{reason=\"{reason}\"}} ");
        let count = metrics
            .lines()
            .find_map(|l| l.strip_prefix(&series)?.parse::<u64>().ok());
        count.expect("the series exists")
    };
    bench.agent.process().pause().unwrap();
    bench.wait_for("KP", Duration::from_secs(4));
    bench.agent.process().resume().unwrap();
    bench.wait_for("ND", Duration::from_secs(4));
    wait_until("the packets to be counted", Duration::from_secs(5), || {
        told("lease_expired") > 0 && told("host_lease_expired") > 0
    })
    .unwrap();
    assert!(
        bench.agent.process().stderr().contains("kube-proxy got packets"),
        "and it is in the log"
    );
}

/// T9: a hung process keeps its sockets and its table; the lease runs out, kube-proxy serves. When it goes on, it serves again.
fn hung(bench: &Bench) {
    bench.agent.process().pause().unwrap();
    let took = bench.wait_for("KP", Duration::from_secs(4));
    assert!(
        took < Duration::from_millis(3500),
        "kube-proxy served only after {took:?}"
    );
    bench.check("KP");
    bench.agent.process().resume().unwrap();
    bench.wait_for("ND", Duration::from_secs(4));
    bench.check("ND");
}

/// T11: the kernel removes the table with its holder; kube-proxy serves at once.
fn killed(bench: &Bench, with_children: bool) {
    if with_children {
        bench.agent.process().kill_with_descendants().unwrap();
    } else {
        bench.agent.process().kill().unwrap();
    }
    bench.wait_for("KP", Duration::from_secs(1));
    bench.check("KP");
    bench.check_clean();
    // The next start finds what is left and works.
    let again = start_agent(&bench.lab, bench.n1(), &bench.manifests);
    bench.wait_for("ND", Duration::from_secs(5));
    bench.check("ND");
    again.process().kill().unwrap();
}

/// SIGTERM without a successor: kube-proxy takes new traffic, the process ends by itself, nothing is left, no rule either.
fn end_on_sigterm(bench: &Bench) {
    let end = bench.agent.process().stop(Duration::from_secs(15)).unwrap();
    assert!(end.success(), "{end:?}");
    bench.check("KP");
    let left = bench.lab.leftovers_within(Duration::from_secs(2), &bench.vips).unwrap();
    assert!(left.inert_rules.is_empty() && left.inert_routes.is_empty(), "{left:?}");
}

/// A service whose last endpoint goes is released to kube-proxy, and taken again.
fn release_and_retake(bench: &Bench) {
    bench
        .manifests
        .set_endpoint(KEY, &bench.endpoint, EndpointState::Gone)
        .unwrap();
    bench.wait_for("KP", Duration::from_secs(1));
    bench
        .proxy
        .set_endpoints(SocketAddr::new(bench.vips[0], 53), Proto::Udp, &[])
        .unwrap();
    assert_eq!(
        bench.ask(&bench.client, bench.vips[0], SIZES[0]),
        None,
        "kube-proxy rejects"
    );
    bench
        .manifests
        .set_endpoint(KEY, &bench.endpoint, EndpointState::Ready)
        .unwrap();
    bench.wait_for("ND", Duration::from_secs(1));
    bench.check("ND");
}

/// Answers from any other address than the endpoint asked never reach the client.
fn answer_from_elsewhere(bench: &Bench) {
    bench.nd.iter().for_each(|s| s.set_mode(EchoMode::WrongSource));
    let count = || -> u64 { bench.nd.iter().map(EchoServer::count).sum() };
    for (host, vip) in bench.all() {
        let (before, case) = (count(), format!("{} {vip}", host.netns().name()));
        assert_eq!(bench.ask(host, vip, SIZES[0]), None, "{case}");
        wait_until(
            &format!("the endpoint being asked by {case}"),
            Duration::from_secs(2),
            || count() > before,
        )
        .unwrap();
    }
    let counted = || -> u64 {
        let metrics = bench.agent.metrics().unwrap();
        let dropped = metrics
            .lines()
            .filter(|l| l.starts_with("nodeward_dropped_answers_total"));
        let wrong = dropped.filter(|l| l.contains("\"wrong_source\""));
        wrong.filter_map(|l| l.rsplit(' ').next()?.parse::<u64>().ok()).sum()
    };
    wait_until("the dropped answers being counted", Duration::from_secs(2), || {
        counted() >= 4
    })
    .unwrap();
}

/// Rules and routes that somebody removes are back within a second.
fn lose_routing_rules(bench: &Bench) {
    let ns = bench.n1().netns();
    for family in ["-4", "-6"] {
        let rules = ns.check(Cmd::new("ip").args([family, "rule", "list"])).unwrap().stdout;
        let ours = rules.lines().filter(|l| l.contains("fwmark")).count();
        assert!(ours >= 3, "{rules}");
        for line in rules.lines().filter(|l| l.contains("fwmark")) {
            let preference = line.split(':').next().unwrap();
            ns.check(Cmd::new("ip").args([family, "rule", "del", "pref", preference]))
                .unwrap();
        }
        ns.check(Cmd::new("ip").args([family, "route", "flush", "table", "100"]))
            .unwrap();
        let back = || ns.exec(Cmd::new("ip").args([family, "rule", "list"])).unwrap().stdout;
        wait_until("the rules", Duration::from_millis(1500), || {
            back().matches("fwmark").count() == ours
        })
        .unwrap();
    }
    bench.wait_for("ND", Duration::from_secs(1));
    bench.check("ND");
}
