//! What is wrong with a configuration file, each problem with its place and the way out.

use std::fmt;
use std::path::{Path, PathBuf};

/// One problem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Line in the file, counted from 1; 0 where the problem has no place (a missing key).
    pub line: u64,
    /// Column, counted from 1; 0 where there is none.
    pub column: u64,
    /// What is wrong and what to do.
    pub message: String,
}

/// A configuration file that cannot be used, with everything found wrong in it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct ConfigError {
    /// The file as the user named it.
    pub file: PathBuf,
    /// At least one problem, in the order of the file.
    pub problems: Vec<Problem>,
}

impl ConfigError {
    /// An error with one problem that has no place in the file.
    pub fn new(file: &Path, message: impl Into<String>) -> Self {
        Self {
            file: file.to_owned(),
            problems: vec![Problem {
                line: 0,
                column: 0,
                message: message.into(),
            }],
        }
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, p) in self.problems.iter().enumerate() {
            if i > 0 {
                writeln!(f)?;
            }
            write!(f, "{}", self.file.display())?;
            if p.line > 0 {
                write!(f, ":{}:{}", p.line, p.column)?;
            }
            write!(f, ": {}", p.message)?;
        }
        Ok(())
    }
}
