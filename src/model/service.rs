//! Services, trimmed to the fields that decide how their traffic is carried.

use super::{IpFamily, ObjectName, Protocol};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

/// `spec.type`. Each of the first three includes the ones before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ServiceType {
    /// `ClusterIP`, the default.
    #[default]
    ClusterIp,
    /// `NodePort`.
    NodePort,
    /// `LoadBalancer`.
    LoadBalancer,
    /// `ExternalName`: never proxied, even if a clusterIP is left over.
    ExternalName,
}

/// `spec.internalTrafficPolicy` / `spec.externalTrafficPolicy`. Nil means `Cluster`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TrafficPolicy {
    /// Any endpoint.
    #[default]
    Cluster,
    /// Endpoints of the own node only.
    Local,
}

/// `spec.sessionAffinity` with its timeout.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SessionAffinity {
    /// No affinity.
    #[default]
    None,
    /// `ClientIP`: new flows of one client address stay with one endpoint until none came for `timeout_seconds`
    /// (1–86 400, Kubernetes default 10 800).
    ClientIp {
        /// `sessionAffinityConfig.clientIP.timeoutSeconds`.
        timeout_seconds: u32,
    },
}

/// `spec.ports[].appProtocol`, an opaque hint.
pub type AppProtocol = Arc<str>;

/// One entry of `spec.ports`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServicePortSpec {
    /// `name`, empty for a single unnamed port; joins with the slices' port names.
    pub name: Arc<str>,
    /// `protocol`.
    pub protocol: Protocol,
    /// `port`, the VIP's port.
    pub port: u16,
    /// `nodePort`, 0 for none.
    pub node_port: u16,
    /// `appProtocol`.
    pub app_protocol: Option<AppProtocol>,
}

/// A Service, trimmed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Service {
    /// Namespace and name.
    pub name: ObjectName,
    /// `metadata.uid`, empty where the source has none. A new uid means a new object.
    pub uid: Arc<str>,
    /// `spec.type`.
    pub service_type: ServiceType,
    /// ClusterIPs by family, taken by index in `ipFamilies` (from the address itself where `ipFamilies` is empty).
    /// Empty for headless Services and for those that have no address yet.
    pub cluster_ips: Vec<(IpFamily, IpAddr)>,
    /// `spec.ports`.
    pub ports: Vec<ServicePortSpec>,
    /// `spec.sessionAffinity`.
    pub session_affinity: SessionAffinity,
    /// `spec.internalTrafficPolicy`.
    pub internal_traffic_policy: TrafficPolicy,
    /// `spec.externalTrafficPolicy`.
    pub external_traffic_policy: TrafficPolicy,
    /// `spec.externalIPs`.
    pub external_ips: Vec<IpAddr>,
    /// `status.loadBalancer.ingress[].ip` with ipMode nil or `VIP`.
    pub load_balancer_ips: Vec<IpAddr>,
    /// `spec.trafficDistribution` as written; interpretation belongs to topology.
    pub traffic_distribution: Option<Arc<str>>,
    /// `metadata.labels`.
    pub labels: BTreeMap<Arc<str>, Arc<str>>,
    /// `metadata.annotations`, only those under `nodeward.io/` and `service.kubernetes.io/` and the aliases topology
    /// knows; the rest never reaches memory.
    pub annotations: BTreeMap<Arc<str>, Arc<str>>,
}

impl Service {
    /// Whether a proxy carries this Service at all: not ExternalName, and with a ClusterIP.
    pub fn is_proxied(&self) -> bool {
        self.service_type != ServiceType::ExternalName && !self.cluster_ips.is_empty()
    }

    /// The ClusterIP of one family.
    pub fn cluster_ip(&self, family: IpFamily) -> Option<IpAddr> {
        self.cluster_ips.iter().find(|(f, _)| *f == family).map(|(_, ip)| *ip)
    }
}
