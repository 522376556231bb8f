//! The error queue of an unconnected UDP socket (`IP_RECVERR`, ip(7)): which destination refused which datagram.

use super::{addr, check, cmsg};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, BorrowedFd};

/// `struct sock_extended_err`: errno, origin, type, code, pad, info, data.
const EXTENDED_ERR_LEN: usize = 16;
const ORIGIN_LOCAL: u8 = 1;
/// The extended error, the offender's address behind it, and a spare message.
const CONTROL_LEN: usize = cmsg::space(EXTENDED_ERR_LEN + addr::MAX_LEN) + cmsg::space(EXTENDED_ERR_LEN);

/// The kernel writes `struct cmsghdr`s here, which are aligned like words.
#[repr(align(8))]
struct ControlBuffer([u8; CONTROL_LEN]);

/// One error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketError {
    /// Where the datagram that caused it was sent.
    pub destination: SocketAddr,
    /// `ECONNREFUSED`, `EHOSTUNREACH`, `EMSGSIZE`, …
    pub errno: i32,
    /// Whether the kernel of this node raised it itself (no route, too big) rather than an ICMP message from outside.
    pub local: bool,
    /// How many bytes of the datagram came back in the caller's buffer (ICMP quotes at least 8 bytes of it; Linux sends
    /// as much as fits into 576).
    pub payload_len: usize,
}

/// Takes one error off the queue; `None` when it is empty. `payload` receives the start of the datagram.
pub fn read(fd: BorrowedFd<'_>, payload: &mut [u8]) -> io::Result<Option<SocketError>> {
    let mut name = [0u8; addr::MAX_LEN];
    // The extended error is followed by the offender's address.
    let mut control = ControlBuffer([0; CONTROL_LEN]);
    let mut iov = libc::iovec {
        iov_base: payload.as_mut_ptr().cast(),
        iov_len: payload.len(),
    };
    // SAFETY: an all-zero msghdr is valid; every pointer set below is to memory that outlives the call and is writable
    // for the length given with it.
    let (received, msg) = unsafe {
        let mut msg: libc::msghdr = std::mem::zeroed();
        msg.msg_name = name.as_mut_ptr().cast();
        msg.msg_namelen = name.len() as libc::socklen_t;
        msg.msg_iov = &mut iov;
        msg.msg_iovlen = 1;
        msg.msg_control = control.0.as_mut_ptr().cast();
        msg.msg_controllen = CONTROL_LEN as _;
        let ret = libc::recvmsg(fd.as_raw_fd(), &mut msg, libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT);
        (ret, msg)
    };
    if received < 0 {
        let error = io::Error::last_os_error();
        return if error.kind() == io::ErrorKind::WouldBlock {
            Ok(None)
        } else {
            Err(error)
        };
    }
    let control_bytes = &control.0[..msg.msg_controllen.min(CONTROL_LEN)];
    let extended = cmsg::iter(control_bytes)
        .find(|c| {
            (c.level == libc::IPPROTO_IP && c.kind == libc::IP_RECVERR)
                || (c.level == libc::IPPROTO_IPV6 && c.kind == libc::IPV6_RECVERR)
        })
        .and_then(|c| c.data.first_chunk::<EXTENDED_ERR_LEN>());
    let destination = addr::decode(&name[..(msg.msg_namelen as usize).min(name.len())]);
    let (Some(extended), Some(destination)) = (extended, destination) else {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "error queue entry without address or cause",
        ));
    };
    Ok(Some(SocketError {
        destination,
        errno: i32::from_ne_bytes([extended[0], extended[1], extended[2], extended[3]]),
        local: extended[4] == ORIGIN_LOCAL,
        payload_len: (received as usize).min(payload.len()),
    }))
}

/// Clears the pending error of a socket (`SO_ERROR`) and returns it.
pub fn take_pending(fd: BorrowedFd<'_>) -> io::Result<i32> {
    let mut error: i32 = 0;
    let mut len = size_of::<i32>() as libc::socklen_t;
    // SAFETY: the descriptor is open, the buffer is one writable i32.
    check(unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ERROR,
            (&raw mut error).cast(),
            &mut len,
        )
    })?;
    Ok(error)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::net::socket::upstream_udp;
    use std::net::UdpSocket;
    use std::os::fd::AsFd;

    /// A refusal names the destination and quotes the datagram, on both families.
    #[test]
    fn refused_datagram_names_destination_and_payload() {
        for loopback in ["127.0.0.1:0", "[::1]:0"] {
            let closed = UdpSocket::bind(loopback).unwrap().local_addr().unwrap();
            let socket: UdpSocket = upstream_udp(closed.ip(), 65_536).unwrap().into();
            socket.send_to(b"who are you", closed).unwrap();
            let mut payload = [0u8; 64];
            let deadline = std::time::Instant::now() + std::time::Duration::from_secs(2);
            let error = loop {
                match read(socket.as_fd(), &mut payload).unwrap() {
                    Some(error) => break error,
                    None => assert!(std::time::Instant::now() < deadline, "no error arrived for {closed}"),
                }
            };
            assert_eq!(error.destination, closed);
            assert_eq!(error.errno, libc::ECONNREFUSED);
            assert!(!error.local);
            assert_eq!(&payload[..error.payload_len], b"who are you");
            assert_eq!(read(socket.as_fd(), &mut payload).unwrap(), None);
        }
    }
}
