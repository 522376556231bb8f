//! Would the node's own firewall drop what we deliver?
//!
//! An `accept` in our table does not overrule another table's drop: a packet has to pass every base chain of the input
//! hook. So each is walked with what we know of such a packet (our deliver mark, untracked, UDP or TCP, not from `lo`);
//! a condition on anything else may hold or not. Chains are listed one by one: the whole rule set of a node is large, and
//! nft 1.0.6 prints broken JSON for tables with an owner.

use super::Finding;
use super::walk::{Chains, End, Packet, walk};
use crate::model::IpFamily;
use crate::redirect::config::{Marks, RedirectConfig};
use crate::redirect::nft::{first_error, run_once};
use crate::redirect::sets::objects;
use serde_json::Value;
use std::fs;

/// Chains read at most; more are taken for unknown.
const CHAIN_LIMIT: usize = 256;

pub(super) async fn input(config: &RedirectConfig) -> Vec<Finding> {
    let mut findings = match nft_chains(config).await {
        Ok(findings) => findings,
        Err(e) => {
            let fix = "make sure that INPUT accepts packets with our mark";
            vec![Finding::warning(
                "input-firewall",
                format!("the input chains could not be read: {e}"),
                fix,
            )]
        }
    };
    findings.extend(legacy(config).await);
    if findings.is_empty() {
        findings.push(Finding::ok(
            "input-firewall",
            "no input chain drops what is delivered to us",
        ));
    }
    findings
}

async fn nft_chains(config: &RedirectConfig) -> Result<Vec<Finding>, String> {
    let list = list(config, &["-j", "list", "chains"]).await?;
    let base: Vec<Base> = objects(&list, "chain").filter_map(Base::read).collect();
    let mut findings = Vec::new();
    for chain in base {
        let chains = reachable(config, &chain).await?;
        // One finding per chain: the worst over families and protocols.
        let worst = chain
            .families(config)
            .into_iter()
            .flat_map(|family| [(family, "udp"), (family, "tcp")])
            .map(|(family, protocol)| {
                let packet = Packet {
                    marks: config.marks(),
                    family,
                    protocol,
                };
                walk(&chains, &chain.name, &packet, 0).end(chain.policy_drops)
            })
            .max();
        findings.extend(worst.and_then(|end| chain.finding(end, config.marks())));
    }
    Ok(findings)
}

async fn list(config: &RedirectConfig, arguments: &[&str]) -> Result<Value, String> {
    let run = run_once(&config.nft, arguments, None)
        .await
        .map_err(|e| e.to_string())?;
    if !run.success {
        return Err(first_error(&run.stderr));
    }
    serde_json::from_str(&run.stdout).map_err(|e| format!("unreadable answer of nft: {e}"))
}

/// The rules of a chain and of all it jumps to.
async fn reachable(config: &RedirectConfig, base: &Base) -> Result<Chains, String> {
    let mut chains = Chains::new();
    let mut wanted = vec![base.name.clone()];
    while let Some(name) = wanted.pop() {
        if chains.contains_key(&name) || chains.len() >= CHAIN_LIMIT {
            continue;
        }
        let answer = list(config, &["-j", "list", "chain", &base.family, &base.table, &name]).await?;
        let rules: Vec<Value> = objects(&answer, "rule")
            .filter_map(|r| r.get("expr"))
            .cloned()
            .collect();
        for rule in &rules {
            targets(rule, &mut wanted);
        }
        chains.insert(name, rules);
    }
    Ok(chains)
}

/// Every jump and goto target in a rule, in verdict maps too.
fn targets(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Array(list) => list.iter().for_each(|v| targets(v, found)),
        Value::Object(map) => {
            for (key, v) in map {
                match (key.as_str(), v.get("target").and_then(Value::as_str)) {
                    ("jump" | "goto", Some(target)) => found.push(target.to_owned()),
                    _ => targets(v, found),
                }
            }
        }
        _ => {}
    }
}

/// A base chain of the input hook.
struct Base {
    family: String,
    table: String,
    name: String,
    policy_drops: bool,
}

impl Base {
    fn read(chain: &Value) -> Option<Self> {
        let text = |key: &str| chain.get(key).and_then(Value::as_str).map(str::to_owned);
        let base = Self {
            family: text("family")?,
            table: text("table")?,
            name: text("name")?,
            policy_drops: text("policy").as_deref() == Some("drop"),
        };
        let input = text("hook").as_deref() == Some("input") && text("type").as_deref() == Some("filter");
        (input && matches!(base.family.as_str(), "ip" | "ip6" | "inet")).then_some(base)
    }

    fn families(&self, config: &RedirectConfig) -> Vec<IpFamily> {
        let mut families = config.families();
        families.retain(|f| match self.family.as_str() {
            "ip" => *f == IpFamily::V4,
            "ip6" => *f == IpFamily::V6,
            _ => true,
        });
        families
    }

    fn finding(&self, end: End, marks: Marks) -> Option<Finding> {
        let Self {
            family, table, name, ..
        } = self;
        let (mask, mark) = (marks.mask, marks.deliver);
        let fix = match (family.as_str(), table.as_str(), name.as_str()) {
            ("ip", "filter", "INPUT") => format!("iptables -I INPUT -m mark --mark {mark:#x}/{mask:#x} -j ACCEPT"),
            ("ip6", "filter", "INPUT") => format!("ip6tables -I INPUT -m mark --mark {mark:#x}/{mask:#x} -j ACCEPT"),
            _ => format!("nft insert rule {family} {table} {name} meta mark and {mask:#x} == {mark:#x} accept"),
        };
        let chain = format!("chain {name} of table {family} {table}");
        match end {
            End::Accepted => None,
            End::Unsure => {
                let message = format!("{chain} drops what no rule accepts, and none surely accepts what we deliver");
                Some(Finding::warning("input-firewall", message, fix))
            }
            End::Dropped => Some(Finding::refuse(
                "input-firewall",
                format!("{chain} drops what we deliver"),
                fix,
            )),
        }
    }
}

/// The old iptables has its own tables, which nft does not show.
async fn legacy(config: &RedirectConfig) -> Vec<Finding> {
    let mut findings = Vec::new();
    let marks = config.marks();
    for (names, program, plain) in [
        ("/proc/net/ip_tables_names", "iptables-legacy", "iptables"),
        ("/proc/net/ip6_tables_names", "ip6tables-legacy", "ip6tables"),
    ] {
        let present = fs::read_to_string(names).is_ok_and(|t| t.lines().any(|l| l == "filter"));
        if !present {
            continue;
        }
        let policy = match run_once(program, &["-S", "INPUT"], None).await {
            Ok(run) if run.success => run.stdout.lines().next().unwrap_or_default().to_owned(),
            _ => "unknown".to_owned(),
        };
        if policy == "-P INPUT ACCEPT" {
            continue;
        }
        let message = format!("the legacy {plain} filter table is in use, INPUT policy: {policy}");
        let fix = format!(
            "{program} -I INPUT -m mark --mark {:#x}/{:#x} -j ACCEPT",
            marks.deliver, marks.mask
        );
        findings.push(Finding::warning("input-firewall", message, fix));
    }
    findings
}
