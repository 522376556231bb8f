//! The command line: one file per subcommand, each with its arguments, its help and one function that runs it.
//!
//! Exit codes: 0 fine, 1 failed, 2 wrong usage or input. Results go to standard output, everything else to standard
//! error. Nothing here decides anything about traffic.

#[cfg(feature = "dataplane")]
mod bench;
pub mod check;
pub mod cleanup;
mod config;
mod dump;
mod endpoints;
mod explain;
mod from;
mod live;
mod probe;
mod render;
mod run;
mod services;
mod status;
mod version;

use clap::{Parser, Subcommand, ValueEnum};
use std::fmt::Display;
use std::io::Write;
use std::process::ExitCode;

/// Node-local L4 dataplane for Kubernetes Services: local endpoint first, then zone, then cluster; fails open to
/// kube-proxy.
#[derive(Debug, Parser)]
#[command(name = "nodeward", version, max_term_width = 100, disable_help_subcommand = true)]
#[command(
    after_help = "Exit status: 0 fine, 1 failed, 2 wrong usage or input.\n`nodeward COMMAND --help` shows an example."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Run(run::Args),
    Check(check::Args),
    Explain(explain::Args),
    Services(services::Args),
    Endpoints(endpoints::Args),
    Status(status::Args),
    Dump(dump::Args),
    Probe(probe::Args),
    Cleanup(cleanup::Args),
    #[cfg(feature = "dataplane")]
    Bench(bench::Args),
    Config(config::Args),
    Version(version::Args),
}

/// Why a command did not do what was asked.
#[derive(Debug)]
pub enum CliError {
    /// Wrong usage or input: exit status 2.
    Usage(String),
    /// Everything else: exit status 1.
    Failed(String),
}

impl CliError {
    /// Wrong usage or input.
    pub fn usage(e: impl Display) -> Self {
        Self::Usage(e.to_string())
    }

    /// Any other failure.
    pub fn failed(e: impl Display) -> Self {
        Self::Failed(e.to_string())
    }
}

/// What a command returns: `Ok(true)` is exit status 0, `Ok(false)` 1 (it said why itself).
pub type CliResult = Result<bool, CliError>;

/// How results are printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// For people.
    #[default]
    Text,
    /// One JSON document.
    Json,
    /// One YAML document.
    Yaml,
}

/// Prints a result. A reader that went away (`| head`) is no error.
pub fn print(text: &str) -> Result<(), CliError> {
    let mut out = std::io::stdout().lock();
    let written = out
        .write_all(text.as_bytes())
        .and_then(|()| {
            if text.ends_with('\n') {
                Ok(())
            } else {
                out.write_all(b"\n")
            }
        })
        .and_then(|()| out.flush());
    match written {
        Err(e) if e.kind() != std::io::ErrorKind::BrokenPipe => Err(CliError::failed(format!("standard output: {e}"))),
        _ => Ok(()),
    }
}

/// Prints `value` as `output` says; `text` makes the form for people.
pub fn print_as<T: serde::Serialize>(
    output: Output,
    value: &T,
    text: impl FnOnce(&T) -> String,
) -> Result<(), CliError> {
    match output {
        Output::Text => print(&text(value)),
        Output::Json => print(&serde_json::to_string_pretty(value).map_err(CliError::failed)?),
        Output::Yaml => print(&serde_saphyr::to_string(value).map_err(CliError::failed)?),
    }
}

/// Parses the command line, runs the command, and says what went wrong.
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(e) => {
            let code = if e.use_stderr() { 2 } else { 0 };
            // Nothing is left to do where even this cannot be printed.
            let _ = e.print();
            return ExitCode::from(code);
        }
    };
    let result = match cli.command {
        Command::Run(args) => run::run(&args),
        Command::Check(args) => check::command(&args),
        Command::Explain(args) => explain::run(&args),
        Command::Services(args) => services::run(&args),
        Command::Endpoints(args) => endpoints::run(&args),
        Command::Status(args) => status::run(&args),
        Command::Dump(args) => dump::run(&args),
        Command::Probe(args) => probe::run(&args),
        Command::Cleanup(args) => match cleanup::command(&args) {
            Ok(code) => return code,
            Err(e) => Err(e),
        },
        #[cfg(feature = "dataplane")]
        Command::Bench(args) => bench::run(&args),
        Command::Config(args) => config::run(&args),
        Command::Version(args) => version::run(&args),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(CliError::Usage(message)) => complain(&message, 2),
        Err(CliError::Failed(message)) => complain(&message, 1),
    }
}

fn complain(message: &str, code: u8) -> ExitCode {
    // eprintln! would panic where standard error is closed.
    let _ = writeln!(std::io::stderr(), "nodeward: {message}");
    ExitCode::from(code)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    /// Every visible command explains itself and shows an example.
    #[test]
    fn every_command_has_help_and_an_example() {
        fn check(command: &clap::Command, path: &str) {
            for sub in command.get_subcommands().filter(|s| !s.is_hide_set()) {
                let path = format!("{path} {}", sub.get_name());
                assert!(sub.get_about().is_some(), "{path} has no description");
                if sub.get_subcommands().next().is_none() {
                    let help = sub.get_after_help().map(ToString::to_string).unwrap_or_default();
                    assert!(help.contains(&path), "{path} shows no example");
                }
                check(sub, &path);
            }
        }
        check(&Cli::command(), "nodeward");
    }
}
