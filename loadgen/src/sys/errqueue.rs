//! The error queue of a UDP socket (`IP_RECVERR`, ip(7)): ICMP errors with the start of the datagram that caused them.

use nix::errno::Errno;
use nix::sys::socket::{ControlMessageOwned, MsgFlags, SockaddrStorage, recvmsg, setsockopt, sockopt};
use std::io::{self, IoSliceMut};
use std::net::UdpSocket;
use std::os::fd::AsRawFd;

/// `SO_EE_ORIGIN_ICMP` and `SO_EE_ORIGIN_ICMP6` of linux/errqueue.h; other origins are not the network speaking.
const ORIGIN_ICMP: u8 = 2;
const ORIGIN_ICMP6: u8 = 3;

/// Errors read in one go; the rest waits for the next turn.
const BATCH: usize = 64;

pub(super) fn enable(socket: &UdpSocket, v6: bool) -> io::Result<()> {
    if v6 {
        setsockopt(socket, sockopt::Ipv6RecvErr, &true)?
    } else {
        setsockopt(socket, sockopt::Ipv4RecvErr, &true)?
    }
    Ok(())
}

/// Buffers for reading error queues.
pub(crate) struct ErrorQueue {
    payload: Box<[u8]>,
    control: Vec<u8>,
}

impl ErrorQueue {
    pub fn new() -> Self {
        ErrorQueue {
            payload: vec![0; 2048].into_boxed_slice(),
            control: vec![0; 512],
        }
    }

    /// Reads what is queued and calls `on_icmp` with the errno each ICMP error stands for. Reading the queue also
    /// takes the pending error off the socket, which would otherwise fail the next send.
    pub fn drain(&mut self, socket: &UdpSocket, mut on_icmp: impl FnMut(Errno)) {
        for _ in 0..BATCH {
            let mut iov = [IoSliceMut::new(&mut self.payload)];
            let flags = MsgFlags::MSG_ERRQUEUE | MsgFlags::MSG_DONTWAIT;
            let Ok(message) = recvmsg::<SockaddrStorage>(socket.as_raw_fd(), &mut iov, Some(&mut self.control), flags)
            else {
                return;
            };
            let Ok(control) = message.cmsgs() else { continue };
            for item in control {
                let error = match item {
                    ControlMessageOwned::Ipv4RecvErr(error, _) => error,
                    ControlMessageOwned::Ipv6RecvErr(error, _) => error,
                    _ => continue,
                };
                if matches!(error.ee_origin, ORIGIN_ICMP | ORIGIN_ICMP6) {
                    on_icmp(Errno::from_raw(i32::try_from(error.ee_errno).unwrap_or(0)));
                }
            }
        }
    }
}

/// Errors that an earlier datagram of the socket left behind.
pub(crate) fn is_icmp(error: Errno) -> bool {
    matches!(
        error,
        Errno::ECONNREFUSED | Errno::EHOSTUNREACH | Errno::ENETUNREACH | Errno::EHOSTDOWN | Errno::EPROTO
    )
}

/// The errno's name as C spells it, where it is one a socket gives.
pub(crate) fn errno_name(error: Errno) -> &'static str {
    match error {
        Errno::ECONNREFUSED => "ECONNREFUSED",
        Errno::EHOSTUNREACH => "EHOSTUNREACH",
        Errno::ENETUNREACH => "ENETUNREACH",
        Errno::EACCES => "EACCES",
        Errno::EPERM => "EPERM",
        Errno::EAGAIN => "EAGAIN",
        Errno::ENOBUFS => "ENOBUFS",
        Errno::EMSGSIZE => "EMSGSIZE",
        Errno::EMFILE => "EMFILE",
        Errno::EADDRINUSE => "EADDRINUSE",
        Errno::EADDRNOTAVAIL => "EADDRNOTAVAIL",
        Errno::EINVAL => "EINVAL",
        Errno::ENOPROTOOPT => "ENOPROTOOPT",
        Errno::EPROTO => "EPROTO",
        other => other.desc(),
    }
}
