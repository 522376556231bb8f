//! Nodes and pods: a network namespace each, with addresses and routes as a CNI plugin would lay them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use crate::lab::{LabBuilder, PodNetwork};
use crate::netns::{NetNs, lock};
use crate::process::{Cmd, Finished, Process};
use crate::{Error, Proto, Result};

/// A place with addresses where processes and sockets can live: a node's root namespace or a pod.
pub trait Host {
    /// The network namespace.
    fn netns(&self) -> &NetNs;
    /// Its IPv4 address.
    fn ipv4(&self) -> Ipv4Addr;
    /// Its IPv6 address.
    fn ipv6(&self) -> Ipv6Addr;
    /// The name of the node it is or runs on.
    fn node_name(&self) -> &str;

    /// Its address in the family of `like`.
    fn ip_like(&self, like: IpAddr) -> IpAddr {
        if like.is_ipv4() {
            self.ipv4().into()
        } else {
            self.ipv6().into()
        }
    }

    /// See [`NetNs::spawn`].
    fn spawn(&self, command: &Cmd) -> Result<Process> {
        self.netns().spawn(command)
    }

    /// See [`NetNs::exec`].
    fn exec(&self, command: Cmd) -> Result<Finished> {
        self.netns().exec(command)
    }
}

/// A node: its root namespace, its pods. Cheap to clone.
#[derive(Clone)]
pub struct Node {
    inner: Arc<NodeInner>,
}

struct NodeInner {
    name: String,
    zone: String,
    index: u8,
    netns: NetNs,
    options: LabBuilder,
    directory: PathBuf,
    /// Pods alive, and how many there ever were: addresses are not reused.
    pods: Mutex<(Vec<Pod>, u8)>,
}

/// A pod. Cheap to clone; a clone kept after [`Node::remove_pod`] only yields [`Error::Gone`].
#[derive(Clone)]
pub struct Pod {
    inner: Arc<PodInner>,
}

struct PodInner {
    name: String,
    node: String,
    link: String,
    netns: NetNs,
    ipv4: Ipv4Addr,
    ipv6: Ipv6Addr,
}

impl Host for Node {
    fn netns(&self) -> &NetNs {
        &self.inner.netns
    }
    fn ipv4(&self) -> Ipv4Addr {
        Ipv4Addr::new(172, 18, 0, 10 + self.inner.index)
    }
    fn ipv6(&self) -> Ipv6Addr {
        Ipv6Addr::new(0xfd00, 0x18, 0, 0, 0, 0, 0, 10 + u16::from(self.inner.index))
    }
    fn node_name(&self) -> &str {
        &self.inner.name
    }
}

impl Host for Pod {
    fn netns(&self) -> &NetNs {
        &self.inner.netns
    }
    fn ipv4(&self) -> Ipv4Addr {
        self.inner.ipv4
    }
    fn ipv6(&self) -> Ipv6Addr {
        self.inner.ipv6
    }
    fn node_name(&self) -> &str {
        &self.inner.node
    }
}

impl Pod {
    /// The pod's name.
    pub fn name(&self) -> &str {
        &self.inner.name
    }
}

impl Node {
    pub(crate) fn new(name: &str, zone: &str, index: u8, options: &LabBuilder, directory: &Path) -> Result<Node> {
        let netns = NetNs::new(name, directory)?;
        let rp_filter = options.rp_filter.to_string();
        // Before the first interface arrives, which takes these as its own. Forwarding first: turning it on resets other
        // settings. No duplicate address detection: it takes a second, in which the address cannot be used.
        netns.set_sysctls(&[
            ("net/ipv4/ip_forward", "1"),
            ("net/ipv6/conf/all/forwarding", "1"),
            ("net/ipv6/conf/all/accept_dad", "0"),
            ("net/ipv6/conf/default/accept_dad", "0"),
            ("net/ipv4/conf/all/rp_filter", &rp_filter),
            ("net/ipv4/conf/default/rp_filter", &rp_filter),
        ])?;
        let inner = NodeInner {
            name: name.to_string(),
            zone: zone.to_string(),
            index,
            netns,
            options: options.clone(),
            directory: directory.to_path_buf(),
            pods: Mutex::new((Vec::new(), 0)),
        };
        Ok(Node { inner: Arc::new(inner) })
    }

    /// The node's name.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// The node's zone.
    pub fn zone(&self) -> &str {
        &self.inner.zone
    }

    pub(crate) fn index(&self) -> u8 {
        self.inner.index
    }

    /// The node's IPv4 pod range in CIDR notation.
    pub fn pod_cidr_v4(&self) -> String {
        format!("10.244.{}.0/24", self.inner.index)
    }

    /// The node's IPv6 pod range in CIDR notation.
    pub fn pod_cidr_v6(&self) -> String {
        format!("fd00:10:244:{}::/64", self.inner.index)
    }

    /// Its own namespace and its pods'.
    pub(crate) fn namespaces(&self) -> Vec<NetNs> {
        let pods = lock(&self.inner.pods)
            .0
            .iter()
            .map(|p| p.inner.netns.clone())
            .collect::<Vec<_>>();
        pods.into_iter().chain([self.inner.netns.clone()]).collect()
    }

    /// Addresses, routes to the other nodes' pods, the bridge if there is one. `eth0` exists already.
    pub(crate) fn configure(&self, nodes: &[Node]) -> Result<()> {
        let options = &self.inner.options;
        let mut batch = format!(
            "link set lo up\naddr add {}/24 dev eth0\naddr add {}/64 dev eth0 nodad\nlink set eth0 up\n\
             route add default via 172.18.0.1\nroute add default via fd00:18::1\n",
            self.ipv4(),
            self.ipv6()
        );
        for other in nodes.iter().filter(|n| n.index() != self.index()) {
            batch += &format!("route add {} via {}\n", other.pod_cidr_v4(), other.ipv4());
            batch += &format!("route add {} via {}\n", other.pod_cidr_v6(), other.ipv6());
        }
        match options.pod_network {
            PodNetwork::Bridge => {
                batch += &format!(
                    "link add cni0 mtu {} type bridge forward_delay 0\naddr add {}/24 dev cni0\n\
                     addr add {}/64 dev cni0 nodad\nlink set cni0 up\n",
                    options.mtu,
                    pod_v4(self.index(), 1),
                    pod_v6(self.index(), 1)
                );
            }
            // An address of this node's range without a pod goes nowhere, as with Calico.
            PodNetwork::Routed => {
                batch += &format!(
                    "route add blackhole {}\nroute add blackhole {}\n",
                    self.pod_cidr_v4(),
                    self.pod_cidr_v6()
                );
            }
        }
        self.netns().ip_batch(&batch)?;
        self.set_src_valid_mark(options.src_valid_mark)?;
        self.netns().wait_until_links_carry(&["eth0".to_string()])?;
        if options.pod_network == PodNetwork::Bridge {
            self.set_bridge_nf(options.bridge_nf)?;
        }
        Ok(())
    }

    /// Adds a pod with the next free addresses.
    pub fn add_pod(&self, name: &str) -> Result<Pod> {
        let number = {
            let (pods, made) = &mut *lock(&self.inner.pods);
            if pods.iter().any(|p| p.name() == name) {
                return Err(Error::other(format!(
                    "node `{}` has a pod `{name}` already",
                    self.name()
                )));
            }
            if *made >= 200 {
                return Err(Error::other(format!(
                    "node `{}` had 200 pods, more than its addresses allow",
                    self.name()
                )));
            }
            *made += 1;
            *made
        };
        let netns = NetNs::new(&format!("{}-{name}", self.name()), &self.inner.directory)?;
        let pod = Pod {
            inner: Arc::new(PodInner {
                name: name.to_string(),
                node: self.name().to_string(),
                link: format!("veth{number}"),
                netns,
                ipv4: pod_v4(self.index(), 10 + number),
                ipv6: pod_v6(self.index(), 10 + number),
            }),
        };
        self.attach(&pod)?;
        self.netns()
            .wait_until_links_carry(std::slice::from_ref(&pod.inner.link))?;
        pod.netns().wait_until_links_carry(&["eth0".to_string()])?;
        lock(&self.inner.pods).0.push(pod.clone());
        Ok(pod)
    }

    fn attach(&self, pod: &Pod) -> Result<()> {
        let (link, mtu, path) = (&pod.inner.link, self.inner.options.mtu, pod.netns().path());
        let (v4, v6, node_v4) = (pod.ipv4(), pod.ipv6(), self.ipv4());
        let dad = [
            ("net/ipv6/conf/all/accept_dad", "0"),
            ("net/ipv6/conf/default/accept_dad", "0"),
        ];
        pod.netns().set_sysctls(&dad)?;
        let create = format!("link add {link} mtu {mtu} type veth peer name eth0 mtu {mtu} netns {path}\n");
        let inside = "link set lo up\nlink set eth0 up\n";
        match self.inner.options.pod_network {
            PodNetwork::Routed => {
                self.netns().ip_batch(&create)?;
                let conf = |name: &str| format!("net/ipv4/conf/{link}/{name}");
                let delay = format!("net/ipv4/neigh/{link}/proxy_delay");
                self.netns().set_sysctls(&[(&conf("proxy_arp"), "1"), (&delay, "0")])?;
                self.netns().ip_batch(&format!(
                    "link set {link} addrgenmode none\nlink set {link} up\naddr add fe80::1/64 dev {link} nodad\n\
                     route add {v4}/32 dev {link} src {node_v4}\nroute add {v6}/128 dev {link}\n"
                ))?;
                pod.netns().ip_batch(&format!(
                    "{inside}addr add {v4}/32 dev eth0\naddr add {v6}/128 dev eth0 nodad\n\
                     route add 169.254.1.1 dev eth0 scope link\nroute add default via 169.254.1.1\n\
                     route add default via fe80::1 dev eth0\n"
                ))
            }
            PodNetwork::Bridge => {
                self.netns()
                    .ip_batch(&format!("{create}link set {link} master cni0 up\n"))?;
                pod.netns().ip_batch(&format!(
                    "{inside}addr add {v4}/24 dev eth0\naddr add {v6}/64 dev eth0 nodad\n\
                     route add default via {}\nroute add default via {}\n",
                    pod_v4(self.index(), 1),
                    pod_v6(self.index(), 1)
                ))
            }
        }
    }

    /// The pod with this name.
    pub fn pod(&self, name: &str) -> Result<Pod> {
        let found = lock(&self.inner.pods).0.iter().find(|p| p.name() == name).cloned();
        found.ok_or_else(|| Error::other(format!("no pod `{name}` on node `{}`", self.name())))
    }

    /// Removes a pod: its processes are killed, its link and routes are gone when this returns.
    pub fn remove_pod(&self, name: &str) -> Result<()> {
        let pod = self.pod(name)?;
        // The link first: the kernel would remove it with the namespace, but later.
        pod.netns().end_processes();
        self.netns().ip_batch(&format!("link del {}\n", pod.inner.link))?;
        pod.netns().shut_down();
        lock(&self.inner.pods).0.retain(|p| p.name() != name);
        Ok(())
    }

    /// Sets `rp_filter` on every interface: 0 off, 1 strict, 2 loose.
    pub fn set_rp_filter(&self, value: u8) -> Result<()> {
        self.set_on_all_interfaces("rp_filter", &value.to_string())
    }

    /// Sets `src_valid_mark` on every interface.
    pub fn set_src_valid_mark(&self, on: bool) -> Result<()> {
        self.set_on_all_interfaces("src_valid_mark", if on { "1" } else { "0" })
    }

    fn set_on_all_interfaces(&self, name: &str, value: &str) -> Result<()> {
        let (name, value) = (name.to_string(), value.to_string());
        self.netns().run(move || {
            let directory = "/proc/sys/net/ipv4/conf";
            for entry in std::fs::read_dir(directory)
                .map_err(Error::io(format!("read {directory}")))?
                .flatten()
            {
                let path = entry.path().join(&name);
                std::fs::write(&path, &value).map_err(Error::io(format!("write {value} to {}", path.display())))?;
            }
            Ok(())
        })?
    }

    /// Sets `bridge-nf-call-iptables` and `-ip6tables`.
    pub fn set_bridge_nf(&self, on: bool) -> Result<()> {
        let value = if on { "1" } else { "0" };
        self.netns().set_sysctls(&[
            ("net/bridge/bridge-nf-call-iptables", value),
            ("net/bridge/bridge-nf-call-ip6tables", value),
        ])
    }

    /// Connection-tracking entries whose original destination is `destination`.
    pub fn conntrack_entries(&self, destination: IpAddr, proto: Proto) -> Result<usize> {
        let family = if destination.is_ipv4() { "ipv4" } else { "ipv6" };
        let command = Cmd::new("conntrack").args(["-L", "-f", family, "-p", proto.lower(), "--orig-dst"]);
        let out = self.netns().check(command.arg(destination.to_string()))?;
        Ok(out.stdout.lines().filter(|l| !l.trim().is_empty()).count())
    }
}

fn pod_v4(node: u8, host: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 244, node, host)
}

fn pod_v6(node: u8, host: u8) -> Ipv6Addr {
    Ipv6Addr::new(0xfd00, 0x10, 0x244, u16::from(node), 0, 0, 0, u16::from(host))
}
