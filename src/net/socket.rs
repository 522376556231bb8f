//! Making the two kinds of UDP sockets the data plane uses, and reading what the kernel dropped on them.

use super::addr::wildcard_like;
use super::check;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// The UDP socket of one VIP for one worker: transparent and bound to the VIP itself, so that replies leave from the
/// address and port the client dialled; `SO_REUSEPORT`, one per worker; marked, so that the redirection knows it.
pub fn vip_udp(vip: SocketAddr, mark: u32, receive_buffer: usize) -> io::Result<OwnedFd> {
    let socket = udp(vip.ip(), receive_buffer)?;
    match vip {
        SocketAddr::V4(_) => socket.set_ip_transparent_v4(true)?,
        SocketAddr::V6(_) => socket.set_ip_transparent_v6(true)?,
    }
    socket.set_reuse_port(true)?;
    if mark != 0 {
        socket.set_mark(mark)?;
    }
    socket.bind(&SockAddr::from(vip))?;
    Ok(socket.into())
}

/// An upstream socket that uses the node's own address: ordinary, unconnected, on a port the kernel chooses at random,
/// with the error queue on, because unconnected sockets hear of refusals in no other way.
pub fn upstream_udp(family_of: IpAddr, receive_buffer: usize) -> io::Result<OwnedFd> {
    let socket = udp(family_of, receive_buffer)?;
    let fd = socket.as_fd();
    match family_of {
        IpAddr::V4(_) => set_int(fd, libc::IPPROTO_IP, libc::IP_RECVERR, 1)?,
        IpAddr::V6(_) => set_int(fd, libc::IPPROTO_IPV6, libc::IPV6_RECVERR, 1)?,
    }
    socket.bind(&SockAddr::from(wildcard_like(family_of)))?;
    Ok(socket.into())
}

/// A socket on 127.0.0.1 and a port of the kernel's choice.
pub fn loopback_udp() -> io::Result<OwnedFd> {
    let loopback = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);
    let socket = udp(loopback, 64 * 1024)?;
    socket.bind(&SockAddr::from(SocketAddr::new(loopback, 0)))?;
    Ok(socket.into())
}

fn udp(family_of: IpAddr, receive_buffer: usize) -> io::Result<Socket> {
    let domain = match family_of {
        IpAddr::V4(_) => Domain::IPV4,
        IpAddr::V6(_) => Domain::IPV6,
    };
    let socket = Socket::new(domain, Type::DGRAM.nonblocking().cloexec(), Some(Protocol::UDP))?;
    let fd = socket.as_fd();
    match family_of {
        // Datagrams leave whole: the kernel fragments them where the path needs it, DF is never set (RFC 6891 §6.2.3
        // leaves the size to the two ends, not to us).
        IpAddr::V4(_) => set_int(fd, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_DONT)?,
        IpAddr::V6(_) => {
            socket.set_only_v6(true)?;
            set_int(
                fd,
                libc::IPPROTO_IPV6,
                libc::IPV6_MTU_DISCOVER,
                libc::IPV6_PMTUDISC_DONT,
            )?;
        }
    }
    set_receive_buffer(&socket, receive_buffer)?;
    Ok(socket)
}

/// `SO_RCVBUFFORCE` where we may, else `SO_RCVBUF` (capped by `net.core.rmem_max`).
fn set_receive_buffer(socket: &Socket, bytes: usize) -> io::Result<()> {
    let bytes = i32::try_from(bytes).unwrap_or(i32::MAX / 2);
    if set_int(socket.as_fd(), libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, bytes).is_ok() {
        return Ok(());
    }
    set_int(socket.as_fd(), libc::SOL_SOCKET, libc::SO_RCVBUF, bytes)
}

/// Sets an integer option.
pub fn set_int(fd: BorrowedFd<'_>, level: i32, option: i32, value: i32) -> io::Result<()> {
    // SAFETY: the descriptor is open, the pointer is to a live i32 and the length is its size.
    check(unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            level,
            option,
            (&raw const value).cast(),
            size_of::<i32>() as libc::socklen_t,
        )
    })?;
    Ok(())
}

/// Datagrams the kernel dropped on this socket because its receive buffer was full (`SO_MEMINFO`, `SK_MEMINFO_DROPS`
/// in include/uapi/linux/sock_diag.h), since the socket was made.
pub fn receive_drops(fd: BorrowedFd<'_>) -> io::Result<u32> {
    const SO_MEMINFO: i32 = 55;
    const DROPS: usize = 8;
    let mut info = [0u32; DROPS + 1];
    let mut len = size_of_val(&info) as libc::socklen_t;
    // SAFETY: the descriptor is open, the buffer is writable for `len` bytes.
    check(unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_MEMINFO,
            info.as_mut_ptr().cast(),
            &mut len,
        )
    })?;
    Ok(info[DROPS])
}

/// The address a socket is bound to.
pub fn local_addr(fd: BorrowedFd<'_>) -> io::Result<SocketAddr> {
    let socket = socket2::SockRef::from(&fd);
    socket
        .local_addr()?
        .as_socket()
        .ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))
}
