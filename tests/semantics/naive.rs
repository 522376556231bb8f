//! A second kube-proxy, written from the prose of the semantics alone and built otherwise than the real one: sets of
//! names, one question at a time, no indices. Slow and plain on purpose.

use std::collections::BTreeSet;

#[derive(Clone, Debug)]
pub struct Ep {
    pub id: char,
    pub ready: bool,
    pub serving: bool,
    pub terminating: bool,
    pub node: Option<&'static str>,
    pub node_hints: Vec<&'static str>,
    pub zone_hints: Vec<&'static str>,
}

#[derive(Clone, Debug)]
pub struct State {
    pub node: &'static str,
    pub zone: Option<&'static str>,
    pub gate: bool,
    pub internal_local: bool,
    pub external_local: bool,
    pub accessible: bool,
    pub endpoints: Vec<Ep>,
}

pub type Set = BTreeSet<char>;

#[derive(Debug, PartialEq, Eq)]
pub struct Answer {
    pub mode: Option<&'static str>,
    pub cluster: Option<Set>,
    pub local: Option<Set>,
    pub reachable: Set,
    pub any: bool,
}

impl State {
    fn which(&self, test: impl Fn(&Ep) -> bool) -> Set {
        self.endpoints.iter().filter(|e| test(e)).map(|e| e.id).collect()
    }

    fn cluster_mode(&self) -> &'static str {
        let ready = || self.endpoints.iter().filter(|e| e.ready);
        let everyone_has_node_hints = ready().all(|e| !e.node_hints.is_empty());
        let somebody_names_my_node = ready().any(|e| e.node_hints.contains(&self.node));
        if self.gate && everyone_has_node_hints && somebody_names_my_node {
            return "node";
        }
        let everyone_has_zone_hints = ready().all(|e| !e.zone_hints.is_empty());
        let somebody_names_my_zone = self.zone.is_some_and(|z| ready().any(|e| e.zone_hints.contains(&z)));
        if everyone_has_zone_hints && somebody_names_my_zone {
            return "zone";
        }
        "none"
    }

    fn cluster_set(&self) -> Set {
        let hinted = match self.cluster_mode() {
            "node" => self.which(|e| e.ready && e.node_hints.contains(&self.node)),
            "zone" => self.which(|e| e.ready && self.zone.is_some_and(|z| e.zone_hints.contains(&z))),
            _ => self.which(|e| e.ready),
        };
        if hinted.is_empty() {
            self.which(|e| e.serving && e.terminating)
        } else {
            hinted
        }
    }

    pub fn answer(&self) -> Answer {
        let uses_cluster = !self.internal_local || self.accessible;
        let uses_local = self.internal_local || (self.external_local && self.accessible);
        let mine = |e: &Ep| e.node == Some(self.node);
        let local_ready = self.which(|e| mine(e) && e.ready);
        let local_leaving = self.which(|e| mine(e) && e.serving && e.terminating);
        let fell_back = local_ready.is_empty() && !local_leaving.is_empty();
        let local_set = if local_ready.is_empty() {
            local_leaving
        } else {
            local_ready
        };
        let nobody_at_all = self.endpoints.is_empty();
        let cluster = uses_cluster.then(|| self.cluster_set());
        let local = uses_local.then_some(local_set);
        let reachable = match (&cluster, &local) {
            (Some(c), None) => c.clone(),
            (None, Some(l)) => l.clone(),
            (Some(c), Some(_)) if self.cluster_mode() == "none" && !fell_back => c.clone(),
            (Some(c), Some(l)) => c.union(l).copied().collect(),
            (None, None) => unreachable!("every service port uses one of the sets"),
        };
        let able = self.which(|e| e.ready || (e.serving && e.terminating));
        let any = cluster.as_ref().is_some_and(|c| !c.is_empty()) || (uses_local && !able.is_empty());
        Answer {
            mode: (uses_cluster && !nobody_at_all).then(|| self.cluster_mode()),
            cluster,
            local,
            reachable,
            any,
        }
    }

    /// What happens to traffic to the ClusterIP, and where it may go.
    pub fn cluster_ip(&self) -> (&'static str, Set) {
        let answer = self.answer();
        let set = if self.internal_local {
            answer.local
        } else {
            answer.cluster
        };
        verdict(set.unwrap_or_default(), answer.any)
    }

    /// What happens to traffic to an external address from outside, `None` where there is no such address.
    pub fn outside(&self) -> Option<&'static str> {
        let answer = self.answer();
        let set = if self.external_local {
            answer.local
        } else {
            answer.cluster
        };
        self.accessible.then(|| verdict(set.unwrap_or_default(), answer.any).0)
    }
}

fn verdict(set: Set, any: bool) -> (&'static str, Set) {
    match (any, set.is_empty()) {
        (false, _) => ("reject", Set::new()),
        (true, true) => ("drop", set),
        (true, false) => ("forward", set),
    }
}
