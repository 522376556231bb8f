//! The verdict and the clean-up against a real kernel.
#![cfg(feature = "dataplane")]
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod redirect_support;

use nodeward::redirect::verdict::{Severity, Verdict, examine};
use nodeward::redirect::{CleanupError, Redirect, RedirectConfig, cleanup};
use redirect_support::*;
use std::process::ExitCode;

fn config() -> RedirectConfig {
    RedirectConfig {
        instance: "test".into(),
        ..RedirectConfig::default()
    }
}

fn verdict() -> Verdict {
    block_on(examine(&config(), &[VIP4.ip(), VIP6.ip()]))
}

/// The findings of one check that are not fine, as text.
fn complaints(verdict: &Verdict, check: &str, severity: Severity) -> Vec<String> {
    verdict
        .of_severity(severity)
        .filter(|f| f.check == check)
        .map(|f| format!("{} | {}", f.message, f.fix.as_deref().unwrap_or_default()))
        .collect()
}

#[test]
fn a_plain_node_is_fine_and_nothing_is_touched() {
    on_a_node(|| {
        let verdict = verdict();
        assert_eq!(verdict.verdict, Severity::Ok, "{verdict}");
        assert_eq!(run("nft list tables"), "");
        assert_eq!((our_rules(), our_routes()), (vec![], vec![]));
        let mut text = Vec::new();
        let code = nodeward::cli::check::run(&config(), &[], true, &mut text).unwrap();
        assert_eq!(format!("{code:?}"), format!("{:?}", ExitCode::SUCCESS));
        let json: serde_json::Value = serde_json::from_slice(&text).unwrap();
        assert_eq!(json["verdict"], "ok");
        assert!(
            json["findings"]
                .as_array()
                .unwrap()
                .iter()
                .any(|f| f["check"] == "ruleset")
        );
    });
}

#[test]
fn firewalls() {
    on_a_node(|| {
        nft("table inet fw {
              chain allow { udp dport 53 accept; }
              chain input { type filter hook input priority 0; policy drop;
                ct state vmap { established : accept, related : accept, invalid : drop }
                iifname lo accept
                tcp dport 22 accept
                icmp type echo-request accept
              }
            }");
        let verdict1 = verdict();
        let refused = complaints(&verdict1, "input-firewall", Severity::Refuse);
        assert_eq!(refused.len(), 1, "{verdict1}");
        let fix = "nft insert rule inet fw input meta mark and 0x3800 == 0x800 accept";
        assert!(refused[0].ends_with(fix), "{refused:?}");
        let mut text = Vec::new();
        let code = nodeward::cli::check::run(&config(), &[], false, &mut text).unwrap();
        assert_eq!(format!("{code:?}"), format!("{:?}", ExitCode::FAILURE));
        assert!(String::from_utf8(text).unwrap().contains(fix));

        run("nft add rule inet fw input jump allow");
        assert_eq!(
            complaints(&verdict(), "input-firewall", Severity::Warning).len(),
            1,
            "a port may fit or not"
        );
        run(fix);
        assert_eq!(verdict().verdict, Severity::Ok);
    });
}

#[test]
fn iptables_firewalls() {
    on_a_node(|| {
        run("iptables-nft -P INPUT DROP");
        run("iptables-nft -A INPUT -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT");
        let verdict1 = verdict();
        let refused = complaints(&verdict1, "input-firewall", Severity::Refuse);
        assert_eq!(refused.len(), 1, "{verdict1}");
        let fix = refused[0].split(" | ").nth(1).unwrap();
        assert_eq!(fix, "iptables -I INPUT -m mark --mark 0x800/0x3800 -j ACCEPT");
        run(&fix.replace("iptables", "iptables-nft"));
        let verdict2 = verdict();
        assert_eq!(verdict2.verdict, Severity::Ok, "{verdict2}");
    });
}

/// The firewall verdict is about packets, so ask packets too: refused means lost, and the fix means answered.
#[test]
fn the_firewall_verdict_agrees_with_the_kernel() {
    on_a_node(|| {
        let lab = Lab::new();
        block_on(async {
            nft(
                "table inet fw { chain input { type filter hook input priority 0; policy drop; ct state established accept; }; }",
            );
            let verdict = examine(&config(), &[VIP4.ip()]).await;
            let refused = complaints(&verdict, "input-firewall", Severity::Refuse);
            let (redirect, _events) = Redirect::install_with(config(), program()).await.unwrap();
            let _server = Server::on_vip(VIP4, &config());
            redirect.apply(taking_vip4()).await.unwrap();
            redirect.refresh_lease().await.unwrap();
            assert_eq!(lab.pod_asks(VIP4), None, "dropped by the firewall");
            run(refused[0].split(" | ").nth(1).unwrap());
            redirect.refresh_lease().await.unwrap();
            assert_eq!(lab.pod_asks(VIP4).as_deref(), Some("ours"));
            redirect.remove().await.unwrap();
        });
    });
}

fn taking_vip4() -> nodeward::redirect::Desired {
    let svc: std::collections::BTreeSet<_> = [(VIP4, nodeward::model::Protocol::Udp)].into();
    nodeward::redirect::Desired {
        own: svc.clone(),
        svc,
        ..Default::default()
    }
}

#[test]
fn neighbours() {
    on_a_node(|| {
        run("ip rule add pref 99 fwmark 0x1/0x1 lookup 42");
        run("ip rule add pref 9 fwmark 0x200/0xf00 lookup 2004");
        run("ip -6 route add fd00:77::/64 dev lo table 100");
        run("ip link add kube-ipvs0 type veth peer name cilium_host");
        run("ip addr add 10.96.0.10/32 dev lo");
        nft("table inet nodeward-test { }");
        let verdict = verdict();
        let count = |check| complaints(&verdict, check, Severity::Refuse).len();
        assert_eq!(count("routing"), 3, "{verdict}");
        assert_eq!(count("translation"), 2, "{verdict}");
        assert_eq!(count("local-vip"), 1, "{verdict}");
        assert_eq!(count("table"), 1, "{verdict}");
        assert!(complaints(&verdict, "local-vip", Severity::Refuse)[0].ends_with("`ip addr del 10.96.0.10/32 dev lo`"));
        assert!(complaints(&verdict, "table", Severity::Refuse)[0].ends_with("nodeward cleanup --instance test"));
        let json = serde_json::to_value(&verdict).unwrap();
        assert_eq!(json["verdict"], "refuse");
    });
}

#[test]
fn a_live_instance_is_seen_and_its_own_rules_are_no_conflict() {
    on_a_node(|| {
        let config = config();
        block_on(async {
            let (redirect, _events) = Redirect::install_with(config.clone(), program()).await.unwrap();
            let verdict = examine(&config, &[]).await;
            assert_eq!(complaints(&verdict, "table", Severity::Refuse).len(), 1, "{verdict}");
            assert_eq!(verdict.of_severity(Severity::Refuse).count(), 1, "{verdict}");
            redirect.remove().await.unwrap();
        });
    });
}

/// A program that plays an nft which lacks something: rule sets that mention the word are refused.
fn nft_without(word: &str) -> (tempfile::TempDir, RedirectConfig) {
    use std::os::unix::fs::PermissionsExt as _;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("nft");
    let edit = format!("s/{word}/no_such_thing/g");
    let script = format!(
        "#!/bin/sh\ncase \"$1 $2\" in '-j -i'|'-c -f') sed -u '{edit}' | exec nft \"$@\";; *) exec nft \"$@\";; esac\n"
    );
    std::fs::write(&path, script).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    let nft = path.to_str().unwrap().to_owned();
    (dir, RedirectConfig { nft, ..config() })
}

#[test]
fn what_is_missing_is_named() {
    on_a_node(|| {
        block_on(async {
            let (_dir, config) = nft_without("tproxy ip to");
            let verdict = examine(&config, &[]).await;
            let refused = complaints(&verdict, "ruleset", Severity::Refuse);
            assert_eq!(refused.len(), 1, "{verdict}");
            assert!(refused[0].contains("CONFIG_NFT_TPROXY"), "{refused:?}");
            let error = Redirect::install_with(config, program()).await.unwrap_err().to_string();
            assert!(error.contains("CONFIG_NFT_TPROXY"), "{error}");
            assert_eq!((our_rules(), our_routes()), (vec![], vec![]));

            let missing = RedirectConfig {
                nft: "/nonexistent/nft".into(),
                ..self::config()
            };
            let verdict = examine(&missing, &[]).await;
            assert_eq!(complaints(&verdict, "nft", Severity::Refuse).len(), 1, "{verdict}");
            let error = Redirect::install_with(missing, program())
                .await
                .unwrap_err()
                .to_string();
            assert!(
                error.contains("/nonexistent/nft") && error.contains("install nftables"),
                "{error}"
            );
        });
    });
}

#[test]
fn cleanup_removes_what_the_dead_left_and_spares_the_living() {
    on_a_node(|| {
        block_on(async {
            // Agent's link and holder die together: rules and routes stay.
            let (redirect, _events) = Redirect::install_with(config(), program()).await.unwrap();
            let pid = i32::try_from(redirect.holder_pid()).unwrap();
            nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL).unwrap();
            within(std::time::Duration::from_secs(1), "table gone", || {
                !table_exists("nodeward-test")
            });
            drop(redirect);
            run("ip rule del pref 99"); // Not even all of them.
            assert_eq!((our_rules().len(), our_routes().len()), (5, 2));

            // Another instance lives with rules of its own, and a table was restored from a file.
            let other = RedirectConfig {
                instance: "live".into(),
                routing_table: 200,
                rule_priority: 300,
                mark_field: 0x70_0000,
                ..config()
            };
            let (live, _events) = Redirect::install_with(other, program()).await.unwrap();
            nft("table inet nodeward-old { }");
            run("ip rule add pref 500 fwmark 0x1 lookup 42");

            let error = cleanup("nft", Some("live")).await.unwrap_err();
            assert!(matches!(error, CleanupError::Alive(_)), "{error}");
            assert!(matches!(
                cleanup("nft", Some("a b")).await,
                Err(CleanupError::Instance(_))
            ));
            assert_eq!(our_rules().len(), 11, "a refusal touches nothing");

            let cleaned = cleanup("nft", None).await.unwrap();
            assert_eq!(cleaned.live, ["live"]);
            assert_eq!(
                (cleaned.removed.len(), cleaned.kept.len()),
                (1 + 5 + 2, 6 + 2),
                "{cleaned:?}"
            );
            assert!(!table_exists("nodeward-old") && table_exists("nodeward-live"));
            assert_eq!((our_rules().len(), our_routes().len()), (6, 2));
            assert!(run("ip rule show").contains("500:"), "others' rules stay");
            live.refresh_lease().await.unwrap();
            live.remove().await.unwrap();
            assert_eq!((our_rules(), our_routes()), (vec![], vec![]));
        });
        let mut text = Vec::new();
        nodeward::cli::cleanup::run("nft", None, false, &mut text).unwrap();
        assert_eq!(String::from_utf8(text).unwrap(), "nothing to remove\n");
    });
}
