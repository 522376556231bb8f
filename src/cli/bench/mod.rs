//! `nodeward bench`: measures parts of this program on this machine.

mod input;
mod table;

use super::CliResult;

/// Measure parts of Nodeward on this machine.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    Table(table::Args),
}

pub fn run(args: &Args) -> CliResult {
    match &args.what {
        What::Table(args) => table::command(args),
    }
}
