//! The node view: what this node should do, a pure function of cluster state and node name.
//!
//! Computed Service by Service, so that one changed slice costs the work of one Service. Never looks at health or time.

mod explain;
mod join;
pub mod settings;
mod summary;
pub mod text;

pub use explain::{
    ExplainedEndpoint, ExplainedTier, Explanation, ExternalExplanation, Setting, explain, explain_views,
};
pub use summary::{EndpointRow, ServiceRow, endpoint_rows, service_rows};

use crate::model::{EndpointSlice, IpFamily, Protocol, Service, ServicePortKey, SessionAffinity};
use crate::topology::strict::{ExternalVerdict, external_verdict};
use crate::topology::{
    Decision, Interpretation, NodeContext, Policy, PortEndpoint, Profile, RankInput, Ranked, Ranker, SourceAddress,
    Strict, TopologyConfig,
};
use std::net::SocketAddr;
use std::sync::Arc;

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

impl SettingOrigin {
    /// The word of output.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Configuration => "configuration",
            Self::Annotation => "annotation",
            Self::Field => "field",
            Self::Default => "default",
        }
    }
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
    /// What people should know: ignored or deprecated values, in words. Never fatal; their number is what to count.
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
    /// What kube-proxy does with traffic from outside the cluster, `None` where the port is not reachable from there.
    pub external: Option<ExternalVerdict>,
}

/// The views of one Service: one per port and family, by family in the order of the Service's ClusterIPs, then by port
/// in the Service's order. `slices` are those of the Service; others are ignored, and neither their order nor that of
/// their endpoints matters. Empty for Services that are never proxied (headless, `ExternalName`). SCTP ports have no
/// view: Nodeward does not carry them.
pub fn service_views(
    service: &Service,
    slices: &[Arc<EndpointSlice>],
    node: &NodeContext,
    config: &TopologyConfig,
) -> Vec<ServicePortView> {
    views(service, slices, node, config, &|interpretation| match interpretation {
        Interpretation::Ranked => &Ranked,
        Interpretation::Strict => &Strict { node_hints: true },
    })
}

/// As [`service_views`], ranked by `ranker` whatever the interpretation: how another ranking algorithm plugs in.
pub fn service_views_ranked_by(
    service: &Service,
    slices: &[Arc<EndpointSlice>],
    node: &NodeContext,
    config: &TopologyConfig,
    ranker: &dyn Ranker,
) -> Vec<ServicePortView> {
    views(service, slices, node, config, &|_| ranker)
}

fn views<'r>(
    service: &Service,
    slices: &[Arc<EndpointSlice>],
    node: &NodeContext,
    config: &TopologyConfig,
    ranker: &dyn Fn(Interpretation) -> &'r dyn Ranker,
) -> Vec<ServicePortView> {
    if !service.is_proxied() {
        return Vec::new();
    }
    let mut views = Vec::with_capacity(service.cluster_ips.len() * service.ports.len());
    for &(family, ip) in &service.cluster_ips {
        for spec in service.ports.iter().filter(|p| p.protocol != Protocol::Sctp) {
            let key = ServicePortKey {
                service: service.name.clone(),
                port_name: spec.name.clone(),
                port: spec.port,
                protocol: spec.protocol,
            };
            let settings = settings::settings(service, spec, &key, config);
            let endpoints = join::port_endpoints(service, spec, family, slices);
            let decision = ranker(settings.interpretation.0).rank(&RankInput {
                service,
                port: &key,
                endpoints: &endpoints,
                policy: settings.policy.0,
                node,
            });
            let external = external_verdict(&endpoints, service, spec, family, node, true);
            views.push(ServicePortView {
                vip: SocketAddr::new(ip, spec.port),
                key,
                family,
                settings,
                affinity: service.session_affinity,
                endpoints,
                decision,
                external,
            });
        }
    }
    views
}
