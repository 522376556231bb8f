//! The binary: JSON on the last line, exit codes, messages that name the option, counts at SIGTERM.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use common::{MS, dns_server};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use nodeward_loadgen::report::{OneWayReport, Report, ServeReport, StatsdServeReport};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::process::{Child, Command, Output, Stdio};

fn loadgen(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_nodeward-loadgen"))
        .args(args)
        .output()
        .unwrap()
}

fn last_line(output: &Output) -> String {
    String::from_utf8(output.stdout.clone())
        .unwrap()
        .lines()
        .last()
        .unwrap_or_default()
        .to_owned()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// A `serve` process; killed when dropped.
struct Serving {
    child: Child,
    address: SocketAddr,
}

impl Serving {
    fn start(args: &[&str]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_nodeward-loadgen"))
            .arg("serve")
            .args(args)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stderr.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        let address = line.trim().strip_prefix("listening on ").expect(&line).parse().unwrap();
        Serving { child, address }
    }

    /// Sends the signal and returns what it printed.
    fn stop(mut self, signal: Signal) -> String {
        kill(Pid::from_raw(self.child.id().try_into().unwrap()), signal).unwrap();
        let mut out = String::new();
        self.child.stdout.take().unwrap().read_to_string(&mut out).unwrap();
        assert!(self.child.wait().unwrap().success());
        out.lines().last().unwrap().to_owned()
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Every field's name must stand in the README as `name`, so that the schema stays documented.
fn assert_documented(value: &Value) {
    let readme = include_str!("../README.md");
    for (key, inner) in value.as_object().unwrap() {
        assert!(readme.contains(&format!("`{key}`")), "README does not document {key}");
        if let Some(element @ Value::Object(_)) = inner.as_array().and_then(|list| list.first()) {
            assert_documented(element);
        }
    }
}

#[test]
fn json_has_the_documented_schema() {
    let server = dns_server(|_| {});
    let address = server.address().to_string();
    let output = loadgen(&[
        "dns",
        "--server",
        &address,
        "--rate",
        "500",
        "--duration",
        "0.4",
        "--identify",
        "txt",
        "--json",
        "--progress",
    ]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let value: Value = serde_json::from_str(&last_line(&output)).unwrap();
    for (key, is) in [
        ("schema", Value::is_string as fn(&Value) -> bool),
        ("queries", Value::is_u64),
        ("answered", Value::is_u64),
        ("failed", Value::is_u64),
        ("duplicates", Value::is_u64),
        ("wrong_source", Value::is_u64),
        ("mismatched", Value::is_u64),
        ("late", Value::is_u64),
        ("rcodes", Value::is_object),
        ("icmp_errors", Value::is_u64),
        ("send_errors", Value::is_u64),
        ("rate_target", Value::is_number),
        ("rate_achieved", Value::is_number),
        ("p50_us", Value::is_number),
        ("p90_us", Value::is_number),
        ("p99_us", Value::is_number),
        ("p999_us", Value::is_number),
        ("max_us", Value::is_number),
        ("answered_by", Value::is_object),
        ("timeline", Value::is_array),
    ] {
        assert!(value.get(key).is_some_and(is), "{key}: {:?}", value.get(key));
    }
    assert_eq!(value["schema"], "nodeward-loadgen/1");
    assert_eq!(value["answered_by"]["n1"], 200);
    assert_eq!(value["timeline"][1]["at_ms"], 100);
    assert_eq!(value["timeline"][1]["answered_by"]["n1"], 50);
    assert_documented(&value);
    let report: Report = serde_json::from_value(value).unwrap();
    common::check(&report);
    assert_eq!((report.queries, report.answered), (200, 200));
}

#[test]
fn the_table_is_for_people() {
    let server = dns_server(|_| {});
    let output = loadgen(&[
        "dns",
        "--server",
        &server.address().to_string(),
        "--rate",
        "200",
        "--duration",
        "0.2",
    ]);
    let text = String::from_utf8(output.stdout).unwrap();
    for row in [
        "queries         40\n",
        "answered        40  (NOERROR 40)\n",
        "failed          0  (0.0000 %)\n",
    ] {
        assert!(text.contains(row), "{text}");
    }
}

#[test]
fn exit_codes() {
    let refusing = dns_server(|c| c.rcode = 2);
    let dropping = dns_server(|c| c.behaviour.drop_percent = 50.0);
    let (refusing, dropping) = (refusing.address().to_string(), dropping.address().to_string());
    let short = [
        "--rate",
        "400",
        "--duration",
        "0.2",
        "--timeout",
        "500",
        "--linger",
        "50",
    ];
    let run = |server: &str, more: &[&str]| loadgen(&[&["dns", "--server", server], &short[..], more].concat());

    let output = run(&dropping, &[]);
    assert_eq!(
        output.status.code(),
        Some(0),
        "failures are a result: {}",
        stderr(&output)
    );
    let output = run(&dropping, &["--max-failed", "80"]);
    assert_eq!(
        output.status.code(),
        Some(0),
        "80 of 80 are allowed: {}",
        stderr(&output)
    );
    let output = run(&dropping, &["--max-failed", "3"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("--max-failed"), "{}", stderr(&output));
    let output = run(&refusing, &[]);
    assert_eq!(output.status.code(), Some(1));
    let closed = std::net::UdpSocket::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .to_string();
    let output = run(&closed, &["--json"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr(&output).contains(&closed) && stderr(&output).contains("ECONNREFUSED"),
        "{}",
        stderr(&output)
    );
    let report: Report = serde_json::from_str(&last_line(&output)).unwrap();
    assert_eq!(
        (report.failed, report.p99_us),
        (80, None),
        "the report comes all the same"
    );
}

#[test]
fn wrong_usage_is_2_and_names_the_option() {
    for (args, named) in [
        (vec!["dns"], "--server"),
        (vec!["dns", "--server", "10.0.0.1"], "--server"),
        (vec!["dns", "--server", "127.0.0.1:53", "--rate", "-3"], "--rate"),
        (vec!["dns", "--server", "127.0.0.1:53", "--rate", "0"], "--rate"),
        (
            vec!["dns", "--server", "127.0.0.1:53", "--duration", "-1"],
            "--duration",
        ),
        (vec!["dns", "--server", "127.0.0.1:53", "--clients", "3"], "--clients"),
        (vec!["dns", "--server", "127.0.0.1:53", "--ports", "some"], "--ports"),
        (vec!["dns", "--server", "127.0.0.1:53", "--type", "MX"], "--type"),
        (
            vec!["dns", "--server", "127.0.0.1:53", "--type", "A", "--identify", "txt"],
            "--identify",
        ),
        (
            vec!["dns", "--server", "127.0.0.1:53", "--names", "/nonexistent"],
            "--names",
        ),
        (
            vec!["dns", "--server", "127.0.0.1:53", "--retransmit", "often"],
            "--retransmit",
        ),
        (
            vec!["dns", "--server", "127.0.0.1:53", "--retransmit", "200,100"],
            "--retransmit",
        ),
        (vec!["dns", "--server", "127.0.0.1:53", "--edns", "100"], "--edns"),
        (
            vec!["dns", "--server", "127.0.0.1:53", "--accept-rcode", "WHAT"],
            "--accept-rcode",
        ),
        (vec!["dns", "--server", "127.0.0.1:53", "--interval", "0"], "--interval"),
        (vec!["udp", "--server", "127.0.0.1:53", "--size", "5"], "--size"),
        (vec!["statsd", "--server", "127.0.0.1:53", "--size", "64,5"], "--size"),
        (vec!["serve", "dns", "--listen", "192.0.2.77:5353"], "--listen"),
        (
            vec!["serve", "dns", "--listen", "127.0.0.1:0", "--drop-percent", "101"],
            "--drop-percent",
        ),
        (
            vec!["serve", "dns", "--listen", "127.0.0.1:0", "--wrong-source", "127.0.0.1"],
            "--wrong-source",
        ),
    ] {
        let output = loadgen(&args);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(named), "{args:?}: {}", stderr(&output));
        assert!(output.stdout.is_empty(), "{args:?}");
    }
}

#[test]
fn help_has_examples() {
    for command in [vec!["dns"], vec!["udp"], vec!["statsd"], vec!["serve", "dns"]] {
        let output = loadgen(&[command.clone(), vec!["--help"]].concat());
        assert!(output.status.success());
        assert!(
            String::from_utf8(output.stdout).unwrap().contains("Example"),
            "{command:?}"
        );
    }
}

#[test]
fn servers_print_exact_counts_when_stopped() {
    let dns = Serving::start(&["dns", "--listen", "127.0.0.1:0", "--tag", "d1"]);
    let udp = Serving::start(&["udp", "--listen", "127.0.0.1:0", "--tag", "u1"]);
    let statsd = Serving::start(&["statsd", "--listen", "127.0.0.1:0", "--tag", "s1"]);
    let run = |command: &str, server: SocketAddr| {
        let output = loadgen(&[
            command,
            "--server",
            &server.to_string(),
            "--rate",
            "400",
            "--duration",
            "0.25",
            "--json",
        ]);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        last_line(&output)
    };
    let report: Report = serde_json::from_str(&run("dns", dns.address)).unwrap();
    assert_eq!((report.queries, report.answered), (100, 100));
    let report: Report = serde_json::from_str(&run("udp", udp.address)).unwrap();
    assert_eq!(report.answered_by.get("u1"), Some(&100));
    let sent = run("statsd", statsd.address);
    assert_documented(&serde_json::from_str(&sent).unwrap());
    let sent: OneWayReport = serde_json::from_str(&sent).unwrap();
    assert_eq!(sent.sent, 100);
    std::thread::sleep(100 * MS);

    let line = dns.stop(Signal::SIGTERM);
    assert_documented(&serde_json::from_str(&line).unwrap());
    let served: ServeReport = serde_json::from_str(&line).unwrap();
    assert_eq!(
        (served.tag.as_str(), served.received, served.answered),
        ("d1", 100, 100)
    );
    let served: ServeReport = serde_json::from_str(&udp.stop(Signal::SIGINT)).unwrap();
    assert_eq!((served.received, served.answered), (100, 100));
    let line = statsd.stop(Signal::SIGTERM);
    assert_documented(&serde_json::from_str(&line).unwrap());
    let served: StatsdServeReport = serde_json::from_str(&line).unwrap();
    assert_eq!((served.received, served.lost), (100, 0));
}

#[test]
fn a_signal_ends_the_sending_and_the_report_still_comes() {
    let server = dns_server(|_| {});
    let child = Command::new(env!("CARGO_BIN_EXE_nodeward-loadgen"))
        .args([
            "dns",
            "--server",
            &server.address().to_string(),
            "--rate",
            "200",
            "--duration",
            "60",
            "--json",
        ])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    std::thread::sleep(500 * MS);
    kill(Pid::from_raw(child.id().try_into().unwrap()), Signal::SIGINT).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let report: Report = serde_json::from_str(&last_line(&output)).unwrap();
    assert_eq!(report.queries + report.not_sent, 12_000);
    assert!(report.queries > 10 && report.failed == 0, "{}", report.queries);
}

#[test]
fn a_stopped_generator_does_not_hide_the_wait() {
    let server = dns_server(|_| {});
    let child = Command::new(env!("CARGO_BIN_EXE_nodeward-loadgen"))
        .args([
            "dns",
            "--server",
            &server.address().to_string(),
            "--rate",
            "400",
            "--duration",
            "1.5",
            "--json",
        ])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let pid = Pid::from_raw(child.id().try_into().unwrap());
    std::thread::sleep(400 * MS);
    kill(pid, Signal::SIGSTOP).unwrap();
    std::thread::sleep(500 * MS);
    kill(pid, Signal::SIGCONT).unwrap();
    let output = child.wait_with_output().unwrap();
    let report: Report = serde_json::from_str(&last_line(&output)).unwrap();
    assert_eq!((report.queries, report.answered), (600, 600));
    // A third of the queries was due while it stood still. They waited, and so the report says, and why.
    assert!(report.p90_us.unwrap() > 200_000.0, "{:?}", report.p90_us);
    assert!(report.send_lag_p99_us > 300_000.0, "{}", report.send_lag_p99_us);
}
