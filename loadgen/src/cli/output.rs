//! What a person or a script reads at the end of a run.

use nodeward_loadgen::report::{OneWayReport, Report};
use std::collections::BTreeMap;
use std::process::ExitCode;

/// Prints the report and turns it into an exit code.
pub fn finish(report: &Report, json: bool, max_failed: Option<u64>) -> anyhow::Result<ExitCode> {
    if json {
        println!("{}", serde_json::to_string(report)?);
    } else {
        print!("{}", table(report));
    }
    if report.not_sent > 0 {
        eprintln!(
            "warning: {} queries were never sent: stopped, or the rate is too high here",
            report.not_sent
        );
    }
    if report.queries > 0 && report.answered == 0 {
        let icmp = list(&report.icmp);
        let why = if icmp.is_empty() {
            String::new()
        } else {
            format!(" (ICMP: {icmp})")
        };
        eprintln!("error: no right answer at all from {}{why}", report.server);
        return Ok(ExitCode::from(1));
    }
    if let Some(most) = max_failed.filter(|&most| report.failed > most) {
        eprintln!("error: {} queries failed, --max-failed allows {most}", report.failed);
        return Ok(ExitCode::from(1));
    }
    Ok(ExitCode::SUCCESS)
}

/// The same for one-way traffic, where only the kernel's refusals are failures.
pub fn finish_oneway(report: &OneWayReport, json: bool, max_failed: Option<u64>) -> anyhow::Result<ExitCode> {
    if json {
        println!("{}", serde_json::to_string(report)?);
    } else {
        print!("{}", oneway_table(report));
    }
    if report.not_sent > 0 {
        eprintln!(
            "warning: {} datagrams were never sent: stopped, or the rate is too high here",
            report.not_sent
        );
    }
    if report.datagrams > 0 && report.sent == 0 {
        eprintln!(
            "error: nothing could be sent to {} ({})",
            report.server,
            list(&report.send_errors_by)
        );
        return Ok(ExitCode::from(1));
    }
    if let Some(most) = max_failed.filter(|&most| report.failed > most) {
        eprintln!(
            "error: {} datagrams could not be sent, --max-failed allows {most}",
            report.failed
        );
        return Ok(ExitCode::from(1));
    }
    Ok(ExitCode::SUCCESS)
}

fn list(map: &BTreeMap<String, u64>) -> String {
    map.iter()
        .map(|(name, n)| format!("{name} {n}"))
        .collect::<Vec<_>>()
        .join(", ")
}

fn detail(map: &BTreeMap<String, u64>) -> String {
    if map.is_empty() {
        String::new()
    } else {
        format!("  ({})", list(map))
    }
}

fn lines(rows: Vec<(&str, String)>) -> String {
    rows.into_iter()
        .map(|(name, value)| format!("{name:<15} {value}\n"))
        .collect()
}

fn oneway_table(r: &OneWayReport) -> String {
    let cpu = format!(
        "{:.1}  (user {:.2} s, system {:.2} s)",
        r.cpu_us_per_datagram, r.cpu_user_s, r.cpu_system_s
    );
    lines(vec![
        ("server", format!("{}, {} senders, run {}", r.server, r.senders, r.run)),
        (
            "rate",
            format!(
                "{:.1}/s of {:.1}/s asked for, {:.3} s",
                r.rate_achieved, r.rate_target, r.duration_s
            ),
        ),
        ("datagrams", r.datagrams.to_string()),
        ("sent", format!("{}  ({} bytes)", r.sent, r.bytes)),
        ("failed", format!("{}{}", r.failed, detail(&r.send_errors_by))),
        ("ICMP errors", format!("{}{}", r.icmp_errors, detail(&r.icmp))),
        (
            "send lag µs",
            format!("p99 {:.0}  max {:.0}", r.send_lag_p99_us, r.send_lag_max_us),
        ),
        ("CPU µs/datagram", cpu),
    ])
}

fn table(r: &Report) -> String {
    let us = |v: Option<f64>| v.map_or_else(|| "-".to_owned(), |v| format!("{v:.0}"));
    let mut rows: Vec<(&str, String)> = vec![
        (
            "server",
            format!("{}, {} ports, {} sockets", r.server, r.ports, r.sockets_opened),
        ),
        (
            "rate",
            format!(
                "{:.1}/s of {:.1}/s asked for, {:.3} s",
                r.rate_achieved, r.rate_target, r.duration_s
            ),
        ),
        ("queries", r.queries.to_string()),
        ("answered", format!("{}{}", r.answered, detail(&r.rcodes))),
        ("failed", format!("{}  ({:.4} %)", r.failed, 100.0 * r.failed_share())),
        ("  timeouts", r.timeouts.to_string()),
        ("  rcode", r.rcode_failed.to_string()),
        ("  not sendable", r.send_failed.to_string()),
        ("duplicates", r.duplicates.to_string()),
        ("wrong source", r.wrong_source.to_string()),
        ("mismatched", r.mismatched.to_string()),
        ("late", r.late.to_string()),
        ("truncated", r.truncated.to_string()),
        (
            "retransmits",
            format!("{}  ({} answered too)", r.retransmits, r.retransmit_answers),
        ),
        ("ICMP errors", format!("{}{}", r.icmp_errors, detail(&r.icmp))),
        ("send errors", format!("{}{}", r.send_errors, detail(&r.send_errors_by))),
        (
            "latency µs",
            format!(
                "p50 {}  p90 {}  p99 {}  p99.9 {}  max {}",
                us(r.p50_us),
                us(r.p90_us),
                us(r.p99_us),
                us(r.p999_us),
                us(r.max_us)
            ),
        ),
        (
            "send lag µs",
            format!("p99 {:.0}  max {:.0}", r.send_lag_p99_us, r.send_lag_max_us),
        ),
        (
            "CPU µs/query",
            format!(
                "{:.1}  (user {:.2} s, system {:.2} s)",
                r.cpu_us_per_query, r.cpu_user_s, r.cpu_system_s
            ),
        ),
    ];
    if r.answered_by.keys().any(|name| name != "(unknown)") {
        for (name, n) in &r.answered_by {
            let share = 100.0 * *n as f64 / r.answered.max(1) as f64;
            rows.push(("answered by", format!("{name}: {n}  ({share:.2} %)")));
        }
    }
    lines(rows)
}
