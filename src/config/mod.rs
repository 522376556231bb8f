//! The configuration file: schema, defaults, validation with exact messages.
//!
//! One YAML file; `deploy/config.yaml` documents every key with its default and unit. A file is accepted whole or refused
//! whole, with every problem named by file, line and key. Nothing here opens sockets or looks at the cluster.

mod checker;
mod error;
mod raw;
mod select;
mod units;
mod validate;
mod values;

pub use error::{ConfigError, Problem};
pub use select::{LabelSelector, Operator, PROXY_NAME_LABEL, Requirement, Select, Selection};
pub use units::show_duration;
pub use values::service_ref;

use crate::model::NodeName;
use crate::topology::TopologyConfig;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The commented default file, as `nodeward config --defaults` prints it.
pub const DEFAULT_FILE: &str = include_str!("../../deploy/config.yaml");

/// The environment variable that names the node where the file does not.
pub const NODE_NAME_ENV: &str = "NODE_NAME";

/// A change is applied at most this long after its event, however many events follow it.
pub const MAX_BATCH_DELAY: Duration = Duration::from_millis(50);

/// Levels between node and cluster: node and cluster take the other two of [`crate::telemetry::MAX_RANKS`].
pub const MAX_LEVELS: usize = crate::telemetry::MAX_RANKS - 2;

/// A validated configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// `node`, or the environment's `NODE_NAME`. See [`Config::require_node`].
    pub node: Option<NodeName>,
    /// `source.file.path`: a manifest or a folder of manifests; relative paths start at the configuration file's folder.
    pub source_file: Option<PathBuf>,
    /// `select`.
    pub select: Select,
    /// `topology` and `services`.
    pub topology: TopologyConfig,
    /// `workers`.
    pub workers: Workers,
    /// `engine`.
    pub engine: EngineChoice,
    /// `redirect`.
    pub redirect: Redirect,
    /// `udp`.
    pub udp: Udp,
    /// `admin`.
    pub admin: Admin,
    /// `batchWindow`: how long changes are collected before a table is built; at most [`MAX_BATCH_DELAY`].
    pub batch_window: Duration,
    /// `log`.
    pub log: Log,
    /// What is allowed but probably not meant, with its place.
    pub warnings: Vec<String>,
}

/// How many workers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Workers {
    /// One per eight CPUs of the CPU set and quota, at least 1, at most 4.
    #[default]
    Auto,
    /// This many, 1 to 64.
    Count(u16),
}

impl Workers {
    /// The number of workers for `cpus` usable CPUs.
    pub fn for_cpus(self, cpus: usize) -> usize {
        match self {
            Self::Auto => (cpus / 8).clamp(1, 4),
            Self::Count(n) => usize::from(n),
        }
    }

    /// The number of workers on this machine. The CPU count honours the CPU set and the cgroup's quota; where it cannot be
    /// read, one CPU is assumed.
    pub fn resolve(self) -> usize {
        self.for_cpus(std::thread::available_parallelism().map_or(1, usize::from))
    }
}

/// Which engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EngineChoice {
    /// io_uring where the kernel allows it.
    #[default]
    Auto,
    /// io_uring or nothing.
    IoUring,
}

/// The `redirect` section.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Redirect {
    /// Whether VIP traffic is intercepted at all.
    pub enabled: bool,
    /// Name of the nft table (`nodeward-<instance>`) and of the admin socket.
    pub instance: String,
    /// Three neighbouring bits of the packet mark, as a mask.
    pub mark: u32,
    /// Local ports reserved for client-source traffic.
    pub pool_ports: RangeInclusive<u16>,
    /// Routing table for local delivery.
    pub route_table: u32,
    /// Priority of the first of three consecutive ip rules.
    pub rule_priority: u32,
}

/// The `udp` section. All limits are per worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Udp {
    /// Queries waiting for an answer.
    pub max_outstanding: u32,
    /// Bytes of queries kept for being asked again.
    pub stored_bytes: u64,
    /// How long an answer is awaited.
    pub dns_timeout: Duration,
    /// Sockets towards endpoints.
    pub upstream_sockets: u16,
    /// Receive buffer of each VIP socket in bytes.
    pub receive_buffer: u32,
}

/// The `admin` section.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admin {
    /// Health and metrics over TCP; `None` for off.
    pub listen: Option<SocketAddr>,
    /// Folder of the Unix sockets.
    pub run_dir: PathBuf,
}

/// The `log` section.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Log {
    /// A level, or per-module levels as in `info,nodeward::redirect=debug`.
    pub level: String,
    /// How lines look.
    pub format: LogFormat,
}

/// How log lines look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            node: None,
            source_file: None,
            select: Select::default(),
            topology: TopologyConfig::default(),
            workers: Workers::default(),
            engine: EngineChoice::default(),
            redirect: Redirect::default(),
            udp: Udp::default(),
            admin: Admin::default(),
            batch_window: Duration::from_millis(5),
            log: Log::default(),
            warnings: Vec::new(),
        }
    }
}

impl Default for Redirect {
    fn default() -> Self {
        Self {
            enabled: true,
            instance: "main".into(),
            // Bits that kube-proxy (0x4000, 0x8000) leaves free.
            mark: 0x3800,
            // Below the kernel's ephemeral range (32768-60999) and the NodePort range (30000-32767).
            pool_ports: 20000..=20255,
            route_table: 100,
            rule_priority: 98,
        }
    }
}

#[cfg(feature = "dataplane")]
impl From<&Redirect> for crate::redirect::RedirectConfig {
    fn from(r: &Redirect) -> Self {
        Self {
            instance: r.instance.clone(),
            mark_field: r.mark,
            pool_first: *r.pool_ports.start(),
            pool_last: *r.pool_ports.end(),
            routing_table: r.route_table,
            rule_priority: r.rule_priority,
            ..Self::default()
        }
    }
}

impl Default for Udp {
    fn default() -> Self {
        Self {
            max_outstanding: 65_536,
            stored_bytes: 16 << 20,
            // Longer than a resolver's own patience of 5 s, so that a late answer is still delivered.
            dns_timeout: Duration::from_secs(8),
            upstream_sockets: 256,
            receive_buffer: 4 << 20,
        }
    }
}

impl Default for Admin {
    fn default() -> Self {
        Self {
            listen: Some(SocketAddr::from(([0, 0, 0, 0], 9410))),
            run_dir: "/run/nodeward".into(),
        }
    }
}

impl Default for Log {
    fn default() -> Self {
        Self {
            level: "info".into(),
            format: LogFormat::default(),
        }
    }
}

impl Config {
    /// Reads and validates a file; the environment's `NODE_NAME` stands in for a missing `node`.
    ///
    /// # Errors
    /// [`ConfigError`] names the file and everything wrong with it.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        let bytes = std::fs::read(path).map_err(|e| ConfigError::new(path, format!("cannot read: {e}")))?;
        let text = String::from_utf8(bytes).map_err(|e| {
            ConfigError::new(
                path,
                format!(
                    "not UTF-8 (byte {}); save the file as UTF-8",
                    e.utf8_error().valid_up_to()
                ),
            )
        })?;
        let env = std::env::var(NODE_NAME_ENV).ok();
        Self::parse(&text, path, env.as_deref())
    }

    /// Validates the text of a file. `path` serves messages and relative paths, `env_node` is the value of `NODE_NAME`.
    ///
    /// # Errors
    /// [`ConfigError`] names the file and everything wrong with it.
    pub fn parse(text: &str, path: &Path, env_node: Option<&str>) -> Result<Self, ConfigError> {
        validate::parse(text, path, env_node)
    }

    /// The node's name.
    ///
    /// # Errors
    /// Says how to name it where neither the file nor the environment does.
    pub fn require_node(&self, path: &Path) -> Result<&NodeName, ConfigError> {
        self.node.as_ref().ok_or_else(|| {
            ConfigError::new(
                path,
                format!(
                    "the node's name is not known: set `node:` in the file or {NODE_NAME_ENV} in the environment \
                     (in a pod: fieldRef spec.nodeName)"
                ),
            )
        })
    }
}

#[cfg(test)]
mod tests;
