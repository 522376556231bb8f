//! The `nodeward` binary: parses the command line and dispatches.

mod cli;

fn main() -> std::process::ExitCode {
    cli::main()
}
