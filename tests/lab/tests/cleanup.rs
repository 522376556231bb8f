//! However a laboratory ends, nothing of it stays: after a panic, after SIGKILL, after strays.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::collections::HashSet;
use std::os::unix::fs::MetadataExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use nodeward_lab::{Cmd, DnsServer, DnsServerKind, Host, Lab, wait_until};

const ROLE: &str = "NODEWARD_LAB_TEST_ROLE";

/// Process ids and network namespaces of the processes with this marker in their environment: they inherit it.
fn marked(marker: &str) -> (HashSet<i32>, HashSet<u64>) {
    let (mut pids, mut namespaces) = (HashSet::new(), HashSet::new());
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|n| n.parse::<i32>().ok()) else {
            continue;
        };
        let environment = std::fs::read(entry.path().join("environ")).unwrap_or_default();
        if environment.split(|b| *b == 0).any(|v| v == marker.as_bytes()) {
            pids.insert(pid);
            for task in std::fs::read_dir(entry.path().join("task"))
                .into_iter()
                .flatten()
                .flatten()
            {
                namespaces.extend(std::fs::metadata(task.path().join("ns/net")).map(|m| m.ino()));
            }
        }
    }
    (pids, namespaces)
}

/// Runs this test binary again in a role; waits until it says it is ready.
fn child(role: &str) -> (std::process::Child, String, std::path::PathBuf) {
    let directory = tempfile::tempdir().unwrap().keep();
    let output = directory.join("out");
    let marker = format!("NODEWARD_LAB_TEST_MARKER={}-{role}", std::process::id());
    let (name, value) = marker.split_once('=').unwrap();
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "role", "--nocapture", "--include-ignored"])
        .env(ROLE, role)
        .env(name, value)
        .stdin(Stdio::piped())
        .stdout(std::fs::File::create(&output).unwrap())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let said = || std::fs::read_to_string(&output).unwrap();
    wait_until("the child's laboratory", Duration::from_secs(20), || {
        said().contains("READY")
    })
    .unwrap();
    (child, marker, directory)
}

/// Not a test of its own: what the child processes of the other tests do.
#[test]
#[ignore = "run by the other tests"]
fn role() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let lab = Lab::builder()
        .node("n1", "za")
        .node("n2", "zb")
        .pod("n1", "dns")
        .build()
        .unwrap();
    let pod = lab.node("n1").unwrap().pod("dns").unwrap();
    let servers = [("dns", DnsServerKind::Dnsmasq), ("dns2", DnsServerKind::Unbound)].map(|(name, kind)| {
        let pod = if name == "dns" {
            pod.clone()
        } else {
            lab.node("n2").unwrap().add_pod(name).unwrap()
        };
        DnsServer::start(&pod, kind, name, &lab.directory()).unwrap()
    });
    servers
        .iter()
        .for_each(|s| s.wait_ready(Duration::from_secs(10)).unwrap());
    let _sleeper = lab.node("n1").unwrap().spawn(&Cmd::new("sleep").arg("1000")).unwrap();
    println!("READY {}", lab.directory().display());
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    assert_ne!(role, "panics", "a test that panics");
}

fn nothing_stays(role: &str, end: impl FnOnce(&mut std::process::Child)) {
    let (mut process, marker, directory) = child(role);
    // The lab itself, dnsmasq, unbound, sleep; the fabric, two nodes, two pods, and the machine's own namespace. A process
    // that is just becoming another program shows no environment.
    let all_there = || matches!(marked(&marker), (pids, namespaces) if pids.len() >= 4 && namespaces.len() >= 6);
    wait_until(
        "the child's processes and namespaces",
        Duration::from_secs(5),
        all_there,
    )
    .unwrap();
    end(&mut process);
    let status = process.wait().unwrap();
    assert!(!status.success());
    wait_until("processes to be gone", Duration::from_secs(2), || {
        marked(&marker).0.is_empty()
    })
    .unwrap();
    std::fs::remove_dir_all(directory).unwrap();
}

#[test]
fn a_panicking_test_leaves_nothing() {
    nothing_stays("panics", |process| drop(process.stdin.take()));
}

#[test]
fn a_killed_test_leaves_nothing() {
    nothing_stays("killed", |process| process.kill().unwrap());
}

#[test]
fn strays_are_named_and_killed() {
    let lab = Lab::builder().node("n1", "za").build().unwrap();
    let n1 = lab.node("n1").unwrap();
    // A daemon that leaves its parent: not ours to see, but in our namespace.
    n1.exec(Cmd::new("sh").args(["-c", "setsid sleep 1234 >/dev/null 2>&1 &"]))
        .unwrap();
    let found = lab.leftovers(&[]).unwrap();
    assert_eq!(found.stray_processes.len(), 1, "{found:?}");
    let end = lab.finish().unwrap();
    assert!(end.stray_processes.iter().any(|s| s.contains("sleep 1234")), "{end:?}");
    let pid = end.stray_processes[0].split(' ').next().unwrap().to_string();
    wait_until("the stray's end", Duration::from_secs(2), || {
        !std::fs::read_to_string(format!("/proc/{pid}/cmdline"))
            .unwrap_or_default()
            .contains("1234")
    })
    .unwrap();
}

#[test]
fn leftovers_counts_tables_elements_sockets_and_lists_rules_apart() {
    let lab = Lab::builder().node("n1", "za").build().unwrap();
    let n1 = lab.node("n1").unwrap();
    let vips = ["10.96.0.10".parse().unwrap(), "fd00:10:96::a".parse().unwrap()];
    lab.leftovers(&vips).unwrap().assert_clean();
    n1.netns().nft("table inet nodeward-main { set s { type ipv4_addr; elements = { 10.0.0.1, 10.0.0.2 }; }; }\ntable inet other { set s { type ipv4_addr; elements = { 10.0.0.3 }; }; }").unwrap();
    n1.netns().ip_batch("rule add pref 99 fwmark 0x800/0x3800 lookup 100\nroute add local default dev lo table 100\naddr add 10.96.0.10/32 dev lo\naddr add fd00:10:96::a/128 dev lo nodad\n").unwrap();
    let sockets = vips.map(|v| n1.netns().udp_socket(std::net::SocketAddr::new(v, 53)).unwrap());
    let found = lab.leftovers(&vips).unwrap();
    assert_eq!(
        (found.tables.len(), found.set_elements, found.sockets.len()),
        (1, 2, 2),
        "{found:?}"
    );
    assert_eq!((found.inert_rules.len(), found.inert_routes.len()), (1, 1), "{found:?}");
    assert_eq!(found.count(), 5);
    drop(sockets);
    n1.netns().nft("delete table inet nodeward-main").unwrap();
    let end = lab.leftovers(&vips).unwrap();
    assert_eq!((end.count(), end.inert_rules.len()), (0, 1));
    lab.finish().unwrap().assert_clean();
}

#[test]
fn a_kept_directory_stays_and_others_go() {
    let build = || Lab::builder().node("n1", "za").build().unwrap();
    let (kept, other) = (build(), build());
    let (keep, lose) = (kept.keep_directory(), other.directory());
    drop((kept, other));
    assert!(keep.join(".keep").is_file() && !lose.exists());
    // As if their processes were dead: no process has this id.
    let as_dead = |name: &str| std::env::temp_dir().join(format!("nodeward-lab-4194305-{name}-{}", std::process::id()));
    let (dead_kept, dead) = (as_dead("kept"), as_dead("dead"));
    std::fs::rename(&keep, &dead_kept).unwrap();
    std::fs::create_dir(&dead).unwrap();
    build();
    assert!(dead_kept.exists() && !dead.exists());
    std::fs::remove_dir_all(dead_kept).unwrap();
}
