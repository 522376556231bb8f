//! JSON as an API server sends it, made up: Lists of Services and EndpointSlices with the metadata, references and hints
//! that controllers write, about 40 KB per slice of 100 endpoints.

use std::fmt::Write;

/// Objects per page, as list requests are paged by default.
const PAGE: usize = 500;

/// Endpoints per slice, as the EndpointSlice controller fills them.
pub const PER_SLICE: usize = 100;

/// Nodes of the cluster, in three zones.
const NODES: usize = 5_000;

/// How large the cluster is.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// Services.
    pub services: usize,
    /// Endpoints of each.
    pub endpoints: usize,
    /// Ports of each.
    pub ports: usize,
}

impl Size {
    /// Slices of each Service.
    pub fn slices(self) -> usize {
        self.endpoints.div_ceil(PER_SLICE).max(1)
    }
}

/// `metadata.name` of a node.
pub fn node_name(node: usize) -> String {
    let node = node % NODES;
    format!("ip-10-0-{}-{}.eu-west-1.compute.internal", node / 250, node % 250)
}

/// Zone of a node.
pub fn zone(node: usize) -> &'static str {
    ["eu-west-1a", "eu-west-1b", "eu-west-1c"][node % NODES % 3]
}

/// ClusterIP of a Service.
pub fn cluster_ip(service: usize) -> [u8; 4] {
    let n = service as u32 + 10;
    [10, 96 + (n >> 16) as u8, (n >> 8) as u8, n as u8]
}

/// Port of a service port.
pub fn port(index: usize) -> u16 {
    80 + index as u16
}

fn namespace(service: usize) -> usize {
    service / 50
}

fn uid(kind: usize, a: usize, b: usize) -> String {
    format!("{kind:08x}-0000-4000-8000-{:012x}", a << 20 | b)
}

/// Pages of Services.
pub fn service_pages(size: Size) -> impl Iterator<Item = Vec<u8>> {
    pages("v1", "ServiceList", size.services, move |text, i| {
        service(text, size, i)
    })
}

/// Pages of slices.
pub fn slice_pages(size: Size) -> impl Iterator<Item = Vec<u8>> {
    let per_service = size.slices();
    pages(
        "discovery.k8s.io/v1",
        "EndpointSliceList",
        size.services * per_service,
        move |text, i| {
            slice(text, size, i / per_service, i % per_service, 0);
        },
    )
}

/// One slice as a watch event carries it; `change` makes one of its endpoints differ.
pub fn changed_slice(size: Size, service: usize, index: usize, change: usize) -> Vec<u8> {
    let mut text = String::new();
    slice(&mut text, size, service, index, change);
    text.into_bytes()
}

fn pages(
    version: &'static str,
    kind: &'static str,
    count: usize,
    item: impl Fn(&mut String, usize),
) -> impl Iterator<Item = Vec<u8>> {
    (0..count).step_by(PAGE).map(move |first| {
        let mut text = format!(
            r#"{{"kind":"{kind}","apiVersion":"{version}","metadata":{{"resourceVersion":"48151623","continue":"x"}},"items":["#
        );
        for i in first..count.min(first + PAGE) {
            if i > first {
                text.push(',');
            }
            item(&mut text, i);
        }
        text.push_str("]}");
        text.into_bytes()
    })
}

/// Writing to a `String` cannot fail.
macro_rules! put {
    ($text:expr, $($arguments:tt)*) => {{
        let _ = write!($text, $($arguments)*);
    }};
}

fn service(text: &mut String, size: Size, i: usize) {
    let [a, b, c, d] = cluster_ip(i);
    let ns = namespace(i);
    put!(
        text,
        r#"{{"apiVersion":"v1","kind":"Service","metadata":{{"name":"service-{i}","namespace":"team-{ns}","uid":"{}","resourceVersion":"{}","creationTimestamp":"2026-03-01T10:00:00Z","labels":{{"app.kubernetes.io/name":"service-{i}","app.kubernetes.io/part-of":"team-{ns}"}},"annotations":{{"kubectl.kubernetes.io/last-applied-configuration":"{{\"apiVersion\":\"v1\",\"kind\":\"Service\",\"metadata\":{{\"name\":\"service-{i}\"}}}}\n"}},"managedFields":[{{"manager":"kubectl-client-side-apply","operation":"Update","apiVersion":"v1","time":"2026-03-01T10:00:00Z","fieldsType":"FieldsV1","fieldsV1":{{"f:metadata":{{"f:labels":{{".":{{}},"f:app.kubernetes.io/name":{{}}}}}},"f:spec":{{"f:internalTrafficPolicy":{{}},"f:ports":{{".":{{}}}},"f:selector":{{}}}}}}}}]}},"spec":{{"ports":["#,
        uid(1, i, 0),
        1000 + i,
    );
    for p in 0..size.ports {
        let comma = if p > 0 { "," } else { "" };
        put!(
            text,
            r#"{comma}{{"name":"port-{p}","protocol":"TCP","port":{},"targetPort":{}}}"#,
            port(p),
            8080 + p
        );
    }
    put!(
        text,
        r#"],"selector":{{"app.kubernetes.io/name":"service-{i}"}},"clusterIP":"{a}.{b}.{c}.{d}","clusterIPs":["{a}.{b}.{c}.{d}"],"type":"ClusterIP","sessionAffinity":"None","ipFamilies":["IPv4"],"ipFamilyPolicy":"SingleStack","internalTrafficPolicy":"Cluster","trafficDistribution":"PreferSameNode"}},"status":{{"loadBalancer":{{}}}}}}"#
    );
}

fn slice(text: &mut String, size: Size, service: usize, index: usize, change: usize) {
    let ns = namespace(service);
    put!(
        text,
        r#"{{"apiVersion":"discovery.k8s.io/v1","kind":"EndpointSlice","metadata":{{"name":"service-{service}-{index:05}","generateName":"service-{service}-","namespace":"team-{ns}","uid":"{}","resourceVersion":"{}","generation":7,"creationTimestamp":"2026-03-01T10:00:01Z","labels":{{"app.kubernetes.io/name":"service-{service}","app.kubernetes.io/part-of":"team-{ns}","endpointslice.kubernetes.io/managed-by":"endpointslice-controller.k8s.io","kubernetes.io/service-name":"service-{service}"}},"annotations":{{"endpoints.kubernetes.io/last-change-trigger-time":"2026-03-01T10:{:02}:{:02}Z"}},"ownerReferences":[{{"apiVersion":"v1","kind":"Service","name":"service-{service}","uid":"{}","controller":true,"blockOwnerDeletion":true}}],"managedFields":[{{"manager":"kube-controller-manager","operation":"Update","apiVersion":"discovery.k8s.io/v1","time":"2026-03-01T10:00:01Z","fieldsType":"FieldsV1","fieldsV1":{{"f:addressType":{{}},"f:endpoints":{{}},"f:metadata":{{"f:annotations":{{".":{{}},"f:endpoints.kubernetes.io/last-change-trigger-time":{{}}}},"f:generateName":{{}},"f:labels":{{".":{{}},"f:kubernetes.io/service-name":{{}}}},"f:ownerReferences":{{".":{{}}}}}},"f:ports":{{}}}}}}]}},"addressType":"IPv4","endpoints":["#,
        uid(2, service, index),
        2000 + service + change,
        change / 60 % 60,
        change % 60,
        uid(1, service, 0),
    );
    let first = index * PER_SLICE;
    for e in first..size.endpoints.min(first + PER_SLICE) {
        let node = service * 37 + e * 53;
        // A change replaces one pod: another address, another uid.
        let is_new = change > 0 && e == first + change % PER_SLICE.min(size.endpoints - first);
        let pod = service * size.endpoints + e + if is_new { (1 << 22) + change } else { 0 };
        let comma = if e > first { "," } else { "" };
        let (name, zone) = (node_name(node), zone(node));
        put!(
            text,
            r#"{comma}{{"addresses":["10.{}.{}.{}"],"conditions":{{"ready":true,"serving":true,"terminating":false}},"targetRef":{{"kind":"Pod","namespace":"team-{ns}","name":"service-{service}-7d9c5b8f6d-{pod:05x}","uid":"{}"}},"nodeName":"{name}","zone":"{zone}","hints":{{"forZones":[{{"name":"{zone}"}}],"forNodes":[{{"name":"{name}"}}]}}}}"#,
            128 + (pod >> 16),
            pod >> 8 & 255,
            pod & 255,
            uid(3, service, pod),
        );
    }
    text.push_str(r#"],"ports":["#);
    for p in 0..size.ports {
        let comma = if p > 0 { "," } else { "" };
        put!(
            text,
            r#"{comma}{{"name":"port-{p}","protocol":"TCP","port":{}}}"#,
            8080 + p
        );
    }
    text.push_str("]}");
}
