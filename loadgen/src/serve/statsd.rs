//! A server for the `statsd` client: answers nothing, and says per sender which sequence numbers never came.

use super::{Server, Shared, responder};
use crate::error::Error;
use crate::report::{SCHEMA, SenderCount, StatsdServeReport};
use crate::statsd::message::{self, Metric};
use crate::sys::{MAX_DATAGRAM, Poller, RecvBatch};
use foldhash::fast::RandomState;
use std::collections::HashMap;
use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

/// Senders followed at most; datagrams of further ones are counted as a whole.
const MAX_SENDERS: usize = 4_096;
/// Sequence numbers behind the highest one that are remembered one by one: 8 KB per sender.
const WINDOW: u64 = 65_536;
const MAX_SLEEP: Duration = Duration::from_millis(5);

/// How the server listens.
#[derive(Debug, Clone)]
pub struct Config {
    /// Where it listens; port 0 lets the kernel choose.
    pub listen: SocketAddr,
    /// Its name, repeated in the report.
    pub tag: String,
}

/// Starts the server; it runs until stopped.
///
/// # Errors
/// [`Error::Option`] when the address cannot be bound.
pub fn start(config: &Config) -> Result<Server<StatsdServeReport>, Error> {
    let (socket, address) = responder::bind(config.listen, "listen")?;
    let tag = config.tag.clone();
    Server::start(address, move |shared| run(&socket, address, tag, shared))
}

fn run(socket: &UdpSocket, address: SocketAddr, tag: String, shared: &Shared) -> Result<StatsdServeReport, Error> {
    let mut poller = Poller::new().map_err(|e| Error::system("cannot make an epoll set", e))?;
    poller
        .add(socket, 0)
        .map_err(|e| Error::system("cannot watch the socket", e))?;
    let mut receive = RecvBatch::new(MAX_DATAGRAM);
    let mut senders: HashMap<(u32, u32), Sequence, RandomState> = HashMap::default();
    let (mut received, mut bytes, mut malformed, mut unfollowed) = (0, 0, 0, 0);
    let mut ready = Vec::new();
    while !shared.stopped() {
        poller
            .wait(MAX_SLEEP, &mut ready)
            .map_err(|e| Error::system("cannot wait for the socket", e))?;
        shared.sit_out_stall();
        if ready.drain(..).next().is_none() {
            continue;
        }
        // Level-triggered: errors and what is left come back with the next turn.
        let _ = receive.recv(socket, |datagram, _| {
            received += 1;
            bytes += datagram.len() as u64;
            let Some(Metric { run, sender, seq }) = message::parse(datagram) else {
                malformed += 1;
                return;
            };
            let followed = senders.len();
            match senders.get_mut(&(run, sender)) {
                Some(sequence) => sequence.received(seq),
                None if followed == MAX_SENDERS => unfollowed += 1,
                None => {
                    senders.insert((run, sender), Sequence::new(seq));
                }
            }
        });
    }
    let mut counts: Vec<_> = senders
        .into_iter()
        .map(|((run, sender), s)| s.into_count(run, sender))
        .collect();
    counts.sort_by(|a, b| (&a.run, a.sender).cmp(&(&b.run, b.sender)));
    Ok(StatsdServeReport {
        schema: SCHEMA.to_owned(),
        workload: "serve-statsd".to_owned(),
        listen: address.to_string(),
        tag,
        received,
        bytes,
        malformed,
        unfollowed,
        lost: counts.iter().map(|c| c.lost).sum(),
        duplicates: counts.iter().map(|c| c.duplicates).sum(),
        reordered: counts.iter().map(|c| c.reordered).sum(),
        senders: counts,
    })
}

/// Which sequence numbers of one sender came.
struct Sequence {
    lowest: u64,
    highest: u64,
    /// Datagrams with a number that had not come before.
    distinct: u64,
    duplicates: u64,
    reordered: u64,
    /// Came so far behind the highest number that it is not known whether for the first time.
    too_old: u64,
    /// Bit `n % WINDOW` for the numbers `highest - WINDOW < n ≤ highest`.
    window: Box<[u64]>,
}

impl Sequence {
    fn new(seq: u64) -> Self {
        let window = vec![0; (WINDOW / 64) as usize].into_boxed_slice();
        let mut sequence = Sequence {
            lowest: seq,
            highest: seq,
            distinct: 1,
            duplicates: 0,
            reordered: 0,
            too_old: 0,
            window,
        };
        sequence.set(seq);
        sequence
    }

    fn place(seq: u64) -> (usize, u64) {
        let bit = seq % WINDOW;
        ((bit / 64) as usize, 1 << (bit % 64))
    }

    fn set(&mut self, seq: u64) {
        let (word, bit) = Self::place(seq);
        self.window[word] |= bit;
    }

    fn received(&mut self, seq: u64) {
        if seq > self.highest {
            let gap = seq - self.highest;
            if gap >= WINDOW {
                self.window.fill(0);
            } else {
                for skipped in self.highest + 1..seq {
                    let (word, bit) = Self::place(skipped);
                    self.window[word] &= !bit;
                }
            }
            self.highest = seq;
            self.distinct += 1;
            self.set(seq);
            return;
        }
        if self.highest - seq >= WINDOW {
            self.too_old += 1;
            return;
        }
        let (word, bit) = Self::place(seq);
        if self.window[word] & bit != 0 {
            self.duplicates += 1;
        } else {
            self.window[word] |= bit;
            self.distinct += 1;
            self.reordered += 1;
            self.lowest = self.lowest.min(seq);
        }
    }

    fn into_count(self, run: u32, sender: u32) -> SenderCount {
        SenderCount {
            run: message::run_name(run),
            sender: u64::from(sender),
            received: self.distinct,
            lowest: self.lowest,
            highest: self.highest,
            lost: self.highest - self.lowest + 1 - self.distinct,
            duplicates: self.duplicates,
            reordered: self.reordered,
            too_old: self.too_old,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn counts_equal_those_of_a_plain_set(numbers in prop::collection::vec(0..300u64, 1..400), offset in 0..200_000u64) {
            let mut sequence: Option<Sequence> = None;
            let (mut seen, mut duplicates) = (BTreeSet::new(), 0);
            for n in numbers.iter().map(|n| n + offset) {
                duplicates += u64::from(!seen.insert(n));
                match &mut sequence {
                    Some(sequence) => sequence.received(n),
                    None => sequence = Some(Sequence::new(n)),
                }
            }
            if let (Some(sequence), Some(lowest), Some(highest)) = (sequence, seen.first(), seen.last()) {
                let count = sequence.into_count(1, 2);
                prop_assert_eq!((count.lowest, count.highest), (*lowest, *highest));
                prop_assert_eq!(count.received, seen.len() as u64);
                prop_assert_eq!(count.lost, highest - lowest + 1 - seen.len() as u64);
                prop_assert_eq!(count.duplicates, duplicates);
            }
        }
    }

    #[test]
    fn numbers_jumped_over_are_not_taken_for_those_a_window_earlier() {
        let mut sequence = Sequence::new(0);
        (1..WINDOW).for_each(|n| sequence.received(n));
        sequence.received(WINDOW + 10);
        sequence.received(WINDOW + 5);
        let count = sequence.into_count(0, 0);
        assert_eq!(
            (count.received, count.duplicates, count.reordered, count.lost),
            (WINDOW + 2, 0, 1, 9)
        );
    }

    #[test]
    fn a_jump_beyond_the_window_forgets_nothing_wrongly() {
        let mut sequence = Sequence::new(5);
        sequence.received(5 + 3 * WINDOW);
        sequence.received(5 + 2 * WINDOW); // exactly WINDOW behind: not known any more
        sequence.received(6 + 2 * WINDOW); // just inside: first time
        sequence.received(6 + 2 * WINDOW);
        let count = sequence.into_count(0, 0);
        assert_eq!(
            (count.received, count.too_old, count.duplicates, count.reordered),
            (3, 1, 1, 1)
        );
        assert_eq!(count.lost, 3 * WINDOW + 1 - 3);
    }
}
