//! Where a thread runs, how exactly it is woken, what it used.

use nix::sched::{CpuSet, sched_setaffinity};
use nix::sys::resource::{Resource, UsageWho, getrlimit, getrusage, setrlimit};
use nix::unistd::Pid;
use std::io;
use std::time::Duration;

/// Pins the calling thread to one CPU.
pub(crate) fn pin(cpu: usize) -> io::Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu)?;
    Ok(sched_setaffinity(Pid::from_raw(0), &set)?)
}

/// Sets the calling thread's timer slack to 1 ns: the default of 50 µs would delay every send (prctl(2)).
pub(crate) fn precise_timers() {
    // Without it the send times are less exact, which the report shows as send lag.
    let _ = nix::sys::prctl::set_timerslack(1);
}

/// Raises the limit of open files to the hard limit and returns it.
pub(crate) fn raise_open_files() -> usize {
    match getrlimit(Resource::RLIMIT_NOFILE) {
        Ok((soft, hard)) => {
            let limit = if soft < hard && setrlimit(Resource::RLIMIT_NOFILE, hard, hard).is_ok() {
                hard
            } else {
                soft
            };
            usize::try_from(limit).unwrap_or(usize::MAX)
        }
        Err(_) => 1024,
    }
}

/// User and system CPU time of the calling thread so far.
pub(crate) fn thread_cpu() -> (Duration, Duration) {
    let Ok(usage) = getrusage(UsageWho::RUSAGE_THREAD) else {
        return (Duration::ZERO, Duration::ZERO);
    };
    let time = |t: nix::sys::time::TimeVal| {
        let micros = t.tv_sec() * 1_000_000 + t.tv_usec();
        Duration::from_micros(u64::try_from(micros).unwrap_or(0))
    };
    (time(usage.user_time()), time(usage.system_time()))
}
