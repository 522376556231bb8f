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
    /// Strings of TXT records of the answer section.
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
                let text = data.get(1..1 + usize::from(data[0]))?;
                reply.texts.push(String::from_utf8_lossy(text).into_owned());
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
