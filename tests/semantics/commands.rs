//! The whole way from manifests to the printed answer, through the binary.

use super::support::{address, rng};
use super::vectors::{Vector, vectors};
use rand::seq::SliceRandom;
use serde_json::{Value, json};
use std::path::Path;
use std::process::{Command, Output};

fn nodeward(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nodeward"));
    command.args(args).env_remove("NODE_NAME").output().unwrap()
}

/// A Service, its Node, and one slice per endpoint, as the API would list them; nil where nil is the default.
fn objects(v: &Vector) -> Vec<Value> {
    let labels = if v.zone.is_empty() {
        json!({})
    } else {
        json!({"topology.kubernetes.io/zone": v.zone})
    };
    let external = v.externally_accessible;
    let mut objects = vec![
        json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": v.node, "labels": labels}}),
        json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"namespace": "ns", "name": "svc"},
            "spec": {
                "type": if external { "NodePort" } else { "ClusterIP" },
                "clusterIP": "10.96.0.10", "clusterIPs": ["10.96.0.10"], "ipFamilies": ["IPv4"],
                "internalTrafficPolicy": v.internal_traffic_policy, "externalTrafficPolicy": v.external_traffic_policy,
                "ports": [{"port": 80, "targetPort": 8080, "nodePort": if external { 30_080 } else { 0 }}]
            }
        }),
    ];
    for e in &v.endpoints {
        let name = |names: &[String]| names.iter().map(|n| json!({"name": n})).collect::<Vec<_>>();
        let mut endpoint = json!({
            "addresses": [address(&e.id).to_string()],
            "conditions": {"ready": e.ready, "serving": e.serving, "terminating": e.terminating},
            "nodeName": e.node_name,
            "hints": {"forNodes": name(&e.hint_nodes), "forZones": name(&e.hint_zones)}
        });
        if (e.ready, e.serving, e.terminating) == (true, true, false) {
            endpoint["conditions"] = json!({});
        }
        if e.hint_nodes.is_empty() && e.hint_zones.is_empty() {
            endpoint["hints"] = Value::Null;
        }
        objects.push(json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {
                "namespace": "ns", "name": format!("svc-{}", e.id), "labels": {"kubernetes.io/service-name": "svc"}
            },
            "addressType": "IPv4", "ports": [{"name": "", "port": 8080, "protocol": "TCP"}], "endpoints": [endpoint]
        }));
    }
    objects
}

fn explained(path: &Path, node: &str, more: &[&str]) -> Vec<Value> {
    let path = path.to_str().unwrap();
    let mut args = vec!["explain", "ns/svc", "--node", node, "--from", path, "-o", "json"];
    args.extend(more);
    let out = nodeward(&args);
    assert_eq!(out.status.code(), Some(0), "{}", String::from_utf8_lossy(&out.stderr));
    let lines = String::from_utf8(out.stdout).unwrap();
    lines.lines().map(|l| serde_json::from_str(l).unwrap()).collect()
}

#[test]
fn a45_all_parity_vectors_explained_from_manifests_in_either_order() {
    let mut rng = rng("vectors through the binary");
    let dir = tempfile::tempdir().unwrap();
    for v in vectors().iter().filter(|v| v.node_hints_enabled) {
        let mut objects = objects(v);
        let mut answers = Vec::new();
        for round in 0..2 {
            let list = json!({"apiVersion": "v1", "kind": "List", "items": objects});
            let path = dir.path().join(format!("{}-{round}.json", v.id));
            std::fs::write(&path, list.to_string()).unwrap();
            answers.push(explained(&path, &v.node, &["--interpretation", "strict"]));
            objects.shuffle(&mut rng);
        }
        assert_eq!(answers[0], answers[1], "{}", v.id);
        let [e] = &answers[0][..] else {
            panic!("{}: {} explanations", v.id, answers[0].len())
        };
        let local = v.internal_traffic_policy == "Local";
        let set = if local { &v.expect.local } else { &v.expect.cluster };
        let chosen: Vec<String> = set.iter().flatten().map(|id| format!("{}:8080", address(id))).collect();
        let verdict = match (v.expect.any, chosen.is_empty()) {
            (false, _) => "reject",
            (true, true) => "drop",
            (true, false) => "forward",
        };
        assert_eq!(e["chosen"], json!(chosen), "{} {}", v.id, v.desc);
        assert_eq!(e["verdict"], verdict, "{} {}", v.id, v.desc);
        assert_eq!(e["any_usable"], v.expect.any, "{} {}", v.id, v.desc);
        assert_eq!(e["endpoints"].as_array().unwrap().len(), v.endpoints.len());
        if !local && v.expect.mode.is_some() {
            assert_eq!(e["hint_mode"], json!(v.expect.mode), "{} {}", v.id, v.desc);
        }
    }
}

#[test]
fn explain_in_the_other_forms() {
    let all = vectors();
    let v = all.iter().find(|v| v.id == "V58").unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("v58.json");
    let list = json!({"apiVersion": "v1", "kind": "List", "items": objects(v)});
    std::fs::write(&path, list.to_string()).unwrap();
    let from = path.to_str().unwrap();
    let run = |args: &[&str]| {
        let out = nodeward(&[args, &["--node", "n1", "--from", from]].concat());
        (
            out.status.code(),
            String::from_utf8(out.stdout).unwrap(),
            String::from_utf8(out.stderr).unwrap(),
        )
    };
    let (code, text, _) = run(&["explain", "ns/svc"]);
    assert_eq!(code, Some(0));
    assert!(
        text.contains("*  10.0.0.1:8080") && !text.contains('\x1b'),
        "no colour into a pipe: {text}"
    );
    let (code, yaml, _) = run(&["explain", "ns/svc:80", "-o", "yaml"]);
    assert_eq!(code, Some(0));
    let read: nodeward::view::Explanation = serde_saphyr::from_str(&yaml).unwrap();
    assert_eq!(read.chosen, ["10.0.0.1:8080"]);
    assert_eq!(read.external.unwrap().policy, "Local");
    let (code, rows, _) = run(&["services", "-o", "json"]);
    assert_eq!((code, rows.lines().count()), (Some(0), 1));
    let row: nodeward::view::ServiceRow = serde_json::from_str(&rows).unwrap();
    assert_eq!(
        (row.policy.value.as_str(), row.rank.as_deref(), row.ready, row.total),
        ("PreferSameNode", Some("node"), 2, 2)
    );
    let (code, rows, _) = run(&["endpoints", "ns/svc", "-o", "json"]);
    assert_eq!((code, rows.lines().count()), (Some(0), 2));
    for missing in ["ns/other", "ns/svc:81", "ns"] {
        let (code, out, err) = run(&["explain", missing]);
        assert_eq!((code, out.as_str()), (Some(2), ""), "{missing}");
        assert!(err.contains(missing), "{err}");
    }
}
