//! DNS as the open-loop client sees it: how a query is written and what a right answer to it is.

use super::Identify;
use super::message::{A, AAAA, Header, IN, OPCODE, QR, Question, Record, Records, TC, TXT, first_text, write_query};
use crate::client::{Protocol, Query, Verdict, Who};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use std::net::IpAddr;
use std::sync::Arc;

/// A value that makes an answer right.
#[derive(Debug)]
pub(super) enum Expected {
    Text(Box<[u8]>),
    Address(IpAddr),
}

impl Expected {
    /// Could a record of this type have the value?
    pub fn fits(&self, rtype: u16) -> bool {
        match self {
            Expected::Text(_) => rtype == TXT,
            Expected::Address(IpAddr::V4(_)) => rtype == A,
            Expected::Address(IpAddr::V6(_)) => rtype == AAAA,
        }
    }

    fn is(&self, record: &Record) -> bool {
        match self {
            Expected::Text(text) => record.rtype == TXT && first_text(record.data) == Some(text),
            Expected::Address(expected) => address(record) == Some(*expected),
        }
    }
}

/// What all threads share.
#[derive(Debug)]
pub(super) struct Template {
    pub names: Vec<Box<[u8]>>,
    /// Types asked for as one unit, in this order.
    pub types: &'static [u16],
    pub edns: Option<u16>,
    pub identify: Option<Identify>,
    pub expect: Vec<Expected>,
    pub accept: [bool; 16],
}

impl Template {
    fn question(&self, seq: u64) -> (&[u8], u16) {
        let unit = self.types.len() as u64;
        let name = (seq / unit) % self.names.len() as u64;
        // Both are below the length of a list in memory.
        (&self.names[name as usize], self.types[(seq % unit) as usize])
    }
}

pub(super) struct Dns {
    template: Arc<Template>,
    random: SmallRng,
}

impl Dns {
    pub fn new(template: Arc<Template>) -> Self {
        Dns {
            template,
            random: SmallRng::from_rng(&mut rand::rng()),
        }
    }
}

fn address(record: &Record) -> Option<IpAddr> {
    match record.rtype {
        A => <[u8; 4]>::try_from(record.data).ok().map(IpAddr::from),
        AAAA => <[u8; 16]>::try_from(record.data).ok().map(IpAddr::from),
        _ => None,
    }
}

impl Protocol for Dns {
    const MAX_DATAGRAM: usize = crate::sys::MAX_DATAGRAM;

    fn group(&self) -> u64 {
        self.template.types.len() as u64
    }

    fn key(&mut self, _seq: u64) -> u64 {
        u64::from(self.random.random::<u16>())
    }

    fn write(&self, query: Query, buffer: &mut [u8]) -> usize {
        let (name, qtype) = self.template.question(query.seq);
        // Keys come from `key`, 16 bits.
        write_query(buffer, query.key as u16, name, qtype, self.template.edns)
    }

    fn key_of(&self, datagram: &[u8]) -> Option<u64> {
        let header = Header::parse(datagram)?;
        (header.flags & QR != 0 && header.flags & OPCODE == 0).then_some(u64::from(header.id))
    }

    fn judge<'a>(&self, query: Query, datagram: &'a [u8]) -> Verdict<'a> {
        let (name, qtype) = self.template.question(query.seq);
        let (Some(header), Some(question)) = (Header::parse(datagram), Question::parse(datagram)) else {
            return Verdict::Wrong;
        };
        let echoed = header.counts[0] == 1
            && question.qtype == qtype
            && question.qclass == IN
            && question.name.eq_ignore_ascii_case(name);
        if !echoed {
            return Verdict::Wrong;
        }
        let rcode = header.rcode();
        if !self.template.accept[usize::from(rcode)] {
            return Verdict::Refused { rcode };
        }
        let truncated = header.flags & TC != 0;
        let records = Records::new(datagram, question.end, usize::from(header.counts[1]));
        let expect = &self.template.expect;
        if !expect.is_empty() && rcode == 0 && !truncated {
            let mut wanted = records.clone().filter(|record| record.rtype == qtype);
            if !wanted.any(|record| expect.iter().any(|expected| expected.is(&record))) {
                return Verdict::Wrong;
            }
        }
        Verdict::Right {
            who: self.who(records, qtype),
            rcode: Some(rcode),
            truncated,
        }
    }
}

impl Dns {
    fn who<'a>(&self, mut records: Records<'a>, qtype: u16) -> Who<'a> {
        let Some(identify) = self.template.identify else {
            return Who::Unknown;
        };
        let Some(record) = records.find(|record| record.rtype == qtype) else {
            return Who::Unknown;
        };
        match identify {
            Identify::Txt => first_text(record.data).map_or(Who::Unknown, Who::Text),
            Identify::Address => address(&record).map_or(Who::Unknown, Who::Address),
        }
    }
}
