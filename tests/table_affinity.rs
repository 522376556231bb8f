//! Session affinity: stickiness, its limits, and agreement between workers.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod table_support;

use nodeward::model::*;
use nodeward::table::ServicePortEntry;
use nodeward::table::affinity::AffinityMemory;
use nodeward::topology::Rank;
use std::collections::{BTreeMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use table_support::*;

const TIMEOUT: u32 = 100;

/// Entries (80/TCP, 53/UDP) of a Service with `local` endpoints here and `remote` ones in another zone.
fn entries(local: &[u8], remote: &[u8]) -> [Arc<ServicePortEntry>; 2] {
    let mut web = service("web", 1);
    web.session_affinity = SessionAffinity::ClientIp {
        timeout_seconds: TIMEOUT,
    };
    let local = local.iter().map(|i| endpoint([10, 1, 0, *i], "n1", "za"));
    let remote = remote.iter().map(|i| endpoint([10, 1, 0, *i], "n2", "zb"));
    let mut bed = Bed::default();
    let table = bed
        .apply([
            Change::Service(Arc::new(web)),
            Change::Slice(Arc::new(slice("web-1", "web", local.chain(remote).collect()))),
        ])
        .unwrap();
    [vip(1, 80, Protocol::Tcp), vip(1, 53, Protocol::Udp)].map(|v| table.get(&v).unwrap().clone())
}

fn addr(i: u8) -> SocketAddr {
    ([10, 1, 0, i], 8080).into()
}

fn client(i: u32) -> IpAddr {
    IpAddr::from((0x0a02_0000 + i).to_be_bytes())
}

#[test]
fn a_client_stays_although_better_choices_appear() {
    let memory = AffinityMemory::new(1024);
    let [few, _] = entries(&[1, 2, 3], &[]);
    let [many, _] = entries(&[1, 2, 3, 4, 5, 6, 7, 8, 9], &[]);
    let first: Vec<_> = (0..50)
        .map(|i| memory.pick(&few, client(i), 0, |_| true).unwrap().endpoint)
        .collect();
    // Sooner than the time is over, again and again: the window restarts with each flow.
    for round in 1..10 {
        for (i, before) in (0..50).zip(&first) {
            let now = round * (TIMEOUT - 1);
            assert_eq!(memory.pick(&many, client(i), now, |_| true).unwrap().endpoint, *before);
        }
    }
    assert_eq!(memory.counters().kept, 450);
    // Without memory the nine endpoints would have been chosen differently.
    let without = AffinityMemory::new(1024);
    let other =
        (0..50).filter(|i| without.pick(&many, client(*i), 0, |_| true).unwrap().endpoint != first[*i as usize]);
    assert!(other.count() > 10);
    // Over: chosen anew.
    let late = 9 * (TIMEOUT - 1) + TIMEOUT;
    let moved =
        (0..50).filter(|i| memory.pick(&many, client(*i), late, |_| true).unwrap().endpoint != first[*i as usize]);
    assert!(moved.count() > 10);
    assert_eq!(memory.counters().fresh, 100);
}

#[test]
fn affinity_never_leaves_the_chosen_tier() {
    let memory = AffinityMemory::new(1024);
    let [remote_only, _] = entries(&[], &[3, 4]);
    let [with_local, _] = entries(&[1], &[3, 4]);
    let c = client(7);
    assert_eq!(memory.pick(&remote_only, c, 0, |_| true).unwrap().rank, Rank(2));
    let picked = memory.pick(&with_local, c, 1, |_| true).unwrap();
    assert_eq!((picked.endpoint, picked.rank), (addr(1), Rank(0)));
    assert_eq!(memory.counters().moved, 1);
    // The local one fails: the next tier; it recovers: back, since the remembered one is outside the tier chosen.
    let away = memory.pick(&with_local, c, 2, |e| *e != addr(1)).unwrap();
    assert_eq!((away.rank, away.panic), (Rank(2), false));
    assert_eq!(memory.pick(&with_local, c, 3, |_| true).unwrap().endpoint, addr(1));
    // Nothing usable: panic rule, first tier.
    let picked = memory.pick(&with_local, c, 4, |_| false).unwrap();
    assert_eq!((picked.endpoint, picked.panic), (addr(1), true));
    let [none, _] = entries(&[], &[]);
    assert_eq!(memory.pick(&none, c, 5, |_| true), None);
}

#[test]
fn an_unusable_endpoint_is_left_and_the_new_choice_is_remembered() {
    let memory = AffinityMemory::new(1024);
    let [entry, _] = entries(&[1, 2, 3, 4], &[]);
    for i in 0..40 {
        let first = memory.pick(&entry, client(i), 0, |_| true).unwrap().endpoint;
        let second = memory.pick(&entry, client(i), 1, |e| *e != first).unwrap().endpoint;
        assert_ne!(first, second);
        assert_eq!(memory.pick(&entry, client(i), 2, |_| true).unwrap().endpoint, second);
    }
}

/// Per service port: two ports of one Service stick to endpoints of their own.
#[test]
fn ports_are_remembered_apart() {
    let memory = AffinityMemory::new(1024);
    let [http, dns] = entries(&[1, 2, 3, 4], &[]);
    for i in 0..20 {
        let h = memory.pick(&http, client(i), 0, |_| true).unwrap().endpoint;
        let d = memory.pick(&dns, client(i), 0, |_| true).unwrap().endpoint;
        assert_eq!((h.port(), d.port()), (8080, 5353));
        assert_eq!(memory.pick(&http, client(i), 1, |_| true).unwrap().endpoint, h);
        assert_eq!(memory.pick(&dns, client(i), 1, |_| true).unwrap().endpoint, d);
    }
    assert_eq!(memory.counters().fresh, 40);
}

/// An IPv4 client that arrives on an IPv6 socket is the same client.
#[test]
fn mapped_addresses_are_one_client() {
    let memory = AffinityMemory::new(64);
    let [entry, _] = entries(&[1, 2, 3, 4], &[]);
    memory.pick(&entry, "10.2.0.9".parse().unwrap(), 0, |_| true);
    memory.pick(&entry, "::ffff:10.2.0.9".parse().unwrap(), 0, |_| true);
    assert_eq!(memory.counters().kept, 1);
}

/// The first choice needs no memory to be the same everywhere, and spreads evenly.
#[test]
fn first_choices_agree_and_spread() {
    let [entry, _] = entries(&[1, 2, 3, 4, 5], &[]);
    let (a, b) = (AffinityMemory::new(1 << 16), AffinityMemory::new(8));
    let mut counts: BTreeMap<SocketAddr, u32> = BTreeMap::new();
    let n = 10_000;
    for i in 0..n {
        let picked = a.pick(&entry, client(i), 0, |_| true).unwrap().endpoint;
        assert_eq!(b.pick(&entry, client(i), 0, |_| true).unwrap().endpoint, picked);
        *counts.entry(picked).or_default() += 1;
    }
    let mean = f64::from(n) / 5.0;
    let chi: f64 = counts.values().map(|c| (f64::from(*c) - mean).powi(2) / mean).sum();
    assert!(
        counts.len() == 5 && chi < 18.47,
        "chi-square {chi} (99.9 % quantile for 4 degrees is 18.47): {counts:?}"
    );
}

#[test]
fn a_full_memory_forgets_the_longest_unused_and_counts_it() {
    let memory = AffinityMemory::new(8);
    assert_eq!(memory.capacity(), 8);
    let [entry, _] = entries(&[1, 2, 3, 4], &[]);
    for i in 0..8 {
        memory.pick(&entry, client(i), i, |_| true);
    }
    assert_eq!(memory.counters().evicted, 0);
    // Client 0 comes again, so client 1 is the longest unused when client 8 needs room.
    memory.pick(&entry, client(0), 10, |_| true);
    memory.pick(&entry, client(8), 11, |_| true);
    assert_eq!(memory.counters().evicted, 1);
    let kept = memory.counters().kept;
    for i in [0, 2, 3, 4, 5, 6, 7, 8] {
        memory.pick(&entry, client(i), 12, |_| true);
    }
    assert_eq!(memory.counters().kept, kept + 8);
    memory.pick(&entry, client(1), 12, |_| true);
    assert_eq!(memory.counters().fresh, 10, "client 1 was forgotten");
    // What is over its time makes room without being counted.
    let evicted = memory.counters().evicted;
    for i in 100..108 {
        memory.pick(&entry, client(i), 12 + TIMEOUT, |_| true);
    }
    assert_eq!(memory.counters().evicted, evicted);
}

/// Two workers, the same clients at the same time, endpoints failing and recovering in between: each flow is answered
/// inside the usable set, and as long as a client's endpoint stays usable both workers use it.
#[test]
fn two_workers_agree() {
    let memory = Arc::new(AffinityMemory::new(1 << 14));
    let [entry, _] = entries(&[1, 2, 3, 4, 5, 6], &[7, 8]);
    let barrier = Arc::new(std::sync::Barrier::new(2));
    const CLIENTS: u32 = 500;
    const ROUNDS: u32 = 60;
    let workers: Vec<_> = (0..2)
        .map(|_| {
            let (memory, entry, barrier) = (memory.clone(), entry.clone(), barrier.clone());
            std::thread::spawn(move || {
                let mut log = Vec::new();
                for round in 0..ROUNDS {
                    barrier.wait();
                    // Every third round one endpoint is down.
                    let down = (round % 3 == 2).then(|| addr((round / 3 % 6 + 1) as u8));
                    for i in 0..CLIENTS {
                        let picked = memory.pick(&entry, client(i), round, |e| Some(*e) != down).unwrap();
                        assert!(Some(picked.endpoint) != down && picked.rank == Rank(0) && !picked.panic);
                        log.push(picked.endpoint);
                    }
                }
                log
            })
        })
        .collect();
    let logs: Vec<Vec<SocketAddr>> = workers.into_iter().map(|w| w.join().unwrap()).collect();
    assert_eq!(
        logs[0], logs[1],
        "both workers send a client to the same endpoint in every round"
    );
    for i in 0..CLIENTS as usize {
        let of_client = logs[0].iter().skip(i).step_by(CLIENTS as usize).collect::<Vec<_>>();
        for (round, pair) in of_client.windows(2).enumerate() {
            let next = round as u32 + 1;
            let down = (next % 3 == 2).then(|| addr((next / 3 % 6 + 1) as u8));
            assert!(
                pair[0] == pair[1] || Some(*pair[0]) == down,
                "client {i} moved without need in round {next}"
            );
        }
    }
    let used: HashSet<_> = logs[0].iter().collect();
    assert_eq!(used.len(), 6);
}
