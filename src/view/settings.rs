//! Settings of a service port: configuration before annotation before the Service's fields before the default.
//!
//! Nothing a Service says is ever an error: an unknown value is ignored, as Kubernetes does, and noted.

use super::{SettingOrigin, Settings};
use crate::model::{Protocol, Service, ServicePortKey, ServicePortSpec, TrafficPolicy};
use crate::topology::{Interpretation, Policy, Profile, ServiceRule, SourceAddress, TopologyConfig, port_matches};

/// Annotation: the policy.
pub const POLICY: &str = "nodeward.io/policy";
/// Annotation: the interpretation.
pub const INTERPRETATION: &str = "nodeward.io/interpretation";
/// Annotation: the profile.
pub const PROFILE: &str = "nodeward.io/profile";
/// Annotation: the source address.
pub const SOURCE_ADDRESS: &str = "nodeward.io/source-address";
/// OVN-Kubernetes' annotation for its own "local with fallback"; present, it means `PreferSameNode` (its value is not
/// read, as there).
pub const LOCAL_WITH_FALLBACK: &str = "traffic-policy.network.alpha.openshift.io/local-with-fallback";

/// The settings of one service port.
pub(super) fn settings(
    service: &Service,
    spec: &ServicePortSpec,
    key: &ServicePortKey,
    config: &TopologyConfig,
) -> Settings {
    let mut rules: Vec<&ServiceRule> = config.rules.iter().filter(|r| r.service.matches(key)).collect();
    // A rule for the port comes before one for the Service; otherwise the configuration's order stays.
    rules.sort_by_key(|r| r.service.port.is_none());
    let mut sources = Sources {
        service,
        key,
        config,
        rules,
        notices: Vec::new(),
    };
    let interpretation = sources
        .rule(|r| r.interpretation)
        .or_else(|| sources.annotation(INTERPRETATION, Interpretation::ALL, Interpretation::as_str))
        .unwrap_or((config.default_interpretation, SettingOrigin::Default));
    let source_address = sources
        .rule(|r| r.source_address)
        .or_else(|| sources.annotation(SOURCE_ADDRESS, SourceAddress::ALL, SourceAddress::as_str))
        .unwrap_or((config.default_source_address, SettingOrigin::Default));
    let policy = match interpretation.0 {
        Interpretation::Ranked => sources.ranked_policy(),
        Interpretation::Strict => sources.strict_policy(),
    };
    let profile = sources.profile(spec);
    if service.ports.iter().any(|p| p.protocol == Protocol::Sctp) {
        sources
            .notices
            .push("SCTP ports of this Service are not carried; they stay with kube-proxy".to_owned());
    }
    Settings {
        policy,
        interpretation,
        profile,
        source_address,
        notices: sources.notices,
    }
}

type Setting<T> = Option<(T, SettingOrigin)>;

struct Sources<'a> {
    service: &'a Service,
    key: &'a ServicePortKey,
    config: &'a TopologyConfig,
    rules: Vec<&'a ServiceRule>,
    notices: Vec<String>,
}

impl<'a> Sources<'a> {
    /// What the configuration says.
    fn rule<T>(&self, field: impl Fn(&ServiceRule) -> Option<T>) -> Setting<T> {
        let found = self.rules.iter().find_map(|r| field(r));
        found.map(|v| (v, SettingOrigin::Configuration))
    }

    /// The part of an annotation that is meant for this port. The value is one word for all ports, or a list such as
    /// `dns=Local,metrics=Cluster` with a port's name or number before `=`; a word without `=` serves the other ports.
    fn annotation_text(&mut self, name: &str) -> Option<&'a str> {
        let text: &'a str = self.service.annotations.get(name)?;
        // An empty value is no word any setting knows.
        let mut for_all = text.trim().is_empty().then_some("");
        let mut for_port = None;
        for item in text.split(',').map(str::trim).filter(|i| !i.is_empty()) {
            match item.split_once('=') {
                None => for_all = Some(item),
                Some((port, value)) if port_matches(port.trim(), self.key) => for_port = Some(value.trim()),
                Some((port, _)) => {
                    let port = port.trim();
                    let known = |p: &ServicePortSpec| *p.name == *port || port.parse() == Ok(p.port);
                    if !self.service.ports.iter().any(known) {
                        self.notices
                            .push(format!("annotation {name}: the Service has no port {port:?}; ignored"));
                    }
                }
            }
        }
        for_port.or(for_all)
    }

    fn annotation<T: Copy>(&mut self, name: &str, all: &[T], word: impl Fn(T) -> &'static str) -> Setting<T> {
        let text = self.annotation_text(name)?;
        self.known(name, text, all, word)
    }

    fn known<T: Copy>(&mut self, name: &str, text: &str, all: &[T], word: impl Fn(T) -> &'static str) -> Setting<T> {
        let known = all.iter().copied().find(|v| word(*v) == text);
        if known.is_none() {
            let words: Vec<&str> = all.iter().map(|v| word(*v)).collect();
            self.notices.push(format!(
                "annotation {name}: {text:?} is unknown and ignored; known are {}",
                words.join(", ")
            ));
        }
        known.map(|v| (v, SettingOrigin::Annotation))
    }

    fn policy_annotation(&mut self) -> Setting<Policy> {
        match self.annotation_text(POLICY)? {
            "PreferClose" => {
                self.notices.push(deprecated(&format!("annotation {POLICY}")));
                Some((Policy::PreferSameZone, SettingOrigin::Annotation))
            }
            text => self.known(POLICY, text, Policy::ALL, Policy::as_str),
        }
    }

    fn ranked_policy(&mut self) -> (Policy, SettingOrigin) {
        if let Some(found) = self.rule(|r| r.policy) {
            return found;
        }
        if let Some(found) = self.policy_annotation() {
            return found;
        }
        if self.service.annotations.contains_key(LOCAL_WITH_FALLBACK) {
            return (Policy::PreferSameNode, SettingOrigin::Annotation);
        }
        let distribution = self.traffic_distribution();
        if self.service.internal_traffic_policy == TrafficPolicy::Local {
            return (Policy::Local, SettingOrigin::Field);
        }
        match distribution {
            Some(policy) => (policy, SettingOrigin::Field),
            None => (self.config.default_policy, SettingOrigin::Default),
        }
    }

    fn traffic_distribution(&mut self) -> Option<Policy> {
        match self.service.traffic_distribution.as_deref()? {
            "PreferSameZone" => Some(Policy::PreferSameZone),
            "PreferSameNode" => Some(Policy::PreferSameNode),
            "PreferClose" => {
                self.notices.push(deprecated("trafficDistribution"));
                Some(Policy::PreferSameZone)
            }
            unknown => {
                self.notices
                    .push(format!("trafficDistribution: {unknown:?} is unknown and ignored"));
                None
            }
        }
    }

    /// `strict` reads `internalTrafficPolicy` alone; what it leaves aside is noted.
    fn strict_policy(&mut self) -> (Policy, SettingOrigin) {
        let configured = self.rule(|r| r.policy).is_some();
        let mut unread = |what: &str| {
            let why = "strict reads internalTrafficPolicy and hints only";
            self.notices.push(format!("{what} is not read: {why}"));
        };
        if configured {
            unread("the configured policy");
        }
        for name in [POLICY, LOCAL_WITH_FALLBACK] {
            if self.service.annotations.contains_key(name) {
                unread(&format!("annotation {name}"));
            }
        }
        match self.service.internal_traffic_policy {
            TrafficPolicy::Local => (Policy::Local, SettingOrigin::Field),
            TrafficPolicy::Cluster => (Policy::Cluster, SettingOrigin::Default),
        }
    }

    fn profile(&mut self, spec: &ServicePortSpec) -> (Profile, SettingOrigin) {
        let guess = guess(spec);
        let found = self
            .rule(|r| r.profile)
            .or_else(|| self.annotation(PROFILE, Profile::ALL, Profile::as_str));
        match found {
            Some((profile, origin)) if profile.fits(spec.protocol) => (profile, origin),
            Some((profile, origin)) => {
                self.notices.push(format!(
                    "profile {} ({}) does not fit {}; {} is used",
                    profile.as_str(),
                    origin.as_str(),
                    spec.protocol,
                    guess.as_str()
                ));
                (guess, SettingOrigin::Default)
            }
            None => (guess, SettingOrigin::Default),
        }
    }
}

fn deprecated(what: &str) -> String {
    format!("{what}: \"PreferClose\" is deprecated and means PreferSameZone; write PreferSameZone")
}

/// The profile that port name, number and `appProtocol` suggest.
fn guess(spec: &ServicePortSpec) -> Profile {
    if spec.protocol != Protocol::Udp {
        return Profile::Tcp;
    }
    let app = spec.app_protocol.as_deref();
    match (&*spec.name, spec.port) {
        ("dns" | "dns-udp", _) | (_, 53) => Profile::Dns,
        _ if app == Some("dns") => Profile::Dns,
        ("statsd" | "dogstatsd", _) | (_, 8125) => Profile::Oneway,
        _ => Profile::Stream,
    }
}
