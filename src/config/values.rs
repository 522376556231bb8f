//! Values of the file that need more than a number: names, words, marks, ports, selectors.

use super::raw;
use super::select::{LabelSelector, Operator, Requirement, label_key, label_value};
use super::units;
use crate::model::ObjectName;
use crate::topology::ServiceRef;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::sync::Arc;

/// NodePorts' default range: kube-proxy and the API server hand these ports out.
const NODE_PORTS: RangeInclusive<u16> = 30_000..=32_767;
/// The kernel's default `net.ipv4.ip_local_port_range`.
const EPHEMERAL_PORTS: RangeInclusive<u16> = 32_768..=60_999;

/// "did you mean …" where something is near, and the whole list in any case.
pub fn suggestion<S: AsRef<str>>(wrong: &str, known: &[S]) -> String {
    let all = known.iter().map(|k| format!("`{}`", k.as_ref())).collect::<Vec<_>>();
    let near = known
        .iter()
        .map(|k| {
            (
                strsim::damerau_levenshtein(&wrong.to_lowercase(), &k.as_ref().to_lowercase()),
                k,
            )
        })
        .filter(|(distance, k)| *distance <= (k.as_ref().len() / 3).max(1))
        .min_by_key(|(distance, _)| *distance);
    match near {
        Some((_, k)) => format!("did you mean `{}`? (known here: {})", k.as_ref(), all.join(", ")),
        None => format!("known here: {}", all.join(", ")),
    }
}

pub const POLICIES: &[&str] = &["PreferSameNode", "PreferSameZone", "Cluster", "Local", "PreferLocal"];
pub const INTERPRETATIONS: &[&str] = &["ranked", "strict"];
pub const PROFILES: &[&str] = &["dns", "oneway", "stream", "tcp"];
pub const SOURCE_ADDRESSES: &[&str] = &["auto", "client", "node"];

pub fn node_name(s: &str) -> Result<Arc<str>, String> {
    match is_dns_name(s) {
        true => Ok(s.into()),
        false => Err(format!(
            "`{s}` is not a node name (lower-case letters, digits, `-`, `.`)"
        )),
    }
}

pub fn object_name(s: &str) -> Result<ObjectName, String> {
    match s.split_once('/') {
        Some((namespace, name)) if is_dns_name(namespace) && is_dns_name(name) => Ok(ObjectName::new(namespace, name)),
        _ => Err(format!(
            "`{s}` is not a Service; write `namespace/name`, such as `kube-system/kube-dns`"
        )),
    }
}

/// Parses `namespace/name` or `namespace/name:port`.
///
/// # Errors
/// Says what a Service or service port looks like.
pub fn service_ref(s: &str) -> Result<ServiceRef, String> {
    let (service, port) = match s.split_once(':') {
        None => (s, None),
        Some((service, port)) => {
            let port_fine = !port.is_empty()
                && port.len() <= 63
                && port
                    .chars()
                    .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-');
            if !port_fine {
                return Err(format!(
                    "`{s}`: after `:` comes a port's name or number, such as `kube-system/kube-dns:dns`"
                ));
            }
            (service, Some(port.into()))
        }
    };
    object_name(service).map(|service| ServiceRef { service, port })
}

pub fn is_dns_name(s: &str) -> bool {
    let edge = |c: Option<char>| c.is_some_and(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
    s.len() <= 253
        && edge(s.chars().next())
        && edge(s.chars().next_back())
        && s.chars()
            .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '.')
}

pub fn level_word(s: &str) -> Result<Arc<str>, String> {
    match s {
        "node" | "cluster" => Err(format!("`{s}` is the name of a built-in rank; choose another word")),
        _ if !s.is_empty()
            && s.len() <= 32
            && s.chars()
                .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-') =>
        {
            Ok(s.into())
        }
        _ => Err(format!(
            "`{s}`: write 1 to 32 lower-case letters, digits or `-`, such as `rack`"
        )),
    }
}

/// The mark field: three neighbouring bits (four values and none).
pub fn mark_field(s: &str) -> Result<u32, String> {
    let mask = units::number_u32(s)?;
    // kube-proxy's own marks: 0x4000 (masquerade), 0x8000 (drop).
    let clash = mask & 0xc000;
    if mask.count_ones() != 3 || mask >> mask.trailing_zeros() != 0b111 {
        return Err(format!(
            "`{s}` is not a mask of three neighbouring bits, such as `0x3800`"
        ));
    }
    if clash != 0 {
        return Err(format!(
            "`{s}` holds {clash:#x}, which kube-proxy uses; choose other bits"
        ));
    }
    Ok(mask)
}

pub fn pool_ports(s: &str) -> Result<RangeInclusive<u16>, String> {
    let range = units::port_range(s)?;
    let overlaps = |other: &RangeInclusive<u16>| range.start() <= other.end() && other.start() <= range.end();
    if *range.start() < 1024 {
        return Err(format!(
            "`{s}` reaches into the ports below 1024; choose a higher range"
        ));
    }
    if overlaps(&NODE_PORTS) {
        return Err(format!(
            "`{s}` overlaps the NodePort range 30000-32767; choose another range"
        ));
    }
    if overlaps(&EPHEMERAL_PORTS) {
        return Err(format!(
            "`{s}` overlaps the kernel's ephemeral ports 32768-60999, which pods and the node use; choose another range"
        ));
    }
    if range.len() < 16 {
        return Err(format!(
            "`{s}` has {} ports; at least 16 are needed (256 are usual)",
            range.len()
        ));
    }
    Ok(range)
}

pub fn selector_object(o: &raw::SelectorObject) -> Result<LabelSelector, String> {
    let mut requirements = Vec::new();
    let empty = BTreeMap::new();
    for (key, value) in o.match_labels.as_ref().unwrap_or(&empty) {
        requirements.push(Requirement {
            key: label_key(key)?,
            operator: Operator::In(BTreeSet::from([label_value(value)?])),
        });
    }
    for e in o.match_expressions.iter().flatten() {
        let key = e.key.as_deref().unwrap_or_default();
        let values: Result<BTreeSet<_>, _> = e.values.iter().flatten().map(|v| label_value(v)).collect();
        let values = values?;
        let known = ["In", "NotIn", "Exists", "DoesNotExist"];
        let operator = match (e.operator.as_deref().unwrap_or_default(), values.is_empty()) {
            ("In", false) => Operator::In(values),
            ("NotIn", false) => Operator::NotIn(values),
            ("Exists", true) => Operator::Exists,
            ("DoesNotExist", true) => Operator::DoesNotExist,
            (op @ ("In" | "NotIn"), true) => return Err(format!("matchExpressions on `{key}`: `{op}` needs `values`")),
            (op @ ("Exists" | "DoesNotExist"), false) => {
                return Err(format!("matchExpressions on `{key}`: `{op}` takes no `values`"));
            }
            (op, _) => {
                return Err(format!(
                    "matchExpressions on `{key}`: operator `{op}` is not known; {}",
                    suggestion(op, &known)
                ));
            }
        };
        requirements.push(Requirement {
            key: label_key(key)?,
            operator,
        });
    }
    Ok(LabelSelector { requirements })
}
