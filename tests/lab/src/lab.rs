//! The laboratory itself: the builder, the network that joins the nodes, the end.
//!
//! Addresses are the same in every laboratory (they never meet): node *i* is 172.18.0.(10+i) and fd00:18::(10+i), its pods
//! are in 10.244.i.0/24 and fd00:10:244:i::/64. ClusterIPs are expected in 10.96.0.0/16 and fd00:10:96::/112.

use std::path::{Path, PathBuf};
use std::sync::Mutex;

use crate::leftovers::{self, Leftovers};
use crate::netns::{NetNs, lock};
use crate::node::{Host, Node};
use crate::{Error, Result};

/// How pods are attached to their node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum PodNetwork {
    /// One veth per pod with a host route, gateway 169.254.1.1 and proxy ARP, as Calico and kindnet do.
    #[default]
    Routed,
    /// A bridge `cni0` per node, as Flannel and kubenet do.
    Bridge,
}

/// What [`LabBuilder::build`] makes.
#[derive(Clone, Debug)]
pub struct LabBuilder {
    pub(crate) pod_network: PodNetwork,
    pub(crate) mtu: u32,
    pub(crate) rp_filter: u8,
    pub(crate) src_valid_mark: bool,
    pub(crate) bridge_nf: bool,
    nodes: Vec<(String, String)>,
    pods: Vec<(String, String)>,
}

impl Default for LabBuilder {
    fn default() -> LabBuilder {
        LabBuilder {
            pod_network: PodNetwork::Routed,
            mtu: 1500,
            rp_filter: 0,
            src_valid_mark: false,
            bridge_nf: true,
            nodes: Vec::new(),
            pods: Vec::new(),
        }
    }
}

impl LabBuilder {
    /// How pods are attached; routed by default.
    pub fn pod_network(mut self, network: PodNetwork) -> Self {
        self.pod_network = network;
        self
    }

    /// MTU of every link in bytes; 1500 by default.
    pub fn mtu(mut self, mtu: u32) -> Self {
        self.mtu = mtu;
        self
    }

    /// `rp_filter` of every node: 0 off (default), 1 strict, 2 loose. See also [`Node::set_rp_filter`].
    pub fn rp_filter(mut self, value: u8) -> Self {
        self.rp_filter = value;
        self
    }

    /// `src_valid_mark` of every node; off by default. See also [`Node::set_src_valid_mark`].
    pub fn src_valid_mark(mut self, on: bool) -> Self {
        self.src_valid_mark = on;
        self
    }

    /// `bridge-nf-call-iptables` and `-ip6tables` of every node; on by default. See also [`Node::set_bridge_nf`].
    pub fn bridge_nf(mut self, on: bool) -> Self {
        self.bridge_nf = on;
        self
    }

    /// Adds a node in a zone.
    pub fn node(mut self, name: &str, zone: &str) -> Self {
        self.nodes.push((name.to_string(), zone.to_string()));
        self
    }

    /// Adds a pod to a node added before.
    pub fn pod(mut self, node: &str, name: &str) -> Self {
        self.pods.push((node.to_string(), name.to_string()));
        self
    }

    /// Builds everything. On an error what was built so far is gone again.
    pub fn build(self) -> Result<Lab> {
        Lab::require()?;
        sweep_dead_directories();
        let directory = tempfile::Builder::new()
            .prefix(&format!("{DIRECTORY_PREFIX}{}-", std::process::id()))
            .tempdir()
            .map_err(Error::io("create the laboratory's directory"))?;
        let path = directory.path();
        let fabric = NetNs::new("fabric", path)?;
        let numbered = self.nodes.iter().zip(1u8..);
        let nodes = numbered
            .map(|((n, z), i)| Node::new(n, z, i, &self, path))
            .collect::<Result<Vec<_>>>()?;
        if nodes.len() != self.nodes.len() {
            return Err(Error::other("a laboratory has at most 200 nodes"));
        }
        connect(&fabric, &nodes, self.mtu)?;
        std::thread::scope(|scope| {
            let nodes = &nodes;
            let running: Vec<_> = nodes.iter().map(|n| scope.spawn(move || n.configure(nodes))).collect();
            running
                .into_iter()
                .try_for_each(|r| r.join().map_err(|_| Error::other("building a node panicked"))?)
        })?;
        let ports: Vec<String> = nodes.iter().map(|n| format!("n{}", n.index())).collect();
        fabric.wait_until_links_carry(&ports)?;
        let lab = Lab {
            fabric,
            nodes,
            directory: Mutex::new(Some(directory)),
        };
        for (node, pod) in &self.pods {
            lab.node(node)?.add_pod(pod)?;
        }
        Ok(lab)
    }
}

/// Nodes and pods on one machine. Everything ends when it is dropped.
pub struct Lab {
    fabric: NetNs,
    nodes: Vec<Node>,
    directory: Mutex<Option<tempfile::TempDir>>,
}

impl Lab {
    /// Starts a description.
    pub fn builder() -> LabBuilder {
        LabBuilder::default()
    }

    /// Whether a laboratory can be built here; the error says what to run or install.
    pub fn require() -> Result<()> {
        const PROGRAMS: [(&str, &str); 5] = [
            ("ip", "iproute2"),
            ("nft", "nftables"),
            ("setpriv", "util-linux"),
            ("unshare", "util-linux"),
            ("sh", "dash"),
        ];
        for (program, package) in PROGRAMS {
            require_program(program, package)?;
        }
        let probe = std::thread::spawn(|| nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET));
        match probe.join() {
            Ok(Ok(())) => Ok(()),
            Ok(Err(errno)) => Err(Error::NotPermitted(errno)),
            Err(_) => Err(Error::other("the probe for network namespaces panicked")),
        }
    }

    /// The node with this name.
    pub fn node(&self, name: &str) -> Result<&Node> {
        self.nodes
            .iter()
            .find(|n| n.name() == name)
            .ok_or_else(|| Error::other(format!("no node `{name}` in the laboratory")))
    }

    /// All nodes in the order they were added.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// A directory for the test's own files; removed with the laboratory.
    pub fn directory(&self) -> PathBuf {
        lock(&self.directory)
            .as_ref()
            .map(|d| d.path().to_path_buf())
            .unwrap_or_default()
    }

    /// Keeps the directory with every process's output after the end, and returns it.
    pub fn keep_directory(&self) -> PathBuf {
        match lock(&self.directory).as_mut() {
            Some(directory) => {
                directory.disable_cleanup(true);
                let _ = std::fs::write(directory.path().join(KEEP), "");
                directory.path().to_path_buf()
            }
            None => PathBuf::new(),
        }
    }

    /// Counts what the program under test left on every node; call it once that program should be gone.
    /// `vips` are the addresses on which no socket may remain. Processes started through the laboratory and still running
    /// are not counted.
    pub fn leftovers(&self, vips: &[std::net::IpAddr]) -> Result<Leftovers> {
        let mut sum = Leftovers::default();
        for node in &self.nodes {
            sum.add(leftovers::of_node(node, vips)?);
        }
        Ok(sum)
    }

    /// Like [`Lab::leftovers`], but waits up to `timeout` for the count to become 0 and returns the last one.
    pub fn leftovers_within(&self, timeout: std::time::Duration, vips: &[std::net::IpAddr]) -> Result<Leftovers> {
        let mut last = Leftovers::default();
        let waited = crate::wait_for("nothing left behind", timeout, || {
            last = self.leftovers(vips)?;
            Ok((last.count() == 0).then_some(()))
        });
        match waited {
            Ok(()) | Err(Error::Timeout { .. }) => Ok(last),
            Err(e) => Err(e),
        }
    }

    /// Takes everything down and reports processes that outlived it; they are killed.
    pub fn finish(self) -> Result<Leftovers> {
        Ok(Leftovers {
            stray_processes: self.shut_down(),
            ..Leftovers::default()
        })
    }

    fn namespaces(&self) -> Vec<NetNs> {
        let nodes = self.nodes.iter().flat_map(Node::namespaces);
        std::iter::once(self.fabric.clone()).chain(nodes).collect()
    }

    fn shut_down(&self) -> Vec<String> {
        self.namespaces().iter().flat_map(NetNs::shut_down).collect()
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        self.shut_down();
    }
}

/// Whether a program is in PATH.
pub(crate) fn require_program(program: &str, package: &'static str) -> Result<()> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    if std::env::split_paths(&path).any(|d| d.join(program).is_file()) {
        return Ok(());
    }
    Err(Error::MissingProgram {
        program: program.to_string(),
        package,
    })
}

/// One bridge joins the nodes; its own address is their default gateway, which forwards nothing: packets to a VIP that no
/// rule takes vanish there, as they do in a real network.
fn connect(fabric: &NetNs, nodes: &[Node], mtu: u32) -> Result<()> {
    fabric.set_sysctls(&[
        ("net/ipv6/conf/all/accept_dad", "0"),
        ("net/ipv6/conf/default/accept_dad", "0"),
    ])?;
    let mut batch = format!("link set lo up\nlink add br0 mtu {mtu} type bridge forward_delay 0\n");
    for node in nodes {
        let (i, path) = (node.index(), node.netns().path());
        batch += &format!("link add n{i} mtu {mtu} type veth peer name eth0 mtu {mtu} netns {path}\n");
        batch += &format!("link set n{i} master br0 up\n");
    }
    batch += "addr add 172.18.0.1/24 dev br0\naddr add fd00:18::1/64 dev br0 nodad\nlink set br0 up\n";
    fabric.ip_batch(&batch)
}

const DIRECTORY_PREFIX: &str = "nodeward-lab-";

/// Marks a directory that somebody wants to read later.
const KEEP: &str = ".keep";

/// Removes directories of laboratories whose process was killed before it could do so.
fn sweep_dead_directories() {
    let Ok(entries) = std::fs::read_dir(std::env::temp_dir()) else {
        return;
    };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let pid = name
            .to_str()
            .and_then(|n| n.strip_prefix(DIRECTORY_PREFIX))
            .and_then(|n| n.split('-').next());
        if let Some(pid) = pid.and_then(|p| p.parse::<u32>().ok())
            && !Path::new(&format!("/proc/{pid}")).exists()
            && !entry.path().join(KEEP).exists()
        {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}
