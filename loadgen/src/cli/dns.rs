//! `nodeward-loadgen dns`.

use super::load::LoadArgs;
use anyhow::Context;
use clap::ValueEnum;
use nodeward_loadgen::Error;
use nodeward_loadgen::dns::{self, Config, Identify, QueryType};
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(Clone, Copy, ValueEnum)]
enum TypeArg {
    #[value(name = "A", alias = "a")]
    A,
    #[value(name = "AAAA", alias = "aaaa")]
    Aaaa,
    #[value(name = "TXT", alias = "txt")]
    Txt,
    /// A and AAAA back-to-back on one socket; each counts as a query
    Pair,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum IdentifyArg {
    /// First string of the TXT record
    Txt,
    /// Address of the A or AAAA record
    A,
}

/// Send DNS queries and account for every answer.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  Who answers, while endpoints come and go:
    nodeward-loadgen dns --server 10.96.0.10:53 --rate 2000 --duration 30 --identify txt --name whoami.test --json
  As a libc resolver does it, A and AAAA from one new port:
    nodeward-loadgen dns --server 10.96.0.10:53 --type pair --rate 1000 --retransmit glibc
  As c-ares does it, few ports for ever, and exit code 1 on any failure:
    nodeward-loadgen dns --server 10.96.0.10:53 --ports fixed --clients 4 --rate 5000 --max-failed 0")]
pub struct Args {
    #[command(flatten)]
    load: LoadArgs,
    /// Name to ask for
    #[arg(long, default_value = "nodeward.test")]
    name: String,
    /// File with one name per line, asked for in turn
    #[arg(long, value_name = "FILE", conflicts_with = "name")]
    names: Option<PathBuf>,
    /// Record type to ask for [default: A, with --identify txt: TXT]
    #[arg(long = "type", value_enum)]
    query_type: Option<TypeArg>,
    /// Announce this UDP payload size by EDNS
    #[arg(long, value_name = "SIZE")]
    edns: Option<u16>,
    /// Which part of the answer says who answered; counted in answered_by
    #[arg(long, value_enum)]
    identify: Option<IdentifyArg>,
    /// Only answers with this value (address or TXT string) are right; may be repeated
    #[arg(long, value_name = "VALUE")]
    expect: Vec<String>,
    /// Rcodes that are right answers; others fail the query at once
    #[arg(long, value_name = "RCODE,...", value_delimiter = ',', default_value = "NOERROR", value_parser = super::serve::rcode)]
    accept_rcode: Vec<u8>,
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let mut config = Config::new(args.load.server);
    config.names = match &args.names {
        Some(path) => {
            let text = std::fs::read_to_string(path).with_context(|| format!("--names {}", path.display()));
            let text = text.map_err(|e| Error::Option {
                option: "names",
                message: format!("{e:#}"),
            })?;
            text.lines()
                .map(str::trim)
                .filter(|line| !line.is_empty())
                .map(str::to_owned)
                .collect()
        }
        None => vec![args.name],
    };
    config.query_type = match (args.query_type, args.identify) {
        (Some(TypeArg::A), _) => QueryType::A,
        (Some(TypeArg::Aaaa), _) => QueryType::Aaaa,
        (Some(TypeArg::Txt), _) | (None, Some(IdentifyArg::Txt)) => QueryType::Txt,
        (Some(TypeArg::Pair), _) => QueryType::Pair,
        (None, _) => QueryType::A,
    };
    config.edns = args.edns;
    config.identify = args.identify.map(|identify| match identify {
        IdentifyArg::Txt => Identify::Txt,
        IdentifyArg::A => Identify::Address,
    });
    config.expect = args.expect;
    config.accept_rcodes = args.accept_rcode;
    let stop = super::stop_on_signal()?;
    config.load = args.load.load(stop)?;
    let report = dns::run(&config)?;
    super::output::finish(&report, args.load.json, args.load.max_failed)
}
