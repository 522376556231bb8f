//! Starts Nodeward on a node, with a configuration file and a run directory of its own. Knows its command line and
//! configuration, nothing else of it.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::manifest::Manifests;
use crate::node::{Host, Node};
use crate::process::{Cmd, Process};
use crate::{Error, Result, wait_for};

/// How Nodeward is started.
#[derive(Clone, Debug)]
pub struct AgentOptions {
    /// The `nodeward` binary.
    pub binary: PathBuf,
    /// Services to take over, `namespace/name`.
    pub services: Vec<String>,
    /// Worker threads.
    pub workers: u16,
    /// `redirect.instance`.
    pub instance: String,
    /// Further top-level YAML lines of the configuration.
    pub extra: String,
}

impl AgentOptions {
    /// One worker, instance `main`, for these services.
    pub fn new(binary: impl AsRef<Path>, services: &[&str]) -> AgentOptions {
        AgentOptions {
            binary: binary.as_ref().to_path_buf(),
            services: services.iter().map(|s| s.to_string()).collect(),
            workers: 1,
            instance: "main".to_string(),
            extra: String::new(),
        }
    }
}

/// A running Nodeward. Killed when dropped.
pub struct Agent {
    node: Node,
    process: Process,
    run_dir: PathBuf,
}

/// Where health and metrics are served inside the node.
const ADMIN_PORT: u16 = 9410;

impl Agent {
    /// Starts `nodeward run` in the node's root namespace, reading the manifests' folder. `directory` receives its files.
    pub fn start(node: &Node, manifests: &Manifests, options: &AgentOptions, directory: &Path) -> Result<Agent> {
        static STARTED: AtomicU32 = AtomicU32::new(0);
        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        let run_dir = directory.join(format!("run-{}-{number}", node.name()));
        std::fs::create_dir_all(&run_dir).map_err(Error::io(format!("create {}", run_dir.display())))?;
        let file = directory.join(format!("nodeward-{}-{number}.yaml", node.name()));
        let text = format!(
            "source:\n  file:\n    path: {folder:?}\nselect:\n  services: {services:?}\nworkers: {workers}\n\
             redirect:\n  instance: {instance}\nadmin:\n  listen: 127.0.0.1:{ADMIN_PORT}\n  runDir: {run_dir:?}\n{extra}",
            folder = manifests.folder(),
            services = options.services,
            workers = options.workers,
            instance = options.instance,
            extra = options.extra,
        );
        std::fs::write(&file, text).map_err(Error::io(format!("write {}", file.display())))?;
        let command = Cmd::new(&options.binary)
            .args(["run", "--config"])
            .arg(&file)
            .env("NODE_NAME", node.name());
        Ok(Agent {
            node: node.clone(),
            process: node.spawn(&command)?,
            run_dir,
        })
    }

    /// The process.
    pub fn process(&self) -> &Process {
        &self.process
    }

    /// The folder of its Unix sockets.
    pub fn run_dir(&self) -> &Path {
        &self.run_dir
    }

    /// Waits until `/readyz` answers 200. If the process ends before, the error shows what it wrote.
    pub fn wait_ready(&self, timeout: Duration) -> Result<()> {
        let what = format!("readiness of nodeward on {}", self.node.name());
        let waited = wait_for(&what, timeout, || {
            if !self.process.is_running() {
                let said = self.process.stderr();
                return Err(Error::other(format!("nodeward on {} ended: {said}", self.node.name())));
            }
            Ok(self
                .get("/readyz")?
                .is_some_and(|r| r.starts_with("HTTP/1.1 200"))
                .then_some(()))
        });
        waited.map_err(|e| match e {
            Error::Timeout { what, after } => Error::Timeout {
                what: format!("{what}; it wrote:\n{}", self.process.stderr()),
                after,
            },
            other => other,
        })
    }

    /// The text of `/metrics`.
    pub fn metrics(&self) -> Result<String> {
        let reply = self.get("/metrics")?;
        let body = reply
            .as_deref()
            .and_then(|r| r.split_once("\r\n\r\n"))
            .map(|(_, body)| body.to_string());
        body.ok_or_else(|| Error::other(format!("no metrics from nodeward on {}", self.node.name())))
    }

    /// A reply of its HTTP port, head and body; `None` if it does not answer within 500 ms.
    pub fn get(&self, path: &str) -> Result<Option<String>> {
        let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        let talk = move || -> std::io::Result<String> {
            let limit = Duration::from_millis(500);
            let to = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), ADMIN_PORT);
            let mut stream = TcpStream::connect_timeout(&to, limit)?;
            stream.set_read_timeout(Some(limit))?;
            stream.write_all(request.as_bytes())?;
            let mut reply = String::new();
            stream.read_to_string(&mut reply)?;
            Ok(reply)
        };
        Ok(self.node.netns().run(talk)?.ok())
    }
}
