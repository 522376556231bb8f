//! Real DNS servers and real clients, a pod's own resolv.conf, and what stop, kill and pause do to a server.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::net::IpAddr;
use std::time::Duration;

use nodeward_lab::{
    Cmd, DnsServer, DnsServerKind, EndpointState, Host, Lab, LabService, Manifests, QType, dig, dnsperf,
    dnsperf_result, getent,
};

#[test]
fn servers_answer_with_their_own_address_and_tag() {
    let lab = Lab::builder()
        .node("n1", "za")
        .node("n2", "zb")
        .pod("n1", "client")
        .build()
        .unwrap();
    let client = lab.node("n1").unwrap().pod("client").unwrap();
    let directory = lab.directory();
    for (node, kind) in [("n1", DnsServerKind::Dnsmasq), ("n2", DnsServerKind::Unbound)] {
        let pod = lab.node(node).unwrap().add_pod("dns").unwrap();
        let server = DnsServer::start(&pod, kind, node, &directory).unwrap();
        server.wait_ready(Duration::from_secs(5)).unwrap();
        for like in [IpAddr::from([0, 0, 0, 0]), IpAddr::from([0u16; 8])] {
            let address = server.address(like);
            let text = dig(&client, address, "whoami.lab", "TXT", &[]).unwrap().expect("dig");
            assert_eq!(
                (text.status.as_str(), text.answers.as_slice()),
                ("NOERROR", [node.to_string()].as_slice()),
                "{kind:?}"
            );
            let over_tcp = dig(&client, address, "x.lab", "A", &["+tcp"])
                .unwrap()
                .expect("dig +tcp");
            assert_eq!(over_tcp.answers, [pod.ipv4().to_string()], "{kind:?}");
            assert_eq!(
                getent(&client, address.ip(), "host7.lab", &directory).unwrap(),
                [address.ip()],
                "{kind:?}"
            );
            let perf = dnsperf(&client, address, 500, 1, &directory).unwrap();
            let counted = dnsperf_result(perf.wait(Duration::from_secs(10)).unwrap()).unwrap();
            assert!(
                counted.sent > 400 && counted.lost == 0 && counted.completed == counted.sent,
                "{kind:?} {counted:?}"
            );
            let (reply, from) = client
                .netns()
                .dns_query(address, "y.lab", QType::Aaaa, Duration::from_secs(1))
                .unwrap()
                .unwrap();
            assert_eq!(
                (reply.addresses.as_slice(), from),
                ([IpAddr::from(pod.ipv6())].as_slice(), address),
                "{kind:?}"
            );
        }
        let v4 = server.address([0, 0, 0, 0].into());
        let ask = || {
            client
                .netns()
                .dns_query(v4, "z.lab", QType::A, Duration::from_millis(100))
                .unwrap()
        };
        server.process().pause().unwrap();
        assert_eq!(ask(), None, "{kind:?} paused");
        server.process().resume().unwrap();
        assert!(ask().is_some(), "{kind:?} resumed");
        server.process().kill().unwrap();
        assert_eq!(ask(), None, "{kind:?} killed");
        assert!(
            server.process().pause().is_err(),
            "{kind:?}: signals to an ended process are refused"
        );
        let again = DnsServer::start(&pod, kind, node, &directory).unwrap();
        again.wait_ready(Duration::from_secs(5)).unwrap();
        again.stop().unwrap();
        assert!(!again.process().is_running());
    }
    lab.finish().unwrap().assert_clean();
}

#[test]
fn a_failing_command_names_itself_and_its_error() {
    let lab = Lab::builder().node("n1", "za").build().unwrap();
    let n1 = lab.node("n1").unwrap();
    let error = n1.netns().ip_batch("link set nothing up\n").unwrap_err().to_string();
    assert!(error.contains("ip -batch") && error.contains("nothing"), "{error}");
    let slow = n1
        .exec(Cmd::new("sleep").arg("30").limit(Duration::from_millis(50)))
        .unwrap_err()
        .to_string();
    assert!(slow.contains("sleep 30"), "{slow}");
    assert!(
        n1.exec(Cmd::new("no-such-program"))
            .unwrap()
            .stderr
            .contains("no-such-program")
    );
    assert!(lab.node("n9").err().unwrap().to_string().contains("n9"));
    assert!(n1.pod("p9").err().unwrap().to_string().contains("p9"));
}

#[test]
fn manifests_follow_the_pods() {
    let lab = Lab::builder()
        .node("n1", "za")
        .node("n2", "zb")
        .pod("n1", "dns-1")
        .pod("n2", "dns-2")
        .build()
        .unwrap();
    let (one, two) = (
        lab.node("n1").unwrap().pod("dns-1").unwrap(),
        lab.node("n2").unwrap().pod("dns-2").unwrap(),
    );
    let folder = lab.directory().join("manifests");
    let manifests = Manifests::new(&folder, &lab).unwrap();
    let key = LabService::kube_dns().key();
    assert!(
        manifests.set_endpoint(&key, &one, EndpointState::Ready).is_err(),
        "unknown service"
    );
    manifests.set_service(LabService::kube_dns()).unwrap();
    manifests
        .set_endpoints(
            &key,
            &[(&one, EndpointState::Ready), (&two, EndpointState::Terminating)],
        )
        .unwrap();
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap();
    let text = read("kube-system-kube-dns.yaml");
    for part in [
        "addresses: [\"10.244.1.11\"]\n    conditions: {ready: true, serving: true, terminating: false}\n    nodeName: n1\n    zone: za\n",
        "addresses: [\"fd00:10:244:2::b\"]\n    conditions: {ready: false, serving: true, terminating: true}\n    nodeName: n2\n",
        "clusterIPs: [\"10.96.0.10\", \"fd00:10:96::a\"]",
        "addressType: IPv6",
    ] {
        assert!(text.contains(part), "no {part:?} in:\n{text}");
    }
    assert!(read("nodes.yaml").contains("topology.kubernetes.io/zone: zb"));
    manifests.set_endpoint(&key, &one, EndpointState::Gone).unwrap();
    assert!(!read("kube-system-kube-dns.yaml").contains("10.244.1.11"));
    assert_eq!(manifests.endpoints(&key).len(), 1);
    let names: Vec<_> = std::fs::read_dir(&folder)
        .unwrap()
        .map(|e| e.unwrap().file_name())
        .collect();
    assert_eq!(names.len(), 2, "no temporary file stays: {names:?}");
}
