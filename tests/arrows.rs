//! Keeps the arrows between the rooms of `src/` (ARCHITECTURE.md): which room may know which, and where `unsafe` may be.
//!
//! Reads the sources as text: comments, strings and test code are left out, then every path that starts at the crate or at
//! an outside crate counts as knowing it.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// What a room may know of the crate: nothing else than these rooms (and itself).
const ONLY: &[(&str, &[&str])] = &[
    ("model", &[]),
    ("topology", &["model"]),
    ("store", &["model"]),
    ("view", &["model", "topology"]),
    ("table", &["model", "topology", "view", "store"]),
    ("source", &["model", "store"]),
    // Plain values and counters; never sockets, never Services.
    ("flow", &["table", "health", "telemetry"]),
    ("health", &["model", "telemetry"]),
    ("engine", &["net", "telemetry"]),
    ("net", &["telemetry"]),
    ("redirect", &["model"]),
    ("config", &["model", "topology", "telemetry", "redirect"]),
    ("telemetry", &["model", "config"]),
    // Everything but the rooms above it.
    (
        "worker",
        &[
            "config",
            "engine",
            "flow",
            "health",
            "model",
            "net",
            "table",
            "telemetry",
            "topology",
        ],
    ),
    (
        "admin",
        &["config", "model", "source", "store", "telemetry", "topology", "view"],
    ),
];

/// Outside crates and standard-library parts a room must not touch.
const NEVER: &[(&[&str], &[&str])] = &[
    (
        &["model", "topology", "view", "store", "table"],
        &[
            "tokio",
            "axum",
            "hyper",
            "io_uring",
            "socket2",
            "nix",
            "libc",
            "rtnetlink",
            "clap",
            "std::fs",
            "std::process",
        ],
    ),
    // Sans-io: no sockets, no clocks, no randomness of their own.
    (
        &["flow"],
        &[
            "tokio",
            "io_uring",
            "socket2",
            "nix",
            "libc",
            "rand",
            "std::fs",
            "UdpSocket",
            "TcpStream",
            "Instant::now",
        ],
    ),
    // Data threads never touch tokio.
    (&["engine", "worker"], &["tokio", "axum"]),
];

/// Rooms where `unsafe` may stand.
const UNSAFE: &[&str] = &["engine", "net"];

/// Everything wrong with one file of `room`; `depth` steps of `super::` lead out of the room from there.
fn violations(room: &str, depth: usize, text: &str) -> Vec<String> {
    let code = without_tests(&without_comments_and_strings(text)).replace(&"super::".repeat(depth), "crate::");
    let mut found = Vec::new();
    if let Some((_, allowed)) = ONLY.iter().find(|(name, _)| *name == room) {
        for other in crate_rooms(&code) {
            if other != room && !allowed.contains(&other.as_str()) {
                found.push(format!("`{room}` must not know `{other}`"));
            }
        }
    }
    for (rooms, outside) in NEVER {
        for word in outside.iter().filter(|_| rooms.contains(&room)) {
            if has_word(&code, word) {
                found.push(format!("`{room}` must not use `{word}`"));
            }
        }
    }
    if !UNSAFE.contains(&room) && has_word(&code, "unsafe") {
        found.push(format!("`unsafe` in `{room}`: only in {}", UNSAFE.join(" and ")));
    }
    found
}

/// The rooms behind `crate::…`, grouped imports included.
fn crate_rooms(code: &str) -> BTreeSet<String> {
    let mut rooms = BTreeSet::new();
    let compact: String = code
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" ")
        .replace(":: ", "::")
        .replace(" ::", "::");
    for (at, _) in compact.match_indices("crate::") {
        let rest = &compact[at + "crate::".len()..];
        match rest.strip_prefix('{') {
            None => rooms.insert(identifier(rest)),
            Some(group) => {
                let mut depth = 0;
                let mut start = true;
                for (i, c) in group.char_indices() {
                    match c {
                        '{' => depth += 1,
                        '}' if depth == 0 => break,
                        '}' => depth -= 1,
                        ',' if depth == 0 => start = true,
                        ' ' => {}
                        _ if start => {
                            rooms.insert(identifier(&group[i..]));
                            start = false;
                        }
                        _ => {}
                    }
                }
                true
            }
        };
    }
    // Items of the crate's root (macros, constants) start with a capital or have no room; only module names matter.
    rooms.retain(|r| r.starts_with(|c: char| c.is_ascii_lowercase()) && r != "self");
    rooms
}

fn identifier(s: &str) -> String {
    s.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect()
}

fn has_word(code: &str, word: &str) -> bool {
    let part = |c: char| c.is_alphanumeric() || c == '_';
    code.match_indices(word).any(|(at, _)| {
        let before = code[..at].chars().next_back();
        let after = code[at + word.len()..].chars().next();
        !before.is_some_and(part) && !after.is_some_and(part)
    })
}

/// Blanks comments, string and character literals.
fn without_comments_and_strings(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let bytes: Vec<char> = text.chars().collect();
    let at = |i: usize| bytes.get(i).copied().unwrap_or('\0');
    let mut i = 0;
    while i < bytes.len() {
        match at(i) {
            '/' if at(i + 1) == '/' => {
                while i < bytes.len() && at(i) != '\n' {
                    i += 1;
                }
            }
            '/' if at(i + 1) == '*' => {
                let mut depth = 0;
                loop {
                    match (at(i), at(i + 1)) {
                        ('/', '*') => (depth, i) = (depth + 1, i + 2),
                        ('*', '/') => (depth, i) = (depth - 1, i + 2),
                        _ => i += 1,
                    }
                    if depth == 0 || i >= bytes.len() {
                        break;
                    }
                }
            }
            'r' if at(i + 1) == '"' || (at(i + 1) == '#' && matches!(at(i + 2), '"' | '#')) => {
                let hashes = bytes[i + 1..].iter().take_while(|c| **c == '#').count();
                i += hashes + 2;
                let end: Vec<char> = std::iter::once('"').chain(std::iter::repeat_n('#', hashes)).collect();
                while i < bytes.len() && !bytes[i..].starts_with(&end) {
                    i += 1;
                }
                i += end.len();
                out.push_str("\"\"");
            }
            '"' => {
                i += 1;
                while i < bytes.len() && at(i) != '"' {
                    i += if at(i) == '\\' { 2 } else { 1 };
                }
                i += 1;
                out.push_str("\"\"");
            }
            // A character literal, not a lifetime.
            '\'' if at(i + 1) == '\\' || at(i + 2) == '\'' => {
                i += if at(i + 1) == '\\' { 3 } else { 2 };
                while i < bytes.len() && at(i) != '\'' {
                    i += 1;
                }
                i += 1;
                out.push_str("' '");
            }
            c => {
                out.push(c);
                i += 1;
            }
        }
    }
    out
}

/// Cuts out every item behind `#[cfg(test)]`.
fn without_tests(code: &str) -> String {
    let mut out = String::new();
    let mut rest = code;
    while let Some(at) = rest.find("#[cfg(test)]") {
        out.push_str(&rest[..at]);
        let item = &rest[at..];
        let brace = item.find('{').unwrap_or(item.len());
        let semicolon = item.find(';').unwrap_or(item.len());
        let end = if semicolon < brace {
            semicolon + 1
        } else {
            let mut depth = 0;
            item.char_indices()
                .find_map(|(i, c)| {
                    match c {
                        '{' => depth += 1,
                        '}' => depth -= 1,
                        _ => {}
                    }
                    (c == '}' && depth == 0).then_some(i + 1)
                })
                .unwrap_or(item.len())
        };
        rest = &item[end..];
    }
    out.push_str(rest);
    out
}

fn sources(dir: &Path, into: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, into);
        } else if path.extension().is_some_and(|e| e == "rs") {
            into.push(path);
        }
    }
}

#[test]
fn rooms_keep_their_arrows() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    sources(&src, &mut files);
    files.sort();
    let (mut found, mut rooms) = (Vec::new(), BTreeSet::new());
    for file in &files {
        let relative = file.strip_prefix(&src).unwrap();
        let room = relative
            .iter()
            .next()
            .unwrap()
            .to_str()
            .unwrap()
            .trim_end_matches(".rs")
            .to_owned();
        // Files of tests are test code as a whole.
        let is_test = relative
            .iter()
            .any(|p| matches!(p.to_str(), Some("tests" | "tests.rs")))
            || file
                .file_stem()
                .is_some_and(|s| s.to_str().unwrap().ends_with("_tests"));
        if !is_test {
            let text = std::fs::read_to_string(file).unwrap();
            let folders = relative.iter().count() - 1;
            let depth = folders.max(1) + usize::from(folders > 0 && !relative.ends_with("mod.rs"));
            found.extend(
                violations(&room, depth, &text)
                    .into_iter()
                    .map(|v| format!("{}: {v}", relative.display())),
            );
        }
        rooms.insert(room);
    }
    assert!(found.is_empty(), "\n{}\n", found.join("\n"));
    for room in ["model", "topology", "view", "table"] {
        assert!(rooms.contains(room), "`{room}` was not looked at");
    }
    // A new room needs a line in ONLY, or a place here among those that may know everything.
    let everything = ["main", "lib", "cli", "control"];
    for room in &rooms {
        let known = ONLY.iter().any(|(name, _)| name == room) || everything.contains(&room.as_str());
        assert!(known, "no rule for the new room `{room}`: add one to tests/arrows.rs");
    }
}

/// The test can fail: each of these must be found.
#[test]
fn bad_code_is_found() {
    let bad: &[(&str, &str, &str)] = &[
        (
            "model",
            "use crate::topology::Rank;",
            "`model` must not know `topology`",
        ),
        (
            "topology",
            "fn f() { crate::view::explain(); }",
            "`topology` must not know `view`",
        ),
        (
            "view",
            "use crate::{model::Node, table::{Table, Vip}};",
            "`view` must not know `table`",
        ),
        (
            "table",
            "pub(crate) use crate :: worker :: Worker;",
            "`table` must not know `worker`",
        ),
        (
            "flow",
            "use crate::{\n    table,\n    engine::{Engine},\n};",
            "`flow` must not know `engine`",
        ),
        ("flow", "use tokio::time;", "`flow` must not use `tokio`"),
        (
            "flow",
            "let t = std::time::Instant::now();",
            "`flow` must not use `Instant::now`",
        ),
        (
            "engine",
            "use crate::model::ServicePortKey;",
            "`engine` must not know `model`",
        ),
        ("net", "use crate::table::Vip;", "`net` must not know `table`"),
        ("store", "use std::fs;", "`store` must not use `std::fs`"),
        ("redirect", "let x = unsafe { f() };", "`unsafe` in `redirect`"),
        ("cli", "unsafe fn f() {}", "`unsafe` in `cli`"),
        (
            "model",
            "#[cfg(test)]\nmod tests { fn f() {} }\nuse crate::view::X;",
            "`model` must not know `view`",
        ),
        (
            "model",
            "let s = \"\\\" // \"; use crate::view::X;",
            "`model` must not know `view`",
        ),
        (
            "model",
            "let c = '\"'; use crate::view::X;",
            "`model` must not know `view`",
        ),
    ];
    for (room, code, wanted) in bad {
        let found = violations(room, 1, code);
        assert!(
            found.iter().any(|v| v.contains(wanted)),
            "{code:?} in {room}: {found:?}"
        );
    }
    let good: &[(&str, &str)] = &[
        (
            "topology",
            "use crate::model::{Node, Service}; use crate::topology::Rank; use std::sync::Arc;",
        ),
        (
            "model",
            "// use crate::view::X\n/* crate::view /* nested */ unsafe */ //! see [`crate::view`]",
        ),
        (
            "model",
            "let s = \"crate::view unsafe\"; let r = r#\"crate::view \" unsafe\"#;",
        ),
        (
            "model",
            "#[cfg(test)]\nmod tests { use crate::view::X; fn f() { if true {} } }",
        ),
        (
            "model",
            "#[cfg(test)]\nmod tests;\nfn f<'a>(x: &'a str) -> &'a str { x }",
        ),
        ("engine", "use crate::net::Sock; unsafe { f() }"),
        ("cli", "#![forbid(unsafe_code)]"),
    ];
    for (room, code) in good {
        assert_eq!(violations(room, 1, code), Vec::<String>::new(), "{code:?} in {room}");
    }
}
