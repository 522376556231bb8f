//! Questions about Services, answered from files (`--from`) or by the running agent: the same records either way.

use super::live::{Live, ask, with_query};
use super::render::colour;
use super::{CliError, CliResult, Output};
use crate::admin::{Query, QueryError, Question, State};
use crate::config::{Config, NODE_NAME_ENV};
use crate::model::{Interner, NodeName};
use crate::source::manifest::{Format, parse};
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

/// Reads a manifest, or all manifests of a folder in the order of their names, into a cluster state.
fn load(path: &Path) -> Result<Store, CliError> {
    let unreadable = |path: &Path, e: std::io::Error| CliError::usage(format!("{}: cannot read: {e}", path.display()));
    let mut files = Vec::new();
    if path.is_dir() {
        for entry in std::fs::read_dir(path).map_err(|e| unreadable(path, e))? {
            let file = entry.map_err(|e| unreadable(path, e))?.path();
            let hidden = file.file_name().is_none_or(|n| n.as_encoded_bytes().starts_with(b"."));
            if !hidden && format(&file).is_some() && file.is_file() {
                files.push(file);
            }
        }
        files.sort();
        if files.is_empty() {
            return Err(CliError::usage(format!(
                "{}: no *.yaml, *.yml or *.json file here",
                path.display()
            )));
        }
    } else {
        files.push(path.to_owned());
    }
    let mut interner = Interner::default();
    let mut store = Store::new();
    for file in &files {
        let bytes = std::fs::read(file).map_err(|e| unreadable(file, e))?;
        let manifest = parse(&bytes, format(file).unwrap_or(Format::Yaml), &mut interner)
            .map_err(|e| CliError::usage(format!("{}: {e}", file.display())))?;
        store.apply(manifest.objects.into_iter().map(|o| o.into_change()));
    }
    Ok(store)
}

fn format(path: &Path) -> Option<Format> {
    match path.extension()?.to_str()? {
        "yaml" | "yml" => Some(Format::Yaml),
        "json" => Some(Format::Json),
        _ => None,
    }
}
