//! The kernel's interfaces in the shape this crate needs: datagram batches, the sockets' error queue, waiting with
//! sub-millisecond deadlines, thread placement. It knows nothing of queries and answers. `nix` and `socket2` have safe
//! wrappers for all of it but one call, so `batch.rs` is the one place of this crate with unsafe code.

mod batch;
mod errqueue;
mod poll;
mod thread;

pub(crate) use batch::{BATCH, RecvBatch, SendBatch};
pub(crate) use errqueue::{ErrorQueue, errno_name, is_icmp};
pub(crate) use poll::{Poller, Ready};
pub(crate) use thread::{pin, precise_timers, raise_open_files, thread_cpu};

use socket2::{Domain, Protocol, Socket, Type};
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};

/// Largest payload a UDP datagram can have (IPv4, 65 535 − 20 − 8).
pub(crate) const MAX_DATAGRAM: usize = 65_507;

/// A non-blocking, unconnected UDP socket. Unconnected, because a connected one hides answers that come from an
/// address other than the one dialled, and counting those is the point.
pub(crate) fn udp_socket(addr: SocketAddr) -> io::Result<Socket> {
    Socket::new(
        Domain::for_address(addr),
        Type::DGRAM.nonblocking(),
        Some(Protocol::UDP),
    )
}

/// A client socket that may send to `server`: from `bind` if given, else from the address routing chooses. ICMP errors
/// are queued on it (`IP_RECVERR`, ip(7)), which is the only way an unconnected socket learns of them.
pub(crate) fn client_socket(server: SocketAddr, bind: Option<IpAddr>, receive_buffer: usize) -> io::Result<UdpSocket> {
    let socket = udp_socket(server)?;
    let socket = UdpSocket::from(enlarge(socket, receive_buffer));
    errqueue::enable(&socket, server.is_ipv6())?;
    if let Some(ip) = bind {
        socket2::SockRef::from(&socket).bind(&SocketAddr::new(ip, 0).into())?;
    }
    Ok(socket)
}

/// Asks for a bigger receive buffer; the kernel caps it at `net.core.rmem_max`, which is no error. 0 leaves it alone.
pub(crate) fn enlarge(socket: Socket, receive_buffer: usize) -> Socket {
    if receive_buffer > 0 {
        // A refusal only means the default size; overflow would show as lost answers, never silently.
        let _ = socket.set_recv_buffer_size(receive_buffer);
    }
    socket
}
