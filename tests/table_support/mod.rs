//! Cluster states for the table's tests.
#![allow(dead_code, clippy::unwrap_used, clippy::expect_used)]

use nodeward::model::*;
use nodeward::store::Store;
use nodeward::table::{Table, TableBuilder, ViewInputs, Vip};
use nodeward::topology::{NodeContext, TopologyConfig};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

pub fn name(n: &str) -> ObjectName {
    ObjectName::new("default", n)
}

/// A Service with port 80/TCP and 53/UDP at 10.96.0.`ip`.
pub fn service(n: &str, ip: u8) -> Service {
    let port = |name: &str, protocol, port| ServicePortSpec {
        name: name.into(),
        protocol,
        port,
        node_port: 0,
        app_protocol: None,
    };
    Service {
        name: name(n),
        uid: "".into(),
        service_type: ServiceType::ClusterIp,
        cluster_ips: vec![(IpFamily::V4, IpAddr::from([10, 96, 0, ip]))],
        ports: vec![port("http", Protocol::Tcp, 80), port("dns", Protocol::Udp, 53)],
        session_affinity: SessionAffinity::None,
        internal_traffic_policy: TrafficPolicy::Cluster,
        external_traffic_policy: TrafficPolicy::Cluster,
        external_ips: vec![],
        load_balancer_ips: vec![],
        traffic_distribution: None,
        labels: BTreeMap::new(),
        annotations: BTreeMap::new(),
    }
}

/// An endpoint on a node of a zone.
pub fn endpoint(address: [u8; 4], node: &str, zone: &str) -> Endpoint {
    Endpoint {
        address: address.into(),
        conditions: Conditions::DEFAULT,
        node: Some(node.into()),
        zone: Some(zone.into()),
        hints: None,
        target_uid: u128::from(u32::from_be_bytes(address)),
    }
}

pub fn slice(n: &str, of: &str, endpoints: Vec<Endpoint>) -> EndpointSlice {
    let port = |name: &str, protocol, port| SlicePort {
        name: name.into(),
        protocol,
        port,
    };
    EndpointSlice {
        name: name(n),
        service: name(of),
        family: IpFamily::V4,
        ports: vec![port("http", Protocol::Tcp, 8080), port("dns", Protocol::Udp, 5353)],
        endpoints,
        trigger_time_us: 0,
    }
}

/// Node `n1` in zone `za`.
pub fn own_node() -> NodeContext {
    let config = TopologyConfig::default();
    NodeContext {
        name: "n1".into(),
        node: Some(Arc::new(Node {
            name: "n1".into(),
            labels: [(ZONE_LABEL.into(), "za".into())].into(),
        })),
        levels: config.levels,
        nodes: Arc::default(),
    }
}

/// Feeds a store and a builder together.
pub struct Bed {
    pub store: Store,
    pub builder: TableBuilder,
    pub node: NodeContext,
    pub config: TopologyConfig,
}

impl Default for Bed {
    fn default() -> Self {
        Self {
            store: Store::new(),
            builder: TableBuilder::new(),
            node: own_node(),
            config: TopologyConfig::default(),
        }
    }
}

impl Bed {
    /// Applies one batch; the new table, if there is one.
    pub fn apply(&mut self, batch: impl IntoIterator<Item = Change>) -> Option<Arc<Table>> {
        let changes = self.store.apply(batch);
        let inputs = ViewInputs {
            node: &self.node,
            config: &self.config,
            selected: &|_| true,
        };
        self.builder.refresh(&self.store, &changes.services, inputs)
    }
}

pub fn vip(ip: u8, port: u16, protocol: Protocol) -> Vip {
    Vip {
        address: ([10, 96, 0, ip], port).into(),
        protocol,
    }
}

/// Everything a table says, except generations.
pub fn content(table: &Table) -> BTreeMap<Vip, String> {
    let text = |e: &nodeward::table::ServicePortEntry| {
        format!(
            "{} {} {:?} {:?} {:?} {:?} {:?} {:?}",
            e.key, e.id, e.profile, e.source_address, e.affinity, e.verdict, e.tiers, e.endpoints
        )
    };
    table.iter().map(|e| (e.vip, text(e))).collect()
}
