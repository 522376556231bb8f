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
