//! What the address sets should hold, how it is written to nft, and how it is read back. Pure.

use super::config::MAX_SET_ELEMENTS;
use super::ruleset::digit;
use crate::model::{IpFamily, Protocol};
use serde_json::Value;
use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

/// An address, port and protocol as the sets hold them.
pub type Element = (SocketAddr, Protocol);

/// The wanted content of the three address sets, both families together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Desired {
    /// VIPs that take new flows. Must be part of `own`.
    pub svc: BTreeSet<Element>,
    /// VIPs we hold sockets for: `svc` and those still draining.
    pub own: BTreeSet<Element>,
    /// Endpoints in use or draining.
    pub ep: BTreeSet<Element>,
}

/// Why a [`Desired`] is refused. nft never sees it then.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ElementError {
    /// Not an address that can be a VIP or endpoint.
    #[error("{set}: {address}/{protocol} cannot be redirected: {why}")]
    Address {
        /// The set's name.
        set: &'static str,
        /// The address as given.
        address: SocketAddr,
        /// Its protocol.
        protocol: Protocol,
        /// What is wrong with it.
        why: &'static str,
    },
    /// `svc` must be part of `own`.
    #[error("svc: {0}/{1} is not in own: a VIP that takes new flows must be one we hold sockets for")]
    NotOwned(SocketAddr, Protocol),
    /// The family is not redirected here.
    #[error("{set}: {address} needs {family}, which is not redirected on this node (disabled or not configured)")]
    Family {
        /// The set's name.
        set: &'static str,
        /// The address as given.
        address: SocketAddr,
        /// Its family.
        family: IpFamily,
    },
    /// Too many.
    #[error("{set}: {count} {family} elements are more than the limit of {MAX_SET_ELEMENTS}")]
    TooMany {
        /// The set's name.
        set: &'static str,
        /// How many were asked for.
        count: usize,
        /// In which family.
        family: IpFamily,
    },
}

impl Desired {
    /// Checks every element: canonical unicast addresses of an available family, real ports, TCP or UDP.
    ///
    /// # Errors
    /// The first element that cannot work.
    pub fn validate(&self, families: &[IpFamily]) -> Result<(), ElementError> {
        for (set, elements) in self.named() {
            for element in elements {
                check(set, element, families)?;
            }
            for family in [IpFamily::V4, IpFamily::V6] {
                let count = elements.iter().filter(|e| IpFamily::of(e.0.ip()) == family).count();
                if count > MAX_SET_ELEMENTS {
                    return Err(ElementError::TooMany { set, count, family });
                }
            }
        }
        match self.svc.difference(&self.own).next() {
            Some((address, protocol)) => Err(ElementError::NotOwned(*address, *protocol)),
            None => Ok(()),
        }
    }

    /// The sets with their names, in the order in which they are written.
    pub(crate) fn named(&self) -> [(&'static str, &BTreeSet<Element>); 3] {
        [("svc", &self.svc), ("own", &self.own), ("ep", &self.ep)]
    }

    pub(crate) fn named_mut(&mut self) -> [(&'static str, &mut BTreeSet<Element>); 3] {
        [("svc", &mut self.svc), ("own", &mut self.own), ("ep", &mut self.ep)]
    }
}

/// Checks one VIP, as [`Desired::validate`] would.
///
/// # Errors
/// Why it cannot be redirected.
pub fn check_vip(element: &Element, families: &[IpFamily]) -> Result<(), ElementError> {
    check("svc", element, families)
}

fn check(set: &'static str, element: &Element, families: &[IpFamily]) -> Result<(), ElementError> {
    let (address, protocol) = *element;
    let refuse = |why| {
        Err(ElementError::Address {
            set,
            address,
            protocol,
            why,
        })
    };
    if protocol == Protocol::Sctp {
        return refuse("SCTP is never carried");
    }
    if address.port() == 0 {
        return refuse("port 0 is no port");
    }
    let ip = address.ip();
    if ip.is_unspecified() || ip.is_multicast() || ip.is_loopback() {
        return refuse("not a unicast address that other machines can reach");
    }
    match ip {
        IpAddr::V4(v4) if v4.is_broadcast() => return refuse("the broadcast address"),
        IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some() => {
            return refuse("an IPv4 address in IPv6 clothes; give the IPv4 address itself");
        }
        IpAddr::V6(v6) if v6.segments().iter().take(6).all(|s| *s == 0) => {
            return refuse("a deprecated IPv4-compatible IPv6 address (RFC 4291, 2.5.5.1)");
        }
        _ => {}
    }
    if let SocketAddr::V6(v6) = address
        && (v6.scope_id() != 0 || v6.flowinfo() != 0 || v6.ip().is_unicast_link_local())
    {
        return refuse("link-local IPv6 addresses depend on an interface");
    }
    let family = IpFamily::of(ip);
    if !families.contains(&family) {
        return Err(ElementError::Family { set, address, family });
    }
    Ok(())
}

/// One transaction that leads from `now` to `wanted`, and the nft sets it touches. `None` where nothing differs.
/// Removals from `svc` come first in the text; the kernel applies all of it at once.
pub(crate) fn transaction(table: &str, now: &Desired, wanted: &Desired) -> Option<(String, Vec<TouchedSet>)> {
    let mut commands = Vec::new();
    let mut touched = Vec::new();
    for ((name, have), (_, want)) in now.named().into_iter().zip(wanted.named()) {
        for family in [IpFamily::V4, IpFamily::V6] {
            let of_family = |e: &&Element| IpFamily::of(e.0.ip()) == family;
            let gone: Vec<String> = have.difference(want).filter(of_family).map(text).collect();
            let new: Vec<String> = want.difference(have).filter(of_family).map(text).collect();
            let set = format!("{name}{}", digit(family));
            if !gone.is_empty() {
                commands.push(format!("delete element inet {table} {set} {{ {} }}", gone.join(", ")));
            }
            if !new.is_empty() {
                commands.push(format!("add element inet {table} {set} {{ {} }}", new.join(", ")));
            }
            if !(gone.is_empty() && new.is_empty()) {
                touched.push(TouchedSet { name, family, set });
            }
        }
    }
    (!commands.is_empty()).then(|| (commands.join("; "), touched))
}

/// An nft set that a transaction changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TouchedSet {
    /// `svc`, `own` or `ep`.
    pub name: &'static str,
    pub family: IpFamily,
    /// The nft set's name, such as `svc4`.
    pub set: String,
}

fn text((address, protocol): &Element) -> String {
    let protocol = match protocol {
        Protocol::Tcp => "tcp",
        Protocol::Udp => "udp",
        Protocol::Sctp => "sctp",
    };
    format!("{} . {protocol} . {}", address.ip(), address.port())
}

/// Reads an nft set's elements from what `list set` printed as JSON.
///
/// # Errors
/// In words, if the text is not what nft prints for such a set.
pub(crate) fn parse_set(json: &str) -> Result<BTreeSet<Element>, String> {
    let value: Value = serde_json::from_str(json).map_err(|e| format!("unreadable answer of nft: {e}"))?;
    let set = objects(&value, "set").next().ok_or("nft's answer holds no set")?;
    let Some(elements) = set.get("elem") else {
        return Ok(BTreeSet::new());
    };
    let elements = elements.as_array().ok_or("nft's answer holds no list of elements")?;
    elements.iter().map(parse_element).collect()
}

fn parse_element(value: &Value) -> Result<Element, String> {
    let bad = || format!("unreadable element in nft's answer: {value}");
    let parts = value.get("concat").and_then(Value::as_array).ok_or_else(bad)?;
    let [address, protocol, port] = parts.as_slice() else {
        return Err(bad());
    };
    let address: IpAddr = address.as_str().and_then(|a| a.parse().ok()).ok_or_else(bad)?;
    let protocol = match (protocol.as_str(), protocol.as_u64()) {
        (Some("tcp" | "6"), _) | (_, Some(6)) => Protocol::Tcp,
        (Some("udp" | "17"), _) | (_, Some(17)) => Protocol::Udp,
        _ => return Err(bad()),
    };
    let port = port.as_u64().and_then(|p| u16::try_from(p).ok()).ok_or_else(bad)?;
    Ok((SocketAddr::new(address, port), protocol))
}

/// The objects of one kind in nft's JSON (`{"nftables": [{"set": {…}}, …]}`).
pub(crate) fn objects<'a>(value: &'a Value, kind: &'a str) -> impl Iterator<Item = &'a Value> {
    let list = value
        .get("nftables")
        .and_then(Value::as_array)
        .map_or(&[][..], Vec::as_slice);
    list.iter().filter_map(move |o| o.get(kind))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use super::*;

    const BOTH: &[IpFamily] = &[IpFamily::V4, IpFamily::V6];

    fn e(address: &str) -> Element {
        (address.parse().unwrap(), Protocol::Udp)
    }

    fn desired(svc: &[&str], ep: &[&str]) -> Desired {
        let svc: BTreeSet<Element> = svc.iter().map(|a| e(a)).collect();
        Desired {
            own: svc.clone(),
            svc,
            ep: ep.iter().map(|a| e(a)).collect(),
        }
    }

    #[test]
    fn bad_addresses_are_refused_by_name() {
        let bad = [
            "0.0.0.0:53",
            "127.0.0.1:53",
            "224.0.0.1:53",
            "255.255.255.255:53",
            "10.0.0.1:0",
            "[::]:53",
            "[::1]:53",
            "[ff02::1]:53",
            "[::ffff:10.0.0.1]:53",
            "[::10.0.0.1]:53",
            "[fe80::1]:53",
            "[fd00::1%3]:53",
        ];
        for address in bad {
            let error = desired(&[], &[address]).validate(BOTH).unwrap_err().to_string();
            assert!(error.starts_with("ep: "), "{address}: {error}");
        }
        desired(&["10.0.0.1:53", "[fd00::1]:53", "169.254.20.10:53"], &["10.1.0.1:5353"])
            .validate(BOTH)
            .unwrap();
        let sctp = Desired {
            ep: [("10.0.0.1:5".parse().unwrap(), Protocol::Sctp)].into(),
            ..Desired::default()
        };
        assert!(sctp.validate(BOTH).unwrap_err().to_string().contains("SCTP"));
    }

    #[test]
    fn svc_is_part_of_own_and_families_are_available() {
        let mut d = desired(&["10.0.0.1:53"], &[]);
        d.own.clear();
        assert!(matches!(d.validate(BOTH), Err(ElementError::NotOwned(..))));
        let d = desired(&["[fd00::1]:53"], &[]);
        assert!(matches!(d.validate(&[IpFamily::V4]), Err(ElementError::Family { .. })));
    }

    #[test]
    fn a_transaction_holds_the_difference_only() {
        let now = desired(&["10.0.0.1:53", "10.0.0.2:53"], &["10.1.0.1:53"]);
        let wanted = desired(&["10.0.0.2:53", "[fd00::1]:53"], &["10.1.0.1:53"]);
        let (line, touched) = transaction("nodeward-a", &now, &wanted).unwrap();
        assert_eq!(
            line,
            "delete element inet nodeward-a svc4 { 10.0.0.1 . udp . 53 }; \
             add element inet nodeward-a svc6 { fd00::1 . udp . 53 }; \
             delete element inet nodeward-a own4 { 10.0.0.1 . udp . 53 }; \
             add element inet nodeward-a own6 { fd00::1 . udp . 53 }"
        );
        let touched: Vec<&str> = touched.iter().map(|t| t.set.as_str()).collect();
        assert_eq!(touched, ["svc4", "svc6", "own4", "own6"]);
        assert_eq!(transaction("nodeward-a", &wanted, &wanted), None);
    }

    #[test]
    fn answers_of_nft_are_read() {
        let text = r#"{"nftables":[{"metainfo":{}},{"set":{"name":"svc4","elem":[{"concat":["10.0.0.1","udp",53]},{"concat":["10.0.0.1",6,53]}]}}]}"#;
        let set = parse_set(text).unwrap();
        assert!(set.contains(&e("10.0.0.1:53")));
        assert!(set.contains(&("10.0.0.1:53".parse().unwrap(), Protocol::Tcp)));
        assert_eq!(parse_set(r#"{"nftables":[{"set":{"name":"svc4"}}]}"#).unwrap().len(), 0);
        for bad in [
            "",
            "{}",
            r#"{"nftables":[{"set":{"elem":[{"concat":["x","udp",53]}]}}]}"#,
        ] {
            assert!(parse_set(bad).is_err(), "{bad}");
        }
    }
}
