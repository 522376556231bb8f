//! Where settings come from: configuration, annotation, the Service's fields, default; and that bad values are noted.

use super::support::*;
use nodeward::model::{Protocol, Service, ServicePortSpec, TrafficPolicy};
use nodeward::topology::{Interpretation, Policy, Profile, ServiceRef, SourceAddress, TopologyConfig};
use nodeward::view::{ServicePortView, SettingOrigin, service_views};

use SettingOrigin::{Annotation, Configuration, Default as Preset, Field};

const POLICY: &str = "nodeward.io/policy";
const OVN: &str = "traffic-policy.network.alpha.openshift.io/local-with-fallback";

fn look(service: &Service, config: &TopologyConfig) -> ServicePortView {
    service_views(service, &[], &context("n1", "za"), config).remove(0)
}

fn annotated(annotations: &[(&str, &str)]) -> Service {
    let mut service = service();
    service.annotations = annotations.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect();
    service
}

#[test]
fn policy_precedence_is_configuration_annotation_field_default() {
    let mut config = with_policy(Policy::PreferSameNode);
    let mut service = service();
    assert_eq!(
        look(&service, &config).settings.policy,
        (Policy::PreferSameNode, Preset)
    );
    service.traffic_distribution = Some("PreferSameZone".into());
    assert_eq!(look(&service, &config).settings.policy, (Policy::PreferSameZone, Field));
    service.internal_traffic_policy = TrafficPolicy::Local;
    assert_eq!(look(&service, &config).settings.policy, (Policy::Local, Field));
    service.annotations.insert(OVN.into(), "".into());
    assert_eq!(
        look(&service, &config).settings.policy,
        (Policy::PreferSameNode, Annotation)
    );
    service.annotations.insert(POLICY.into(), "PreferLocal".into());
    assert_eq!(
        look(&service, &config).settings.policy,
        (Policy::PreferLocal, Annotation)
    );
    config.rules.push(rule("ns/svc"));
    config.rules[0].policy = Some(Policy::Cluster);
    assert_eq!(
        look(&service, &config).settings.policy,
        (Policy::Cluster, Configuration)
    );
    config.rules.push(rule("ns/svc:80"));
    // A rule for the port that says nothing about the policy leaves it to the Service's rule.
    assert_eq!(
        look(&service, &config).settings.policy,
        (Policy::Cluster, Configuration)
    );
    config.rules[1].policy = Some(Policy::PreferSameZone);
    assert_eq!(
        look(&service, &config).settings.policy,
        (Policy::PreferSameZone, Configuration)
    );
    config.rules.push(rule("ns/other"));
    config.rules[2].policy = Some(Policy::Local);
    assert_eq!(
        look(&service, &config).settings.policy,
        (Policy::PreferSameZone, Configuration)
    );
    assert_eq!(look(&service, &config).settings.notices, [""; 0]);
}

#[test]
fn the_other_settings_follow_the_same_precedence() {
    let mut service = annotated(&[
        ("nodeward.io/interpretation", "strict"),
        ("nodeward.io/source-address", "node"),
        ("nodeward.io/profile", "tcp"),
    ]);
    let mut config = TopologyConfig::default();
    let settings = look(&service, &config).settings;
    assert_eq!(settings.interpretation, (Interpretation::Strict, Annotation));
    assert_eq!(settings.source_address, (SourceAddress::Node, Annotation));
    assert_eq!(settings.profile, (Profile::Tcp, Annotation));
    config.rules.push(rule("ns/svc"));
    config.rules[0].interpretation = Some(Interpretation::Ranked);
    config.rules[0].source_address = Some(SourceAddress::Client);
    config.rules[0].profile = Some(Profile::Tcp);
    let settings = look(&service, &config).settings;
    assert_eq!(settings.interpretation, (Interpretation::Ranked, Configuration));
    assert_eq!(settings.source_address, (SourceAddress::Client, Configuration));
    assert_eq!(settings.profile, (Profile::Tcp, Configuration));
    service.annotations.clear();
    config.rules.clear();
    config.default_interpretation = Interpretation::Strict;
    config.default_source_address = SourceAddress::Client;
    let settings = look(&service, &config).settings;
    assert_eq!(settings.interpretation, (Interpretation::Strict, Preset));
    assert_eq!(settings.source_address, (SourceAddress::Client, Preset));
    assert_eq!(settings.profile, (Profile::Tcp, Preset));
}

#[test]
fn unknown_values_are_ignored_and_noted() {
    for (name, value) in [
        (POLICY, "PreferNode"),
        (POLICY, "prefersamenode"),
        (POLICY, ""),
        ("nodeward.io/interpretation", "Strict"),
        ("nodeward.io/profile", "quic"),
        ("nodeward.io/source-address", "vip"),
    ] {
        let settings = look(&annotated(&[(name, value)]), &TopologyConfig::default()).settings;
        let plain = look(&service(), &TopologyConfig::default()).settings;
        assert_eq!(settings.policy, plain.policy);
        assert_eq!(settings.interpretation, plain.interpretation);
        assert_eq!(settings.profile, plain.profile);
        assert_eq!(settings.source_address, plain.source_address);
        assert_eq!(settings.notices.len(), 1, "{name}={value}: {:?}", settings.notices);
        assert!(settings.notices[0].contains(name) && settings.notices[0].contains(value));
    }
    let mut service = service();
    service.traffic_distribution = Some("PreferMoon".into());
    let settings = look(&service, &TopologyConfig::default()).settings;
    assert_eq!(settings.policy, (Policy::PreferSameNode, Preset));
    assert_eq!(
        settings.notices,
        ["trafficDistribution: \"PreferMoon\" is unknown and ignored"]
    );
}

#[test]
fn an_annotation_may_name_ports() {
    let mut service = annotated(&[(POLICY, "dns=Local, 9153=Cluster ,PreferSameZone,web=Local")]);
    service.ports = vec![
        port("dns", Protocol::Udp, 53),
        port("metrics", Protocol::Tcp, 9153),
        port("other", Protocol::Tcp, 80),
    ];
    let views = service_views(&service, &[], &context("n1", "za"), &TopologyConfig::default());
    let policies: Vec<_> = views.iter().map(|v| v.settings.policy.0).collect();
    assert_eq!(policies, [Policy::Local, Policy::Cluster, Policy::PreferSameZone]);
    assert!(
        views.iter().all(|v| v.settings.notices.len() == 1),
        "the Service has no port web"
    );
    assert!(views[0].settings.notices[0].contains("\"web\""));
}

#[test]
fn strict_reads_neither_distribution_nor_policy_annotations_nor_rules() {
    let mut service = annotated(&[(POLICY, "Local"), (OVN, "")]);
    service.traffic_distribution = Some("PreferSameNode".into());
    let mut config = strict();
    config.rules.push(rule("ns/svc"));
    config.rules[0].policy = Some(Policy::Local);
    let text = "a:R@n1(za) b:R@n2(za) c:R@n3(zb)";
    let seen = view(&service, text, &context("n1", "za"), &config);
    assert_eq!(seen.settings.policy, (Policy::Cluster, Preset));
    assert_eq!(chosen(&seen), "abc");
    assert_eq!(seen.settings.notices.len(), 3, "{:?}", seen.settings.notices);
    service.internal_traffic_policy = TrafficPolicy::Local;
    let seen = view(&service, text, &context("n1", "za"), &config);
    assert_eq!(seen.settings.policy, (Policy::Local, Field));
    assert_eq!(chosen(&seen), "a");
}

fn guessed(spec: ServicePortSpec) -> Profile {
    let mut service = service();
    service.ports = vec![spec];
    let settings = look(&service, &TopologyConfig::default()).settings;
    assert_eq!(settings.profile.1, Preset);
    settings.profile.0
}

#[test]
fn profiles_are_guessed_from_name_number_and_app_protocol() {
    let mut app = port("", Protocol::Udp, 9999);
    app.app_protocol = Some("dns".into());
    for (spec, profile) in [
        (port("", Protocol::Udp, 53), Profile::Dns),
        (port("dns", Protocol::Udp, 5353), Profile::Dns),
        (port("dns-udp", Protocol::Udp, 5353), Profile::Dns),
        (app, Profile::Dns),
        (port("", Protocol::Udp, 8125), Profile::Oneway),
        (port("statsd", Protocol::Udp, 1), Profile::Oneway),
        (port("dogstatsd", Protocol::Udp, 1), Profile::Oneway),
        (port("syslog", Protocol::Udp, 514), Profile::Stream),
        (port("dns-tcp", Protocol::Tcp, 53), Profile::Tcp),
        (port("dns", Protocol::Tcp, 53), Profile::Tcp),
    ] {
        assert_eq!(guessed(spec.clone()), profile, "{spec:?}");
    }
}

#[test]
fn a_profile_that_does_not_fit_the_protocol_is_ignored_and_noted() {
    let settings = look(
        &annotated(&[("nodeward.io/profile", "dns")]),
        &TopologyConfig::default(),
    )
    .settings;
    assert_eq!(settings.profile, (Profile::Tcp, Preset));
    assert_eq!(
        settings.notices,
        ["profile dns (annotation) does not fit TCP; tcp is used"]
    );
}

#[test]
fn configuration_accepts_the_aliases_of_policies() {
    for (word, policy) in [
        ("PreferClose", Policy::PreferSameZone),
        ("PreferNode", Policy::PreferSameNode),
        ("PreferREALLYClose", Policy::PreferSameNode),
        ("NodeLocalOnly", Policy::Local),
    ] {
        assert_eq!(serde_json::from_value::<Policy>(word.into()).unwrap(), policy);
    }
    for policy in Policy::ALL {
        assert_eq!(serde_json::to_value(policy).unwrap(), policy.as_str());
        assert_eq!(
            serde_json::from_value::<Policy>(policy.as_str().into()).unwrap(),
            *policy
        );
    }
}

#[test]
fn service_references_parse_print_and_refuse() {
    for text in ["kube-system/kube-dns", "kube-system/kube-dns:dns", "a/b:53"] {
        assert_eq!(text.parse::<ServiceRef>().unwrap().to_string(), text);
    }
    for text in ["", "kube-dns", "/x", "a/", "a/b:", "a/b/c", "a/b:c:d", "a /b"] {
        let error = text.parse::<ServiceRef>().unwrap_err().to_string();
        assert!(
            error.contains("namespace/name") && error.contains(&format!("{text:?}")),
            "{error}"
        );
    }
}

#[test]
fn a_question_may_fix_the_interpretation() {
    let service = annotated(&[("nodeward.io/interpretation", "ranked")]);
    let mut config = TopologyConfig::default();
    config.rules.push(rule("ns/svc:80"));
    config.rules[0].interpretation = Some(Interpretation::Ranked);
    let asked = config.with_interpretation(&service.name, Interpretation::Strict);
    assert_eq!(
        look(&service, &config).settings.interpretation.0,
        Interpretation::Ranked
    );
    assert_eq!(look(&service, &asked).settings.interpretation.0, Interpretation::Strict);
}
