//! The DNS client: queries for a list of names, answers checked against their question, answerers told apart by what
//! they answer. Only opcode QUERY is ever sent.

pub mod message;
mod protocol;

pub use message::{rcode_from, rcode_name};

use crate::client::{self, Load};
use crate::error::Error;
use crate::report::Report;
use protocol::{Dns, Expected, Template};
use std::net::SocketAddr;
use std::sync::Arc;

/// Which record types are asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueryType {
    /// IPv4 address.
    A,
    /// IPv6 address.
    Aaaa,
    /// Text.
    Txt,
    /// A and AAAA back-to-back on one socket, as libc resolvers do. Each counts as a query.
    Pair,
}

/// Which part of an answer says who gave it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Identify {
    /// The first string of the first TXT record.
    Txt,
    /// The address of the first A or AAAA record.
    Address,
}

/// What to ask, how to judge, how much of it.
#[derive(Debug, Clone)]
pub struct Config {
    /// Rate, ports, timeouts.
    pub load: Load,
    /// Names asked for in turn.
    pub names: Vec<String>,
    /// Record types asked for.
    pub query_type: QueryType,
    /// UDP payload size to announce by EDNS; `None` sends no OPT record.
    pub edns: Option<u16>,
    /// How answerers are told apart.
    pub identify: Option<Identify>,
    /// If not empty, an answer is right only if a record of the type asked for has one of these values (an address or
    /// the first string of a TXT record). Answers with TC are not checked: their records may be missing.
    pub expect: Vec<String>,
    /// Rcodes that are right answers. Others end the query as failed.
    pub accept_rcodes: Vec<u8>,
}

impl Config {
    /// A queries for `nodeward.test`, NOERROR expected.
    pub fn new(server: SocketAddr) -> Self {
        Config {
            load: Load::new(server),
            names: vec!["nodeward.test".to_owned()],
            query_type: QueryType::A,
            edns: None,
            identify: None,
            expect: vec![],
            accept_rcodes: vec![0],
        }
    }
}

/// Sends the queries and waits for the outcome of each. Blocks for the duration, the timeout and the linger time.
///
/// # Errors
/// [`Error::Option`] before anything is sent; [`Error::System`] when sockets cannot be watched.
pub fn run(config: &Config) -> Result<Report, Error> {
    let template = Arc::new(template(config)?);
    let mut report = client::run("dns", &config.load, || Dns::new(template.clone()))?;
    let by_number = std::mem::take(&mut report.rcodes);
    report.rcodes = by_number
        .into_iter()
        .map(|(number, n)| (named_rcode(&number), n))
        .collect();
    Ok(report)
}

fn named_rcode(number: &str) -> String {
    number.parse().map_or_else(|_| number.to_owned(), rcode_name)
}

fn template(config: &Config) -> Result<Template, Error> {
    if config.names.is_empty() {
        return Err(Error::option("names", "there is no name to ask for"));
    }
    let names = config
        .names
        .iter()
        .map(|name| message::encode_name(name))
        .collect::<Result<Vec<_>, _>>()
        .map_err(|e| Error::option("name", e.to_string()))?;
    if config.edns.is_some_and(|size| size < 512) {
        return Err(Error::option("edns", "must be at least 512 bytes (RFC 6891)"));
    }
    let types: &[u16] = match config.query_type {
        QueryType::A => &[message::A],
        QueryType::Aaaa => &[message::AAAA],
        QueryType::Txt => &[message::TXT],
        QueryType::Pair => &[message::A, message::AAAA],
    };
    match (config.identify, config.query_type) {
        (Some(Identify::Txt), QueryType::Txt) | (None, _) => {}
        (Some(Identify::Txt), _) => return Err(Error::option("identify", "txt needs --type TXT")),
        (Some(Identify::Address), QueryType::Txt) => {
            return Err(Error::option("identify", "a needs --type A, AAAA or pair"));
        }
        (Some(Identify::Address), _) => {}
    }
    let expect = config
        .expect
        .iter()
        .map(|text| match config.query_type {
            QueryType::Txt => Ok(Expected::Text(text.as_bytes().into())),
            _ => text.parse().map(Expected::Address).map_err(|_| {
                Error::option(
                    "expect",
                    format!("'{text}' is not an IP address, which --type A, AAAA and pair return"),
                )
            }),
        })
        .collect::<Result<Vec<_>, _>>()?;
    for &rtype in types.iter().filter(|_| !expect.is_empty()) {
        if !expect.iter().any(|expected| expected.fits(rtype)) {
            let family = if rtype == message::A {
                "IPv4 address for A"
            } else {
                "IPv6 address for AAAA"
            };
            return Err(Error::option(
                "expect",
                format!("names no {family}, so no such answer could be right"),
            ));
        }
    }
    let mut accept = [false; 16];
    for &rcode in &config.accept_rcodes {
        match accept.get_mut(usize::from(rcode)) {
            Some(accepted) => *accepted = true,
            None => return Err(Error::option("accept-rcode", format!("{rcode} is not 0 to 15"))),
        }
    }
    if !accept.contains(&true) {
        return Err(Error::option(
            "accept-rcode",
            "no rcode is accepted, so every query would fail",
        ));
    }
    Ok(Template {
        names,
        types,
        edns: config.edns,
        identify: config.identify,
        expect,
        accept,
    })
}
