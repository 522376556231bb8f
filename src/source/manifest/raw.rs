//! The fields we read of each kind, borrowed from the input where its text allows. Unknown fields are skipped without
//! being stored.

use crate::model::{IpFamily, Protocol};
use serde::Deserialize;
use serde::de::{self, Deserializer, IgnoredAny, MapAccess, SeqAccess, Unexpected, Visitor};
use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;
use std::net::IpAddr;

/// A string that borrows from the input where it holds no escapes. (`Option<Cow<str>>` would always be owned.)
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Str<'a>(Cow<'a, str>);

impl<'a> Str<'a> {
    pub(super) fn borrowed(s: &'a str) -> Self {
        Self(Cow::Borrowed(s))
    }

    pub(super) fn owned(s: &str) -> Self {
        Self(Cow::Owned(s.to_owned()))
    }
}

impl AsRef<str> for Str<'_> {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Str<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct StrVisitor;
        impl<'de> Visitor<'de> for StrVisitor {
            type Value = Str<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }

            fn visit_str<E>(self, v: &str) -> Result<Str<'de>, E> {
                Ok(Str::owned(v))
            }

            fn visit_borrowed_str<E>(self, v: &'de str) -> Result<Str<'de>, E> {
                Ok(Str::borrowed(v))
            }

            fn visit_string<E>(self, v: String) -> Result<Str<'de>, E> {
                Ok(Str(Cow::Owned(v)))
            }
        }
        deserializer.deserialize_str(StrVisitor)
    }
}

/// Which keys of a string map are kept.
pub(super) trait Wanted {
    fn wanted(key: &str) -> bool;
}

/// All labels (Services, Nodes).
pub(super) struct All;

impl Wanted for All {
    fn wanted(_: &str) -> bool {
        true
    }
}

/// No entries.
pub(super) struct Nothing;

impl Wanted for Nothing {
    fn wanted(_: &str) -> bool {
        false
    }
}

/// A slice's label that names its Service.
pub(super) const SERVICE_NAME_LABEL: &str = "kubernetes.io/service-name";

/// When the change that led to this state of the slice happened, RFC 3339.
pub(super) const TRIGGER_TIME_ANNOTATION: &str = "endpoints.kubernetes.io/last-change-trigger-time";

/// The one label of a slice that we read.
pub(super) struct SliceLabels;

impl Wanted for SliceLabels {
    fn wanted(key: &str) -> bool {
        key == SERVICE_NAME_LABEL
    }
}

/// The one annotation of a slice that we read.
pub(super) struct SliceAnnotations;

impl Wanted for SliceAnnotations {
    fn wanted(key: &str) -> bool {
        key == TRIGGER_TIME_ANNOTATION
    }
}

/// Annotations of a Service that topology may read; the rest (such as the last applied manifest) never reaches memory.
pub(super) struct ServiceAnnotations;

impl Wanted for ServiceAnnotations {
    fn wanted(key: &str) -> bool {
        [
            "nodeward.io/",
            "service.kubernetes.io/",
            "traffic-policy.network.alpha.openshift.io/",
        ]
        .iter()
        .any(|prefix| key.starts_with(prefix))
    }
}

/// A map of strings in the order of the input, filtered while it is read.
pub(super) struct Pairs<'a, W>(pub Vec<(Str<'a>, Str<'a>)>, PhantomData<W>);

impl<W> Default for Pairs<'_, W> {
    fn default() -> Self {
        Self(Vec::new(), PhantomData)
    }
}

impl<W> Pairs<'_, W> {
    pub(super) fn get(&self, key: &str) -> Option<&str> {
        self.0.iter().find(|(k, _)| k.as_ref() == key).map(|(_, v)| v.as_ref())
    }
}

impl<'de: 'a, 'a, W: Wanted> Deserialize<'de> for Pairs<'a, W> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct PairsVisitor<W>(PhantomData<W>);
        impl<'de, W: Wanted> Visitor<'de> for PairsVisitor<W> {
            type Value = Pairs<'de, W>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map of strings")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut pairs = Vec::new();
                while let Some(key) = map.next_key::<Str<'de>>()? {
                    if W::wanted(key.as_ref()) {
                        pairs.push((key, map.next_value::<Option<Str<'de>>>()?.unwrap_or_default()));
                    } else {
                        map.next_value::<IgnoredAny>()?;
                    }
                }
                Ok(Pairs(pairs, PhantomData))
            }
        }
        deserializer.deserialize_map(PairsVisitor(PhantomData))
    }
}

/// `metadata`.
#[derive(Deserialize)]
#[serde(bound(deserialize = "L: Wanted, A: Wanted"))]
pub(super) struct Metadata<'a, L, A> {
    #[serde(borrow)]
    pub name: Option<Str<'a>>,
    #[serde(borrow)]
    pub namespace: Option<Str<'a>>,
    #[serde(borrow)]
    pub uid: Option<Str<'a>>,
    #[serde(borrow)]
    pub labels: Option<Pairs<'a, L>>,
    #[serde(borrow)]
    pub annotations: Option<Pairs<'a, A>>,
}

/// A port number; `MIN` is 1 where 0 has no meaning.
#[derive(Clone, Copy)]
pub(super) struct Port<const MIN: u16>(pub u16);

impl<'de, const MIN: u16> Deserialize<'de> for Port<MIN> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct PortVisitor<const MIN: u16>;
        impl<const MIN: u16> Visitor<'_> for PortVisitor<MIN> {
            type Value = Port<MIN>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a port number from {MIN} to 65535")
            }

            fn visit_u64<E: de::Error>(self, v: u64) -> Result<Port<MIN>, E> {
                match u16::try_from(v) {
                    Ok(port) if port >= MIN => Ok(Port(port)),
                    _ => Err(E::invalid_value(Unexpected::Unsigned(v), &self)),
                }
            }

            fn visit_i64<E: de::Error>(self, v: i64) -> Result<Port<MIN>, E> {
                match u64::try_from(v) {
                    Ok(v) => self.visit_u64(v),
                    Err(_) => Err(E::invalid_value(Unexpected::Signed(v), &self)),
                }
            }
        }
        deserializer.deserialize_any(PortVisitor::<MIN>)
    }
}

/// A word out of a closed list.
macro_rules! word {
    ($name:ident($value:ty), $expected:literal, $($text:literal => $result:expr),+ $(,)?) => {
        #[derive(Clone, Copy)]
        pub(super) struct $name(pub $value);

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct WordVisitor;
                impl Visitor<'_> for WordVisitor {
                    type Value = $name;

                    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                        f.write_str($expected)
                    }

                    fn visit_str<E: de::Error>(self, v: &str) -> Result<$name, E> {
                        match v {
                            $($text => Ok($name($result)),)+
                            _ => Err(E::invalid_value(Unexpected::Str(v), &self)),
                        }
                    }
                }
                deserializer.deserialize_str(WordVisitor)
            }
        }
    };
}

word!(ProtocolWord(Protocol), "TCP, UDP or SCTP",
    "TCP" => Protocol::Tcp, "UDP" => Protocol::Udp, "SCTP" => Protocol::Sctp, "" => Protocol::Tcp);

word!(FamilyWord(IpFamily), "IPv4 or IPv6", "IPv4" => IpFamily::V4, "IPv6" => IpFamily::V6);

/// `addressType`: a family, or FQDN (`None`).
#[derive(Clone, Copy)]
pub(super) struct Fqdn;

word!(AddressTypeWord(Result<IpFamily, Fqdn>), "IPv4, IPv6 or FQDN",
    "IPv4" => Ok(IpFamily::V4), "IPv6" => Ok(IpFamily::V6), "FQDN" => Err(Fqdn));

word!(ServiceTypeWord(crate::model::ServiceType), "ClusterIP, NodePort, LoadBalancer or ExternalName",
    "ClusterIP" => crate::model::ServiceType::ClusterIp,
    "" => crate::model::ServiceType::ClusterIp,
    "NodePort" => crate::model::ServiceType::NodePort,
    "LoadBalancer" => crate::model::ServiceType::LoadBalancer,
    "ExternalName" => crate::model::ServiceType::ExternalName);

word!(AffinityWord(bool), "None or ClientIP", "None" => false, "" => false, "ClientIP" => true);

/// An address as the model keeps it: canonical (an IPv4-mapped IPv6 address is the IPv4 address it stands for).
pub(super) fn parse_ip(text: &str) -> Result<IpAddr, &'static str> {
    let ip: IpAddr = text.parse().map_err(|_| "an IP address such as 10.0.0.1 or fd00::1")?;
    if ip.is_unspecified() {
        return Err("an IP address that a host can have");
    }
    Ok(ip.to_canonical())
}

/// An IP address; `None` for `""` and `"None"`.
#[derive(Clone, Copy)]
pub(super) struct Ip(pub Option<IpAddr>);

impl<'de> Deserialize<'de> for Ip {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct IpVisitor;
        impl Visitor<'_> for IpVisitor {
            type Value = Ip;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an IP address, \"None\" or \"\"")
            }

            fn visit_str<E: de::Error>(self, v: &str) -> Result<Ip, E> {
                if v.is_empty() || v == "None" {
                    return Ok(Ip(None));
                }
                let ip = parse_ip(v).map_err(|expected| E::invalid_value(Unexpected::Str(v), &expected))?;
                Ok(Ip(Some(ip)))
            }
        }
        deserializer.deserialize_str(IpVisitor)
    }
}

/// `v1` Service.
#[derive(Deserialize)]
pub(super) struct RawService<'a> {
    #[serde(borrow)]
    pub metadata: Option<Metadata<'a, All, ServiceAnnotations>>,
    #[serde(borrow)]
    pub spec: Option<RawServiceSpec<'a>>,
    pub status: Option<RawServiceStatus>,
}

/// `spec` of a Service.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct RawServiceSpec<'a> {
    #[serde(rename = "type")]
    pub service_type: Option<ServiceTypeWord>,
    #[serde(rename = "clusterIP")]
    pub cluster_ip: Option<Ip>,
    #[serde(rename = "clusterIPs")]
    pub cluster_ips: Option<Vec<Ip>>,
    pub ip_families: Option<Vec<FamilyWord>>,
    #[serde(borrow)]
    pub ports: Option<Vec<RawServicePort<'a>>>,
    pub session_affinity: Option<AffinityWord>,
    pub session_affinity_config: Option<RawAffinityConfig>,
    #[serde(borrow)]
    pub internal_traffic_policy: Option<Str<'a>>,
    #[serde(borrow)]
    pub external_traffic_policy: Option<Str<'a>>,
    #[serde(rename = "externalIPs")]
    pub external_ips: Option<Vec<Ip>>,
    #[serde(borrow)]
    pub traffic_distribution: Option<Str<'a>>,
}

/// One of a Service's `ports`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct RawServicePort<'a> {
    #[serde(borrow)]
    pub name: Option<Str<'a>>,
    pub protocol: Option<ProtocolWord>,
    pub port: Port<1>,
    pub node_port: Option<Port<0>>,
    #[serde(borrow)]
    pub app_protocol: Option<Str<'a>>,
}

/// `sessionAffinityConfig`.
#[derive(Deserialize)]
pub(super) struct RawAffinityConfig {
    #[serde(rename = "clientIP")]
    pub client_ip: Option<RawClientIp>,
}

/// `sessionAffinityConfig.clientIP`.
#[derive(Deserialize)]
pub(super) struct RawClientIp {
    #[serde(rename = "timeoutSeconds")]
    pub timeout_seconds: Option<u32>,
}

/// `status` of a Service.
#[derive(Deserialize)]
pub(super) struct RawServiceStatus {
    #[serde(rename = "loadBalancer")]
    pub load_balancer: Option<RawLoadBalancer>,
}

/// `status.loadBalancer`.
#[derive(Deserialize)]
pub(super) struct RawLoadBalancer {
    pub ingress: Option<Vec<RawIngress>>,
}

/// `status.loadBalancer.ingress[]`.
#[derive(Deserialize)]
pub(super) struct RawIngress {
    pub ip: Option<Ip>,
    #[serde(rename = "ipMode")]
    pub ip_mode: Option<String>,
}

/// `discovery.k8s.io/v1` EndpointSlice.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct RawSlice<'a> {
    #[serde(borrow)]
    pub metadata: Option<Metadata<'a, SliceLabels, SliceAnnotations>>,
    pub address_type: Option<AddressTypeWord>,
    #[serde(borrow)]
    pub ports: Option<Vec<RawSlicePort<'a>>>,
    #[serde(borrow)]
    pub endpoints: Option<Vec<RawEndpoint<'a>>>,
}

/// One of a slice's `ports`.
#[derive(Deserialize)]
pub(super) struct RawSlicePort<'a> {
    #[serde(borrow)]
    pub name: Option<Str<'a>>,
    pub protocol: Option<ProtocolWord>,
    pub port: Option<Port<0>>,
}

/// One of a slice's `endpoints`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct RawEndpoint<'a> {
    #[serde(borrow)]
    pub addresses: Option<FirstAddress<'a>>,
    pub conditions: Option<RawConditions>,
    #[serde(borrow)]
    pub node_name: Option<Str<'a>>,
    #[serde(borrow)]
    pub zone: Option<Str<'a>>,
    #[serde(borrow)]
    pub hints: Option<RawHints<'a>>,
    #[serde(borrow)]
    pub target_ref: Option<RawTargetRef<'a>>,
}

/// `addresses[0]`, where there is one; the others have no meaning.
pub(super) struct FirstAddress<'a>(pub Option<Str<'a>>);

impl<'de: 'a, 'a> Deserialize<'de> for FirstAddress<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct AddressVisitor;
        impl<'de> Visitor<'de> for AddressVisitor {
            type Value = FirstAddress<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of addresses")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<FirstAddress<'de>, A::Error> {
                let first = seq.next_element()?;
                while seq.next_element::<IgnoredAny>()?.is_some() {}
                Ok(FirstAddress(first))
            }
        }
        deserializer.deserialize_seq(AddressVisitor)
    }
}

/// `conditions` of an endpoint.
#[derive(Default, Deserialize)]
pub(super) struct RawConditions {
    pub ready: Option<bool>,
    pub serving: Option<bool>,
    pub terminating: Option<bool>,
}

/// `hints` of an endpoint.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct RawHints<'a> {
    #[serde(borrow)]
    pub for_zones: Option<Vec<RawName<'a>>>,
    #[serde(borrow)]
    pub for_nodes: Option<Vec<RawName<'a>>>,
}

/// `{name: …}`.
#[derive(Deserialize)]
pub(super) struct RawName<'a> {
    #[serde(borrow)]
    pub name: Str<'a>,
}

impl AsRef<str> for RawName<'_> {
    fn as_ref(&self) -> &str {
        self.name.as_ref()
    }
}

/// `targetRef` of an endpoint.
#[derive(Deserialize)]
pub(super) struct RawTargetRef<'a> {
    #[serde(borrow)]
    pub uid: Option<Str<'a>>,
}

/// `v1` Node.
#[derive(Deserialize)]
pub(super) struct RawNode<'a> {
    #[serde(borrow)]
    pub metadata: Option<Metadata<'a, All, Nothing>>,
}
