//! statsd datagrams: the first metric is a gauge named after run and sender whose value is the sequence number, a second
//! one with a long name fills the datagram. Plain statsd (metric_types.md): any agent can read it.
//!
//! `nodeward.<run, 8 hex digits>.<sender>:<sequence number>|g`

use std::io::Write;

/// Smallest datagram that holds any run, sender and sequence number: 9 + 8 + 1 + 10 + 1 + 20 + 2 bytes.
pub const MIN_SIZE: usize = 51;
const PREFIX: &str = "nodeward.";
/// The shortest filler metric: newline, a one-letter name, `:1|c`.
const MIN_FILLER: usize = 6;

/// A run's name as it stands in the metric.
pub fn run_name(run: u32) -> String {
    format!("{run:08x}")
}

/// Writes a datagram of exactly `size` bytes (at least [`MIN_SIZE`]) and returns its length, 0 when the buffer is too
/// small.
pub fn write(buffer: &mut [u8], size: usize, run: u32, sender: u32, seq: u64) -> usize {
    let Some(datagram) = buffer.get_mut(..size) else {
        return 0;
    };
    let mut rest = &mut *datagram;
    // Leading zeros fill what is too little for a metric of its own.
    let name = PREFIX.len() + 8 + 1 + digits(u64::from(sender));
    let plain = name + 1 + digits(seq) + 2;
    let zeros = match size.checked_sub(plain) {
        Some(left @ 1..MIN_FILLER) => left,
        Some(_) => 0,
        None => return 0,
    };
    let width = digits(seq) + zeros;
    if write!(rest, "{PREFIX}{run:08x}.{sender}:{seq:0width$}|g").is_err() {
        return 0;
    }
    let end = rest.len();
    if end >= MIN_FILLER {
        rest[0] = b'\n';
        rest[1..end - 4].fill(b'x');
        rest[end - 4..].copy_from_slice(b":1|c");
    }
    size
}

fn digits(number: u64) -> usize {
    number.checked_ilog10().map_or(1, |log| log as usize + 1)
}

/// What the first metric of a datagram says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Metric {
    /// The run.
    pub run: u32,
    /// The sender within the run.
    pub sender: u32,
    /// The sender's number of the datagram, from 0.
    pub seq: u64,
}

/// Reads a datagram of ours; `None` for anything else, a damaged filler included.
pub fn parse(datagram: &[u8]) -> Option<Metric> {
    let mut lines = datagram.splitn(2, |&b| b == b'\n');
    let first = std::str::from_utf8(lines.next()?).ok()?;
    if let Some(filler) = lines.next() {
        let name = filler.strip_suffix(b":1|c")?;
        if name.is_empty() || name.iter().any(|&b| b != b'x') {
            return None;
        }
    }
    let (name, value) = first.strip_prefix(PREFIX)?.split_once(':')?;
    let (run, sender) = name.split_once('.')?;
    Some(Metric {
        run: u32::from_str_radix(run, 16).ok().filter(|_| run.len() == 8)?,
        sender: sender.parse().ok()?,
        seq: value.strip_suffix("|g")?.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn written_has_the_size_asked_for_and_reads_back(size in MIN_SIZE..3000, run: u32, sender: u32, seq: u64) {
            let mut buffer = vec![0xff; 3000];
            prop_assert_eq!(write(&mut buffer, size, run, sender, seq), size);
            prop_assert_eq!(parse(&buffer[..size]), Some(Metric { run, sender, seq }));
            // Cut in the middle of the filler or the metric: no longer ours.
            prop_assert_eq!(parse(&buffer[..size - 1]), None);
        }

        #[test]
        fn arbitrary_bytes_never_panic(datagram in prop::collection::vec(any::<u8>(), 0..100)) {
            let _ = parse(&datagram);
            let mut ours = PREFIX.as_bytes().to_vec();
            ours.extend(&datagram);
            let _ = parse(&ours);
        }
    }

    #[test]
    fn largest_numbers_fit_the_smallest_size() {
        let mut buffer = [0; MIN_SIZE];
        assert_eq!(write(&mut buffer, MIN_SIZE, u32::MAX, u32::MAX, u64::MAX), MIN_SIZE);
        assert_eq!(
            parse(&buffer),
            Some(Metric {
                run: u32::MAX,
                sender: u32::MAX,
                seq: u64::MAX
            })
        );
    }
}
