//! `nodeward config`: the default file, or a verdict on one.

use super::{CliError, CliResult, print};
use crate::config::{Config, DEFAULT_FILE};
use std::path::PathBuf;

/// Print the commented default configuration, or validate a file.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  nodeward config --defaults > config.yaml\n  nodeward config --config config.yaml")]
#[group(required = true, multiple = false)]
pub struct Args {
    /// Print the default file: every key with its meaning, default and unit.
    #[arg(long)]
    defaults: bool,
    /// Validate this file; touches nothing else. (`check` also looks at the machine.)
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

pub fn run(args: &Args) -> CliResult {
    let Some(path) = &args.config else {
        print(DEFAULT_FILE)?;
        return Ok(true);
    };
    let config = Config::load(path).map_err(CliError::usage)?;
    for warning in &config.warnings {
        print(&format!("warning: {warning}"))?;
    }
    print(&format!("{}: valid", path.display()))?;
    Ok(true)
}
