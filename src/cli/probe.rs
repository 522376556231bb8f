//! `nodeward probe`: the kubelet's question, asked inside the pod.

use super::live::Live;
use super::{CliError, CliResult, print};
use crate::admin;
use crate::config::Admin;
use clap::ValueEnum;
use std::path::PathBuf;

/// Ask an agent whether it is live or ready; exit status 0 means yes.
///
/// Without `--socket`, the agent of this pid namespace is asked (in a pod, the pod's own), else the serving one.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example (a pod's readinessProbe):\n  nodeward probe ready")]
pub struct Args {
    /// What to ask.
    #[arg(value_enum)]
    what: What,
    #[command(flatten)]
    live: Live,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum What {
    /// Does the process work?
    Live,
    /// Does it do its job?
    Ready,
}

pub fn run(args: &Args) -> CliResult {
    let path = match args.what {
        What::Live => "/livez",
        What::Ready => "/readyz",
    };
    let answer = admin::get(&socket(&args.live), path).map_err(CliError::failed)?;
    print(&answer.text())?;
    Ok(answer.code == 200)
}

fn socket(live: &Live) -> PathBuf {
    if live.socket.is_none()
        && let [own] = &admin::own_sockets(&Admin::default().run_dir)[..]
    {
        return own.clone();
    }
    live.path(None)
}
