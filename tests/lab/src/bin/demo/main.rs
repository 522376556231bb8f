//! `demo`: a DNS DaemonSet in three nodes and two zones, rolled, thinned out, killed, while a pod keeps asking; then
//! Nodeward itself is killed. Prints what the client saw, and what it would have seen without Nodeward.
//!
//! Exit code 0 when every promise held, 1 when one was broken or the demo could not run, 2 for wrong usage.

mod account;
mod load;
mod phases;
mod stage;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use account::Account;
use clap::Parser;
use nodeward_lab::{Error, Lab, Leftovers, Result};
use stage::Stage;

/// Shows Nodeward at work in network namespaces: no cluster needed, nothing left behind.
///
/// Needs root, or: unshare --user --map-root-user --net --mount COMMAND
#[derive(Parser)]
#[command(name = "demo")]
struct Options {
    /// Print one JSON object as the last line
    #[arg(long)]
    json: bool,
    /// The `nodeward` binary; by default the one beside this program
    #[arg(long, value_name = "FILE")]
    nodeward: Option<PathBuf>,
    /// The `nodeward-loadgen` binary; by default the one beside this program
    #[arg(long, value_name = "FILE")]
    loadgen: Option<PathBuf>,
    /// Queries per second in the phases of planned change
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(50..=20_000))]
    rate: u32,
    /// Queries per second while Nodeward is killed
    #[arg(long, default_value_t = 2000, value_parser = clap::value_parser!(u32).range(50..=20_000))]
    kill_rate: u32,
    /// Keep the directory with every process's output and say where it is
    #[arg(long)]
    keep: bool,
}

/// How long the killed process's table, sockets and children may take to vanish.
const VANISH: Duration = Duration::from_secs(3);

fn main() -> ExitCode {
    let options = Options::parse();
    match run(&options) {
        Ok(kept) => ExitCode::from(u8::from(!kept)),
        Err(error) => {
            eprintln!("demo: {error}");
            ExitCode::from(1)
        }
    }
}

/// Plays everything; returns whether every promise was kept.
fn run(options: &Options) -> Result<bool> {
    Lab::require()?;
    let nodeward = beside(&options.nodeward, "nodeward")?;
    let loadgen = beside(&options.loadgen, "nodeward-loadgen")?;
    let mut account = Account::default();
    account.say(
        "Three nodes in two zones: n1 and n2 in za, n3 in zb. DNS is a DaemonSet; kube-proxy's stand-in is on n1.",
    );
    let mut stage = Stage::build(&nodeward, &loadgen, options.rate)?;
    if options.keep {
        account.say(&format!(
            "Everything the processes print is in {}",
            stage.lab.keep_directory().display()
        ));
    }
    phases::planned(&mut stage, &mut account)?;
    phases::endpoint_killed(&mut stage, &mut account)?;
    phases::changes_applied(&stage, &mut account)?;
    phases::nodeward_killed(&mut stage, &mut account, options.kill_rate)?;
    let mut left = stage.lab.leftovers_within(VANISH, &stage.vips())?;
    phases::without_nodeward(&mut stage, &mut account)?;
    left.add(stage.lab.finish()?);
    report_leftovers(&mut account, &left);
    match account.broken().len() {
        0 => account.say("Every promise was kept."),
        n => account.say(&format!("{n} promises were broken.")),
    }
    if options.json {
        println!("{}", account.json(left.count())?);
    }
    Ok(account.broken().is_empty())
}

fn report_leftovers(account: &mut Account, left: &Leftovers) {
    account.say("");
    match left.count() {
        0 => account.say("Left behind: no table, set element, socket, process or namespace."),
        n => account.broke(format!("{n} things left behind: {left:#?}")),
    }
    let inert = left.inert_rules.len() + left.inert_routes.len();
    if inert > 0 {
        account.say(&format!(
            "Inert, reused by the next start: {inert} routing rules and routes:"
        ));
        left.inert_rules
            .iter()
            .chain(&left.inert_routes)
            .for_each(|r| account.say(&format!("  {r}")));
    }
}

/// The binary given, or the one in this program's own directory.
fn beside(given: &Option<PathBuf>, name: &str) -> Result<PathBuf> {
    let path = match given {
        Some(path) => std::path::absolute(path).unwrap_or_else(|_| path.clone()),
        None => std::env::current_exe()
            .map_err(Error::io("find this program"))?
            .with_file_name(name),
    };
    if path.is_file() {
        return Ok(path);
    }
    Err(Error::other(format!(
        "no `{name}` at {}; run `cargo build --workspace --bins`, or say where it is with --{}",
        path.display(),
        name.trim_start_matches("nodeward-")
    )))
}
