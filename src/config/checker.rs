//! Reading values with their places, and turning the YAML reader's errors into ours.

use super::error::{ConfigError, Problem};
use super::raw::Text;
use super::units;
use super::values::suggestion;
use serde::Deserialize;
use serde::de::IntoDeserializer;
use serde_saphyr::Location;
use std::fmt::Display;
use std::ops::RangeInclusive;
use std::path::Path;
use std::time::Duration;

pub fn is_blank(text: &str) -> bool {
    text.lines()
        .all(|l| l.trim().is_empty() || l.trim_start().starts_with('#') || l.trim_end() == "---")
}

/// An error of the YAML reader, in our words where we have better ones.
pub fn shape_error(error: &serde_saphyr::Error, text: &str, path: &Path) -> ConfigError {
    let error = error.without_snippet();
    let place = error.location().unwrap_or(Location::UNKNOWN);
    let message = match error {
        serde_saphyr::Error::SerdeUnknownField { field, expected, .. } => {
            format!("unknown key `{field}`; {}", suggestion(field, expected))
        }
        serde_saphyr::Error::DuplicateMappingKey { key: Some(key), .. } => {
            format!("the key `{key}` is here twice; keep one of them")
        }
        other => {
            let line = usize::try_from(place.line())
                .ok()
                .and_then(|n| text.lines().nth(n.checked_sub(1)?))
                .map(|l| format!(" (in `{}`)", l.trim()))
                .unwrap_or_default();
            let message = other.to_string();
            // The reader repeats the place; ours stands in front already.
            let message = message.split(" at line ").next().unwrap_or_default();
            format!("{message}{line}")
        }
    };
    ConfigError {
        file: path.to_owned(),
        problems: vec![Problem {
            line: place.line(),
            column: place.column(),
            message,
        }],
    }
}

/// Reads values and collects everything that is wrong with them.
pub struct Checker<'a> {
    pub path: &'a Path,
    pub problems: Vec<Problem>,
    pub warnings: Vec<String>,
}

impl Checker<'_> {
    pub fn problem(&mut self, at: Location, key: &str, message: impl Display) {
        self.problems.push(Problem {
            line: at.line(),
            column: at.column(),
            message: format!("{key}: {message}"),
        });
    }

    pub fn warning(&mut self, at: Location, key: &str, message: impl Display) {
        let place = format!("{}:{}:{}", self.path.display(), at.line(), at.column());
        self.warnings.push(format!("{place}: {key}: {message}"));
    }

    /// Parses a value; `default` where it is missing or wrong (a wrong one is a problem).
    pub fn value<T>(
        &mut self,
        key: &str,
        text: Option<&Text>,
        default: T,
        parse: impl FnOnce(&str) -> Result<T, String>,
    ) -> T {
        let Some(text) = text else { return default };
        match parse(text.value.trim()) {
            Ok(v) => v,
            Err(message) => {
                self.problem(text.referenced, key, message);
                default
            }
        }
    }

    /// One of the words of an enumeration.
    pub fn word<T: for<'de> Deserialize<'de>>(&mut self, key: &str, text: Option<&Text>, known: &[&str]) -> Option<T> {
        self.value(key, text, None, |s| {
            let words = IntoDeserializer::<serde::de::value::Error>::into_deserializer(s);
            T::deserialize(words)
                .map(Some)
                .map_err(|_| format!("`{s}` is not known; {}", suggestion(s, known)))
        })
    }

    pub fn number<T: TryFrom<u64> + Display + PartialOrd>(
        &mut self,
        key: &str,
        text: Option<&Text>,
        default: T,
        range: RangeInclusive<T>,
    ) -> T {
        self.value(key, text, default, |s| {
            s.parse::<u64>()
                .ok()
                .and_then(|n| T::try_from(n).ok())
                .filter(|n| range.contains(n))
                .ok_or_else(|| format!("`{s}` is not a whole number from {} to {}", range.start(), range.end()))
        })
    }

    pub fn duration(
        &mut self,
        key: &str,
        text: Option<&Text>,
        default: Duration,
        range: RangeInclusive<Duration>,
    ) -> Duration {
        self.value(key, text, default, |s| {
            let d = units::duration(s)?;
            if range.contains(&d) {
                return Ok(d);
            }
            let (low, high) = (units::show_duration(*range.start()), units::show_duration(*range.end()));
            Err(format!("`{s}` is outside {low} to {high}"))
        })
    }

    pub fn size(&mut self, key: &str, text: Option<&Text>, default: u64, range: RangeInclusive<u64>) -> u64 {
        self.value(key, text, default, |s| {
            let n = units::size(s)?;
            if range.contains(&n) {
                return Ok(n);
            }
            Err(format!("`{s}` is outside {} to {} bytes", range.start(), range.end()))
        })
    }
}
