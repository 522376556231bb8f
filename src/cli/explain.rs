//! `nodeward explain`: each endpoint's rank, conditions, hints, and the reason it is in or out.

use super::CliResult;
use super::from::From;
use super::render::records;
use crate::admin::Question;
use crate::view::text;

/// Explain why each endpoint of a Service is used or not, as seen from a node.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  nodeward explain kube-system/kube-dns:dns\n  nodeward explain kube-system/kube-dns --node worker-1 --from manifests/ -o json"
)]
pub struct Args {
    /// The Service, or one of its ports by name or number.
    #[arg(value_name = "NAMESPACE/NAME[:PORT]")]
    service: String,
    /// Read the policy this way instead of as configured: strict (kube-proxy's algorithm) or ranked.
    #[arg(long, value_parser = ["strict", "ranked"])]
    interpretation: Option<String>,
    #[command(flatten)]
    from: From,
}

pub fn run(args: &Args) -> CliResult {
    let (service, interpretation) = (Some(args.service.as_str()), args.interpretation.as_deref());
    let found = args
        .from
        .records(Question::Explain, service, interpretation, |s, q| s.explain(q))?;
    args.from
        .print(|output, colour, out| records(&found, output, |e| text::explanations(e, colour), out))
}
