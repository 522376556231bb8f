//! `nodeward services`: every service port with its policy, interpretation, rank in use and endpoint counts.

use super::render::{not_found, records};
use super::{CliResult, Output};
use crate::topology::ServiceRef;
use crate::view::{ServiceRow, text};
use std::io::Write;

/// Prints the rows. Without a request an empty list is an answer, with one it is an error.
pub fn run(
    request: Option<&ServiceRef>,
    rows: &[ServiceRow],
    output: Output,
    colour: bool,
    out: &mut impl Write,
) -> CliResult {
    match request {
        Some(request) if rows.is_empty() => Err(not_found(request)),
        _ => records(rows, output, |r| text::services(r, colour), out),
    }
}
