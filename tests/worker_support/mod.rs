//! A worker on loopback for tests: a real table, real sockets, no redirection. VIPs are loopback addresses dialled directly.
#![allow(clippy::unwrap_used, clippy::expect_used, dead_code)]

use nodeward::health::FailingEndpoints;
use nodeward::model::{IpFamily, ObjectName, Protocol, ServicePortKey, SessionAffinity};
use nodeward::net::socket::vip_udp;
use nodeward::table::affinity::AffinityMemory;
use nodeward::table::publish::Publisher;
use nodeward::table::{TableBuilder, Vip};
use nodeward::telemetry::{DropReason, Registry, ServicePortSnapshot};
use nodeward::topology::{
    Decision, Interpretation, Placement, Policy, PortEndpoint, Profile, Rank, Reason, SourceAddress, Tier, Verdict,
};
use nodeward::view::{ServicePortView, SettingOrigin, Settings};
use nodeward::worker::{Clock, Command, Handle, Shared, WorkerConfig};
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

/// A loopback address of its own for each test: tests run in parallel.
pub fn address() -> Ipv4Addr {
    static NEXT: AtomicU8 = AtomicU8::new(1);
    let process = (std::process::id() % 200) as u8;
    Ipv4Addr::new(127, 7, process, NEXT.fetch_add(1, Ordering::Relaxed))
}

pub struct Rig {
    pub builder: TableBuilder,
    pub publisher: Publisher,
    pub worker: Handle,
    pub registry: Arc<Registry>,
    pub vip: Vip,
    pub key: ServicePortKey,
    pub profile: Profile,
    pub affinity: SessionAffinity,
}

impl Rig {
    pub fn new(endpoints: &[(SocketAddr, u8)]) -> Self {
        Self::with(endpoints, |_| {})
    }

    pub fn with(endpoints: &[(SocketAddr, u8)], change: impl FnOnce(&mut WorkerConfig)) -> Self {
        Self::at(SocketAddr::new(address().into(), 5353), Profile::Dns, endpoints, change)
    }

    pub fn at(
        vip: SocketAddr,
        profile: Profile,
        endpoints: &[(SocketAddr, u8)],
        change: impl FnOnce(&mut WorkerConfig),
    ) -> Self {
        let key = ServicePortKey {
            service: ObjectName::new("kube-system", "kube-dns"),
            port_name: "dns".into(),
            port: 53,
            protocol: Protocol::Udp,
        };
        let vip = Vip {
            address: vip,
            protocol: Protocol::Udp,
        };
        let mut config = WorkerConfig {
            index: 0,
            cpu: None,
            engine: Default::default(),
            max_outstanding: 1024,
            stored_bytes: 1 << 20,
            dns_timeout: 3000,
            upstream_sockets: 16,
            upstream_receive_buffer: 1 << 20,
        };
        change(&mut config);
        let registry = Arc::new(Registry::new(1));
        let shared = Shared {
            clock: Clock::start(),
            failing: Arc::new(FailingEndpoints::default()),
            affinity: Arc::new(AffinityMemory::new(1024)),
            registry: registry.clone(),
        };
        let builder = TableBuilder::new();
        let mut publisher = Publisher::new(builder.table().clone());
        let worker = Handle::start(config, publisher.reader(), shared).unwrap();
        let mut rig = Self {
            builder,
            publisher,
            worker,
            registry,
            vip,
            key,
            profile,
            affinity: SessionAffinity::None,
        };
        rig.publish(endpoints);
        let socket = vip_udp(rig.vip.address, 0, 4 << 20).expect("needs CAP_NET_ADMIN for a transparent socket");
        rig.worker.send(Command::AddVip { vip: rig.vip, socket });
        until("the VIP to be opened", || rig.worker.is_caught_up());
        rig
    }

    /// A table in which the service port has these endpoints at these ranks.
    pub fn publish(&mut self, endpoints: &[(SocketAddr, u8)]) {
        let ready: Vec<_> = endpoints.iter().map(|e| (e.0, e.1, false)).collect();
        self.publish_with(&ready);
    }

    /// As [`Rig::publish`], each endpoint ready or serving while terminating.
    pub fn publish_with(&mut self, endpoints: &[(SocketAddr, u8, bool)]) {
        let mut sorted = endpoints.to_vec();
        sorted.sort();
        // Tiers: ready ones by rank, then terminating ones by rank.
        let mut tiers: Vec<(bool, u8)> = sorted.iter().map(|e| (e.2, e.1)).collect();
        tiers.sort_unstable();
        tiers.dedup();
        let endpoint = |address: SocketAddr| PortEndpoint {
            address,
            endpoint: nodeward::model::Endpoint {
                address: address.ip(),
                conditions: nodeward::model::Conditions::DEFAULT,
                node: None,
                zone: None,
                hints: None,
                target_uid: 0,
            },
        };
        let placement = |e: &(SocketAddr, u8, bool)| Placement {
            rank: Rank(e.1),
            tier: tiers.iter().position(|t| *t == (e.2, e.1)).map(|t| t as u8),
            reason: Reason::Chosen,
        };
        let view = ServicePortView {
            key: self.key.clone(),
            family: IpFamily::of(self.vip.address.ip()),
            vip: self.vip.address,
            settings: Settings {
                policy: (Policy::PreferSameNode, SettingOrigin::Default),
                interpretation: (Interpretation::Ranked, SettingOrigin::Default),
                profile: (self.profile, SettingOrigin::Default),
                source_address: (SourceAddress::Node, SettingOrigin::Default),
                notices: Vec::new(),
            },
            affinity: self.affinity,
            endpoints: sorted.iter().map(|e| endpoint(e.0)).collect(),
            decision: Decision {
                tiers: tiers
                    .iter()
                    .map(|&(terminating, rank)| Tier {
                        rank: Rank(rank),
                        terminating,
                    })
                    .collect(),
                placements: sorted.iter().map(placement).collect(),
                verdict: if endpoints.is_empty() {
                    Verdict::Reject
                } else {
                    Verdict::Forward
                },
                any_usable: !endpoints.is_empty(),
            },
            external: None,
        };
        if let Some(table) = self.builder.update([(self.key.service.clone(), vec![view])]) {
            let generation = table.generation;
            self.publisher.publish(table);
            self.worker.wake();
            until("the table to be applied", || self.publisher.applied() >= generation);
        }
    }

    pub fn client(&self) -> UdpSocket {
        let client = UdpSocket::bind((self.vip.address.ip(), 0)).unwrap();
        // Connected: the kernel lets nothing through that does not come from the VIP and its port.
        client.connect(self.vip.address).unwrap();
        client.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        client
    }

    pub fn counts(&self) -> ServicePortSnapshot {
        self.registry.snapshot()[&(self.key.clone(), IpFamily::of(self.vip.address.ip()))].clone()
    }

    pub fn dropped(&self, reason: DropReason) -> u64 {
        self.counts().dropped[reason as usize]
    }
}

pub fn until(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !done() {
        assert!(Instant::now() < deadline, "waited too long for {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// An endpoint that answers each datagram with what `answer` makes of it, until the test ends.
pub fn endpoint(answer: impl Fn(&UdpSocket, SocketAddr, &[u8]) + Send + 'static) -> SocketAddr {
    let socket = UdpSocket::bind((address(), 0)).unwrap();
    let at = socket.local_addr().unwrap();
    std::thread::spawn(move || {
        let mut buffer = vec![0; 65_536];
        while let Ok((n, from)) = socket.recv_from(&mut buffer) {
            answer(&socket, from, &buffer[..n]);
        }
    });
    at
}

pub fn echo() -> SocketAddr {
    endpoint(|socket, from, message| {
        let mut answer = message.to_vec();
        if answer.len() > 2 {
            answer[2] |= 0x80;
        }
        socket.send_to(&answer, from).unwrap();
    })
}
