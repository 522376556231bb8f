//! Bounded storage for datagrams that may have to be sent again: fixed chunks in one allocation, chained for longer ones.
//! The free list is a stack, so memory that is touched stays as small as what is really stored at once.

/// Bytes per chunk. Nearly all DNS queries fit into one.
pub const CHUNK: usize = 128;
const NONE: u32 = u32::MAX;

/// A stored datagram. Give it back with [`Chunks::free`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stored {
    first: u32,
    len: u32,
}

/// The storage.
pub struct Chunks {
    bytes: Vec<u8>,
    next: Vec<u32>,
    free: u32,
    capacity: usize,
    used: usize,
}

impl Chunks {
    /// Room for `bytes`, rounded down to whole chunks.
    pub fn new(bytes: usize) -> Self {
        let capacity = bytes / CHUNK;
        Self {
            bytes: Vec::with_capacity(capacity * CHUNK),
            next: Vec::with_capacity(capacity),
            free: NONE,
            capacity,
            used: 0,
        }
    }

    /// Bytes taken, whole chunks.
    pub fn used_bytes(&self) -> usize {
        self.used * CHUNK
    }

    /// Copies a datagram in; `None` when it does not fit.
    pub fn store(&mut self, datagram: &[u8]) -> Option<Stored> {
        let count = datagram.len().div_ceil(CHUNK).max(1);
        if self.used + count > self.capacity {
            return None;
        }
        // Built from the last piece to the first, so that each chunk knows its successor.
        let mut following = NONE;
        for piece in (0..count).rev() {
            let index = self.take();
            let part = &datagram[piece * CHUNK..datagram.len().min((piece + 1) * CHUNK)];
            let start = index as usize * CHUNK;
            self.bytes[start..start + part.len()].copy_from_slice(part);
            self.next[index as usize] = following;
            following = index;
        }
        Some(Stored {
            first: following,
            len: datagram.len() as u32,
        })
    }

    /// Copies a stored datagram to the front of `out` and returns that part; `None` where `out` is too short.
    pub fn read<'a>(&self, stored: Stored, out: &'a mut [u8]) -> Option<&'a [u8]> {
        let out = out.get_mut(..stored.len as usize)?;
        let mut index = stored.first;
        for part in out.chunks_mut(CHUNK) {
            let start = index as usize * CHUNK;
            part.copy_from_slice(&self.bytes[start..start + part.len()]);
            index = self.next[index as usize];
        }
        Some(out)
    }

    /// Gives a stored datagram's chunks back.
    pub fn free(&mut self, stored: Stored) {
        let count = (stored.len as usize).div_ceil(CHUNK).max(1);
        let mut index = stored.first;
        for _ in 0..count {
            let following = self.next[index as usize];
            self.next[index as usize] = self.free;
            self.free = index;
            index = following;
        }
        self.used -= count;
    }

    fn take(&mut self) -> u32 {
        self.used += 1;
        if self.free != NONE {
            let index = self.free;
            self.free = self.next[index as usize];
            return index;
        }
        // Within the capacity reserved at the start: no allocation.
        let index = self.next.len() as u32;
        self.next.push(NONE);
        self.bytes.resize(self.bytes.len() + CHUNK, 0);
        index
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn returns_what_was_stored_and_stays_bounded(ops in proptest::collection::vec((any::<bool>(), 0usize..1000), 1..100)) {
            let mut chunks = Chunks::new(64 * CHUNK);
            let mut live: Vec<(Stored, Vec<u8>)> = Vec::new();
            for (n, (remove, len)) in ops.into_iter().enumerate() {
                if remove && !live.is_empty() {
                    let (stored, _) = live.swap_remove(n % live.len());
                    chunks.free(stored);
                } else {
                    let datagram: Vec<u8> = (0..len).map(|i| (i + n) as u8).collect();
                    match chunks.store(&datagram) {
                        Some(stored) => live.push((stored, datagram)),
                        None => prop_assert!(chunks.used_bytes() + len.div_ceil(CHUNK).max(1) * CHUNK > 64 * CHUNK),
                    }
                }
                let mut out = [0; 1000];
                for (stored, datagram) in &live {
                    prop_assert_eq!(chunks.read(*stored, &mut out).unwrap(), &datagram[..]);
                }
                prop_assert!(chunks.used_bytes() <= 64 * CHUNK);
            }
            for (stored, _) in live {
                chunks.free(stored);
            }
            prop_assert_eq!(chunks.used_bytes(), 0);
        }
    }
}
