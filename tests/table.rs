//! The table: sharing, generations, picking, order independence.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod table_support;

use nodeward::model::*;
use nodeward::table::{ServicePortEntry, TableBuilder, ViewInputs};
use nodeward::topology::{Rank, Verdict};
use proptest::prelude::*;
use proptest::sample::Index;
use rand::{Rng, SeedableRng, rngs::StdRng};
use std::collections::{BTreeMap, HashSet};
use std::net::SocketAddr;
use std::sync::Arc;
use table_support::*;

fn svc(n: &str, ip: u8) -> Change {
    Change::Service(Arc::new(service(n, ip)))
}

fn sl(n: &str, of: &str, endpoints: Vec<Endpoint>) -> Change {
    Change::Slice(Arc::new(slice(n, of, endpoints)))
}

/// Two on this node, three in its zone, four elsewhere.
fn nine() -> Vec<Endpoint> {
    (1..=9u8)
        .map(|i| match i {
            1..=2 => endpoint([10, 1, 0, i], "n1", "za"),
            3..=5 => endpoint([10, 1, 0, i], "n2", "za"),
            _ => endpoint([10, 1, 0, i], "n3", "zb"),
        })
        .collect()
}

fn addr(i: u8) -> SocketAddr {
    ([10, 1, 0, i], 8080).into()
}

fn nine_entry() -> Arc<ServicePortEntry> {
    let mut bed = Bed::default();
    let table = bed.apply([svc("web", 1), sl("web-1", "web", nine())]).unwrap();
    table.get(&vip(1, 80, Protocol::Tcp)).unwrap().clone()
}

#[test]
fn entries_are_found_by_vip_with_tiers_in_order() {
    let mut bed = Bed::default();
    let table = bed.apply([svc("web", 1), sl("web-1", "web", nine())]).unwrap();
    assert_eq!((table.generation, table.len()), (1, 2));
    let entry = table.get(&vip(1, 80, Protocol::Tcp)).unwrap();
    let tiers: Vec<_> = entry
        .tiers
        .iter()
        .map(|t| (t.rank, entry.endpoints_of(t).collect::<Vec<_>>()))
        .collect();
    let run = |r: std::ops::RangeInclusive<u8>| r.map(addr).collect::<Vec<_>>();
    assert_eq!(
        tiers,
        [(Rank(0), run(1..=2)), (Rank(1), run(3..=5)), (Rank(2), run(6..=9))]
    );
    assert_eq!(entry.verdict, Verdict::Forward);
    assert_eq!(entry.contains(&addr(4)), Some(Rank(1)));
    assert_eq!(entry.contains(&addr(10)), None);
    assert_eq!(entry.contains(&([10, 1, 0, 4], 5353).into()), None, "the port counts");
    let dns = table.get(&vip(1, 53, Protocol::Udp)).unwrap();
    assert_eq!(dns.endpoints.get(0), Some(([10, 1, 0, 1], 5353).into()));
    assert_ne!(dns.id, entry.id);
    assert!(table.get(&vip(1, 80, Protocol::Udp)).is_none());
    assert!(table.get(&vip(2, 80, Protocol::Tcp)).is_none());
}

#[test]
fn unchanged_entries_keep_their_arc_and_generation() {
    let mut bed = Bed::default();
    let first = bed.apply((1..=200).flat_map(|i| {
        let n = format!("s{i}");
        [svc(&n, i), sl(&format!("{n}-1"), &n, nine())]
    }));
    let first = first.unwrap();
    assert!(
        bed.apply([svc("s7", 7), sl("s7-1", "s7", nine())]).is_none(),
        "nothing changed: no new table"
    );

    let mut more = nine();
    more.push(endpoint([10, 1, 0, 10], "n1", "za"));
    let second = bed.apply([sl("s7-1", "s7", more)]).unwrap();
    assert_eq!(second.generation, 2);
    for entry in second.iter() {
        let before = first.get(&entry.vip).unwrap();
        let is_changed = entry.vip.address.ip().to_string() == "10.96.0.7";
        assert_eq!(Arc::ptr_eq(entry, before), !is_changed, "{}", entry.key);
        assert_eq!(entry.generation, if is_changed { 2 } else { 1 });
    }
    assert_eq!(
        first.get(&vip(7, 80, Protocol::Tcp)).unwrap().endpoints.len(),
        9,
        "the old table is as it was"
    );
}

/// A change that the view does not show (here: only the trigger time) makes no new table.
#[test]
fn a_change_without_effect_makes_no_table() {
    let mut bed = Bed::default();
    bed.apply([svc("web", 1), sl("web-1", "web", nine())]).unwrap();
    let mut later = slice("web-1", "web", nine());
    later.trigger_time_us = 5;
    assert!(bed.apply([Change::Slice(Arc::new(later))]).is_none());
    assert_eq!(bed.builder.table().generation, 1);
}

#[test]
fn services_come_and_go() {
    let mut bed = Bed::default();
    assert!(
        bed.apply([sl("web-1", "web", nine())]).is_none(),
        "slices alone make no entry"
    );
    let table = bed.apply([svc("web", 1)]).unwrap();
    assert_eq!(table.get(&vip(1, 80, Protocol::Tcp)).unwrap().endpoints.len(), 9);
    let table = bed.apply([Change::SliceDeleted(name("web-1"))]).unwrap();
    let entry = table.get(&vip(1, 80, Protocol::Tcp)).unwrap();
    assert_eq!((entry.verdict, entry.tiers.len()), (Verdict::Reject, 0));
    assert_eq!(entry.pick(1, |_| true), None);
    // A new ClusterIP: the old VIP is gone in the same table.
    let table = bed.apply([svc("web", 2)]).unwrap();
    assert!(table.get(&vip(1, 80, Protocol::Tcp)).is_none());
    assert!(table.get(&vip(2, 80, Protocol::Tcp)).is_some());
    let table = bed.apply([Change::ServiceDeleted(name("web"))]).unwrap();
    assert!(table.is_empty());
    assert_eq!(table.len(), 0);
}

#[test]
fn the_callers_predicate_selects() {
    let mut bed = Bed::default();
    bed.store.apply([svc("a", 1), svc("b", 2)]);
    let all = [name("a"), name("b")];
    let mut refresh = |taken: &'static str| {
        let inputs = ViewInputs {
            node: &bed.node,
            config: &bed.config,
            selected: &|s| *s.name.name == *taken,
        };
        bed.builder.refresh(&bed.store, &all, inputs)
    };
    let names = |table: &nodeward::table::Table| {
        table
            .iter()
            .map(|e| e.key.service.name.to_string())
            .collect::<HashSet<_>>()
    };
    assert_eq!(names(&refresh("a").unwrap()), HashSet::from(["a".into()]));
    assert_eq!(names(&refresh("b").unwrap()), HashSet::from(["b".into()]));
    assert!(refresh("b").is_none());
}

/// Whoever comes first, the first name has the VIP; the other takes over with a generation of its own.
#[test]
fn a_contested_vip_has_one_deterministic_owner() {
    for order in [["a", "b"], ["b", "a"]] {
        let mut bed = Bed::default();
        for n in order {
            bed.apply([svc(n, 1), sl(&format!("{n}-1"), n, nine())]);
        }
        let owner = |bed: &Bed| {
            bed.builder
                .table()
                .get(&vip(1, 80, Protocol::Tcp))
                .map(|e| e.key.service.clone())
        };
        assert_eq!(owner(&bed), Some(name("a")));
        let conflicts = bed.builder.conflicts();
        assert_eq!(conflicts.len(), 2, "both ports");
        assert_eq!(
            (&conflicts[0].winner, &conflicts[0].losers[..]),
            (&name("a"), &[name("b")][..])
        );
        let before = bed.builder.table().get(&vip(1, 80, Protocol::Tcp)).unwrap().generation;
        let table = bed.apply([Change::ServiceDeleted(name("a"))]).unwrap();
        assert_eq!(owner(&bed), Some(name("b")));
        let entry = table.get(&vip(1, 80, Protocol::Tcp)).unwrap();
        assert!(entry.generation > before, "readers must notice");
        assert_eq!(entry.generation, table.generation);
        assert!(bed.builder.conflicts().is_empty());
        // Nothing is left to do: the promoted entry is the one that is held.
        let changes = bed.store.apply([svc("b", 1)]);
        assert!(changes.is_empty());
        let inputs = ViewInputs {
            node: &bed.node,
            config: &bed.config,
            selected: &|_| true,
        };
        assert!(bed.builder.refresh(&bed.store, [&name("b")], inputs).is_none());
    }
}

/// Chi-square over 90 000 picks with a fixed seed, all usable and with one endpoint of the tier unusable.
#[test]
fn picks_are_uniform_over_the_usable() {
    let entry = nine_entry();
    let mut random = StdRng::seed_from_u64(7);
    // 99.9 % quantiles of chi-square for 1, 2, 3 degrees of freedom.
    let bounds = [10.83, 13.82, 16.27];
    let cases: [(&[u8], &[u8]); 4] = [
        (&[], &[1, 2]),
        (&[1, 2], &[3, 4, 5]),
        (&[1, 2, 4], &[3, 5]),
        (&[1, 2, 3, 4, 5], &[6, 7, 8, 9]),
    ];
    for (bad, expected) in cases {
        let bad: HashSet<_> = bad.iter().map(|i| addr(*i)).collect();
        let mut counts: BTreeMap<SocketAddr, u32> = expected.iter().map(|i| (addr(*i), 0)).collect();
        let n = 90_000;
        for _ in 0..n {
            let picked = entry.pick(random.next_u64(), |e| !bad.contains(e)).unwrap();
            assert!(!picked.panic);
            *counts
                .get_mut(&picked.endpoint)
                .expect("only the first tier with a usable endpoint") += 1;
        }
        let mean = f64::from(n) / counts.len() as f64;
        let chi: f64 = counts.values().map(|c| (f64::from(*c) - mean).powi(2) / mean).sum();
        assert!(chi < bounds[counts.len() - 2], "chi-square {chi} for {counts:?}");
    }
}

#[test]
fn when_nothing_is_usable_the_first_tier_is_used() {
    let entry = nine_entry();
    let mut seen = HashSet::new();
    let mut random = StdRng::seed_from_u64(1);
    for _ in 0..1000 {
        let picked = entry.pick(random.next_u64(), |_| false).unwrap();
        assert_eq!((picked.rank, picked.panic), (Rank(0), true));
        seen.insert(picked.endpoint);
    }
    assert_eq!(seen, HashSet::from([addr(1), addr(2)]));
}

proptest! {
    /// Never a worse tier while a better one has a usable endpoint, never one that is not usable unless none is.
    #[test]
    fn pick_respects_tiers_and_health(
        places in prop::collection::vec(0..3u8, 0..12),
        usable in prop::collection::vec(any::<bool>(), 12),
        random in any::<u64>(),
    ) {
        let endpoints: Vec<_> = places.iter().zip(1u8..).map(|(place, i)| match place {
            0 => endpoint([10, 1, 0, i], "n1", "za"),
            1 => endpoint([10, 1, 0, i], "n2", "za"),
            _ => endpoint([10, 1, 0, i], "n3", "zb"),
        }).collect();
        let mut bed = Bed::default();
        let table = bed.apply([svc("web", 1), sl("web-1", "web", endpoints)]).unwrap();
        let entry = table.get(&vip(1, 80, Protocol::Tcp)).unwrap();
        let index = |e: &SocketAddr| match e.ip() { std::net::IpAddr::V4(ip) => usize::from(ip.octets()[3]) - 1, _ => unreachable!() };
        let best = |f: &dyn Fn(usize) -> bool| (0..places.len()).filter(|i| f(*i)).map(|i| places[i]).min();
        match entry.pick(random, |e| usable[index(e)]) {
            None => prop_assert!(places.is_empty()),
            Some(picked) => {
                let i = index(&picked.endpoint);
                prop_assert_eq!(picked.rank, Rank(places[i]));
                prop_assert_eq!(entry.contains(&picked.endpoint), Some(picked.rank));
                let best_usable = best(&|i| usable[i]);
                prop_assert_eq!(picked.panic, best_usable.is_none());
                prop_assert_eq!(Some(places[i]), best_usable.or(best(&|_| true)));
                prop_assert!(picked.panic || usable[i]);
            }
        }
    }

    /// DESIGN §5.9: the same objects give the same table, in whatever order, in however many batches, with whatever detours
    /// they came, and also when it is rebuilt from the store.
    #[test]
    fn order_and_restarts_do_not_matter(
        services in prop::collection::btree_map(0..5u8, 1..4u8, 0..5),
        slices in prop::collection::btree_map(0..6u8, (0..5u8, prop::collection::btree_set(1..9u8, 0..5)), 0..6),
        detours in prop::collection::vec((0..5u8, 1..4u8, any::<Index>()), 0..8),
        shuffle in any::<u64>(),
        batch in 1..6usize,
    ) {
        let mut target: Vec<Change> = services.iter().map(|(n, ip)| svc(&n.to_string(), *ip)).collect();
        target.extend(slices.iter().map(|(n, (of, endpoints))| {
            let endpoints = endpoints.iter().map(|i| endpoint([10, 1, 0, *i], if i % 2 == 0 { "n1" } else { "n2" }, "za"));
            sl(&format!("slice{n}"), &of.to_string(), endpoints.collect())
        }));
        let mut straight = Bed::default();
        straight.apply(target.clone());

        // Fisher-Yates by a small generator, then detours: states that are undone before the end.
        let mut random = StdRng::seed_from_u64(shuffle);
        for i in (1..target.len()).rev() {
            target.swap(i, (random.next_u64() % (i as u64 + 1)) as usize);
        }
        let mut crooked = Bed::default();
        let mut events = target.clone();
        for (n, ip, at) in &detours {
            let at = at.index(events.len() + 1);
            events.insert(at, svc(&n.to_string(), *ip));
            events.insert(at, Change::SliceDeleted(name(&format!("slice{n}"))));
        }
        for (n, _, _) in &detours {
            events.push(Change::ServiceDeleted(name(&n.to_string())));
        }
        events.extend(target);
        for chunk in events.chunks(batch) {
            crooked.apply(chunk.to_vec());
        }
        let expected = content(straight.builder.table());
        prop_assert_eq!(&content(crooked.builder.table()), &expected);
        prop_assert_eq!(crooked.builder.conflicts(), straight.builder.conflicts());

        let mut rebuilt = TableBuilder::new();
        let inputs = ViewInputs { node: &crooked.node, config: &crooked.config, selected: &|_| true };
        let names: Vec<_> = crooked.store.services().map(|(n, _)| n.clone()).collect();
        rebuilt.refresh(&crooked.store, &names, inputs);
        prop_assert_eq!(&content(rebuilt.table()), &expected);
    }
}

#[cfg(feature = "dataplane")]
mod publish {
    use super::*;
    use nodeward::table::publish::Publisher;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[test]
    fn readers_see_each_table_and_say_so() {
        let mut bed = Bed::default();
        let mut publisher = Publisher::new(bed.builder.table().clone());
        let mut a = publisher.reader();
        let mut b = publisher.reader();
        let table = bed.apply([svc("web", 1)]).unwrap();
        publisher.publish(table);
        assert_eq!(a.load().len(), 2);
        assert_eq!(publisher.applied(), 0, "b has not looked yet");
        assert_eq!(b.load().len(), 2);
        assert_eq!(publisher.applied(), 1);
        drop(b);
        publisher.publish(bed.apply([svc("web", 2)]).unwrap());
        assert_eq!(publisher.collect(), 1, "a still holds the table before");
        assert_eq!(publisher.applied(), 1);
        a.load();
        assert_eq!(
            (publisher.applied(), publisher.collect()),
            (2, 0),
            "a reader that is gone does not count"
        );
    }

    /// Each table has all endpoints of a service in one of two ranges: a mix would be a torn state.
    #[test]
    fn no_reader_ever_sees_half_a_table() {
        let mut bed = Bed::default();
        let both = |i: u8| {
            let e = |n: u8| {
                vec![
                    endpoint([10, 1, i, n], "n1", "za"),
                    endpoint([10, 1, i, n + 1], "n2", "zb"),
                ]
            };
            [sl("a-1", "a", e(1)), sl("b-1", "b", e(1))]
        };
        bed.apply([svc("a", 1), svc("b", 2)]);
        bed.apply(both(0));
        let mut publisher = Publisher::new(bed.builder.table().clone());
        let stop = Arc::new(AtomicBool::new(false));
        let readers: Vec<_> = (0..2)
            .map(|_| {
                let (mut reader, stop) = (publisher.reader(), stop.clone());
                std::thread::spawn(move || {
                    let (mut last, mut tables) = (0, 0);
                    while !stop.load(Ordering::Relaxed) {
                        let table = reader.load();
                        assert!(table.generation >= last);
                        tables += u64::from(table.generation > last);
                        last = table.generation;
                        let third =
                            |n: u8| match table.get(&vip(n, 80, Protocol::Tcp)).unwrap().endpoints.get(0).unwrap() {
                                SocketAddr::V4(a) => a.ip().octets()[2],
                                SocketAddr::V6(_) => unreachable!(),
                            };
                        assert_eq!(third(1), third(2));
                    }
                    tables
                })
            })
            .collect();
        for round in 0..2000u32 {
            let table = bed.apply(both((round % 200 + 1) as u8));
            if let Some(table) = table {
                publisher.publish(table);
            }
        }
        while publisher.applied() < publisher.current().generation {
            std::thread::yield_now();
        }
        stop.store(true, Ordering::Relaxed);
        for reader in readers {
            assert!(reader.join().unwrap() > 0);
        }
        assert_eq!(publisher.collect(), 0);
    }
}
