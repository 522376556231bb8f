//! Walks a packet through an input chain as nft's JSON describes it. Pure.
//!
//! A condition holds, does not hold, or depends on what is not known here; the outcome keeps these three apart.

use crate::model::IpFamily;
use crate::redirect::config::Marks;
use serde_json::Value;
use std::collections::HashMap;

/// Jumps followed at most, as in the kernel (`NFT_JUMP_STACK_SIZE`).
const DEPTH_LIMIT: usize = 16;

/// Rules by chain name: each rule's `expr`.
pub(super) type Chains = HashMap<String, Vec<Value>>;

/// What is known of a packet that our table delivers.
pub(super) struct Packet {
    pub marks: Marks,
    pub family: IpFamily,
    pub protocol: &'static str,
}

/// Whether a condition holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Holds {
    Yes,
    No,
    Unknown,
}

impl Holds {
    fn of(known: bool) -> Self {
        if known { Self::Yes } else { Self::No }
    }

    fn not(self) -> Self {
        match self {
            Self::Yes => Self::No,
            Self::No => Self::Yes,
            Self::Unknown => Self::Unknown,
        }
    }
}

/// The fate of the packet after all rules and the policy, best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum End {
    Accepted,
    Unsure,
    Dropped,
}

/// What a chain did to the packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Walked {
    /// The certain verdict; `None` if the packet leaves at the end or by `return`.
    accepted: Option<bool>,
    /// Some rule before may have accepted it.
    maybe_accepted: bool,
}

impl Walked {
    /// The fate once the chain's policy is counted in.
    pub(super) fn end(self, policy_drops: bool) -> End {
        match (self.accepted.unwrap_or(!policy_drops), self.maybe_accepted) {
            (true, _) => End::Accepted,
            (false, true) => End::Unsure,
            (false, false) => End::Dropped,
        }
    }
}

/// Walks one chain.
pub(super) fn walk(chains: &Chains, name: &str, packet: &Packet, depth: usize) -> Walked {
    let mut walked = Walked {
        accepted: None,
        maybe_accepted: false,
    };
    let Some(rules) = chains.get(name).filter(|_| depth < DEPTH_LIMIT) else {
        walked.maybe_accepted = true; // Not read: it may do anything.
        return walked;
    };
    for rule in rules {
        let mut holds = Holds::Yes;
        for statement in rule.as_array().into_iter().flatten() {
            if let Some((verdict, certain)) = verdict(statement, packet, holds) {
                let sure = certain == Holds::Yes;
                match verdict {
                    Step::Accept if sure => {
                        return Walked {
                            accepted: Some(true),
                            ..walked
                        };
                    }
                    Step::Accept => walked.maybe_accepted = true,
                    Step::Drop if sure => {
                        return Walked {
                            accepted: Some(false),
                            ..walked
                        };
                    }
                    Step::Return if sure => return walked,
                    Step::Drop | Step::Return => {}
                    Step::Jump(target, leaves) => {
                        let inner = walk(chains, target, packet, depth + 1);
                        walked.maybe_accepted |= inner.maybe_accepted;
                        match inner.accepted {
                            Some(accepted) if sure => {
                                return Walked {
                                    accepted: Some(accepted),
                                    ..walked
                                };
                            }
                            Some(true) => walked.maybe_accepted = true,
                            None if sure && leaves => return walked,
                            _ => {}
                        }
                    }
                }
                break;
            }
            match condition(statement, packet) {
                Holds::Yes => {}
                Holds::No => break,
                Holds::Unknown => holds = Holds::Unknown,
            }
        }
    }
    walked
}

enum Step<'a> {
    Accept,
    Drop,
    Return,
    /// Target chain, and whether the packet does not come back (`goto`).
    Jump(&'a str, bool),
}

/// The verdict in a statement, if it is one that applies, and how certain it is that it is reached.
fn verdict<'a>(statement: &'a Value, packet: &Packet, so_far: Holds) -> Option<(Step<'a>, Holds)> {
    let (kind, body) = statement.as_object()?.iter().next()?;
    let target = || body.get("target").and_then(Value::as_str);
    let step = match kind.as_str() {
        "accept" => Step::Accept,
        "drop" => Step::Drop,
        "return" => Step::Return,
        "jump" => Step::Jump(target()?, false),
        "goto" => Step::Jump(target()?, true),
        // nft leaves out the condition on the family that the kind of answer implies.
        "reject" => match (body.get("type").and_then(Value::as_str), packet.family) {
            (Some("icmp"), IpFamily::V6) | (Some("icmpv6"), IpFamily::V4) => return None,
            (Some("tcp reset"), _) if packet.protocol != "tcp" => return None,
            _ => Step::Drop,
        },
        "xt" if body.get("type").and_then(Value::as_str) == Some("target") => {
            match body.get("name").and_then(Value::as_str) {
                Some("REJECT") => Step::Drop,
                _ => return None,
            }
        }
        "vmap" => return map_verdict(body, packet, so_far),
        _ => return None,
    };
    Some((step, so_far))
}

/// A verdict map: exact for conntrack state and protocol, otherwise it may accept if any entry could.
fn map_verdict<'a>(map: &'a Value, packet: &Packet, so_far: Holds) -> Option<(Step<'a>, Holds)> {
    let key = map.get("key")?;
    let entries = map.get("data")?.get("set").and_then(Value::as_array)?;
    let mut best = None;
    for entry in entries.iter().filter_map(Value::as_array) {
        let [value, action] = entry.as_slice() else { continue };
        match compare(key, value, packet) {
            Holds::No => {}
            Holds::Yes => return verdict(action, packet, so_far),
            Holds::Unknown => {
                let step = verdict(action, packet, Holds::Unknown);
                if best.is_none() || matches!(step, Some((Step::Accept | Step::Jump(..), _))) {
                    best = step;
                }
            }
        }
    }
    best
}

/// Whether a statement lets the packet go on to the next one.
fn condition(statement: &Value, packet: &Packet) -> Holds {
    let Some((kind, body)) = statement.as_object().and_then(|m| m.iter().next()) else {
        return Holds::Unknown;
    };
    match kind.as_str() {
        "counter" | "log" | "mangle" | "notrack" | "quota" | "set" => Holds::Yes,
        "match" => {
            let (Some(left), Some(right)) = (body.get("left"), body.get("right")) else {
                return Holds::Unknown;
            };
            let holds = compare(left, right, packet);
            if body.get("op").and_then(Value::as_str) == Some("!=") {
                holds.not()
            } else {
                holds
            }
        }
        "reject" => Holds::No, // An answer of another family or protocol: see `verdict`.
        "xt" => match body.get("name").and_then(Value::as_str) {
            Some("comment") => Holds::Yes,
            // The states are not shown. Ours are untracked, which rules for NEW, ESTABLISHED or INVALID do not mean.
            Some("conntrack" | "state") => Holds::No,
            _ => Holds::Unknown,
        },
        _ => Holds::Unknown,
    }
}

/// Whether `left` has (one of) the value(s) `right` in our packet.
fn compare(left: &Value, right: &Value, packet: &Packet) -> Holds {
    let several = right.as_array().or_else(|| right.get("set").and_then(Value::as_array));
    if let Some(values) = several {
        let each: Vec<Holds> = values.iter().map(|v| compare(left, v, packet)).collect();
        return if each.contains(&Holds::Yes) {
            Holds::Yes
        } else if each.contains(&Holds::Unknown) {
            Holds::Unknown
        } else {
            Holds::No
        };
    }
    let word = right.as_str();
    if left.get("ct").and_then(|c| c.get("key")).and_then(Value::as_str) == Some("state") {
        return Holds::of(word == Some("untracked"));
    }
    if let Some(payload) = left.get("payload") {
        let text = |key: &str| payload.get(key).and_then(Value::as_str);
        let family = match packet.family {
            IpFamily::V4 => "ip",
            IpFamily::V6 => "ip6",
        };
        return match (text("protocol"), text("field")) {
            (Some("ip"), Some("protocol")) | (Some("ip6"), Some("nexthdr")) => match word {
                Some(protocol) => Holds::of(protocol == packet.protocol),
                None => Holds::Unknown,
            },
            (Some("ip" | "ip6"), _) if text("protocol") != Some(family) => Holds::No,
            (Some("tcp" | "udp"), _) if text("protocol") != Some(packet.protocol) => Holds::No,
            (Some("icmp" | "icmpv6" | "sctp" | "dccp" | "esp" | "ah" | "arp" | "igmp" | "udplite"), _) => Holds::No,
            _ => Holds::Unknown,
        };
    }
    let meta = |v: &Value| {
        v.get("meta")
            .and_then(|m| m.get("key"))
            .and_then(Value::as_str)
            .map(str::to_owned)
    };
    match (meta(left).as_deref(), word) {
        (Some("mark"), _) => mark(u32::MAX, right, packet.marks),
        (Some("l4proto"), Some(protocol)) => Holds::of(protocol == packet.protocol),
        (Some("nfproto"), Some(family)) => Holds::of(family.eq_ignore_ascii_case(packet.family.as_str())),
        (Some("iifname" | "iif"), Some("lo")) => Holds::No,
        _ => match left.get("&").and_then(Value::as_array).map(Vec::as_slice) {
            Some([inner, mask]) if meta(inner).as_deref() == Some("mark") => {
                let mask = mask.as_u64().and_then(|m| u32::try_from(m).ok());
                mask.map_or(Holds::Unknown, |mask| mark(mask, right, packet.marks))
            }
            _ => Holds::Unknown,
        },
    }
}

/// Our packet's mark is `deliver` within the field and unknown outside.
fn mark(mask: u32, value: &Value, marks: Marks) -> Holds {
    let Some(value) = value.as_u64().and_then(|v| u32::try_from(v).ok()) else {
        return Holds::Unknown;
    };
    let known = mask & marks.mask;
    if value & known != marks.deliver & known {
        Holds::No
    } else if known == mask {
        Holds::Yes
    } else {
        Holds::Unknown
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use super::*;
    use crate::redirect::RedirectConfig;
    use serde_json::json;

    fn fate(policy_drops: bool, rules: Value) -> End {
        fate_of("udp", IpFamily::V4, policy_drops, &[("input", rules)])
    }

    fn fate_of(protocol: &'static str, family: IpFamily, policy_drops: bool, chains: &[(&str, Value)]) -> End {
        let chains: Chains = chains
            .iter()
            .map(|(name, rules)| ((*name).to_owned(), rules.as_array().unwrap().clone()))
            .collect();
        let packet = Packet {
            marks: RedirectConfig::default().marks(),
            family,
            protocol,
        };
        walk(&chains, "input", &packet, 0).end(policy_drops)
    }

    fn mark_is(mask: u32, value: u32) -> Value {
        json!({"match": {"op": "==", "left": {"&": [{"meta": {"key": "mark"}}, mask]}, "right": value}})
    }

    #[test]
    fn policies() {
        assert_eq!(fate(false, json!([])), End::Accepted);
        assert_eq!(fate(true, json!([])), End::Dropped);
        assert_eq!(fate(false, json!([[{"counter": {}}, {"drop": null}]])), End::Dropped);
        assert_eq!(fate(true, json!([[{"accept": null}]])), End::Accepted);
    }

    #[test]
    fn the_rule_we_advise_is_enough() {
        assert_eq!(
            fate(true, json!([[mark_is(0x3800, 0x800), {"accept": null}]])),
            End::Accepted
        );
        assert_eq!(
            fate(true, json!([[mark_is(0x3800, 0x1000), {"accept": null}]])),
            End::Dropped
        );
        assert_eq!(
            fate(true, json!([[mark_is(0x3801, 0x800), {"accept": null}]])),
            End::Unsure
        );
        assert_eq!(
            fate(
                true,
                json!([[{"drop": null}], [mark_is(0x3800, 0x800), {"accept": null}]])
            ),
            End::Dropped
        );
    }

    #[test]
    fn connection_state_is_untracked() {
        let state = |right: Value| json!({"match": {"op": "in", "left": {"ct": {"key": "state"}}, "right": right}});
        assert_eq!(
            fate(
                true,
                json!([[state(json!(["established", "related"])), {"accept": null}]])
            ),
            End::Dropped
        );
        assert_eq!(
            fate(
                true,
                json!([[state(json!({"set": ["new", "untracked"]})), {"accept": null}]])
            ),
            End::Accepted
        );
        assert_eq!(
            fate(false, json!([[state(json!("invalid")), {"drop": null}]])),
            End::Accepted
        );
        let vmap = json!([[{"vmap": {"key": {"ct": {"key": "state"}},
            "data": {"set": [["invalid", {"drop": null}], ["untracked", {"accept": null}]]}}}]]);
        assert_eq!(fate(true, vmap), End::Accepted);
    }

    #[test]
    fn conditions_we_cannot_know() {
        let from = json!({"match": {"op": "==", "left": {"payload": {"protocol": "ip", "field": "saddr"}},
            "right": {"prefix": {"addr": "10.0.0.0", "len": 8}}}});
        assert_eq!(fate(true, json!([[from, {"accept": null}]])), End::Unsure);
        assert_eq!(fate(false, json!([[from, {"drop": null}]])), End::Accepted);
        let lo = json!({"match": {"op": "==", "left": {"meta": {"key": "iifname"}}, "right": "lo"}});
        assert_eq!(fate(true, json!([[lo, {"accept": null}]])), End::Dropped);
        let ssh =
            json!({"match": {"op": "==", "left": {"payload": {"protocol": "tcp", "field": "dport"}}, "right": 22}});
        assert_eq!(fate(true, json!([[ssh, {"accept": null}]])), End::Dropped);
        assert_eq!(
            fate_of(
                "tcp",
                IpFamily::V4,
                true,
                &[("input", json!([[ssh, {"accept": null}]]))]
            ),
            End::Unsure
        );
    }

    #[test]
    fn rejects_of_the_other_family_do_not_count() {
        let rules = json!([[{"reject": {"type": "icmpv6", "expr": "port-unreachable"}}]]);
        assert_eq!(
            fate_of("udp", IpFamily::V4, false, &[("input", rules.clone())]),
            End::Accepted
        );
        assert_eq!(fate_of("udp", IpFamily::V6, false, &[("input", rules)]), End::Dropped);
    }

    #[test]
    fn jumps() {
        let sub = |rules: Value| [("input", json!([[{"jump": {"target": "sub"}}]])), ("sub", rules)];
        let fate = |policy: bool, rules: Value| fate_of("udp", IpFamily::V4, policy, &sub(rules));
        assert_eq!(fate(true, json!([[{"accept": null}]])), End::Accepted);
        assert_eq!(fate(false, json!([[{"drop": null}]])), End::Dropped);
        assert_eq!(
            fate(true, json!([[{"return": null}], [{"accept": null}]])),
            End::Dropped
        );
        let loops = [("input", json!([[{"jump": {"target": "input"}}]]))];
        assert_eq!(fate_of("udp", IpFamily::V4, true, &loops), End::Unsure);
        let missing = [("input", json!([[{"jump": {"target": "unread"}}]]))];
        assert_eq!(fate_of("udp", IpFamily::V4, true, &missing), End::Unsure);
    }
}
