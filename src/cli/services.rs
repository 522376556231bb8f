//! `nodeward services`: every service port with its policy, interpretation, rank in use and endpoint counts.

use super::CliResult;
use super::from::From;
use super::render::records;
use crate::admin::Question;
use crate::view::text;

/// List the service ports with policy, interpretation, rank in use and endpoint counts.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  nodeward services\n  nodeward services --from manifests/ --node worker-1")]
pub struct Args {
    /// Only this Service, or one of its ports.
    #[arg(value_name = "NAMESPACE/NAME[:PORT]")]
    service: Option<String>,
    #[command(flatten)]
    from: From,
}

pub fn run(args: &Args) -> CliResult {
    let rows = args
        .from
        .records(Question::Services, args.service.as_deref(), None, |s, q| s.services(q))?;
    args.from
        .print(|output, colour, out| records(&rows, output, |r| text::services(r, colour), out))
}
