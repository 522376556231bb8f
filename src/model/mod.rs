//! Services, endpoints and nodes as plain immutable data, trimmed to what a node proxy needs.
//!
//! Nothing here does I/O, ranks, or knows this node. Sources build these values; everything downstream reads them.
//! Strings that repeat by the thousand (node names, zones, port names) are interned `Arc<str>`s, see [`Interner`].

mod intern;
mod node;
mod service;
mod slice;

pub use intern::Interner;
pub use node::{Node, NodeName, ZONE_LABEL};
pub use service::{AppProtocol, Service, ServicePortSpec, ServiceType, SessionAffinity, TrafficPolicy};
pub use slice::{AddressType, Conditions, Endpoint, EndpointSlice, Hints, SlicePort};

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

/// A namespaced object's name, printed `namespace/name`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectName {
    /// `metadata.namespace`.
    pub namespace: Arc<str>,
    /// `metadata.name`.
    pub name: Arc<str>,
}

impl ObjectName {
    /// Builds a name from its two parts.
    pub fn new(namespace: &str, name: &str) -> Self {
        Self {
            namespace: namespace.into(),
            name: name.into(),
        }
    }
}

impl fmt::Display for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// Transport protocol of a service port. The Kubernetes default is TCP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Protocol {
    /// TCP.
    #[default]
    Tcp,
    /// UDP.
    Udp,
    /// SCTP: listed, never carried by the dataplane.
    Sctp,
}

impl Protocol {
    /// The Kubernetes spelling: `TCP`, `UDP`, `SCTP`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
            Self::Sctp => "SCTP",
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// IP family of a VIP or endpoint. Families never mix: an IPv4 VIP is served by IPv4 endpoints only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum IpFamily {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl IpFamily {
    /// The family of an address.
    pub fn of(addr: IpAddr) -> Self {
        match addr {
            IpAddr::V4(_) => Self::V4,
            IpAddr::V6(_) => Self::V6,
        }
    }

    /// The Kubernetes spelling: `IPv4`, `IPv6`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        }
    }
}

impl fmt::Display for IpFamily {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Identity of a service port: the unit of ranking and of counters. Printed `namespace/name:port/PROTOCOL`; the port
/// part is the port's name, or its number where the name is empty.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ServicePortKey {
    /// The Service.
    pub service: ObjectName,
    /// `spec.ports[].name`; empty for a single unnamed port.
    pub port_name: Arc<str>,
    /// `spec.ports[].port`.
    pub port: u16,
    /// `spec.ports[].protocol`.
    pub protocol: Protocol,
}

impl fmt::Display for ServicePortKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.port_name.is_empty() {
            write!(f, "{}:{}/{}", self.service, self.port, self.protocol)
        } else {
            write!(f, "{}:{}/{}", self.service, self.port_name, self.protocol)
        }
    }
}

/// One change of the cluster state, as a source reports it. A source never reports half an object: a bad one is
/// rejected whole before it becomes a change. Objects are shared: the source that keeps a last good copy and the store
/// hold the same one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A Service was added or replaced.
    Service(Arc<Service>),
    /// A Service was deleted.
    ServiceDeleted(ObjectName),
    /// A slice was added or replaced.
    Slice(Arc<EndpointSlice>),
    /// A slice was deleted (the slice's own name, not the Service's).
    SliceDeleted(ObjectName),
    /// A Node was added or replaced.
    Node(Arc<Node>),
    /// A Node was deleted.
    NodeDeleted(NodeName),
}
