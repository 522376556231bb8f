//! What sockets and sends are, packed into the numbers that the engine carries for us.

use crate::flow::dns::SendTag;

/// What a socket is for, packed into the engine's token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Token {
    Probe,
    Upstream(u16),
    Vip(u32),
}

impl Token {
    pub fn pack(self) -> u32 {
        match self {
            Self::Probe => 0,
            Self::Upstream(n) => 1 << 28 | u32::from(n),
            Self::Vip(n) => 2 << 28 | n,
        }
    }

    pub fn unpack(token: u32) -> Self {
        match token >> 28 {
            0 => Self::Probe,
            1 => Self::Upstream(token as u16),
            _ => Self::Vip(token & 0x0fff_ffff),
        }
    }
}

/// What a send was, packed into the engine's 56-bit tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tag {
    Probe,
    Reply(u32),
    Query(u16, SendTag),
    /// A datagram of a one-way client or of a flow: nothing is kept of it but a record under this number.
    Forward(u32),
}

impl Tag {
    pub fn pack(self) -> u64 {
        match self {
            Self::Probe => 0,
            Self::Reply(service) => 1 << 54 | u64::from(service),
            Self::Query(socket, tag) => 2 << 54 | u64::from(socket) << SendTag::BITS | tag.0,
            Self::Forward(record) => 3 << 54 | u64::from(record),
        }
    }

    pub fn unpack(tag: u64) -> Self {
        match tag >> 54 {
            0 => Self::Probe,
            1 => Self::Reply(tag as u32),
            3 => Self::Forward(tag as u32),
            _ => {
                let socket = (tag >> SendTag::BITS) & 0x1fff;
                Self::Query(socket as u16, SendTag(tag & ((1 << SendTag::BITS) - 1)))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_and_tags_survive_packing() {
        for token in [
            Token::Probe,
            Token::Upstream(0),
            Token::Upstream(511),
            Token::Vip(0),
            Token::Vip(100_000),
        ] {
            assert_eq!(Token::unpack(token.pack()), token);
        }
        let tags = [
            Tag::Probe,
            Tag::Reply(0),
            Tag::Reply(70_000),
            Tag::Query(0, SendTag(0)),
            Tag::Query(8191, SendTag((1 << SendTag::BITS) - 1)),
            Tag::Forward(u32::MAX),
        ];
        for tag in tags {
            assert!(tag.pack() < 1 << 56);
            assert_eq!(Tag::unpack(tag.pack()), tag);
        }
    }
}
