//! The two syntaxes: cuts the input into documents, runs both passes over each, and turns parser errors into ours.

use super::kind::Kind;
use super::{Collector, Manifest, ManifestError, ObjectSeed};
use crate::model::Interner;
use serde::Deserialize;
use serde::de::DeserializeSeed;
use serde_path_to_error::Track;
use std::collections::HashMap;

/// JSON: one object after another, white space between them.
pub(super) fn json(text: &str, manifest: &mut Manifest, interner: &mut Interner) -> Result<(), ManifestError> {
    let mut seen = HashMap::new();
    let mut kinds = serde_json::Deserializer::from_str(text).into_iter::<Kind>();
    let mut document = 0;
    loop {
        let start = kinds.byte_offset();
        let Some(kind) = kinds.next() else {
            return Ok(());
        };
        document += 1;
        let before = lines_before(text, start);
        let kind = kind.map_err(|e| json_error(document, 0, String::new(), &e))?;
        let part = &text[start..kinds.byte_offset()];
        let mut out = collector(document, manifest, interner, &mut seen);
        let first = {
            let mut de = serde_json::Deserializer::from_str(part);
            let seed = ObjectSeed {
                kind: &kind,
                out: &mut out,
            };
            seed.deserialize(&mut de)
        };
        if let Err(error) = first {
            let invalid = out.invalid.take();
            let mut track = Track::new();
            // Only a failure pays for following the path. The document is read again into a place of its own.
            let mut scratch = Manifest::default();
            let mut again = HashMap::new();
            let mut de = serde_json::Deserializer::from_str(part);
            let mut out = collector(document, &mut scratch, interner, &mut again);
            let seed = ObjectSeed {
                kind: &kind,
                out: &mut out,
            };
            let _ = seed.deserialize(serde_path_to_error::Deserializer::new(&mut de, &mut track));
            return Err(located(
                json_error(document, before, track.path().to_string(), &error),
                invalid,
            ));
        }
    }
}

/// YAML: documents between `---` lines.
pub(super) fn yaml(text: &str, manifest: &mut Manifest, interner: &mut Interner) -> Result<(), ManifestError> {
    let mut seen = HashMap::new();
    let mut document = 0;
    for (start, part) in documents(text) {
        if part.lines().all(is_blank) {
            continue;
        }
        document += 1;
        let before = lines_before(text, start);
        let kind: Kind =
            serde_saphyr::with_deserializer_from_str_with_options(part, options(), |de| Kind::deserialize(de))
                .map_err(|e| yaml_error(document, before, String::new(), &e))?;
        let mut out = collector(document, manifest, interner, &mut seen);
        let first = serde_saphyr::with_deserializer_from_str_with_options(part, options(), |de| {
            ObjectSeed {
                kind: &kind,
                out: &mut out,
            }
            .deserialize(de)
        });
        if let Err(error) = first {
            let invalid = out.invalid.take();
            let mut track = Track::new();
            let mut scratch = Manifest::default();
            let mut again = HashMap::new();
            let mut out = collector(document, &mut scratch, interner, &mut again);
            let _ = serde_saphyr::with_deserializer_from_str_with_options(part, options(), |de| {
                let seed = ObjectSeed {
                    kind: &kind,
                    out: &mut out,
                };
                seed.deserialize(serde_path_to_error::Deserializer::new(de, &mut track))
            });
            return Err(located(
                yaml_error(document, before, track.path().to_string(), &error),
                invalid,
            ));
        }
    }
    Ok(())
}

fn collector<'a>(
    document: usize,
    manifest: &'a mut Manifest,
    interner: &'a mut Interner,
    seen: &'a mut HashMap<super::ObjectKey, usize>,
) -> Collector<'a> {
    Collector {
        document,
        manifest,
        interner,
        seen,
        invalid: None,
    }
}

/// Line ends before a byte offset.
fn lines_before(text: &str, offset: usize) -> u64 {
    text.as_bytes()[..offset].iter().filter(|b| **b == b'\n').count() as u64
}

/// Puts the words of an object that is well-formed but wrong into the place the parser found. The parser's line is then
/// only that of the object's end, and is left out.
fn located(mut error: ManifestError, invalid: Option<super::Invalid>) -> ManifestError {
    if let Some(invalid) = invalid {
        error.line = None;
        error.object = invalid.object;
        error.message = invalid.message;
        if !invalid.path.is_empty() {
            error.path = join(&error.path, &invalid.path);
        }
    }
    error
}

fn join(prefix: &str, path: &str) -> String {
    if prefix.is_empty() {
        path.to_owned()
    } else {
        format!("{prefix}.{path}")
    }
}

/// `serde_path_to_error` prints the root as `.` and unknown steps as `?`.
fn tidy(path: String) -> String {
    if path == "." { String::new() } else { path }
}

fn json_error(document: usize, before: u64, path: String, error: &serde_json::Error) -> ManifestError {
    let message = error.to_string();
    let message = message
        .rsplit_once(" at line ")
        .map_or(message.as_str(), |(head, _)| head);
    ManifestError {
        document,
        line: (error.line() > 0).then(|| before + error.line() as u64),
        object: None,
        path: tidy(path),
        message: message.to_owned(),
    }
}

fn yaml_error(document: usize, before: u64, path: String, error: &serde_saphyr::Error) -> ManifestError {
    let error = error.without_snippet();
    let message = error.to_string();
    let message = message.split(" at line ").next().unwrap_or_default();
    ManifestError {
        document,
        line: error.location().map(|l| before + l.line()),
        object: None,
        path: tidy(path),
        message: message.to_owned(),
    }
}

/// Limits of one YAML document. The size of the file is bounded by the caller; aliases stay at the parser's own limits,
/// which stop documents that expand without end.
fn options() -> serde_saphyr::Options {
    serde_saphyr::options! {
        with_snippet: false,
        budget: serde_saphyr::budget! {
            max_events: 200_000_000,
            max_nodes: 100_000_000,
            max_total_scalar_bytes: 1 << 30,
        },
    }
}

fn is_blank(line: &str) -> bool {
    let line = line.trim();
    line.is_empty() || line.starts_with('#') || line == "---" || line == "..."
}

/// The documents of a YAML stream with their offsets. A line that starts with `---` or `...` ends a document wherever it
/// stands (YAML 1.2.2 §9.1.2: such lines cannot be content), so no parser is needed to find them. Directives (`%YAML`)
/// belong to the document that follows.
fn documents(text: &str) -> Vec<(usize, &str)> {
    let is_marker = |line: &str, marker: &str| {
        line.strip_prefix(marker)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with(|c: char| c.is_ascii_whitespace()))
    };
    let mut parts = Vec::new();
    let (mut start, mut offset, mut directives) = (0, 0, false);
    for line in text.split_inclusive('\n') {
        if is_marker(line, "---") {
            if !directives && offset > start {
                parts.push((start, &text[start..offset]));
                start = offset;
            }
            directives = false;
        } else if is_marker(line, "...") {
            parts.push((start, &text[start..offset]));
            start = offset + line.len();
        } else if line.starts_with('%') && text[start..offset].lines().all(is_blank) {
            directives = true;
        }
        offset += line.len();
    }
    parts.push((start, &text[start..]));
    parts
}

#[cfg(test)]
mod tests {
    use super::documents;

    #[test]
    fn documents_are_cut_at_markers_only() {
        let parts = |text| documents(text).into_iter().map(|(_, p)| p).collect::<Vec<_>>();
        assert_eq!(parts("a: 1\n---\nb: 2\n"), ["a: 1\n", "---\nb: 2\n"]);
        assert_eq!(
            parts("---\na: 1\n--- # next\nb: ---\n"),
            ["---\na: 1\n", "--- # next\nb: ---\n"]
        );
        assert_eq!(parts("a: |\n  ---\n  text\n"), ["a: |\n  ---\n  text\n"]);
        assert_eq!(parts("%YAML 1.2\n---\na: 1\n"), ["%YAML 1.2\n---\na: 1\n"]);
        assert_eq!(parts("a: 1\n...\nb: 2"), ["a: 1\n", "b: 2"]);
        assert_eq!(parts("a: 1\r\n---\r\nb: 2\r\n"), ["a: 1\r\n", "---\r\nb: 2\r\n"]);
        assert_eq!(parts("---x: 1\n"), ["---x: 1\n"]);
    }
}
