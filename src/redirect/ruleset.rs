//! The text of the nft table: a pure function of the configuration. It never runs nft and holds no addresses; the sets
//! start empty and are filled later.
//!
//! How the rules work, in the order a packet meets them (TPROXY's mechanism, `Documentation/networking/tproxy.rst`, but
//! with sockets bound to the VIP itself):
//!
//! * Hooks at priority `raw` (−300), before connection tracking; what we carry is `notrack`, so kube-proxy's NAT skips it.
//! * Sets are consulted before sockets, so that other traffic pays two hash look-ups.
//! * No socket of ours → no match → the packet goes on to kube-proxy: fail-open needs no clean-up.
//! * The lease gates new flows only. A listener is consulted for SYN only: taking or releasing a service never touches
//!   established connections. `socket mark` and `socket wildcard` do not see mini-sockets (SYN_RECV, TIME_WAIT); these are
//!   told by `transparent` and an owned VIP.
//! * Host clients pass OUTPUT, where no socket can be looked up: there only the lease and the owner flag open the way back.
//! * The `tproxy` line never matches; its presence makes the kernel defragment before our chain.

use super::config::RedirectConfig;
use crate::model::IpFamily;
use std::fmt::Write as _;

/// Seconds a lease lasts after its last refresh.
pub const LEASE_SECONDS: u32 = 2;

/// The counters of the table and what each counts; the names are the `reason` labels of the metrics.
pub const COUNTERS: &[(&str, &str)] = &[
    ("delivered", "packets brought to our sockets"),
    ("diverted", "host clients' packets sent round to our sockets"),
    (
        "lease_expired",
        "packets for a VIP of ours left to kube-proxy because the lease had run out",
    ),
    (
        "no_socket",
        "packets for a VIP of ours left to kube-proxy because no socket of ours was there",
    ),
    (
        "host_lease_expired",
        "host clients' packets for a VIP of ours left to kube-proxy because the lease had run out",
    ),
];

/// One family's sets and chains. `{n}` is 4 or 6, `{ip}` the payload keyword, `{addr}` the set type.
const FAMILY: &str = r"
set svc{n} { type {addr} . inet_proto . inet_service; }
set own{n} { type {addr} . inet_proto . inet_service; }
set ep{n} { type {addr} . inet_proto . inet_service; }
set syn{n} { type {addr} . inet_service . {addr} . inet_service; flags dynamic,timeout; timeout 30s; size 65536; }
set hst{n} { type {addr} . inet_service . {addr} . inet_service; flags dynamic,timeout; timeout 12h; size 65536; }
set pod{n} { type {addr} . inet_service . {addr} . inet_service; flags dynamic,timeout; timeout 180s; size 65536; }
chain new{n} {
 {ip} daddr . meta l4proto . th dport @svc{n} meta nfproto @lease socket transparent 1 socket mark {ls} update @syn{n} { {ip} saddr . tcp sport . {ip} daddr . tcp dport } goto mine
 {ip} daddr . meta l4proto . th dport @svc{n} meta nfproto != @lease counter name lease_expired
 socket mark != 0xffffffff delete @syn{n} { {ip} saddr . tcp sport . {ip} daddr . tcp dport } return
 socket mark != 0xffffffff return
 {ip} daddr . meta l4proto . th dport @svc{n} meta nfproto @lease socket transparent 1 update @syn{n} { {ip} saddr . tcp sport . {ip} daddr . tcp dport } goto mine
 delete @syn{n} { {ip} saddr . tcp sport . {ip} daddr . tcp dport }
 {ip} daddr . meta l4proto . th dport @svc{n} meta nfproto @lease counter name no_socket
}
chain vip{n} {
 tcp flags & (fin|syn|rst|ack) == syn goto new{n}
 socket transparent 1 socket mark {es} goto mine
 socket transparent 1 socket mark {ls} {ip} saddr . tcp sport . {ip} daddr . tcp dport @syn{n} goto mine
 socket mark != 0xffffffff return
 socket transparent 1 goto mine
}
chain end{n} {
 socket transparent 1 socket mark {es} goto mine
 socket mark != 0xffffffff return
 socket transparent 1 goto mine
}
chain tcp{n} {
 {ip} daddr . meta l4proto . th dport @own{n} goto vip{n}
 {ip} saddr . meta l4proto . th sport @ep{n} goto end{n}
}
chain dgram{n} {
 meta nfproto @lease socket transparent 1 socket mark {ls} goto mine
 goto missed
}
chain udp{n} {
 {ip} daddr . meta l4proto . th dport @svc{n} jump dgram{n}
 udp dport {pool} {ip} saddr . meta l4proto . th sport @ep{n} {ip} daddr . udp dport . {ip} saddr . udp sport != @pod{n} socket transparent 1 socket mark {ls} goto mine
 iifname != lo udp sport {pool} {ip} daddr . meta l4proto . th dport @ep{n} update @pod{n} { {ip} saddr . udp sport . {ip} daddr . udp dport }
}
chain out{n} {
 {ip} daddr . meta l4proto . th dport != @own{n} return
 meta l4proto udp {ip} daddr . meta l4proto . th dport @svc{n} meta nfproto @lease goto div
 meta l4proto udp {ip} daddr . meta l4proto . th dport @svc{n} counter name host_lease_expired
 meta l4proto udp return
 tcp flags & (fin|syn|rst|ack) != syn {ip} saddr . tcp sport . {ip} daddr . tcp dport @hst{n} goto div
 tcp flags & (fin|syn|rst|ack) != syn return
 {ip} daddr . meta l4proto . th dport @svc{n} meta nfproto @lease update @hst{n} { {ip} saddr . tcp sport . {ip} daddr . tcp dport } goto div
 delete @hst{n} { {ip} saddr . tcp sport . {ip} daddr . tcp dport }
 {ip} daddr . meta l4proto . th dport @svc{n} counter name host_lease_expired
}";

/// The table's definition for `families` (what is really available, a subset of the configuration's). The comment names
/// what else the instance uses on this node, for `check` and `cleanup`.
pub fn table(config: &RedirectConfig, families: &[IpFamily]) -> String {
    let m = config.marks();
    let mut text = format!("table inet {} {{\nflags owner\n", config.table());
    let _ = writeln!(text, "comment \"{}\"", comment(config));
    for (name, _) in COUNTERS {
        let _ = writeln!(text, "counter {name} {{ }}");
    }
    text.push_str("set lease { typeof meta nfproto; flags timeout; }\n");
    let _ = write!(
        text,
        "chain mine {{\n meta mark set meta mark & {:#x} | {:#x} notrack counter name delivered accept\n}}\n\
         chain div {{\n meta mark set meta mark | {:#x} notrack counter name diverted accept\n}}\n\
         chain missed {{\n meta nfproto @lease counter name no_socket return\n counter name lease_expired\n}}",
        !m.mask, m.deliver, m.host_client
    );
    for family in families {
        text.push_str(&family_text(config, *family));
    }
    let pairs: Vec<String> = families
        .iter()
        .map(|f| {
            let n = digit(*f);
            format!("ipv{n} . tcp : goto tcp{n}, ipv{n} . udp : goto udp{n}")
        })
        .collect();
    text.push_str("\nchain pre {\n type filter hook prerouting priority raw; policy accept;\n");
    for family in families {
        text.push_str(match family {
            IpFamily::V4 => " meta mark 0xffffffff meta nfproto ipv4 meta l4proto udp tproxy ip to 127.0.0.1:1\n",
            IpFamily::V6 => " meta mark 0xffffffff meta nfproto ipv6 meta l4proto udp tproxy ip6 to [::1]:1\n",
        });
    }
    for family in families {
        let types = match family {
            IpFamily::V4 => "icmp type { destination-unreachable, time-exceeded, parameter-problem }",
            IpFamily::V6 => "icmpv6 type { destination-unreachable, packet-too-big, time-exceeded, parameter-problem }",
        };
        let _ = writeln!(
            text,
            " {types} socket transparent 1 socket mark {{ {:#x}, {:#x} }} goto mine",
            m.listener_socket, m.connection_socket
        );
    }
    let _ = write!(
        text,
        " meta nfproto . meta l4proto vmap {{ {} }}\n}}\n",
        pairs.join(", ")
    );
    let _ = write!(
        text,
        "chain out {{\n type route hook output priority raw; policy accept;\n \
         meta mark & {:#x} == {{ {:#x}, {:#x} }} notrack accept\n",
        m.mask, m.listener_socket, m.connection_socket
    );
    for family in families {
        let _ = writeln!(
            text,
            " {} saddr . meta l4proto . th sport @own{} notrack accept",
            keyword(*family),
            digit(*family)
        );
    }
    let _ = writeln!(text, " meta mark & {:#x} != 0 return", m.mask);
    for family in families {
        let n = digit(*family);
        let _ = writeln!(text, " meta nfproto ipv{n} meta l4proto {{ tcp, udp }} goto out{n}");
    }
    text.push_str("}\n}\n");
    text
}

/// What the table's comment says: everything outside the table that belongs to this instance.
pub(crate) fn comment(config: &RedirectConfig) -> String {
    format!(
        "marks {:#x} table {} rules {} pool {}-{}",
        config.mark_field, config.routing_table, config.rule_priority, config.pool_first, config.pool_last
    )
}

/// The definition on one line, as an interactive nft wants it (each line is one transaction there).
pub(crate) fn one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len() + 256);
    for part in text.lines().map(str::trim).filter(|l| !l.is_empty()) {
        line.push_str(part);
        line.push_str(if part.ends_with('{') || part.ends_with(';') {
            " "
        } else {
            "; "
        });
    }
    line
}

/// The line that renews the lease. `add` alone does not renew a timeout that runs; `add; delete; add` does, and the first
/// `add` makes the delete safe where the element has run out already.
pub(crate) fn lease_line(config: &RedirectConfig, families: &[IpFamily]) -> String {
    let table = config.table();
    let names: Vec<&str> = families.iter().map(|f| lease_name(*f)).collect();
    let timed: Vec<String> = names.iter().map(|n| format!("{n} timeout {LEASE_SECONDS}s")).collect();
    let (timed, names) = (timed.join(", "), names.join(", "));
    format!(
        "add element inet {table} lease {{ {timed} }}; delete element inet {table} lease {{ {names} }}; \
         add element inet {table} lease {{ {timed} }}"
    )
}

/// A family's element in the `lease` set.
pub(crate) fn lease_name(family: IpFamily) -> &'static str {
    match family {
        IpFamily::V4 => "ipv4",
        IpFamily::V6 => "ipv6",
    }
}

/// 4 or 6: the suffix of a family's sets.
pub(crate) fn digit(family: IpFamily) -> char {
    match family {
        IpFamily::V4 => '4',
        IpFamily::V6 => '6',
    }
}

fn keyword(family: IpFamily) -> &'static str {
    match family {
        IpFamily::V4 => "ip",
        IpFamily::V6 => "ip6",
    }
}

fn family_text(config: &RedirectConfig, family: IpFamily) -> String {
    let m = config.marks();
    let addr = match family {
        IpFamily::V4 => "ipv4_addr",
        IpFamily::V6 => "ipv6_addr",
    };
    FAMILY
        .replace("{n}", &digit(family).to_string())
        .replace("{ip}", keyword(family))
        .replace("{addr}", addr)
        .replace("{ls}", &format!("{:#x}", m.listener_socket))
        .replace("{es}", &format!("{:#x}", m.connection_socket))
        .replace("{pool}", &format!("{}-{}", config.pool_first, config.pool_last))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn default_text(families: &[IpFamily]) -> String {
        table(&RedirectConfig::default(), families)
    }

    /// The whole text, so that no rule changes unseen. To accept a change on purpose, write the new text to the file.
    #[test]
    fn golden() {
        let golden = include_str!("ruleset.golden.nft");
        let text = default_text(&[IpFamily::V4, IpFamily::V6]);
        assert_eq!(text, golden, "new text:\n{text}");
    }

    #[test]
    fn one_family_leaves_no_trace_of_the_other() {
        let text = default_text(&[IpFamily::V4]);
        for word in ["ip6", "ipv6", "icmpv6", "svc6"] {
            assert!(!text.contains(word), "{word} in {text}");
        }
        let text = default_text(&[IpFamily::V6]);
        for word in ["ip saddr", "ip daddr", "ipv4", "icmp type", "svc4"] {
            assert!(!text.contains(word), "{word} in {text}");
        }
    }

    #[test]
    fn other_values_reach_every_rule() {
        let config = RedirectConfig {
            instance: "b".into(),
            mark_field: 0xe0,
            pool_first: 30_000,
            pool_last: 30_127,
            ..RedirectConfig::default()
        };
        let text = table(&config, &[IpFamily::V4, IpFamily::V6]);
        for old in ["0x1800", "0x2000", "0x3800", "20000", "20255", "nodeward-main"] {
            assert!(!text.contains(old), "{old} in {text}");
        }
        assert!(text.contains("meta mark & 0xffffff1f | 0x20 "), "{text}");
    }

    #[test]
    fn one_line_is_one_line() {
        let line = one_line(&default_text(&[IpFamily::V4, IpFamily::V6]));
        assert!(!line.contains('\n'));
        assert!(!line.contains('#'), "a comment would swallow the rest of the line");
    }
}
