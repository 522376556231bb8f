//! The inotify side of a file source: which names changed, which are being written, whether the folder is still there.

use inotify::{EventMask, Inotify, WatchDescriptor, WatchMask};
use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// One reading of events; the longest event is 272 bytes.
const BUFFER: usize = 16 * 1024;

/// Readings per call. The kernel queues 16 384 events by default, which is less than this holds; so one call empties the
/// queue, and a storm that never ends cannot hold the caller.
const MAX_READINGS: usize = 256;

/// The watch of one folder.
pub(super) struct Watch {
    inotify: Inotify,
    descriptor: Option<WatchDescriptor>,
    /// Device and inode of the folder that is watched.
    identity: (u64, u64),
    /// Names reported since the last load: read again whatever their status says.
    dirty: HashSet<OsString>,
    /// Events were lost: read everything again.
    all_dirty: bool,
    /// Names modified and not closed since: half-written.
    writing: HashSet<OsString>,
}

impl Watch {
    pub(super) fn new(folder: &Path) -> io::Result<Self> {
        let mut watch = Self {
            inotify: Inotify::init()?,
            descriptor: None,
            identity: (0, 0),
            dirty: HashSet::new(),
            all_dirty: false,
            writing: HashSet::new(),
        };
        watch.renew(folder)?;
        Ok(watch)
    }

    /// Watches what the path means now, if that is another folder than before.
    pub(super) fn renew(&mut self, folder: &Path) -> io::Result<()> {
        let metadata = fs::metadata(folder)?;
        let identity = (metadata.dev(), metadata.ino());
        if self.descriptor.is_some() && identity == self.identity {
            return Ok(());
        }
        if let Some(old) = self.descriptor.take() {
            // Already gone where the folder was deleted.
            let _ = self.inotify.watches().remove(old);
        }
        let mask = WatchMask::CREATE
            | WatchMask::MODIFY
            | WatchMask::CLOSE_WRITE
            | WatchMask::ATTRIB
            | WatchMask::MOVED_TO
            | WatchMask::MOVED_FROM
            | WatchMask::DELETE
            | WatchMask::DELETE_SELF
            | WatchMask::MOVE_SELF
            | WatchMask::ONLYDIR;
        self.descriptor = Some(self.inotify.watches().add(folder, mask)?);
        self.identity = identity;
        self.writing.clear();
        self.all_dirty = true;
        Ok(())
    }

    /// Takes all queued events. Returns whether something may have changed for good (a write that is still going on has not).
    pub(super) fn drain(&mut self) -> bool {
        let mut buffer = [0; BUFFER];
        let mut notable = false;
        for _ in 0..MAX_READINGS {
            let events = match self.inotify.read_events(&mut buffer) {
                Ok(events) => events,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => {
                    self.all_dirty = true;
                    return true;
                }
            };
            for event in events {
                if event.mask.contains(EventMask::Q_OVERFLOW) {
                    self.all_dirty = true;
                    self.writing.clear();
                    notable = true;
                    continue;
                }
                if Some(&event.wd) != self.descriptor.as_ref() {
                    // Late news of a folder that is no longer watched.
                    continue;
                }
                let gone = EventMask::DELETE_SELF | EventMask::MOVE_SELF | EventMask::IGNORED | EventMask::UNMOUNT;
                if event.mask.intersects(gone) {
                    self.descriptor = None;
                    notable = true;
                    continue;
                }
                let Some(name) = event.name else { continue };
                if event.mask.contains(EventMask::MODIFY) {
                    self.writing.insert(name.to_owned());
                    continue;
                }
                if !event.mask.intersects(EventMask::ATTRIB | EventMask::CREATE) {
                    self.writing.remove(name);
                }
                self.dirty.insert(name.to_owned());
                notable = true;
            }
        }
        notable
    }

    /// Whether a name was reported since the last load.
    pub(super) fn is_dirty(&self, name: &OsStr) -> bool {
        self.all_dirty || self.dirty.contains(name)
    }

    /// Whether somebody is writing this file; its content is not to be read now.
    pub(super) fn is_being_written(&self, name: &OsStr) -> bool {
        self.writing.contains(name)
    }

    /// After a load: what was reported has been looked at, except files that could not be read yet.
    pub(super) fn forget_dirty(&mut self) {
        self.all_dirty = false;
        self.dirty.clear();
    }
}

impl AsFd for Watch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inotify.as_fd()
    }
}
