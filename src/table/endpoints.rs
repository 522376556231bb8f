//! The endpoints of an entry, as small as they get: six bytes for IPv4, because what a pick touches should fit the cache.

use std::net::{Ipv4Addr, SocketAddr};
use std::ops::Range;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct V4 {
    ip: [u8; 4],
    port: u16,
}

impl From<V4> for SocketAddr {
    fn from(e: V4) -> Self {
        Self::from((Ipv4Addr::from(e.ip), e.port))
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Packed {
    V4(Box<[V4]>),
    Other(Box<[SocketAddr]>),
}

/// Endpoints in the order they were given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoints(Packed);

impl From<Vec<SocketAddr>> for Endpoints {
    fn from(endpoints: Vec<SocketAddr>) -> Self {
        let packed: Option<Box<[V4]>> = endpoints
            .iter()
            .map(|e| match e {
                SocketAddr::V4(e) => Some(V4 {
                    ip: e.ip().octets(),
                    port: e.port(),
                }),
                SocketAddr::V6(_) => None,
            })
            .collect();
        Self(match packed {
            Some(packed) => Packed::V4(packed),
            None => Packed::Other(endpoints.into()),
        })
    }
}

impl Endpoints {
    /// How many.
    pub fn len(&self) -> usize {
        match &self.0 {
            Packed::V4(all) => all.len(),
            Packed::Other(all) => all.len(),
        }
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// One of them.
    pub fn get(&self, index: usize) -> Option<SocketAddr> {
        match &self.0 {
            Packed::V4(all) => all.get(index).copied().map(SocketAddr::from),
            Packed::Other(all) => all.get(index).copied(),
        }
    }

    /// A run of them; what lies beyond the end is left out.
    pub fn iter(&self, run: Range<usize>) -> impl Iterator<Item = SocketAddr> + '_ {
        run.map_while(|index| self.get(index))
    }

    /// Whether a run that is sorted by address holds an endpoint.
    pub fn sorted_run_contains(&self, run: Range<usize>, endpoint: &SocketAddr) -> bool {
        match (&self.0, endpoint) {
            (Packed::V4(all), SocketAddr::V4(e)) => {
                let wanted = V4 {
                    ip: e.ip().octets(),
                    port: e.port(),
                };
                all.get(run).is_some_and(|run| run.binary_search(&wanted).is_ok())
            }
            (Packed::V4(_), SocketAddr::V6(_)) => false,
            (Packed::Other(all), e) => all.get(run).is_some_and(|run| run.binary_search(e).is_ok()),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn behaves_like_the_plain_list(
            mut list in prop_oneof![
                proptest::collection::vec(any::<std::net::SocketAddrV4>().prop_map(SocketAddr::V4), 0..20),
                proptest::collection::vec(any::<std::net::SocketAddrV6>().prop_map(SocketAddr::V6), 0..20),
                proptest::collection::vec(any::<SocketAddr>(), 0..20),
            ],
            other: SocketAddr,
        ) {
            list.sort();
            let packed = Endpoints::from(list.clone());
            prop_assert_eq!(packed.len(), list.len());
            prop_assert_eq!(packed.iter(0..99).collect::<Vec<_>>(), list.clone());
            for (n, e) in list.iter().enumerate() {
                prop_assert_eq!(packed.get(n), Some(*e));
                prop_assert!(packed.sorted_run_contains(0..list.len(), e));
                prop_assert_eq!(packed.sorted_run_contains(0..n, e), list[..n].contains(e));
            }
            prop_assert_eq!(packed.get(list.len()), None);
            prop_assert_eq!(packed.sorted_run_contains(0..list.len(), &other), list.contains(&other));
        }
    }

    #[test]
    fn ipv4_takes_six_bytes() {
        assert_eq!(size_of::<V4>(), 6);
    }
}
