//! Other software on the node: routing rules, marks, tables, interfaces and addresses that do not go with ours.

use super::Finding;
use crate::redirect::config::RedirectConfig;
use crate::redirect::nft::our_tables;
use crate::redirect::plan::{Plan, Rule};
use crate::redirect::routing::Routing;
use nix::ifaddrs::getifaddrs;
use nix::net::if_::if_nametoindex;
use std::fs;
use std::net::IpAddr;
use std::path::Path;

pub(super) async fn routing(config: &RedirectConfig) -> Vec<Finding> {
    let routing = match Routing::open() {
        Ok(routing) => routing,
        Err(e) => {
            return vec![Finding::refuse(
                "routing",
                format!("rtnetlink cannot be opened: {e}"),
                "allow AF_NETLINK sockets",
            )];
        }
    };
    let plan = Plan::of(config);
    let mut findings = Vec::new();
    for family in config.families() {
        match routing.rules(family).await {
            Ok(rules) => findings.extend(rules.iter().filter_map(|rule| judge_rule(config, rule))),
            Err(e) => {
                let fix = "use a kernel with CONFIG_IP_MULTIPLE_TABLES (and CONFIG_IPV6_MULTIPLE_TABLES)";
                findings.push(Finding::refuse("routing", e, fix));
            }
        }
        match routing.foreign_routes(plan, family).await {
            Ok(routes) if routes.is_empty() => {}
            Ok(routes) => {
                let message = format!(
                    "routing table {} holds others' {family} routes: {}",
                    plan.table,
                    routes.join("; ")
                );
                findings.push(Finding::refuse(
                    "routing",
                    message,
                    "set `routingTable` to an unused table number",
                ));
            }
            Err(e) => findings.push(Finding::warning("routing", e, "check that rtnetlink is not filtered")),
        }
    }
    if findings.is_empty() {
        let (first, last) = (plan.priority, plan.priority + 2);
        findings.push(Finding::ok(
            "routing",
            format!("rules {first}-{last}, table {} and the mark field are free", plan.table),
        ));
    }
    findings
}

/// Whether somebody else's rule gets in our way.
fn judge_rule(config: &RedirectConfig, rule: &Rule) -> Option<Finding> {
    if rule.ours() {
        return None;
    }
    let Rule {
        family,
        priority,
        mark,
        mask,
        ..
    } = rule;
    let ours = config.rule_priority..=config.rule_priority + 2;
    if ours.contains(priority) {
        let message = format!("{family} routing rule {priority} is somebody else's");
        return Some(Finding::refuse(
            "routing",
            message,
            "set `rulePriority` so that it and the next two are unused",
        ));
    }
    // Whoever matches some bits of our field sets them too; whoever matches the whole mark uses one value, which matters
    // only if it reaches into the field.
    let whole = *mask == u32::MAX;
    let overlap = if whole {
        mark & config.mark_field
    } else {
        mask & config.mark_field
    };
    if overlap == 0 {
        return None;
    }
    let message = format!(
        "{family} routing rule {priority} (fwmark {mark:#x}/{mask:#x}) uses bits {overlap:#x} of our mark field {:#x}",
        config.mark_field
    );
    Some(Finding::refuse(
        "routing",
        message,
        "set `markField` to three neighbouring bits nobody else uses",
    ))
}

pub(super) async fn tables(config: &RedirectConfig) -> Finding {
    let name = config.table();
    match our_tables(&config.nft).await {
        Err(e) => Finding::refuse(
            "table",
            format!("nft tables cannot be listed: {e}"),
            "give the process CAP_NET_ADMIN",
        ),
        Ok(tables) => match tables.iter().find(|t| t.instance == config.instance) {
            None => Finding::ok("table", format!("inet {name} is free")),
            Some(table) if table.owned => Finding::refuse(
                "table",
                format!("inet {name} belongs to a live instance"),
                "nothing, if that is the agent you meant; otherwise stop it or set another `instance`",
            ),
            Some(_) => Finding::refuse(
                "table",
                format!("inet {name} exists and no process owns it"),
                format!("nodeward cleanup --instance {}", config.instance),
            ),
        },
    }
}

/// Network software that translates Services before our hooks see them, known by its interfaces.
const TRANSLATORS: &[(&str, &str, &str)] = &[
    (
        "kube-ipvs0",
        "kube-proxy runs (or ran) in IPVS mode: VIPs are local addresses and IPVS takes the packets after us",
        "run kube-proxy in nftables or iptables mode and delete the interface (`ip link del kube-ipvs0`)",
    ),
    (
        "cilium_host",
        "Cilium translates Services at the socket or in tc, so that no VIP packet reaches nft",
        "give the Service the label service.kubernetes.io/service-proxy-name, which Cilium leaves alone",
    ),
    (
        "bpfin.cali",
        "Calico's eBPF dataplane translates Services in tc, so that no VIP packet reaches nft",
        "annotate the Service with projectcalico.org/natExcludeService: \"true\", or use Calico's nftables dataplane",
    ),
];

pub(super) fn interfaces() -> Vec<Finding> {
    let mut findings: Vec<Finding> = TRANSLATORS
        .iter()
        .filter(|(name, ..)| if_nametoindex(*name).is_ok())
        .map(|(name, message, fix)| Finding::refuse("translation", format!("interface {name}: {message}"), *fix))
        .collect();
    if findings.is_empty() && Path::new("/sys/fs/bpf/tc/globals").is_dir() {
        let pinned = fs::read_dir("/sys/fs/bpf/tc/globals").into_iter().flatten().flatten();
        if pinned
            .into_iter()
            .any(|e| e.file_name().to_string_lossy().starts_with("cilium_lb"))
        {
            let message = "pinned Cilium load-balancer maps are there, but no cilium_host interface";
            let fix =
                "if Cilium is gone, reboot the node or run `cilium-dbg cleanup`; if it runs, expect no traffic here";
            findings.push(Finding::warning("translation", message, fix));
        }
    }
    if findings.is_empty() {
        findings.push(Finding::ok("translation", "no sign of IPVS, Cilium or Calico eBPF"));
    }
    findings
}

/// A VIP that is an address of the node goes to whoever listens there, and other programs may answer for it.
pub fn local_vips(vips: &[IpAddr]) -> Vec<Finding> {
    let Ok(addresses) = getifaddrs() else {
        return vec![Finding::warning(
            "local-vip",
            "the node's addresses cannot be listed",
            "allow AF_NETLINK sockets",
        )];
    };
    let local: Vec<(IpAddr, String)> = addresses
        .filter_map(|a| {
            let storage = a.address?;
            let v4 = storage.as_sockaddr_in().map(|s| IpAddr::V4(s.ip()));
            let address = v4.or_else(|| storage.as_sockaddr_in6().map(|s| IpAddr::V6(s.ip())))?;
            Some((address, a.interface_name))
        })
        .collect();
    let mut findings: Vec<Finding> = vips
        .iter()
        .filter_map(|vip| local.iter().find(|(address, _)| address == vip))
        .map(|(address, interface)| {
            let length = if address.is_ipv4() { 32 } else { 128 };
            let message =
                format!("VIP {address} is an address of interface {interface} (NodeLocal DNSCache does that)");
            let fix = format!("stop the program that set it, then `ip addr del {address}/{length} dev {interface}`");
            Finding::refuse("local-vip", message, fix)
        })
        .collect();
    if findings.is_empty() {
        findings.push(Finding::ok(
            "local-vip",
            format!("none of {} VIPs is an address of this node", vips.len()),
        ));
    }
    findings
}

/// Bridged pods work with both values; said because it explains what `tcpdump` and counters show.
pub(super) fn bridge() -> Finding {
    match fs::read_to_string("/proc/sys/net/bridge/bridge-nf-call-iptables") {
        Ok(value) => Finding::ok(
            "bridge",
            format!("bridge-nf-call-iptables is {}; both values work", value.trim()),
        ),
        Err(_) => Finding::ok("bridge", "br_netfilter is not loaded"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::IpFamily;

    fn rule(priority: u32, mark: u32, mask: u32) -> Rule {
        Rule {
            family: IpFamily::V4,
            priority,
            mark,
            mask,
            table: 1,
            protocol: 3,
        }
    }

    #[test]
    fn others_rules() {
        let config = RedirectConfig::default();
        let refused = |r: Rule| judge_rule(&config, &r).is_some();
        assert!(refused(rule(99, 0, 0)), "our priority");
        assert!(!refused(rule(101, 0, 0)));
        assert!(
            refused(rule(9, 0x200, 0xf00)),
            "Cilium's nibble reaches into the default field"
        );
        assert!(!refused(rule(9, 0x4000, 0x4000)), "kube-proxy's masquerade bit");
        assert!(!refused(rule(9, 0x80000, 0xff0000)), "Tailscale's");
        assert!(
            refused(rule(9, 0xca6c, u32::MAX)),
            "WireGuard's port as a mark, 0x0800 of it ours"
        );
        assert!(!refused(rule(9, 0x0001, u32::MAX)));
        let mut own = rule(99, 0x800, 0x3800);
        own.protocol = crate::redirect::plan::PROTOCOL;
        assert!(!refused(own));
    }
}
