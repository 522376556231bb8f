//! Builders and a short notation for endpoints.

use nodeward::model::{
    Conditions, Endpoint, EndpointSlice, Hints, IpFamily, Node, ObjectName, Protocol, Service, ServicePortSpec,
    ServiceType, SessionAffinity, SlicePort, TrafficPolicy, ZONE_LABEL,
};
use nodeward::table::{ServicePortEntry, TierRange, Tiers, Vip};
use nodeward::topology::{Level, NodeContext, Policy, PortEndpoint, Rank, ServiceRule, TopologyConfig};
use nodeward::view::{ServicePortView, service_views};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

/// A generator with a seed that can be given from outside (`SEED`) and is printed when a test fails.
pub fn rng(test: &str) -> SmallRng {
    let seed = std::env::var("SEED")
        .ok()
        .map_or(20_260_131, |s| s.parse().expect("SEED is a number"));
    println!("{test}: SEED={seed}");
    SmallRng::seed_from_u64(seed)
}

/// Endpoints from a text such as `a:R@n1(za)/hn=n1/hz=za b:T@n2`. The letter gives the address (a is 10.0.0.1).
/// R ready · U not ready · T terminating, serving · X terminating, not serving · P terminating but ready · Q ready, not
/// serving · S serving, not ready.
pub fn endpoints(text: &str) -> Vec<Endpoint> {
    text.split_whitespace().map(endpoint).collect()
}

fn endpoint(text: &str) -> Endpoint {
    let (id, rest) = text.split_once(':').expect("id:STATE");
    let mut parts = rest.split('/');
    let mut head = parts.next().unwrap();
    let mut zone = None;
    if let Some((before, z)) = head.split_once('(') {
        zone = Some(Arc::from(z.trim_end_matches(')')));
        head = before;
    }
    let (state, node) = match head.split_once('@') {
        Some((state, node)) => (state, Some(Arc::from(node))),
        None => (head, None),
    };
    let (ready, serving, terminating) = match state {
        "R" => (true, true, false),
        "U" => (false, false, false),
        "T" => (false, true, true),
        "X" => (false, false, true),
        "P" => (true, true, true),
        "Q" => (true, false, false),
        "S" => (false, true, false),
        other => panic!("unknown state {other}"),
    };
    let mut hints = Hints::default();
    for part in parts {
        let (kind, values) = part.split_once('=').expect("hn= or hz=");
        let values: Vec<Arc<str>> = values.split(',').map(Arc::from).collect();
        match kind {
            "hn" => hints.for_nodes = values,
            "hz" => hints.for_zones = values,
            other => panic!("unknown hint {other}"),
        }
    }
    Endpoint {
        address: address(id),
        conditions: Conditions {
            ready,
            serving,
            terminating,
        },
        node,
        zone,
        hints: (hints != Hints::default()).then(|| Arc::new(hints)),
        target_uid: 0,
    }
}

pub fn address(id: &str) -> IpAddr {
    let letter = id.bytes().next().unwrap();
    assert!(id.len() == 1 && letter.is_ascii_lowercase(), "ids are single letters");
    IpAddr::V4(Ipv4Addr::new(10, 0, 0, letter - b'a' + 1))
}

/// The letter of an address made by [`address`].
pub fn letter(address: IpAddr) -> char {
    match address {
        IpAddr::V4(v4) => char::from(b'a' + v4.octets()[3] - 1),
        IpAddr::V6(_) => panic!("letters are IPv4"),
    }
}

pub fn port_endpoints(endpoints: &[Endpoint]) -> Vec<PortEndpoint> {
    let with_port = |e: &Endpoint| PortEndpoint {
        address: SocketAddr::new(e.address, 8080),
        endpoint: e.clone(),
    };
    endpoints.iter().map(with_port).collect()
}

/// A Service `ns/svc` with one unnamed TCP port 80.
pub fn service() -> Service {
    Service {
        name: ObjectName::new("ns", "svc"),
        uid: "1".into(),
        service_type: ServiceType::ClusterIp,
        cluster_ips: vec![(IpFamily::V4, "10.96.0.10".parse().unwrap())],
        ports: vec![port("", Protocol::Tcp, 80)],
        session_affinity: SessionAffinity::None,
        internal_traffic_policy: TrafficPolicy::Cluster,
        external_traffic_policy: TrafficPolicy::Cluster,
        external_ips: Vec::new(),
        load_balancer_ips: Vec::new(),
        traffic_distribution: None,
        labels: BTreeMap::new(),
        annotations: BTreeMap::new(),
    }
}

pub fn port(name: &str, protocol: Protocol, port: u16) -> ServicePortSpec {
    ServicePortSpec {
        name: name.into(),
        protocol,
        port,
        node_port: 0,
        app_protocol: None,
    }
}

pub fn slice_port(name: &str, protocol: Protocol, port: u16) -> SlicePort {
    SlicePort {
        name: name.into(),
        protocol,
        port,
    }
}

/// A slice of `ns/svc` with port 8080 for the unnamed port.
pub fn slice(name: &str, endpoints: Vec<Endpoint>) -> EndpointSlice {
    EndpointSlice {
        name: ObjectName::new("ns", name),
        service: ObjectName::new("ns", "svc"),
        family: IpFamily::V4,
        ports: vec![slice_port("", Protocol::Tcp, 8080)],
        endpoints,
        trigger_time_us: 0,
    }
}

pub fn node(name: &str, labels: &[(&str, &str)]) -> Arc<Node> {
    Arc::new(Node {
        name: name.into(),
        labels: labels.iter().map(|(k, v)| (Arc::from(*k), Arc::from(*v))).collect(),
    })
}

/// This node with its zone (none where empty) and the default levels.
pub fn context(name: &str, zone: &str) -> NodeContext {
    let labels: &[(&str, &str)] = if zone.is_empty() { &[] } else { &[(ZONE_LABEL, zone)] };
    NodeContext {
        name: name.into(),
        node: Some(node(name, labels)),
        levels: TopologyConfig::default().levels,
        nodes: Arc::default(),
    }
}

/// A context with levels of its own; `nodes` are all Nodes, the first one is this node.
pub fn context_with_levels(levels: &[(&str, &str)], nodes: &[Arc<Node>]) -> NodeContext {
    NodeContext {
        name: nodes[0].name.clone(),
        node: Some(nodes[0].clone()),
        levels: self::levels(levels),
        nodes: Arc::new(
            nodes
                .iter()
                .map(|n| (n.name.clone(), n.clone()))
                .collect::<HashMap<_, _>>(),
        ),
    }
}

pub fn levels(levels: &[(&str, &str)]) -> Arc<[Level]> {
    let level = |(name, label): &(&str, &str)| Level {
        name: Arc::from(*name),
        label: Arc::from(*label),
    };
    levels.iter().map(level).collect()
}

pub fn with_policy(policy: Policy) -> TopologyConfig {
    TopologyConfig {
        default_policy: policy,
        ..TopologyConfig::default()
    }
}

pub fn strict() -> TopologyConfig {
    TopologyConfig {
        default_interpretation: nodeward::topology::Interpretation::Strict,
        ..TopologyConfig::default()
    }
}

pub fn rule(service: &str) -> ServiceRule {
    ServiceRule {
        service: service.parse().unwrap(),
        policy: None,
        interpretation: None,
        profile: None,
        source_address: None,
    }
}

/// The only view of a Service with one port and one slice.
pub fn view(service: &Service, text: &str, node: &NodeContext, config: &TopologyConfig) -> ServicePortView {
    let slices = [Arc::new(slice("svc-1", endpoints(text)))];
    let mut views = service_views(service, &slices, node, config);
    assert_eq!(views.len(), 1);
    views.remove(0)
}

/// The tiers of a view as words: `node{a} zone{b c} cluster!{d}`, `!` for terminating.
pub fn tiers(view: &ServicePortView, node: &NodeContext) -> String {
    let mut words = Vec::new();
    for (i, tier) in view.decision.tiers.iter().enumerate() {
        let members = view.endpoints.iter().zip(&view.decision.placements);
        let members = members.filter(|(_, p)| p.tier == Some(i as u8));
        let letters: Vec<String> = members.map(|(e, _)| letter(e.address.ip()).to_string()).collect();
        let mark = if tier.terminating { "!" } else { "" };
        words.push(format!("{}{mark}{{{}}}", node.rank_name(tier.rank), letters.join(" ")));
    }
    words.join(" ")
}

/// Tiers of one text under a policy in `ranked`.
pub fn ranked(policy: Policy, text: &str, node: &NodeContext) -> String {
    tiers(&view(&service(), text, node, &with_policy(policy)), node)
}

/// Letters of the chosen tier.
pub fn chosen(view: &ServicePortView) -> String {
    let members = view.endpoints.iter().zip(&view.decision.placements);
    members
        .filter(|(_, p)| p.tier == Some(0))
        .map(|(e, _)| letter(e.address.ip()))
        .collect()
}

pub fn chosen_rank(view: &ServicePortView) -> Option<Rank> {
    view.decision.tiers.first().map(|t| t.rank)
}

/// A view laid out for picking, as the table lays it out.
pub fn entry(view: &ServicePortView) -> ServicePortEntry {
    let mut endpoints = Vec::new();
    let mut ranges = Vec::new();
    for (i, tier) in view.decision.tiers.iter().enumerate() {
        let start = endpoints.len() as u32;
        let members = view.endpoints.iter().zip(&view.decision.placements);
        endpoints.extend(members.filter(|(_, p)| p.tier == Some(i as u8)).map(|(e, _)| e.address));
        ranges.push(TierRange {
            rank: tier.rank,
            terminating: tier.terminating,
            range: start..endpoints.len() as u32,
        });
    }
    ServicePortEntry {
        notices: 0,
        key: Arc::new(view.key.clone()),
        id: 0,
        vip: Vip {
            address: view.vip,
            protocol: view.key.protocol,
        },
        profile: view.settings.profile.0,
        source_address: view.settings.source_address.0,
        affinity: view.affinity,
        verdict: view.decision.verdict,
        generation: 1,
        tiers: Tiers::from(ranges),
        endpoints: endpoints.into(),
    }
}

/// Picks `n` times with everything usable: how often each letter came, and each rank's word.
pub fn picks(view: &ServicePortView, node: &NodeContext, n: usize, rng: &mut SmallRng) -> Picks {
    let entry = entry(view);
    let mut picks = Picks::default();
    for _ in 0..n {
        let picked = entry.pick(rng.random(), |_| true).expect("something to pick");
        *picks.by_letter.entry(letter(picked.endpoint.ip())).or_default() += 1;
        *picks.by_rank.entry(node.rank_name(picked.rank).to_owned()).or_default() += 1;
    }
    picks
}

#[derive(Debug, Default)]
pub struct Picks {
    pub by_letter: BTreeMap<char, usize>,
    pub by_rank: BTreeMap<String, usize>,
}
