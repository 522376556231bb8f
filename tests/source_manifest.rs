//! Manifests → model: what is read, what is ignored, what is refused and how the message reads.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use nodeward::model::*;
use nodeward::source::manifest::{Format, Manifest, ManifestError, Object, parse};
use proptest::prelude::*;
use std::net::IpAddr;

fn yaml(text: &str) -> Result<Manifest, ManifestError> {
    parse(text.as_bytes(), Format::Yaml, &mut Interner::default())
}

fn json(text: &str) -> Result<Manifest, ManifestError> {
    parse(text.as_bytes(), Format::Json, &mut Interner::default())
}

fn slice(manifest: &Manifest) -> &EndpointSlice {
    match &manifest.objects[..] {
        [Object::Slice(slice)] => slice,
        other => panic!("expected one slice, found {other:?}"),
    }
}

fn service(manifest: &Manifest) -> &Service {
    match &manifest.objects[..] {
        [Object::Service(service)] => service,
        other => panic!("expected one Service, found {other:?}"),
    }
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// A slice of Service `web` with `body` added.
fn slice_yaml(body: &str) -> String {
    format!(
        "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata:\n  name: web-1\n  labels:\n    \
         kubernetes.io/service-name: web\n{body}"
    )
}

const FULL_SLICE: &str = r#"
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  name: dns-abc
  namespace: kube-system
  uid: 5d4c6a0e-0000-0000-0000-000000000000
  annotations: {endpoints.kubernetes.io/last-change-trigger-time: "2026-01-02T03:04:05.000007Z", other: x}
  labels: {kubernetes.io/service-name: kube-dns, endpointslice.kubernetes.io/managed-by: endpointslice-controller.k8s.io}
  managedFields: [{manager: kube-controller-manager, fieldsV1: {"f:endpoints": {}}}]
addressType: IPv4
ports:
- {name: dns, protocol: UDP, port: 53}
- {name: dns-tcp, port: 5353}
endpoints:
- addresses: [10.1.0.5]
  conditions: {ready: true, serving: true, terminating: false}
  nodeName: n1
  zone: za
  targetRef: {kind: Pod, name: dns-1, uid: 00000000-0000-0000-0000-000000000102}
  hints: {forZones: [{name: za}], forNodes: [{name: n1}, {name: n2}]}
- addresses: [10.1.0.6]
  conditions: {ready: false, serving: true, terminating: true}
  zone: ""
"#;

#[test]
fn a_slice_is_read_whole() {
    let manifest = yaml(FULL_SLICE).unwrap();
    let slice = slice(&manifest);
    assert_eq!(slice.name, ObjectName::new("kube-system", "dns-abc"));
    assert_eq!(slice.service, ObjectName::new("kube-system", "kube-dns"));
    assert_eq!(slice.family, IpFamily::V4);
    assert_eq!(slice.trigger_time_us, 1_767_323_045_000_007);
    let ports: Vec<_> = slice.ports.iter().map(|p| (&*p.name, p.protocol, p.port)).collect();
    assert_eq!(ports, [("dns", Protocol::Udp, 53), ("dns-tcp", Protocol::Tcp, 5353)]);
    let [a, b] = &slice.endpoints[..] else {
        panic!("two endpoints expected")
    };
    assert_eq!(a.address, ip("10.1.0.5"));
    assert_eq!((a.node.as_deref(), a.zone.as_deref()), (Some("n1"), Some("za")));
    assert_eq!(a.target_uid, 0x102);
    let hints = a.hints.as_ref().unwrap();
    assert_eq!(hints.for_nodes, ["n1".into(), "n2".into()]);
    assert_eq!(hints.for_zones, ["za".into()]);
    assert_eq!(
        (b.node.as_deref(), b.zone.as_deref()),
        (None, None),
        "an empty zone is none"
    );
    assert!(b.conditions.is_serving_terminating() && !b.conditions.ready);
    assert_eq!(manifest.ignored, Default::default());
}

#[test]
fn s01_slice_without_service_is_ignored() {
    let no_label = "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: a}\naddressType: IPv4\n";
    let empty = "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: b, labels: \
                 {kubernetes.io/service-name: ''}}\naddressType: IPv4\n";
    let manifest = yaml(&format!("{no_label}---\n{empty}")).unwrap();
    assert!(manifest.objects.is_empty());
    assert_eq!(manifest.ignored.slices_without_service, 2);
}

#[test]
fn s02_fqdn_slice_is_ignored() {
    let manifest = yaml(&slice_yaml(
        "addressType: FQDN\nendpoints:\n- addresses: [example.com]\n",
    ))
    .unwrap();
    assert!(manifest.objects.is_empty());
    assert_eq!(manifest.ignored.fqdn_slices, 1);
}

#[test]
fn s03_endpoint_of_the_other_family_is_ignored() {
    let body = "addressType: IPv4\nendpoints:\n- addresses: ['fd00::1']\n- addresses: [10.0.0.1]\n";
    let manifest = yaml(&slice_yaml(body)).unwrap();
    let addresses: Vec<_> = slice(&manifest).endpoints.iter().map(|e| e.address).collect();
    assert_eq!(addresses, [ip("10.0.0.1")]);
    assert_eq!(manifest.ignored.endpoints_of_other_family, 1);
    // An IPv4-mapped address is IPv4 wherever it is written.
    let mapped = yaml(&slice_yaml(
        "addressType: IPv6\nendpoints:\n- addresses: ['::ffff:10.0.0.1']\n",
    ))
    .unwrap();
    assert_eq!(
        (slice(&mapped).endpoints.len(), mapped.ignored.endpoints_of_other_family),
        (0, 1)
    );
}

#[test]
fn s04_s05_only_the_first_address_counts() {
    let body = "addressType: IPv4\nendpoints:\n- addresses: [10.0.0.1, 10.0.0.2]\n- addresses: []\n- {zone: za}\n";
    let manifest = yaml(&slice_yaml(body)).unwrap();
    let addresses: Vec<_> = slice(&manifest).endpoints.iter().map(|e| e.address).collect();
    assert_eq!(addresses, [ip("10.0.0.1")]);
    assert_eq!(manifest.ignored.endpoints_without_address, 2);
}

#[test]
fn s06_ports_without_name_or_number_are_skipped() {
    let body = "addressType: IPv4\nports:\n- {port: 80}\n- {name: '', port: 81}\n- {name: a}\n- {name: b, port: 0}\n\
                - {name: c, port: null}\n";
    let manifest = yaml(&slice_yaml(body)).unwrap();
    let ports: Vec<_> = slice(&manifest).ports.iter().map(|p| (&*p.name, p.port)).collect();
    assert_eq!(ports, [("", 81)]);
    assert_eq!(manifest.ignored.slice_ports, 4);
}

#[test]
fn s08_absent_conditions_have_defaults() {
    let body = "addressType: IPv4\nendpoints:\n- addresses: [10.0.0.1]\n- {addresses: [10.0.0.2], conditions: null}\n\
                - {addresses: [10.0.0.3], conditions: {ready: false}}\n";
    let manifest = yaml(&slice_yaml(body)).unwrap();
    let conditions: Vec<_> = slice(&manifest).endpoints.iter().map(|e| e.conditions).collect();
    let not_ready = Conditions {
        ready: false,
        ..Conditions::DEFAULT
    };
    assert_eq!(conditions, [Conditions::DEFAULT, Conditions::DEFAULT, not_ready]);
}

#[test]
fn s17_placeholder_slice_has_no_endpoints() {
    let text = r#"{"addressType":"IPv4","apiVersion":"discovery.k8s.io/v1","endpoints":null,"kind":"EndpointSlice",
        "metadata":{"labels":{"kubernetes.io/service-name":"web"},"name":"web-1"},"ports":null}"#;
    let manifest = json(text).unwrap();
    assert!(slice(&manifest).endpoints.is_empty() && slice(&manifest).ports.is_empty());
}

#[test]
fn a_service_is_read_with_its_defaults() {
    let manifest = yaml(
        "apiVersion: v1\nkind: Service\nmetadata: {name: web}\nspec:\n  clusterIP: 10.96.0.1\n  ports: [{port: 80}]\n",
    )
    .unwrap();
    let s = service(&manifest);
    assert_eq!(s.name, ObjectName::new("default", "web"));
    assert_eq!(s.cluster_ips, [(IpFamily::V4, ip("10.96.0.1"))]);
    assert_eq!(s.service_type, ServiceType::ClusterIp);
    assert_eq!(s.session_affinity, SessionAffinity::None);
    let port = &s.ports[0];
    assert_eq!(
        (&*port.name, port.protocol, port.port, port.node_port),
        ("", Protocol::Tcp, 80, 0)
    );

    let text = r#"{"kind":"Service","apiVersion":"v1","metadata":{"name":"dual","namespace":"x","uid":"u-1",
        "labels":{"a":"b"},"annotations":{"nodeward.io/policy":"Local","service.kubernetes.io/topology-mode":"Auto",
        "traffic-policy.network.alpha.openshift.io/local-with-fallback":"","kubectl.kubernetes.io/last-applied-configuration":"{}"}},
        "spec":{"type":"LoadBalancer","clusterIP":"fd00::a","clusterIPs":["fd00::a","10.96.0.2"],"ipFamilies":["IPv6","IPv4"],
        "ports":[{"name":"dns","port":53,"protocol":"UDP","targetPort":"dns","nodePort":30053,"appProtocol":"kubernetes.io/dns"}],
        "sessionAffinity":"ClientIP","internalTrafficPolicy":"Local","externalTrafficPolicy":"Sideways",
        "externalIPs":["192.0.2.1"],"trafficDistribution":"PreferSameNode"},
        "status":{"loadBalancer":{"ingress":[{"ip":"192.0.2.2"},{"ip":"192.0.2.3","ipMode":"Proxy"},{"hostname":"h"},
        {"ip":"192.0.2.4","ipMode":"VIP"}]}}}"#;
    let manifest = json(text).unwrap();
    let s = service(&manifest);
    assert_eq!(
        s.cluster_ips,
        [(IpFamily::V6, ip("fd00::a")), (IpFamily::V4, ip("10.96.0.2"))]
    );
    assert_eq!(
        s.session_affinity,
        SessionAffinity::ClientIp {
            timeout_seconds: 10_800
        }
    );
    assert_eq!(s.service_type, ServiceType::LoadBalancer);
    assert_eq!(s.internal_traffic_policy, TrafficPolicy::Local);
    assert_eq!(s.external_traffic_policy, TrafficPolicy::Cluster);
    assert_eq!(manifest.ignored.unknown_traffic_policies, 1);
    assert_eq!(s.external_ips, [ip("192.0.2.1")]);
    assert_eq!(s.load_balancer_ips, [ip("192.0.2.2"), ip("192.0.2.4")]);
    assert_eq!(s.traffic_distribution.as_deref(), Some("PreferSameNode"));
    assert_eq!(
        (s.ports[0].node_port, s.ports[0].app_protocol.as_deref()),
        (30053, Some("kubernetes.io/dns"))
    );
    assert_eq!(
        s.annotations.len(),
        3,
        "only annotations that topology may read are kept"
    );
    assert_eq!(&*s.uid, "u-1");
}

#[test]
fn headless_and_address_less_services_have_no_cluster_ip() {
    for spec in [
        "{clusterIP: None}",
        "{clusterIP: ''}",
        "{}",
        "{clusterIPs: [None]}",
        "{type: ExternalName, externalName: x}",
    ] {
        let manifest = yaml(&format!(
            "apiVersion: v1\nkind: Service\nmetadata: {{name: a}}\nspec: {spec}\n"
        ))
        .unwrap();
        assert!(service(&manifest).cluster_ips.is_empty(), "{spec}");
        assert!(!service(&manifest).is_proxied(), "{spec}");
    }
}

#[test]
fn lists_nest_and_other_kinds_are_counted() {
    let text = r#"{"apiVersion":"v1","items":[
        {"apiVersion":"v1","kind":"Service","metadata":{"name":"a"}},
        {"apiVersion":"serving.knative.dev/v1","kind":"Service","metadata":{"name":"a"},"spec":"not ours"},
        {"apiVersion":"v1","kind":"NodeList","items":[{"metadata":{"name":"n1","labels":{"topology.kubernetes.io/zone":"za"}}},
            {"metadata":{"name":"n2"}}]},
        {"apiVersion":"v1","kind":"List","items":[{"endpoints":[],"addressType":"IPv4","apiVersion":"discovery.k8s.io/v1",
            "kind":"EndpointSlice","metadata":{"name":"a-1","labels":{"kubernetes.io/service-name":"a"}}}]},
        {"apiVersion":"v1","kind":"Pod","metadata":3,"spec":{"ports":"x"},"items":7}],"kind":"List","metadata":{}}
        {"kind":"ServiceList","apiVersion":"v1","items":null}"#;
    for manifest in [json(text).unwrap(), yaml(text).unwrap()] {
        let keys: Vec<_> = manifest.objects.iter().map(|o| o.key().to_string()).collect();
        assert_eq!(
            keys,
            ["Service default/a", "Node n1", "Node n2", "EndpointSlice default/a-1"]
        );
        let kinds: Vec<_> = manifest.ignored.kinds.iter().map(|(k, n)| (k.as_str(), *n)).collect();
        assert_eq!(kinds, [("serving.knative.dev/v1 Service", 1), ("v1 Pod", 1)]);
    }
    // The same in YAML proper.
    let text = "# comment\n---\nitems:\n- metadata: {name: n1}\nkind: NodeList\napiVersion: v1\n---\n\n---\nkind: Pod\napiVersion: v1\n";
    let manifest = yaml(text).unwrap();
    assert_eq!(manifest.objects.len(), 1);
    assert_eq!(manifest.ignored.kinds["v1 Pod"], 1);
}

#[test]
fn json_and_yaml_give_the_same_objects() {
    let from_yaml = yaml(FULL_SLICE).unwrap();
    let text = r#"{"addressType":"IPv4","apiVersion":"discovery.k8s.io/v1","endpoints":[{"addresses":["10.1.0.5"],
        "conditions":{"ready":true,"serving":true,"terminating":false},"hints":{"forNodes":[{"name":"n1"},{"name":"n2"}],
        "forZones":[{"name":"za"}]},"nodeName":"n1","targetRef":{"kind":"Pod","uid":"00000000-0000-0000-0000-000000000102"},
        "zone":"za"},{"addresses":["10.1.0.6"],"conditions":{"ready":false,"serving":true,"terminating":true},"zone":""}],
        "kind":"EndpointSlice","metadata":{"annotations":{"endpoints.kubernetes.io/last-change-trigger-time":
        "2026-01-02T03:04:05.000007Z"},"labels":{"kubernetes.io/service-name":"kube-dns"},"name":"dns-abc",
        "namespace":"kube-system"},"ports":[{"name":"dns","port":53,"protocol":"UDP"},{"name":"dns-tcp","port":5353}]}"#;
    assert_eq!(json(text).unwrap(), from_yaml);
}

/// What is wrong, and every part of the message that must be there.
#[test]
fn errors_name_document_line_field_and_expectation() {
    let good = "apiVersion: v1\nkind: Service\nmetadata: {name: ok}\n---\n";
    let service = |spec: &str| format!("{good}apiVersion: v1\nkind: Service\nmetadata: {{name: bad}}\nspec:\n{spec}\n");
    let cases: Vec<(String, &[&str])> = vec![
        (
            service("  ports: [{port: 70000}]"),
            &[
                "document 2, line 9",
                "spec.ports[0].port",
                "70000",
                "a port number from 1 to 65535",
            ],
        ),
        (
            service("  ports: [{port: 0}]"),
            &["document 2, line 9", "spec.ports[0].port", "from 1 to 65535"],
        ),
        (
            service("  ports: [{port: -1}]"),
            &["line 9", "spec.ports[0].port", "from 1 to 65535"],
        ),
        (
            service("  ports: [{port: http}]"),
            &["line 9", "spec.ports[0].port", "http", "a port number"],
        ),
        (
            service("  ports: [{name: x}]"),
            &["document 2", "spec.ports[0]", "missing field `port`"],
        ),
        (service("  ports: 80"), &["line 9", "spec.ports"]),
        (
            service("  ports: [{port: 80, protocol: TPC}]"),
            &["line 9", "spec.ports[0].protocol", "TPC", "TCP, UDP or SCTP"],
        ),
        (
            service("  clusterIP: 10.0.0.256"),
            &["line 9", "spec.clusterIP", "10.0.0.256", "an IP address"],
        ),
        (
            service("  clusterIPs: [10.0.0.1, 10.0.0.2]"),
            &["Service default/bad", "spec.clusterIPs[1]", "second IPv4"],
        ),
        (
            service("  {clusterIP: 10.0.0.1, ipFamilies: [IPv6]}"),
            &["Service default/bad", "spec.clusterIP[0]", "IPv6"],
        ),
        (
            service("  type: ClusterIp"),
            &["line 9", "spec.type", "ClusterIp", "ClusterIP, NodePort"],
        ),
        (
            service("  ports: [{port: 53, name: a}, {port: 53, name: b}]"),
            &["Service default/bad", "spec.ports[1]", "53/TCP is listed twice"],
        ),
        (
            service("  {sessionAffinity: ClientIP, sessionAffinityConfig: {clientIP: {timeoutSeconds: 0}}}"),
            &["Service default/bad", "timeoutSeconds", "1 to 86400"],
        ),
        (
            format!("{good}apiVersion: v1\nkind: Service\nmetadata: {{}}\n"),
            &["document 2", "metadata.name", "missing"],
        ),
        (
            format!("{good}apiVersion: v1\nkind: Node\n"),
            &["document 2", "Node", "metadata.name", "missing"],
        ),
        (
            format!("{good}{good}"),
            &["document 2", "Service default/ok", "given twice", "document 1"],
        ),
        (
            format!("{good}apiVersion: v1\nmetadata: {{name: a}}\n"),
            &["document 2", "kind"],
        ),
        (format!("{good}just text\n"), &["document 2", "expected an object"]),
        (format!("{good}a: [1\n"), &["document 2"]),
        (
            slice_yaml("endpoints: []\n"),
            &["EndpointSlice default/web-1", "addressType", "IPv4, IPv6 or FQDN"],
        ),
        (
            slice_yaml("addressType: IPv5\n"),
            &["line 7", "addressType", "IPv5", "IPv4, IPv6 or FQDN"],
        ),
        (
            slice_yaml("addressType: IPv4\nendpoints:\n- addresses: [10.0.0.1]\n- addresses: [nowhere]\n"),
            &[
                "EndpointSlice default/web-1",
                "endpoints[1].addresses[0]",
                "nowhere",
                "an IP address",
            ],
        ),
        (
            slice_yaml("addressType: IPv4\nports: [{name: a, port: 65536}]\n"),
            &["line 8", "ports[0].port", "65536"],
        ),
        (
            slice_yaml("addressType: IPv4\nendpoints: {a: b}\n"),
            &["line 8", "endpoints"],
        ),
        (
            slice_yaml("addressType: IPv4\nendpoints:\n- addresses: [10.0.0.1]\n  conditions: {ready: perhaps}\n"),
            &["line 10", "endpoints[0].conditions.ready"],
        ),
    ];
    for (text, parts) in cases {
        let error = yaml(&text).expect_err(&text).to_string();
        for part in parts {
            assert!(error.contains(part), "{error:?} lacks {part:?} for\n{text}");
        }
    }
}

#[test]
fn json_errors_name_the_place_in_a_list() {
    let text = "{\"apiVersion\":\"v1\",\"kind\":\"List\",\"items\":[\n{\"apiVersion\":\"v1\",\"kind\":\"Node\",\"metadata\":{\"name\":\"n\"}},\n\
                {\"apiVersion\":\"v1\",\"kind\":\"Service\",\"metadata\":{\"name\":\"s\"},\"spec\":{\"ports\":[{\"port\":\"80\"}]}}]}";
    let error = json(text).unwrap_err().to_string();
    assert_eq!(
        error,
        "document 1, line 3: items[1].spec.ports[0].port: invalid type: string \"80\", expected a port number from 1 to 65535"
    );
    let text = "{\"apiVersion\":\"v1\",\"kind\":\"Node\",\"metadata\":{\"name\":\"n\"}}\n{\"apiVersion\":\"v1\",\"kind\":\"Node\",\"metadata\":{\"name\":5}}";
    let error = json(text).unwrap_err();
    assert_eq!(
        (error.document, error.line, error.path.as_str()),
        (2, Some(2), "metadata.name")
    );
    let error = json("{\"kind\":").unwrap_err();
    assert_eq!((error.document, error.line), (1, Some(1)));
    let error = parse(b"a: 1\nb: \xff\n", Format::Yaml, &mut Interner::default()).unwrap_err();
    assert_eq!((error.document, error.line), (1, Some(2)));
}

#[test]
fn strings_with_escapes_and_shared_strings() {
    let text = r#"{"apiVersion":"v1","kind":"NodeList","items":[{"metadata":{"name":"n\u0031","labels":{"a":"b\n"}}},
        {"metadata":{"name":"n2","labels":{"a":"b\n"}}}]}"#;
    let manifest = json(text).unwrap();
    let [Object::Node(a), Object::Node(b)] = &manifest.objects[..] else {
        panic!()
    };
    assert_eq!(&*a.name, "n1");
    assert_eq!(&*a.labels["a"], "b\n");
    assert!(std::sync::Arc::ptr_eq(&a.labels["a"], &b.labels["a"]));
}

#[test]
fn yaml_that_expands_without_end_is_refused() {
    let mut text =
        String::from("apiVersion: v1\nkind: Service\nmetadata: {name: bomb}\na0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
    for i in 1..12 {
        let previous = format!("*a{}, ", i - 1).repeat(9);
        text.push_str(&format!("a{i}: &a{i} [{previous}*a{}]\n", i - 1));
    }
    assert!(yaml(&text).is_err());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = parse(&bytes, Format::Yaml, &mut Interner::default());
        let _ = parse(&bytes, Format::Json, &mut Interner::default());
    }

    /// Real text with a few bytes damaged: reaches deeper than noise.
    #[test]
    fn damaged_manifests_never_panic(
        edits in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 1..6),
        cut in any::<proptest::sample::Index>(),
    ) {
        let mut bytes = FULL_SLICE.as_bytes().to_vec();
        for (at, byte) in edits {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        bytes.truncate(cut.index(bytes.len()) + 1);
        let _ = parse(&bytes, Format::Yaml, &mut Interner::default());
    }

    /// Fragments of manifests in any order.
    #[test]
    fn shuffled_lines_never_panic(lines in Just(FULL_SLICE.lines().collect::<Vec<_>>()).prop_shuffle()) {
        let _ = parse(lines.join("\n").as_bytes(), Format::Yaml, &mut Interner::default());
    }
}

/// An object that was meant for us but names no version, or one that is not read, is an error and not passed over; kinds of
/// the same name in other API groups are others'.
#[test]
fn wrong_versions_are_refused_and_foreign_kinds_passed_over() {
    for (head, wanted) in [
        ("kind: Service", "v1"),
        ("apiVersion: v2\nkind: Service", "v1"),
        ("kind: Node", "v1"),
        ("kind: EndpointSlice", "discovery.k8s.io/v1"),
        (
            "apiVersion: discovery.k8s.io/v1beta1\nkind: EndpointSlice",
            "discovery.k8s.io/v1",
        ),
    ] {
        let error = yaml(&format!("{head}\nmetadata: {{name: x}}\n"))
            .unwrap_err()
            .to_string();
        assert!(error.contains(&format!("apiVersion: {wanted}")), "{head}: {error}");
    }
    let foreign = "apiVersion: serving.knative.dev/v1\nkind: Service\nmetadata: {name: x}\n";
    assert_eq!(yaml(foreign).unwrap().objects, []);
}
