//! The stage: the laboratory, the DNS DaemonSet, and a small control plane that keeps Nodeward's manifests and the
//! kube-proxy stand-in in step, as the API server would.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nodeward_lab::{
    Agent, AgentOptions, Cmd, DnsServer, DnsServerKind, EndpointState, Error, Host, KubeProxy, Lab, LabService,
    Manifests, NatService, Pod, Proto, ProxyMode, Result, WhenEmpty, wait_until,
};

use crate::load::{Load, Report};

const KEY: &str = "kube-system/kube-dns";
/// How long a change may take until the next thing happens: several times what the agent needs.
const START: Duration = Duration::from_secs(10);

/// What the stand-in does with the Service.
#[derive(Clone, Copy, PartialEq)]
pub enum Traffic {
    /// Any ready endpoint, at random.
    Cluster,
    /// Only endpoints of this node; silence without one.
    Local,
}

/// One DNS pod of the DaemonSet.
struct Member {
    pod: Pod,
    server: DnsServer,
    state: EndpointState,
}

/// Everything that is running.
pub struct Stage {
    pub lab: Lab,
    pub client: Pod,
    pub agent: Option<Agent>,
    pub rate: u32,
    loadgen: PathBuf,
    directory: PathBuf,
    manifests: Manifests,
    proxy: KubeProxy,
    traffic: Traffic,
    members: Vec<Member>,
    made: u32,
}

impl Stage {
    /// Builds three nodes, starts a DNS server on each, the stand-in and Nodeward on `n1`, and waits until Nodeward serves.
    pub fn build(nodeward: &Path, loadgen: &Path, rate: u32) -> Result<Stage> {
        let lab = Lab::builder()
            .node("n1", "za")
            .node("n2", "za")
            .node("n3", "zb")
            .pod("n1", "client")
            .build()?;
        let client = lab.node("n1")?.pod("client")?;
        let directory = lab.directory();
        let manifests = Manifests::new(directory.join("manifests"), &lab)?;
        manifests.set_service(LabService::kube_dns())?;
        let proxy = KubeProxy::install(lab.node("n1")?, ProxyMode::Nftables, Vec::new())?;
        let mut stage = Stage {
            lab,
            client,
            agent: None,
            rate,
            loadgen: loadgen.to_path_buf(),
            directory,
            manifests,
            proxy,
            traffic: Traffic::Cluster,
            members: Vec::new(),
            made: 0,
        };
        for node in ["n1", "n2", "n3"] {
            stage.start_pod(node)?;
        }
        for node in ["n1", "n2", "n3"] {
            stage.become_ready(node)?;
        }
        let options = AgentOptions::new(nodeward, &[KEY]);
        let agent = Agent::start(stage.lab.node("n1")?, &stage.manifests, &options, &stage.directory)?;
        agent.wait_ready(START)?;
        stage.agent = Some(agent);
        stage.wait_until_served_by("n1")?;
        Ok(stage)
    }

    /// The ClusterIPs.
    pub fn vips(&self) -> Vec<IpAddr> {
        LabService::kube_dns().cluster_ips
    }

    /// What the client dials.
    pub fn vip(&self) -> SocketAddr {
        SocketAddr::new(Ipv4Addr::new(10, 96, 0, 10).into(), 53)
    }

    /// The laboratory's directory.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The zone of a node.
    pub fn zone_of(&self, node: &str) -> Option<String> {
        self.lab.node(node).ok().map(|n| n.zone().to_string())
    }

    /// Starts the DaemonSet's pod on a node: in the API it is there and not ready. dnsmasq on n1 and n3, unbound on n2.
    pub fn start_pod(&mut self, node: &str) -> Result<()> {
        self.made += 1;
        let pod = self.lab.node(node)?.add_pod(&format!("dns-{}", self.made))?;
        let kind = if node == "n2" {
            DnsServerKind::Unbound
        } else {
            DnsServerKind::Dnsmasq
        };
        let server = DnsServer::start(&pod, kind, &format!("{node}/{}", pod.name()), &self.directory)?;
        self.members.push(Member {
            pod,
            server,
            state: EndpointState::NotReady,
        });
        self.publish()
    }

    /// Waits until the newest pod of a node answers, as a readiness probe does, and marks it ready.
    pub fn become_ready(&mut self, node: &str) -> Result<()> {
        self.member(node)?.server.wait_ready(START)?;
        self.set_state(node, EndpointState::Ready)
    }

    /// Marks the oldest pod of a node as terminating: it still serves.
    pub fn terminate(&mut self, node: &str) -> Result<()> {
        self.set_state(node, EndpointState::Terminating)
    }

    /// The terminating pod's process ends by itself; then the pod is gone, from the node and from the API.
    pub fn remove_terminated(&mut self, node: &str) -> Result<()> {
        let at = self
            .members
            .iter()
            .position(|m| m.pod.node_name() == node && m.state != EndpointState::Ready);
        let member = self
            .members
            .remove(at.ok_or_else(|| Error::other(format!("no terminating pod on {node}")))?);
        member.server.stop()?;
        self.manifests.set_endpoint(KEY, &member.pod, EndpointState::Gone)?;
        self.publish()?;
        self.forget(&member.pod)?;
        self.lab.node(node)?.remove_pod(member.pod.name())
    }

    /// Kills a node's DNS server; the API does not know.
    pub fn kill_server(&mut self, node: &str) -> Result<()> {
        self.member(node)?.server.process().kill()
    }

    /// The API notices that a node's pod is dead.
    pub fn notice_death(&mut self, node: &str) -> Result<()> {
        self.set_state(node, EndpointState::NotReady)?;
        let pod = self.member(node)?.pod.clone();
        self.forget(&pod)
    }

    /// The kubelet starts the server again in the same pod.
    pub fn restart_server(&mut self, node: &str) -> Result<()> {
        let directory = self.directory.clone();
        let member = self.member(node)?;
        let tag = format!("{node}/{}", member.pod.name());
        member.server = DnsServer::start(&member.pod, DnsServerKind::Dnsmasq, &tag, &directory)?;
        self.become_ready(node)
    }

    /// What the stand-in does from now on, without memory of what it did before.
    pub fn set_traffic(&mut self, traffic: Traffic) -> Result<()> {
        self.traffic = traffic;
        self.publish()?;
        let flush = Cmd::new("conntrack").arg("-F");
        self.lab.node("n1")?.netns().check(flush).map(|_| ())
    }

    /// Runs a load to its end while `events` happen.
    pub fn load(&mut self, rate: u32, seconds: f64, events: impl FnOnce(&mut Stage) -> Result<()>) -> Result<Report> {
        let load = Load::start(&self.client, &self.loadgen, self.vip(), rate, seconds)?;
        events(self)?;
        load.report()
    }

    /// Waits until 30 answers in a row come from this node: chance would need luck of 1 in 10^14.
    pub fn wait_until_served_by(&self, node: &str) -> Result<()> {
        wait_until(&format!("queries answered on {node}"), START, || {
            (0..30).all(|_| {
                self.who_answers()
                    .is_some_and(|tag| tag.starts_with(&format!("{node}/")))
            })
        })
    }

    fn who_answers(&self) -> Option<String> {
        let limit = Duration::from_millis(500);
        let reply = self
            .client
            .netns()
            .dns_query(self.vip(), "whoami.lab", nodeward_lab::QType::Txt, limit);
        reply
            .ok()
            .flatten()
            .and_then(|(reply, _)| reply.texts.into_iter().next())
    }

    fn member(&mut self, node: &str) -> Result<&mut Member> {
        let found = self.members.iter_mut().rfind(|m| m.pod.node_name() == node);
        found.ok_or_else(|| Error::other(format!("no DNS pod on {node}")))
    }

    fn set_state(&mut self, node: &str, state: EndpointState) -> Result<()> {
        self.member(node)?.state = state;
        self.publish()
    }

    fn forget(&self, pod: &Pod) -> Result<()> {
        self.vips()
            .into_iter()
            .try_for_each(|vip| self.proxy.forget(vip, pod.ip_like(vip)))
    }

    /// Writes what is to both sides: the manifests, then the stand-in's rules.
    fn publish(&mut self) -> Result<()> {
        let all: Vec<_> = self.members.iter().map(|m| (&m.pod, m.state)).collect();
        self.manifests.set_endpoints(KEY, &all)?;
        let mut services = Vec::new();
        for vip in self.vips() {
            let here = |m: &&Member| self.traffic == Traffic::Cluster || m.pod.node_name() == "n1";
            let of = |state| {
                self.members
                    .iter()
                    .filter(here)
                    .filter(|m| m.state == state)
                    .map(|m| m.server.address(vip))
                    .collect::<Vec<_>>()
            };
            // As kube-proxy does (KEP-1669): terminating endpoints when no ready one is left.
            let ready = of(EndpointState::Ready);
            let used = if ready.is_empty() {
                of(EndpointState::Terminating)
            } else {
                ready
            };
            for proto in [Proto::Udp, Proto::Tcp] {
                let mut service = NatService::new(SocketAddr::new(vip, 53), proto, used.iter().copied());
                service.when_empty = if self.traffic == Traffic::Local {
                    WhenEmpty::Drop
                } else {
                    WhenEmpty::Reject
                };
                services.push(service);
            }
        }
        self.proxy.set_services(services)
    }
}
