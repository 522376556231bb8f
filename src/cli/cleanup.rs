//! `nodeward cleanup`: removes what dead instances left on the node.

use super::CliError;
use crate::redirect::{CleanupError, cleanup};
use std::io::{self, Write};
use std::process::ExitCode;

/// Remove what dead instances left on this node: nft tables, ip rules, routes. Living instances are left alone.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  nodeward cleanup\n\nA dead instance's table is gone already; inert ip rules and routes may remain."
)]
pub struct Args {
    /// Only this instance's table (rules and routes bear no instance's name).
    #[arg(long, value_name = "NAME")]
    instance: Option<String>,
    /// The nft program.
    #[arg(long, value_name = "PROGRAM", default_value = "nft")]
    nft: String,
    /// Print one JSON object.
    #[arg(short, long = "output", value_name = "FORMAT", value_parser = ["text", "json"], default_value = "text")]
    output: String,
}

/// Runs the command.
pub fn command(args: &Args) -> Result<ExitCode, CliError> {
    let json = args.output == "json";
    run(&args.nft, args.instance.as_deref(), json, &mut io::stdout().lock()).map_err(CliError::failed)
}

/// Cleans up and says what was done, as text or as one JSON object. `nft` is the nft program. Exit 0 if nothing dead is
/// left, 1 if something could not be removed or the instance named is alive, 2 for a bad id.
///
/// # Errors
/// The output cannot be written, or no runtime can be made.
pub fn run(nft: &str, instance: Option<&str>, json: bool, out: &mut impl Write) -> io::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let cleaned = match runtime.block_on(cleanup(nft, instance)) {
        Ok(cleaned) => cleaned,
        Err(e) => {
            eprintln!("{e}");
            return Ok(ExitCode::from(if matches!(e, CleanupError::Instance(_)) {
                2
            } else {
                1
            }));
        }
    };
    if json {
        serde_json::to_writer_pretty(&mut *out, &cleaned)?;
        writeln!(out)?;
        return Ok(ExitCode::SUCCESS);
    }
    for what in &cleaned.removed {
        writeln!(out, "removed {what}")?;
    }
    for what in &cleaned.kept {
        writeln!(out, "kept    {what} (in use)")?;
    }
    if cleaned.removed.is_empty() {
        writeln!(out, "nothing to remove")?;
    }
    Ok(ExitCode::SUCCESS)
}
