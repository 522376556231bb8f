//! `nodeward dump`: the agent's cluster state, as a file that `--from` reads.

use super::live::{Live, ask};
use super::{CliError, CliResult, print};

/// Print the running agent's whole cluster state as JSON, for `--from` and for bug reports.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  nodeward dump > state.json")]
pub struct Args {
    #[command(flatten)]
    live: Live,
}

pub fn run(args: &Args) -> CliResult {
    let answer = ask(&args.live.path(None), "/v1/dump")?;
    print(std::str::from_utf8(&answer.body).map_err(CliError::failed)?)?;
    Ok(true)
}
