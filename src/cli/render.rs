//! Results that are a list of records: a table for people, one document per record for programs.

use super::{CliError, CliResult, Output};
use serde::Serialize;
use std::io::{IsTerminal, Write};

/// Whether to colour: standard output is a terminal and `NO_COLOR` is unset or empty (no-color.org).
pub fn colour() -> bool {
    std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty())
}

/// Writes records: JSON as one object per line, YAML as one document each, text as `text` makes it.
pub fn records<T: Serialize>(
    records: &[T],
    output: Output,
    text: impl FnOnce(&[T]) -> String,
    out: &mut impl Write,
) -> CliResult {
    let mut buffer = String::new();
    match output {
        Output::Text => buffer = text(records),
        Output::Json => {
            for record in records {
                buffer.push_str(&serde_json::to_string(record).map_err(CliError::failed)?);
                buffer.push('\n');
            }
        }
        Output::Yaml => {
            for record in records {
                buffer.push_str("---\n");
                buffer.push_str(&serde_saphyr::to_string(record).map_err(CliError::failed)?);
            }
        }
    }
    match out.write_all(buffer.as_bytes()).and_then(|()| out.flush()) {
        // A reader that went away (`| head`) is no error.
        Err(e) if e.kind() != std::io::ErrorKind::BrokenPipe => Err(CliError::failed(format!("output: {e}"))),
        _ => Ok(true),
    }
}
