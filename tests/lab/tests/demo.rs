//! The demo's command line; its story is played by `make demo`.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::process::Command;

fn demo(args: &[&str]) -> (Option<i32>, String) {
    let out = Command::new(env!("CARGO_BIN_EXE_demo")).args(args).output().unwrap();
    (out.status.code(), String::from_utf8_lossy(&out.stderr).into_owned())
}

#[test]
fn a_missing_binary_is_named_with_the_way_out() {
    let (code, said) = demo(&["--nodeward", "/nowhere/nodeward"]);
    assert_eq!(code, Some(1), "{said}");
    assert!(
        said.contains("/nowhere/nodeward") && said.contains("cargo build") && said.contains("--nodeward"),
        "{said}"
    );
}

#[test]
fn wrong_usage_ends_with_2() {
    for args in [["--rate", "0"], ["--rate", "many"], ["--json", "--no-such-option"]] {
        let (code, said) = demo(&args);
        assert_eq!(code, Some(2), "{args:?}: {said}");
    }
}
