//! Options every request/response client has.

use clap::ValueEnum;
use nodeward_loadgen::Error;
use nodeward_loadgen::client::{Live, Load, Ports, Retransmit};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum PortsArg {
    /// A new socket and port for each query (each pair)
    Fresh,
    /// --clients sockets, used in turn
    Fixed,
}

/// Options of the load.
#[derive(clap::Args)]
pub struct LoadArgs {
    /// Address to send to
    #[arg(long, value_name = "IP:PORT")]
    pub server: SocketAddr,
    /// Queries per second
    #[arg(long, value_name = "N", default_value_t = 100.0, allow_negative_numbers = true)]
    rate: f64,
    /// Seconds to send for
    #[arg(long, value_name = "S", default_value_t = 10.0, allow_negative_numbers = true)]
    duration: f64,
    /// Client ports
    #[arg(long, value_enum, default_value = "fresh")]
    ports: PortsArg,
    /// Number of sockets, with --ports fixed [default: 64]
    #[arg(long, value_name = "N")]
    clients: Option<usize>,
    /// A query without a right answer after this time has failed [default: 2000, or
    /// what --retransmit says: glibc 10000, musl 5000, c-ares 14000, times of your own 2000 after the last]
    #[arg(long, value_name = "MS")]
    timeout: Option<f64>,
    /// When to send an unanswered query again: none, glibc (5 s), musl (2.5 s), c-ares (2 s, 6 s), or times after the
    /// first send in ms, such as 100,300
    #[arg(long, value_name = "HABIT", default_value = "none", value_parser = retransmit)]
    retransmit: Retransmit,
    /// How long finished queries are remembered to recognise duplicate and late answers
    #[arg(long, value_name = "MS", default_value_t = 500.0)]
    linger: f64,
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
    /// Open sockets at most, with --ports fresh [default: limit of open files, at most 16384]
    #[arg(long, value_name = "N")]
    max_sockets: Option<usize>,
    /// Receive buffer of each socket, bytes [default: the system's; 4 MiB with --ports fixed]
    #[arg(long, value_name = "BYTES")]
    receive_buffer: Option<usize>,
    /// Print one JSON object (schema: README) instead of the table
    #[arg(long)]
    pub json: bool,
    /// Show running totals on standard error each second
    #[arg(long)]
    progress: bool,
    /// Exit with 1 when more queries than this failed
    #[arg(long, value_name = "N")]
    pub max_failed: Option<u64>,
}

fn retransmit(text: &str) -> Result<Retransmit, String> {
    match text {
        "none" => Ok(Retransmit::None),
        "glibc" => Ok(Retransmit::Glibc),
        "musl" => Ok(Retransmit::Musl),
        "c-ares" => Ok(Retransmit::CAres),
        times => {
            let parse = |ms: &str| {
                ms.trim()
                    .parse::<f64>()
                    .ok()
                    .and_then(|ms| Duration::try_from_secs_f64(ms / 1e3).ok())
            };
            let times: Option<Vec<_>> = times.split(',').map(parse).collect();
            times
                .map(Retransmit::After)
                .ok_or_else(|| "give none, glibc, musl, c-ares or times in ms".to_owned())
        }
    }
}

/// A duration from an option in seconds or milliseconds.
pub fn duration(option: &'static str, value: f64, unit_s: f64) -> Result<Duration, Error> {
    Duration::try_from_secs_f64(value * unit_s).map_err(|e| Error::Option {
        option,
        message: format!("{value} is no usable time: {e}"),
    })
}

impl LoadArgs {
    /// The library's form of the options; `stop` ends the sending early.
    pub fn load(&self, stop: Arc<AtomicBool>) -> Result<Load, Error> {
        let ms = |option, value: Option<f64>| value.map(|ms| duration(option, ms, 1e-3)).transpose();
        let refuse = |option, message: &str| {
            Err(Error::Option {
                option,
                message: message.to_owned(),
            })
        };
        let ports = match self.ports {
            PortsArg::Fresh if self.clients.is_some() => {
                return refuse("clients", "is for --ports fixed; fresh ports have one client per query");
            }
            PortsArg::Fixed if self.max_sockets.is_some() => {
                return refuse(
                    "max-sockets",
                    "is for --ports fresh; fixed ports have --clients sockets",
                );
            }
            PortsArg::Fresh => Ports::Fresh,
            PortsArg::Fixed => Ports::Fixed {
                clients: self.clients.unwrap_or(64),
            },
        };
        if self.max_sockets == Some(0) {
            return refuse("max-sockets", "must be at least 1");
        }
        Ok(Load {
            server: self.server,
            rate: self.rate,
            duration: duration("duration", self.duration, 1.0)?,
            ports,
            timeout: ms("timeout", self.timeout)?,
            retransmit: self.retransmit.clone(),
            linger: duration("linger", self.linger, 1e-3)?,
            bind: self.bind,
            threads: self.threads,
            pin: self.pin.clone(),
            spin: self.spin,
            interval: ms("interval", self.interval)?,
            max_sockets: self.max_sockets.unwrap_or(0),
            receive_buffer: self.receive_buffer.unwrap_or(0),
            live: self.progress.then(progress),
            stop: Some(stop),
        })
    }
}

/// Running totals, printed each second until the process ends.
pub fn progress() -> Arc<Live> {
    let live = Arc::new(Live::default());
    let shown = live.clone();
    std::thread::spawn(move || {
        let mut before = (0, 0, 0);
        for second in 1.. {
            std::thread::sleep(Duration::from_secs(1));
            let now = (
                shown.sent.load(Ordering::Relaxed),
                shown.answered.load(Ordering::Relaxed),
                shown.failed.load(Ordering::Relaxed),
            );
            eprintln!(
                "{second:>5} s  sent {:>9} (+{:<7}) answered {:>9} (+{:<7}) failed {:>7} (+{})",
                now.0,
                now.0 - before.0,
                now.1,
                now.1 - before.1,
                now.2,
                now.2 - before.2
            );
            before = now;
        }
    });
    live
}
