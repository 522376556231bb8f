//! What can stop a run. Losses, refusals and wrong answers are results, not errors: they are in the report.

use std::io;

/// Why a run or a server could not start or go on.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An option has a value that cannot work; nothing was sent.
    #[error("--{option}: {message}")]
    Option {
        /// The option's name on the command line, without the dashes.
        option: &'static str,
        /// What is wrong with its value and what would be right.
        message: String,
    },
    /// The operating system refused something that the run needs.
    #[error("{what}: {source}")]
    System {
        /// What was tried.
        what: String,
        /// What the system said.
        source: io::Error,
    },
}

impl Error {
    pub(crate) fn option(option: &'static str, message: impl Into<String>) -> Self {
        Error::Option {
            option,
            message: message.into(),
        }
    }

    pub(crate) fn system(what: impl Into<String>, source: impl Into<io::Error>) -> Self {
        Error::System {
            what: what.into(),
            source: source.into(),
        }
    }
}
