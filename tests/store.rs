//! The store: any order of arrival, net changes only.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use nodeward::model::*;
use nodeward::store::Store;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

fn name(n: &str) -> ObjectName {
    ObjectName::new("default", n)
}

fn service(n: &str, uid: &str) -> Arc<Service> {
    Arc::new(Service {
        name: name(n),
        uid: uid.into(),
        service_type: ServiceType::ClusterIp,
        cluster_ips: vec![(IpFamily::V4, "10.96.0.1".parse().unwrap())],
        ports: vec![],
        session_affinity: SessionAffinity::None,
        internal_traffic_policy: TrafficPolicy::Cluster,
        external_traffic_policy: TrafficPolicy::Cluster,
        external_ips: vec![],
        load_balancer_ips: vec![],
        traffic_distribution: None,
        labels: BTreeMap::new(),
        annotations: BTreeMap::new(),
    })
}

fn slice(n: &str, of: &str, address: u8, hint: Option<&str>) -> Arc<EndpointSlice> {
    let hints = hint.map(|zone| {
        Arc::new(Hints {
            for_nodes: vec![],
            for_zones: vec![zone.into()],
        })
    });
    Arc::new(EndpointSlice {
        name: name(n),
        service: name(of),
        family: IpFamily::V4,
        ports: vec![],
        endpoints: vec![Endpoint {
            address: [10, 0, 0, address].into(),
            conditions: Conditions::DEFAULT,
            node: None,
            zone: None,
            hints,
            target_uid: 0,
        }],
        trigger_time_us: 0,
    })
}

fn names(list: &[&str]) -> BTreeSet<ObjectName> {
    list.iter().map(|n| name(n)).collect()
}

/// S14 and S15: a slice waits for its Service; slices outlive their Service.
#[test]
fn slice_and_service_in_either_order() {
    let mut store = Store::new();
    let changes = store.apply([Change::Slice(slice("web-1", "web", 1, None))]);
    assert_eq!((changes.revision, changes.services), (1, names(&["web"])));
    assert!(store.get(&name("web")).unwrap().service().is_none());

    let changes = store.apply([Change::Service(service("web", "u1"))]);
    assert_eq!((changes.revision, changes.services), (2, names(&["web"])));
    let state = store.get(&name("web")).unwrap();
    assert_eq!((state.service().is_some(), state.slices().len()), (true, 1));

    store.apply([Change::ServiceDeleted(name("web"))]);
    let state = store.get(&name("web")).unwrap();
    assert_eq!((state.service().is_some(), state.slices().len()), (false, 1));

    let changes = store.apply([Change::SliceDeleted(name("web-1"))]);
    assert_eq!(changes.services, names(&["web"]));
    assert!(
        store.get(&name("web")).is_none() && store.slice_count() == 0,
        "nothing is left behind"
    );
}

#[test]
fn equal_values_are_no_change_and_hints_are_one() {
    let mut store = Store::new();
    let objects = || {
        [
            Change::Service(service("web", "u1")),
            Change::Slice(slice("web-1", "web", 1, Some("za"))),
        ]
    };
    store.apply(objects());
    let held = store.get(&name("web")).unwrap().slices()[0].clone();
    let again = store.apply(objects());
    assert!(again.is_empty());
    assert_eq!((again.revision, store.revision()), (1, 1));
    assert!(
        Arc::ptr_eq(&held, &store.get(&name("web")).unwrap().slices()[0]),
        "the old copy is kept"
    );

    let hint_only = store.apply([Change::Slice(slice("web-1", "web", 1, Some("zb")))]);
    assert_eq!(hint_only.services, names(&["web"]));
    let new_uid = store.apply([
        Change::ServiceDeleted(name("web")),
        Change::Service(service("web", "u2")),
    ]);
    assert_eq!(
        new_uid.services,
        names(&["web"]),
        "delete and re-create in one batch is a new object"
    );
}

/// S13: what cancels out within a batch is never visible.
#[test]
fn a_batch_is_judged_by_its_outcome() {
    let mut store = Store::new();
    store.apply([
        Change::Service(service("web", "u1")),
        Change::Slice(slice("web-1", "web", 1, None)),
    ]);
    let changes = store.apply([
        Change::SliceDeleted(name("web-1")),
        Change::ServiceDeleted(name("web")),
        Change::Slice(slice("web-1", "web", 9, None)),
        Change::Slice(slice("web-1", "web", 1, None)),
        Change::Service(service("web", "u1")),
        Change::NodeDeleted("n9".into()),
    ]);
    assert!(changes.is_empty(), "{changes:?}");
    let moved = store.apply([
        Change::SliceDeleted(name("web-1")),
        Change::Slice(slice("web-2", "web", 1, None)),
    ]);
    assert_eq!(moved.services, names(&["web"]));
    let endpoints = |store: &Store| {
        store
            .get(&name("web"))
            .unwrap()
            .slices()
            .iter()
            .map(|s| s.endpoints.len())
            .sum::<usize>()
    };
    assert_eq!(endpoints(&store), 1, "no gap and no double after the move");
}

#[test]
fn a_relabelled_slice_changes_both_services() {
    let mut store = Store::new();
    store.apply([Change::Slice(slice("x", "a", 1, None))]);
    let changes = store.apply([Change::Slice(slice("x", "b", 1, None))]);
    assert_eq!(changes.services, names(&["a", "b"]));
    assert!(store.get(&name("a")).is_none());
    assert_eq!(store.slice_count(), 1);
}

#[test]
fn nodes_are_compared_too() {
    let mut store = Store::new();
    let node = |zone: &str| {
        Change::Node(Arc::new(Node {
            name: "n1".into(),
            labels: [(ZONE_LABEL.into(), zone.into())].into(),
        }))
    };
    assert_eq!(store.apply([node("za")]).nodes.len(), 1);
    assert!(store.apply([node("za")]).is_empty());
    assert!(store.apply([node("zb"), node("za")]).is_empty());
    assert_eq!(store.apply([Change::NodeDeleted("n1".into())]).nodes.len(), 1);
    assert!(store.node("n1").is_none());
}

#[derive(Clone, Debug)]
enum Op {
    Set(u8, u8),
    Delete(u8),
    Slice(u8, u8, u8),
    DeleteSlice(u8),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        (0..3u8, 0..2u8).prop_map(|(s, uid)| Op::Set(s, uid)),
        (0..3u8).prop_map(Op::Delete),
        (0..4u8, 0..3u8, 0..3u8).prop_map(|(n, s, a)| Op::Slice(n, s, a)),
        (0..4u8).prop_map(Op::DeleteSlice),
    ]
}

fn to_change(op: &Op) -> Change {
    match op {
        Op::Set(s, uid) => Change::Service(service(&s.to_string(), &uid.to_string())),
        Op::Delete(s) => Change::ServiceDeleted(name(&s.to_string())),
        Op::Slice(n, s, a) => Change::Slice(slice(&format!("slice{n}"), &s.to_string(), *a, None)),
        Op::DeleteSlice(n) => Change::SliceDeleted(name(&format!("slice{n}"))),
    }
}

/// The naive store: two maps.
#[derive(Clone, Default, PartialEq)]
struct Naive {
    services: BTreeMap<ObjectName, Arc<Service>>,
    slices: BTreeMap<ObjectName, Arc<EndpointSlice>>,
}

impl Naive {
    fn of(&self, n: &ObjectName) -> (Option<&Arc<Service>>, Vec<&Arc<EndpointSlice>>) {
        (
            self.services.get(n),
            self.slices.values().filter(|s| s.service == *n).collect(),
        )
    }
}

proptest! {
    /// B63: the changes reported are exactly the differences a naive comparison finds.
    #[test]
    fn changes_equal_a_naive_diff(batches in prop::collection::vec(prop::collection::vec(op(), 0..6), 0..12)) {
        let mut store = Store::new();
        let mut naive = Naive::default();
        for batch in batches {
            let before = naive.clone();
            for op in &batch {
                match to_change(op) {
                    Change::Service(s) => { naive.services.insert(s.name.clone(), s); }
                    Change::ServiceDeleted(n) => { naive.services.remove(&n); }
                    Change::Slice(s) => { naive.slices.insert(s.name.clone(), s); }
                    Change::SliceDeleted(n) => { naive.slices.remove(&n); }
                    Change::Node(_) | Change::NodeDeleted(_) => unreachable!(),
                }
            }
            let revision = store.revision();
            let changes = store.apply(batch.iter().map(to_change));
            let expected: BTreeSet<_> =
                (0..3).map(|s| name(&s.to_string())).filter(|n| before.of(n) != naive.of(n)).collect();
            prop_assert_eq!(changes.revision, revision + u64::from(!expected.is_empty()));
            prop_assert_eq!(changes.services, expected);
            for n in (0..3).map(|s| name(&s.to_string())) {
                let (service, slices) = naive.of(&n);
                let state = store.get(&n);
                prop_assert_eq!(state.and_then(|s| s.service()), service);
                prop_assert_eq!(state.map(|s| s.slices().iter().collect::<Vec<_>>()).unwrap_or_default(), slices);
            }
        }
    }
}
