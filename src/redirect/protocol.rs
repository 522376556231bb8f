//! What the agent and its holder say to each other: one JSON object per line, over the holder's standard input and output.

use super::config::RedirectConfig;
use crate::model::IpFamily;
use serde::{Deserialize, Serialize};

/// From the agent.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Request {
    /// The first line: install this.
    Start(Box<RedirectConfig>),
    /// Run one line as one transaction, then ask the questions.
    Run {
        /// Given back in the reply.
        id: u64,
        /// nft commands joined by `;`; may be empty.
        line: String,
        /// nft listings whose JSON answers are wanted.
        questions: Vec<String>,
    },
}

/// From the holder.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Reply {
    /// Everything is installed, for these families.
    Ready {
        /// The families redirected.
        families: Vec<Family>,
        /// Things the operator should know, in words.
        notes: Vec<String>,
    },
    /// Nothing is installed.
    Failed(Failure),
    /// The outcome of [`Request::Run`].
    Done {
        /// The request's id.
        id: u64,
        /// nft's complaints; empty if it took the transaction.
        errors: String,
        /// The answers, in the order of the questions.
        answers: Vec<String>,
    },
    /// Somebody removed these; they are back.
    Restored(Vec<String>),
    /// Somebody removed something and it could not be put back.
    NotRestored(String),
}

/// Why nothing was installed.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Failure {
    /// A live process owns a table of this name.
    AlreadyRunning,
    /// A table of this name exists and nobody owns it.
    Leftover,
    /// nft cannot be run at all.
    NoNft(String),
    /// nft or the kernel refused the table.
    Refused(String),
    /// Routing rules or routes could not be installed.
    Routing(String),
    /// None of the families asked for is available.
    NoFamily(String),
    /// Anything else.
    Other(String),
}

/// [`IpFamily`] on the wire.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) enum Family {
    V4,
    V6,
}

impl From<IpFamily> for Family {
    fn from(family: IpFamily) -> Self {
        match family {
            IpFamily::V4 => Self::V4,
            IpFamily::V6 => Self::V6,
        }
    }
}

impl From<Family> for IpFamily {
    fn from(family: Family) -> Self {
        match family {
            Family::V4 => Self::V4,
            Family::V6 => Self::V6,
        }
    }
}
