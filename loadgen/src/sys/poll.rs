//! Waiting for sockets with deadlines in nanoseconds. `epoll_wait` rounds to milliseconds, so the wait itself is a
//! `ppoll` on the epoll descriptor.

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::time::TimeSpec;
use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

/// Events taken out of the kernel per call.
const EVENTS: usize = 128;

/// One socket that has something to say.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ready {
    /// The number given to [`Poller::add`].
    pub token: u64,
    /// The error queue is not empty.
    pub error: bool,
}

/// An epoll set, level-triggered.
pub(crate) struct Poller {
    epoll: Epoll,
    events: Box<[EpollEvent]>,
}

impl Poller {
    pub fn new() -> io::Result<Self> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        Ok(Poller {
            epoll,
            events: vec![EpollEvent::empty(); EVENTS].into_boxed_slice(),
        })
    }

    /// Watches a descriptor; closing it removes it.
    pub fn add(&self, fd: impl AsFd, token: u64) -> io::Result<()> {
        Ok(self.epoll.add(fd, EpollEvent::new(EpollFlags::EPOLLIN, token))?)
    }

    /// Waits until a socket is ready or `timeout` is over (zero: only looks) and appends what is ready to `out`.
    pub fn wait(&mut self, timeout: Duration, out: &mut Vec<Ready>) -> io::Result<()> {
        if !timeout.is_zero() {
            let mut fds = [PollFd::new(self.epoll.0.as_fd(), PollFlags::POLLIN)];
            match ppoll(&mut fds, Some(TimeSpec::from_duration(timeout)), None) {
                Ok(0) | Err(Errno::EINTR) => return Ok(()),
                Ok(_) => {}
                Err(e) => return Err(e.into()),
            }
        }
        let count = match self.epoll.wait(&mut self.events, EpollTimeout::ZERO) {
            Ok(count) => count,
            Err(Errno::EINTR) => 0,
            Err(e) => return Err(e.into()),
        };
        out.extend(self.events[..count].iter().map(|event| Ready {
            token: event.data(),
            error: event.events().contains(EpollFlags::EPOLLERR),
        }));
        Ok(())
    }
}
