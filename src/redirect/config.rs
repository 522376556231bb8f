//! What the redirection needs to know: instance, marks, port range, routing table, families. Plain values and their
//! validation; nothing here touches the system.

use crate::model::IpFamily;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Longest instance id. Table names may be longer; this keeps messages and file names readable.
const MAX_ID: usize = 32;

/// Highest usable rule priority: one below the kernel's own `main` rule (32766, `fib_default_rules_init`).
const MAX_RULE_PRIORITY: u32 = 32_765;

/// Size limit of each address set in the nft table. A node that takes so many VIPs needs another design.
pub const MAX_SET_ELEMENTS: usize = 65_536;

/// The redirection of one instance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct RedirectConfig {
    /// Instance id: the nft table is `nodeward-<instance>`. Lower-case letters, digits and `-`, at most 32.
    pub instance: String,
    /// Three neighbouring bits of the packet mark that belong to us (default `0x3800`).
    pub mark_field: u32,
    /// First port of the pool of upstream sockets (default 20000).
    pub pool_first: u16,
    /// Last port of the pool, included (default 20255).
    pub pool_last: u16,
    /// Routing table with the one local default route (default 100).
    pub routing_table: u32,
    /// Priority of the first of our three routing rules; the others follow at +1 and +2 (default 98).
    pub rule_priority: u32,
    /// Redirect IPv4.
    pub ipv4: bool,
    /// Redirect IPv6. Left out, and said so, where the node has IPv6 disabled.
    pub ipv6: bool,
    /// The nft program (default `nft`, looked up in `PATH`).
    pub nft: String,
}

impl Default for RedirectConfig {
    fn default() -> Self {
        Self {
            instance: "main".to_owned(),
            mark_field: 0x3800,
            pool_first: 20_000,
            pool_last: 20_255,
            routing_table: 100,
            rule_priority: 98,
            ipv4: true,
            ipv6: true,
            nft: "nft".to_owned(),
        }
    }
}

/// The four values of the mark field, ready for `SO_MARK` and for rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Marks {
    /// The whole field.
    pub mask: u32,
    /// P: deliver this packet locally.
    pub deliver: u32,
    /// H: a host client's packet on its way to us.
    pub host_client: u32,
    /// LS: `SO_MARK` of VIP sockets (UDP and TCP listeners) and of the UDP pool.
    pub listener_socket: u32,
    /// ES: `SO_MARK` of accepted TCP sockets (set right after accept) and of client-source upstream TCP sockets.
    pub connection_socket: u32,
}

/// Why a [`RedirectConfig`] is refused. Messages name the key as the configuration file spells it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RedirectConfigError {
    /// Bad instance id.
    #[error("instance: `{0}` must be 1 to 32 lower-case letters, digits or `-`, starting with a letter or digit")]
    Instance(String),
    /// Not three neighbouring bits.
    #[error("markField: {0:#x} must be three neighbouring bits, such as 0x3800 or 0x700000")]
    MarkField(u32),
    /// Empty or privileged range.
    #[error("poolFirst/poolLast: {0}-{1} must be a range of ports from 1024 to 65535, first not above last")]
    Pool(u16, u16),
    /// A table the kernel uses itself.
    #[error("routingTable: {0} is reserved by the kernel (0, 253, 254 and 255 are); take another, such as 100")]
    RoutingTable(u32),
    /// No room for three rules between `local` (0) and `main` (32766).
    #[error("rulePriority: {0} must lie between 1 and 32763, so that three rules fit before the main table's 32766")]
    RulePriority(u32),
    /// Nothing to do.
    #[error("ipv4/ipv6: at least one must be true")]
    NoFamily,
    /// No program named.
    #[error("nft: must name the nft program, such as `nft` or `/usr/sbin/nft`")]
    Nft,
}

impl RedirectConfig {
    /// Checks every key.
    ///
    /// # Errors
    /// The first key that cannot work.
    pub fn validate(&self) -> Result<(), RedirectConfigError> {
        if !valid_instance(&self.instance) {
            return Err(RedirectConfigError::Instance(self.instance.clone()));
        }
        let field = self.mark_field;
        if field.count_ones() != 3 || field >> field.trailing_zeros() != 0b111 {
            return Err(RedirectConfigError::MarkField(field));
        }
        if self.pool_first < 1024 || self.pool_first > self.pool_last {
            return Err(RedirectConfigError::Pool(self.pool_first, self.pool_last));
        }
        if matches!(self.routing_table, 0 | 253..=255) {
            return Err(RedirectConfigError::RoutingTable(self.routing_table));
        }
        if self.rule_priority == 0 || self.rule_priority > MAX_RULE_PRIORITY - 2 {
            return Err(RedirectConfigError::RulePriority(self.rule_priority));
        }
        if !self.ipv4 && !self.ipv6 {
            return Err(RedirectConfigError::NoFamily);
        }
        if self.nft.trim().is_empty() {
            return Err(RedirectConfigError::Nft);
        }
        Ok(())
    }

    /// The name of our nft table (family `inet`).
    pub fn table(&self) -> String {
        format!("{TABLE_PREFIX}{}", self.instance)
    }

    /// The mark values. Only meaningful after [`RedirectConfig::validate`].
    pub fn marks(&self) -> Marks {
        let unit = 1u32 << (self.mark_field.trailing_zeros() & 31);
        Marks {
            mask: self.mark_field,
            deliver: unit,
            host_client: unit.wrapping_mul(2),
            listener_socket: unit.wrapping_mul(3),
            connection_socket: unit.wrapping_mul(4),
        }
    }

    /// The families asked for.
    pub fn families(&self) -> Vec<IpFamily> {
        let mut families = Vec::new();
        if self.ipv4 {
            families.push(IpFamily::V4);
        }
        if self.ipv6 {
            families.push(IpFamily::V6);
        }
        families
    }
}

/// What every table of ours starts with.
pub(crate) const TABLE_PREFIX: &str = "nodeward-";

/// Whether a string may be an instance id.
pub(crate) fn valid_instance(id: &str) -> bool {
    let charset = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    !id.is_empty() && id.len() <= MAX_ID && !id.starts_with('-') && id.chars().all(charset)
}

impl fmt::Display for Marks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "mask {:#x}: deliver {:#x}, host client {:#x}, listener socket {:#x}, connection socket {:#x}",
            self.mask, self.deliver, self.host_client, self.listener_socket, self.connection_socket
        )
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use super::*;

    #[test]
    fn marks_of_the_default_field() {
        let m = RedirectConfig::default().marks();
        assert_eq!(
            (m.deliver, m.host_client, m.listener_socket, m.connection_socket),
            (0x800, 0x1000, 0x1800, 0x2000)
        );
    }

    #[test]
    fn a_field_at_either_end_of_the_word() {
        for field in [0x7, 0xe000_0000] {
            let c = RedirectConfig {
                mark_field: field,
                ..RedirectConfig::default()
            };
            c.validate().unwrap();
            let m = c.marks();
            for value in [m.deliver, m.host_client, m.listener_socket, m.connection_socket] {
                assert_eq!(value & !field, 0, "{value:#x} lies outside {field:#x}");
                assert_ne!(value, 0);
            }
        }
    }

    #[test]
    fn bad_values_are_named() {
        let bad = |change: fn(&mut RedirectConfig)| {
            let mut c = RedirectConfig::default();
            change(&mut c);
            c.validate().unwrap_err().to_string()
        };
        assert!(bad(|c| c.instance = String::new()).starts_with("instance: "));
        assert!(bad(|c| c.instance = "-a".into()).starts_with("instance: "));
        assert!(bad(|c| c.instance = "a;flush ruleset".into()).starts_with("instance: "));
        assert!(bad(|c| c.instance = "a".repeat(33)).starts_with("instance: "));
        for field in [0, 0x3000, 0x7800, 0x5800, 0x0a80, 0x8000_0003] {
            let c = RedirectConfig {
                mark_field: field,
                ..RedirectConfig::default()
            };
            assert_eq!(c.validate(), Err(RedirectConfigError::MarkField(field)));
        }
        assert!(bad(|c| c.pool_first = 80).starts_with("poolFirst/poolLast: 80-20255"));
        assert!(bad(|c| c.pool_first = 20_256).starts_with("poolFirst/poolLast: 20256-20255"));
        assert!(bad(|c| c.routing_table = 254).starts_with("routingTable: 254"));
        assert!(bad(|c| c.routing_table = 0).starts_with("routingTable: 0"));
        assert!(bad(|c| c.rule_priority = 0).starts_with("rulePriority: 0"));
        assert!(bad(|c| c.rule_priority = 32_764).starts_with("rulePriority: 32764"));
        assert!(bad(|c| (c.ipv4, c.ipv6) = (false, false)).starts_with("ipv4/ipv6"));
        assert!(bad(|c| c.nft = " ".into()).starts_with("nft: "));
    }

    #[test]
    fn unknown_keys_are_errors() {
        let text = r#"{"instance":"a","markfield":1}"#;
        let error = serde_json::from_str::<RedirectConfig>(text).unwrap_err().to_string();
        assert!(error.contains("markfield"), "{error}");
    }
}
