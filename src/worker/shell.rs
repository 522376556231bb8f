//! What the DNS core sees of a worker: the table, health, sockets and counters behind its small trait.

use super::state::VipSlot;
use super::tag::Tag;
use crate::engine::{Outbox, SocketKey};
use crate::flow::dns::{Choice, Count, SendTag, Shell};
use crate::flow::{oneway, stream};
use crate::health::FailingEndpoints;
use crate::model::{Protocol, SessionAffinity};
use crate::table::affinity::AffinityMemory;

use crate::telemetry::{MAX_RANKS, WorkerCounters};
use rand::Rng;
use rand::rngs::StdRng;
use std::net::{IpAddr, SocketAddr};

/// A worker as the core sees it during one call.
pub struct WorkerShell<'a> {
    pub out: &'a mut dyn Outbox,
    pub vips: &'a [Option<VipSlot>],
    pub upstream: &'a [SocketKey],
    pub failing: &'a FailingEndpoints,
    pub affinity: &'a AffinityMemory,
    pub counters: &'a WorkerCounters,
    pub rng: &'a mut StdRng,
    pub now: u64,
}

impl WorkerShell<'_> {
    fn vip(&self, service: u32) -> Option<&VipSlot> {
        self.vips.get(service as usize)?.as_ref()
    }
}

impl WorkerShell<'_> {
    /// The rank of an endpoint that a flow may keep and that is not failing.
    fn usable_rank(&self, service: u32, endpoint: &SocketAddr) -> Option<u8> {
        let rank = self.vip(service)?.entry.as_ref()?.may_keep(endpoint)?.0;
        (!self.failing.is_failing(endpoint, Protocol::Udp, self.now)).then_some(rank)
    }

    /// Changes when the service port's endpoints or anybody's health may have changed.
    fn state_version(&self, service: u32) -> u64 {
        let entry = self.vip(service).and_then(|v| v.entry.as_ref());
        let generation = entry.map_or(0, |e| e.generation);
        // While anybody is failing, hold-downs end as time passes.
        let health = if self.failing.is_empty() { 0 } else { self.now };
        (generation << 40) ^ health
    }
}

impl Shell for WorkerShell<'_> {
    fn random(&mut self) -> u64 {
        self.rng.next_u64()
    }

    fn choose(
        &mut self,
        service: u32,
        client: IpAddr,
        first: bool,
        any_health: bool,
        exclude: &dyn Fn(&SocketAddr) -> bool,
    ) -> Option<Choice> {
        let random = self.rng.next_u64();
        let entry = self.vip(service)?.entry.as_ref()?;
        let usable = |endpoint: &SocketAddr| {
            (any_health || !self.failing.is_failing(endpoint, Protocol::Udp, self.now)) && !exclude(endpoint)
        };
        let picked = if first && entry.affinity != SessionAffinity::None {
            self.affinity.pick(entry, client, (self.now / 1000) as u32, usable)?
        } else {
            entry.pick(random, usable)?
        };
        Some(Choice {
            endpoint: picked.endpoint,
            rank: picked.rank.0,
            fallback: entry.tiers.first().is_some_and(|tier| tier.rank != picked.rank),
            panic: picked.panic,
        })
    }

    fn rank(&self, service: u32, endpoint: &SocketAddr) -> Option<u8> {
        let rank = self.vip(service)?.entry.as_ref()?.contains(endpoint)?;
        Some(rank.0)
    }

    fn answered(&mut self, endpoint: &SocketAddr) {
        self.failing.answered(endpoint, Protocol::Udp, self.now);
    }

    fn refused(&mut self, endpoint: &SocketAddr) {
        let random = self.rng.next_u64();
        self.failing.refused(endpoint, Protocol::Udp, self.now, random);
    }

    fn send_upstream(&mut self, socket: u16, endpoint: &SocketAddr, message: &[u8], tag: SendTag) {
        if let Some(&key) = self.upstream.get(usize::from(socket)) {
            self.out.send(key, endpoint, message, Tag::Query(socket, tag).pack());
        }
    }

    fn send_client(&mut self, service: u32, client: &SocketAddr, message: &[u8]) {
        let Some(key) = self.vip(service).map(|v| v.socket) else {
            return;
        };
        self.out.send(key, client, message, Tag::Reply(service).pack());
    }

    fn count(&mut self, service: u32, what: Count) {
        let Some(counters) = self.vip(service).map(|v| &v.counters) else {
            return;
        };
        match what {
            Count::Forwarded { choice, bytes } => {
                counters.forwarded[usize::from(choice.rank).min(MAX_RANKS - 1)].add(1);
                counters.forwarded_bytes.add(bytes as u64);
                counters.fallbacks.add(choice.fallback.into());
                counters.panics.add(choice.panic.into());
            }
            Count::Answered { bytes, rcode } => {
                counters.answered.add(1);
                counters.answered_bytes.add(bytes as u64);
                counters.rcodes[usize::from(rcode & 0x0f)].add(1);
            }
            Count::Synthesized => counters.synthesized.add(1),
            Count::Retry => counters.retries.add(1),
            Count::Moved => counters.moved.add(1),
            Count::Unanswered => counters.unanswered.add(1),
            Count::Dropped(reason) => counters.drop_one(reason),
        }
    }

    fn stray_answer(&mut self) {
        self.counters.stray_answers.add(1);
    }
}

impl oneway::Shell for WorkerShell<'_> {
    fn best(&mut self, service: u32, client: IpAddr) -> Option<oneway::Target> {
        let entry = self.vip(service)?.entry.as_ref()?;
        let usable = |endpoint: &SocketAddr| !self.failing.is_failing(endpoint, Protocol::Udp, self.now);
        let picked = self.affinity.pick(entry, client, (self.now / 1000) as u32, usable)?;
        Some(oneway::Target {
            endpoint: picked.endpoint,
            rank: picked.rank.0,
            panic: picked.panic,
        })
    }

    fn usable(&self, service: u32, endpoint: &SocketAddr) -> Option<u8> {
        self.usable_rank(service, endpoint)
    }

    fn version(&self, service: u32) -> u64 {
        self.state_version(service)
    }
}

impl stream::Shell for WorkerShell<'_> {
    fn random(&mut self) -> u64 {
        self.rng.next_u64()
    }

    fn choose(&mut self, service: u32, client: &SocketAddr) -> Option<stream::Target> {
        let choice = Shell::choose(self, service, client.ip(), true, false, &|_| false)?;
        Some(stream::Target {
            endpoint: choice.endpoint,
            rank: choice.rank,
            fallback: choice.fallback,
            panic: choice.panic,
        })
    }

    fn usable(&self, service: u32, endpoint: &SocketAddr) -> Option<u8> {
        self.usable_rank(service, endpoint)
    }

    fn version(&self, service: u32) -> u64 {
        self.state_version(service)
    }
}
