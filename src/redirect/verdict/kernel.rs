//! Kernel version, rights, nft and what nft and kernel can do together.

use super::Finding;
use crate::model::IpFamily;
use crate::redirect::config::RedirectConfig;
use crate::redirect::nft::{first_error, run_once};
use crate::redirect::routing::ipv6_unavailable;
use crate::redirect::ruleset;
use std::fs;

/// `flags owner` came with 5.12 (`NFT_TABLE_F_OWNER`).
const OLDEST_KERNEL: (u32, u32) = (5, 12);

/// The oldest kernel we expect to work; older ones that have all features get a warning.
const EXPECTED_KERNEL: (u32, u32) = (5, 14);

/// The owner flag, typed concatenations and `delete @set` in rules are all there from this version on.
const OLDEST_NFT: (u32, u32, u32) = (1, 0, 2);

/// `CAP_NET_ADMIN` in `include/uapi/linux/capability.h`.
const CAP_NET_ADMIN: u32 = 12;

pub(super) fn version() -> Finding {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    judge_version(release.trim())
}

fn judge_version(release: &str) -> Finding {
    let numbers = numbers(release);
    let [major, minor, ..] = numbers.as_slice() else {
        let message = format!("the kernel calls itself `{release}`; its version cannot be told");
        return Finding::warning("kernel", message, "use Linux 5.14 or later");
    };
    let found = (*major, *minor);
    if found < OLDEST_KERNEL {
        let message = format!("Linux {release} has no nft tables owned by a process");
        Finding::refuse("kernel", message, "use Linux 5.14 or later")
    } else if found < EXPECTED_KERNEL {
        let message = format!("Linux {release} is older than expected");
        Finding::warning("kernel", message, "use Linux 5.14 or later")
    } else {
        Finding::ok("kernel", format!("Linux {release}"))
    }
}

/// The leading numbers of a version: `6.1.0-13-amd64` → 6, 1, 0.
fn numbers(version: &str) -> Vec<u32> {
    let end = version
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(version.len());
    version
        .get(..end)
        .unwrap_or_default()
        .split('.')
        .map_while(|n| n.parse().ok())
        .collect()
}

pub(super) fn capabilities() -> Finding {
    let status = fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("CapEff:"));
    let held = line
        .and_then(|l| u64::from_str_radix(l.trim(), 16).ok())
        .unwrap_or_default();
    if held >> CAP_NET_ADMIN & 1 == 1 {
        // It is enough for transparent sockets and SO_MARK too (`do_ip_setsockopt`, `sock_set_mark`).
        return Finding::ok("capabilities", "CAP_NET_ADMIN is held");
    }
    let fix = "add NET_ADMIN to the container's securityContext.capabilities, or run as root";
    Finding::refuse(
        "capabilities",
        "CAP_NET_ADMIN is missing: no nft, no routing rules, no transparent sockets",
        fix,
    )
}

pub(super) async fn nft(config: &RedirectConfig) -> Finding {
    let install = "install nftables 1.0.2 or later (Debian: apt-get install nftables)";
    let run = match run_once(&config.nft, &["-V"], None).await {
        Ok(run) if run.success => run,
        Ok(run) => {
            let message = format!("`{} -V` fails: {}", config.nft, first_error(&run.stderr));
            return Finding::refuse("nft", message, install);
        }
        Err(e) => return Finding::refuse("nft", format!("cannot run `{}`: {e}", config.nft), install),
    };
    judge_nft(&run.stdout)
}

fn judge_nft(text: &str) -> Finding {
    let install = "install nftables 1.0.2 or later (Debian: apt-get install nftables)";
    let version = text
        .split_whitespace()
        .find_map(|w| w.strip_prefix('v'))
        .unwrap_or_default();
    let known = numbers(version);
    let [major, minor, patch] = [0, 1, 2].map(|i| known.get(i).copied().unwrap_or_default());
    if (major, minor, patch) < OLDEST_NFT {
        return Finding::refuse("nft", format!("nft {version} is too old"), install);
    }
    let without = |feature: &str| text.lines().any(|l| l.split_whitespace().eq([feature, "no"]));
    for (feature, why) in [
        ("cli:", "the interactive mode that owns our table"),
        ("json:", "JSON, which we read back"),
    ] {
        if without(feature) {
            let message = format!("nft {version} was built without {why}");
            return Finding::refuse("nft", message, "use your distribution's full nftables package");
        }
    }
    Finding::ok("nft", format!("nft {version}"))
}

/// Something the rule set needs, with the smallest rule that needs it.
struct Feature {
    name: &'static str,
    /// Commands; `T` stands for the table.
    rules: &'static str,
    /// What to turn on.
    needs: &'static str,
    family: Option<IpFamily>,
}

const FEATURES: &[Feature] = &[
    Feature {
        name: "nft tables of family inet",
        rules: "add table inet T",
        needs: "CONFIG_NF_TABLES and CONFIG_NF_TABLES_INET (modprobe nf_tables), and CAP_NET_ADMIN",
        family: None,
    },
    Feature {
        name: "tables owned by a process",
        rules: "add table inet T { flags owner; }",
        needs: "Linux 5.12 or later",
        family: None,
    },
    Feature {
        name: "a prerouting hook at priority raw",
        rules: "add table inet T; add chain inet T c { type filter hook prerouting priority raw; }",
        needs: "CONFIG_NF_TABLES_INET",
        family: None,
    },
    Feature {
        name: "a route hook at output",
        rules: "add table inet T; add chain inet T c { type route hook output priority raw; }",
        needs: "Linux 5.2 or later (route chains of family inet)",
        family: None,
    },
    Feature {
        name: "socket matching",
        rules: "add table inet T; add chain inet T c { type filter hook prerouting priority raw; }; \
                add rule inet T c socket transparent 1 socket mark 1",
        needs: "CONFIG_NFT_SOCKET (modprobe nft_socket)",
        family: None,
    },
    Feature {
        name: "tproxy for IPv4 (switches defragmentation on)",
        rules: "add table inet T; add chain inet T c { type filter hook prerouting priority raw; }; \
                add rule inet T c meta nfproto ipv4 meta l4proto udp tproxy ip to 127.0.0.1:1",
        needs: "CONFIG_NFT_TPROXY (modprobe nft_tproxy)",
        family: Some(IpFamily::V4),
    },
    Feature {
        name: "tproxy for IPv6 (switches defragmentation on)",
        rules: "add table inet T; add chain inet T c { type filter hook prerouting priority raw; }; \
                add rule inet T c meta nfproto ipv6 meta l4proto udp tproxy ip6 to [::1]:1",
        needs: "CONFIG_NFT_TPROXY with IPv6 (modprobe nft_tproxy)",
        family: Some(IpFamily::V6),
    },
    Feature {
        name: "notrack",
        rules: "add table inet T; add chain inet T c { type filter hook prerouting priority raw; }; \
                add rule inet T c notrack",
        needs: "CONFIG_NFT_CT (modprobe nft_ct)",
        family: None,
    },
    Feature {
        name: "sets with timeouts",
        rules: "add table inet T; add set inet T s { typeof meta nfproto; flags timeout; }",
        needs: "Linux 4.1 or later with CONFIG_NF_TABLES sets (before 5.10: CONFIG_NF_TABLES_SET)",
        family: None,
    },
    Feature {
        name: "sets changed by rules",
        rules: "add table inet T; add chain inet T c; \
                add set inet T s { type ipv4_addr . inet_service; flags dynamic,timeout; timeout 30s; size 8; }; \
                add rule inet T c update @s { ip saddr . tcp sport }; \
                add rule inet T c delete @s { ip saddr . tcp sport }",
        needs: "Linux 5.4 or later",
        family: None,
    },
    Feature {
        name: "named counters",
        rules: "add table inet T; add counter inet T n; add chain inet T c; add rule inet T c counter name n",
        needs: "CONFIG_NFT_OBJREF (before 6.1; modprobe nft_objref, nft_counter)",
        family: None,
    },
];

/// A name no instance can have, so that the questions never meet a table in use.
const SCRATCH: &str = "nodeward_question";

/// Asks the kernel whether it would take the whole rule set, and if not, which part it would not take.
pub(super) async fn features(config: &RedirectConfig) -> Vec<Finding> {
    let families = available(config);
    let text = ruleset::table(config, &families).replace(&config.table(), SCRATCH);
    let whole = match run_once(&config.nft, &["-c", "-f", "-"], Some(&text)).await {
        Ok(run) if run.success => return vec![Finding::ok("ruleset", "nft and the kernel take the whole rule set")],
        Ok(run) => first_error(&run.stderr),
        Err(e) => e.to_string(),
    };
    let missing = missing_features(config).await;
    if missing.is_empty() {
        let message = format!("the rule set is refused, though each of its parts is known: {whole}");
        return vec![Finding::refuse(
            "ruleset",
            message,
            "please report this with the kernel's and nft's versions",
        )];
    }
    let finding = |(name, needs, error): (&str, &str, String)| {
        Finding::refuse(
            "ruleset",
            format!("missing: {name} ({error})"),
            format!("needs {needs}"),
        )
    };
    missing.into_iter().map(finding).collect()
}

/// Features this kernel and nft do not have: name, what it needs, the message.
pub(in crate::redirect) async fn missing_features(
    config: &RedirectConfig,
) -> Vec<(&'static str, &'static str, String)> {
    let families = available(config);
    let mut missing = Vec::new();
    for feature in FEATURES
        .iter()
        .filter(|f| f.family.is_none_or(|f| families.contains(&f)))
    {
        let rules = feature.rules.replace(" T", &format!(" {SCRATCH}"));
        let error = match run_once(&config.nft, &["-c", "-f", "-"], Some(&rules)).await {
            Ok(run) if run.success => continue,
            Ok(run) => first_error(&run.stderr),
            Err(e) => e.to_string(),
        };
        missing.push((feature.name, feature.needs, error));
    }
    missing
}

fn available(config: &RedirectConfig) -> Vec<IpFamily> {
    let mut families = config.families();
    if ipv6_unavailable().is_some() {
        families.retain(|f| *f == IpFamily::V4);
    }
    families
}

pub(super) fn ipv6(config: &RedirectConfig) -> Finding {
    if !config.ipv6 {
        return Finding::ok("ipv6", "not asked for");
    }
    match ipv6_unavailable() {
        None => Finding::ok("ipv6", "available"),
        Some(why) if config.ipv4 => {
            let fix = "nothing, if the cluster has no IPv6 Services; otherwise enable IPv6, or set `ipv6: false`";
            Finding::warning("ipv6", format!("only IPv4 is redirected: {why}"), fix)
        }
        Some(why) => Finding::refuse(
            "ipv6",
            format!("only IPv6 is asked for, but {why}"),
            "enable IPv6 on the node",
        ),
    }
}

/// The pool must lie outside the node's ephemeral range or be reserved, or ordinary programs get its ports.
pub(super) fn pool_ports(config: &RedirectConfig) -> Finding {
    let range = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    let reserved = fs::read_to_string("/proc/sys/net/ipv4/ip_local_reserved_ports").unwrap_or_default();
    judge_ports(config, &range, reserved.trim())
}

fn judge_ports(config: &RedirectConfig, range: &str, reserved: &str) -> Finding {
    let (first, last) = (config.pool_first, config.pool_last);
    let bounds: Vec<u16> = range.split_whitespace().filter_map(|n| n.parse().ok()).collect();
    let [low, high] = bounds.as_slice() else {
        return Finding::ok("pool-ports", format!("{first}-{last}"));
    };
    let is_reserved = |port: u16| {
        reserved.split(',').any(|part| match part.split_once('-') {
            Some((a, b)) => matches!((a.parse(), b.parse()), (Ok(a), Ok(b)) if (a..=b).contains(&port)),
            None => part.parse() == Ok(port),
        })
    };
    if (first..=last).any(|p| (*low..=*high).contains(&p) && !is_reserved(p)) {
        let message = format!("the pool {first}-{last} lies in the node's ephemeral range {low}-{high}");
        let comma = if reserved.is_empty() { "" } else { "," };
        let fix = format!("sysctl -w net.ipv4.ip_local_reserved_ports={reserved}{comma}{first}-{last}");
        return Finding::warning("pool-ports", message, fix);
    }
    Finding::ok(
        "pool-ports",
        format!("{first}-{last} is outside the ephemeral range or reserved"),
    )
}

#[cfg(test)]
mod tests {
    use super::super::Severity;
    use super::*;

    #[test]
    fn kernels() {
        for (release, severity) in [
            ("5.10.0-28-amd64", Severity::Refuse),
            ("5.12.3", Severity::Warning),
            ("5.14.0-427.el9", Severity::Ok),
            ("6.18.44", Severity::Ok),
            ("custom", Severity::Warning),
        ] {
            assert_eq!(judge_version(release).severity, severity, "{release}");
        }
    }

    #[test]
    fn nft_versions_and_builds() {
        let good = "nftables v1.0.6 (Lester Gooch #5)\n  cli:\t\teditline\n  json:\t\tyes\n";
        assert_eq!(judge_nft(good).severity, Severity::Ok);
        for bad in [
            good.replace("1.0.6", "0.9.8"),
            good.replace("editline", "no"),
            good.replace("json:\t\tyes", "json: no"),
        ] {
            assert_eq!(judge_nft(&bad).severity, Severity::Refuse, "{bad}");
        }
        assert_eq!(judge_nft("").severity, Severity::Refuse);
    }

    #[test]
    fn pool_inside_the_ephemeral_range() {
        let config = RedirectConfig::default();
        assert_eq!(judge_ports(&config, "32768\t60999\n", "").severity, Severity::Ok);
        let finding = judge_ports(&config, "10000 60999", "8080,20000-20100");
        assert_eq!(finding.severity, Severity::Warning);
        let fix = "sysctl -w net.ipv4.ip_local_reserved_ports=8080,20000-20100,20000-20255";
        assert_eq!(finding.fix.as_deref(), Some(fix));
        assert_eq!(
            judge_ports(&config, "10000 60999", "8080,20000-20255").severity,
            Severity::Ok
        );
    }
}
