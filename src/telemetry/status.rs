//! What an agent says about itself: the answer of `/v1/status` and the text of `nodeward status`.

use serde::{Deserialize, Serialize};
use std::fmt::{self, Write};

/// The state of one agent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// Version of the program.
    pub version: String,
    /// The node it serves.
    pub node: String,
    /// `redirect.instance`.
    pub instance: String,
    /// Process id.
    pub pid: u32,
    /// Seconds since it started.
    pub uptime_seconds: u64,
    /// How packets are moved.
    pub engine: EngineStatus,
    /// Number of workers.
    pub workers: usize,
    /// Generation of the table in use; 0 before the first.
    pub table_generation: u64,
    /// The names of the ranks, nearest first.
    pub ranks: Vec<String>,
    /// Where Services come from.
    pub source: SourceStatus,
    /// How traffic reaches us.
    pub redirect: RedirectStatus,
    /// The service ports selected, sorted by name, protocol and family.
    pub services: Vec<ServicePortStatus>,
    /// What an operator should know: settings that have no effect, bypassed traffic.
    pub warnings: Vec<String>,
}

/// The engine in use.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EngineStatus {
    /// `io_uring` or `epoll`.
    pub name: String,
    /// Why this one.
    pub why: String,
}

/// The source.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceStatus {
    /// `file`, and later others.
    pub kind: String,
    /// A path or an address.
    pub location: String,
    /// Whether the first complete state has arrived.
    pub synced: bool,
    /// What is wrong now; the last good state stays in use.
    pub errors: Vec<String>,
}

/// The redirection.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RedirectStatus {
    /// `redirect.enabled`.
    pub enabled: bool,
    /// Whether the nft table and the ip rules are in place.
    pub installed: bool,
    /// Name of the nft table.
    pub table: String,
    /// What is wrong, or why nothing is installed.
    pub reason: Option<String>,
}

/// What happens to one service port of one family.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServicePortStatus {
    /// `namespace/name`.
    pub service: String,
    /// Port name, or number where it has none.
    pub port: String,
    /// `TCP`, `UDP`, `SCTP`.
    pub protocol: String,
    /// `IPv4`, `IPv6`.
    pub family: String,
    /// `address:port`.
    pub vip: String,
    /// The state.
    pub state: ServiceState,
    /// Why, for every state but `intercepting`.
    pub reason: Option<String>,
    /// The rank in use.
    pub rank: Option<String>,
    /// Endpoints in the rank in use.
    pub endpoints: usize,
    /// Words of the Service that were ignored or are deprecated; `nodeward explain` tells which.
    #[serde(default)]
    pub notices: usize,
}

/// The states of a service port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ServiceState {
    /// New flows come to us.
    Intercepting,
    /// Not taken yet: no endpoint is usable, or the first state is not complete. kube-proxy serves it.
    Waiting,
    /// Cannot be carried; kube-proxy serves it.
    Refused,
    /// Two Services claim the same VIP; kube-proxy serves it.
    Conflict,
    /// Switched off, or redirection is; kube-proxy serves it.
    Off,
}

impl ServiceState {
    /// The words for people and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Intercepting => "intercepting",
            Self::Waiting => "waiting",
            Self::Refused => "refused",
            Self::Conflict => "conflict",
            Self::Off => "off",
        }
    }
}

impl fmt::Display for ServiceState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl Status {
    /// The text of `nodeward status`.
    pub fn to_text(&self) -> String {
        let mut out = String::new();
        // Writing to a String cannot fail.
        let _ = self.write_text(&mut out);
        out
    }

    fn write_text(&self, out: &mut String) -> fmt::Result {
        writeln!(
            out,
            "nodeward {} on node {}, instance {}, pid {}, up {} s",
            self.version, self.node, self.instance, self.pid, self.uptime_seconds
        )?;
        let plural = if self.workers == 1 { "" } else { "s" };
        writeln!(
            out,
            "engine    {}: {}; {} worker{plural}, table generation {}",
            self.engine.name, self.engine.why, self.workers, self.table_generation
        )?;
        let synced = match (self.source.synced, self.source.errors.is_empty()) {
            (false, _) => "waiting for the first complete state",
            (true, true) => "in sync",
            (true, false) => "in sync but for what is wrong below",
        };
        writeln!(out, "source    {} {}: {synced}", self.source.kind, self.source.location)?;
        for e in &self.source.errors {
            writeln!(out, "          error (last good state stays): {e}")?;
        }
        let redirect = match (self.redirect.enabled, self.redirect.installed) {
            (false, _) => "off",
            (true, true) => "installed",
            (true, false) => "not installed",
        };
        let reason = self
            .redirect
            .reason
            .as_ref()
            .map(|r| format!(": {r}"))
            .unwrap_or_default();
        writeln!(out, "redirect  {redirect} (table inet {}){reason}", self.redirect.table)?;
        for w in &self.warnings {
            writeln!(out, "warning   {w}")?;
        }
        if self.services.is_empty() {
            return writeln!(out, "services  none selected that exist");
        }
        let rows: Vec<_> = self
            .services
            .iter()
            .map(|s| (format!("{}:{}/{}", s.service, s.port, s.protocol), s))
            .collect();
        let name_width = rows
            .iter()
            .map(|(n, _)| n.len())
            .max()
            .unwrap_or(0)
            .max("SERVICE PORT".len());
        let vip_width = rows
            .iter()
            .map(|(_, s)| s.vip.len())
            .max()
            .unwrap_or(0)
            .max("VIP".len());
        writeln!(
            out,
            "\n{:name_width$}  {:vip_width$}  {:12}  {:8}  ENDPOINTS",
            "SERVICE PORT", "VIP", "STATE", "RANK"
        )?;
        for (name, s) in &rows {
            let rank = s.rank.as_deref().unwrap_or("-");
            write!(
                out,
                "{name:name_width$}  {:vip_width$}  {:12}  {rank:8}  {}",
                s.vip, s.state, s.endpoints
            )?;
            if let Some(reason) = &s.reason {
                write!(out, "  {reason}")?;
            }
            writeln!(out)?;
        }
        Ok(())
    }
}
