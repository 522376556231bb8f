//! A cluster state as a Kubernetes List, which the file source reads back into the same state. Holds what a node proxy
//! keeps of the objects, not more.

use crate::model::{Endpoint, EndpointSlice, IpFamily, Node, Service, ServiceType, SessionAffinity, TrafficPolicy};
use crate::store::{ServiceState, Store};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

/// All objects, sorted by kind and name.
pub(super) fn list(store: &Store) -> Value {
    let mut services: Vec<_> = store.services().collect();
    services.sort_unstable_by_key(|(name, _)| *name);
    let states = || services.iter().map(|(_, state)| *state);
    let mut items: Vec<Value> = store.nodes().values().map(|n| node(n)).collect();
    items.extend(states().filter_map(ServiceState::service).map(|s| service(s)));
    items.extend(states().flat_map(ServiceState::slices).map(|s| slice(s)));
    json!({"apiVersion": "v1", "kind": "List", "items": items})
}

fn node(node: &Node) -> Value {
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": node.name, "labels": strings(&node.labels)}})
}

fn service(s: &Service) -> Value {
    let ports = s.ports.iter().map(|p| {
        let mut port = json!({"protocol": p.protocol.as_str(), "port": p.port});
        put(&mut port, "name", (!p.name.is_empty()).then(|| json!(p.name)));
        put(&mut port, "nodePort", (p.node_port != 0).then(|| json!(p.node_port)));
        put(&mut port, "appProtocol", p.app_protocol.as_ref().map(|a| json!(a)));
        port
    });
    let mut spec = json!({
        "type": match s.service_type {
            ServiceType::ClusterIp => "ClusterIP",
            ServiceType::NodePort => "NodePort",
            ServiceType::LoadBalancer => "LoadBalancer",
            ServiceType::ExternalName => "ExternalName",
        },
        "ports": ports.collect::<Vec<_>>(),
        "internalTrafficPolicy": traffic_policy(s.internal_traffic_policy),
        "externalTrafficPolicy": traffic_policy(s.external_traffic_policy),
    });
    if let Some((_, first)) = s.cluster_ips.first() {
        let families: Vec<_> = s.cluster_ips.iter().map(|(family, _)| family.as_str()).collect();
        let ips: Vec<_> = s.cluster_ips.iter().map(|(_, ip)| ip).collect();
        put(&mut spec, "clusterIP", Some(json!(first)));
        put(&mut spec, "clusterIPs", Some(json!(ips)));
        put(&mut spec, "ipFamilies", Some(json!(families)));
    }
    if let SessionAffinity::ClientIp { timeout_seconds } = s.session_affinity {
        put(&mut spec, "sessionAffinity", Some(json!("ClientIP")));
        let config = json!({"clientIP": {"timeoutSeconds": timeout_seconds}});
        put(&mut spec, "sessionAffinityConfig", Some(config));
    }
    put(&mut spec, "externalIPs", list_of(&s.external_ips));
    put(
        &mut spec,
        "trafficDistribution",
        s.traffic_distribution.as_ref().map(|t| json!(t)),
    );
    let mut metadata = json!({"namespace": s.name.namespace, "name": s.name.name});
    put(&mut metadata, "uid", (!s.uid.is_empty()).then(|| json!(s.uid)));
    put(
        &mut metadata,
        "labels",
        (!s.labels.is_empty()).then(|| strings(&s.labels)),
    );
    put(
        &mut metadata,
        "annotations",
        (!s.annotations.is_empty()).then(|| strings(&s.annotations)),
    );
    let mut out = json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec});
    if !s.load_balancer_ips.is_empty() {
        let ingress: Vec<_> = s.load_balancer_ips.iter().map(|ip| json!({"ip": ip})).collect();
        put(&mut out, "status", Some(json!({"loadBalancer": {"ingress": ingress}})));
    }
    out
}

fn slice(s: &EndpointSlice) -> Value {
    let ports: Vec<_> = s
        .ports
        .iter()
        .map(|p| json!({"name": p.name, "protocol": p.protocol.as_str(), "port": p.port}))
        .collect();
    let mut metadata = json!({
        "namespace": s.name.namespace,
        "name": s.name.name,
        "labels": {"kubernetes.io/service-name": s.service.name},
    });
    let time = jiff::Timestamp::from_microsecond(s.trigger_time_us).ok();
    if let Some(time) = time.filter(|_| s.trigger_time_us != 0) {
        let annotations = json!({"endpoints.kubernetes.io/last-change-trigger-time": time.to_string()});
        put(&mut metadata, "annotations", Some(annotations));
    }
    json!({
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": metadata,
        "addressType": match s.family {
            IpFamily::V4 => "IPv4",
            IpFamily::V6 => "IPv6",
        },
        "ports": ports,
        "endpoints": s.endpoints.iter().map(endpoint).collect::<Vec<_>>(),
    })
}

fn endpoint(e: &Endpoint) -> Value {
    let c = e.conditions;
    let mut out = json!({
        "addresses": [e.address],
        "conditions": {"ready": c.ready, "serving": c.serving, "terminating": c.terminating},
    });
    put(&mut out, "nodeName", e.node.as_ref().map(|n| json!(n)));
    put(&mut out, "zone", e.zone.as_ref().map(|z| json!(z)));
    if let Some(hints) = &e.hints {
        let named = |names: &[Arc<str>]| {
            let names: Vec<_> = names.iter().map(|n| json!({"name": n})).collect();
            (!names.is_empty()).then(|| json!(names))
        };
        let mut h = json!({});
        put(&mut h, "forNodes", named(&hints.for_nodes));
        put(&mut h, "forZones", named(&hints.for_zones));
        put(&mut out, "hints", Some(h));
    }
    if e.target_uid != 0 {
        let hex = format!("{:032x}", e.target_uid);
        let uid = [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-");
        put(&mut out, "targetRef", Some(json!({"uid": uid})));
    }
    out
}

fn traffic_policy(p: TrafficPolicy) -> &'static str {
    match p {
        TrafficPolicy::Cluster => "Cluster",
        TrafficPolicy::Local => "Local",
    }
}

fn strings(map: &BTreeMap<Arc<str>, Arc<str>>) -> Value {
    let pairs = map.iter().map(|(k, v)| (k.to_string(), json!(v)));
    Value::Object(pairs.collect::<Map<_, _>>())
}

fn list_of(ips: &[IpAddr]) -> Option<Value> {
    (!ips.is_empty()).then(|| json!(ips))
}

fn put(object: &mut Value, key: &str, value: Option<Value>) {
    if let (Value::Object(map), Some(value)) = (object, value) {
        map.insert(key.to_owned(), value);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::model::Interner;
    use crate::source::manifest::{Format, Object, parse};

    const STATE: &str = r#"
apiVersion: v1
kind: Node
metadata: {name: n1, labels: {topology.kubernetes.io/zone: z1}}
---
apiVersion: v1
kind: Service
metadata:
  name: dns
  namespace: kube-system
  uid: abc
  labels: {app: dns}
  annotations: {service.kubernetes.io/topology-mode: Auto}
spec:
  type: LoadBalancer
  clusterIP: 10.0.0.1
  clusterIPs: [10.0.0.1, "fd00::1"]
  ipFamilies: [IPv4, IPv6]
  ports:
  - {name: dns, protocol: UDP, port: 53, nodePort: 30053, appProtocol: kubernetes.io/dns}
  - {name: dns-tcp, port: 53}
  sessionAffinity: ClientIP
  sessionAffinityConfig: {clientIP: {timeoutSeconds: 77}}
  internalTrafficPolicy: Local
  externalTrafficPolicy: Local
  externalIPs: [192.0.2.1]
  trafficDistribution: PreferClose
status: {loadBalancer: {ingress: [{ip: 192.0.2.9}]}}
---
apiVersion: v1
kind: Service
metadata: {name: headless}
spec: {clusterIP: None, ports: [{port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: outside}
spec: {type: ExternalName, externalName: example.com}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  name: dns-1
  namespace: kube-system
  labels: {kubernetes.io/service-name: dns}
  annotations: {endpoints.kubernetes.io/last-change-trigger-time: "2024-05-06T07:08:09.123456Z"}
addressType: IPv6
ports: [{name: dns, protocol: UDP, port: 5353}, {name: "", port: 1}]
endpoints:
- addresses: ["fd00::a"]
  conditions: {ready: false, serving: true, terminating: true}
  nodeName: n1
  zone: z1
  hints: {forZones: [{name: z1}], forNodes: [{name: n1}]}
  targetRef: {uid: 00112233-4455-6677-8899-aabbccddeeff}
- addresses: ["fd00::b"]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: orphan, labels: {kubernetes.io/service-name: not-there}}
addressType: IPv4
ports: []
endpoints: []
"#;

    fn sorted(mut objects: Vec<Object>) -> Vec<Object> {
        objects.sort_by_key(Object::key);
        objects
    }

    #[test]
    fn what_is_dumped_reads_back_as_the_same_state() {
        let mut interner = Interner::default();
        let read = parse(STATE.as_bytes(), Format::Yaml, &mut interner).unwrap();
        let mut store = Store::new();
        store.apply(read.objects.iter().cloned().map(Object::into_change));
        let text = serde_json::to_vec(&list(&store)).unwrap();
        let again = parse(&text, Format::Json, &mut interner).unwrap();
        assert_eq!(again.ignored, Default::default());
        assert_eq!(sorted(again.objects), sorted(read.objects));
    }
}
