//! `nodeward cleanup`: removes what dead instances left on the node.

use crate::redirect::{CleanupError, cleanup};
use std::io::{self, Write};
use std::process::ExitCode;

/// Cleans up and says what was done, as text or as one JSON object. `nft` is the nft program. Exit 0 if nothing dead is
/// left, 1 if something could not be removed or the instance named is alive, 2 for a bad id.
///
/// # Errors
/// The output cannot be written, or no runtime can be made.
pub fn run(nft: &str, instance: Option<&str>, json: bool, out: &mut impl Write) -> io::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let cleaned = match runtime.block_on(cleanup(nft, instance)) {
        Ok(cleaned) => cleaned,
        Err(e) => {
            eprintln!("{e}");
            return Ok(ExitCode::from(if matches!(e, CleanupError::Instance(_)) {
                2
            } else {
                1
            }));
        }
    };
    if json {
        serde_json::to_writer_pretty(&mut *out, &cleaned)?;
        writeln!(out)?;
        return Ok(ExitCode::SUCCESS);
    }
    for what in &cleaned.removed {
        writeln!(out, "removed {what}")?;
    }
    for what in &cleaned.kept {
        writeln!(out, "kept    {what} (in use)")?;
    }
    if cleaned.removed.is_empty() {
        writeln!(out, "nothing to remove")?;
    }
    Ok(ExitCode::SUCCESS)
}
