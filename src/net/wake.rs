//! A wake-up for a worker: an eventfd that the control thread writes and the engine reads.

use super::check;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;

/// The writing half; clones share one eventfd.
#[derive(Clone, Debug)]
pub struct Waker(Arc<OwnedFd>);

impl Waker {
    /// Makes an eventfd, close-on-exec and non-blocking.
    pub fn new() -> io::Result<Self> {
        // SAFETY: eventfd takes no pointers; a non-negative return value is a descriptor that nobody else owns.
        let fd = unsafe {
            let fd = check(libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK))?;
            OwnedFd::from_raw_fd(fd)
        };
        Ok(Self(Arc::new(fd)))
    }

    /// Wakes the reader. A full counter means that it is being woken already.
    pub fn wake(&self) {
        let one = 1u64.to_ne_bytes();
        // SAFETY: the descriptor is open as long as self lives; the buffer is 8 readable bytes.
        unsafe { libc::write(self.0.as_raw_fd(), one.as_ptr().cast(), one.len()) };
    }

    /// Reads the counter back to zero.
    pub fn clear(&self) {
        let mut count = [0u8; 8];
        // SAFETY: the descriptor is open as long as self lives; the buffer is 8 writable bytes.
        unsafe { libc::read(self.0.as_raw_fd(), count.as_mut_ptr().cast(), count.len()) };
    }
}

impl AsRawFd for Waker {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}
