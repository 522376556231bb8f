//! The Unix sockets: one per process, and the link that leads to the serving one.

use super::AdminError;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

/// Name of the link in `admin.runDir` that leads to the serving instance's socket.
pub const CURRENT: &str = "current.sock";

/// Owner and group may talk to the agent.
const MODE: u32 = 0o660;

/// A bound admin socket, `<runDir>/<instance>-<pid>.<pid namespace>.sock`: every container has a process 1, and the folder
/// is shared by all that run on a node. Dropping it removes the file, and the link where it still leads
/// here.
#[derive(Debug)]
pub struct AdminSocket {
    path: PathBuf,
    listener: UnixListener,
}

impl AdminSocket {
    /// Binds the socket. The folder is made where it is missing; a file left behind by a dead process is replaced.
    ///
    /// # Errors
    /// [`AdminError::InUse`] where a process answers on it, [`AdminError::Path`] for everything else.
    pub fn bind(run_dir: &Path, instance: &str) -> Result<Self, AdminError> {
        fs::create_dir_all(run_dir).map_err(|e| failed(run_dir, "make the folder", e))?;
        let name = format!("{instance}-{}{}", std::process::id(), suffix());
        let path = run_dir.join(&name);
        refuse_live(&path)?;
        reap(run_dir, instance);
        // Bound under another name and renamed: nobody can connect before the mode is right.
        let temporary = run_dir.join(format!(".{name}.new"));
        remove(&temporary)?;
        let listener = UnixListener::bind(&temporary).map_err(|e| failed(&temporary, "bind", e))?;
        let socket = Self {
            path: temporary.clone(),
            listener,
        };
        fs::set_permissions(&temporary, fs::Permissions::from_mode(MODE))
            .map_err(|e| failed(&temporary, "set the mode", e))?;
        fs::rename(&temporary, &path).map_err(|e| failed(&path, "put the socket in place", e))?;
        // From here on the file to clean up is the final one.
        let mut socket = socket;
        socket.path = path;
        socket
            .listener
            .set_nonblocking(true)
            .map_err(|e| failed(&socket.path, "set up", e))?;
        Ok(socket)
    }

    /// The socket's own path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Swings `current.sock` here, in one step: this instance serves from now on.
    ///
    /// # Errors
    /// [`AdminError::Path`].
    pub fn make_current(&self) -> Result<(), AdminError> {
        let (Some(dir), Some(name)) = (self.path.parent(), self.path.file_name()) else {
            return Ok(());
        };
        let link = dir.join(CURRENT);
        let temporary = dir.join(format!(".{CURRENT}.{}", std::process::id()));
        remove(&temporary)?;
        std::os::unix::fs::symlink(name, &temporary).map_err(|e| failed(&temporary, "make the link", e))?;
        fs::rename(&temporary, &link).map_err(|e| failed(&link, "put the link in place", e))
    }

    /// Another handle on the listener, for the server.
    pub(super) fn listener(&self) -> Result<UnixListener, AdminError> {
        self.listener.try_clone().map_err(|e| failed(&self.path, "set up", e))
    }
}

impl Drop for AdminSocket {
    fn drop(&mut self) {
        // Best effort: a left-over file is replaced by the next start.
        if let (Some(dir), Some(name)) = (self.path.parent(), self.path.file_name()) {
            let link = dir.join(CURRENT);
            if fs::read_link(&link).is_ok_and(|target| target.as_os_str() == name) {
                let _ = fs::remove_file(link);
            }
        }
        let _ = fs::remove_file(&self.path);
    }
}

/// Removes sockets that killed processes of this instance left: nobody listens there any more.
fn reap(run_dir: &Path, instance: &str) {
    let Ok(entries) = fs::read_dir(run_dir) else {
        return;
    };
    let prefix = format!("{instance}-");
    for path in entries.flatten().map(|e| e.path()) {
        let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default();
        let ours = name
            .strip_prefix(&prefix)
            .is_some_and(|rest| rest.ends_with(".sock") && rest.starts_with(|c: char| c.is_ascii_digit()));
        let dead = || UnixStream::connect(&path).is_err_and(|e| e.kind() == io::ErrorKind::ConnectionRefused);
        if ours && dead() {
            // Best effort: it does no harm where it is.
            let _ = fs::remove_file(&path);
        }
    }
}

/// The sockets of processes in our own pid namespace: in a pod, the pod's own agent.
pub fn own_sockets(run_dir: &Path) -> Vec<PathBuf> {
    let suffix = suffix();
    let entries = fs::read_dir(run_dir).into_iter().flatten().flatten();
    let own = |e: &fs::DirEntry| {
        e.file_name()
            .to_str()
            .is_some_and(|n| !n.starts_with('.') && n.ends_with(&suffix))
    };
    let mut sockets: Vec<_> = entries.filter(own).map(|e| e.path()).collect();
    sockets.sort();
    sockets
}

/// `.<pid namespace>.sock`; the namespace's number is 0 where /proc does not tell it.
fn suffix() -> String {
    let link = fs::read_link("/proc/self/ns/pid").unwrap_or_default();
    let number: String = link.to_string_lossy().chars().filter(char::is_ascii_digit).collect();
    format!(".{}.sock", if number.is_empty() { "0" } else { &number })
}

/// A socket nobody listens on is stale; one that takes connections, or might, belongs to somebody.
fn refuse_live(path: &Path) -> Result<(), AdminError> {
    match UnixStream::connect(path) {
        Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => Ok(()),
        Err(e) => Err(failed(path, "see whether it is in use", e)),
        Ok(_) => Err(AdminError::InUse { path: path.to_owned() }),
    }
}

fn remove(path: &Path) -> Result<(), AdminError> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(failed(path, "remove", e)),
        _ => Ok(()),
    }
}

fn failed(path: &Path, action: &'static str, error: io::Error) -> AdminError {
    AdminError::Path {
        path: path.to_owned(),
        action,
        error,
    }
}
