//! Manifests from a file or a folder, watched.
//!
//! A file is accepted whole or not at all: while it is bad, its last good objects stay and [`FileSource::errors`] says what
//! is wrong with it; other files' changes still apply. Folders are read flat: `*.yaml`, `*.yml`, `*.json`, no hidden files
//! (so a mounted ConfigMap, whose files are links through `..data`, works and its swap is noticed).
//!
//! Synchronous and pollable: wait until [`FileSource::as_fd`] is readable, call [`FileSource::drain`], wait a little for
//! the rest of the burst, call [`FileSource::load`]. Waiting is the caller's business, as are names of nodes and ranking.

mod accept;
mod watch;

use super::manifest::{self, Format, Ignored, ManifestError, Object, ObjectKey};
use crate::model::{Change, Interner};
use accept::{Candidate, accept};
use std::collections::{BTreeMap, HashMap};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::hash::BuildHasher;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use watch::Watch;

/// Largest file that is read. 500 000 endpoints are about 200 MB of JSON.
const MAX_FILE_BYTES: u64 = 1 << 30;

/// A file whose status changed less than this before it was read may change again without its status showing it (time
/// stamps have the resolution of the kernel's tick), so it is read again next time.
const RACY: Duration = Duration::from_secs(2);

/// Why a file's present content is not in force, or why nothing can be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SourceError {
    /// The file or folder cannot be read.
    #[error("{}: {reason}", path.display())]
    Unreadable {
        /// The file or folder.
        path: PathBuf,
        /// The system's words.
        reason: String,
    },
    /// The file is larger than what is read.
    #[error("{}: {bytes} bytes, more than the limit of {MAX_FILE_BYTES}: split the file", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Its size.
        bytes: u64,
    },
    /// The file is no good manifest.
    #[error("{}: {error}", path.display())]
    Manifest {
        /// The file.
        path: PathBuf,
        /// What is wrong, and where.
        error: ManifestError,
    },
    /// Two files hold the same object.
    #[error("{}: {object} is also in {}: an object may be in one file only", path.display(), other.display())]
    Duplicate {
        /// The file.
        path: PathBuf,
        /// The object.
        object: ObjectKey,
        /// The file that holds it too.
        other: PathBuf,
    },
    /// The folder, or the one file that is read, was removed; what was read last stays in force.
    #[error("{}: is gone; its last good content stays in force", path.display())]
    Gone {
        /// The folder or file.
        path: PathBuf,
    },
}

/// What tells whether a file may have changed.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Status {
    device: u64,
    inode: u64,
    bytes: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Status {
    fn of(m: &fs::Metadata) -> Self {
        Self {
            device: m.dev(),
            inode: m.ino(),
            bytes: m.len(),
            modified: (m.mtime(), m.mtime_nsec()),
            changed: (m.ctime(), m.ctime_nsec()),
        }
    }

    /// Whether the file had been at rest for a while at `now`.
    fn is_settled(&self, now: SystemTime) -> bool {
        let seconds = |t: SystemTime| {
            t.duration_since(SystemTime::UNIX_EPOCH)
                .map_or(0, |d| d.as_secs() as i64)
        };
        self.changed.0.max(self.modified.0) < seconds(now) - RACY.as_secs() as i64
    }
}

/// What is known of one file.
#[derive(Default)]
struct Known {
    /// Status when it was read last; `None` forces reading.
    status: Option<Status>,
    /// Hash of the content read last.
    content: Option<u64>,
    /// The content read last, where it parsed but is not (yet) in force because another file holds one of its objects.
    waiting: Option<Parsed>,
    /// The content in force.
    good: Parsed,
    /// Why the content read last is not in force.
    error: Option<SourceError>,
}

/// Objects of one file.
#[derive(Default)]
struct Parsed {
    objects: HashMap<ObjectKey, Object>,
    ignored: Ignored,
}

/// Manifests of a file or folder. See the module's text.
pub struct FileSource {
    path: PathBuf,
    /// The folder that is read and watched; for a single file its parent.
    folder: PathBuf,
    /// Set where a single file is read.
    only: Option<OsString>,
    watch: Watch,
    files: BTreeMap<PathBuf, Known>,
    interner: Interner,
    hasher: foldhash::fast::RandomState,
    /// What is wrong with the folder or the one file as a whole.
    error: Option<SourceError>,
}

impl FileSource {
    /// Starts watching. Nothing is read before the first [`FileSource::load`].
    ///
    /// # Errors
    /// The path does not exist or cannot be watched.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, SourceError> {
        let path = path.as_ref().to_owned();
        let unreadable = |path: &Path, e: &io::Error| SourceError::Unreadable {
            path: path.to_owned(),
            reason: e.to_string(),
        };
        let metadata = fs::metadata(&path).map_err(|e| unreadable(&path, &e))?;
        let (folder, only) = if metadata.is_dir() {
            (path.clone(), None)
        } else {
            let parent = path
                .parent()
                .filter(|p| !p.as_os_str().is_empty())
                .unwrap_or(Path::new("."));
            (parent.to_owned(), path.file_name().map(OsStr::to_owned))
        };
        let watch = Watch::new(&folder).map_err(|e| unreadable(&folder, &e))?;
        Ok(Self {
            path,
            folder,
            only,
            watch,
            files: BTreeMap::new(),
            interner: Interner::default(),
            hasher: foldhash::fast::RandomState::default(),
            error: None,
        })
    }

    /// The file or folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Takes note of what the kernel reports, without waiting. Returns whether a [`FileSource::load`] is worth while.
    pub fn drain(&mut self) -> bool {
        self.watch.drain()
    }

    /// Reads what changed and returns the changes since the last call, deletions included. What is bad changes nothing and
    /// is in [`FileSource::errors`]. Cheap when nothing changed.
    pub fn load(&mut self) -> Vec<Change> {
        self.watch.drain();
        let listed = match self.watch.renew(&self.folder).and_then(|()| self.list()) {
            Ok(listed) => listed,
            Err(e) => {
                let path = self.path.clone();
                self.error = Some(match e.kind() {
                    io::ErrorKind::NotFound => SourceError::Gone { path },
                    _ => SourceError::Unreadable {
                        path,
                        reason: e.to_string(),
                    },
                });
                return Vec::new();
            }
        };
        self.error = None;

        // What each file would bring if its new content were accepted.
        let mut candidates = BTreeMap::new();
        let mut before = std::mem::take(&mut self.files);
        for path in listed {
            let mut known = before.remove(&path).unwrap_or_default();
            let name = path.file_name().unwrap_or_default();
            let new = if self.watch.is_being_written(name) {
                // Read when the writer closes it.
                known.waiting.take()
            } else {
                let is_dirty = self.watch.is_dirty(name);
                match self.read(&path, &mut known, is_dirty) {
                    Ok(new) => new,
                    // Gone since it was listed.
                    Err(None) => {
                        before.insert(path, known);
                        continue;
                    }
                    Err(Some(error)) => {
                        if !matches!(error, SourceError::Manifest { .. }) {
                            // Nothing is known of the content: read it anew when it can be read.
                            known.status = None;
                            known.content = None;
                        }
                        known.error = Some(error);
                        known.waiting = None;
                        None
                    }
                }
            };
            candidates.insert(path, Candidate { known, new });
        }
        self.watch.forget_dirty();
        let outcome = accept(candidates, before);
        self.files = outcome.files;
        if !outcome.changes.is_empty() {
            self.interner.sweep();
        }
        outcome.changes
    }

    /// What is not in force and why, in the order of paths; empty when all is well.
    pub fn errors(&self) -> Vec<&SourceError> {
        let files = self.files.values().filter_map(|k| k.error.as_ref());
        self.error.iter().chain(files).collect()
    }

    /// What was read past on purpose in the files in force, summed up.
    pub fn ignored(&self) -> Ignored {
        let mut sum = Ignored::default();
        for known in self.files.values() {
            sum.add(&known.good.ignored);
        }
        sum
    }

    /// How many files are read, and how many objects are in force.
    pub fn counts(&self) -> (usize, usize) {
        (
            self.files.len(),
            self.files.values().map(|k| k.good.objects.len()).sum(),
        )
    }

    fn list(&self) -> io::Result<Vec<PathBuf>> {
        if self.only.is_some() {
            fs::metadata(&self.path)?;
            return Ok(vec![self.path.clone()]);
        }
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.folder)? {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default();
            let is_hidden = name.as_encoded_bytes().starts_with(b".");
            if !is_hidden && format_of(&path).is_some() {
                found.push(path);
            }
        }
        Ok(found)
    }

    /// New content of a file, `None` where it is as before. `Err(None)` where the file is gone.
    fn read(&mut self, path: &Path, known: &mut Known, is_dirty: bool) -> Result<Option<Parsed>, Option<SourceError>> {
        let unreadable = |e: io::Error| match e.kind() {
            io::ErrorKind::NotFound => None,
            _ => Some(SourceError::Unreadable {
                path: path.to_owned(),
                reason: e.to_string(),
            }),
        };
        let now = SystemTime::now();
        let status = fs::metadata(path).map_err(unreadable)?;
        if status.is_dir() {
            return Err(None);
        }
        if !status.is_file() {
            // Opening a pipe waits for a writer, and a device never ends.
            return Err(Some(SourceError::Unreadable {
                path: path.to_owned(),
                reason: "not a regular file (a pipe, socket or device); remove it from the folder".to_owned(),
            }));
        }
        if status.len() > MAX_FILE_BYTES {
            return Err(Some(SourceError::TooLarge {
                path: path.to_owned(),
                bytes: status.len(),
            }));
        }
        let status = Status::of(&status);
        if !is_dirty && known.status == Some(status) {
            return self.unchanged(known);
        }
        let mut bytes = Vec::with_capacity(status.bytes as usize);
        let file = fs::File::open(path).map_err(unreadable)?;
        file.take(MAX_FILE_BYTES).read_to_end(&mut bytes).map_err(unreadable)?;
        known.status = status.is_settled(now).then_some(status);
        let hash = self.hasher.hash_one(&bytes[..]);
        if known.content.replace(hash) == Some(hash) {
            return self.unchanged(known);
        }
        let format = format_of(path).unwrap_or(Format::Yaml);
        match manifest::parse(&bytes, format, &mut self.interner) {
            Ok(manifest) => {
                let objects = manifest.objects.into_iter().map(|o| (o.key(), o)).collect();
                Ok(Some(Parsed {
                    objects,
                    ignored: manifest.ignored,
                }))
            }
            Err(error) => Err(Some(SourceError::Manifest {
                path: path.to_owned(),
                error,
            })),
        }
    }

    /// The same content as last time: still waiting, still bad, or in force.
    fn unchanged(&self, known: &mut Known) -> Result<Option<Parsed>, Option<SourceError>> {
        match (known.waiting.take(), known.error.take()) {
            (Some(waiting), _) => Ok(Some(waiting)),
            (None, Some(error @ SourceError::Manifest { .. })) => Err(Some(error)),
            (None, _) => Ok(None),
        }
    }
}

impl AsFd for FileSource {
    /// Readable when something happened in the folder.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.watch.as_fd()
    }
}

fn format_of(path: &Path) -> Option<Format> {
    match path.extension()?.to_str()? {
        "yaml" | "yml" => Some(Format::Yaml),
        "json" => Some(Format::Json),
        _ => None,
    }
}
