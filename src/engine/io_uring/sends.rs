//! Memory of the sends between two enters: addresses, vectors, message headers and copied payloads. All of it is
//! allocated once.

use crate::net::addr::RawAddr;
use std::net::SocketAddr;

/// Payloads that do not lie in receive buffers are copied here: a burst of queries moved to another endpoint, or one
/// datagram of the largest size.
const SCRATCH: usize = 256 * 1024;

/// The queue's memory. An entry handed out by [`SendQueue::prepare`] stays where it is until [`SendQueue::reset`].
pub struct SendQueue {
    addresses: Box<[RawAddr]>,
    vectors: Box<[libc::iovec]>,
    messages: Box<[libc::msghdr]>,
    scratch: Box<[u8]>,
    used: usize,
    scratch_used: usize,
}

impl SendQueue {
    /// Room for `capacity` sends.
    pub fn new(capacity: usize) -> Self {
        let nowhere = SocketAddr::new(std::net::Ipv4Addr::UNSPECIFIED.into(), 0);
        // SAFETY: an all-zero msghdr is valid.
        let message: libc::msghdr = unsafe { std::mem::zeroed() };
        let vector = libc::iovec {
            iov_base: std::ptr::null_mut(),
            iov_len: 0,
        };
        Self {
            addresses: vec![RawAddr::new(&nowhere); capacity].into(),
            vectors: vec![vector; capacity].into(),
            messages: vec![message; capacity].into(),
            scratch: vec![0; SCRATCH].into(),
            used: 0,
            scratch_used: 0,
        }
    }

    /// Whether one more send fits.
    pub fn has_room(&self, payload: &[u8], borrowed: bool) -> bool {
        self.used < self.messages.len() && (borrowed || self.scratch_used + payload.len() <= self.scratch.len())
    }

    /// Fills the next entry and returns its header. The caller has checked [`SendQueue::has_room`]; without room the last
    /// entry would be overwritten, so it is checked again and the payload cut to nothing rather than that.
    pub fn prepare(&mut self, to: &SocketAddr, payload: &[u8], borrowed: bool) -> *const libc::msghdr {
        debug_assert!(self.has_room(payload, borrowed));
        let index = self.used.min(self.messages.len() - 1);
        let bytes = if borrowed {
            payload.as_ptr()
        } else {
            let start = self.scratch_used;
            let room = &mut self.scratch[start..start + payload.len()];
            room.copy_from_slice(payload);
            self.scratch_used += payload.len();
            room.as_ptr()
        };
        self.addresses[index] = RawAddr::new(to);
        self.vectors[index] = libc::iovec {
            iov_base: bytes.cast_mut().cast(),
            iov_len: payload.len(),
        };
        let message = &mut self.messages[index];
        message.msg_name = self.addresses[index].as_ptr().cast_mut().cast();
        message.msg_namelen = self.addresses[index].len();
        message.msg_iov = &raw mut self.vectors[index];
        message.msg_iovlen = 1;
        self.used = index + 1;
        &raw const *message
    }

    /// Forgets all entries: the kernel has consumed them.
    pub fn reset(&mut self) {
        self.used = 0;
        self.scratch_used = 0;
    }
}
