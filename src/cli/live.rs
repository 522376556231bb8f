//! Finding and asking a running agent.

use super::CliError;
use crate::admin::{self, Answer, CURRENT};
use crate::config::{Admin, Config};
use std::path::{Path, PathBuf};

/// Which agent is asked.
#[derive(Debug, Default, clap::Args)]
pub struct Live {
    /// The agent's Unix socket [default: current.sock in admin.runDir, /run/nodeward].
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
}

impl Live {
    /// The socket asked: the one named, else the serving instance's in `config`'s (or the default) admin.runDir.
    pub fn path(&self, config: Option<&Config>) -> PathBuf {
        match &self.socket {
            Some(path) => path.clone(),
            None => config
                .map_or_else(|| Admin::default().run_dir, |c| c.admin.run_dir.clone())
                .join(CURRENT),
        }
    }
}

/// Asks, and turns refusals into errors: wrong questions are the user's (2), the rest are failures (1).
pub fn ask(socket: &Path, path: &str) -> Result<Answer, CliError> {
    let answer = admin::get(socket, path).map_err(CliError::failed)?;
    match answer.code {
        200 => Ok(answer),
        400 | 404 => Err(CliError::Usage(answer.text())),
        _ => Err(CliError::Failed(answer.text())),
    }
}

/// `path?key=value&…` of the parameters that are there. The values' characters are those of names, none needs escaping;
/// others are refused.
pub fn with_query(path: &str, parameters: &[(&str, Option<&str>)]) -> Result<String, CliError> {
    let mut out = path.to_owned();
    for (key, value) in parameters {
        let Some(value) = value else { continue };
        let fine = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_' | '/' | ':');
        if !value.chars().all(fine) {
            return Err(CliError::Usage(format!("`{value}` is not a name")));
        }
        out.push(if out.contains('?') { '&' } else { '?' });
        out.push_str(&format!("{key}={value}"));
    }
    Ok(out)
}
