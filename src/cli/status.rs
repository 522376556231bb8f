//! `nodeward status`: what the agent serves and what it does not, in words.

use super::live::{Live, ask};
use super::{CliError, CliResult, Output, print_as};
use crate::telemetry::status::Status;

/// Show what the running agent serves, what it does not, and why.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  nodeward status")]
pub struct Args {
    #[command(flatten)]
    live: Live,
    /// How to print.
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
}

pub fn run(args: &Args) -> CliResult {
    let answer = ask(&args.live.path(None), "/v1/status")?;
    let status: Status = serde_json::from_slice(&answer.body)
        .map_err(|e| CliError::failed(format!("the agent's answer cannot be read (another version?): {e}")))?;
    print_as(args.output, &status, Status::to_text)?;
    Ok(true)
}
