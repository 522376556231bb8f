//! "Why this endpoint?": one service port's view put into words. Pure; the live agent and a dump go through it alike.

use super::{ServicePortView, SettingOrigin};
use crate::model::TrafficPolicy;
use crate::topology::strict::{self, HintCoverage, HintMode};
use crate::topology::{
    Interpretation, NodeContext, Placement, Policy, PortEndpoint, Rank, Reason, ServiceRef, Verdict,
};
use serde::{Deserialize, Serialize};

/// The answer for one (service port, family). The fields up to `endpoints` are a contract: names, order and meaning stay.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Explanation {
    /// `namespace/name`.
    pub service: String,
    /// The port's name, or its number where it has none.
    pub port: String,
    /// `TCP` or `UDP`.
    pub protocol: String,
    /// `IPv4` or `IPv6`.
    pub family: String,
    /// The node this is seen from.
    pub node: String,
    /// Its zone.
    pub zone: Option<String>,
    /// The policy in force. Under `strict` only `Local` (internalTrafficPolicy) and `Cluster` exist.
    pub policy: String,
    /// `ranked` or `strict`.
    pub interpretation: String,
    /// Rank of the chosen endpoints.
    pub chosen_rank: Option<String>,
    /// Whether any endpoint anywhere could serve.
    pub any_usable: bool,
    /// What happens to a new flow to the ClusterIP.
    pub verdict: Verdict,
    /// `ip:port` of the endpoints a new flow may go to, sorted as text.
    pub chosen: Vec<String>,
    /// All endpoints, by address.
    pub endpoints: Vec<ExplainedEndpoint>,
    /// The ClusterIP and port.
    pub vip: String,
    /// Where the policy came from.
    pub policy_origin: String,
    /// Where the interpretation came from.
    pub interpretation_origin: String,
    /// Kind of traffic.
    pub profile: Setting,
    /// Source address towards endpoints, as set.
    pub source_address: Setting,
    /// The order of preference, most preferred first.
    pub tiers: Vec<ExplainedTier>,
    /// `strict` only: which hints are honoured.
    pub hint_mode: Option<HintMode>,
    /// `strict` only: why.
    pub hint_reason: Option<String>,
    /// Traffic from outside the cluster, where the port is reachable from there.
    pub external: Option<ExternalExplanation>,
    /// Ignored or deprecated values, in words.
    pub notices: Vec<String>,
}

/// One endpoint and the reason it is in or out. The fields up to `reason` are a contract.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExplainedEndpoint {
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
    /// Why.
    pub reason: String,
    /// Its place in [`Explanation::tiers`], from 0; none where it is not allowed.
    pub tier: Option<u8>,
    /// `hints.forNodes`.
    pub hint_nodes: Vec<String>,
    /// `hints.forZones`.
    pub hint_zones: Vec<String>,
}

/// One step of preference.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExplainedTier {
    /// Its rank.
    pub rank: String,
    /// Whether it holds terminating endpoints, the last resort.
    pub terminating: bool,
    /// How many endpoints it holds.
    pub endpoints: usize,
}

/// A setting and where it came from (`configuration`, `annotation`, `field`, `default`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Setting {
    /// The word.
    pub value: String,
    /// Its origin.
    pub origin: String,
}

impl Setting {
    fn new((value, origin): (&str, SettingOrigin)) -> Self {
        Self {
            value: value.to_owned(),
            origin: origin.as_str().to_owned(),
        }
    }
}

/// What kube-proxy does with traffic to the port's external addresses. Nodeward does not carry it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExternalExplanation {
    /// `externalTrafficPolicy`.
    pub policy: String,
    /// For clients outside the cluster.
    pub outsiders: Verdict,
    /// For pods and the node itself.
    pub insiders: Verdict,
    /// Who carries it, in words.
    pub status: String,
}

/// Explains the views that `filter` names (all of them without one), in the order given.
pub fn explain_views(views: &[ServicePortView], node: &NodeContext, filter: Option<&ServiceRef>) -> Vec<Explanation> {
    let wanted = views.iter().filter(|v| filter.is_none_or(|f| f.matches(&v.key)));
    wanted.map(|v| explain(v, node)).collect()
}

/// Explains one view. `node` must be the one the view was made for.
pub fn explain(view: &ServicePortView, node: &NodeContext) -> Explanation {
    let decision = &view.decision;
    let settings = &view.settings;
    let words = Words::new(view, node);
    let pairs = || view.endpoints.iter().zip(&decision.placements);
    let endpoints: Vec<_> = pairs().map(|(e, p)| words.endpoint(e, p)).collect();
    let mut chosen: Vec<_> = endpoints
        .iter()
        .filter(|e| e.chosen)
        .map(|e| e.address.clone())
        .collect();
    chosen.sort_unstable();
    let tiers = decision.tiers.iter().enumerate().map(|(i, tier)| ExplainedTier {
        rank: node.rank_name(tier.rank).to_owned(),
        terminating: tier.terminating,
        endpoints: decision.placements.iter().filter(|p| p.tier == Some(i as u8)).count(),
    });
    Explanation {
        service: view.key.service.to_string(),
        port: port_word(view),
        protocol: view.key.protocol.to_string(),
        family: view.family.to_string(),
        node: node.name.to_string(),
        zone: node.zone().map(|z| z.to_string()),
        policy: settings.policy.0.as_str().to_owned(),
        interpretation: settings.interpretation.0.as_str().to_owned(),
        chosen_rank: decision.tiers.first().map(|t| node.rank_name(t.rank).to_owned()),
        any_usable: decision.any_usable,
        verdict: decision.verdict,
        chosen,
        endpoints,
        vip: view.vip.to_string(),
        policy_origin: settings.policy.1.as_str().to_owned(),
        interpretation_origin: settings.interpretation.1.as_str().to_owned(),
        profile: Setting::new((settings.profile.0.as_str(), settings.profile.1)),
        source_address: Setting::new((settings.source_address.0.as_str(), settings.source_address.1)),
        tiers: tiers.collect(),
        hint_mode: words.hints.map(|(mode, _)| mode),
        hint_reason: words.hints.map(|(mode, coverage)| hint_reason(mode, coverage, node)),
        external: view.external.map(|e| ExternalExplanation {
            policy: match e.policy {
                TrafficPolicy::Cluster => "Cluster".to_owned(),
                TrafficPolicy::Local => "Local".to_owned(),
            },
            outsiders: e.outsiders,
            insiders: e.insiders,
            status: "not carried by Nodeward; it stays with kube-proxy".to_owned(),
        }),
        notices: settings.notices.clone(),
    }
}

/// The port part of a service port's name.
pub(super) fn port_word(view: &ServicePortView) -> String {
    match &*view.key.port_name {
        "" => view.key.port.to_string(),
        name => name.to_owned(),
    }
}

/// What the reasons of one view's endpoints share.
struct Words<'a> {
    view: &'a ServicePortView,
    node: &'a NodeContext,
    /// Hint mode and coverage where `strict` looks at hints: not under `internalTrafficPolicy: Local`.
    hints: Option<(HintMode, HintCoverage)>,
}

impl<'a> Words<'a> {
    fn new(view: &'a ServicePortView, node: &'a NodeContext) -> Self {
        let reads_hints = view.settings.interpretation.0 == Interpretation::Strict && !is_local(view);
        let hints = reads_hints.then(|| {
            let coverage = strict::hint_coverage(&view.endpoints, node);
            (coverage.mode(true), coverage)
        });
        Self { view, node, hints }
    }

    fn endpoint(&self, e: &PortEndpoint, placement: &Placement) -> ExplainedEndpoint {
        let endpoint = &e.endpoint;
        let hints = endpoint.hints.as_deref();
        let texts = |words: &[std::sync::Arc<str>]| words.iter().map(|w| w.to_string()).collect();
        ExplainedEndpoint {
            address: e.address.to_string(),
            node: endpoint.node.as_ref().map(|n| n.to_string()),
            zone: endpoint.zone.as_ref().map(|z| z.to_string()),
            ready: endpoint.conditions.ready,
            serving: endpoint.conditions.serving,
            terminating: endpoint.conditions.terminating,
            rank: self.node.rank_name(placement.rank).to_owned(),
            chosen: placement.tier == Some(0),
            reason: self.reason(e, placement),
            tier: placement.tier,
            hint_nodes: hints.map_or_else(Vec::new, |h| texts(&h.for_nodes)),
            hint_zones: hints.map_or_else(Vec::new, |h| texts(&h.for_zones)),
        }
    }

    fn reason(&self, e: &PortEndpoint, placement: &Placement) -> String {
        let strict = self.view.settings.interpretation.0 == Interpretation::Strict;
        let conditions = e.endpoint.conditions;
        match placement.reason {
            Reason::Chosen if !conditions.ready => self.last_resort(),
            Reason::Chosen if strict => self.chosen_by_hints(),
            Reason::Chosen => self.chosen_by_rank(),
            Reason::Fallback => "ready; next when nothing nearer is usable".to_owned(),
            Reason::NotReady if conditions.terminating => "terminating and no longer serving".to_owned(),
            Reason::NotReady => "not ready".to_owned(),
            Reason::Terminating if strict => "terminating; not used while an endpoint is ready".to_owned(),
            Reason::Terminating => "terminating; last resort when no ready endpoint is usable".to_owned(),
            Reason::OutsidePolicy => "not on this node, and Local stays there".to_owned(),
            Reason::HintedElsewhere => match self.hints {
                Some((HintMode::Node, _)) => format!("ready; not hinted to node {}, others are", self.node.name),
                _ => format!("ready; not hinted to zone {}, others are", self.zone()),
            },
        }
    }

    fn chosen_by_rank(&self) -> String {
        let rank = self.view.decision.tiers.first().map(|t| t.rank);
        let cluster = self.node.cluster_rank();
        match (self.view.settings.policy.0, rank) {
            (Policy::Cluster, _) => "ready; Cluster takes all alike".to_owned(),
            (_, Some(Rank::NODE)) => "ready, on this node".to_owned(),
            (_, Some(rank)) if rank != cluster => format!("ready, same {}", self.node.rank_name(rank)),
            (Policy::PreferLocal, _) => "ready; none on this node is".to_owned(),
            _ => "ready; none nearer is".to_owned(),
        }
    }

    fn chosen_by_hints(&self) -> String {
        match self.hints {
            None => "ready, on this node".to_owned(),
            Some((HintMode::Node, _)) => format!("ready, hinted to node {}", self.node.name),
            Some((HintMode::Zone, _)) => format!("ready, hinted to zone {}", self.zone()),
            Some((HintMode::None, _)) => "ready; no hints apply".to_owned(),
        }
    }

    fn last_resort(&self) -> String {
        if is_local(self.view) {
            "terminating but still serving; none on this node is ready".to_owned()
        } else {
            "terminating but still serving; no endpoint is ready".to_owned()
        }
    }

    fn zone(&self) -> &str {
        self.node.zone().map_or("", |z| z)
    }
}

fn is_local(view: &ServicePortView) -> bool {
    view.settings.policy.0 == Policy::Local
}

fn hint_reason(mode: HintMode, coverage: HintCoverage, node: &NodeContext) -> String {
    let ready = coverage.ready;
    let zone = node.zone();
    let node_part = match coverage.node {
        c if c.missing == ready => "no node hints".to_owned(),
        c if c.missing > 0 => format!("node hints ignored: {} of {ready} ready endpoints have none", c.missing),
        c if c.naming_us == 0 => format!("no node hint names {}", node.name),
        _ => {
            return format!(
                "all {ready} ready endpoints have node hints, {} for this node",
                coverage.node.naming_us
            );
        }
    };
    let zone_part = match (coverage.zone, zone) {
        _ if ready == 0 => return "no endpoint is ready".to_owned(),
        (c, _) if c.missing == ready => "no zone hints".to_owned(),
        (c, _) if c.missing > 0 => format!("zone hints ignored: {} of {ready} ready endpoints have none", c.missing),
        (_, None) => "zone hints ignored: this node has no zone".to_owned(),
        (c, Some(zone)) if c.naming_us == 0 => format!("no zone hint names {zone}"),
        (c, Some(zone)) => format!(
            "all {ready} ready endpoints have zone hints, {} for {zone}",
            c.naming_us
        ),
    };
    debug_assert!(mode != HintMode::Node);
    format!("{node_part}; {zone_part}")
}
