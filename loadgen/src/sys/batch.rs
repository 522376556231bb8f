//! Receiving and sending several datagrams of one socket per system call (`recvmmsg`, `sendmmsg`).

use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, MultiHeaders, SockaddrStorage, recvmmsg};
use socket2::SockAddr;
use std::io::IoSliceMut;
use std::net::{SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::AsRawFd;

/// Datagrams per system call.
pub(crate) const BATCH: usize = 32;

fn to_std(address: &SockaddrStorage) -> Option<SocketAddr> {
    if let Some(v4) = address.as_sockaddr_in() {
        return Some(SocketAddr::V4(SocketAddrV4::from(*v4)));
    }
    address
        .as_sockaddr_in6()
        .map(|v6| SocketAddr::V6(SocketAddrV6::from(*v6)))
}

/// Buffers for [`BATCH`] incoming datagrams, made once.
pub(crate) struct RecvBatch {
    size: usize,
    buffers: Box<[u8]>,
    headers: MultiHeaders<SockaddrStorage>,
}

impl RecvBatch {
    /// `size` is the largest datagram kept whole.
    pub fn new(size: usize) -> Self {
        RecvBatch {
            size,
            buffers: vec![0; size * BATCH].into_boxed_slice(),
            headers: MultiHeaders::preallocate(BATCH, None),
        }
    }

    /// Receives without waiting, calls `each` for every datagram and returns how many there were.
    pub fn recv(&mut self, socket: &impl AsRawFd, mut each: impl FnMut(&[u8], SocketAddr)) -> Result<usize, Errno> {
        let mut chunks = self.buffers.chunks_exact_mut(self.size);
        // `from_fn` runs exactly BATCH times and the buffer holds exactly BATCH chunks; an empty slice would only
        // mean an empty datagram.
        let mut slices: [[IoSliceMut; 1]; BATCH] =
            std::array::from_fn(|_| [IoSliceMut::new(chunks.next().unwrap_or_default())]);
        let received = recvmmsg(
            socket.as_raw_fd(),
            &mut self.headers,
            slices.iter_mut(),
            MsgFlags::MSG_DONTWAIT,
            None,
        )?;
        let mut count = 0;
        for message in received {
            count += 1;
            let bytes = message.iovs().next().unwrap_or_default();
            if let Some(from) = message.address.as_ref().and_then(to_std) {
                each(bytes, from);
            }
        }
        Ok(count)
    }
}

/// Up to [`BATCH`] outgoing datagrams of one socket.
pub(crate) struct SendBatch {
    size: usize,
    buffers: Box<[u8]>,
    lengths: [usize; BATCH],
    addresses: Box<[SockAddr]>,
    count: usize,
}

impl SendBatch {
    /// `size` is the largest datagram that fits; `to` is any address of the family that will be sent to.
    pub fn new(size: usize, to: SocketAddr) -> Self {
        SendBatch {
            size,
            buffers: vec![0; size * BATCH].into_boxed_slice(),
            lengths: [0; BATCH],
            addresses: vec![SockAddr::from(to); BATCH].into_boxed_slice(),
            count: 0,
        }
    }

    pub fn len(&self) -> usize {
        self.count
    }

    /// Length of the datagram at this place.
    pub fn length(&self, index: usize) -> usize {
        self.lengths[index]
    }

    pub fn is_full(&self) -> bool {
        self.count == BATCH
    }

    /// Adds a datagram that `write` puts into the buffer given to it, returning its length. Must not be called on a
    /// full batch (the datagram would replace the last one).
    pub fn push(&mut self, to: SocketAddr, write: impl FnOnce(&mut [u8]) -> usize) {
        let at = self.count.min(BATCH - 1);
        let buffer = &mut self.buffers[at * self.size..(at + 1) * self.size];
        self.lengths[at] = write(buffer).min(self.size);
        self.addresses[at] = to.into();
        self.count = at + 1;
    }

    /// How many more fit.
    pub fn room(&self) -> usize {
        BATCH - self.count
    }

    /// Takes the last datagram back.
    pub fn pop(&mut self) {
        self.count = self.count.saturating_sub(1);
    }

    /// Adds the last datagram a second time.
    pub fn push_copy(&mut self, to: SocketAddr) {
        let Some(last) = self.count.checked_sub(1) else { return };
        let length = self.lengths[last];
        let (before, after) = self.buffers.split_at_mut(self.count * self.size);
        if let Some(copy) = after.get_mut(..length) {
            copy.copy_from_slice(&before[last * self.size..last * self.size + length]);
            self.lengths[self.count] = length;
            self.addresses[self.count] = to.into();
            self.count += 1;
        }
    }

    /// Sends the datagrams from number `first` on and returns how many the kernel took.
    ///
    /// Written with libc because nix's result of `sendmmsg` only counts by reading address storage that a send never
    /// fills.
    #[allow(unsafe_code)]
    pub fn send(&mut self, socket: &impl AsRawFd, first: usize) -> Result<usize, Errno> {
        // SAFETY: all-zero bytes are a valid value of these C structures (null pointers, zero lengths).
        let mut iovecs: [libc::iovec; BATCH] = unsafe { std::mem::zeroed() };
        // SAFETY: as above.
        let mut headers: [libc::mmsghdr; BATCH] = unsafe { std::mem::zeroed() };
        let mut count = 0;
        for i in first..self.count {
            let start = i * self.size;
            let bytes = &mut self.buffers[start..start + self.lengths[i]];
            iovecs[count].iov_base = bytes.as_mut_ptr().cast();
            iovecs[count].iov_len = bytes.len();
            let header = &mut headers[count].msg_hdr;
            header.msg_iov = &raw mut iovecs[count];
            header.msg_iovlen = 1;
            header.msg_name = self.addresses[i].as_ptr().cast_mut().cast();
            header.msg_namelen = self.addresses[i].len();
            count += 1;
        }
        // SAFETY: the first `count` headers point to iovecs, buffers and addresses that outlive the call, with their
        // right lengths; the kernel only reads through them and writes nothing but msg_len. `count` ≤ BATCH.
        let sent = unsafe {
            libc::sendmmsg(
                socket.as_raw_fd(),
                headers.as_mut_ptr(),
                count as libc::c_uint,
                libc::MSG_DONTWAIT,
            )
        };
        Errno::result(sent).map(|sent| usize::try_from(sent).unwrap_or(0))
    }

    pub fn clear(&mut self) {
        self.count = 0;
    }
}
