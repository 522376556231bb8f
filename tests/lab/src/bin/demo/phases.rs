//! The story, phase by phase.

use std::thread::sleep;
use std::time::Duration;

use nodeward_lab::{Result, dig, dnsperf, dnsperf_result, getent};

use crate::account::{Account, Shares};
use crate::load::Report;
use crate::stage::{Stage, Traffic};

/// Time between two events of a phase: what a person can follow, and long enough for hundreds of queries.
const BEAT: Duration = Duration::from_millis(700);
/// Nodeward may lose this much traffic when it is killed.
const KILL_BUDGET_MS: u64 = 20;

fn shares(stage: &Stage, report: &Report) -> Shares {
    Shares::measured(&report.answered_by, |node| stage.zone_of(node))
}

/// What `dig` and the C library's resolver see right now.
fn real_clients(stage: &Stage, account: &mut Account) -> Result<()> {
    let answer = dig(&stage.client, stage.vip(), "whoami.lab", "TXT", &[])?;
    let who = answer.and_then(|a| a.answers.into_iter().next());
    let addresses = getent(&stage.client, stage.vip().ip(), "any.lab", stage.directory())?;
    match (who, addresses.first()) {
        (Some(who), Some(address)) => {
            account.say(&format!("  dig: answered by {who}; getent: any.lab is {address}"));
        }
        (who, address) => account.broke(format!("dig was answered by {who:?}, getent by {address:?}")),
    }
    Ok(())
}

/// The DaemonSet's pod on `node` is replaced: terminating, gone, a new one ready.
fn roll(stage: &mut Stage, node: &str) -> Result<()> {
    sleep(BEAT);
    stage.terminate(node)?;
    sleep(BEAT);
    stage.remove_terminated(node)?;
    sleep(BEAT);
    stage.start_pod(node)?;
    stage.become_ready(node)?;
    sleep(BEAT);
    Ok(())
}

fn leave(stage: &mut Stage, node: &str) -> Result<()> {
    sleep(BEAT);
    stage.terminate(node)?;
    sleep(BEAT);
    stage.remove_terminated(node)?;
    sleep(BEAT);
    Ok(())
}

fn come_back(stage: &mut Stage, nodes: &[&str]) -> Result<()> {
    sleep(BEAT);
    for node in nodes {
        stage.start_pod(node)?;
    }
    for node in nodes {
        stage.become_ready(node)?;
        sleep(BEAT);
    }
    Ok(())
}

/// Planned change: nothing may fail.
pub fn planned(stage: &mut Stage, account: &mut Account) -> Result<()> {
    let rate = stage.rate;
    type Events = fn(&mut Stage) -> Result<()>;
    let script: [(&str, f64, Events); 5] = [
        ("local endpoint", 2.0, |_| Ok(())),
        ("local endpoint rolls", 4.0, |s| roll(s, "n1")),
        ("local endpoint gone: same zone", 3.0, |s| leave(s, "n1")),
        ("zone empty: other zone", 3.0, |s| leave(s, "n2")),
        ("zone and local endpoint back", 4.0, |s| come_back(s, &["n2", "n1"])),
    ];
    for (name, seconds, events) in script {
        // dnsperf, a client that is not ours, asks at the same time.
        let other = dnsperf(&stage.client, stage.vip(), 100, seconds as u32, stage.directory())?;
        let report = stage.load(rate, seconds, events)?;
        account.phase(name, &report, shares(stage, &report));
        let counted = dnsperf_result(other.wait(Duration::from_secs(20))?)?;
        account.say(&format!(
            "  dnsperf: {} sent, {} lost, mean {:.0} µs",
            counted.sent,
            counted.lost,
            counted.average_latency_s * 1e6
        ));
        if counted.lost > 0 {
            account.broke(format!("{name}: dnsperf lost {} queries", counted.lost));
        }
        real_clients(stage, account)?;
    }
    Ok(())
}

/// The local endpoint is killed; the API notices a second later; it is started again.
pub fn endpoint_killed(stage: &mut Stage, account: &mut Account) -> Result<()> {
    let rate = stage.rate;
    let report = stage.load(rate, 4.0, |stage| {
        sleep(BEAT);
        stage.kill_server("n1")?;
        sleep(Duration::from_secs(1));
        stage.notice_death("n1")?;
        sleep(BEAT);
        stage.restart_server("n1")
    })?;
    account.phase("local endpoint killed", &report, shares(stage, &report));
    real_clients(stage, account)
}

/// How fast the changes so far were in use by every worker, by Nodeward's own histogram.
pub fn changes_applied(stage: &Stage, account: &mut Account) -> Result<()> {
    let Some(agent) = &stage.agent else {
        return Ok(());
    };
    let metrics = agent.metrics()?;
    let value = |series: &str| {
        let line = metrics.lines().find_map(|l| l.strip_prefix(series)?.strip_prefix(' '));
        line.and_then(|n| n.parse::<u64>().ok())
    };
    let total = value("nodeward_apply_duration_seconds_count");
    let within = value(r#"nodeward_apply_duration_seconds_bucket{le="0.1"}"#);
    match (total, within) {
        (Some(total), Some(within)) if total > 0 => {
            account.say(&format!(
                "Changes of endpoints: {within} of {total} were in use by every worker within 100 ms of the edit"
            ));
            // A single one may fall into a pause of the machine.
            if within + 1 < total {
                account.broke(format!("{} of {total} changes took longer than 100 ms", total - within));
            }
        }
        _ => account.broke("Nodeward does not tell how long its changes took".to_string()),
    }
    Ok(())
}

/// `kill -9` of Nodeward under load: kube-proxy's stand-in goes on.
pub fn nodeward_killed(stage: &mut Stage, account: &mut Account, rate: u32) -> Result<()> {
    let report = stage.load(rate, 3.0, |stage| {
        sleep(2 * BEAT);
        match stage.agent.take() {
            Some(agent) => agent.process().kill(),
            None => Ok(()),
        }
    })?;
    let allowed = u64::from(rate) * KILL_BUDGET_MS / 1000;
    account.killed(
        &format!("kill -9 of Nodeward at {rate} queries/s"),
        &report,
        shares(stage, &report),
        allowed,
    );
    account.say(&format!(
        "  allowed: {allowed} ({KILL_BUDGET_MS} ms worth); from then on kube-proxy's stand-in carries everything"
    ));
    real_clients(stage, account)
}

/// The same rollout without Nodeward, for comparison. Failures here are the point.
pub fn without_nodeward(stage: &mut Stage, account: &mut Account) -> Result<()> {
    account.say("\nThe same rollout of the local endpoint without Nodeward:");
    let rate = stage.rate;
    for (name, traffic) in [
        ("internalTrafficPolicy: Local", Traffic::Local),
        ("plain kube-proxy (NAT, any endpoint)", Traffic::Cluster),
    ] {
        stage.set_traffic(traffic)?;
        let report = stage.load(rate, 4.0, |stage| roll(stage, "n1"))?;
        account.row(name, &report, shares(stage, &report));
        if let Some(first) = report.timeline.iter().find(|i| i.failed > 0) {
            let last = report
                .timeline
                .iter()
                .rfind(|i| i.failed > 0)
                .map_or(first.at_ms, |i| i.at_ms);
            account.say(&format!("  failing from {} ms to {} ms of the run", first.at_ms, last));
        }
    }
    Ok(())
}
