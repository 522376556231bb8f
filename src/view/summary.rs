//! Short lists of service ports and endpoints, for people who look for something.

use super::explain::{Setting, explain, port_word};
use super::{ServicePortView, SettingOrigin};
use crate::topology::{NodeContext, ServiceRef, Verdict};
use serde::{Deserialize, Serialize};

/// One (service port, family) in a line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceRow {
    /// `namespace/name`.
    pub service: String,
    /// The port's name, or its number where it has none.
    pub port: String,
    /// `TCP` or `UDP`.
    pub protocol: String,
    /// `IPv4` or `IPv6`.
    pub family: String,
    /// The ClusterIP and port.
    pub vip: String,
    /// Kind of traffic.
    pub profile: String,
    /// The policy in force and where it came from.
    pub policy: Setting,
    /// `ranked` or `strict`.
    pub interpretation: String,
    /// Rank in use.
    pub rank: Option<String>,
    /// Endpoints with condition `ready`.
    pub ready: usize,
    /// Endpoints with condition `serving`.
    pub serving: usize,
    /// Endpoints with condition `terminating`.
    pub terminating: usize,
    /// All endpoints.
    pub total: usize,
    /// What happens to a new flow.
    pub verdict: Verdict,
    /// The same in words.
    pub status: String,
    /// How many notices `explain` has.
    pub notices: usize,
}

/// One row per view that `filter` names (all without one), in the order given.
pub fn service_rows(views: &[ServicePortView], node: &NodeContext, filter: Option<&ServiceRef>) -> Vec<ServiceRow> {
    let wanted = views.iter().filter(|v| filter.is_none_or(|f| f.matches(&v.key)));
    wanted.map(|v| service_row(v, node)).collect()
}

fn service_row(view: &ServicePortView, node: &NodeContext) -> ServiceRow {
    let count = |condition: fn(crate::model::Conditions) -> bool| {
        view.endpoints
            .iter()
            .filter(|e| condition(e.endpoint.conditions))
            .count()
    };
    let first = view.decision.tiers.first();
    let (policy, origin): (_, SettingOrigin) = view.settings.policy;
    ServiceRow {
        service: view.key.service.to_string(),
        port: port_word(view),
        protocol: view.key.protocol.to_string(),
        family: view.family.to_string(),
        vip: view.vip.to_string(),
        profile: view.settings.profile.0.as_str().to_owned(),
        policy: Setting {
            value: policy.as_str().to_owned(),
            origin: origin.as_str().to_owned(),
        },
        interpretation: view.settings.interpretation.0.as_str().to_owned(),
        rank: first.map(|t| node.rank_name(t.rank).to_owned()),
        ready: count(|c| c.ready),
        serving: count(|c| c.serving),
        terminating: count(|c| c.terminating),
        total: view.endpoints.len(),
        verdict: view.decision.verdict,
        status: match (view.decision.verdict, first) {
            (Verdict::Forward, Some(tier)) if tier.terminating => "only terminating endpoints serve".to_owned(),
            (Verdict::Forward, _) => "ok".to_owned(),
            (Verdict::Reject, _) if view.endpoints.is_empty() => "rejected: no endpoints".to_owned(),
            (Verdict::Reject, _) => "rejected: no endpoint could serve".to_owned(),
            (Verdict::Drop, _) => "dropped: no usable endpoint on this node".to_owned(),
        },
        notices: view.settings.notices.len(),
    }
}

/// One endpoint of one service port in a line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndpointRow {
    /// `namespace/name`.
    pub service: String,
    /// The port's name, or its number where it has none.
    pub port: String,
    /// `TCP` or `UDP`.
    pub protocol: String,
    /// `IPv4` or `IPv6`.
    pub family: String,
    /// `ip:port`.
    pub address: String,
    /// Its node.
    pub node: Option<String>,
    /// Its zone.
    pub zone: Option<String>,
    /// Condition `ready`.
    pub ready: bool,
    /// Condition `serving`.
    pub serving: bool,
    /// Condition `terminating`.
    pub terminating: bool,
    /// Its distance from this node.
    pub rank: String,
    /// Whether a new flow may go to it.
    pub chosen: bool,
}

/// One row per endpoint of the views that `filter` names (all without one).
pub fn endpoint_rows(views: &[ServicePortView], node: &NodeContext, filter: Option<&ServiceRef>) -> Vec<EndpointRow> {
    let wanted = views.iter().filter(|v| filter.is_none_or(|f| f.matches(&v.key)));
    let rows = wanted.flat_map(|view| {
        let explanation = explain(view, node);
        explanation.endpoints.into_iter().map(move |e| EndpointRow {
            service: explanation.service.clone(),
            port: explanation.port.clone(),
            protocol: explanation.protocol.clone(),
            family: explanation.family.clone(),
            address: e.address,
            node: e.node,
            zone: e.zone,
            ready: e.ready,
            serving: e.serving,
            terminating: e.terminating,
            rank: e.rank,
            chosen: e.chosen,
        })
    });
    rows.collect()
}
