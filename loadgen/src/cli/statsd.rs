//! `nodeward-loadgen statsd`.

use super::load::{duration, progress};
use nodeward_loadgen::client::{Load, Ports};
use nodeward_loadgen::statsd::{self, Config};
use std::net::{IpAddr, SocketAddr};
use std::process::ExitCode;

/// Send statsd metrics that nobody answers; their values are sequence numbers.
///
/// `serve statsd` says which of them arrived. Each socket is a sender with numbers of its own.
#[derive(clap::Args)]
#[command(after_help = "Examples:
    nodeward-loadgen statsd --server 10.96.0.20:8125 --rate 50000 --clients 8
    nodeward-loadgen statsd --server 10.96.0.20:8125 --rate 1000 --size 64,512,1432,8932 --json")]
pub struct Args {
    /// Address to send to
    #[arg(long, value_name = "IP:PORT")]
    server: SocketAddr,
    /// Datagrams per second
    #[arg(long, value_name = "N", default_value_t = 100.0, allow_negative_numbers = true)]
    rate: f64,
    /// Seconds to send for
    #[arg(long, value_name = "S", default_value_t = 10.0, allow_negative_numbers = true)]
    duration: f64,
    /// Number of senders, each with its own socket
    #[arg(long, value_name = "N", default_value_t = 8)]
    clients: usize,
    /// UDP payload sizes, bytes, used in turn; at least 51
    #[arg(long, value_name = "BYTES,...", value_delimiter = ',', default_value = "64")]
    size: Vec<usize>,
    /// Source address
    #[arg(long, value_name = "IP")]
    bind: Option<IpAddr>,
    /// Sending threads
    #[arg(long, value_name = "N", default_value_t = 1)]
    threads: usize,
    /// CPU of each thread
    #[arg(long, value_name = "CPU,...", value_delimiter = ',')]
    pin: Vec<usize>,
    /// Spin for the last 50 µs before each send: more exact, costs CPU
    #[arg(long)]
    spin: bool,
    /// Length of a timeline interval [default: 100]
    #[arg(long, value_name = "MS")]
    interval: Option<f64>,
    /// Print one JSON object (schema: README) instead of the table
    #[arg(long)]
    json: bool,
    /// Show running totals on standard error each second
    #[arg(long)]
    progress: bool,
    /// Exit with 1 when the system refused more datagrams than this
    #[arg(long, value_name = "N")]
    max_failed: Option<u64>,
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let mut load = Load::new(args.server);
    load.rate = args.rate;
    load.duration = duration("duration", args.duration, 1.0)?;
    load.ports = Ports::Fixed { clients: args.clients };
    load.bind = args.bind;
    load.threads = args.threads;
    load.pin = args.pin;
    load.spin = args.spin;
    load.interval = args.interval.map(|ms| duration("interval", ms, 1e-3)).transpose()?;
    load.stop = Some(super::stop_on_signal()?);
    load.live = args.progress.then(progress);
    let report = statsd::run(&Config { load, sizes: args.size })?;
    super::output::finish_oneway(&report, args.json, args.max_failed)
}
