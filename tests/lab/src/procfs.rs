//! Who lives in a namespace, read from `/proc`.

use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// How long processes may take to notice that their parent was killed.
const GRACE: Duration = Duration::from_secs(1);

/// Processes in the namespace that are neither in `own` nor descend from one that is.
pub(crate) fn strays_in(inode: u64, own: &[i32]) -> Vec<String> {
    let stray = |pid: &i32| !std::iter::successors(Some(*pid), |p| parent_of(*p)).any(|p| own.contains(&p));
    pids_in(inode)
        .into_iter()
        .filter(stray)
        .map(|pid| format!("{pid} {}", command_of(pid)))
        .collect()
}

/// Waits until the namespace holds no other process; after [`GRACE`] kills what is left and names it.
pub(crate) fn end_all_in(inode: u64) -> Vec<String> {
    let start = Instant::now();
    let mut strays = Vec::new();
    loop {
        let pids = pids_in(inode);
        if pids.is_empty() || start.elapsed() > 2 * GRACE {
            return strays;
        }
        if start.elapsed() > GRACE {
            for pid in pids {
                strays.push(format!("{pid} {}", command_of(pid)));
                let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
            }
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Other processes with their main thread in this namespace.
fn pids_in(inode: u64) -> Vec<i32> {
    let own = std::process::id() as i32;
    let inside = |pid: &i32| std::fs::metadata(format!("/proc/{pid}/ns/net")).is_ok_and(|m| m.ino() == inode);
    numbers_in("/proc")
        .into_iter()
        .filter(|pid| *pid != own && inside(pid))
        .collect()
}

/// Living descendants of a process.
pub(crate) fn descendants(ancestor: i32) -> Vec<i32> {
    let below = |pid: &i32| std::iter::successors(parent_of(*pid), |p| parent_of(*p)).any(|p| p == ancestor);
    numbers_in("/proc").into_iter().filter(below).collect()
}

fn command_of(pid: i32) -> String {
    let bytes = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&bytes).replace('\0', " ").trim().to_string()
}

fn parent_of(pid: i32) -> Option<i32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The second field is the name in parentheses and may contain anything.
    let parent = stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()?;
    (parent > 1).then_some(parent)
}

fn numbers_in(directory: &str) -> Vec<i32> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    entries.filter_map(|e| e.file_name().to_str()?.parse().ok()).collect()
}
