//! The node view: what this node should do, a pure function of cluster state and node name.
//!
//! Computed Service by Service, so that one changed slice costs the work of one Service. Never looks at health or time.

use crate::model::{IpFamily, ServicePortKey, SessionAffinity};
use crate::topology::{Decision, Interpretation, Policy, PortEndpoint, Profile, SourceAddress};
use std::net::SocketAddr;

/// Where a setting came from, in order of precedence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SettingOrigin {
    /// The configuration file.
    Configuration,
    /// An annotation on the Service.
    Annotation,
    /// A field of the Service (`trafficDistribution`, `internalTrafficPolicy`).
    Field,
    /// The built-in or configured default, or (for profiles) a guess from port name and number.
    Default,
}

/// How one service port is ranked and carried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The policy and where it came from.
    pub policy: (Policy, SettingOrigin),
    /// The interpretation and where it came from.
    pub interpretation: (Interpretation, SettingOrigin),
    /// The profile and where it came from.
    pub profile: (Profile, SettingOrigin),
    /// The source address setting and where it came from.
    pub source_address: (SourceAddress, SettingOrigin),
    /// What people should know: ignored or deprecated values, in words.
    pub notices: Vec<String>,
}

/// One (service port, family) as this node should treat it.
#[derive(Clone, Debug)]
pub struct ServicePortView {
    /// The service port.
    pub key: ServicePortKey,
    /// The family.
    pub family: IpFamily,
    /// ClusterIP and port.
    pub vip: SocketAddr,
    /// How it is treated.
    pub settings: Settings,
    /// Session affinity.
    pub affinity: SessionAffinity,
    /// Its endpoints, sorted by address.
    pub endpoints: Vec<PortEndpoint>,
    /// The ranking, indices as in `endpoints`.
    pub decision: Decision,
}
