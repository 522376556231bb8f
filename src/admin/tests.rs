#![allow(clippy::unwrap_used, clippy::expect_used)]

use super::*;
use crate::model::{IpFamily, ObjectName, Protocol, ServicePortKey};
use crate::telemetry::DropReason;
use crate::telemetry::status::{EngineStatus, ServicePortStatus, ServiceState};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

struct Fake {
    registry: Registry,
    control: ControlMetrics,
    ready: AtomicBool,
}

impl AgentView for Fake {
    fn live(&self) -> Result<(), String> {
        Ok(())
    }

    fn ready(&self) -> Result<(), String> {
        match self.ready.load(Ordering::Relaxed) {
            true => Ok(()),
            false => Err("waiting for the first complete state".into()),
        }
    }

    fn status(&self) -> Status {
        Status {
            version: "1.2.3".into(),
            node: "n1".into(),
            engine: EngineStatus {
                name: "io_uring".into(),
                why: "kernel \"6.18\"".into(),
            },
            ranks: vec!["node".into(), "zone".into(), "cluster".into()],
            table_generation: 7,
            services: vec![
                ServicePortStatus {
                    service: "kube-system/kube-dns".into(),
                    port: "dns".into(),
                    protocol: "UDP".into(),
                    family: "IPv4".into(),
                    vip: "10.96.0.10:53".into(),
                    state: ServiceState::Intercepting,
                    reason: None,
                    rank: Some("node".into()),
                    endpoints: 1,
                    notices: 1,
                },
                ServicePortStatus {
                    service: "kube-system/kube-dns".into(),
                    port: "dns-tcp".into(),
                    protocol: "TCP".into(),
                    family: "IPv4".into(),
                    vip: "10.96.0.10:53".into(),
                    state: ServiceState::Refused,
                    reason: Some("TCP is not built yet".into()),
                    rank: None,
                    endpoints: 0,
                    notices: 0,
                },
            ],
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
        match query.service.as_deref() {
            None if question == Question::Explain => Err(QueryError::Bad("service is missing".into())),
            Some("a/gone") => Err(QueryError::NotFound("no Service a/gone".into())),
            _ => Ok(serde_json::json!({"path": question.path(), "service": query.service, "node": query.node})),
        }
    }
}

fn fake() -> Arc<Fake> {
    let registry = Registry::new(2);
    let key = ServicePortKey {
        service: ObjectName::new("kube-system", "kube-dns"),
        port_name: "dns".into(),
        port: 53,
        protocol: Protocol::Udp,
    };
    for worker in 0..2 {
        let c = registry.service_port(worker, &key, IpFamily::V4);
        c.received.add(10);
        c.forwarded[0].add(8);
        c.forwarded[2].add(1);
        c.drop_one(DropReason::Limit);
        registry.worker(worker).unwrap().turns.add(100 + worker as u64);
    }
    let control = ControlMetrics::default();
    control.apply_duration.observe(0.004);
    control.source_errors.inc();
    Arc::new(Fake {
        registry,
        control,
        ready: AtomicBool::new(true),
    })
}

/// A server on a thread of its own, stopped when dropped.
struct Running {
    _dir: tempfile::TempDir,
    socket: PathBuf,
    tcp: SocketAddr,
    agent: Arc<Fake>,
    stop: Option<tokio::sync::oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Running {
    fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let agent = fake();
        let unix = AdminSocket::bind(dir.path(), "main").unwrap();
        unix.make_current().unwrap();
        let tcp = bind_tcp("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = tcp.local_addr().unwrap();
        let (stop, stopped) = tokio::sync::oneshot::channel();
        let view = agent.clone();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime
                .block_on(serve(view, &unix, Some(tcp), async {
                    let _ = stopped.await;
                }))
                .unwrap();
        });
        Self {
            socket: dir.path().join(CURRENT),
            _dir: dir,
            tcp: address,
            agent,
            stop: Some(stop),
            thread: Some(thread),
        }
    }

    fn get(&self, path: &str) -> (u16, String) {
        let answer = get(&self.socket, path).unwrap();
        (answer.code, answer.text())
    }

    fn get_tcp(&self, path: &str) -> String {
        use std::io::{Read, Write};
        let mut stream = std::net::TcpStream::connect(self.tcp).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

#[test]
fn health_follows_the_agent() {
    let server = Running::start();
    for path in ["/livez", "/readyz", "/healthz"] {
        assert_eq!(server.get(path), (200, "ok".into()), "{path}");
    }
    server.agent.ready.store(false, Ordering::Relaxed);
    assert_eq!(server.get("/livez").0, 200);
    for path in ["/readyz", "/healthz"] {
        assert_eq!(
            server.get(path),
            (503, "waiting for the first complete state".into()),
            "{path}"
        );
    }
    assert!(server.get_tcp("/readyz").starts_with("HTTP/1.1 503 "));
}

#[test]
fn questions_and_their_errors() {
    let server = Running::start();
    let (code, body) = server.get("/v1/explain?service=a/b:dns&node=n2");
    assert_eq!(code, 200, "{body}");
    let value: serde_json::Value = serde_json::from_str(&body).unwrap();
    assert_eq!(
        value,
        serde_json::json!({"path": "/v1/explain", "service": "a/b:dns", "node": "n2"})
    );
    for path in ["/v1/services", "/v1/endpoints", "/v1/dump"] {
        assert!(server.get(path).1.contains(path), "{path}");
    }
    assert_eq!(server.get("/v1/explain"), (400, "service is missing".into()));
    assert_eq!(server.get("/v1/explain?servce=a/b").0, 400);
    assert_eq!(
        server.get("/v1/endpoints?service=a/gone"),
        (404, "no Service a/gone".into())
    );
    assert_eq!(server.get("/v1/bogus").0, 404);
    let status: Status = serde_json::from_str(&server.get("/v1/status").1).unwrap();
    assert_eq!(status, server.agent.status());
}

#[test]
fn tcp_answers_health_and_metrics_only() {
    let server = Running::start();
    assert!(server.get_tcp("/livez").starts_with("HTTP/1.1 200 "));
    assert!(server.get_tcp("/metrics").contains("nodeward_table_generation 7"));
    for path in ["/v1/status", "/v1/dump", "/v1/explain?service=a/b"] {
        assert!(server.get_tcp(path).starts_with("HTTP/1.1 404 "), "{path}");
    }
}

#[test]
fn metrics_text() {
    let server = Running::start();
    let (code, text) = server.get("/metrics");
    assert_eq!(code, 200);
    let labels = r#"namespace="kube-system",service="kube-dns",port="dns",protocol="UDP",family="IPv4""#;
    let wanted = [
        format!("nodeward_received_datagrams_total{{{labels}}} 20"),
        format!("nodeward_forwarded_datagrams_total{{{labels},rank=\"node\"}} 16"),
        format!("nodeward_forwarded_datagrams_total{{{labels},rank=\"zone\"}} 0"),
        format!("nodeward_forwarded_datagrams_total{{{labels},rank=\"cluster\"}} 2"),
        format!("nodeward_dropped_datagrams_total{{{labels},reason=\"limit\"}} 2"),
        format!("nodeward_intercepting{{{labels}}} 1"),
        "nodeward_worker_turns_total{worker=\"0\"} 100".into(),
        "nodeward_worker_turns_total{worker=\"1\"} 101".into(),
        "nodeward_table_generation 7".into(),
        "nodeward_ready 1".into(),
        "nodeward_source_errors_total 1".into(),
        "nodeward_apply_duration_seconds_bucket{le=\"0.005\"} 1".into(),
        "nodeward_apply_duration_seconds_bucket{le=\"0.002\"} 0".into(),
        r#"nodeward_engine_info{engine="io_uring",why="kernel \"6.18\""} 1"#.into(),
        r#"nodeward_build_info{version="1.2.3"} 1"#.into(),
        "# EOF".into(),
    ];
    for line in &wanted {
        assert!(text.lines().any(|l| l == line), "no line `{line}` in:\n{text}");
    }
    // Every metric is described once, and every name has our prefix.
    let mut described: Vec<_> = text.lines().filter_map(|l| l.strip_prefix("# TYPE ")).collect();
    let count = described.len();
    described.sort_unstable();
    described.dedup();
    assert_eq!(described.len(), count);
    assert!(
        text.lines().all(|l| l.starts_with('#') || l.starts_with("nodeward_")),
        "{text}"
    );
}

#[test]
fn socket_mode_link_and_clean_up() {
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    let socket = AdminSocket::bind(&run, "a").unwrap();
    let mode = std::fs::metadata(socket.path()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o660);
    let name = socket.path().file_name().unwrap().to_str().unwrap().to_owned();
    assert!(name.starts_with(&format!("a-{}.", std::process::id())), "{name}");
    socket.make_current().unwrap();
    let other = AdminSocket::bind(&run, "b").unwrap();
    other.make_current().unwrap();
    drop(socket);
    let link = std::fs::read_link(run.join(CURRENT)).unwrap();
    assert_eq!(run.join(link), other.path(), "the link leads to the later one still");
    drop(other);
    assert_eq!(std::fs::read_dir(&run).unwrap().count(), 0, "nothing is left behind");
}

#[test]
fn own_sockets_are_those_of_this_pid_namespace() {
    let dir = tempfile::tempdir().unwrap();
    assert!(own_sockets(dir.path()).is_empty());
    let socket = AdminSocket::bind(dir.path(), "a").unwrap();
    socket.make_current().unwrap();
    std::fs::write(dir.path().join("a-1.99.sock"), "").unwrap();
    assert_eq!(own_sockets(dir.path()), [socket.path().to_owned()]);
}

#[test]
fn stale_socket_is_replaced_and_a_live_one_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = AdminSocket::bind(dir.path(), "a").unwrap().path().to_owned();
    // A listener that closes leaves its file behind: that is what a killed process leaves.
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    assert!(path.exists());
    let socket = AdminSocket::bind(dir.path(), "a").unwrap();
    let error = AdminSocket::bind(dir.path(), "a").unwrap_err();
    assert!(matches!(error, AdminError::InUse { .. }), "{error}");
    assert!(error.to_string().contains("admin.runDir"));
    drop(socket);
    AdminSocket::bind(dir.path(), "a").unwrap();
}

#[test]
fn what_cannot_work_names_the_key() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let error = AdminSocket::bind(file.path(), "a").unwrap_err().to_string();
    assert!(
        error.contains("admin.runDir") && error.contains("make the folder"),
        "{error}"
    );
    let taken = bind_tcp("127.0.0.1:0".parse().unwrap()).unwrap();
    let error = bind_tcp(taken.local_addr().unwrap()).unwrap_err().to_string();
    assert!(
        error.contains("admin.listen") && error.contains("another process has the port"),
        "{error}"
    );
    let error = get(Path::new("/nonexistent/current.sock"), "/livez")
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("/nonexistent/current.sock") && error.contains("nodeward run"),
        "{error}"
    );
}

#[test]
fn connections_are_limited_in_number_and_age() {
    use axum::serve::Listener;
    use std::time::Duration;
    use tokio::io::AsyncReadExt;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let inner = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = inner.local_addr().unwrap();
        let mut listener = limit::Limited::with(inner, 1, Duration::from_millis(200));
        let _one = tokio::net::TcpStream::connect(address).await.unwrap();
        let _two = tokio::net::TcpStream::connect(address).await.unwrap();
        let (mut first, _) = listener.accept().await;
        let wait = Duration::from_millis(50);
        assert!(
            tokio::time::timeout(wait, listener.accept()).await.is_err(),
            "no room for a second one"
        );
        let error = first.read_u8().await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        drop(first);
        tokio::time::timeout(Duration::from_secs(5), listener.accept())
            .await
            .expect("room again");
    });
}

#[test]
fn status_reads_well() {
    let text = fake().status().to_text();
    assert!(
        text.contains("kube-system/kube-dns:dns/UDP      10.96.0.10:53  intercepting  node      1\n"),
        "{text}"
    );
    assert!(
        text.contains("refused       -         0  TCP is not built yet\n"),
        "{text}"
    );
}
