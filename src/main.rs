//! The `nodeward` binary: parses the command line and dispatches.

use std::process::ExitCode;

fn main() -> ExitCode {
    #[cfg(feature = "dataplane")]
    if let Some(code) = nodeward::redirect::holder::dispatch(std::env::args_os()) {
        return code;
    }
    ExitCode::SUCCESS
}
