#![allow(clippy::unwrap_used, clippy::expect_used)]

use super::*;
use crate::topology::{Interpretation, Policy, Profile, SourceAddress};

const FILE: &str = "conf/nodeward.yaml";

fn parse(text: &str) -> Result<Config, ConfigError> {
    Config::parse(text, Path::new(FILE), Some("env-node"))
}

fn errors(text: &str) -> String {
    parse(text).expect_err(text).to_string()
}

#[test]
fn default_file_means_the_defaults() {
    let c = Config::parse(DEFAULT_FILE, Path::new(FILE), None).unwrap();
    assert_eq!(c, Config::default());
    assert!(c.select.is_empty(), "nothing is taken by default");
    assert_eq!(Config::parse("", Path::new(FILE), None).unwrap(), c);
    assert_eq!(Config::parse("# nothing\n---\n", Path::new(FILE), None).unwrap(), c);
}

#[cfg(feature = "dataplane")]
#[test]
fn redirection_has_the_same_defaults_and_limits() {
    use crate::redirect::RedirectConfig;
    assert_eq!(RedirectConfig::from(&Redirect::default()), RedirectConfig::default());
    let extreme =
        parse("redirect: {instance: a-1, mark: 0xe0000000, routeTable: 4294967295, rulePriority: 32763}").unwrap();
    RedirectConfig::from(&extreme.redirect).validate().unwrap();
}

/// Every key of the schema, as the reader itself lists them when it meets an unknown one.
fn known_keys(section: &str) -> Vec<String> {
    let message = errors(section);
    let list = message.rsplit_once("known here: ").expect(&message).1;
    let keys: Vec<_> = list.split('`').skip(1).step_by(2).map(str::to_owned).collect();
    assert!(!keys.is_empty(), "{message}");
    keys
}

#[test]
fn default_file_documents_every_key() {
    for section in [
        "zzzzzz: 1\n",
        "source: {zzzzzz: 1}\n",
        "source: {file: {zzzzzz: 1}}\n",
        "select: {zzzzzz: 1}\n",
        "select: {labelSelector: {zzzzzz: 1}}\n",
        "topology: {zzzzzz: 1}\n",
        "topology: {levels: [{zzzzzz: 1}]}\n",
        "services: [{zzzzzz: 1}]\n",
        "redirect: {zzzzzz: 1}\n",
        "udp: {zzzzzz: 1}\n",
        "admin: {zzzzzz: 1}\n",
        "log: {zzzzzz: 1}\n",
    ] {
        for key in known_keys(section) {
            let documented = DEFAULT_FILE
                .lines()
                .any(|l| l.trim_start_matches(['#', ' ', '-']).starts_with(&format!("{key}:")));
            assert!(documented, "deploy/config.yaml does not mention `{key}`");
        }
    }
}

#[test]
fn everything_set() {
    let c = parse(
        "node: n1
source: {file: {path: manifests}}
select:
  services: [kube-system/kube-dns, monitoring/statsd]
  labelSelector:
    matchLabels: {app: dns}
    matchExpressions: [{key: tier, operator: NotIn, values: [a]}]
  serviceProxyName: nodeward
topology:
  defaultPolicy: PreferClose
  defaultInterpretation: strict
  defaultSourceAddress: node
  levels: [{name: rack, label: example.com/rack}, {name: zone, label: topology.kubernetes.io/zone}]
services:
  - {name: 'kube-system/kube-dns:dns', policy: PreferNode, profile: dns}
  - {name: kube-system/kube-dns, interpretation: ranked, sourceAddress: client}
workers: 3
engine: io_uring
redirect: {enabled: false, instance: b, mark: 0x700, poolPorts: 21000-22000, routeTable: 77, rulePriority: 50}
udp: {maxOutstanding: 1000, storedBytes: 1MiB, dnsTimeout: 4s, upstreamSockets: 16, receiveBuffer: 1MiB}
admin: {listen: 'off', runDir: /tmp/x}
batchWindow: 10ms
log: {level: debug, format: json}
",
    )
    .unwrap();
    assert_eq!(c.node.as_deref(), Some("n1"));
    assert_eq!(c.source_file.as_deref(), Some(Path::new("conf/manifests")));
    assert_eq!(c.select.services.len(), 2);
    assert_eq!(c.select.label_selector.unwrap().to_string(), "app=dns,tier!=a");
    assert_eq!(c.select.service_proxy_name.as_deref(), Some("nodeward"));
    assert_eq!(c.topology.default_policy, Policy::PreferSameZone);
    assert_eq!(c.topology.default_interpretation, Interpretation::Strict);
    assert_eq!(c.topology.default_source_address, SourceAddress::Node);
    assert_eq!(c.topology.levels.len(), 2);
    assert_eq!(c.topology.rules[0].policy, Some(Policy::PreferSameNode));
    assert_eq!(c.topology.rules[0].profile, Some(Profile::Dns));
    assert_eq!(c.topology.rules[0].service.port.as_deref(), Some("dns"));
    assert_eq!(c.topology.rules[1].source_address, Some(SourceAddress::Client));
    assert_eq!(c.workers.for_cpus(64), 3);
    assert_eq!(c.engine, EngineChoice::IoUring);
    assert_eq!(
        c.redirect,
        Redirect {
            enabled: false,
            instance: "b".into(),
            mark: 0x700,
            pool_ports: 21000..=22000,
            route_table: 77,
            rule_priority: 50,
        }
    );
    assert_eq!(
        (c.udp.max_outstanding, c.udp.stored_bytes, c.udp.receive_buffer),
        (1000, 1 << 20, 1 << 20)
    );
    assert_eq!(
        (c.udp.dns_timeout, c.udp.upstream_sockets),
        (Duration::from_secs(4), 16)
    );
    assert_eq!((c.admin.listen, c.admin.run_dir.to_str()), (None, Some("/tmp/x")));
    assert_eq!(c.batch_window, Duration::from_millis(10));
    assert_eq!((c.log.level.as_str(), c.log.format), ("debug", LogFormat::Json));
    assert!(c.warnings.is_empty(), "{:?}", c.warnings);
}

#[test]
fn node_name_comes_from_file_then_environment() {
    let path = Path::new(FILE);
    assert_eq!(parse("").unwrap().node.as_deref(), Some("env-node"));
    assert_eq!(parse("node: a").unwrap().node.as_deref(), Some("a"));
    let none = Config::parse("", path, Some("")).unwrap();
    let message = none.require_node(path).unwrap_err().to_string();
    assert!(
        message.contains("`node:`") && message.contains("NODE_NAME"),
        "{message}"
    );
    assert!(
        Config::parse("", path, Some("Bad_Name"))
            .unwrap_err()
            .to_string()
            .contains("NODE_NAME")
    );
}

#[test]
fn workers_follow_the_cpus() {
    let auto: Vec<_> = [1, 2, 7, 8, 16, 31, 32, 128].map(|n| Workers::Auto.for_cpus(n)).into();
    assert_eq!(auto, [1, 1, 1, 1, 2, 3, 4, 4]);
}

/// Each bad file and what its message must contain, starting with the place.
#[test]
fn bad_files_are_refused_with_place_and_way_out() {
    let cases: &[(&str, &[&str])] = &[
        (
            "nod: a",
            &["conf/nodeward.yaml:1:1: ", "unknown key `nod`", "did you mean `node`?"],
        ),
        ("admin:\n  listn: x", &[":2:3: ", "`listn`", "`listen`"]),
        (
            "udp: {maxoutstanding: 1}",
            &[":1:7: ", "did you mean `maxOutstanding`?"],
        ),
        (
            "services: [{name: a/b, polcy: Local}]",
            &[":1:24: ", "did you mean `policy`?"],
        ),
        (
            "select: {labelSelector: {matchLabel: {a: b}}}",
            &["unknown key `matchLabel`", "did you mean `matchLabels`?"],
        ),
        ("node: a\nnode: b", &[":2:1: ", "`node` is here twice"]),
        ("- a", &[":1:1: "]),
        ("a: [", &["conf/nodeward.yaml:"]),
        ("select: kube-dns", &[":1:9: ", "in `select: kube-dns`"]),
        ("node: {a: b}", &[":1:7: "]),
        ("node: Worker_1", &[":1:7: node: ", "not a node name"]),
        ("workers: 0", &[":1:10: workers: "]),
        ("workers: many", &["neither `auto` nor"]),
        ("engine: epoll", &[":1:9: engine: ", "not built yet"]),
        ("engine: uring", &["engine: `uring` is not known"]),
        (
            "batchWindow: 5",
            &[":1:14: batchWindow: `5` is not a duration", "`5ms`"],
        ),
        ("batchWindow: 51ms", &["outside 0s to 50ms"]),
        ("udp: {storedBytes: 16}", &["udp.storedBytes: `16` is not a size"]),
        ("udp: {storedBytes: 2GiB}", &["udp.storedBytes: `2GiB` is outside"]),
        (
            "udp: {maxOutstanding: 1}",
            &["udp.maxOutstanding", "from 64 to 1048576"],
        ),
        ("udp: {dnsTimeout: 1ms}", &["udp.dnsTimeout", "outside 500ms to 60s"]),
        ("admin: {listen: 9410}", &["admin.listen: `9410`", "`0.0.0.0:9410`"]),
        ("admin: {runDir: run}", &["admin.runDir", "absolute"]),
        ("log: {level: loud}", &["log.level", "off, error"]),
        ("log: {format: xml}", &["log.format"]),
        ("redirect: {enabled: maybe}", &["redirect.enabled"]),
        ("redirect: {instance: Main}", &["redirect.instance"]),
        ("redirect: {mark: 0x5}", &["three neighbouring bits"]),
        (
            "redirect: {mark: 0x7000}",
            &["redirect.mark", "0x4000, which kube-proxy uses"],
        ),
        ("redirect: {poolPorts: 30000-30255}", &["NodePort range"]),
        ("redirect: {poolPorts: 40000-40255}", &["ephemeral"]),
        ("redirect: {poolPorts: 20000-20001}", &["2 ports"]),
        ("redirect: {poolPorts: 80-400}", &["below 1024"]),
        ("redirect: {routeTable: 254}", &["redirect.routeTable", "kernel"]),
        ("redirect: {rulePriority: 0}", &["redirect.rulePriority"]),
        (
            "select: {services: [dns]}",
            &["select.services[0]: `dns`", "`namespace/name`"],
        ),
        (
            "select: {labelSelector: {}}",
            &["select.labelSelector", "every Service"],
        ),
        ("select: {labelSelector: 'a in b'}", &["select.labelSelector"]),
        (
            "select: {labelSelector: {matchExpressions: [{key: a, operator: In}]}}",
            &["`In` needs `values`"],
        ),
        ("select: {serviceProxyName: ''}", &["select.serviceProxyName"]),
        (
            "topology: {defaultPolicy: PreferSameNod}",
            &["topology.defaultPolicy", "did you mean `PreferSameNode`?"],
        ),
        (
            "topology: {levels: [{name: zone}]}",
            &["topology.levels[0]", "`name` and `label`"],
        ),
        ("topology: {levels: [{name: node, label: a}]}", &["built-in rank"]),
        ("services: [{policy: Local}]", &["services[0]: `name` is missing"]),
        ("services: [{name: a/b}]", &["services[0]", "sets nothing"]),
        (
            "services: [{name: 'a/b:', policy: Local}]",
            &["services[0].name", "port's name or number"],
        ),
        (
            "services: [{name: a/b, profile: udp}]",
            &["services[0].profile", "`stream`"],
        ),
    ];
    for (text, wanted) in cases {
        let message = errors(text);
        for w in *wanted {
            assert!(message.contains(w), "{text:?}\n  says: {message}\n  lacks: {w}");
        }
    }
}

#[test]
fn contradictions_name_both_places() {
    let cases: &[(&str, &[&str])] = &[
        (
            "services:\n- {name: a/b, policy: Local}\n- {name: a/c, policy: Local}\n- {name: a/b, policy: Cluster}",
            &[":4:3: services[2]: `a/b` is ruled in line 2 already"],
        ),
        (
            "select:\n  services:\n  - a/b\n  - a/b",
            &[":4:5: select.services[1]: `a/b` is listed in line 3 already"],
        ),
        (
            "topology:\n  levels:\n  - {name: rack, label: x}\n  - {name: rack, label: y}",
            &[":4:", "`rack` exists in line 3 already"],
        ),
        (
            "topology:\n  levels:\n  - {name: rack, label: x}\n  - {name: row, label: x}",
            &[":4:", "`x` defines the level `rack` in line 3 already"],
        ),
        (
            "redirect:\n  poolPorts: 9400-9500\n",
            &["admin.listen: port 9410 lies in redirect.poolPorts 9400-9500 (line 2)"],
        ),
        (
            "admin:\n  listen: 127.0.0.1:20001\n",
            &[":2:11: admin.listen: port 20001 lies in redirect.poolPorts 20000-20255 (the default)"],
        ),
    ];
    for (text, wanted) in cases {
        let message = errors(text);
        for w in *wanted {
            assert!(message.contains(w), "{text:?}\n  says: {message}\n  lacks: {w}");
        }
    }
    let levels: Vec<_> = (0..7).map(|i| format!("{{name: l{i}, label: k{i}}}")).collect();
    let seven = format!("topology: {{levels: [{}]}}", levels.join(", "));
    assert!(errors(&seven).contains("7 levels; at most 6"));
    let six = format!("topology: {{levels: [{}]}}", levels[..6].join(", "));
    assert_eq!(parse(&six).unwrap().topology.levels.len(), 6);
}

#[test]
fn all_problems_at_once() {
    let e = parse("workers: x\nengine: y\nlog: {level: z}").unwrap_err();
    assert_eq!(e.problems.iter().map(|p| p.line).collect::<Vec<_>>(), [1, 2, 3]);
}

#[test]
fn a_rule_outside_the_selection_is_a_warning() {
    let c = parse("select: {services: [a/b]}\nservices: [{name: a/c, policy: Local}]").unwrap();
    assert_eq!(c.warnings.len(), 1);
    assert!(c.warnings[0].starts_with("conf/nodeward.yaml:2:"), "{}", c.warnings[0]);
}

#[test]
fn missing_and_non_utf8_files() {
    let e = Config::load(Path::new("/nonexistent/x.yaml")).unwrap_err().to_string();
    assert!(e.starts_with("/nonexistent/x.yaml: cannot read: "), "{e}");
    let f = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(f.path(), b"node: \xff").unwrap();
    assert!(Config::load(f.path()).unwrap_err().to_string().contains("not UTF-8"));
}

proptest::proptest! {
    /// Whatever stands in the file: an answer, never a panic.
    #[test]
    fn never_panics(text in "(node|select|udp|services|redirect|[a-z]{0,5}|[-:,\\[\\]{}#'\"& *\\n 0-9]){0,30}") {
        let _ = parse(&text);
    }
}
