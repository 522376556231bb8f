//! DNS messages (RFC 1035 §4, EDNS RFC 6891): writes queries, reads headers, questions and answers in place, without
//! allocating. Just enough for a load generator; it is no resolver and follows no compression pointers.

/// Fixed part of a message.
pub const HEADER: usize = 12;
/// Record type A.
pub const A: u16 = 1;
/// Record type TXT.
pub const TXT: u16 = 16;
/// Record type AAAA.
pub const AAAA: u16 = 28;
/// Record type OPT (RFC 6891).
pub const OPT: u16 = 41;
/// Class IN.
pub const IN: u16 = 1;

/// Header flag: this is an answer.
pub const QR: u16 = 0x8000;
/// Header flag: authoritative.
pub const AA: u16 = 0x0400;
/// Header flag: truncated.
pub const TC: u16 = 0x0200;
/// Header flag: recursion desired.
pub const RD: u16 = 0x0100;
/// Header flag: recursion available.
pub const RA: u16 = 0x0080;
/// The four bits of the opcode; QUERY is 0.
pub const OPCODE: u16 = 0x7800;

/// Longest name on the wire (RFC 1035 §2.3.4).
const MAX_NAME: usize = 255;
/// Records looked at per message.
const MAX_RECORDS: usize = 64;

/// Why a text is no domain name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{name}' is not a domain name: {why}")]
pub struct NameError {
    name: String,
    why: &'static str,
}

/// A domain name in wire format: labels of 1 to 63 bytes, 255 bytes in all. The final dot is optional.
pub fn encode_name(name: &str) -> Result<Box<[u8]>, NameError> {
    let error = |why| NameError {
        name: name.to_owned(),
        why,
    };
    let mut wire = Vec::with_capacity(name.len() + 2);
    for label in name
        .strip_suffix('.')
        .unwrap_or(name)
        .split('.')
        .filter(|_| name != "." && !name.is_empty())
    {
        match u8::try_from(label.len()) {
            Ok(0) => return Err(error("it has an empty label")),
            Ok(length @ 1..=63) => wire.push(length),
            _ => return Err(error("a label is longer than 63 bytes")),
        }
        if !label.bytes().all(|b| b.is_ascii_graphic()) {
            return Err(error("it has characters other than visible ASCII"));
        }
        wire.extend_from_slice(label.as_bytes());
    }
    wire.push(0);
    if name.is_empty() {
        return Err(error("it is empty"));
    }
    if wire.len() > MAX_NAME {
        return Err(error("it is longer than 255 bytes"));
    }
    Ok(wire.into_boxed_slice())
}

fn u16_at(message: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(message.get(at..at + 2)?.try_into().ok()?))
}

/// The fixed part of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Message id.
    pub id: u16,
    /// QR, opcode, AA, TC, RD, RA, rcode.
    pub flags: u16,
    /// Number of questions, answers, authority and additional records.
    pub counts: [u16; 4],
}

impl Header {
    /// Reads it; `None` when the message is too short.
    pub fn parse(message: &[u8]) -> Option<Self> {
        let at = |i| u16_at(message, i);
        Some(Header {
            id: at(0)?,
            flags: at(2)?,
            counts: [at(4)?, at(6)?, at(8)?, at(10)?],
        })
    }

    /// The response code's lower four bits.
    pub fn rcode(&self) -> u8 {
        (self.flags & 15) as u8
    }

    /// Writes it; the buffer must have 12 bytes.
    pub fn write(&self, buffer: &mut [u8]) -> Option<usize> {
        let words = [
            self.id,
            self.flags,
            self.counts[0],
            self.counts[1],
            self.counts[2],
            self.counts[3],
        ];
        for (word, place) in words.into_iter().zip(buffer.get_mut(..HEADER)?.chunks_exact_mut(2)) {
            place.copy_from_slice(&word.to_be_bytes());
        }
        Some(HEADER)
    }
}

/// The first question of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Question<'a> {
    /// Name in wire format.
    pub name: &'a [u8],
    /// Record type asked for.
    pub qtype: u16,
    /// Class asked for.
    pub qclass: u16,
    /// Where the question ends in the message.
    pub end: usize,
}

impl<'a> Question<'a> {
    /// Reads the question right after the header. Its name must be written out: there is nothing before it that a
    /// compression pointer could point to.
    pub fn parse(message: &'a [u8]) -> Option<Self> {
        let end = name_end(message, HEADER)?;
        let name = message.get(HEADER..end)?;
        if name.last() != Some(&0) {
            return None;
        }
        Some(Question {
            name,
            qtype: u16_at(message, end)?,
            qclass: u16_at(message, end + 2)?,
            end: end + 4,
        })
    }
}

/// Where the name at `at` ends: after its root label or its compression pointer, which is not followed.
fn name_end(message: &[u8], mut at: usize) -> Option<usize> {
    let start = at;
    loop {
        let length = usize::from(*message.get(at)?);
        match length {
            0 => return Some(at + 1),
            1..=63 => at += 1 + length,
            0xc0.. => return message.get(at + 1).map(|_| at + 2),
            _ => return None,
        }
        if at - start >= MAX_NAME {
            return None;
        }
    }
}

/// One resource record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record<'a> {
    /// Type.
    pub rtype: u16,
    /// Class; for OPT the sender's UDP payload size.
    pub class: u16,
    /// Contents.
    pub data: &'a [u8],
}

/// Records from one place of a message on, as long as they are well-formed.
#[derive(Debug, Clone)]
pub struct Records<'a> {
    message: &'a [u8],
    at: usize,
    left: usize,
}

impl<'a> Records<'a> {
    /// The first `count` records (at most 64) from offset `at`.
    pub fn new(message: &'a [u8], at: usize, count: usize) -> Self {
        Records {
            message,
            at,
            left: count.min(MAX_RECORDS),
        }
    }
}

impl<'a> Iterator for Records<'a> {
    type Item = Record<'a>;

    fn next(&mut self) -> Option<Record<'a>> {
        self.left = self.left.checked_sub(1)?;
        let at = name_end(self.message, self.at)?;
        let length = usize::from(u16_at(self.message, at + 8)?);
        let data = self.message.get(at + 10..at + 10 + length)?;
        let record = Record {
            rtype: u16_at(self.message, at)?,
            class: u16_at(self.message, at + 2)?,
            data,
        };
        self.at = at + 10 + length;
        Some(record)
    }
}

/// The UDP payload size of a message's OPT record, if it has one.
pub fn edns_size(message: &[u8], header: &Header, question_end: usize) -> Option<u16> {
    let count = header.counts[1..].iter().map(|&n| usize::from(n)).sum();
    Records::new(message, question_end, count)
        .find(|record| record.rtype == OPT)
        .map(|record| record.class)
}

/// The first character-string of TXT record contents.
pub fn first_text(data: &[u8]) -> Option<&[u8]> {
    let (&length, rest) = data.split_first()?;
    rest.get(..usize::from(length))
}

/// Appends to a buffer; stays where it is once something did not fit.
pub struct Writer<'a> {
    buffer: &'a mut [u8],
    at: usize,
    full: bool,
}

impl<'a> Writer<'a> {
    /// Starts at offset `at`.
    pub fn new(buffer: &'a mut [u8], at: usize) -> Self {
        Writer {
            buffer,
            at,
            full: false,
        }
    }

    /// Appends bytes.
    pub fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        match self.buffer.get_mut(self.at..self.at + bytes.len()) {
            Some(place) if !self.full => {
                place.copy_from_slice(bytes);
                self.at += bytes.len();
            }
            _ => self.full = true,
        }
        self
    }

    /// Appends a number in network order.
    pub fn u16(&mut self, value: u16) -> &mut Self {
        self.bytes(&value.to_be_bytes())
    }

    /// Appends an OPT record with this UDP payload size and nothing else.
    pub fn opt(&mut self, size: u16) -> &mut Self {
        self.bytes(&[0]).u16(OPT).u16(size).bytes(&[0; 6])
    }

    /// The length so far; `None` when something did not fit.
    pub fn done(&self) -> Option<usize> {
        (!self.full).then_some(self.at)
    }
}

/// Writes a query with one question, recursion desired and, if asked, an OPT record. Returns its length, 0 when it
/// does not fit.
pub fn write_query(buffer: &mut [u8], id: u16, name: &[u8], qtype: u16, edns: Option<u16>) -> usize {
    let header = Header {
        id,
        flags: RD,
        counts: [1, 0, 0, u16::from(edns.is_some())],
    };
    let Some(at) = header.write(buffer) else { return 0 };
    let mut writer = Writer::new(buffer, at);
    writer.bytes(name).u16(qtype).u16(IN);
    if let Some(size) = edns {
        writer.opt(size);
    }
    writer.done().unwrap_or(0)
}

/// The usual name of an rcode (the IANA registry's first ones).
pub fn rcode_name(rcode: u8) -> String {
    match rcode {
        0 => "NOERROR".to_owned(),
        1 => "FORMERR".to_owned(),
        2 => "SERVFAIL".to_owned(),
        3 => "NXDOMAIN".to_owned(),
        4 => "NOTIMP".to_owned(),
        5 => "REFUSED".to_owned(),
        other => format!("RCODE{other}"),
    }
}

/// The rcode of a name or number from 0 to 15.
pub fn rcode_from(text: &str) -> Option<u8> {
    let upper = text.to_ascii_uppercase();
    (0..16)
        .find(|&rcode| rcode_name(rcode) == upper)
        .or_else(|| text.parse().ok().filter(|&rcode| rcode < 16))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn query_is_what_rfc_1035_says() {
        let mut buffer = [0; 512];
        let name = encode_name("n1.example.").unwrap();
        let length = write_query(&mut buffer, 0xabcd, &name, TXT, Some(1232));
        let expected = b"\xab\xcd\x01\x00\x00\x01\x00\x00\x00\x00\x00\x01\x02n1\x07example\x00\x00\x10\x00\x01\
            \x00\x00\x29\x04\xd0\x00\x00\x00\x00\x00\x00";
        assert_eq!(&buffer[..length], expected);
        let header = Header::parse(&buffer[..length]).unwrap();
        let question = Question::parse(&buffer[..length]).unwrap();
        assert_eq!(
            (header.id, question.name, question.qtype, question.qclass),
            (0xabcd, &*name, TXT, IN)
        );
        assert_eq!(edns_size(&buffer[..length], &header, question.end), Some(1232));
    }

    #[test]
    fn names_are_checked() {
        assert_eq!(*encode_name(".").unwrap(), [0]);
        assert_eq!(*encode_name("a.b").unwrap(), *encode_name("a.b.").unwrap());
        for bad in [
            "",
            "a..b",
            ".a",
            &"x".repeat(64),
            &["x".repeat(63).as_str(); 4].join("."),
            "a b",
            "ä",
        ] {
            assert!(encode_name(bad).is_err(), "{bad}");
        }
        assert!(encode_name(&["x".repeat(63).as_str(); 3].join(".")).is_ok());
    }

    #[test]
    fn compressed_owner_names_are_skipped_and_pointers_never_followed() {
        // Header, question "a", answer with a pointer to itself as owner, type A.
        let mut message = vec![0, 1, 0x80, 0, 0, 1, 0, 1, 0, 0, 0, 0, 1, b'a', 0, 0, 1, 0, 1];
        message.extend([0xc0, 19, 0, 1, 0, 1, 0, 0, 0, 9, 0, 4, 192, 0, 2, 1]);
        let question = Question::parse(&message).unwrap();
        let record = Records::new(&message, question.end, 1).next().unwrap();
        assert_eq!((record.rtype, record.data), (A, &[192, 0, 2, 1][..]));
        // A question whose name is a pointer is refused.
        message[12] = 0xc0;
        assert_eq!(Question::parse(&message), None);
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic_and_records_stay_inside(message in prop::collection::vec(any::<u8>(), 0..600)) {
            if let (Some(header), Some(question)) = (Header::parse(&message), Question::parse(&message)) {
                prop_assert!(question.end <= message.len());
                let _ = edns_size(&message, &header, question.end);
                let records: Vec<_> = Records::new(&message, question.end, usize::MAX).collect();
                prop_assert!(records.len() <= MAX_RECORDS);
                prop_assert!(records.iter().map(|r| r.data.len() + 11).sum::<usize>() <= message.len());
                for record in records {
                    let _ = first_text(record.data);
                }
            }
        }

        #[test]
        fn queries_read_back(labels in prop::collection::vec("[a-z0-9_-]{1,20}", 1..6), id: u16, qtype: u16,
                             edns in prop::option::of(any::<u16>())) {
            let name = encode_name(&labels.join(".")).unwrap();
            let mut buffer = [0; 512];
            let length = write_query(&mut buffer, id, &name, qtype, edns);
            let header = Header::parse(&buffer[..length]).unwrap();
            let question = Question::parse(&buffer[..length]).unwrap();
            prop_assert_eq!((header.id, question.name, question.qtype), (id, &*name, qtype));
            prop_assert_eq!(edns_size(&buffer[..length], &header, question.end), edns);
        }
    }
}
