//! The datagrams of `udp` and `serve udp`.
//!
//! 24 bytes of header: magic `NWDG`, kind (0 request, 1 reply), length of the tag, length of the datagram (16 bits),
//! run (64 bits), sequence number (64 bits), all in network order. Then the server's tag, in replies, and then bytes that
//! follow from run, sequence number and position, so that a cut, mixed or damaged datagram is noticed.

/// Length of the header.
pub const HEADER: usize = 24;
const MAGIC: [u8; 4] = *b"NWDG";

/// Request or reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// From a client.
    Request,
    /// From a server.
    Reply,
}

/// A datagram read in place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Payload<'a> {
    /// Request or reply.
    pub kind: Kind,
    /// Length the sender gave the datagram.
    pub length: usize,
    /// The run it belongs to.
    pub run: u64,
    /// Its number in the run.
    pub seq: u64,
    /// Who answered; empty in requests.
    pub tag: &'a [u8],
    filler: &'a [u8],
}

/// Eight filler bytes (the finaliser of SplitMix64, so that neighbours have nothing in common).
fn word(run: u64, seq: u64, index: usize) -> [u8; 8] {
    let mut z = run ^ seq.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (index as u64) << 48;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (z ^ (z >> 31)).to_be_bytes()
}

/// Writes a datagram of `size` bytes, at least the header; the tag is left out when it does not fit. Returns its
/// length, 0 when the buffer is too small.
pub fn write(buffer: &mut [u8], size: usize, kind: Kind, run: u64, seq: u64, tag: &[u8]) -> usize {
    let size = size.max(HEADER);
    let tag = if tag.len() <= (size - HEADER).min(255) {
        tag
    } else {
        b""
    };
    let (Ok(length), Some(datagram)) = (u16::try_from(size), buffer.get_mut(..size)) else {
        return 0;
    };
    let (header, rest) = datagram.split_at_mut(HEADER);
    header[..4].copy_from_slice(&MAGIC);
    header[4] = u8::from(kind == Kind::Reply);
    header[5] = tag.len() as u8;
    header[6..8].copy_from_slice(&length.to_be_bytes());
    header[8..16].copy_from_slice(&run.to_be_bytes());
    header[16..24].copy_from_slice(&seq.to_be_bytes());
    let (place, filler) = rest.split_at_mut(tag.len());
    place.copy_from_slice(tag);
    for (index, chunk) in filler.chunks_mut(8).enumerate() {
        chunk.copy_from_slice(&word(run, seq, index)[..chunk.len()]);
    }
    size
}

impl<'a> Payload<'a> {
    /// Reads a datagram; `None` when it is none of ours.
    pub fn parse(datagram: &'a [u8]) -> Option<Self> {
        let (header, rest) = datagram.split_at_checked(HEADER)?;
        let kind = match (header.strip_prefix(&MAGIC)?, header[4]) {
            (_, 0) => Kind::Request,
            (_, 1) => Kind::Reply,
            _ => return None,
        };
        let number = |at: usize| Some(u64::from_be_bytes(header.get(at..at + 8)?.try_into().ok()?));
        let (tag, filler) = rest.split_at_checked(usize::from(header[5]))?;
        let length = usize::from(u16::from_be_bytes([header[6], header[7]]));
        Some(Payload {
            kind,
            length,
            run: number(8)?,
            seq: number(16)?,
            tag,
            filler,
        })
    }

    /// Has it the length it was sent with and every byte as it was?
    pub fn is_whole(&self) -> bool {
        self.length == HEADER + self.tag.len() + self.filler.len()
            && self
                .filler
                .chunks(8)
                .enumerate()
                .all(|(i, chunk)| *chunk == word(self.run, self.seq, i)[..chunk.len()])
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn written_reads_back_and_any_change_is_noticed(
            size in HEADER..2000usize, run: u64, seq: u64, tag in "[a-z]{0,40}", at: prop::sample::Index, bit in 0..8u8,
        ) {
            let mut buffer = vec![0; 2000];
            let length = write(&mut buffer, size, Kind::Reply, run, seq, tag.as_bytes());
            prop_assert_eq!(length, size);
            let payload = Payload::parse(&buffer[..length]).unwrap();
            prop_assert!(payload.is_whole());
            prop_assert_eq!((payload.run, payload.seq, payload.kind), (run, seq, Kind::Reply));
            prop_assert_eq!(payload.tag, if tag.len() <= size - HEADER { tag.as_bytes() } else { b"" });
            // Cut, and damaged behind the header.
            prop_assert!(Payload::parse(&buffer[..length - 1]).is_none_or(|p| !p.is_whole()));
            let tag_end = HEADER + payload.tag.len();
            if length > tag_end {
                let at = tag_end + at.index(length - tag_end);
                buffer[at] ^= 1 << bit;
                prop_assert!(!Payload::parse(&buffer[..length]).unwrap().is_whole());
            }
        }

        #[test]
        fn arbitrary_bytes_never_panic(datagram in prop::collection::vec(any::<u8>(), 0..100)) {
            let mut ours = MAGIC.to_vec();
            ours.extend(&datagram);
            for bytes in [&datagram, &ours] {
                if let Some(payload) = Payload::parse(bytes) {
                    let _ = payload.is_whole();
                }
            }
        }
    }
}
