//! `nodeward-loadgen udp`.

use super::load::LoadArgs;
use nodeward_loadgen::udp::{self, Config};
use std::process::ExitCode;

/// Send numbered datagrams to a server that returns them and check every byte.
///
/// The server is `serve udp`, or any that sends back what it got.
#[derive(clap::Args)]
#[command(after_help = "Examples:
    nodeward-loadgen udp --server 10.96.0.30:9000 --rate 20000 --ports fixed --clients 64 --size 100
    nodeward-loadgen udp --server 10.96.0.30:9000 --rate 500 --size 8932 --max-failed 0 --json")]
pub struct Args {
    #[command(flatten)]
    load: LoadArgs,
    /// UDP payload of each request, bytes, at least 24
    #[arg(long, value_name = "BYTES", default_value_t = 64)]
    size: usize,
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let load = args.load.load(super::stop_on_signal()?)?;
    let report = udp::run(&Config { load, size: args.size })?;
    super::output::finish(&report, args.load.json, args.load.max_failed)
}
