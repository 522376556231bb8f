//! The `nodeward` binary: parses the command line and dispatches.

use std::process::ExitCode;

fn main() -> ExitCode {
    // The redirection's holder is this program again; it must start before anything else makes threads or reads files.
    match nodeward::redirect::holder::dispatch(std::env::args_os()) {
        Some(code) => code,
        None => nodeward::cli::main(),
    }
}
