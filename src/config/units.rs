//! Durations, sizes and ranges as people write them: a whole number and a unit.

use std::ops::RangeInclusive;
use std::time::Duration;

/// Parses `5ms`, `2s`, `1m`, `1h`, `250us`.
///
/// # Errors
/// The message says which form is expected; it does not repeat the key.
pub fn duration(text: &str) -> Result<Duration, String> {
    let (number, unit) = split(text);
    let wrong =
        || format!("`{text}` is not a duration; write a whole number and a unit (us, ms, s, m, h), such as `5ms`");
    let n: u64 = number.parse().map_err(|_| wrong())?;
    let micros = match unit {
        "us" => 1,
        "ms" => 1_000,
        "s" => 1_000_000,
        "m" => 60_000_000,
        "h" => 3_600_000_000,
        _ => return Err(wrong()),
    };
    n.checked_mul(micros).map(Duration::from_micros).ok_or_else(wrong)
}

/// Parses `512B`, `64KiB`, `16MiB`, `1GiB` into bytes.
///
/// # Errors
/// The message says which form is expected; it does not repeat the key.
pub fn size(text: &str) -> Result<u64, String> {
    let (number, unit) = split(text);
    let wrong =
        || format!("`{text}` is not a size; write a whole number and a unit (B, KiB, MiB, GiB), such as `16MiB`");
    let n: u64 = number.parse().map_err(|_| wrong())?;
    let factor = match unit {
        "B" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        _ => return Err(wrong()),
    };
    n.checked_mul(factor).ok_or_else(wrong)
}

/// Parses a range of ports, `20000-20255`.
///
/// # Errors
/// The message says which form is expected; it does not repeat the key.
pub fn port_range(text: &str) -> Result<RangeInclusive<u16>, String> {
    let wrong = || format!("`{text}` is not a range of ports; write `first-last`, such as `20000-20255`");
    let (first, last) = text.split_once('-').ok_or_else(wrong)?;
    let first: u16 = first.trim().parse().map_err(|_| wrong())?;
    let last: u16 = last.trim().parse().map_err(|_| wrong())?;
    if first == 0 || first > last {
        return Err(wrong());
    }
    Ok(first..=last)
}

/// Parses a decimal or `0x` hexadecimal number.
///
/// # Errors
/// The message says which form is expected; it does not repeat the key.
pub fn number_u32(text: &str) -> Result<u32, String> {
    let parsed = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(hex) => u32::from_str_radix(hex, 16),
        None => text.parse(),
    };
    parsed.map_err(|_| format!("`{text}` is not a whole number between 0 and {}", u32::MAX))
}

/// Prints a duration so that `duration` reads it back.
pub fn show_duration(d: Duration) -> String {
    let us = d.as_micros();
    if us.is_multiple_of(1_000_000) {
        format!("{}s", us / 1_000_000)
    } else if us.is_multiple_of(1_000) {
        format!("{}ms", us / 1_000)
    } else {
        format!("{us}us")
    }
}

fn split(text: &str) -> (&str, &str) {
    let text = text.trim();
    let at = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    (&text[..at], text[at..].trim_start())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn units() {
        assert_eq!(duration("5ms").unwrap(), Duration::from_millis(5));
        assert_eq!(duration("2 m").unwrap(), Duration::from_secs(120));
        assert_eq!(size("16MiB").unwrap(), 16 << 20);
        assert_eq!(port_range("20000-20255").unwrap(), 20000..=20255);
        assert_eq!(number_u32("0x3800").unwrap(), 0x3800);
        for bad in [
            "",
            "5",
            "ms",
            "-5ms",
            "1.5s",
            "5 sec",
            "99999999999999999999s",
            "18446744073709551615h",
        ] {
            assert!(duration(bad).is_err(), "{bad}");
        }
        for bad in ["", "16", "16M", "16MB", "99999999999GiB"] {
            assert!(size(bad).is_err(), "{bad}");
        }
        for bad in ["", "20000", "2-1", "0-5", "1-70000", "a-b"] {
            assert!(port_range(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn shown_durations_read_back() {
        for us in [0, 1, 999, 1_000, 5_000, 1_000_000, 1_500_000, 61_000_000] {
            let d = Duration::from_micros(us);
            assert_eq!(duration(&show_duration(d)).unwrap(), d);
        }
    }
}
