//! The laboratory's error type: every message names what failed and, where there is one, the way out.

use std::time::Duration;

/// What can go wrong in the laboratory.
#[derive(thiserror::Error)]
pub enum Error {
    /// The process may not create network namespaces.
    #[error(
        "cannot create a network namespace ({0}); run as root, or as an ordinary user with: unshare --user --map-root-user --net --mount COMMAND"
    )]
    NotPermitted(nix::Error),
    /// A program the laboratory needs is not installed.
    #[error("program `{program}` not found; install the Debian package {package}")]
    MissingProgram {
        /// The program's name.
        program: String,
        /// The Debian package that holds it.
        package: &'static str,
    },
    /// A system call or file operation failed.
    #[error("{what}: {source}")]
    Io {
        /// What was tried.
        what: String,
        /// The system's answer.
        source: std::io::Error,
    },
    /// A command ended with a failure.
    #[error("`{command}` failed ({status}): {stderr}")]
    Command {
        /// The command line.
        command: String,
        /// Its exit status.
        status: String,
        /// What it wrote to standard error.
        stderr: String,
    },
    /// Something did not happen in time.
    #[error("{what}: not within {after:?}")]
    Timeout {
        /// What was awaited.
        what: String,
        /// The deadline.
        after: Duration,
    },
    /// The namespace was already taken down.
    #[error("namespace `{0}` is gone")]
    Gone(String),
    /// Anything else, in words.
    #[error("{0}")]
    Other(String),
}

/// `Result` with the laboratory's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// Wraps an I/O error with what was tried.
    pub fn io(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> Error {
        let what = what.into();
        move |source| Error::Io { what, source }
    }

    /// An error in words.
    pub fn other(text: impl Into<String>) -> Error {
        Error::Other(text.into())
    }
}

/// The message: what a failed `unwrap` in a test should show.
impl std::fmt::Debug for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{self}")
    }
}
