//! `nodeward explain`: each endpoint's rank, conditions, hints, and the reason it is in or out.
//!
//! The explanations come from [`crate::view::explain_views`], here from files, in a live agent from its own state.

use super::render::{not_found, records};
use super::{CliResult, Output};
use crate::topology::ServiceRef;
use crate::view::{Explanation, text};
use std::io::Write;

/// Prints the explanations of the service ports that `request` named.
pub fn run(
    request: &ServiceRef,
    explanations: &[Explanation],
    output: Output,
    colour: bool,
    out: &mut impl Write,
) -> CliResult {
    if explanations.is_empty() {
        return Err(not_found(request));
    }
    records(explanations, output, |e| text::explanations(e, colour), out)
}
