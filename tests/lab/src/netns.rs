//! A network namespace without a name, held by a thread. Closures and processes run inside it through that thread.
//!
//! The thread is the parent of everything started in the namespace, so the parent-death signal of those processes fires when
//! the namespace is taken down or this process dies.

use std::any::Any;
use std::os::unix::fs::MetadataExt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use nix::sched::{CloneFlags, unshare};

use crate::process::{Cmd, Finished, Process, Running};
use crate::procfs;
use crate::{Error, Result, wait_for};

type Job = Box<dyn FnOnce() + Send>;

/// A network namespace; cheap to clone. It ends with [`NetNs::shut_down`] or with its last clone.
#[derive(Clone)]
pub struct NetNs {
    inner: Arc<Inner>,
}

struct Inner {
    name: String,
    directory: PathBuf,
    path: String,
    inode: u64,
    sequence: AtomicUsize,
    jobs: Mutex<Option<Sender<Job>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
    processes: Mutex<Vec<Weak<Running>>>,
    servers: Mutex<Vec<Weak<dyn Stop>>>,
}

/// Something in this process that keeps sockets in a namespace and can let them go.
pub(crate) trait Stop: Send + Sync {
    /// Closes its sockets and ends its threads.
    fn stop(&self);
}

impl NetNs {
    /// Makes a namespace with `lo` up. `directory` receives the output of processes started in it.
    pub fn new(name: &str, directory: &Path) -> Result<NetNs> {
        let (jobs, inbox) = channel::<Job>();
        let (started, start) = channel::<Result<(String, u64)>>();
        let thread = std::thread::Builder::new()
            .name(format!("ns-{name}"))
            .spawn(move || {
                let _ = started.send(enter_new_namespace());
                while let Ok(job) = inbox.recv() {
                    job();
                }
            })
            .map_err(Error::io("start a namespace thread"))?;
        let (path, inode) = start.recv().map_err(|_| Error::Gone(name.to_string()))??;
        let inner = Inner {
            name: name.to_string(),
            directory: directory.to_path_buf(),
            path,
            inode,
            sequence: AtomicUsize::new(0),
            jobs: Mutex::new(Some(jobs)),
            thread: Mutex::new(Some(thread)),
            processes: Mutex::new(Vec::new()),
            servers: Mutex::new(Vec::new()),
        };
        Ok(NetNs { inner: Arc::new(inner) })
    }

    /// The namespace's name in messages.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// The inode number that identifies the namespace in `/proc/PID/ns/net`.
    pub fn inode(&self) -> u64 {
        self.inner.inode
    }

    /// A path that `ip link … netns PATH` accepts.
    pub fn path(&self) -> &str {
        &self.inner.path
    }

    /// Runs a closure inside the namespace and returns its value; a panic in it continues in the caller.
    /// Jobs of one namespace run one after another: do not wait for long inside. `/proc/net` must be read as
    /// `/proc/thread-self/net`.
    pub fn run<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> Result<T> {
        let gone = || Error::Gone(self.inner.name.clone());
        let (reply, answer) = channel::<std::result::Result<T, Box<dyn Any + Send>>>();
        let job: Job = Box::new(move || {
            let _ = reply.send(catch_unwind(AssertUnwindSafe(job)));
        });
        let jobs = lock(&self.inner.jobs).clone().ok_or_else(gone)?;
        jobs.send(job).map_err(|_| gone())?;
        drop(jobs);
        match answer.recv().map_err(|_| gone())? {
            Ok(value) => Ok(value),
            Err(panic) => resume_unwind(panic),
        }
    }

    /// Starts a process inside; it is killed and reaped when the handle, the namespace or this process goes.
    pub fn spawn(&self, command: &Cmd) -> Result<Process> {
        let number = self.inner.sequence.fetch_add(1, Ordering::Relaxed);
        let stem = self
            .inner
            .directory
            .join(format!("{}-{number}-{}", self.inner.name, command.short_name()));
        let mut prepared = command.prepare(&stem)?;
        let what = command.line();
        let child = self
            .run(move || prepared.spawn())?
            .map_err(Error::io(format!("start `{what}`")))?;
        let process = Process::new(what, child, stem);
        let mut processes = lock(&self.inner.processes);
        processes.retain(|p| p.strong_count() > 0);
        processes.push(process.downgrade());
        Ok(process)
    }

    /// Runs a process inside to its end, at most 60 s, whatever its exit code.
    pub fn exec(&self, command: Cmd) -> Result<Finished> {
        self.spawn(&command)?.wait(command.timeout())
    }

    /// Runs a process inside to its end; an exit code other than 0 is an error.
    pub fn check(&self, command: Cmd) -> Result<Finished> {
        self.exec(command)?.check()
    }

    /// Runs `ip -batch` with these lines.
    pub fn ip_batch(&self, lines: &str) -> Result<()> {
        let command = Cmd::new("ip").args(["-batch", "-"]).stdin(lines);
        self.check(command)
            .map(|_| ())
            .map_err(|e| Error::other(format!("{e}\nin {} with:\n{lines}", self.name())))
    }

    /// Waits until these links carry packets: the kernel brings a link into service some time after it was set up, and what
    /// is sent before is lost. A bridge's port must forward.
    pub(crate) fn wait_until_links_carry(&self, links: &[String]) -> Result<()> {
        wait_for(
            &format!("links {links:?} of {}", self.name()),
            Duration::from_secs(10),
            || {
                let text = self
                    .check(Cmd::new("ip").args(["-details", "-json", "link", "show"]))?
                    .stdout;
                let listed: Vec<serde_json::Value> = serde_json::from_str(&text)
                    .map_err(|e| Error::other(format!("`ip -json link show`: {e}: {text}")))?;
                let carries = |name: &String| {
                    let link = listed.iter().find(|l| l["ifname"] == name.as_str())?;
                    let port = &link["linkinfo"];
                    let forwards =
                        port["info_slave_kind"] != "bridge" || port["info_slave_data"]["state"] == "forwarding";
                    (link["operstate"] == "UP" && forwards).then_some(())
                };
                Ok(links.iter().try_for_each(carries))
            },
        )
    }

    /// Runs `nft -f` with this text.
    pub fn nft(&self, text: &str) -> Result<()> {
        let command = Cmd::new("nft").args(["-f", "-"]).stdin(text);
        self.check(command)
            .map(|_| ())
            .map_err(|e| Error::other(format!("{e}\nin {} with:\n{text}", self.name())))
    }

    /// Sets a sysctl, named with slashes below `/proc/sys`, for example `net/ipv4/ip_forward`.
    pub fn set_sysctl(&self, name: &str, value: &str) -> Result<()> {
        self.set_sysctls(&[(name, value)])
    }

    /// Sets several sysctls in order.
    pub fn set_sysctls(&self, settings: &[(&str, &str)]) -> Result<()> {
        let settings: Vec<(String, String)> = settings
            .iter()
            .map(|(n, v)| (format!("/proc/sys/{n}"), v.to_string()))
            .collect();
        self.run(move || {
            for (path, value) in settings {
                std::fs::write(&path, &value).map_err(Error::io(format!("write {value} to {path}")))?;
            }
            Ok(())
        })?
    }

    /// Reads a sysctl named as in [`NetNs::set_sysctl`].
    pub fn sysctl(&self, name: &str) -> Result<String> {
        let path = format!("/proc/sys/{name}");
        self.run(move || {
            let text = std::fs::read_to_string(&path).map_err(Error::io(format!("read {path}")))?;
            Ok(text.trim().to_string())
        })?
    }

    /// Kills and reaps every process started inside, then whatever else lives there, and ends the thread. Later calls on
    /// any clone fail with [`Error::Gone`]. Returns the strays: processes that the laboratory did not start and that did
    /// not end by themselves within 1 s of those it did. Does nothing the second time.
    pub fn shut_down(&self) -> Vec<String> {
        self.inner.shut_down()
    }

    /// Kills and reaps every process and stops every server that the laboratory started inside; the namespace stays.
    pub fn end_processes(&self) {
        self.inner.end_processes();
    }

    pub(crate) fn register(&self, server: Weak<dyn Stop>) {
        lock(&self.inner.servers).push(server);
    }

    /// Process ids this laboratory started here and that were not yet reaped.
    pub(crate) fn own_pids(&self) -> Vec<i32> {
        lock(&self.inner.processes)
            .iter()
            .filter_map(Weak::upgrade)
            .filter_map(|p| p.live_pid())
            .collect()
    }
}

impl Inner {
    fn end_processes(&self) {
        let processes: Vec<_> = lock(&self.processes).drain(..).collect();
        processes
            .iter()
            .filter_map(Weak::upgrade)
            .for_each(|p| p.kill_and_reap());
        let servers: Vec<_> = lock(&self.servers).drain(..).collect();
        servers.iter().filter_map(Weak::upgrade).for_each(|s| s.stop());
    }

    fn shut_down(&self) -> Vec<String> {
        // The thread holds the namespace until the end: its inode number cannot be reused before.
        let Some(thread) = lock(&self.thread).take() else {
            return Vec::new();
        };
        self.end_processes();
        let strays = procfs::end_all_in(self.inode);
        drop(lock(&self.jobs).take());
        if thread.thread().id() != std::thread::current().id() {
            let _ = thread.join();
        }
        strays
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.shut_down();
    }
}

fn enter_new_namespace() -> Result<(String, u64)> {
    unshare(CloneFlags::CLONE_NEWNET).map_err(Error::NotPermitted)?;
    let path = format!("/proc/{}/task/{}/ns/net", std::process::id(), nix::unistd::gettid());
    let inode = std::fs::metadata(&path)
        .map_err(Error::io(format!("read {path}")))?
        .ino();
    Ok((path, inode))
}

/// Locks even when a panicking test poisoned the mutex: the data are plain lists, and clean-up has to go on.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
