//! The command line as its users meet it: exit codes, messages, what goes where.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::process::{Command, Output};

fn nodeward(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_nodeward"))
        .args(args)
        .env_remove("NODE_NAME")
        .output()
        .unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[test]
fn defaults_are_the_deployed_file() {
    let out = nodeward(&["config", "--defaults"]);
    assert_eq!(out.status.code(), Some(0));
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/config.yaml");
    assert_eq!(text(&out.stdout), std::fs::read_to_string(file).unwrap());
    let out = nodeward(&["config", "--config", file]);
    assert_eq!(out.status.code(), Some(0), "{}", text(&out.stderr));
}

#[test]
fn wrong_usage_is_2_on_standard_error() {
    for args in [
        &[][..],
        &["bogus"],
        &["config"],
        &["config", "--defaults", "--config", "x"],
        &["version", "-o", "xml"],
    ] {
        let out = nodeward(args);
        assert_eq!(out.status.code(), Some(2), "{args:?}");
        assert!(out.stdout.is_empty() && !out.stderr.is_empty(), "{args:?}");
    }
}

#[test]
fn wrong_input_is_2_and_names_the_place() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("bad.yaml");
    std::fs::write(&file, "node: n\nadmn: {}\n").unwrap();
    let out = nodeward(&["config", "--config", file.to_str().unwrap()]);
    assert_eq!(out.status.code(), Some(2));
    let wanted = format!("{}:2:1: unknown key `admn`; did you mean `admin`?", file.display());
    assert!(text(&out.stderr).contains(&wanted), "{}", text(&out.stderr));
}

#[test]
fn help_and_version_are_0() {
    for args in [&["--help"][..], &["-V"], &["version"], &["config", "--help"]] {
        let out = nodeward(args);
        assert_eq!(out.status.code(), Some(0), "{args:?}");
        assert!(!out.stdout.is_empty() && out.stderr.is_empty(), "{args:?}");
    }
    let out = nodeward(&["version", "-o", "json"]);
    let v: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(v["version"], env!("CARGO_PKG_VERSION"));
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let script = format!(
        "{} config --defaults | head -c 1 >/dev/null; echo ${{PIPESTATUS[0]}}",
        env!("CARGO_BIN_EXE_nodeward")
    );
    let out = Command::new("bash").args(["-c", &script]).output().unwrap();
    assert_eq!(text(&out.stdout).trim(), "0", "{}", text(&out.stderr));
}

#[test]
fn check_refuses_wrong_input_with_2() {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("config.yaml");
    let bad = dir.path().join("bad.yaml");
    std::fs::write(&bad, "apiVersion: v1\nkind: Service\nmetadata: {}\n").unwrap();
    let cases = [
        ("select: {}\n", "the node's name is not known"),
        ("node: n1\nsource: {file: {path: gone}}\n", "gone: "),
        (
            "node: n1\nsource: {file: {path: bad.yaml}}\n",
            "bad.yaml: document 1: Service: metadata.name",
        ),
        ("node: n1\nworkers: 0\n", ":2:10: workers"),
    ];
    for (text_of_file, wanted) in cases {
        std::fs::write(&config, text_of_file).unwrap();
        let out = nodeward(&["check", "--config", config.to_str().unwrap()]);
        assert_eq!(out.status.code(), Some(2), "{text_of_file}");
        assert!(text(&out.stderr).contains(wanted), "{}", text(&out.stderr));
        assert!(out.stdout.is_empty());
    }
}

#[test]
fn check_says_what_it_finds() {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("config.yaml");
    let check = |text_of_file: &str| {
        std::fs::write(&config, text_of_file).unwrap();
        let out = nodeward(&["check", "--config", config.to_str().unwrap(), "-o", "json"]);
        let v: serde_json::Value =
            serde_json::from_slice(&out.stdout).unwrap_or_else(|e| panic!("{e}: {}", text(&out.stderr)));
        let refused = v["verdict"] == "refuse";
        assert_eq!(out.status.code(), Some(i32::from(refused)), "{v}");
        v["findings"].as_array().unwrap().clone()
    };
    let find = |findings: &[serde_json::Value], check: &str, message: &str| {
        let found = findings
            .iter()
            .find(|f| f["check"] == check && f["message"].as_str().unwrap().contains(message));
        found.unwrap_or_else(|| panic!("no {check} finding with `{message}`: {findings:?}"))["severity"].clone()
    };
    let empty = check("node: n1\n");
    assert_eq!(find(&empty, "configuration", "no source of Services"), "refuse");
    assert_eq!(find(&empty, "configuration", "no Service is selected"), "warning");
    find(&empty, "engine", "io_uring");

    let manifest = "apiVersion: v1\nkind: Service\nmetadata: {name: dns, namespace: kube-system}\n\
                    spec: {clusterIP: 10.96.0.10, ports: [{port: 53, protocol: UDP}]}\n";
    std::fs::write(dir.path().join("state.yaml"), manifest).unwrap();
    let base = "node: n1\nsource: {file: {path: state.yaml}}\n";
    let good = check(&format!("{base}select: {{services: [kube-system/dns]}}\n"));
    assert_eq!(find(&good, "configuration", "Services selected now: 1"), "ok");
    let missing = check(&format!("{base}select: {{services: [kube-system/gone]}}\n"));
    assert_eq!(
        find(&missing, "configuration", "no Service kube-system/gone"),
        "warning"
    );
}
