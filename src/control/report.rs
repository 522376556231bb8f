//! The agent's state in words: what `nodeward status`, the metrics and the log say.

use super::agent::Agent;
use super::run::Control;
use super::vips::{Phase, carried};
use crate::config::Config;
use crate::model::{IpFamily, NodeName};
use crate::redirect::RedirectCounters;
use crate::table::{Conflict, ServicePortEntry, Vip};
use crate::telemetry::status::{EngineStatus, RedirectStatus, ServicePortStatus, ServiceState, SourceStatus, Status};
use crate::topology::{NodeContext, Verdict};
use crate::worker::Handle;
use std::io;
use std::path::Path;
use std::sync::{Arc, PoisonError};

/// The status before anything was loaded.
pub fn initial(config: &Config, node: &NodeName, source: &Path, workers: &[Handle]) -> Status {
    let engine = workers.first().map(|w| w.started().engine.clone()).unwrap_or_default();
    let ranks = std::iter::once("node".to_owned())
        .chain(config.topology.levels.iter().map(|l| l.name.to_string()))
        .chain(std::iter::once("cluster".to_owned()))
        .collect();
    Status {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        node: node.to_string(),
        instance: config.redirect.instance.clone(),
        pid: std::process::id(),
        engine: EngineStatus {
            name: "io_uring".to_owned(),
            why: engine,
        },
        workers: workers.len(),
        ranks,
        source: SourceStatus {
            kind: "file".to_owned(),
            location: source.display().to_string(),
            synced: false,
            errors: Vec::new(),
        },
        redirect: RedirectStatus {
            enabled: config.redirect.enabled,
            ..RedirectStatus::default()
        },
        warnings: config.warnings.clone(),
        ..Status::default()
    }
}

/// The source's errors, logged when they change.
pub fn source(control: &Control) {
    let errors: Vec<String> = control.source.errors().iter().map(ToString::to_string).collect();
    control.agent.update_status(|status| {
        for error in errors.iter().filter(|e| !status.source.errors.contains(e)) {
            control.agent.metrics.source_errors.inc();
            tracing::error!("{error}; the last good state stays in use");
        }
        for error in status.source.errors.iter().filter(|e| !errors.contains(e)) {
            tracing::info!("no longer wrong: {error}");
        }
        status.source.synced = true;
        status.source.errors = errors;
    });
}

/// Everything that follows from table, VIPs and redirection.
pub fn all(control: &Control) {
    let table = control.publisher.current();
    let conflicts = control.builder.conflicts();
    let context = NodeContext {
        name: control.node.clone(),
        node: None,
        levels: control.config.topology.levels.clone(),
        nodes: Arc::default(),
    };
    let mut services: Vec<ServicePortStatus> = table
        .iter()
        .map(|entry| service_port(entry, control, &context))
        .chain(conflicts.iter().flat_map(conflict))
        .collect();
    services.sort_by(|a, b| {
        let key = |s: &ServicePortStatus| (s.service.clone(), s.protocol.clone(), s.port.clone(), s.family.clone());
        key(a).cmp(&key(b))
    });
    let redirect = control.redirection.as_ref();
    let warnings = warnings(control);
    control.agent.update_status(|status| {
        for new in &services {
            let old = status
                .services
                .iter()
                .find(|s| s.vip == new.vip && s.protocol == new.protocol);
            if old.is_none_or(|old| old.state != new.state) {
                let reason = new.reason.as_deref().unwrap_or_default();
                tracing::info!(
                    service = new.service,
                    port = new.port,
                    protocol = new.protocol,
                    vip = new.vip,
                    "{} {reason}",
                    new.state
                );
            }
        }
        status.table_generation = table.generation;
        status.services = services;
        status.warnings = warnings;
        status.redirect.installed = redirect.is_some_and(|r| r.is_installed());
        status.redirect.table = redirect.map(|r| r.table()).unwrap_or_default();
        status.redirect.reason = redirect.and_then(|r| r.error().map(str::to_owned));
    });
    control.agent.update_condition(|condition| {
        condition.ready = match redirect {
            Some(r) if !r.is_installed() => Err(r.error().unwrap_or("the redirection is not installed").to_owned()),
            Some(r) if r.error().is_some() => Err(r.error().unwrap_or_default().to_owned()),
            _ => Ok(()),
        };
    });
}

fn service_port(entry: &ServicePortEntry, control: &Control, context: &NodeContext) -> ServicePortStatus {
    let (state, reason) = state_of(entry, control);
    let first = entry.tiers.first();
    ServicePortStatus {
        service: entry.key.service.to_string(),
        port: match entry.key.port_name.is_empty() {
            true => entry.key.port.to_string(),
            false => entry.key.port_name.to_string(),
        },
        protocol: entry.key.protocol.to_string(),
        family: IpFamily::of(entry.vip.address.ip()).to_string(),
        vip: entry.vip.address.to_string(),
        state,
        reason,
        rank: first.map(|tier| context.rank_name(tier.rank).to_owned()),
        endpoints: first.map_or(0, |tier| tier.len()),
        notices: entry.notices.into(),
    }
}

fn state_of(entry: &ServicePortEntry, control: &Control) -> (ServiceState, Option<String>) {
    if let Err(reason) = carried(entry) {
        return (ServiceState::Refused, Some(reason.to_owned()));
    }
    let trouble = control.redirection.as_ref().and_then(|r| r.error());
    match control.vips.phase(&entry.vip) {
        Some(Phase::Serving) if control.redirection.is_none() => {
            let reason = "redirect.enabled is false: only traffic sent to the socket itself arrives";
            (ServiceState::Off, Some(reason.to_owned()))
        }
        // What the table really holds is not known then.
        Some(Phase::Serving) if trouble.is_some() => (ServiceState::Waiting, trouble.map(str::to_owned)),
        Some(Phase::Serving) => (ServiceState::Intercepting, None),
        Some(Phase::Refused(reason, _)) => (ServiceState::Refused, Some(reason.clone())),
        _ if entry.verdict == Verdict::Reject => {
            let reason = "no endpoint could serve; kube-proxy rejects";
            (ServiceState::Waiting, Some(reason.to_owned()))
        }
        Some(_) => (ServiceState::Waiting, Some("sockets are being opened".to_owned())),
        None => {
            let reason = "its address family is not redirected on this node";
            (ServiceState::Refused, Some(reason.to_owned()))
        }
    }
}

fn conflict(conflict: &Conflict) -> impl Iterator<Item = ServicePortStatus> + '_ {
    conflict.losers.iter().map(|loser| ServicePortStatus {
        service: loser.to_string(),
        port: conflict.vip.address.port().to_string(),
        protocol: conflict.vip.protocol.to_string(),
        family: IpFamily::of(conflict.vip.address.ip()).to_string(),
        vip: conflict.vip.address.to_string(),
        state: ServiceState::Conflict,
        reason: Some(format!(
            "{} has the same address and port and was first",
            conflict.winner
        )),
        rank: None,
        endpoints: 0,
        notices: 0,
    })
}

/// What an operator should know: settings without effect, a node that is not in the cluster state, bypassed traffic.
fn warnings(control: &Control) -> Vec<String> {
    let mut warnings = control.config.warnings.clone();
    let store = control.agent.store.read().unwrap_or_else(PoisonError::into_inner);
    if store.node(&control.node).is_none() {
        warnings.push(format!(
            "node {} is not in the cluster state: endpoints on it rank as `node`, but no zone or other level can match; \
             check the spelling of `node` or NODE_NAME",
            control.node
        ));
    }
    for service in control.config.select.services.iter() {
        if store.get(service).is_none_or(|s| s.service().is_none()) {
            warnings.push(format!("select.services: Service {service} does not exist"));
        }
    }
    warnings.extend(bypassed(&control.bypassed));
    warnings
}

/// The reasons for which kube-proxy got traffic of taken services, with their counts.
fn bypass_reasons(c: &RedirectCounters) -> [(&'static str, u64); 3] {
    [
        ("lease_expired", c.lease_expired),
        ("no_socket", c.no_socket),
        ("host_lease_expired", c.host_lease_expired),
    ]
}

/// Tells what kube-proxy got since the counters were last read; true if there was any. A table that was installed anew
/// starts from zero.
pub fn bypass(agent: &Agent, before: RedirectCounters, now: RedirectCounters) -> bool {
    let mut any = false;
    for ((reason, before), (_, now)) in bypass_reasons(&before).into_iter().zip(bypass_reasons(&now)) {
        let new = if now < before { now } else { now - before };
        if new > 0 {
            any = true;
            agent.metrics.bypassed(reason).inc_by(new);
            tracing::warn!(packets = new, reason, "kube-proxy got packets of taken services");
        }
    }
    any
}

/// What went to kube-proxy since the table was installed, in words.
fn bypassed(counters: &RedirectCounters) -> Option<String> {
    let reasons = bypass_reasons(counters);
    let packets: u64 = reasons.iter().map(|(_, n)| n).sum();
    let told: Vec<String> = reasons
        .iter()
        .filter(|(_, n)| *n > 0)
        .map(|(r, n)| format!("{r} {n}"))
        .collect();
    (packets > 0).then(|| {
        format!(
            "{packets} packets of taken services went to kube-proxy since the redirection was installed ({})",
            told.join(", ")
        )
    })
}

/// Why a VIP's socket could not be made, and what to do.
pub fn open_error(vip: Vip, error: &io::Error) -> String {
    let advice = match error.raw_os_error() {
        Some(libc::EADDRINUSE) => {
            "another process on this node has the port on this address or on all addresses; make it listen on single \
             addresses, or stop it"
        }
        Some(libc::EPERM | libc::EACCES) => {
            "give the process CAP_NET_ADMIN (transparent sockets) and CAP_NET_BIND_SERVICE"
        }
        Some(libc::EMFILE | libc::ENFILE) => "raise the limit on open files",
        _ => "kube-proxy serves it meanwhile",
    };
    format!("cannot open {}/{}: {error}; {advice}", vip.address, vip.protocol)
}
