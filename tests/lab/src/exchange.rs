//! One-shot exchanges from inside a namespace, with a fresh or a fixed client port.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream, UdpSocket};
use std::time::Duration;

use crate::dnswire::{DnsReply, QType, parse_reply, query};
use crate::node::Host;
use crate::{Error, NetNs, Result};

/// A datagram received and who sent it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Received {
    /// The payload.
    pub payload: Vec<u8>,
    /// The sender's address and port.
    pub from: SocketAddr,
}

impl NetNs {
    /// A UDP socket of this namespace; usable from any thread. Port 0 lets the kernel choose.
    pub fn udp_socket(&self, local: SocketAddr) -> Result<UdpSocket> {
        self.run(move || UdpSocket::bind(local))?
            .map_err(Error::io(format!("bind UDP {local} in {}", self.name())))
    }

    /// Sends one datagram from a fresh port and waits for one back, from whomever. `None` is silence or an ICMP error.
    pub fn udp_exchange(&self, to: SocketAddr, payload: &[u8], timeout: Duration) -> Result<Option<Received>> {
        let any = if to.is_ipv4() {
            IpAddr::from([0, 0, 0, 0])
        } else {
            IpAddr::from([0u16; 8])
        };
        let socket = self.udp_socket(SocketAddr::new(any, 0))?;
        exchange_on(&socket, to, payload, timeout)
    }

    /// Connects, sends `payload`, shuts down its side and reads to the end. `None` if refused, reset or silent.
    pub fn tcp_exchange(&self, to: SocketAddr, payload: &[u8], timeout: Duration) -> Result<Option<Vec<u8>>> {
        // The socket is made by connect itself, so this waits inside the namespace's thread.
        let payload = payload.to_vec();
        let talk = move || -> std::io::Result<Vec<u8>> {
            let mut stream = TcpStream::connect_timeout(&to, timeout)?;
            stream.set_read_timeout(Some(timeout))?;
            stream.write_all(&payload)?;
            stream.shutdown(std::net::Shutdown::Write)?;
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer)?;
            Ok(answer)
        };
        Ok(self.run(talk)?.ok())
    }

    /// Asks a DNS server over UDP.
    pub fn dns_query(
        &self,
        server: SocketAddr,
        name: &str,
        qtype: QType,
        timeout: Duration,
    ) -> Result<Option<(DnsReply, SocketAddr)>> {
        let id = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .map_or(1, |d| d.subsec_nanos() as u16);
        let received = self.udp_exchange(server, &query(id, name, qtype), timeout)?;
        Ok(received.and_then(|r| Some((parse_reply(&r.payload).filter(|p| p.id == id)?, r.from))))
    }
}

/// As [`NetNs::udp_exchange`] on a socket that is there already, so that the client's port stays the same.
pub fn exchange_on(socket: &UdpSocket, to: SocketAddr, payload: &[u8], timeout: Duration) -> Result<Option<Received>> {
    socket
        .set_read_timeout(Some(timeout))
        .map_err(Error::io("set a read timeout"))?;
    if socket.send_to(payload, to).is_err() {
        return Ok(None);
    }
    let mut buffer = vec![0; 65_536];
    Ok(socket.recv_from(&mut buffer).ok().map(|(length, from)| {
        buffer.truncate(length);
        Received { payload: buffer, from }
    }))
}

/// [`NetNs::udp_exchange`] from a node or a pod: the payload and who sent it, or nothing in time.
pub fn udp_exchange(from: &impl Host, to: SocketAddr, payload: &[u8], timeout: Duration) -> Result<Option<Received>> {
    from.netns().udp_exchange(to, payload, timeout)
}
