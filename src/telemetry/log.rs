//! Logging: what goes to standard error, and how it looks. Set up once, by the binary; the library only emits events.

#[cfg(feature = "dataplane")]
use crate::config::LogFormat;
#[cfg(feature = "dataplane")]
use tracing_subscriber::EnvFilter;

/// The levels, from silent to most talkative.
pub const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

/// Checks a level: one of [`LEVELS`], or a list such as `info,nodeward::redirect=debug`.
///
/// # Errors
/// Names the part that is wrong.
pub fn check_level(text: &str) -> Result<(), String> {
    for part in text.split(',') {
        let part = part.trim();
        let (target, level) = part.split_once('=').map_or((None, part), |(t, l)| (Some(t), l));
        let target_fine = target.is_none_or(|t| {
            !t.is_empty()
                && t.chars()
                    .all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | ':' | '-'))
        });
        if !target_fine || !LEVELS.contains(&level) {
            return Err(format!(
                "`{part}` is not a level ({}) or module=level, such as `nodeward::redirect=debug`",
                LEVELS.join(", ")
            ));
        }
    }
    Ok(())
}

/// The filter's own parser takes no spaces.
#[cfg(feature = "dataplane")]
fn directives(level: &str) -> String {
    level.split_whitespace().collect()
}

/// Starts logging to standard error for the rest of the process.
///
/// # Errors
/// Where the level is wrong, or logging was started before.
#[cfg(feature = "dataplane")]
pub fn start(level: &str, format: LogFormat) -> Result<(), String> {
    use std::io::IsTerminal;
    check_level(level)?;
    let filter = EnvFilter::try_new(directives(level)).map_err(|e| format!("log level `{level}`: {e}"))?;
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal());
    match format {
        LogFormat::Text => builder.try_init(),
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
    }
    .map_err(|e| format!("logging cannot start: {e}"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn levels() {
        for good in ["info", "off", "warn,nodeward::redirect=debug", "info, hyper=warn"] {
            check_level(good).unwrap();
            #[cfg(feature = "dataplane")]
            EnvFilter::try_new(directives(good)).unwrap();
        }
        for bad in ["", "inof", "info,", "=debug", "nodeward=loud", "a b=info"] {
            assert!(check_level(bad).is_err(), "{bad}");
        }
    }
}
