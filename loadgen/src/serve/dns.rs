//! A DNS server that answers every name: TXT says who it is, A and AAAA a configured address.

use super::responder::{self, Reply, Responder};
use super::{Behaviour, Server};
use crate::dns::message::{A, AA, AAAA, HEADER, Header, IN, OPCODE, QR, Question, RA, RD, TC, TXT, Writer, edns_size};
use crate::error::Error;
use crate::report::ServeReport;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Seconds an answer may be cached: short, so that a cache in between notices a change of endpoint soon.
const TTL: u32 = 5;
/// UDP payload a client without EDNS takes (RFC 1035 §4.2.1).
const CLASSIC_SIZE: u16 = 512;
/// Address of the A record where none is configured or bound (documentation ranges, RFC 5737 and RFC 3849).
const DEFAULT_A: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const DEFAULT_AAAA: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);
/// Rcodes used for requests that are none.
const FORMERR: u16 = 1;
const NOTIMP: u16 = 4;

/// What the server answers.
#[derive(Debug, Clone)]
pub struct Config {
    /// Where it listens; port 0 lets the kernel choose.
    pub listen: SocketAddr,
    /// First string of TXT answers, at most 255 bytes.
    pub tag: String,
    /// A record; by default the address listened on, else 192.0.2.1.
    pub a: Option<Ipv4Addr>,
    /// AAAA record; by default the address listened on, else 2001:db8::1.
    pub aaaa: Option<Ipv6Addr>,
    /// Rcode of every answer; other than 0 (NOERROR) without records.
    pub rcode: u8,
    /// Fill TXT answers up to this size, 0 leaves them as they are. What the client cannot take (512 bytes, or what it
    /// announced by EDNS) is cut: TC and no records.
    pub size: usize,
    /// Set TC and leave the records out, always.
    pub truncate: bool,
    /// Answer with another id than asked.
    pub wrong_id: bool,
    /// Answer with another question than asked.
    pub wrong_question: bool,
    /// How requests are treated.
    pub behaviour: Behaviour,
}

impl Config {
    /// Well-behaved, on this address, under this tag.
    pub fn new(listen: SocketAddr, tag: &str) -> Self {
        Config {
            listen,
            tag: tag.to_owned(),
            a: None,
            aaaa: None,
            rcode: 0,
            size: 0,
            truncate: false,
            wrong_id: false,
            wrong_question: false,
            behaviour: Behaviour::default(),
        }
    }
}

/// Starts the server; it runs until stopped.
///
/// # Errors
/// [`Error::Option`] when an option cannot work or an address cannot be bound.
pub fn start(config: &Config) -> Result<Server, Error> {
    if config.tag.len() > 255 {
        return Err(Error::option("tag", "is longer than a TXT string can be, 255 bytes"));
    }
    if config.rcode > 15 {
        return Err(Error::option("rcode", format!("{} is not 0 to 15", config.rcode)));
    }
    if config.size > 65_000 {
        return Err(Error::option("size", "must be at most 65000 bytes"));
    }
    responder::start(config.listen, &config.tag, &config.behaviour, |address| {
        let (mut a, mut aaaa) = (DEFAULT_A, DEFAULT_AAAA);
        match address.ip() {
            ip if ip.is_unspecified() => {}
            IpAddr::V4(ip) => a = ip,
            IpAddr::V6(ip) => aaaa = ip,
        }
        Dns {
            a: config.a.unwrap_or(a),
            aaaa: config.aaaa.unwrap_or(aaaa),
            config: config.clone(),
            asked: [0; 4],
        }
    })
}

struct Dns {
    config: Config,
    a: Ipv4Addr,
    aaaa: Ipv6Addr,
    /// Requests by type, as `TYPES` names them.
    asked: [u64; 4],
}

impl Responder for Dns {
    const WORKLOAD: &'static str = "serve-dns";

    fn reply(&mut self, request: &[u8], buffer: &mut [u8], report: &mut ServeReport) -> Reply {
        let Some(header) = Header::parse(request).filter(|header| header.flags & QR == 0) else {
            return Reply::Malformed;
        };
        let id = if self.config.wrong_id {
            header.id ^ 0x5555
        } else {
            header.id
        };
        let flags = QR | (header.flags & (OPCODE | RD)) | RA;
        let error = |buffer: &mut [u8], rcode| {
            let written = Header {
                id,
                flags: flags | rcode,
                counts: [0; 4],
            }
            .write(buffer);
            written.map_or(Reply::Malformed, Reply::Send)
        };
        if header.flags & OPCODE != 0 {
            return error(buffer, NOTIMP);
        }
        let Some(question) = Question::parse(request).filter(|_| header.counts[0] == 1) else {
            return error(buffer, FORMERR);
        };
        self.asked[type_index(question.qtype)] += 1;
        let edns = edns_size(request, &header, question.end);
        let limit = usize::from(edns.unwrap_or(CLASSIC_SIZE).max(CLASSIC_SIZE)).min(buffer.len());
        if !self.config.truncate
            && let Some(length) = self.write(buffer, limit, true, id, flags, &question, edns)
        {
            return Reply::Send(length);
        }
        report.truncated += 1;
        let cut = self.write(buffer, limit, false, id, flags | TC, &question, edns);
        cut.map_or_else(|| error(buffer, FORMERR), Reply::Send)
    }

    fn finish(&mut self, report: &mut ServeReport) {
        let asked = TYPES.iter().zip(self.asked).filter(|&(_, n)| n > 0);
        report.by_type = asked.map(|(name, n)| ((*name).to_owned(), n)).collect();
    }
}

impl Dns {
    /// Writes header, question, the answer if `records`, and OPT if the client sent one; `None` when it is longer than
    /// `limit`.
    #[allow(clippy::too_many_arguments)]
    fn write(
        &self,
        buffer: &mut [u8],
        limit: usize,
        records: bool,
        id: u16,
        flags: u16,
        question: &Question,
        edns: Option<u16>,
    ) -> Option<usize> {
        let known = matches!(question.qtype, A | AAAA | TXT) && question.qclass == IN && self.config.rcode == 0;
        let answers = u16::from(records && known);
        let flags = flags | AA | u16::from(self.config.rcode);
        let buffer = buffer.get_mut(..limit)?;
        let at = Header {
            id,
            flags,
            counts: [1, answers, 0, u16::from(edns.is_some())],
        }
        .write(buffer)?;
        let mut writer = Writer::new(buffer, at);
        let name: &[u8] = if self.config.wrong_question {
            b"\x05wrong\x00"
        } else {
            question.name
        };
        writer.bytes(name).u16(question.qtype).u16(question.qclass);
        if answers > 0 {
            // The owner is the question's name.
            writer
                .u16(0xc000 | HEADER as u16)
                .u16(question.qtype)
                .u16(IN)
                .bytes(&TTL.to_be_bytes());
            match question.qtype {
                A => writer.u16(4).bytes(&self.a.octets()),
                AAAA => writer.u16(16).bytes(&self.aaaa.octets()),
                _ => self.text(&mut writer, at + name.len() + 4, edns.is_some()),
            };
        }
        if let Some(size) = edns {
            writer.opt(size);
        }
        writer.done()
    }

    /// TXT contents: the tag, then filler strings up to the size asked for.
    fn text<'a, 'b>(&self, writer: &'b mut Writer<'a>, question_end: usize, edns: bool) -> &'b mut Writer<'a> {
        const FIXED: usize = 12; // owner, type, class, TTL, length
        const OPT_SIZE: usize = 11;
        let tag = self.config.tag.as_bytes();
        let plain = question_end + FIXED + 1 + tag.len() + if edns { OPT_SIZE } else { 0 };
        let fill = self.config.size.saturating_sub(plain);
        // Both fit 16 bits: the tag has at most 255 bytes, the size at most 65 000.
        writer
            .u16((1 + tag.len() + fill) as u16)
            .bytes(&[tag.len() as u8])
            .bytes(tag);
        let mut left = fill;
        while left > 0 {
            let string = (left - 1).min(255);
            writer.bytes(&[string as u8]).bytes(&[b'.'; 255][..string]);
            left -= 1 + string;
        }
        writer
    }
}

const TYPES: [&str; 4] = ["A", "AAAA", "TXT", "other"];

fn type_index(qtype: u16) -> usize {
    match qtype {
        A => 0,
        AAAA => 1,
        TXT => 2,
        _ => 3,
    }
}
