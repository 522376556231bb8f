//! Counting what is left behind: on a node after the program under test ended, and on the machine after the laboratory did.

use std::collections::HashSet;
use std::net::IpAddr;

use crate::netns::NetNs;
use crate::node::{Host, Node};
use crate::process::Cmd;
use crate::{Result, procfs};

/// What was left behind. [`Leftovers::count`] sums what changes traffic or holds resources; ip rules and routes that the
/// program under test added lead nowhere once its table is gone and are listed apart.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Leftovers {
    /// nft tables whose name starts with `nodeward`.
    pub tables: Vec<String>,
    /// Elements in sets of those tables.
    pub set_elements: usize,
    /// Sockets bound to one of the VIPs, as the kernel lists them.
    pub sockets: Vec<String>,
    /// Processes in a laboratory namespace that neither the laboratory nor a living process of it started: `pid command`.
    pub stray_processes: Vec<String>,
    /// ip rules that select by mark.
    pub inert_rules: Vec<String>,
    /// Local default routes outside the main tables.
    pub inert_routes: Vec<String>,
}

impl Leftovers {
    /// Everything but inert rules and routes.
    pub fn count(&self) -> usize {
        self.tables.len() + self.set_elements + self.sockets.len() + self.stray_processes.len()
    }

    /// Panics with the list unless [`Leftovers::count`] is 0.
    pub fn assert_clean(&self) {
        assert_eq!(self.count(), 0, "left behind: {self:#?}");
    }

    /// Adds another count to this one.
    pub fn add(&mut self, other: Leftovers) {
        self.tables.extend(other.tables);
        self.set_elements += other.set_elements;
        self.sockets.extend(other.sockets);
        self.stray_processes.extend(other.stray_processes);
        self.inert_rules.extend(other.inert_rules);
        self.inert_routes.extend(other.inert_routes);
    }
}

pub(crate) fn of_node(node: &Node, vips: &[IpAddr]) -> Result<Leftovers> {
    let ns = node.netns();
    let mut left = Leftovers {
        stray_processes: procfs::strays_in(ns.inode(), &ns.own_pids()),
        ..Leftovers::default()
    };
    let listed = ns.check(Cmd::new("nft").args(["-j", "list", "ruleset"]))?.stdout;
    let listed: serde_json::Value = serde_json::from_str(&listed).unwrap_or_default();
    let ours = |name: &serde_json::Value| name.as_str().is_some_and(|n| n.starts_with("nodeward"));
    for object in listed["nftables"].as_array().into_iter().flatten() {
        if ours(&object["table"]["name"]) {
            left.tables.push(format!(
                "{}: {}",
                node.name(),
                object["table"]["name"].as_str().unwrap_or_default()
            ));
        }
        if ours(&object["set"]["table"]) {
            left.set_elements += object["set"]["elem"].as_array().map_or(0, Vec::len);
        }
    }
    for family in ["-4", "-6"] {
        let rules = ns.check(Cmd::new("ip").args([family, "rule", "list"]))?.stdout;
        let marked = rules.lines().filter(|l| l.contains("fwmark"));
        left.inert_rules.extend(marked.map(|l| {
            format!(
                "{}: {family} {}",
                node.name(),
                l.split_whitespace().collect::<Vec<_>>().join(" ")
            )
        }));
        let routes = ns
            .check(Cmd::new("ip").args([family, "route", "list", "table", "all", "type", "local"]))?
            .stdout;
        let defaults = routes.lines().filter(|l| l.starts_with("local default"));
        left.inert_routes
            .extend(defaults.map(|l| format!("{}: {family} {}", node.name(), l.trim())));
    }
    left.sockets = sockets_on(ns, vips)?
        .into_iter()
        .map(|s| format!("{}: {s}", node.name()))
        .collect();
    Ok(left)
}

/// Lines of `/proc/net/{udp,tcp}{,6}` whose local address is one of the VIPs.
fn sockets_on(ns: &NetNs, vips: &[IpAddr]) -> Result<Vec<String>> {
    let wanted: HashSet<String> = vips.iter().map(hex_address).collect();
    ns.run(move || {
        let mut found = Vec::new();
        for table in ["udp", "udp6", "tcp", "tcp6"] {
            let text = std::fs::read_to_string(format!("/proc/thread-self/net/{table}")).unwrap_or_default();
            for line in text.lines().skip(1) {
                let local = line.split_whitespace().nth(1).unwrap_or_default();
                if local.split(':').next().is_some_and(|a| wanted.contains(a)) {
                    found.push(format!("{table} {local}"));
                }
            }
        }
        found
    })
}

/// An address as `/proc/net` prints it: 32-bit words in the machine's byte order.
fn hex_address(ip: &IpAddr) -> String {
    let bytes = match ip {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    };
    let words = bytes
        .chunks_exact(4)
        .map(|w| u32::from_ne_bytes([w[0], w[1], w[2], w[3]]));
    words.map(|w| format!("{w:08X}")).collect()
}
