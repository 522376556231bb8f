//! What an instance's routing consists of: the values, the rules as rtnetlink messages, and rules read back. Pure.

use super::config::RedirectConfig;
use crate::model::IpFamily;
use rtnetlink::packet_route::AddressFamily;
use rtnetlink::packet_route::route::RouteProtocol;
use rtnetlink::packet_route::rule::{RuleAction, RuleAttribute, RuleMessage};
use serde::{Deserialize, Serialize};
use std::fmt;

/// `rtm_protocol` of our rules and routes: free in `include/uapi/linux/rtnetlink.h` (78, `N`).
pub const PROTOCOL: u8 = 78;

/// Values of an instance's routing: all that is needed to add, find and remove it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Plan {
    pub mask: u32,
    pub deliver: u32,
    pub host_client: u32,
    pub table: u32,
    pub priority: u32,
}

impl Plan {
    pub(super) fn of(config: &RedirectConfig) -> Self {
        let marks = config.marks();
        Self {
            mask: marks.mask,
            deliver: marks.deliver,
            host_client: marks.host_client,
            table: config.routing_table,
            priority: config.rule_priority,
        }
    }

    /// The plan of a live instance, from its table's comment (`ruleset::comment`).
    pub(super) fn from_comment(comment: &str) -> Option<Self> {
        let words: Vec<&str> = comment.split(' ').collect();
        let ["marks", mask, "table", table, "rules", priority, ..] = words.as_slice() else {
            return None;
        };
        let config = RedirectConfig {
            mark_field: u32::from_str_radix(mask.strip_prefix("0x")?, 16).ok()?,
            routing_table: table.parse().ok()?,
            rule_priority: priority.parse().ok()?,
            ..RedirectConfig::default()
        };
        config.validate().ok()?;
        Some(Self::of(&config))
    }

    /// Whether another plan needs one of our rules or our route.
    pub(super) fn overlaps(self, other: Self) -> bool {
        self.table == other.table || self.priority.abs_diff(other.priority) < 3
    }
}

/// One rule or route, for messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Item {
    /// The rule at this priority.
    Rule(IpFamily, u32),
    /// The local default route in this table.
    Route(IpFamily, u32),
}

impl fmt::Display for Item {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rule(family, priority) => write!(f, "{family} routing rule {priority}"),
            Self::Route(family, table) => write!(f, "{family} local route in table {table}"),
        }
    }
}

/// Our three rules of a family, with their priorities.
pub(super) fn rules(plan: Plan, family: IpFamily) -> [(u32, RuleMessage); 3] {
    let rule = |offset: u32, mark: u32| {
        let mut message = RuleMessage::default();
        message.header.family = match family {
            IpFamily::V4 => AddressFamily::Inet,
            IpFamily::V6 => AddressFamily::Inet6,
        };
        message.header.action = RuleAction::ToTable;
        message.header.table = u8::try_from(plan.table).unwrap_or(0);
        message.attributes = vec![
            RuleAttribute::Priority(plan.priority + offset),
            RuleAttribute::FwMark(mark),
            RuleAttribute::FwMask(plan.mask),
            RuleAttribute::Table(plan.table),
            RuleAttribute::Protocol(RouteProtocol::Other(PROTOCOL)),
        ];
        message
    };
    let mut guard = rule(0, plan.deliver);
    guard.header.action = RuleAction::Goto;
    guard.header.table = 0;
    guard.attributes.retain(|a| !matches!(a, RuleAttribute::Table(_)));
    guard.attributes.push(RuleAttribute::Iifname("lo".to_owned()));
    guard.attributes.push(RuleAttribute::Goto(plan.priority + 2));
    [
        (plan.priority, guard),
        (plan.priority + 1, rule(1, plan.deliver)),
        (plan.priority + 2, rule(2, plan.host_client)),
    ]
}

/// A routing rule as the kernel lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Rule {
    pub family: IpFamily,
    pub priority: u32,
    pub mark: u32,
    pub mask: u32,
    pub table: u32,
    pub protocol: u8,
}

impl Rule {
    pub(super) fn read(message: &RuleMessage, family: IpFamily) -> Self {
        let mut rule = Self {
            family,
            priority: 0,
            mark: 0,
            mask: 0,
            table: u32::from(message.header.table),
            protocol: 0,
        };
        for attribute in &message.attributes {
            match attribute {
                RuleAttribute::Priority(v) => rule.priority = *v,
                RuleAttribute::FwMark(v) => rule.mark = *v,
                RuleAttribute::FwMask(v) => rule.mask = *v,
                RuleAttribute::Table(v) => rule.table = *v,
                RuleAttribute::Protocol(v) => rule.protocol = u8::from(*v),
                _ => {}
            }
        }
        rule
    }

    /// Whether Nodeward made it.
    pub(super) fn ours(&self) -> bool {
        self.protocol == PROTOCOL
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_survives_the_comment() {
        let config = RedirectConfig {
            mark_field: 0x0700_0000,
            routing_table: 7000,
            rule_priority: 500,
            ..RedirectConfig::default()
        };
        assert_eq!(
            Plan::from_comment(&super::super::ruleset::comment(&config)),
            Some(Plan::of(&config))
        );
        for bad in [
            "",
            "something else",
            "marks 0x3800 table 100 rules many",
            "marks 3800 table 1 rules 2",
        ] {
            assert_eq!(Plan::from_comment(bad), None, "{bad}");
        }
    }
}
