//! Waiting: polls with short, growing sleeps up to a deadline; never a fixed sleep.

use std::time::{Duration, Instant};

use crate::{Error, Result};

/// Polls `check` until it returns a value. Sleeps 0.5 ms at first, at most 10 ms.
pub fn wait_for<T>(what: &str, timeout: Duration, mut check: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    let deadline = Instant::now() + timeout;
    let mut pause = Duration::from_micros(500);
    loop {
        if let Some(value) = check()? {
            return Ok(value);
        }
        if Instant::now() >= deadline {
            return Err(Error::Timeout {
                what: what.to_string(),
                after: timeout,
            });
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(10));
    }
}

/// Polls `check` until it is true.
pub fn wait_until(what: &str, timeout: Duration, mut check: impl FnMut() -> bool) -> Result<()> {
    wait_for(what, timeout, || Ok(check().then_some(())))
}
