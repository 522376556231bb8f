//! `nodeward version`.

use super::{CliResult, Output, print_as};
use serde::Serialize;

/// Print the version.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  nodeward version -o json")]
pub struct Args {
    /// How to print.
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
}

#[derive(Debug, Serialize)]
struct Version {
    version: &'static str,
    profile: &'static str,
    os: &'static str,
    architecture: &'static str,
}

pub fn run(args: &Args) -> CliResult {
    let version = Version {
        version: env!("CARGO_PKG_VERSION"),
        profile: if cfg!(debug_assertions) { "debug" } else { "release" },
        os: std::env::consts::OS,
        architecture: std::env::consts::ARCH,
    };
    print_as(args.output, &version, |v| {
        format!(
            "nodeward {} ({} build, {}-{})",
            v.version, v.profile, v.os, v.architecture
        )
    })?;
    Ok(true)
}
