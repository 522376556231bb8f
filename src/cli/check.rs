//! `nodeward check`: validates configuration and manifests, examines the node and prints the verdict. Never binds, never
//! installs.

use super::from;
use super::{CliError, CliResult, Output, print_as};
use crate::config::Config;
use crate::engine::io_uring::{Config as EngineConfig, Uring};
use crate::net::wake::Waker;
use crate::redirect::RedirectConfig;
use crate::redirect::verdict::{Finding, Severity, Verdict, examine};
use crate::store::Store;
use std::io::{self, Write};
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::ExitCode;

/// Validate the configuration and its manifests, and see whether this node can carry them. Changes nothing.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  nodeward check --config /etc/nodeward/config.yaml\n\nExit status 1: the node cannot carry it, the fix is printed. 2: the configuration or a manifest is wrong."
)]
pub struct Args {
    /// The configuration file.
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// How to print.
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
}

/// Runs the command.
pub fn command(args: &Args) -> CliResult {
    let config = Config::load(&args.config).map_err(CliError::usage)?;
    config.require_node(&args.config).map_err(CliError::usage)?;
    let store = match &config.source_file {
        Some(path) => from::load(path)?,
        None => Store::new(),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(CliError::failed)?;
    let mut findings = configuration(&config, &store);
    findings.push(engine());
    let seen = runtime.block_on(examine(&(&config.redirect).into(), &vips(&config, &store)));
    findings.extend(seen.findings);
    let verdict = Verdict {
        verdict: findings.iter().map(|f| f.severity).max().unwrap_or(Severity::Ok),
        findings,
    };
    print_as(args.output, &verdict, Verdict::to_string)?;
    Ok(verdict.verdict != Severity::Refuse)
}

/// What the configuration is good for.
fn configuration(config: &Config, store: &Store) -> Vec<Finding> {
    let finding = |severity, message: String, fix: Option<&str>| Finding {
        check: "configuration",
        severity,
        message,
        fix: fix.map(str::to_owned),
    };
    let warnings = config.warnings.iter();
    let mut findings: Vec<_> = warnings.map(|w| finding(Severity::Warning, w.clone(), None)).collect();
    if config.source_file.is_none() {
        let message = "no source of Services: `run` will not start".into();
        findings.push(finding(Severity::Refuse, message, Some("set source.file.path")));
    }
    if config.select.is_empty() {
        let message = "no Service is selected: nothing will be taken over".into();
        let fix = "name Services in select.services, select.labelSelector or select.serviceProxyName";
        findings.push(finding(Severity::Warning, message, Some(fix)));
    }
    for name in &config.select.services {
        if store.get(name).and_then(|s| s.service()).is_none() && config.source_file.is_some() {
            let message = format!("select.services: there is no Service {name} yet");
            findings.push(finding(Severity::Warning, message, None));
        }
    }
    if findings.is_empty() {
        let taken = store.services().filter_map(|(_, s)| s.service());
        let taken = taken.filter(|s| config.select.selects(s).taken()).count();
        findings.push(finding(
            Severity::Ok,
            format!("valid, Services selected now: {taken}"),
            None,
        ));
    }
    findings
}

/// Whether io_uring can be had: a small ring is made and thrown away.
fn engine() -> Finding {
    let small = EngineConfig {
        sq_entries: 8,
        cq_entries: 16,
        buffers: 8,
        max_sockets: 8,
    };
    let made = Waker::new().map_err(|e| e.to_string()).and_then(|waker| {
        let ring = Uring::new(small, waker).map_err(|e| e.to_string())?;
        Ok(format!("io_uring ({})", ring.flags()))
    });
    let (severity, message, fix) = match made {
        Ok(message) => (Severity::Ok, message, None),
        Err(message) => (
            Severity::Refuse,
            message,
            Some("there is no other engine yet".to_owned()),
        ),
    };
    Finding {
        check: "engine",
        severity,
        message,
        fix,
    }
}

/// The addresses that would be taken over.
fn vips(config: &Config, store: &Store) -> Vec<IpAddr> {
    let services = store.services().filter_map(|(_, state)| state.service());
    let taken = services.filter(|s| s.is_proxied() && config.select.selects(s).taken());
    taken.flat_map(|s| s.cluster_ips.iter().map(|(_, ip)| *ip)).collect()
}

/// Prints the verdict on this node alone, as text or as one JSON object. Exit 0 if the node can carry the redirection (warnings
/// included), 1 if not.
///
/// # Errors
/// The output cannot be written, or no runtime can be made.
pub fn run(config: &RedirectConfig, vips: &[IpAddr], json: bool, out: &mut impl Write) -> io::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let verdict = runtime.block_on(examine(config, vips));
    if json {
        serde_json::to_writer_pretty(&mut *out, &verdict)?;
        writeln!(out)?;
    } else {
        write!(out, "{verdict}")?;
    }
    Ok(if verdict.verdict == Severity::Refuse {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}
