//! Socket addresses in the kernel's layout (`struct sockaddr_in`, `struct sockaddr_in6`), built and read byte by byte.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

/// Room for the longer of the two layouts.
pub const MAX_LEN: usize = 28;
const V4_LEN: usize = 16;

/// A socket address as the kernel reads it. The kernel copies it bytewise, so it needs no alignment.
#[derive(Clone, Copy, Debug)]
pub struct RawAddr {
    bytes: [u8; MAX_LEN],
    len: u8,
}

impl RawAddr {
    /// Encodes an address.
    pub fn new(addr: &SocketAddr) -> Self {
        let mut bytes = [0; MAX_LEN];
        let len = match addr {
            SocketAddr::V4(a) => {
                bytes[..2].copy_from_slice(&(libc::AF_INET as u16).to_ne_bytes());
                bytes[2..4].copy_from_slice(&a.port().to_be_bytes());
                bytes[4..8].copy_from_slice(&a.ip().octets());
                V4_LEN
            }
            SocketAddr::V6(a) => {
                bytes[..2].copy_from_slice(&(libc::AF_INET6 as u16).to_ne_bytes());
                bytes[2..4].copy_from_slice(&a.port().to_be_bytes());
                bytes[4..8].copy_from_slice(&a.flowinfo().to_be_bytes());
                bytes[8..24].copy_from_slice(&a.ip().octets());
                bytes[24..28].copy_from_slice(&a.scope_id().to_ne_bytes());
                MAX_LEN
            }
        };
        Self { bytes, len: len as u8 }
    }

    /// Where the kernel should read.
    pub fn as_ptr(&self) -> *const u8 {
        self.bytes.as_ptr()
    }

    /// How many bytes it should read.
    pub fn len(&self) -> u32 {
        u32::from(self.len)
    }

    /// Never: an address has a length.
    pub fn is_empty(&self) -> bool {
        false
    }
}

/// Reads an address the kernel wrote; `None` for other families or a cut one.
pub fn decode(bytes: &[u8]) -> Option<SocketAddr> {
    let family = u16::from_ne_bytes(bytes.get(..2)?.try_into().ok()?);
    let port = u16::from_be_bytes(bytes.get(2..4)?.try_into().ok()?);
    match i32::from(family) {
        libc::AF_INET => {
            let ip: [u8; 4] = bytes.get(4..8)?.try_into().ok()?;
            Some(SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::from(ip), port)))
        }
        libc::AF_INET6 => {
            let flowinfo = u32::from_be_bytes(bytes.get(4..8)?.try_into().ok()?);
            let ip: [u8; 16] = bytes.get(8..24)?.try_into().ok()?;
            let scope = u32::from_ne_bytes(bytes.get(24..28)?.try_into().ok()?);
            Some(SocketAddr::V6(SocketAddrV6::new(
                Ipv6Addr::from(ip),
                port,
                flowinfo,
                scope,
            )))
        }
        _ => None,
    }
}

/// The wildcard address of the other address's family, with port 0.
pub fn wildcard_like(addr: IpAddr) -> SocketAddr {
    match addr {
        IpAddr::V4(_) => SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0),
        IpAddr::V6(_) => SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), 0),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn round_trip(ip: IpAddr, port: u16, scope: u32) {
            let addr = match ip {
                IpAddr::V4(ip) => SocketAddr::V4(SocketAddrV4::new(ip, port)),
                IpAddr::V6(ip) => SocketAddr::V6(SocketAddrV6::new(ip, port, 0, scope)),
            };
            let raw = RawAddr::new(&addr);
            prop_assert_eq!(decode(&raw.bytes[..raw.len as usize]), Some(addr));
        }

        #[test]
        fn any_bytes_are_refused_or_read_without_panic(bytes: Vec<u8>) {
            let _ = decode(&bytes);
        }
    }

    #[test]
    fn layout_is_the_kernels() {
        // AF_INET, port 53, 10.96.0.10 as `struct sockaddr_in` has it on this machine.
        let raw = RawAddr::new(&"10.96.0.10:53".parse().unwrap());
        assert_eq!(raw.bytes[..8], [2, 0, 0, 53, 10, 96, 0, 10]);
        assert_eq!(raw.len(), 16);
    }
}
