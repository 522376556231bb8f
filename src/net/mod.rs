//! Sockets, socket options, control messages and addresses: everything that talks to the kernel about the network.
//!
//! Knows nothing of Services, flows or engines. One of the two rooms where `unsafe` is allowed.

pub mod addr;
pub mod cmsg;
pub mod cpu;
pub mod errqueue;
pub mod socket;
pub mod wake;
pub mod watch;

use std::io;

/// Turns the `-1` convention of libc into an error.
fn check(ret: libc::c_int) -> io::Result<libc::c_int> {
    if ret < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(ret)
    }
}
