//! What can go wrong with the redirection, and what happens to it without our doing.

use super::config::{RedirectConfig, RedirectConfigError};
use super::protocol::Failure;
use super::sets::ElementError;
use super::verdict::missing_features;
use crate::model::IpFamily;
use std::io;

/// Why the redirection could not be installed or changed.
#[derive(Debug, thiserror::Error)]
pub enum RedirectError {
    /// Bad configuration.
    #[error("redirect: {0}")]
    Config(#[from] RedirectConfigError),
    /// An address that cannot be redirected. Nothing was changed.
    #[error("redirect: {0}")]
    Element(#[from] ElementError),
    /// A live instance has this id.
    #[error(
        "redirect: another live process owns table `inet {table}`; stop that instance or give this one another `instance`"
    )]
    AlreadyRunning {
        /// The table's name.
        table: String,
    },
    /// A table of our name that nobody owns.
    #[error(
        "redirect: table `inet {table}` exists and no process owns it (restored from a saved rule set?); \
         run `nodeward cleanup --instance {instance}`"
    )]
    Leftover {
        /// The table's name.
        table: String,
        /// The instance id.
        instance: String,
    },
    /// nft cannot be run.
    #[error("redirect: {0}; install nftables 1.0.2 or later and give the process CAP_NET_ADMIN")]
    NoNft(String),
    /// nft or the kernel refused the table.
    #[error("redirect: the kernel refused the rule set: {message}{advice}")]
    Refused {
        /// nft's message.
        message: String,
        /// What is missing and how to get it, if it could be found out.
        advice: String,
    },
    /// Rules or routes could not be installed.
    #[error("redirect: cannot install {0} (needs CAP_NET_ADMIN and CONFIG_IP_MULTIPLE_TABLES)")]
    Routing(String),
    /// None of the families asked for is available.
    #[error("redirect: no address family left: {0}")]
    NoFamily(String),
    /// nft refused a transaction. The previous state stands.
    #[error("redirect: nft refused the change, nothing was changed: {0}")]
    Transaction(String),
    /// The sets do not hold what was written. What they do hold is what the next `apply` starts from.
    #[error("redirect: set {set} holds {found} elements of {family} after the change, not the {wanted} written")]
    ReadBack {
        /// Name of the set.
        set: &'static str,
        /// Its family.
        family: IpFamily,
        /// Elements wanted.
        wanted: usize,
        /// Elements found.
        found: usize,
    },
    /// The lease was written but is not there.
    #[error("redirect: the lease is not in the table after its renewal")]
    Lease,
    /// nft's answer was not understood.
    #[error("redirect: {0}")]
    Answer(String),
    /// The holder is gone, and the table with it: kube-proxy serves. Install again.
    #[error(
        "redirect: the holder process is gone and the table with it; kube-proxy serves until it is installed again"
    )]
    HolderDied,
    /// The holder cannot be started or spoken to.
    #[error("redirect: holder process: {0}")]
    Holder(#[from] io::Error),
}

/// What happened to the redirection without our doing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RedirectEvent {
    /// Somebody removed these rules or routes; they are back.
    Restored(Vec<String>),
    /// A removed rule or route could not be put back; host clients are cut off until this is cured or the lease is let go.
    NotRestored(String),
    /// The holder ended, and the table with it. Sent last; then the channel closes.
    HolderDied,
}

/// The holder's refusal as an error for people, with what the kernel lacks if that can be found out.
pub(super) async fn explain(failure: Failure, config: &RedirectConfig) -> RedirectError {
    let table = config.table();
    match failure {
        Failure::AlreadyRunning => RedirectError::AlreadyRunning { table },
        Failure::Leftover => RedirectError::Leftover {
            table,
            instance: config.instance.clone(),
        },
        Failure::NoNft(message) => RedirectError::NoNft(message),
        Failure::Refused(message) => {
            let missing = missing_features(config).await;
            let advice = missing
                .iter()
                .map(|(name, needs, _)| format!("; missing: {name}, needs {needs}"))
                .collect();
            RedirectError::Refused { message, advice }
        }
        Failure::Routing(message) => RedirectError::Routing(message),
        Failure::NoFamily(message) => RedirectError::NoFamily(message),
        Failure::Other(message) => RedirectError::Holder(io::Error::other(message)),
    }
}
