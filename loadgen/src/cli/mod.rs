//! The command line: options in, library calls, tables and JSON out. Exit codes: 0 fine, 1 failed, 2 wrong usage.

mod dns;
mod load;
mod output;
mod serve;
mod statsd;
mod udp;

use clap::{Parser, Subcommand};
use nix::sys::signal::{SigSet, Signal};
use nodeward_loadgen::Error;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Open-loop load generator for UDP services, with exact accounting.
///
/// Queries are sent on a fixed schedule whether or not earlier ones were answered; latency counts from the intended
/// send time. Exit code 0: fine. 1: more failures than --max-failed, no answer at all, or the system refused
/// something. 2: wrong usage.
#[derive(Parser)]
#[command(version, max_term_width = 120)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Dns(dns::Args),
    Udp(udp::Args),
    Statsd(statsd::Args),
    #[command(subcommand)]
    Serve(serve::Command),
}

/// Runs the command line.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    let result = match cli.command {
        Command::Dns(args) => dns::run(args),
        Command::Udp(args) => udp::run(args),
        Command::Statsd(args) => statsd::run(args),
        Command::Serve(command) => serve::run(command),
    };
    match result {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            match error.downcast_ref::<Error>() {
                Some(Error::Option { .. }) => ExitCode::from(2),
                _ => ExitCode::from(1),
            }
        }
    }
}

/// Blocks SIGINT and SIGTERM in this thread and those it starts from now on. Call before starting any thread.
fn block_signals() -> anyhow::Result<SigSet> {
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGINT);
    signals.add(Signal::SIGTERM);
    signals.thread_block()?;
    Ok(signals)
}

/// Sets the flag at the first SIGINT or SIGTERM; the second one ends the process.
fn stop_on_signal() -> anyhow::Result<Arc<AtomicBool>> {
    let signals = block_signals()?;
    let stop = Arc::new(AtomicBool::new(false));
    let flag = stop.clone();
    std::thread::spawn(move || {
        if signals.wait().is_ok() {
            flag.store(true, Ordering::Relaxed);
            eprintln!("stopping; waiting for outstanding queries (once more to quit at once)");
        }
        if signals.wait().is_ok() {
            std::process::exit(1);
        }
    });
    Ok(stop)
}
