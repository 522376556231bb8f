//! Just enough DNS to ask a question and see who answered.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Question types the laboratory asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QType {
    /// IPv4 address.
    A,
    /// Text.
    Txt,
    /// IPv6 address.
    Aaaa,
}

impl QType {
    /// The number on the wire (RFC 1035, RFC 3596).
    pub fn number(self) -> u16 {
        match self {
            QType::A => 1,
            QType::Txt => 16,
            QType::Aaaa => 28,
        }
    }
}

/// A reply, reduced to what the laboratory needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DnsReply {
    /// The message id.
    pub id: u16,
    /// The response code; 0 is no error.
    pub rcode: u8,
    /// Addresses of the answer section.
    pub addresses: Vec<IpAddr>,
    /// Strings of TXT records of the answer section, in order.
    pub texts: Vec<String>,
}

/// A query in wire format with recursion desired. Labels longer than 63 bytes are cut.
pub fn query(id: u16, name: &str, qtype: QType) -> Vec<u8> {
    let mut wire = Vec::with_capacity(name.len() + 18);
    wire.extend(id.to_be_bytes());
    wire.extend([1, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
    for label in name.split('.').filter(|l| !l.is_empty()) {
        let label = &label.as_bytes()[..label.len().min(63)];
        wire.push(label.len() as u8);
        wire.extend(label);
    }
    wire.push(0);
    wire.extend(qtype.number().to_be_bytes());
    wire.extend([0, 1]);
    wire
}

/// A query of exactly `size` bytes: filled up by the padding option of EDNS (RFC 7830) with a pattern of printable bytes.
/// As short as it can be if `size` is too small for that.
pub fn padded_query(id: u16, name: &str, qtype: QType, size: usize) -> Vec<u8> {
    let mut wire = query(id, name, qtype);
    let Some(padding) = size
        .checked_sub(wire.len() + OPT_OVERHEAD)
        .and_then(|p| u16::try_from(p).ok())
    else {
        return wire;
    };
    wire[11] = 1;
    // Root name, OPT, 65,535 bytes of UDP payload accepted, no flags, length; option 12 and its length.
    wire.extend([0, 0, 41, 0xff, 0xff, 0, 0, 0, 0]);
    wire.extend((padding + 4).to_be_bytes());
    wire.extend([0, 12]);
    wire.extend(padding.to_be_bytes());
    wire.extend(pattern(usize::from(padding)));
    wire
}

/// A pattern in which a lost or repeated fragment shows: 23 does not divide any fragment's size.
fn pattern(size: usize) -> impl Iterator<Item = u8> {
    (0..size).map(|i| b'a' + (i % 23) as u8)
}

const OPT_OVERHEAD: usize = 15;

/// A reply to `request` with one TXT record: `tag`, then the bytes after the request's question in strings of at most 255
/// bytes. `None` if the request is no query with one question.
pub fn echo_reply(request: &[u8], tag: &str) -> Option<Vec<u8>> {
    if request.len() < 12 || request[2] & 0x80 != 0 || request[4..6] != [0, 1] {
        return None;
    }
    let question_end = skip_name(request, 12)? + 4;
    let (question, rest) = request.split_at_checked(question_end)?;
    let mut data = Vec::with_capacity(rest.len() + rest.len() / 255 + tag.len() + 2);
    for string in std::iter::once(tag.as_bytes()).chain(rest.chunks(255)) {
        data.push(string.len().min(255) as u8);
        data.extend(&string[..string.len().min(255)]);
    }
    let length = u16::try_from(data.len()).ok()?;
    let mut reply = question.to_vec();
    reply[2] |= 0x84;
    reply[6..12].copy_from_slice(&[0, 1, 0, 0, 0, 0]);
    reply.extend([0xc0, 12, 0, 16, 0, 1, 0, 0, 0, 0]);
    reply.extend(length.to_be_bytes());
    reply.extend(data);
    Some(reply)
}

/// Reads a reply; `None` if it is cut short or malformed.
pub fn parse_reply(wire: &[u8]) -> Option<DnsReply> {
    let number = |at: usize| Some(u16::from_be_bytes([*wire.get(at)?, *wire.get(at + 1)?]));
    let mut reply = DnsReply {
        id: number(0)?,
        rcode: wire.get(3)? & 15,
        addresses: Vec::new(),
        texts: Vec::new(),
    };
    if wire[2] & 0x80 == 0 {
        return None;
    }
    let (questions, answers) = (number(4)?, number(6)?);
    let mut at = 12;
    for _ in 0..questions {
        at = skip_name(wire, at)? + 4;
    }
    for _ in 0..answers {
        at = skip_name(wire, at)?;
        let (kind, length) = (number(at)?, usize::from(number(at + 8)?));
        let data = wire.get(at + 10..at + 10 + length)?;
        at += 10 + length;
        match (kind, length) {
            (1, 4) => reply
                .addresses
                .push(Ipv4Addr::from(<[u8; 4]>::try_from(data).ok()?).into()),
            (28, 16) => reply
                .addresses
                .push(Ipv6Addr::from(<[u8; 16]>::try_from(data).ok()?).into()),
            (16, 1..) => {
                let mut rest = data;
                while let Some((length, strings)) = rest.split_first() {
                    let (text, after) = strings.split_at_checked(usize::from(*length))?;
                    reply.texts.push(String::from_utf8_lossy(text).into_owned());
                    rest = after;
                }
            }
            _ => {}
        }
    }
    Some(reply)
}

fn skip_name(wire: &[u8], mut at: usize) -> Option<usize> {
    loop {
        match wire.get(at)? {
            0 => return Some(at + 1),
            pointer if pointer & 0xc0 == 0xc0 => return Some(at + 2),
            length => at += 1 + usize::from(*length),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn query_matches_rfc_1035() {
        let wire = query(0x1234, "a.lab", QType::A);
        assert_eq!(
            wire,
            b"\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x01a\x03lab\x00\x00\x01\x00\x01"
        );
    }

    #[test]
    fn padded_queries_have_their_size_and_come_back_whole() {
        for size in [44, 300, 4096, 8932, 65_000] {
            let wire = padded_query(9, "whoami.lab", QType::Txt, size);
            assert_eq!(wire.len(), size);
            let reply = parse_reply(&echo_reply(&wire, "tag").unwrap()).unwrap();
            assert_eq!((reply.id, reply.texts[0].as_str()), (9, "tag"));
            let back: Vec<u8> = reply.texts[1..].concat().into_bytes();
            let sent = String::from_utf8_lossy(&wire[query(9, "whoami.lab", QType::Txt).len()..]).into_owned();
            assert_eq!(String::from_utf8(back).unwrap(), sent);
        }
        assert_eq!(
            padded_query(9, "whoami.lab", QType::Txt, 5),
            query(9, "whoami.lab", QType::Txt)
        );
        assert_eq!(echo_reply(&[0; 30], "tag"), None);
    }

    #[test]
    fn reads_address_and_text_and_refuses_cut_replies() {
        let mut wire = query(7, "a.lab", QType::A);
        wire[2] |= 0x80;
        wire[7] = 2;
        wire.extend(b"\xc0\x0c\x00\x01\x00\x01\x00\x00\x00\x00\x00\x04\x0a\xf4\x01\x0b");
        wire.extend(b"\xc0\x0c\x00\x10\x00\x01\x00\x00\x00\x00\x00\x03\x02n1");
        let reply = parse_reply(&wire).unwrap();
        assert_eq!(reply.addresses, [IpAddr::from([10, 244, 1, 11])]);
        assert_eq!(reply.texts, ["n1"]);
        for end in 0..wire.len() {
            assert_eq!(parse_reply(&wire[..end]), None, "cut at {end}");
        }
    }
}
