//! Raw objects → model objects: defaults, joins between fields, and what is ignored.

use super::raw::*;
use super::{Ignored, Object};
use crate::model::*;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

/// Kubernetes' `sessionAffinityConfig.clientIP.timeoutSeconds` where none is given.
const DEFAULT_AFFINITY_SECONDS: u32 = 10_800;

/// The API's upper bound for it, a day.
const MAX_AFFINITY_SECONDS: u32 = 86_400;

/// What is wrong with an object, seen from the object itself.
#[derive(Debug)]
pub(super) struct Invalid {
    /// Kind and name, once the name is known.
    pub object: Option<String>,
    pub path: String,
    pub message: String,
}

fn invalid(object: &Option<String>, path: impl Into<String>, message: impl Into<String>) -> Invalid {
    Invalid {
        object: object.clone(),
        path: path.into(),
        message: message.into(),
    }
}

/// Turns raw objects into model objects and keeps what was ignored on the way.
pub(super) struct Converter<'i> {
    pub interner: &'i mut Interner,
    pub ignored: &'i mut Ignored,
}

impl Converter<'_> {
    /// Namespace and name of a namespaced object.
    fn name<L, A>(&mut self, kind: &str, metadata: &Option<Metadata<'_, L, A>>) -> Result<ObjectName, Invalid> {
        let name = metadata
            .as_ref()
            .and_then(|m| m.name.as_ref())
            .map_or("", AsRef::as_ref);
        if name.is_empty() {
            return Err(invalid(
                &Some(kind.to_owned()),
                "metadata.name",
                "missing: every object needs a name",
            ));
        }
        let namespace = metadata
            .as_ref()
            .and_then(|m| m.namespace.as_ref())
            .map_or("", AsRef::as_ref);
        Ok(ObjectName {
            namespace: self
                .interner
                .get(if namespace.is_empty() { "default" } else { namespace }),
            name: self.interner.get(name),
        })
    }

    fn map<W>(&mut self, pairs: &Option<Pairs<'_, W>>) -> BTreeMap<Arc<str>, Arc<str>> {
        let pairs = pairs.iter().flat_map(|p| &p.0);
        pairs
            .map(|(k, v)| (self.interner.get(k.as_ref()), self.interner.get(v.as_ref())))
            .collect()
    }

    /// A traffic policy; words the API does not know mean the default, as for kube-proxy.
    fn traffic_policy(&mut self, word: &Option<Str<'_>>) -> TrafficPolicy {
        match word.as_ref().map_or("", AsRef::as_ref) {
            "Local" => TrafficPolicy::Local,
            "" | "Cluster" => TrafficPolicy::Cluster,
            _ => {
                self.ignored.unknown_traffic_policies += 1;
                TrafficPolicy::Cluster
            }
        }
    }

    pub(super) fn node(&mut self, raw: &RawNode<'_>) -> Result<Object, Invalid> {
        let ObjectName { name, .. } = self.name("Node", &raw.metadata)?;
        let labels = raw.metadata.as_ref().map(|m| self.map(&m.labels)).unwrap_or_default();
        Ok(Object::Node(Arc::new(Node { name, labels })))
    }

    pub(super) fn service(&mut self, raw: &RawService<'_>) -> Result<Object, Invalid> {
        let name = self.name("Service", &raw.metadata)?;
        let object = Some(format!("Service {name}"));
        let empty = RawServiceSpec::default();
        let spec = raw.spec.as_ref().unwrap_or(&empty);

        let mut ports = Vec::with_capacity(spec.ports.as_ref().map_or(0, Vec::len));
        for (i, port) in spec.ports.iter().flatten().enumerate() {
            let protocol = port.protocol.map_or(Protocol::Tcp, |p| p.0);
            if ports
                .iter()
                .any(|p: &ServicePortSpec| (p.port, p.protocol) == (port.port.0, protocol))
            {
                let message = format!(
                    "{}/{protocol} is listed twice: a port and protocol may appear once",
                    port.port.0
                );
                return Err(invalid(&object, format!("spec.ports[{i}]"), message));
            }
            ports.push(ServicePortSpec {
                name: self.interner.get(port.name.as_ref().map_or("", AsRef::as_ref)),
                protocol,
                port: port.port.0,
                node_port: port.node_port.map_or(0, |p| p.0),
                app_protocol: port.app_protocol.as_ref().map(|a| self.interner.get(a.as_ref())),
            });
        }

        let session_affinity = match spec.session_affinity {
            Some(AffinityWord(true)) => {
                let config = spec.session_affinity_config.as_ref().and_then(|c| c.client_ip.as_ref());
                let timeout_seconds = config
                    .and_then(|c| c.timeout_seconds)
                    .unwrap_or(DEFAULT_AFFINITY_SECONDS);
                if !(1..=MAX_AFFINITY_SECONDS).contains(&timeout_seconds) {
                    let path = "spec.sessionAffinityConfig.clientIP.timeoutSeconds";
                    let message = format!("expected 1 to {MAX_AFFINITY_SECONDS} seconds, found {timeout_seconds}");
                    return Err(invalid(&object, path, message));
                }
                SessionAffinity::ClientIp { timeout_seconds }
            }
            _ => SessionAffinity::None,
        };

        let ingress = raw
            .status
            .iter()
            .flat_map(|s| &s.load_balancer)
            .flat_map(|l| &l.ingress)
            .flatten();
        let load_balancer_ips = ingress
            .filter(|i| matches!(i.ip_mode.as_deref(), None | Some("VIP")))
            .filter_map(|i| i.ip.and_then(|ip| ip.0))
            .collect();
        let metadata = raw.metadata.as_ref();
        Ok(Object::Service(Arc::new(Service {
            uid: metadata.and_then(|m| m.uid.as_ref()).map_or("", AsRef::as_ref).into(),
            service_type: spec.service_type.map_or(ServiceType::default(), |t| t.0),
            cluster_ips: cluster_ips(spec, &object)?,
            ports,
            session_affinity,
            internal_traffic_policy: self.traffic_policy(&spec.internal_traffic_policy),
            external_traffic_policy: self.traffic_policy(&spec.external_traffic_policy),
            external_ips: spec.external_ips.iter().flatten().filter_map(|ip| ip.0).collect(),
            load_balancer_ips,
            traffic_distribution: spec
                .traffic_distribution
                .as_ref()
                .map(|t| self.interner.get(t.as_ref())),
            labels: metadata.map(|m| self.map(&m.labels)).unwrap_or_default(),
            annotations: metadata.map(|m| self.map(&m.annotations)).unwrap_or_default(),
            name,
        })))
    }

    /// `None` for slices without meaning for a node proxy (FQDN, no Service); these are counted.
    pub(super) fn slice(&mut self, raw: &RawSlice<'_>) -> Result<Option<Object>, Invalid> {
        let name = self.name("EndpointSlice", &raw.metadata)?;
        let object = Some(format!("EndpointSlice {name}"));
        let Some(address_type) = raw.address_type else {
            return Err(invalid(&object, "addressType", "missing: expected IPv4, IPv6 or FQDN"));
        };
        let Ok(family) = address_type.0 else {
            self.ignored.fqdn_slices += 1;
            return Ok(None);
        };
        let metadata = raw.metadata.as_ref();
        let service = metadata
            .and_then(|m| m.labels.as_ref())
            .and_then(|l| l.get(SERVICE_NAME_LABEL));
        let Some(service) = service.filter(|s| !s.is_empty()) else {
            self.ignored.slices_without_service += 1;
            return Ok(None);
        };
        let service = ObjectName {
            namespace: name.namespace.clone(),
            name: self.interner.get(service),
        };
        let trigger = metadata
            .and_then(|m| m.annotations.as_ref())
            .and_then(|a| a.get(TRIGGER_TIME_ANNOTATION));
        let trigger_time_us = trigger.map_or(Ok(0), parse_time_us).unwrap_or_else(|_| {
            self.ignored.bad_trigger_times += 1;
            0
        });

        let mut ports = Vec::with_capacity(raw.ports.as_ref().map_or(0, Vec::len));
        for port in raw.ports.iter().flatten() {
            let (Some(name), Some(Port(number @ 1..))) = (&port.name, port.port) else {
                self.ignored.slice_ports += 1;
                continue;
            };
            ports.push(SlicePort {
                name: self.interner.get(name.as_ref()),
                protocol: port.protocol.map_or(Protocol::Tcp, |p| p.0),
                port: number,
            });
        }

        let mut endpoints = Vec::with_capacity(raw.endpoints.as_ref().map_or(0, Vec::len));
        for (i, endpoint) in raw.endpoints.iter().flatten().enumerate() {
            let Some(text) = endpoint.addresses.as_ref().and_then(|a| a.0.as_ref()) else {
                self.ignored.endpoints_without_address += 1;
                continue;
            };
            let address = parse_ip(text.as_ref()).map_err(|expected| {
                let message = format!("invalid value: string {:?}, expected {expected}", text.as_ref());
                invalid(&object, format!("endpoints[{i}].addresses[0]"), message)
            })?;
            if IpFamily::of(address) != family {
                self.ignored.endpoints_of_other_family += 1;
                continue;
            }
            endpoints.push(self.endpoint(address, endpoint));
        }
        Ok(Some(Object::Slice(Arc::new(EndpointSlice {
            name,
            service,
            family,
            ports,
            endpoints,
            trigger_time_us,
        }))))
    }

    fn endpoint(&mut self, address: IpAddr, raw: &RawEndpoint<'_>) -> Endpoint {
        let none = RawConditions::default();
        let conditions = raw.conditions.as_ref().unwrap_or(&none);
        let mut text = |s: &Option<Str<'_>>| {
            let s = s.as_ref().filter(|s| !s.as_ref().is_empty())?;
            Some(self.interner.get(s.as_ref()))
        };
        let (node, zone) = (text(&raw.node_name), text(&raw.zone));
        let hints = raw.hints.as_ref().and_then(|h| {
            let nodes = h.for_nodes.as_deref().unwrap_or_default();
            self.interner.hints(nodes, h.for_zones.as_deref().unwrap_or_default())
        });
        Endpoint {
            address,
            conditions: Conditions {
                ready: conditions.ready.unwrap_or(Conditions::DEFAULT.ready),
                serving: conditions.serving.unwrap_or(Conditions::DEFAULT.serving),
                terminating: conditions.terminating.unwrap_or(Conditions::DEFAULT.terminating),
            },
            node,
            zone,
            hints,
            target_uid: raw
                .target_ref
                .as_ref()
                .and_then(|t| t.uid.as_ref())
                .map_or(0, |u| parse_uuid(u.as_ref())),
        }
    }
}

/// `clusterIPs` with their families by index; families beyond the end of `ipFamilies` come from the address.
fn cluster_ips(spec: &RawServiceSpec<'_>, object: &Option<String>) -> Result<Vec<(IpFamily, IpAddr)>, Invalid> {
    let single = spec.cluster_ip.as_slice();
    let (path, listed) = match spec.cluster_ips.as_deref() {
        Some(list) if !list.is_empty() => ("spec.clusterIPs", list),
        _ => ("spec.clusterIP", single),
    };
    let mut found: Vec<(IpFamily, IpAddr)> = Vec::with_capacity(listed.len());
    for (i, address) in listed.iter().enumerate().filter_map(|(i, ip)| Some((i, ip.0?))) {
        let family = IpFamily::of(address);
        let declared = spec.ip_families.as_ref().and_then(|f| f.get(i)).map_or(family, |f| f.0);
        if declared != family {
            let message = format!("{address} is {family}, but spec.ipFamilies[{i}] says {declared}");
            return Err(invalid(object, format!("{path}[{i}]"), message));
        }
        if found.iter().any(|(f, _)| *f == family) {
            let message = format!("a second {family} address: expected at most one of each family");
            return Err(invalid(object, format!("{path}[{i}]"), message));
        }
        found.push((family, address));
    }
    Ok(found)
}

/// RFC 3339 to microseconds since the epoch.
fn parse_time_us(text: &str) -> Result<i64, jiff::Error> {
    Ok(text.parse::<jiff::Timestamp>()?.as_microsecond())
}

/// A UUID as a number: 32 hexadecimal digits, hyphens anywhere (mirror pods have none). 0 for anything else.
fn parse_uuid(text: &str) -> u128 {
    let mut digits = 0;
    let mut value = 0u128;
    for c in text.bytes().filter(|c| *c != b'-') {
        let Some(digit) = char::from(c).to_digit(16) else {
            return 0;
        };
        digits += 1;
        value = value << 4 | u128::from(digit);
    }
    if digits == 32 { value } else { 0 }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn uuids_and_times() {
        assert_eq!(parse_uuid("00000000-0000-0000-0000-0000000000ff"), 255);
        assert_eq!(parse_uuid("000000000000000000000000000000ff"), 255);
        assert_eq!(parse_uuid("ff"), 0);
        assert_eq!(parse_uuid("zz000000-0000-0000-0000-0000000000ff"), 0);
        assert_eq!(parse_time_us("1970-01-01T00:00:01.5Z").unwrap(), 1_500_000);
        assert_eq!(parse_time_us("1970-01-01T01:00:01+01:00").unwrap(), 1_000_000);
        assert!(parse_time_us("yesterday").is_err());
    }
}
