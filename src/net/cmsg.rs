//! Control messages (`struct cmsghdr`), read byte by byte: no pointers are followed, so no input can mislead the reader.

/// `struct cmsghdr`: length (a `size_t`), level, type; the data follows, each message padded to the word size.
const HEADER: usize = size_of::<usize>() + 8;
const ALIGN: usize = size_of::<usize>();

/// Space that `n` bytes of control data take in a control buffer (`CMSG_SPACE`).
pub const fn space(n: usize) -> usize {
    HEADER + n.next_multiple_of(ALIGN)
}

/// One control message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cmsg<'a> {
    /// `cmsg_level`.
    pub level: i32,
    /// `cmsg_type`.
    pub kind: i32,
    /// The data.
    pub data: &'a [u8],
}

/// The control messages of a buffer the kernel filled. A message with an impossible length ends the iteration.
pub fn iter(mut control: &[u8]) -> impl Iterator<Item = Cmsg<'_>> {
    std::iter::from_fn(move || {
        let len = usize::from_ne_bytes(control.get(..ALIGN)?.try_into().ok()?);
        let level = i32::from_ne_bytes(control.get(ALIGN..ALIGN + 4)?.try_into().ok()?);
        let kind = i32::from_ne_bytes(control.get(ALIGN + 4..HEADER)?.try_into().ok()?);
        let data = control.get(HEADER..len)?;
        let step = len.checked_next_multiple_of(ALIGN)?;
        control = control.get(step..).unwrap_or(&[]);
        Some(Cmsg { level, kind, data })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn encode(messages: &[(i32, i32, Vec<u8>)]) -> Vec<u8> {
        let mut out = Vec::new();
        for (level, kind, data) in messages {
            out.extend((HEADER + data.len()).to_ne_bytes());
            out.extend(level.to_ne_bytes());
            out.extend(kind.to_ne_bytes());
            out.extend(data);
            out.resize(out.len().next_multiple_of(ALIGN), 0);
        }
        out
    }

    proptest! {
        #[test]
        fn reads_what_was_written(messages in proptest::collection::vec((any::<i32>(), any::<i32>(), proptest::collection::vec(any::<u8>(), 0..64)), 0..5)) {
            let bytes = encode(&messages);
            let read: Vec<_> = iter(&bytes).map(|c| (c.level, c.kind, c.data.to_vec())).collect();
            prop_assert_eq!(read, messages);
        }

        #[test]
        fn arbitrary_bytes_never_panic_and_never_repeat_for_ever(bytes in proptest::collection::vec(any::<u8>(), 0..512)) {
            prop_assert!(iter(&bytes).count() <= bytes.len() / HEADER + 1);
        }

        #[test]
        fn hostile_lengths_never_panic(len: usize, rest in proptest::collection::vec(any::<u8>(), 0..64)) {
            let mut bytes = len.to_ne_bytes().to_vec();
            bytes.extend(rest);
            prop_assert!(iter(&bytes).count() <= bytes.len());
        }
    }
}
