//! `nodeward run`: the agent.

use super::{CliError, CliResult};
use crate::config::Config;
use crate::control::{self, RunError};
use crate::telemetry::log;
use std::path::PathBuf;

/// Serve the selected Services on this node until told to stop.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  NODE_NAME=node-1 nodeward run --config /etc/nodeward/config.yaml\n\nSIGTERM hands new \
                        flows to kube-proxy, delivers the answers under way and ends; a second one ends at once."
)]
pub struct Args {
    /// The configuration file (`nodeward config --defaults` prints one).
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
}

/// Runs the command.
pub fn run(args: &Args) -> CliResult {
    let config = Config::load(&args.config).map_err(CliError::usage)?;
    log::start(&config.log.level, config.log.format).map_err(CliError::failed)?;
    match control::run(config, &args.config) {
        Ok(()) => Ok(true),
        Err(e @ (RunError::Config(_) | RunError::NoSource(_) | RunError::Source(_))) => Err(CliError::usage(e)),
        Err(e) => Err(CliError::failed(e)),
    }
}
