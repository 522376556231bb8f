//! The agent's start: everything that can fail is tried before traffic is touched.

use super::agent::Agent;
use super::lease::Prober;
use super::redirection::{self, Redirection};
use super::report;
use super::run::Control;
use super::settings;
use super::vips::Vips;
use crate::admin::{self, AdminError, AdminSocket};
use crate::config::{Config, ConfigError};
use crate::health::FailingEndpoints;
use crate::net::cpu;
use crate::redirect::{RedirectCounters, RedirectError};
use crate::source::file::{FileSource, SourceError};
use crate::table::TableBuilder;
use crate::table::affinity::AffinityMemory;
use crate::table::publish::Publisher;
use crate::telemetry::Registry;
use crate::worker::{Clock, Handle, Shared, StartError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Client addresses remembered for session affinity, over all service ports: 1 MiB.
const AFFINITY_CHOICES: usize = 65_536;

/// Why the agent could not start, or ended.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The configuration lacks something only `run` needs.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// No source.
    #[error("{}: nothing to serve from: set `source.file.path` to a manifest or a folder of manifests", .0.display())]
    NoSource(PathBuf),
    /// The source cannot be opened.
    #[error("source.file.path: {0}; it must be a manifest or a folder of manifests that exists")]
    Source(#[from] SourceError),
    /// A worker cannot start.
    #[error(transparent)]
    Worker(#[from] StartError),
    /// This node cannot carry the redirection.
    #[error("this node cannot carry the redirection, so nothing is taken over (`nodeward check` tells more):{0}")]
    Verdict(String),
    /// The redirection cannot be installed.
    #[error(transparent)]
    Redirect(#[from] RedirectError),
    /// The admin server cannot start.
    #[error(transparent)]
    Admin(#[from] AdminError),
    /// Something of the operating system.
    #[error("{0}: {1}")]
    System(&'static str, io::Error),
}

impl Control {
    /// Makes workers, redirection and admin server; nothing is taken over yet.
    pub(super) async fn start(config: Config, file: &Path) -> Result<Self, RunError> {
        let node = config.require_node(file)?.clone();
        let path = config
            .source_file
            .clone()
            .ok_or_else(|| RunError::NoSource(file.to_owned()))?;
        for warning in &config.warnings {
            tracing::warn!("{warning}");
        }
        let source = FileSource::open(&path)?;
        let cpus = cpu::allowed().unwrap_or_default();
        let worker_configs = settings::workers(&config, &cpus);
        raise_descriptor_limit(settings::descriptors(&worker_configs));
        let clock = Clock::start();
        let registry = Arc::new(Registry::new(worker_configs.len()));
        let failing = Arc::new(FailingEndpoints::default());
        let shared = Shared {
            clock,
            failing: failing.clone(),
            affinity: Arc::new(AffinityMemory::new(AFFINITY_CHOICES)),
            registry: registry.clone(),
        };
        // Sockets of the admin server first: a second instance by mistake ends here, before it touches traffic.
        let admin = AdminSocket::bind(&config.admin.run_dir, &config.redirect.instance)?;
        let tcp = config.admin.listen.map(admin::bind_tcp).transpose()?;
        let builder = TableBuilder::new();
        let mut publisher = Publisher::new(builder.table().clone());
        let mut workers = Vec::new();
        for worker in worker_configs {
            workers.push(Handle::start(worker, publisher.reader(), shared.clone())?);
        }
        let redirect_config = settings::redirect(&config);
        let marks = redirect_config.marks();
        let redirection = match config.redirect.enabled {
            true => {
                redirection::examine(&redirect_config)
                    .await
                    .map_err(RunError::Verdict)?;
                Some(Redirection::install(redirect_config).await?)
            }
            false => None,
        };
        let probes = workers.iter().map(|w| w.started().probe);
        let prober = Prober::new(probes, clock.now())
            .await
            .map_err(|e| RunError::System("opening the probe socket on 127.0.0.1", e))?;
        let status = report::initial(&config, &node, &path, &workers);
        let agent = Arc::new(Agent::new(node.clone(), registry, config.topology.clone(), status));
        let (stop_admin, stopped) = tokio::sync::oneshot::channel::<()>();
        let admin = Arc::new(admin);
        let serving = {
            let (agent, admin) = (agent.clone(), admin.clone());
            async move {
                let stop = async move {
                    // The sender going away means stop as well.
                    let _ = stopped.await;
                };
                if let Err(error) = admin::serve(agent, &admin, tcp, stop).await {
                    tracing::error!("{error}; health, metrics and questions are not answered");
                }
            }
        };
        tokio::spawn(serving);
        admin.make_current()?;
        if let Some(started) = workers.first().map(Handle::started) {
            tracing::info!(node = %node, workers = workers.len(), engine = %started.engine, "started");
        }
        Ok(Self {
            config,
            node,
            agent,
            source,
            builder,
            publisher,
            workers,
            vips: Vips::default(),
            redirection,
            bypassed: RedirectCounters::default(),
            prober,
            failing,
            clock,
            marks,
            admin,
            stop_admin,
        })
    }
}

/// Asks for as many descriptors as may be needed, as far as the hard limit allows. Too few show as an error on the socket
/// that did not fit.
fn raise_descriptor_limit(wanted: u64) {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else {
        return;
    };
    let target = wanted.min(hard);
    if target > soft && setrlimit(Resource::RLIMIT_NOFILE, target, hard).is_err() {
        tracing::warn!(soft, wanted, "cannot raise the limit on open files");
    }
}
