//! Questions about Services, answered from files (`--from`) or by the running agent: the same records either way.

use super::live::{Live, ask, with_query};
use super::render::colour;
use super::{CliError, CliResult, Output};
use crate::admin::{Query, QueryError, Question, State};
use crate::config::{Config, NODE_NAME_ENV};
use crate::model::NodeName;
use crate::source::file::FileSource;
use crate::store::Store;
use crate::topology::TopologyConfig;
use serde::de::DeserializeOwned;
use std::path::{Path, PathBuf};

/// Where the answer comes from and how it is printed.
#[derive(Debug, clap::Args)]
pub struct From {
    /// A manifest or a folder of manifests (Services, EndpointSlices, Nodes) instead of the running agent.
    #[arg(long, value_name = "PATH", conflicts_with = "socket")]
    from: Option<PathBuf>,
    /// The node whose view is wanted [default: the agent's own; with --from: the configuration's, NODE_NAME].
    #[arg(long, value_name = "NAME")]
    node: Option<String>,
    /// Configuration file, for policies and levels (with --from), or for the agent's socket.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    live: Live,
    /// How to print. JSON is one object per line, YAML one document per object.
    #[arg(short, long, value_enum, default_value_t)]
    pub output: Output,
}

impl From {
    /// Asks `question` and returns the records.
    pub fn records<T: DeserializeOwned>(
        &self,
        question: Question,
        service: Option<&str>,
        interpretation: Option<&str>,
        pick: impl FnOnce(&State<'_>, &Query) -> Result<Vec<T>, QueryError>,
    ) -> Result<Vec<T>, CliError> {
        let config = self
            .config
            .as_deref()
            .map(Config::load)
            .transpose()
            .map_err(CliError::usage)?;
        let Some(path) = &self.from else {
            let parameters = [
                ("service", service),
                ("node", self.node.as_deref()),
                ("interpretation", interpretation),
            ];
            let path = with_query(question.path(), &parameters)?;
            let answer = ask(&self.live.path(config.as_ref()), &path)?;
            return serde_json::from_slice(&answer.body)
                .map_err(|e| CliError::failed(format!("the agent's answer cannot be read (another version?): {e}")));
        };
        let store = load(path)?;
        let query = Query {
            service: service.map(str::to_owned),
            node: self.node.clone(),
            interpretation: interpretation.map(str::to_owned),
        };
        let from_env = || {
            std::env::var(NODE_NAME_ENV)
                .ok()
                .filter(|n| !n.is_empty())
                .map(NodeName::from)
        };
        let own_node = config.as_ref().and_then(|c| c.node.clone()).or_else(from_env);
        let state = State {
            store: &store,
            topology: &config.map_or_else(TopologyConfig::default, |c| c.topology),
            own_node: own_node.as_ref(),
        };
        pick(&state, &query).map_err(CliError::usage)
    }

    /// Prints records with one of the commands' bodies.
    pub fn print(&self, body: impl FnOnce(Output, bool, &mut std::io::StdoutLock<'_>) -> CliResult) -> CliResult {
        body(self.output, colour(), &mut std::io::stdout().lock())
    }
}

/// Reads a manifest, or all manifests of a folder, into a cluster state: by the rules of `source.file`, but nothing bad is
/// read past.
pub fn load(path: &Path) -> Result<Store, CliError> {
    let mut source = FileSource::open(path).map_err(CliError::usage)?;
    let changes = source.load();
    if !source.errors().is_empty() {
        let errors: Vec<_> = source.errors().iter().map(ToString::to_string).collect();
        return Err(CliError::Usage(errors.join("\n")));
    }
    if source.counts().1 == 0 {
        return Err(CliError::usage(format!(
            "{}: no Service, EndpointSlice or Node in it (files of a folder must end in .yaml, .yml or .json)",
            path.display()
        )));
    }
    let mut store = Store::new();
    store.apply(changes);
    Ok(store)
}
