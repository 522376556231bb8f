//! The io_uring engine: one ring per worker, multishot receives into a provided-buffer ring, sends as SQEs, one
//! `io_uring_enter` per turn.
//!
//! A turn: [`Uring::wait`] (enter: submits what the last turn queued and waits; then buffers of the last batch go back) →
//! [`Uring::dispatch`] (copies up to [`BATCH`] completions, then handles them). Sends are `MSG_DONTWAIT`, so the kernel carries them out while it consumes the SQE
//! (io_uring/net.c: a request with `REQ_F_NOWAIT` is never parked) and posts a completion only for failures; when enter
//! returns, their memory is free again. Nothing in a turn allocates.

mod bufring;
mod sends;
mod setup;
#[cfg(test)]
mod tests;

pub use setup::SetupError;

use super::{Datagram, EngineStats, Handler, Outbox, SocketKey, Wait};
use crate::net::addr;
use crate::net::wake::Waker;
use bufring::BufRing;
use io_uring::types::{CancelBuilder, Fd, RecvMsgOut, SubmitArgs, Timespec};
use io_uring::{EnterFlags, IoUring, cqueue, opcode, squeue};
use sends::SendQueue;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// Completions handled per turn.
pub const BATCH: usize = 256;
const BUFFER_GROUP: u16 = 1;
/// Room in a receive buffer before the payload: `struct io_uring_recvmsg_out` and the sender's address.
const HEADROOM: usize = 16 + addr::MAX_LEN;

const OP_RECV: u64 = 1;
const OP_SEND: u64 = 2;
const OP_WAKE: u64 = 3;
const OP_CANCEL: u64 = 4;
const OP_SHIFT: u32 = 56;
const SUBMIT_TRIES: u32 = 1000;
const GENERATION_MASK: u32 = 0x00ff_ffff;

/// Sizes of a ring.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Submission queue entries; also the most sends between two enters.
    pub sq_entries: u32,
    /// Completion queue entries. Every buffer, every send and every socket may have one waiting.
    pub cq_entries: u32,
    /// Receive buffers, a power of two. Each has room for the largest datagram; memory is used as far as datagrams
    /// really reach.
    pub buffers: u16,
    /// Most sockets held.
    pub max_sockets: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            sq_entries: 1024,
            cq_entries: 8192,
            buffers: 512,
            max_sockets: 16_384,
        }
    }
}

#[derive(Debug)]
struct Slot {
    fd: Option<OwnedFd>,
    token: u32,
    generation: u32,
    armed: bool,
    closing: bool,
}

/// The engine. Make it on the thread that will use it: the kernel lets no other thread submit.
pub struct Uring {
    // Field order is drop order: the ring must be closed before the memory that the kernel may still use.
    core: Core,
    buffers: BufRing,
    template: Box<libc::msghdr>,
    wake_count: Box<[u8; 8]>,
    slots: Vec<Slot>,
    free: Vec<u32>,
    starved: Vec<u32>,
    used_buffers: Vec<u16>,
    batch: Vec<cqueue::Entry>,
    max_sockets: usize,
    waker: Waker,
    flags: &'static str,
    stats: EngineStats,
}

/// The ring and its queue of sends: what the handler may use while a batch is dispatched.
struct Core {
    ring: IoUring,
    sends: SendQueue,
    no_iowait: bool,
}

impl Uring {
    /// Makes a ring on the calling thread.
    pub fn new(config: Config, waker: Waker) -> Result<Self, SetupError> {
        let (ring, flags) = setup::ring(config.sq_entries, config.cq_entries)?;
        let buffer_len = (super::MAX_DATAGRAM + HEADROOM) as u32;
        let buffers = BufRing::new(&ring, BUFFER_GROUP, config.buffers, buffer_len).map_err(|e| {
            if e.raw_os_error() == Some(libc::EINVAL) {
                SetupError::TooOld("buffer rings are missing".to_owned())
            } else {
                SetupError::Other(e)
            }
        })?;
        // SAFETY: an all-zero msghdr is valid.
        let mut template: Box<libc::msghdr> = Box::new(unsafe { std::mem::zeroed() });
        template.msg_namelen = addr::MAX_LEN as libc::socklen_t;
        let no_iowait = ring.params().is_feature_no_iowait();
        let mut new = Self {
            core: Core {
                sends: SendQueue::new(config.sq_entries as usize),
                ring,
                no_iowait,
            },
            buffers,
            template,
            wake_count: Box::new([0; 8]),
            slots: Vec::new(),
            free: Vec::new(),
            starved: Vec::with_capacity(config.max_sockets),
            used_buffers: Vec::with_capacity(BATCH),
            batch: Vec::with_capacity(BATCH),
            max_sockets: config.max_sockets,
            waker,
            flags,
            stats: EngineStats::default(),
        };
        new.arm_wake().map_err(SetupError::Other)?;
        Ok(new)
    }

    /// The ring flags in force, for the log.
    pub fn flags(&self) -> &'static str {
        self.flags
    }

    /// What happened so far.
    pub fn stats(&self) -> EngineStats {
        self.stats
    }

    /// Takes a socket over and starts receiving on it.
    pub fn add_socket(&mut self, fd: OwnedFd, token: u32) -> io::Result<SocketKey> {
        let index = match self.free.pop() {
            Some(index) => index,
            None if self.slots.len() < self.max_sockets => {
                self.slots.push(Slot {
                    fd: None,
                    token: 0,
                    generation: 0,
                    armed: false,
                    closing: false,
                });
                self.slots.len() as u32 - 1
            }
            None => {
                return Err(io::Error::other(format!(
                    "the limit of {} sockets per worker is reached",
                    self.max_sockets
                )));
            }
        };
        let slot = &mut self.slots[index as usize];
        slot.fd = Some(fd);
        slot.token = token;
        slot.closing = false;
        self.arm(index)?;
        Ok(SocketKey(index))
    }

    /// Stops receiving on a socket and closes it once the kernel has let go of it. Datagrams already received are still
    /// delivered in between.
    pub fn remove_socket(&mut self, key: SocketKey) -> io::Result<()> {
        let Some(slot) = self.slots.get_mut(key.0 as usize) else {
            return Ok(());
        };
        let Some(fd) = slot.fd.as_ref() else {
            return Ok(());
        };
        slot.closing = true;
        if slot.armed {
            // By descriptor, because cancelling a multishot by user data can miss it (seen on 6.11).
            let cancel = opcode::AsyncCancel2::new(CancelBuilder::fd(Fd(fd.as_raw_fd())).all())
                .build()
                .user_data(OP_CANCEL << OP_SHIFT);
            self.core.push(cancel)?;
        } else {
            self.close(key.0);
        }
        Ok(())
    }

    /// How many sockets are held, those being closed included.
    pub fn sockets(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    fn close(&mut self, index: u32) {
        let slot = &mut self.slots[index as usize];
        slot.fd = None;
        slot.generation = (slot.generation + 1) & GENERATION_MASK;
        self.free.push(index);
    }

    fn arm(&mut self, index: u32) -> io::Result<()> {
        let slot = &mut self.slots[index as usize];
        let Some(fd) = slot.fd.as_ref() else {
            return Ok(());
        };
        let user_data = OP_RECV << OP_SHIFT | u64::from(slot.generation) << 32 | u64::from(index);
        let entry = opcode::RecvMsgMulti::new(Fd(fd.as_raw_fd()), &raw const *self.template, BUFFER_GROUP)
            .build()
            .user_data(user_data);
        slot.armed = true;
        self.core.push(entry)
    }

    fn arm_wake(&mut self) -> io::Result<()> {
        let entry = opcode::Read::new(Fd(self.waker.as_raw_fd()), self.wake_count.as_mut_ptr(), 8)
            .build()
            .user_data(OP_WAKE << OP_SHIFT);
        self.core.push(entry)
    }

    /// Submits everything queued and waits until something happens or `wait` is over.
    pub fn wait(&mut self, wait: Wait) -> io::Result<()> {
        if !self.starved.is_empty() {
            // Sockets wait for buffers: what the last turn queued leaves first, so that its buffers are free now and not
            // only after the wait.
            self.core.submit_all()?;
            self.return_buffers();
            while let Some(index) = self.starved.pop() {
                self.stats.rearmed += 1;
                self.arm(index)?;
            }
        }
        self.core.enter(wait)?;
        self.return_buffers();
        Ok(())
    }

    /// Handles up to [`BATCH`] completions.
    pub fn dispatch(&mut self, handler: &mut impl Handler) -> io::Result<()> {
        if self.core.ring.submission().cq_overflow() {
            self.stats.cq_overflow += 1;
        }
        let mut batch = std::mem::take(&mut self.batch);
        batch.clear();
        batch.extend(self.core.ring.completion().take(BATCH));
        for entry in &batch {
            self.complete(entry, handler)?;
        }
        self.batch = batch;
        Ok(())
    }

    /// The descriptor of a socket it holds.
    pub fn fd(&self, key: SocketKey) -> Option<BorrowedFd<'_>> {
        self.slots.get(key.0 as usize)?.fd.as_ref().map(AsFd::as_fd)
    }

    fn return_buffers(&mut self) {
        if self.used_buffers.is_empty() {
            return;
        }
        for id in self.used_buffers.drain(..) {
            self.buffers.put(id);
        }
        self.buffers.publish();
    }

    /// The outbox outside of a turn's dispatch (timers).
    pub fn outbox(&mut self) -> impl Outbox + '_ {
        TurnOutbox {
            core: &mut self.core,
            buffers: &self.buffers,
            slots: &self.slots,
        }
    }

    fn complete(&mut self, entry: &cqueue::Entry, handler: &mut impl Handler) -> io::Result<()> {
        let user_data = entry.user_data();
        match user_data >> OP_SHIFT {
            OP_RECV => self.received(entry, handler),
            OP_SEND => {
                let tag = user_data & ((1 << OP_SHIFT) - 1);
                if entry.result() < 0 {
                    handler.send_failed(&mut self.outbox(), tag, -entry.result());
                }
                Ok(())
            }
            OP_WAKE => {
                handler.woken(&mut self.outbox());
                self.arm_wake()
            }
            // A cancel that finds nothing raced with the receive's own end; its last completion closes the socket.
            _ => Ok(()),
        }
    }

    fn received(&mut self, entry: &cqueue::Entry, handler: &mut impl Handler) -> io::Result<()> {
        let index = entry.user_data() as u32;
        let generation = (entry.user_data() >> 32) as u32 & GENERATION_MASK;
        let buffer = cqueue::buffer_select(entry.flags());
        if let Some(id) = buffer {
            // Given back after the next enter: until then sends may read from it.
            self.used_buffers.push(id);
        }
        let Some(slot) = self.slots.get_mut(index as usize) else {
            return Ok(());
        };
        if slot.generation != generation {
            return Ok(());
        }
        if !cqueue::more(entry.flags()) {
            slot.armed = false;
        }
        let token = slot.token;
        let result = entry.result();
        let mut outbox = TurnOutbox {
            core: &mut self.core,
            buffers: &self.buffers,
            slots: &self.slots,
        };
        if let (true, Some(id)) = (result >= 0, buffer) {
            let bytes = self.buffers.bytes(id, result as usize);
            if let Ok(out) = RecvMsgOut::parse(bytes, &self.template)
                && let Some(from) = addr::decode(out.name_data())
            {
                let datagram = Datagram {
                    from,
                    payload: out.payload_data(),
                    truncated: out.is_payload_truncated(),
                };
                handler.datagram(&mut outbox, token, datagram);
            }
        } else if result < 0
            && result != -libc::ENOBUFS
            && result != -libc::ECANCELED
            && let Some(fd) = self.slots[index as usize].fd.as_ref()
        {
            handler.socket_error(&mut outbox, token, fd.as_fd(), -result);
        }
        self.after_receive(index, result)
    }

    /// A zero-length datagram, a socket error, an empty buffer ring or a full completion queue end a multishot receive:
    /// arm it again, or close the socket if that is what ended it.
    fn after_receive(&mut self, index: u32, result: i32) -> io::Result<()> {
        let slot = &self.slots[index as usize];
        if slot.armed {
            return Ok(());
        }
        if slot.closing {
            self.close(index);
            return Ok(());
        }
        if result == -libc::ENOBUFS {
            // Arming it now would fail at once; the next turn returns buffers first.
            self.stats.buffers_exhausted += 1;
            self.starved.push(index);
            return Ok(());
        }
        self.stats.rearmed += 1;
        self.arm(index)
    }
}

impl Core {
    fn push(&mut self, entry: squeue::Entry) -> io::Result<()> {
        loop {
            // SAFETY: every entry built in this module points to memory that outlives its request: the receive template
            // and the wake counter are boxed in `Uring`, which closes the ring first when dropped; sends point into the
            // send queue and the buffers, which are not reused before the kernel has consumed the entry.
            if unsafe { self.ring.submission().push(&entry) }.is_ok() {
                return Ok(());
            }
            self.submit_all()?;
        }
    }

    /// Submits everything queued without waiting.
    fn submit_all(&mut self) -> io::Result<()> {
        // One try consumes everything unless it is interrupted or memory is short, so a few are plenty.
        for _ in 0..SUBMIT_TRIES {
            match self.ring.submit() {
                Ok(_) => {}
                Err(e) if is_transient(&e) => {}
                Err(e) => return Err(e),
            }
            if self.ring.submission().is_empty() {
                self.sends.reset();
                return Ok(());
            }
        }
        Err(io::Error::other(format!(
            "the kernel did not consume the submission queue in {SUBMIT_TRIES} tries"
        )))
    }

    /// Submits and waits for one completion or the end of `wait`.
    fn enter(&mut self, wait: Wait) -> io::Result<()> {
        let timespec = wait.map(Timespec::from);
        let mut args = SubmitArgs::new();
        if let Some(timespec) = &timespec {
            args = args.timespec(timespec);
        }
        let flags = if self.no_iowait {
            EnterFlags::NO_IOWAIT
        } else {
            EnterFlags::empty()
        };
        match self.ring.submitter().submit_with_args_and_flags(1, &args, flags) {
            Ok(_) => {}
            Err(e)
                if matches!(
                    e.raw_os_error(),
                    Some(libc::ETIME | libc::EINTR | libc::EAGAIN | libc::EBUSY)
                ) => {}
            Err(e) => return Err(e),
        }
        if self.ring.submission().is_empty() {
            self.sends.reset();
            Ok(())
        } else {
            self.submit_all()
        }
    }
}

/// Interrupted, short of memory for a moment, or completions waiting in the kernel's backlog (which the next enter that
/// waits moves into the queue).
fn is_transient(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::EBUSY))
}

struct TurnOutbox<'a> {
    core: &'a mut Core,
    buffers: &'a BufRing,
    slots: &'a [Slot],
}

impl Outbox for TurnOutbox<'_> {
    fn send(&mut self, socket: SocketKey, to: &std::net::SocketAddr, payload: &[u8], tag: u64) {
        let Some(fd) = self.slots.get(socket.0 as usize).and_then(|s| s.fd.as_ref()) else {
            return;
        };
        let borrowed = self.buffers.contains(payload);
        // Room in both queues is made before the send is prepared: a submit in between would give its memory away.
        let full = !self.core.sends.has_room(payload, borrowed) || self.core.ring.submission().is_full();
        if full && self.core.submit_all().is_err() {
            // The next enter of this turn loop meets the same error and reports it.
            return;
        }
        let message = self.core.sends.prepare(to, payload, borrowed);
        let entry = opcode::SendMsg::new(Fd(fd.as_raw_fd()), message)
            .flags(libc::MSG_DONTWAIT as u32)
            .build()
            .flags(squeue::Flags::SKIP_SUCCESS)
            .user_data(OP_SEND << OP_SHIFT | tag & ((1 << OP_SHIFT) - 1));
        // An error here is met again and reported by the next enter.
        let _ = self.core.push(entry);
    }
}
