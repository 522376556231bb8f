//! As much of a DNS message as forwarding needs (RFC 1035 §4.1): the header and the question section. Nothing is ever
//! changed; a SERVFAIL of our own is the only message made here.

use std::hash::{BuildHasher, Hasher};

/// Length of the header.
pub const HEADER_LEN: usize = 12;
/// Opcode 0, the only one that may be asked twice.
pub const OPCODE_QUERY: u8 = 0;
const RCODE_SERVFAIL: u8 = 2;
/// RFC 1035 §3.1: a name has at most 255 octets.
const MAX_NAME: usize = 255;

/// The fields of a header that matter here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Message id.
    pub id: u16,
    /// QR: a response.
    pub response: bool,
    /// Opcode.
    pub opcode: u8,
    /// Response code (its low four bits; EDNS extends it elsewhere).
    pub rcode: u8,
    /// QDCOUNT.
    pub questions: u16,
}

/// Reads a header; `None` for anything shorter than one.
pub fn header(message: &[u8]) -> Option<Header> {
    let h = message.first_chunk::<HEADER_LEN>()?;
    Some(Header {
        id: u16::from_be_bytes([h[0], h[1]]),
        response: h[2] & 0x80 != 0,
        opcode: (h[2] >> 3) & 0x0f,
        rcode: h[3] & 0x0f,
        questions: u16::from_be_bytes([h[4], h[5]]),
    })
}

/// The bytes of the single question (name, type, class); `None` where there is not exactly one plain question. Names in
/// questions are never compressed.
pub fn question(message: &[u8]) -> Option<&[u8]> {
    if header(message)?.questions != 1 {
        return None;
    }
    let mut at = HEADER_LEN;
    loop {
        let len = usize::from(*message.get(at)?);
        if len > 63 || at - HEADER_LEN > MAX_NAME {
            return None;
        }
        at += 1 + len;
        if len == 0 {
            break;
        }
    }
    message.get(HEADER_LEN..at + 4)
}

/// A keyed hash of the question, blind to the case of letters (RFC 4343; a server may not echo the case it was asked
/// with). 0 where there is no plain question.
pub fn question_hash(message: &[u8], keys: &impl BuildHasher) -> u64 {
    let Some(question) = question(message) else {
        return 0;
    };
    let mut lower = [0u8; MAX_NAME + 8];
    let lower = &mut lower[..question.len()];
    lower.copy_from_slice(question);
    lower.make_ascii_lowercase();
    let mut hasher = keys.build_hasher();
    hasher.write(lower);
    // 0 means "no question".
    hasher.finish().max(1)
}

/// Answers a query with SERVFAIL: its id, opcode, RD and question (RFC 1035 §4.1.1, RFC 2308 §7.1). `None` where the
/// query has no header.
pub fn servfail<'a>(query: &[u8], out: &'a mut [u8]) -> Option<&'a [u8]> {
    let head = query.first_chunk::<HEADER_LEN>()?;
    let question = question(query).unwrap_or(&[]);
    let out = out.get_mut(..HEADER_LEN + question.len())?;
    out[..2].copy_from_slice(&head[..2]);
    // QR=1; opcode and RD as asked; AA and TC clear.
    out[2] = 0x80 | (head[2] & 0x79);
    // RA set: whoever answers for the Service recurses. CD as asked.
    out[3] = 0x80 | (head[3] & 0x10) | RCODE_SERVFAIL;
    out[4..6].copy_from_slice(&u16::from(!question.is_empty()).to_be_bytes());
    out[6..HEADER_LEN].fill(0);
    out[HEADER_LEN..].copy_from_slice(question);
    Some(out)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use foldhash::fast::FixedState;
    use proptest::prelude::*;

    pub fn query(id: u16, name: &str, qtype: u16) -> Vec<u8> {
        let mut m = id.to_be_bytes().to_vec();
        m.extend([0x01, 0x00, 0, 1, 0, 0, 0, 0, 0, 0]);
        for label in name.split('.') {
            m.push(label.len() as u8);
            m.extend(label.as_bytes());
        }
        m.push(0);
        m.extend(qtype.to_be_bytes());
        m.extend([0, 1]);
        m
    }

    #[test]
    fn reads_header_and_question() {
        let m = query(0x1234, "kubernetes.default.svc.cluster.local", 28);
        let h = header(&m).unwrap();
        assert_eq!((h.id, h.response, h.opcode, h.questions), (0x1234, false, 0, 1));
        assert_eq!(question(&m).unwrap(), &m[12..]);
    }

    #[test]
    fn hash_ignores_case_but_not_name_or_type() {
        let keys = FixedState::with_seed(1);
        let a = question_hash(&query(1, "Example.com", 1), &keys);
        assert_eq!(a, question_hash(&query(2, "eXAMPLE.COM", 1), &keys));
        assert_ne!(a, question_hash(&query(1, "example.com", 28), &keys));
        assert_ne!(a, question_hash(&query(1, "example.org", 1), &keys));
    }

    #[test]
    fn what_follows_the_question_does_not_matter() {
        let keys = FixedState::with_seed(1);
        let mut with_edns = query(1, "example.com", 1);
        with_edns.extend([0, 0, 41, 16, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(
            question_hash(&with_edns, &keys),
            question_hash(&query(9, "example.com", 1), &keys)
        );
    }

    #[test]
    fn servfail_echoes_id_and_question() {
        let q = query(77, "a.b", 1);
        let mut out = [0; 512];
        let answer = servfail(&q, &mut out).unwrap();
        let h = header(answer).unwrap();
        assert_eq!((h.id, h.response, h.rcode, h.questions), (77, true, 2, 1));
        assert_eq!(question(answer), question(&q));
        assert_eq!(answer.len(), q.len());
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
            let keys = FixedState::with_seed(1);
            header(&bytes);
            question_hash(&bytes, &keys);
            let mut out = [0; 512];
            if let Some(answer) = servfail(&bytes, &mut out) {
                prop_assert!(header(answer).unwrap().response);
            }
        }

        #[test]
        fn long_names_never_panic(labels in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..64), 0..20)) {
            let mut m = vec![0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0];
            for label in labels {
                m.push(label.len() as u8);
                m.extend(label);
            }
            m.extend([0, 0, 1, 0, 1]);
            let keys = FixedState::with_seed(1);
            question_hash(&m, &keys);
            servfail(&m, &mut [0; 512]);
        }
    }
}
