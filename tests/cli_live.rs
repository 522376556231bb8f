//! Commands that ask a running agent, against the real admin server with a small agent behind it: what they print equals
//! what they print from files.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use nodeward::admin::{AdminSocket, AgentView, CURRENT, Query, QueryError, Question, State, serve};
use nodeward::model::{Interner, NodeName};
use nodeward::source::manifest::{Format, Object, parse};
use nodeward::store::Store;
use nodeward::telemetry::Registry;
use nodeward::telemetry::metrics::ControlMetrics;
use nodeward::telemetry::status::Status;
use nodeward::topology::TopologyConfig;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;

const MANIFEST: &str = "
apiVersion: v1
kind: Node
metadata: {name: n1, labels: {topology.kubernetes.io/zone: z1}}
---
apiVersion: v1
kind: Node
metadata: {name: n2, labels: {topology.kubernetes.io/zone: z2}}
---
apiVersion: v1
kind: Service
metadata: {name: dns, namespace: kube-system}
spec:
  clusterIP: 10.96.0.10
  ports: [{name: dns, protocol: UDP, port: 53}, {name: dns-tcp, protocol: TCP, port: 53}]
---
apiVersion: v1
kind: Service
metadata: {name: headless, namespace: kube-system}
spec: {clusterIP: None, ports: [{port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: dns-1, namespace: kube-system, labels: {kubernetes.io/service-name: dns}}
addressType: IPv4
ports: [{name: dns, protocol: UDP, port: 5353}, {name: dns-tcp, protocol: TCP, port: 5353}]
endpoints:
- {addresses: [10.0.1.1], nodeName: n1, zone: z1}
- {addresses: [10.0.2.1], nodeName: n2, zone: z2}
";

struct Agent {
    store: Store,
    own: NodeName,
    registry: Registry,
    control: ControlMetrics,
}

impl AgentView for Agent {
    fn live(&self) -> Result<(), String> {
        Ok(())
    }

    fn ready(&self) -> Result<(), String> {
        Err("no endpoint is usable yet".into())
    }

    fn status(&self) -> Status {
        Status {
            node: self.own.to_string(),
            version: "9.9.9".into(),
            ..Status::default()
        }
    }

    fn registry(&self) -> &Registry {
        &self.registry
    }

    fn control_metrics(&self) -> &ControlMetrics {
        &self.control
    }

    fn query(&self, question: Question, query: &Query) -> Result<serde_json::Value, QueryError> {
        let state = State {
            store: &self.store,
            topology: &TopologyConfig::default(),
            own_node: Some(&self.own),
        };
        state.answer(question, query)
    }
}

struct Live {
    dir: tempfile::TempDir,
    stop: Option<tokio::sync::oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Live {
    fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("manifests")).unwrap();
        std::fs::write(dir.path().join("manifests/state.yaml"), MANIFEST).unwrap();
        let mut store = Store::new();
        let manifest = parse(MANIFEST.as_bytes(), Format::Yaml, &mut Interner::default()).unwrap();
        store.apply(manifest.objects.into_iter().map(Object::into_change));
        let agent = Arc::new(Agent {
            store,
            own: "n1".into(),
            registry: Registry::new(1),
            control: ControlMetrics::default(),
        });
        let socket = AdminSocket::bind(dir.path(), "main").unwrap();
        socket.make_current().unwrap();
        let (stop, stopped) = tokio::sync::oneshot::channel();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            let until = async {
                let _ = stopped.await;
            };
            runtime.block_on(serve(agent, &socket, None, until)).unwrap();
        });
        Self {
            dir,
            stop: Some(stop),
            thread: Some(thread),
        }
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join(CURRENT)
    }

    fn manifests(&self) -> PathBuf {
        self.dir.path().join("manifests")
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

fn nodeward(args: &[&str], more: &[(&str, &Path)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nodeward"));
    command.args(args).env_remove("NODE_NAME");
    for (flag, path) in more {
        command.arg(flag).arg(path);
    }
    command.output().unwrap()
}

fn good(out: &Output) -> String {
    assert_eq!(out.status.code(), Some(0), "{}", text(&out.stderr));
    text(&out.stdout)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[test]
fn live_and_files_print_the_same() {
    let live = Live::start();
    let dump = live.dir.path().join("dump.json");
    std::fs::write(&dump, good(&nodeward(&["dump"], &[("--socket", &live.socket())]))).unwrap();
    let commands: &[&[&str]] = &[
        &["explain", "kube-system/dns"],
        &["explain", "kube-system/dns:dns", "--node", "n2", "-o", "json"],
        &[
            "explain",
            "kube-system/dns:53",
            "--interpretation",
            "strict",
            "-o",
            "yaml",
        ],
        &["services"],
        &["services", "kube-system/dns:dns-tcp", "-o", "json"],
        &["endpoints", "kube-system/dns", "-o", "json"],
    ];
    for args in commands {
        let from_agent = good(&nodeward(args, &[("--socket", &live.socket())]));
        assert!(
            from_agent.contains("10.0.1.1") || from_agent.contains("10.96.0.10"),
            "{args:?}: {from_agent}"
        );
        for path in [&live.manifests(), &dump] {
            let mut args = args.to_vec();
            if !args.contains(&"--node") {
                args.extend(["--node", "n1"]);
            }
            assert_eq!(
                good(&nodeward(&args, &[("--from", path)])),
                from_agent,
                "{args:?} from {}",
                path.display()
            );
        }
    }
}

#[test]
fn explain_gives_one_json_object_per_service_port() {
    let live = Live::start();
    let args = ["explain", "kube-system/dns", "--node", "n2", "-o", "json"];
    let out = good(&nodeward(&args, &[("--from", &live.manifests())]));
    let objects: Vec<serde_json::Value> = out.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    assert_eq!(objects.len(), 2);
    for o in &objects {
        assert_eq!(o["node"], "n2");
        assert_eq!(o["chosen"], serde_json::json!(["10.0.2.1:5353"]));
        assert_eq!(o["interpretation"], "ranked");
    }
    let args = [
        "explain",
        "kube-system/dns",
        "--node",
        "n2",
        "-o",
        "json",
        "--interpretation",
        "strict",
    ];
    let out = good(&nodeward(&args, &[("--from", &live.manifests())]));
    let o: serde_json::Value = serde_json::from_str(out.lines().next().unwrap()).unwrap();
    assert_eq!(o["interpretation"], "strict");
    assert_eq!(
        o["chosen"],
        serde_json::json!(["10.0.1.1:5353", "10.0.2.1:5353"]),
        "no hints, no locality"
    );
}

#[test]
fn configuration_decides_policy_and_node() {
    let live = Live::start();
    let config = live.dir.path().join("config.yaml");
    std::fs::write(
        &config,
        "node: n1\nservices: [{name: kube-system/dns, policy: Cluster}]\n",
    )
    .unwrap();
    let args = ["explain", "kube-system/dns:dns", "-o", "json"];
    let out = good(&nodeward(
        &args,
        &[("--from", &live.manifests()), ("--config", &config)],
    ));
    let o: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!((&o["node"], &o["policy"]), (&"n1".into(), &"Cluster".into()));
    assert_eq!(o["chosen"].as_array().unwrap().len(), 2);
}

#[test]
fn wrong_questions_are_2_and_say_what_to_do() {
    let live = Live::start();
    let (socket, manifests) = (live.socket(), live.manifests());
    let bad = live.dir.path().join("bad.yaml");
    std::fs::write(
        &bad,
        "apiVersion: v1\nkind: Service\nmetadata: {name: x}\nspec: {ports: [{port: 70000}]}\n",
    )
    .unwrap();
    let nothing = live.dir.path().join("nothing");
    type Case<'a> = (&'a [&'a str], &'a [(&'a str, &'a Path)], &'a str);
    let cases: &[Case<'_>] = &[
        (
            &["explain", "kube-system/gone"],
            &[("--socket", &socket)],
            "no Service kube-system/gone",
        ),
        (
            &["explain", "kube-system/gone", "--node", "n1"],
            &[("--from", &manifests)],
            "no Service kube-system/gone",
        ),
        (
            &["explain", "kube-system/headless"],
            &[("--socket", &socket)],
            "headless",
        ),
        (
            &["endpoints", "kube-system/dns:99"],
            &[("--socket", &socket)],
            "kube-system/dns:99",
        ),
        (&["explain", "dns"], &[("--socket", &socket)], "`namespace/name`"),
        (&["explain", "a/b&node=x"], &[("--socket", &socket)], "is not a name"),
        (
            &["explain", "kube-system/dns"],
            &[("--from", &manifests)],
            "--node NAME",
        ),
        (
            &["services", "--node", "n1"],
            &[("--from", &bad)],
            "bad.yaml: document 1, line 4: spec.ports[0].port",
        ),
        (
            &["services", "--node", "n1"],
            &[("--from", &nothing)],
            "nothing: No such file",
        ),
        (
            &["services", "--node", "n1"],
            &[("--from", &manifests), ("--socket", &socket)],
            "cannot be used with",
        ),
    ];
    for (args, more, wanted) in cases {
        let out = nodeward(args, more);
        assert_eq!(out.status.code(), Some(2), "{args:?}: {}", text(&out.stderr));
        assert!(
            text(&out.stderr).contains(wanted),
            "{args:?} says {}",
            text(&out.stderr)
        );
        assert!(out.stdout.is_empty());
    }
}

#[test]
fn status_and_probes() {
    let live = Live::start();
    let socket = live.socket();
    let out = good(&nodeward(&["status"], &[("--socket", &socket)]));
    assert!(out.starts_with("nodeward 9.9.9 on node n1"), "{out}");
    let out = good(&nodeward(&["status", "-o", "json"], &[("--socket", &socket)]));
    assert_eq!(serde_json::from_str::<Status>(&out).unwrap().version, "9.9.9");
    assert_eq!(good(&nodeward(&["probe", "live"], &[("--socket", &socket)])), "ok\n");
    let out = nodeward(&["probe", "ready"], &[("--socket", &socket)]);
    assert_eq!(
        (out.status.code(), text(&out.stdout)),
        (Some(1), "no endpoint is usable yet\n".into())
    );
}

#[test]
fn no_agent_is_1_and_says_where_it_looked() {
    let nowhere = Path::new("/nonexistent/current.sock");
    for args in [
        &["status"][..],
        &["dump"],
        &["probe", "live"],
        &["services"],
        &["explain", "a/b"],
    ] {
        let out = nodeward(args, &[("--socket", nowhere)]);
        assert_eq!(out.status.code(), Some(1), "{args:?}");
        let message = text(&out.stderr);
        assert!(
            message.contains("/nonexistent/current.sock") && message.contains("nodeward run"),
            "{message}"
        );
    }
}
