//! The `nodeward` binary: parses the command line and dispatches.

fn main() -> std::process::ExitCode {
    nodeward::cli::main()
}
