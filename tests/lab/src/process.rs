//! Processes inside the laboratory: they die with it, are killed by id and reaped on drop, and write to files.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::netns::lock;
use crate::{Error, Result, wait_for};

/// Runs in the child once its parent-death signal is set: leaves if the parent died before that, then bind-mounts
/// `FROM TO` pairs (only with a private mount namespace) and becomes the program.
const WRAPPER: &str = r#"test "$PPID" = "$0" || exit 125
while [ "$1" != -- ]; do mount --bind "$1" "$2" || exit 125; shift 2; done
shift
exec "$@""#;

/// A command line for [`crate::NetNs::spawn`] and [`crate::NetNs::exec`].
#[derive(Clone, Debug)]
pub struct Cmd {
    program: OsString,
    args: Vec<OsString>,
    envs: Vec<(OsString, OsString)>,
    stdin: Option<Vec<u8>>,
    binds: Vec<(PathBuf, PathBuf)>,
    directory: Option<PathBuf>,
    timeout: Duration,
}

impl Cmd {
    /// A command without arguments; `exec` gives it 60 s.
    pub fn new(program: impl AsRef<OsStr>) -> Cmd {
        Cmd {
            program: program.as_ref().to_os_string(),
            args: Vec::new(),
            envs: Vec::new(),
            stdin: None,
            binds: Vec::new(),
            directory: None,
            timeout: Duration::from_secs(60),
        }
    }

    /// Adds one argument.
    pub fn arg(mut self, arg: impl AsRef<OsStr>) -> Cmd {
        self.args.push(arg.as_ref().to_os_string());
        self
    }

    /// Adds arguments.
    pub fn args<S: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = S>) -> Cmd {
        self.args.extend(args.into_iter().map(|a| a.as_ref().to_os_string()));
        self
    }

    /// Sets an environment variable.
    pub fn env(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Cmd {
        self.envs
            .push((name.as_ref().to_os_string(), value.as_ref().to_os_string()));
        self
    }

    /// What the process reads from standard input; nothing without it.
    pub fn stdin(mut self, bytes: impl AsRef<[u8]>) -> Cmd {
        self.stdin = Some(bytes.as_ref().to_vec());
        self
    }

    /// Mounts `from` over `to` in a mount namespace that only this process and its children see. Both must exist.
    pub fn bind(mut self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Cmd {
        self.binds
            .push((from.as_ref().to_path_buf(), to.as_ref().to_path_buf()));
        self
    }

    /// Gives the process its own `/etc/resolv.conf`.
    pub fn resolv_conf(self, file: impl AsRef<Path>) -> Cmd {
        self.bind(file, "/etc/resolv.conf")
    }

    /// The working directory.
    pub fn current_dir(mut self, directory: impl AsRef<Path>) -> Cmd {
        self.directory = Some(directory.as_ref().to_path_buf());
        self
    }

    /// How long `exec` waits before it kills the process.
    pub fn limit(mut self, timeout: Duration) -> Cmd {
        self.timeout = timeout;
        self
    }

    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
    }

    pub(crate) fn short_name(&self) -> String {
        Path::new(&self.program)
            .file_name()
            .unwrap_or(&self.program)
            .to_string_lossy()
            .into_owned()
    }

    pub(crate) fn line(&self) -> String {
        let words = std::iter::once(&self.program).chain(&self.args);
        words
            .map(|w| w.to_string_lossy().into_owned())
            .collect::<Vec<_>>()
            .join(" ")
    }

    /// Builds the real command line; output goes to `STEM.out` and `STEM.err`.
    pub(crate) fn prepare(&self, stem: &Path) -> Result<Command> {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL"]);
        if !self.binds.is_empty() {
            command.args(["unshare", "--mount", "--propagation", "private"]);
        }
        command.args(["sh", "-c", WRAPPER]).arg(std::process::id().to_string());
        for (from, to) in &self.binds {
            command.arg(from).arg(to);
        }
        command.arg("--").arg(&self.program).args(&self.args);
        command.envs(self.envs.iter().map(|(n, v)| (n, v)));
        if let Some(directory) = &self.directory {
            command.current_dir(directory);
        }
        match &self.stdin {
            None => command.stdin(Stdio::null()),
            Some(bytes) => {
                let path = stem.with_extension("in");
                std::fs::write(&path, bytes).map_err(Error::io(format!("write {}", path.display())))?;
                command.stdin(File::open(&path).map_err(Error::io(format!("open {}", path.display())))?)
            }
        };
        for (extension, out) in [("out", true), ("err", false)] {
            let path = stem.with_extension(extension);
            let file = File::create(&path).map_err(Error::io(format!("create {}", path.display())))?;
            if out {
                command.stdout(file)
            } else {
                command.stderr(file)
            };
        }
        Ok(command)
    }
}

/// A process that ended.
#[derive(Clone, Debug)]
pub struct Finished {
    /// The command line.
    pub command: String,
    /// How it ended.
    pub status: ExitStatus,
    /// All of standard output.
    pub stdout: String,
    /// All of standard error.
    pub stderr: String,
}

impl Finished {
    /// Whether it ended with exit code 0.
    pub fn success(&self) -> bool {
        self.status.success()
    }

    /// Turns a failure into an error that shows standard error.
    pub fn check(self) -> Result<Finished> {
        if self.success() {
            return Ok(self);
        }
        let said = if self.stderr.trim().is_empty() {
            &self.stdout
        } else {
            &self.stderr
        };
        Err(Error::Command {
            command: self.command.clone(),
            status: self.status.to_string(),
            stderr: said.trim().to_string(),
        })
    }
}

/// A running process; killed and reaped when dropped.
pub struct Process {
    running: Arc<Running>,
}

pub(crate) struct Running {
    line: String,
    pid: i32,
    child: Mutex<(Child, Option<ExitStatus>)>,
    stem: PathBuf,
}

impl Process {
    pub(crate) fn new(line: String, child: Child, stem: PathBuf) -> Process {
        let pid = child.id() as i32;
        let running = Running {
            line,
            pid,
            child: Mutex::new((child, None)),
            stem,
        };
        Process {
            running: Arc::new(running),
        }
    }

    pub(crate) fn downgrade(&self) -> Weak<Running> {
        Arc::downgrade(&self.running)
    }

    /// The process id; the program's own, not a wrapper's.
    pub fn pid(&self) -> i32 {
        self.running.pid
    }

    /// The command line.
    pub fn command(&self) -> &str {
        &self.running.line
    }

    /// Ids of its living children and their children.
    pub fn descendants(&self) -> Vec<i32> {
        crate::procfs::descendants(self.pid())
    }

    /// Kills it and all its descendants at once, then waits for its own end.
    pub fn kill_with_descendants(&self) -> Result<()> {
        let descendants = self.descendants();
        self.signal(Signal::SIGKILL)?;
        for pid in descendants {
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
        self.wait(Duration::from_secs(5)).map(|_| ())
    }

    /// Whether it still runs (a stopped process does).
    pub fn is_running(&self) -> bool {
        self.running.poll().is_ok_and(|s| s.is_none())
    }

    /// Sends a signal. An error if the process has ended.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        let ended = self.running.poll()?;
        if let Some(status) = ended {
            return Err(Error::other(format!(
                "`{}` has ended already ({status}): {}",
                self.command(),
                self.stderr()
            )));
        }
        kill(Pid::from_raw(self.pid()), signal)
            .map_err(|e| Error::other(format!("{signal} to `{}`: {e}", self.command())))
    }

    /// SIGSTOP: the process hangs until [`Process::resume`].
    pub fn pause(&self) -> Result<()> {
        self.signal(Signal::SIGSTOP)
    }

    /// SIGCONT.
    pub fn resume(&self) -> Result<()> {
        self.signal(Signal::SIGCONT)
    }

    /// SIGKILL, then waits for the end.
    pub fn kill(&self) -> Result<()> {
        self.signal(Signal::SIGKILL)?;
        self.wait(Duration::from_secs(5)).map(|_| ())
    }

    /// SIGTERM, then waits; killed if it does not end within `timeout`.
    pub fn stop(&self, timeout: Duration) -> Result<Finished> {
        self.signal(Signal::SIGTERM)?;
        self.wait(timeout)
    }

    /// Waits for the end. On time-out the process is killed and the error says what it wrote.
    pub fn wait(&self, timeout: Duration) -> Result<Finished> {
        let what = format!("end of `{}`", self.command());
        match wait_for(&what, timeout, || self.running.poll()) {
            Ok(status) => Ok(Finished {
                command: self.command().to_string(),
                status,
                stdout: self.stdout(),
                stderr: self.stderr(),
            }),
            Err(Error::Timeout { what, after }) => {
                self.running.kill_and_reap();
                Err(Error::Timeout {
                    what: format!("{what} (stderr: {})", self.stderr().trim()),
                    after,
                })
            }
            Err(e) => Err(e),
        }
    }

    /// What it wrote to standard output so far.
    pub fn stdout(&self) -> String {
        self.running.read("out")
    }

    /// What it wrote to standard error so far.
    pub fn stderr(&self) -> String {
        self.running.read("err")
    }
}

impl Running {
    fn read(&self, extension: &str) -> String {
        let bytes = std::fs::read(self.stem.with_extension(extension)).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// The exit status once it ended; reaps.
    fn poll(&self) -> Result<Option<ExitStatus>> {
        let (child, ended) = &mut *lock(&self.child);
        if ended.is_none() {
            *ended = child
                .try_wait()
                .map_err(Error::io(format!("wait for `{}`", self.line)))?;
        }
        Ok(*ended)
    }

    pub(crate) fn live_pid(&self) -> Option<i32> {
        self.poll().is_ok_and(|s| s.is_none()).then_some(self.pid)
    }

    pub(crate) fn kill_and_reap(&self) {
        let (child, ended) = &mut *lock(&self.child);
        if ended.is_none() {
            let _ = child.kill();
            *ended = child.wait().ok();
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kill_and_reap();
    }
}
