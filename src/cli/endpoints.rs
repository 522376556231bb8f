//! `nodeward endpoints`: the endpoints of one Service with location, conditions and rank.

use super::CliResult;
use super::from::From;
use super::render::records;
use crate::admin::Question;
use crate::view::text;

/// List the endpoints of a Service with node, zone, conditions and rank.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  nodeward endpoints kube-system/kube-dns\n  nodeward endpoints kube-system/kube-dns:dns --from state.json --node worker-1"
)]
pub struct Args {
    /// The Service, or one of its ports by name or number.
    #[arg(value_name = "NAMESPACE/NAME[:PORT]")]
    service: String,
    #[command(flatten)]
    from: From,
}

pub fn run(args: &Args) -> CliResult {
    let rows = args
        .from
        .records(Question::Endpoints, Some(&args.service), None, |s, q| s.endpoints(q))?;
    args.from
        .print(|output, colour, out| records(&rows, output, |r| text::endpoints(r, colour), out))
}
