//! `nodeward check`: examines the node and prints the verdict. Never binds, never installs.

use crate::redirect::RedirectConfig;
use crate::redirect::verdict::{Severity, examine};
use std::io::{self, Write};
use std::net::IpAddr;
use std::process::ExitCode;

/// Prints the verdict on this node, as text or as one JSON object. Exit 0 if the node can carry the redirection (warnings
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
