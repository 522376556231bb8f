//! `nodeward endpoints`: the endpoints of one Service with location, conditions and rank.

use super::render::records;
use super::{CliResult, Output};
use crate::view::{EndpointRow, text};
use std::io::Write;

/// Prints the rows. A Service without endpoints gives an empty list; that the Service exists is for the caller to check
/// (with the service rows).
pub fn run(rows: &[EndpointRow], output: Output, colour: bool, out: &mut impl Write) -> CliResult {
    records(rows, output, |r| text::endpoints(r, colour), out)
}
