//! The laboratory: builds nodes, pods, a kube-proxy stand-in and real servers in network namespaces on one machine, and
//! always cleans up.
//!
//! ```no_run
//! use nodeward_lab::{Host, Lab, PodNetwork};
//! # fn main() -> Result<(), nodeward_lab::Error> {
//! let lab = Lab::builder().pod_network(PodNetwork::Routed).node("n1", "za").node("n2", "zb").build()?;
//! let client = lab.node("n1")?.add_pod("client")?;
//! let server = lab.node("n2")?.add_pod("server")?;
//! let out = client.exec(nodeward_lab::Cmd::new("ping").args(["-c1", &server.ipv4().to_string()]))?;
//! assert!(out.success());
//! lab.finish()?.assert_clean();
//! # Ok(()) }
//! ```
//!
//! Namespaces are anonymous: each is held by a thread of this process, so the kernel removes it when the process ends,
//! however it ends. Every process started inside is killed by the kernel with the thread that started it. The machine's own
//! namespace, its interfaces, rules and routes are never touched.
//!
//! Runs as root, or without root inside `unshare --user --map-root-user --net --mount COMMAND`; see [`Lab::require`].
//! Nothing here is meant for production use, and nothing here knows how Nodeward works inside.

mod agent;
mod clients;
mod dns;
mod dnswire;
mod echo;
mod error;
mod exchange;
mod kubeproxy;
mod lab;
mod leftovers;
mod manifest;
mod netns;
mod node;
mod process;
mod procfs;
mod wait;

pub use agent::{Agent, AgentOptions};
pub use clients::{DigAnswer, DnsperfResult, dig, dnsperf, dnsperf_result, getent};
pub use dns::{DnsServer, DnsServerKind};
pub use dnswire::{DnsReply, QType, echo_reply, padded_query, parse_reply, query};
pub use echo::{EchoMode, EchoServer, Seen};
pub use error::{Error, Result};
pub use exchange::{Received, exchange_on, udp_exchange};
pub use kubeproxy::{Choice, KubeProxy, NatService, ProxyMode, WhenEmpty, endpoint_of};
pub use lab::{Lab, LabBuilder, PodNetwork};
pub use leftovers::Leftovers;
pub use manifest::{EndpointState, LabEndpoint, LabService, Manifests, ServicePortSpec};
pub use netns::NetNs;
/// The signals that [`Process::signal`] sends.
pub use nix::sys::signal::Signal;
pub use node::{Host, Node, Pod};
pub use process::{Cmd, Finished, Process};
pub use wait::{wait_for, wait_until};

/// Transport protocol of a service port or an exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Proto {
    /// UDP.
    Udp,
    /// TCP.
    Tcp,
}

impl Proto {
    /// The lower-case name, as nft and conntrack write it.
    pub fn lower(self) -> &'static str {
        match self {
            Proto::Udp => "udp",
            Proto::Tcp => "tcp",
        }
    }

    /// The upper-case name, as Kubernetes writes it.
    pub fn upper(self) -> &'static str {
        match self {
            Proto::Udp => "UDP",
            Proto::Tcp => "TCP",
        }
    }
}
