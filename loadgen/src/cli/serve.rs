//! `nodeward-loadgen serve`: servers that print what they counted when they are stopped.

use clap::Subcommand;
use nix::sys::signal::SigSet;
use nodeward_loadgen::dns::rcode_from;
use nodeward_loadgen::serve::{self, Behaviour, Server};
use serde::Serialize;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::process::ExitCode;
use std::time::Duration;

/// Answer load, or misbehave in one chosen way; print exact counts as JSON on SIGTERM or SIGINT.
#[derive(Subcommand)]
pub enum Command {
    Dns(DnsArgs),
    Udp(UdpArgs),
    Statsd(StatsdArgs),
}

#[derive(clap::Args)]
struct Common {
    /// Address to listen on; port 0 lets the kernel choose
    #[arg(long, value_name = "IP:PORT")]
    listen: SocketAddr,
    /// Name of this server, told in its answers
    #[arg(long, default_value = "loadgen")]
    tag: String,
}

#[derive(clap::Args)]
struct BehaviourArgs {
    /// Wait before each reply
    #[arg(long, value_name = "MS", default_value_t = 0.0)]
    delay: f64,
    /// Ignore this share of requests, at random
    #[arg(long, value_name = "P", default_value_t = 0.0)]
    drop_percent: f64,
    /// Receive and count, never answer
    #[arg(long)]
    silent: bool,
    /// Send every reply twice
    #[arg(long)]
    duplicate: bool,
    /// Reply from this address, same port, instead of the one asked
    #[arg(long, value_name = "IP")]
    wrong_source: Option<IpAddr>,
}

impl BehaviourArgs {
    fn behaviour(&self) -> anyhow::Result<Behaviour> {
        Ok(Behaviour {
            delay: super::load::duration("delay", self.delay, 1e-3)?,
            drop_percent: self.drop_percent,
            silent: self.silent,
            duplicate: self.duplicate,
            wrong_source: self.wrong_source,
        })
    }
}

/// A DNS server that answers every name.
#[derive(clap::Args)]
#[command(after_help = "Examples:
    nodeward-loadgen serve dns --listen 10.1.0.2:53 --tag n1
    nodeward-loadgen serve dns --listen 127.0.0.1:5353 --delay 20 --drop-percent 1")]
pub struct DnsArgs {
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    behaviour: BehaviourArgs,
    /// A record [default: the address listened on, else 192.0.2.1]
    #[arg(long, value_name = "IP")]
    a: Option<Ipv4Addr>,
    /// AAAA record [default: the address listened on, else 2001:db8::1]
    #[arg(long, value_name = "IP")]
    aaaa: Option<Ipv6Addr>,
    /// Rcode of every answer
    #[arg(long, default_value = "NOERROR", value_parser = rcode)]
    rcode: u8,
    /// Fill TXT answers up to this many bytes
    #[arg(long, value_name = "BYTES", default_value_t = 0)]
    size: usize,
    /// Set TC and leave the records out
    #[arg(long)]
    truncate: bool,
    /// Answer with another id
    #[arg(long)]
    wrong_id: bool,
    /// Answer with another question
    #[arg(long)]
    wrong_question: bool,
}

/// A server for the udp client.
#[derive(clap::Args)]
#[command(after_help = "Example:
    nodeward-loadgen serve udp --listen 10.1.0.2:9000 --tag n1 --size 4096")]
pub struct UdpArgs {
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    behaviour: BehaviourArgs,
    /// Size of replies, bytes; 0: as large as the request
    #[arg(long, value_name = "BYTES", default_value_t = 0)]
    size: usize,
    /// Answer with another sequence number
    #[arg(long)]
    wrong_id: bool,
    /// Damage every reply
    #[arg(long)]
    corrupt: bool,
}

/// A server for the statsd client: says per sender what was lost, by sequence number.
#[derive(clap::Args)]
#[command(after_help = "Example:
    nodeward-loadgen serve statsd --listen 10.1.0.2:8125 --tag n1")]
pub struct StatsdArgs {
    #[command(flatten)]
    common: Common,
}

/// Reads an rcode's name or number.
pub fn rcode(text: &str) -> Result<u8, String> {
    rcode_from(text).ok_or_else(|| "give NOERROR, FORMERR, SERVFAIL, NXDOMAIN, NOTIMP, REFUSED or 0 to 15".to_owned())
}

pub fn run(command: Command) -> anyhow::Result<ExitCode> {
    // Before any thread starts, so that none of them takes the signal.
    let signals = super::block_signals()?;
    match command {
        Command::Dns(args) => {
            let config = serve::dns::Config {
                listen: args.common.listen,
                tag: args.common.tag,
                a: args.a,
                aaaa: args.aaaa,
                rcode: args.rcode,
                size: args.size,
                truncate: args.truncate,
                wrong_id: args.wrong_id,
                wrong_question: args.wrong_question,
                behaviour: args.behaviour.behaviour()?,
            };
            until_stopped(serve::dns::start(&config)?, signals)
        }
        Command::Udp(args) => {
            let config = serve::udp::Config {
                listen: args.common.listen,
                tag: args.common.tag,
                size: args.size,
                wrong_id: args.wrong_id,
                corrupt: args.corrupt,
                behaviour: args.behaviour.behaviour()?,
            };
            until_stopped(serve::udp::start(&config)?, signals)
        }
        Command::Statsd(args) => {
            let config = serve::statsd::Config {
                listen: args.common.listen,
                tag: args.common.tag,
            };
            until_stopped(serve::statsd::start(&config)?, signals)
        }
    }
}

/// Lets the server run until SIGTERM or SIGINT, or until it ended by itself, and prints what it counted.
fn until_stopped<R: Serialize + Send + 'static>(server: Server<R>, signals: SigSet) -> anyhow::Result<ExitCode> {
    eprintln!("listening on {}", server.address());
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || tell.send(signals.wait().is_ok()));
    while !server.is_finished() {
        if told.recv_timeout(Duration::from_millis(200)).is_ok() {
            break;
        }
    }
    println!("{}", serde_json::to_string(&server.stop()?)?);
    Ok(ExitCode::SUCCESS)
}
