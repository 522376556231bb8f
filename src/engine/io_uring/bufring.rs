//! A provided-buffer ring (`IORING_REGISTER_PBUF_RING`, io_uring_setup_buf_ring(3)): the kernel picks a buffer for each
//! datagram, we hand it back when its bytes are no longer needed.

use io_uring::IoUring;
use io_uring::types::BufRingEntry;
use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU16, Ordering};

/// Anonymous memory straight from the kernel: page-aligned, zeroed, and touched only where it is used.
struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

impl Mapping {
    fn new(len: usize) -> io::Result<Self> {
        // SAFETY: a fresh private anonymous mapping touches no existing memory.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        NonNull::new(base.cast())
            .map(|base| Self { base, len })
            .ok_or_else(|| io::Error::other("mmap returned a null pointer"))
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: base and len are those of the mapping made in `new`, unmapped once.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

/// Buffers and the ring that lends them to the kernel. Must be dropped after the io_uring it is registered with.
pub struct BufRing {
    ring: Mapping,
    buffers: Mapping,
    entries: u16,
    stride: usize,
    buffer_len: u32,
    tail: u16,
}

impl BufRing {
    /// Maps `entries` buffers of `buffer_len` bytes and registers them as `group`. `entries` is a power of two, at most
    /// 32 768 (the kernel's limit).
    pub fn new(uring: &IoUring, group: u16, entries: u16, buffer_len: u32) -> io::Result<Self> {
        if !entries.is_power_of_two() || entries > 1 << 15 {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("buffer ring of {entries} entries: must be a power of two up to 32768"),
            ));
        }
        // One cache line more than the buffer, so that the starts of buffers spread over the cache's sets.
        let stride = (buffer_len as usize).next_multiple_of(64) + 64;
        let mut new = Self {
            ring: Mapping::new(usize::from(entries) * size_of::<BufRingEntry>())?,
            buffers: Mapping::new(usize::from(entries) * stride)?,
            entries,
            stride,
            buffer_len,
            tail: 0,
        };
        for id in 0..entries {
            new.put(id);
        }
        new.publish();
        // SAFETY: the ring memory is page-aligned, holds `entries` initialised entries and lives as long as self, which
        // the owner drops after the io_uring.
        unsafe {
            uring
                .submitter()
                .register_buf_ring_with_flags(new.ring.base.as_ptr() as u64, entries, group, 0)?;
        }
        Ok(new)
    }

    /// The first `len` bytes of a buffer the kernel gave us.
    ///
    /// The caller keeps the slice only until it hands the buffer back with [`BufRing::put`].
    pub fn bytes(&self, id: u16, len: usize) -> &[u8] {
        let len = len.min(self.buffer_len as usize);
        let offset = usize::from(id % self.entries) * self.stride;
        // SAFETY: offset + len lies within the mapping (id < entries, len <= buffer_len <= stride), and the kernel does
        // not write to a buffer that it has given out.
        unsafe { std::slice::from_raw_parts(self.buffers.base.as_ptr().add(offset), len) }
    }

    /// Whether a slice lies in these buffers.
    pub fn contains(&self, bytes: &[u8]) -> bool {
        let base = self.buffers.base.as_ptr() as usize;
        let start = bytes.as_ptr() as usize;
        start >= base && start + bytes.len() <= base + self.buffers.len
    }

    /// Queues a buffer for return; [`BufRing::publish`] makes it visible to the kernel.
    pub fn put(&mut self, id: u16) {
        let slot = usize::from(self.tail & (self.entries - 1));
        let address = self.buffers.base.as_ptr() as u64 + u64::from(id % self.entries) * self.stride as u64;
        // SAFETY: slot < entries, so the entry lies within the ring mapping, which nobody else in this process touches.
        // The kernel reads entries only up to the published tail. Field writes leave the tail, which shares the first
        // entry's reserved field, alone.
        unsafe {
            let entry = self.ring.base.as_ptr().cast::<BufRingEntry>().add(slot);
            (*entry).set_addr(address);
            (*entry).set_len(self.buffer_len);
            (*entry).set_bid(id);
        }
        self.tail = self.tail.wrapping_add(1);
    }

    /// Hands all queued buffers to the kernel.
    pub fn publish(&self) {
        // SAFETY: the ring's base is a valid first entry; its tail field is a u16 that the kernel reads concurrently, so
        // it is only ever accessed atomically.
        let tail = unsafe {
            let tail = BufRingEntry::tail(self.ring.base.as_ptr().cast::<BufRingEntry>());
            AtomicU16::from_ptr(tail.cast_mut())
        };
        tail.store(self.tail, Ordering::Release);
    }
}
