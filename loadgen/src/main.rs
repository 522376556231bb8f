//! `nodeward-loadgen`: the load generator's command line. Everything it does is in the library.

mod cli;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::main()
}
