//! Starts that must not work, each with one clear message and the fix, and nothing half-installed; and VIPs that cannot be
//! opened now but later.
#![cfg(feature = "dataplane")]
#![allow(clippy::unwrap_used, clippy::expect_used)]

use nodeward_lab::{
    Agent, AgentOptions, Cmd, EchoMode, EchoServer, EndpointState, Finished, Host, Lab, LabService, Manifests, Signal,
    wait_until,
};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::path::PathBuf;
use std::time::Duration;

const NODEWARD: &str = env!("CARGO_BIN_EXE_nodeward");
const KEY: &str = "kube-system/kube-dns";

/// One node, one pod with an endpoint, and a configuration that works.
struct Bench {
    lab: Lab,
    manifests: Manifests,
    config: PathBuf,
}

impl Bench {
    fn new() -> Self {
        let lab = Lab::builder()
            .node("n1", "za")
            .pod("n1", "dns")
            .pod("n1", "client")
            .build()
            .unwrap();
        let manifests = Manifests::new(lab.directory().join("state"), &lab).unwrap();
        manifests.set_service(LabService::kube_dns()).unwrap();
        let pod = lab.node("n1").unwrap().pod("dns").unwrap();
        manifests.set_endpoint(KEY, &pod, EndpointState::Ready).unwrap();
        let config = lab.directory().join("start.yaml");
        let bench = Self { lab, manifests, config };
        bench.configure("");
        bench
    }

    /// Writes the configuration with more top-level lines.
    fn configure(&self, extra: &str) {
        let text = format!(
            "source: {{file: {{path: {:?}}}}}\nselect: {{services: [{KEY}]}}\nadmin: {{listen: 127.0.0.1:9410, runDir: {:?}}}\n{extra}",
            self.manifests.folder(),
            self.lab.directory().join("run"),
        );
        std::fs::write(&self.config, text).unwrap();
    }

    /// Runs a command that must end by itself.
    fn run(&self, command: Cmd) -> Finished {
        let node = self.lab.node("n1").unwrap();
        node.exec(command.limit(Duration::from_secs(10))).unwrap()
    }

    fn start(&self) -> Cmd {
        Cmd::new(NODEWARD)
            .args(["run", "--config"])
            .arg(&self.config)
            .env("NODE_NAME", "n1")
    }

    /// The start failed with this exit status, said all of these words in few lines, and left nothing.
    fn refused(&self, finished: &Finished, code: i32, words: &[&str]) {
        let said = &finished.stderr;
        assert_eq!(finished.status.code(), Some(code), "{said}");
        for word in words {
            assert!(said.contains(word), "`{word}` is not in: {said}");
        }
        assert!(!said.contains("panicked"), "{said}");
        let vips = LabService::kube_dns().cluster_ips.clone();
        let left = self.lab.leftovers_within(Duration::from_secs(2), &vips).unwrap();
        left.assert_clean();
        let rules = self.run(Cmd::new("ip").arg("rule")).stdout;
        assert!(!rules.contains("0x800/0x3800"), "{rules}");
    }
}

#[test]
fn an_unknown_key_is_named_with_its_line() {
    let bench = Bench::new();
    bench.configure("batchWindows: 5ms\n");
    bench.refused(
        &bench.run(bench.start()),
        2,
        &["start.yaml", "4", "batchWindows", "batchWindow"],
    );
}

#[test]
fn without_a_node_name_it_says_how_to_give_one() {
    let bench = Bench::new();
    let command = Cmd::new("env")
        .args(["-u", "NODE_NAME", NODEWARD, "run", "--config"])
        .arg(&bench.config);
    bench.refused(&bench.run(command), 2, &["NODE_NAME", "spec.nodeName"]);
}

#[test]
fn a_missing_folder_of_manifests_is_named() {
    let bench = Bench::new();
    std::fs::write(&bench.config, "source: {file: {path: /nowhere/at/all}}\n").unwrap();
    bench.refused(&bench.run(bench.start()), 2, &["/nowhere/at/all"]);
}

#[test]
fn without_nft_it_says_what_to_install() {
    let bench = Bench::new();
    let command = Cmd::new("env")
        .args(["PATH=/nonexistent", NODEWARD, "run", "--config"])
        .arg(&bench.config)
        .env("NODE_NAME", "n1");
    let finished = bench.run(command);
    bench.refused(&finished, 1, &["nft", "install"]);
}

#[test]
fn without_cap_net_admin_it_says_which_capability() {
    let bench = Bench::new();
    let command = Cmd::new("setpriv")
        .args([
            "--bounding-set",
            "-net_admin",
            "--inh-caps",
            "-net_admin",
            NODEWARD,
            "run",
            "--config",
        ])
        .arg(&bench.config)
        .env("NODE_NAME", "n1");
    bench.refused(&bench.run(command), 1, &["CAP_NET_ADMIN"]);
}

#[test]
fn a_taken_admin_port_is_named() {
    let bench = Bench::new();
    let node = bench.lab.node("n1").unwrap();
    let _taken = node
        .netns()
        .run(|| TcpListener::bind("127.0.0.1:9410").unwrap())
        .unwrap();
    bench.refused(&bench.run(bench.start()), 1, &["admin.listen", "127.0.0.1:9410"]);
}

#[test]
fn a_second_instance_of_the_same_name_touches_nothing() {
    let bench = Bench::new();
    let first = start_agent(&bench);
    state_becomes(&bench, &first, "intercepting");
    let second = bench.run(bench.start());
    assert_eq!(second.status.code(), Some(1), "{}", second.stderr);
    assert!(
        second.stderr.contains("admin.listen") || second.stderr.contains("instance"),
        "{}",
        second.stderr
    );
    // Also with ports and folders of its own: the table's name is taken.
    bench.configure("");
    let text = std::fs::read_to_string(&bench.config)
        .unwrap()
        .replace("127.0.0.1:9410", "\"off\"");
    std::fs::write(&bench.config, text).unwrap();
    let third = bench.run(bench.start());
    assert_eq!(third.status.code(), Some(1), "{}", third.stderr);
    assert!(
        third.stderr.contains("nodeward-main") && third.stderr.contains("instance"),
        "{}",
        third.stderr
    );
    state_becomes(&bench, &first, "intercepting");
    first.process().stop(Duration::from_secs(10)).unwrap();
}

fn start_agent(bench: &Bench) -> Agent {
    let node = bench.lab.node("n1").unwrap();
    let options = AgentOptions::new(NODEWARD, &[KEY]);
    let agent = Agent::start(node, &bench.manifests, &options, &bench.lab.directory()).unwrap();
    agent.wait_ready(Duration::from_secs(10)).unwrap();
    agent
}

/// The state and reason of the IPv4 UDP service port, as `nodeward status` tells them.
fn state(bench: &Bench, agent: &Agent) -> (String, String) {
    let status = Cmd::new(NODEWARD)
        .args(["status", "-o", "json", "--socket"])
        .arg(agent.run_dir().join("current.sock"));
    let status = bench.run(status).check().unwrap();
    let status: serde_json::Value = serde_json::from_str(&status.stdout).unwrap();
    let service = status["services"].as_array().unwrap().iter();
    let mut service = service.filter(|s| s["protocol"] == "UDP" && s["family"] == "IPv4");
    let service = service.next().expect("the service port is listed");
    let text = |key: &str| service[key].as_str().unwrap_or_default().to_owned();
    (text("state"), text("reason"))
}

fn state_becomes(bench: &Bench, agent: &Agent, wanted: &str) {
    let what = format!(
        "state {wanted}; now {:?}; log:\n{}",
        state(bench, agent),
        agent.process().stderr()
    );
    wait_until(&what, Duration::from_secs(10), || state(bench, agent).0 == wanted).unwrap();
}

/// Somebody listens on port 53 of all addresses, as a host's own resolver may.
#[test]
fn a_port_conflict_refuses_the_vip_until_it_is_gone() {
    let bench = Bench::new();
    let node = bench.lab.node("n1").unwrap();
    let taken = node.netns().run(|| UdpSocket::bind("0.0.0.0:53").unwrap()).unwrap();
    let agent = start_agent(&bench);
    state_becomes(&bench, &agent, "refused");
    let (_, reason) = state(&bench, &agent);
    assert!(
        reason.contains("10.96.0.10:53") && reason.contains("another process"),
        "{reason}"
    );
    drop(taken);
    state_becomes(&bench, &agent, "intercepting");
    agent.process().stop(Duration::from_secs(10)).unwrap();
}

/// NodeLocal DNSCache puts the VIP on an interface of the node.
#[test]
fn a_vip_that_is_local_already_is_refused_until_it_is_gone() {
    let bench = Bench::new();
    let node = bench.lab.node("n1").unwrap();
    node.netns().ip_batch("address add 10.96.0.10/32 dev lo").unwrap();
    let agent = start_agent(&bench);
    state_becomes(&bench, &agent, "refused");
    let (_, reason) = state(&bench, &agent);
    assert!(
        reason.contains("interface lo") && reason.contains("ip addr del"),
        "{reason}"
    );
    node.netns().ip_batch("address delete 10.96.0.10/32 dev lo").unwrap();
    state_becomes(&bench, &agent, "intercepting");
    agent.process().stop(Duration::from_secs(10)).unwrap();
}

/// A bad edit changes nothing; the good one after it is live.
#[test]
fn a_bad_manifest_leaves_the_last_good_state_in_use() {
    let bench = Bench::new();
    let node = bench.lab.node("n1").unwrap();
    let pod = node.pod("dns").unwrap();
    let server = EchoServer::start(&pod, pod.ipv4().into(), 53, "ND").unwrap();
    server.set_mode(EchoMode::Dns);
    let agent = start_agent(&bench);
    state_becomes(&bench, &agent, "intercepting");
    let folder = bench.manifests.folder();
    std::fs::write(
        folder.join("zz-bad.yaml"),
        "apiVersion: v1\nkind: Service\nmetadata: {name: x}\nspec: {ports: [{port: 70000}]}\n",
    )
    .unwrap();
    let what = "the error to be reported";
    wait_until(what, Duration::from_secs(5), || {
        agent.process().stderr().contains("zz-bad.yaml")
    })
    .unwrap();
    let said = agent.process().stderr();
    let line = said.lines().find(|l| l.contains("zz-bad.yaml")).unwrap();
    assert!(line.contains("port") && line.contains("last good state"), "{line}");
    let vip = SocketAddr::new(Ipv4Addr::new(10, 96, 0, 10).into(), 53);
    let query = nodeward_lab::query(7, "still.lab", nodeward_lab::QType::A);
    let client = node.pod("client").unwrap();
    let answer = nodeward_lab::udp_exchange(&client, vip, &query, Duration::from_secs(2)).unwrap();
    assert!(answer.is_some(), "the service is still served");
    std::fs::remove_file(folder.join("zz-bad.yaml")).unwrap();
    wait_until("the error to be gone", Duration::from_secs(5), || {
        agent.process().stderr().contains("no longer wrong")
    })
    .unwrap();
    agent.process().stop(Duration::from_secs(10)).unwrap();
}

/// One address that nobody can redirect keeps no other service from being taken.
#[test]
fn a_vip_that_cannot_be_redirected_is_refused_alone() {
    let bench = Bench::new();
    let bad = "apiVersion: v1\nkind: Service\nmetadata: {name: bad, namespace: kube-system}\nspec:\n  clusterIP: 224.0.0.1\n  \
               ports: [{name: dns, port: 53, protocol: UDP}]\n---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\n\
               metadata: {name: bad-1, namespace: kube-system, labels: {kubernetes.io/service-name: bad}}\naddressType: IPv4\n\
               ports: [{name: dns, port: 53, protocol: UDP}]\nendpoints: [{addresses: [10.244.1.9]}]\n";
    bench.manifests.write("bad.yaml", bad).unwrap();
    let node = bench.lab.node("n1").unwrap();
    let options = AgentOptions::new(NODEWARD, &[KEY, "kube-system/bad"]);
    let agent = Agent::start(node, &bench.manifests, &options, &bench.lab.directory()).unwrap();
    agent.wait_ready(Duration::from_secs(10)).unwrap();
    let status = || {
        let status = Cmd::new(NODEWARD)
            .args(["status", "-o", "json", "--socket"])
            .arg(agent.run_dir().join("current.sock"));
        let text = bench.run(status).check().unwrap().stdout;
        serde_json::from_str::<serde_json::Value>(&text).unwrap()
    };
    let state = |service: &str| {
        let status = status();
        let mut all = status["services"].as_array().unwrap().clone().into_iter();
        let found = all.find(|s| s["service"] == service && s["protocol"] == "UDP" && s["family"] == "IPv4");
        found.map(|s| s["state"].as_str().unwrap().to_owned())
    };
    wait_until("kube-dns to be intercepted", Duration::from_secs(10), || {
        state(KEY).as_deref() == Some("intercepting")
    })
    .unwrap();
    assert_eq!(state("kube-system/bad").as_deref(), Some("refused"));
    let sets = bench
        .run(Cmd::new("nft").args(["list", "set", "inet", "nodeward-main", "svc4"]))
        .stdout;
    assert!(sets.contains("10.96.0.10") && !sets.contains("224.0.0.1"), "{sets}");
    agent.process().stop(Duration::from_secs(10)).unwrap();
}

/// SIGHUP changes nothing: the configuration is read at the start only.
#[test]
fn a_hangup_is_told_and_survived() {
    let bench = Bench::new();
    let agent = start_agent(&bench);
    state_becomes(&bench, &agent, "intercepting");
    agent.process().signal(Signal::SIGHUP).unwrap();
    wait_until("the log line", Duration::from_secs(5), || {
        agent.process().stderr().contains("SIGHUP")
    })
    .unwrap();
    state_becomes(&bench, &agent, "intercepting");
    agent.process().stop(Duration::from_secs(10)).unwrap();
}
