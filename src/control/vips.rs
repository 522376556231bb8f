//! Which VIPs are taken, and how they come and go. Pure: what to do is returned, done elsewhere.
//!
//! Life of a VIP: opening (every worker gets a socket) → serving (in `svc`: new flows are ours) → draining (out of `svc`,
//! sockets stay until what is under way has its answer) → gone. A draining VIP that is wanted again serves at once.

use crate::model::Protocol;
use crate::table::{ServicePortEntry, Table, Vip};
use crate::topology::{SourceAddress, Verdict};
use std::collections::BTreeMap;

/// Milliseconds on the process's clock.
pub type Millis = u64;

/// Where a VIP is in its life.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Workers are being given sockets.
    Opening,
    /// New flows are ours.
    Serving,
    /// Out of `svc` until then.
    Draining(Millis),
    /// Could not be opened; tried again at the time given.
    Refused(String, Millis),
}

/// One thing to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Give every worker a socket for this VIP.
    Open(Vip),
    /// Take the sockets away.
    Close(Vip),
}

/// Whether this version can carry a service port's traffic; if not, why, for people.
pub fn carried(entry: &ServicePortEntry) -> Result<(), &'static str> {
    match (entry.vip.protocol, entry.profile) {
        (Protocol::Tcp, _) => return Err("TCP is not carried yet; kube-proxy serves this port"),
        (Protocol::Sctp, _) => return Err("SCTP is not carried; kube-proxy serves this port"),
        (Protocol::Udp, _) => {}
    }
    match entry.source_address {
        SourceAddress::Auto | SourceAddress::Node => Ok(()),
        SourceAddress::Client => Err("source address client is not carried yet; kube-proxy serves this port"),
    }
}

/// All VIPs that have sockets, or should.
#[derive(Debug, Default)]
pub struct Vips {
    phases: BTreeMap<Vip, Phase>,
}

impl Vips {
    /// The VIPs the table wants taken: those we can carry and for which the API lists an endpoint that could serve. With
    /// none, kube-proxy gives its own REJECT.
    pub fn wanted(table: &Table, available: impl Fn(&Vip) -> bool) -> Vec<Vip> {
        let mut wanted: Vec<Vip> = table
            .iter()
            .filter(|e| carried(e).is_ok())
            .filter(|e| e.verdict != Verdict::Reject && available(&e.vip))
            .map(|e| e.vip)
            .collect();
        wanted.sort_unstable();
        wanted
    }

    /// Moves towards `wanted` (sorted). VIPs that are no longer wanted drain for `drain` from `now`.
    pub fn reconcile(&mut self, wanted: &[Vip], now: Millis, drain: Millis) -> Vec<Action> {
        let mut actions = Vec::new();
        for (vip, phase) in &mut self.phases {
            match (wanted.binary_search(vip).is_ok(), &phase) {
                (false, Phase::Opening | Phase::Serving) => *phase = Phase::Draining(now + drain),
                (true, Phase::Draining(_)) => *phase = Phase::Opening,
                (true, Phase::Refused(_, again)) if *again <= now => {
                    *phase = Phase::Opening;
                    actions.push(Action::Open(*vip));
                }
                _ => {}
            }
        }
        for vip in wanted {
            if !self.phases.contains_key(vip) {
                self.phases.insert(*vip, Phase::Opening);
                actions.push(Action::Open(*vip));
            }
        }
        self.phases.retain(|vip, phase| match phase {
            Phase::Draining(until) if *until <= now => {
                actions.push(Action::Close(*vip));
                false
            }
            Phase::Refused(..) => wanted.binary_search(vip).is_ok(),
            _ => true,
        });
        actions
    }

    /// Takes serving VIPs out of `svc`, all but these (sorted); they drain until then.
    pub fn release_all_but(&mut self, kept: &[Vip], until: Millis) {
        for (vip, phase) in &mut self.phases {
            if *phase == Phase::Serving && kept.binary_search(vip).is_err() {
                *phase = Phase::Draining(until);
            }
        }
    }

    /// A VIP could not be opened.
    pub fn refuse(&mut self, vip: Vip, reason: String, again: Millis) {
        self.phases.insert(vip, Phase::Refused(reason, again));
    }

    /// Every worker has what was sent to it: opening VIPs serve from now on.
    pub fn opened(&mut self) {
        for phase in self.phases.values_mut() {
            if *phase == Phase::Opening {
                *phase = Phase::Serving;
            }
        }
    }

    /// Whether any VIP waits for the workers.
    pub fn any_opening(&self) -> bool {
        self.phases.values().any(|p| *p == Phase::Opening)
    }

    /// The phase of a VIP.
    pub fn phase(&self, vip: &Vip) -> Option<&Phase> {
        self.phases.get(vip)
    }

    /// When something is due without any event.
    pub fn next_due(&self) -> Option<Millis> {
        let due = |phase: &Phase| match phase {
            Phase::Draining(at) | Phase::Refused(_, at) => Some(*at),
            _ => None,
        };
        self.phases.values().filter_map(due).min()
    }

    /// VIPs that take new flows.
    pub fn serving(&self) -> impl Iterator<Item = Vip> + '_ {
        self.phases
            .iter()
            .filter(|(_, p)| **p == Phase::Serving)
            .map(|(v, _)| *v)
    }

    /// VIPs with sockets that new or old flows may reach.
    pub fn owned(&self) -> impl Iterator<Item = Vip> + '_ {
        let owned = |p: &Phase| matches!(p, Phase::Serving | Phase::Draining(_));
        self.phases.iter().filter(move |(_, p)| owned(p)).map(|(v, _)| *v)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::topology::Profile;

    fn vip(n: u8) -> Vip {
        Vip {
            address: format!("10.96.0.{n}:53").parse().unwrap(),
            protocol: Protocol::Udp,
        }
    }

    #[test]
    fn a_vip_serves_only_after_every_worker_has_it() {
        let mut vips = Vips::default();
        assert_eq!(vips.reconcile(&[vip(1)], 0, 100), [Action::Open(vip(1))]);
        assert_eq!(vips.serving().count(), 0);
        assert!(vips.any_opening());
        vips.opened();
        assert_eq!(vips.serving().collect::<Vec<_>>(), [vip(1)]);
        assert_eq!(vips.reconcile(&[vip(1)], 1, 100), []);
    }

    #[test]
    fn a_released_vip_drains_before_its_sockets_close() {
        let mut vips = Vips::default();
        vips.reconcile(&[vip(1)], 0, 100);
        vips.opened();
        assert_eq!(vips.reconcile(&[], 10, 100), []);
        assert_eq!((vips.serving().count(), vips.owned().count()), (0, 1));
        assert_eq!(vips.next_due(), Some(110));
        assert_eq!(vips.reconcile(&[], 109, 100), []);
        assert_eq!(vips.reconcile(&[], 110, 100), [Action::Close(vip(1))]);
        assert_eq!(vips.owned().count(), 0);
    }

    #[test]
    fn a_draining_vip_that_is_wanted_again_keeps_its_sockets() {
        let mut vips = Vips::default();
        vips.reconcile(&[vip(1)], 0, 100);
        vips.opened();
        vips.reconcile(&[], 10, 100);
        assert_eq!(vips.reconcile(&[vip(1)], 20, 100), []);
        vips.opened();
        assert_eq!(vips.serving().count(), 1);
        assert_eq!(vips.reconcile(&[vip(1)], 500, 100), []);
    }

    #[test]
    fn a_refused_vip_is_tried_again_and_forgotten_when_unwanted() {
        let mut vips = Vips::default();
        vips.reconcile(&[vip(1)], 0, 100);
        vips.refuse(vip(1), "address in use".to_owned(), 5000);
        assert_eq!(vips.reconcile(&[vip(1)], 4999, 100), []);
        assert_eq!(vips.reconcile(&[vip(1)], 5000, 100), [Action::Open(vip(1))]);
        vips.refuse(vip(1), "address in use".to_owned(), 10_000);
        assert_eq!(vips.reconcile(&[], 5001, 100), []);
        assert_eq!(vips.phase(&vip(1)), None);
    }

    #[test]
    fn what_is_not_carried_stays_with_kube_proxy() {
        let entry = |protocol, profile, source_address| ServicePortEntry {
            key: std::sync::Arc::new(crate::model::ServicePortKey {
                service: crate::model::ObjectName::new("default", "web"),
                port_name: "".into(),
                port: 53,
                protocol,
            }),
            id: 1,
            vip: Vip { protocol, ..vip(1) },
            profile,
            source_address,
            affinity: crate::model::SessionAffinity::None,
            notices: 0,
            verdict: Verdict::Forward,
            generation: 1,
            tiers: Vec::new().into(),
            endpoints: Vec::new().into(),
        };
        let (auto, client) = (SourceAddress::Auto, SourceAddress::Client);
        assert!(carried(&entry(Protocol::Udp, Profile::Dns, auto)).is_ok());
        assert!(carried(&entry(Protocol::Udp, Profile::Oneway, SourceAddress::Node)).is_ok());
        assert!(carried(&entry(Protocol::Udp, Profile::Stream, auto)).is_ok());
        for (protocol, profile, source, word) in [
            (Protocol::Tcp, Profile::Tcp, auto, "TCP"),
            (Protocol::Sctp, Profile::Stream, auto, "SCTP"),
            (Protocol::Udp, Profile::Dns, client, "client"),
        ] {
            let reason = carried(&entry(protocol, profile, source)).unwrap_err();
            assert!(
                reason.contains(word) && reason.contains("kube-proxy serves"),
                "{reason}"
            );
        }
    }
}
