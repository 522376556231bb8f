//! EndpointSlices and endpoints (`discovery.k8s.io/v1`), trimmed.

use super::{IpFamily, NodeName, ObjectName, Protocol};
use std::net::IpAddr;
use std::sync::Arc;

/// `addressType`. FQDN slices are dropped by the sources and have no variant.
pub type AddressType = IpFamily;

/// An endpoint's three conditions, with the API's nil defaults already applied
/// (ready and serving nil → true, terminating nil → false).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Conditions {
    /// `ready`.
    pub ready: bool,
    /// `serving`.
    pub serving: bool,
    /// `terminating`.
    pub terminating: bool,
}

impl Conditions {
    /// Ready, serving, not terminating: what absent conditions mean.
    pub const DEFAULT: Self = Self {
        ready: true,
        serving: true,
        terminating: false,
    };

    /// Serving while terminating: the last resort of KEP-1669.
    pub fn is_serving_terminating(self) -> bool {
        self.serving && self.terminating
    }
}

/// `hints` of an endpoint. Interned: endpoints of one node share one value.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Hints {
    /// `forNodes[].name`.
    pub for_nodes: Vec<NodeName>,
    /// `forZones[].name`.
    pub for_zones: Vec<Arc<str>>,
}

/// One endpoint of a slice: an address (`addresses[0]`) and what is known about it. Ports belong to the slice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// `addresses[0]`.
    pub address: IpAddr,
    /// `conditions`.
    pub conditions: Conditions,
    /// `nodeName`.
    pub node: Option<NodeName>,
    /// `zone`, `None` where missing or empty.
    pub zone: Option<Arc<str>>,
    /// `hints`, `None` where there are none.
    pub hints: Option<Arc<Hints>>,
    /// `targetRef.uid` as a number (UUIDs are 128 bits), 0 where there is none or it is no UUID.
    pub target_uid: u128,
}

/// One entry of a slice's `ports`. Entries with nil name, nil or zero port are dropped by the sources.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlicePort {
    /// `name`, may be empty.
    pub name: Arc<str>,
    /// `protocol`.
    pub protocol: Protocol,
    /// `port`, the endpoints' own port number.
    pub port: u16,
}

/// An EndpointSlice of one Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointSlice {
    /// The slice's own namespace and name.
    pub name: ObjectName,
    /// The Service it belongs to: its namespace and the label `kubernetes.io/service-name`.
    pub service: ObjectName,
    /// `addressType`.
    pub family: AddressType,
    /// `ports`.
    pub ports: Vec<SlicePort>,
    /// `endpoints`.
    pub endpoints: Vec<Endpoint>,
    /// Annotation `endpoints.kubernetes.io/last-change-trigger-time`, microseconds since the epoch; 0 for none.
    pub trigger_time_us: i64,
}
