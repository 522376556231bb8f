//! The agent's ears: health, metrics, status and questions over HTTP, on a Unix socket and (health and metrics only) TCP.
//!
//! Reads the agent through [`AgentView`] and changes nothing. Never on a data thread; answers that take long are computed
//! on a thread of their own, so that the control thread is never held up.

mod client;
mod dump;
mod limit;
mod query;
mod server;
mod socket;

pub use client::{Answer, ClientError, get};
pub use query::State;
pub use server::{bind_tcp, serve};
pub use socket::{AdminSocket, CURRENT, own_sockets};

use crate::telemetry::Registry;
use crate::telemetry::metrics::ControlMetrics;
use crate::telemetry::status::Status;
use serde::{Deserialize, Serialize};
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

/// What the admin server asks of the agent. Called from any thread, several at a time; must never block on a data thread.
pub trait AgentView: Send + Sync + 'static {
    /// Whether the process works: every worker turns.
    ///
    /// # Errors
    /// What does not.
    fn live(&self) -> Result<(), String>;

    /// Whether it does its job: first state complete, redirection in place.
    ///
    /// # Errors
    /// What is missing.
    fn ready(&self) -> Result<(), String>;

    /// The state in words.
    fn status(&self) -> Status;

    /// The counters.
    fn registry(&self) -> &Registry;

    /// The control thread's own metrics.
    fn control_metrics(&self) -> &ControlMetrics;

    /// One of the questions, answered from the agent's cluster state with the same functions as `--from PATH`.
    ///
    /// # Errors
    /// [`QueryError`].
    fn query(&self, question: Question, query: &Query) -> Result<serde_json::Value, QueryError>;
}

/// The questions about Services.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Question {
    /// Why is each endpoint in or out?
    Explain,
    /// Which Services are there, and how are they treated?
    Services,
    /// Which endpoints does a Service have?
    Endpoints,
    /// The whole cluster state.
    Dump,
}

impl Question {
    /// The path under `/v1/`.
    pub fn path(self) -> &'static str {
        match self {
            Self::Explain => "/v1/explain",
            Self::Services => "/v1/services",
            Self::Endpoints => "/v1/endpoints",
            Self::Dump => "/v1/dump",
        }
    }
}

/// The parameters of a question.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Query {
    /// `namespace/name` or `namespace/name:port`.
    pub service: Option<String>,
    /// As seen from this node instead of the agent's own.
    pub node: Option<String>,
    /// `strict` or `ranked` instead of what is configured.
    pub interpretation: Option<String>,
}

/// Why a question has no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QueryError {
    /// The question makes no sense (a parameter is missing or wrong).
    #[error("{0}")]
    Bad(String),
    /// What it asks for does not exist.
    #[error("{0}")]
    NotFound(String),
    /// It cannot be answered now.
    #[error("{0}")]
    Unavailable(String),
}

/// Why the admin server cannot start. Messages name the key of the configuration file.
#[derive(Debug, thiserror::Error)]
pub enum AdminError {
    /// The TCP port.
    #[error("admin.listen: cannot listen on {address}: {error}{hint}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why.
        error: io::Error,
        /// What to do.
        hint: &'static str,
    },
    /// The Unix socket's folder or file.
    #[error("admin.runDir: {path}: cannot {action}: {error}")]
    Path {
        /// The file or folder.
        path: PathBuf,
        /// What was tried.
        action: &'static str,
        /// Why it failed.
        error: io::Error,
    },
    /// Another process answers on the socket.
    #[error(
        "admin.runDir: {path} is in use by a running process; stop it, or choose another redirect.instance or admin.runDir"
    )]
    InUse {
        /// The socket.
        path: PathBuf,
    },
}

#[cfg(test)]
mod tests;
