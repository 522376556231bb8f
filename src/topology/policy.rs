//! The words of configuration that choose how a service port is ranked and carried.

use crate::model::{ObjectName, Protocol, ServicePortKey};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// Which rule orders and filters endpoints.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Policy {
    /// All ready endpoints alike.
    Cluster,
    /// This zone, then (configured wider levels, then) the cluster.
    #[serde(alias = "PreferClose")]
    PreferSameZone,
    /// This node, then each level, then the cluster.
    #[default]
    #[serde(alias = "PreferNode", alias = "PreferREALLYClose")]
    PreferSameNode,
    /// This node only; drop when it has none (`internalTrafficPolicy: Local`).
    #[serde(alias = "NodeLocalOnly")]
    Local,
    /// This node when it has a ready endpoint, else all alike.
    PreferLocal,
}

impl Policy {
    /// All policies.
    pub const ALL: &'static [Self] = &[
        Self::Cluster,
        Self::PreferSameZone,
        Self::PreferSameNode,
        Self::Local,
        Self::PreferLocal,
    ];

    /// The word of configuration, annotations and output.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Cluster => "Cluster",
            Self::PreferSameZone => "PreferSameZone",
            Self::PreferSameNode => "PreferSameNode",
            Self::Local => "Local",
            Self::PreferLocal => "PreferLocal",
        }
    }
}

impl Interpretation {
    /// All interpretations.
    pub const ALL: &'static [Self] = &[Self::Ranked, Self::Strict];

    /// The word of configuration, annotations and output.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ranked => "ranked",
            Self::Strict => "strict",
        }
    }
}

impl Profile {
    /// All profiles.
    pub const ALL: &'static [Self] = &[Self::Dns, Self::Oneway, Self::Stream, Self::Tcp];

    /// The word of configuration, annotations and output.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Dns => "dns",
            Self::Oneway => "oneway",
            Self::Stream => "stream",
            Self::Tcp => "tcp",
        }
    }

    /// Whether this is a profile of a protocol.
    pub fn fits(self, protocol: Protocol) -> bool {
        match self {
            Self::Dns | Self::Oneway | Self::Stream => protocol == Protocol::Udp,
            Self::Tcp => protocol == Protocol::Tcp,
        }
    }
}

impl SourceAddress {
    /// All settings.
    pub const ALL: &'static [Self] = &[Self::Auto, Self::Client, Self::Node];

    /// The word of configuration, annotations and output.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Client => "client",
            Self::Node => "node",
        }
    }
}

/// How the policy is read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Interpretation {
    /// By location, per endpoint, with health deciding the fall-back.
    #[default]
    Ranked,
    /// kube-proxy's hint algorithm, exactly.
    Strict,
}

/// What kind of traffic a service port carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Profile {
    /// DNS over UDP: state per query.
    Dns,
    /// One-way datagrams (statsd): state per client, no answers awaited.
    Oneway,
    /// Other UDP: state per client 4-tuple.
    Stream,
    /// TCP connections.
    Tcp,
}

/// Which source address an endpoint sees.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SourceAddress {
    /// The client's where that is safe, else the node's.
    #[default]
    Auto,
    /// The client's.
    Client,
    /// The node's.
    Node,
}

/// A level between node and cluster, defined by a node label.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Level {
    /// The rank's word, such as `rack`, `zone`, `region`.
    pub name: Arc<str>,
    /// The node label whose value must be equal.
    pub label: Arc<str>,
}

/// A Service or one of its ports, written `namespace/name` or `namespace/name:port`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ServiceRef {
    /// The Service.
    pub service: ObjectName,
    /// Port name or number; `None` for all its ports.
    pub port: Option<Arc<str>>,
}

impl ServiceRef {
    /// Whether this names the service port, by name, by number, or by naming all ports of its Service.
    pub fn matches(&self, key: &ServicePortKey) -> bool {
        self.service == key.service && self.port.as_deref().is_none_or(|p| port_matches(p, key))
    }
}

/// Whether `port` is the name or the number of a service port.
pub(crate) fn port_matches(port: &str, key: &ServicePortKey) -> bool {
    *port == *key.port_name || port.parse() == Ok(key.port)
}

/// A text that is no [`ServiceRef`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} names no Service: write namespace/name or namespace/name:port, where port is a name or a number")]
pub struct InvalidServiceRef(pub String);

impl FromStr for ServiceRef {
    type Err = InvalidServiceRef;

    fn from_str(s: &str) -> Result<Self, Self::Err> {
        let invalid = || InvalidServiceRef(s.to_owned());
        let (namespace, rest) = s.split_once('/').ok_or_else(invalid)?;
        let (name, port) = match rest.split_once(':') {
            Some((name, port)) => (name, Some(port)),
            None => (rest, None),
        };
        let is_word = |w: &str| !w.is_empty() && !w.contains(|c: char| c == '/' || c == ':' || c.is_whitespace());
        if ![Some(namespace), Some(name), port].into_iter().flatten().all(is_word) {
            return Err(invalid());
        }
        Ok(Self {
            service: ObjectName::new(namespace, name),
            port: port.map(Arc::from),
        })
    }
}

impl fmt::Display for ServiceRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.service)?;
        match &self.port {
            Some(port) => write!(f, ":{port}"),
            None => Ok(()),
        }
    }
}

/// Settings for one Service or service port; a missing field leaves the next source (annotation, the Service's fields,
/// the default) to decide.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceRule {
    /// Which Service.
    pub service: ServiceRef,
    /// See [`Policy`].
    pub policy: Option<Policy>,
    /// See [`Interpretation`].
    pub interpretation: Option<Interpretation>,
    /// See [`Profile`].
    pub profile: Option<Profile>,
    /// See [`SourceAddress`].
    pub source_address: Option<SourceAddress>,
}

/// Everything of the configuration file that ranking depends on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopologyConfig {
    /// Used where neither rule, annotation nor the Service's fields decide.
    pub default_policy: Policy,
    /// Used where neither rule nor annotation decides.
    pub default_interpretation: Interpretation,
    /// Used where neither rule nor annotation decides.
    pub default_source_address: SourceAddress,
    /// Levels between node and cluster, nearest first.
    pub levels: Arc<[Level]>,
    /// Per-Service rules; the most specific one wins (a port's before its Service's).
    pub rules: Vec<ServiceRule>,
}

impl TopologyConfig {
    /// The same with one Service's interpretation fixed, over rules and annotations: for questions such as "what would
    /// kube-proxy do?".
    pub fn with_interpretation(&self, service: &ObjectName, interpretation: Interpretation) -> Self {
        let mut config = self.clone();
        for rule in config.rules.iter_mut().filter(|r| r.service.service == *service) {
            rule.interpretation = None;
        }
        config.rules.push(ServiceRule {
            service: ServiceRef {
                service: service.clone(),
                port: None,
            },
            policy: None,
            interpretation: Some(interpretation),
            profile: None,
            source_address: None,
        });
        config
    }
}

impl Default for TopologyConfig {
    fn default() -> Self {
        Self {
            default_policy: Policy::default(),
            default_interpretation: Interpretation::default(),
            default_source_address: SourceAddress::default(),
            levels: [Level {
                name: "zone".into(),
                label: crate::model::ZONE_LABEL.into(),
            }]
            .into(),
            rules: Vec::new(),
        }
    }
}
