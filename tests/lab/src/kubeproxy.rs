//! Stand-ins for kube-proxy in nft: the DNAT, masquerade, reject and drop rules that matter to a neighbour.

use std::net::{IpAddr, SocketAddr};
use std::sync::Mutex;

use crate::netns::lock;
use crate::node::{Host, Node};
use crate::process::Cmd;
use crate::{Error, Proto, Result};

/// Which kube-proxy is imitated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProxyMode {
    /// iptables mode: DNAT only; packets to a ClusterIP that no rule takes follow the default route.
    Iptables,
    /// nftables mode: besides, new packets to other addresses of the ServiceCIDR are dropped in forward and output at
    /// priority -90. With `ct state invalid drop` in output, which many nodes' firewalls have.
    Nftables,
}

/// How one of several endpoints is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Choice {
    /// Uniformly at random per connection-tracking entry, as kube-proxy does.
    #[default]
    Random,
    /// Always the first.
    First,
}

/// What happens to a service port without endpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum WhenEmpty {
    /// ICMP port unreachable: no endpoint anywhere.
    #[default]
    Reject,
    /// Silence: `internalTrafficPolicy: Local` without a local endpoint.
    Drop,
}

/// One VIP and its endpoints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NatService {
    /// ClusterIP and port.
    pub vip: SocketAddr,
    /// Protocol.
    pub proto: Proto,
    /// Endpoints of the same family.
    pub endpoints: Vec<SocketAddr>,
    /// How one is chosen.
    pub choice: Choice,
    /// What happens when there is none.
    pub when_empty: WhenEmpty,
}

impl NatService {
    /// A service with random choice that rejects when empty.
    pub fn new(vip: SocketAddr, proto: Proto, endpoints: impl IntoIterator<Item = SocketAddr>) -> NatService {
        NatService {
            vip,
            proto,
            endpoints: endpoints.into_iter().collect(),
            choice: Choice::Random,
            when_empty: WhenEmpty::Reject,
        }
    }
}

/// A kube-proxy stand-in on one node, in tables `ip kube-proxy` and `ip6 kube-proxy`. Each change is one transaction.
pub struct KubeProxy {
    node: Node,
    mode: ProxyMode,
    services: Mutex<Vec<NatService>>,
}

impl KubeProxy {
    /// Installs the rules for these services.
    pub fn install(node: &Node, mode: ProxyMode, services: Vec<NatService>) -> Result<KubeProxy> {
        let proxy = KubeProxy {
            node: node.clone(),
            mode,
            services: Mutex::new(services),
        };
        proxy.apply(&lock(&proxy.services))?;
        Ok(proxy)
    }

    /// Replaces all services. Connections and UDP entries to former endpoints go on, see [`KubeProxy::forget`].
    pub fn set_services(&self, services: Vec<NatService>) -> Result<()> {
        let mut held = lock(&self.services);
        self.apply(&services)?;
        *held = services;
        Ok(())
    }

    /// Replaces the endpoints of one service port and forgets those that left, see [`KubeProxy::forget`].
    pub fn set_endpoints(&self, vip: SocketAddr, proto: Proto, endpoints: &[SocketAddr]) -> Result<()> {
        let mut held = lock(&self.services);
        let mut services = held.clone();
        let service = services.iter_mut().find(|s| s.vip == vip && s.proto == proto);
        let service =
            service.ok_or_else(|| Error::other(format!("the stand-in has no service {vip}/{}", proto.lower())))?;
        let old = std::mem::replace(&mut service.endpoints, endpoints.to_vec());
        self.apply(&services)?;
        *held = services;
        let gone = old.iter().filter(|e| proto == Proto::Udp && !endpoints.contains(e));
        gone.map(|e| e.ip()).try_for_each(|e| self.forget(vip.ip(), e))
    }

    /// Deletes UDP connection-tracking entries from a VIP to an endpoint that no longer serves, as kube-proxy does since
    /// 1.32: a client port used again would otherwise still lead there.
    pub fn forget(&self, vip: IpAddr, endpoint: IpAddr) -> Result<()> {
        let family = if vip.is_ipv4() { "ipv4" } else { "ipv6" };
        let command = Cmd::new("conntrack").args(["-D", "-f", family, "-p", "udp", "--orig-dst"]);
        // Its exit code is 1 when there is no such entry.
        self.node
            .exec(
                command
                    .arg(vip.to_string())
                    .arg("--reply-src")
                    .arg(endpoint.to_string()),
            )
            .map(|_| ())
    }

    /// Removes all rules.
    pub fn remove(&self) -> Result<()> {
        let text: String = FAMILIES
            .iter()
            .map(|f| format!("table {} kube-proxy {{}}\ndelete table {} kube-proxy\n", f.nft, f.nft))
            .collect();
        self.node.netns().nft(&text)
    }

    fn apply(&self, services: &[NatService]) -> Result<()> {
        let mut text = String::new();
        for family in &FAMILIES {
            let of_family: Vec<&NatService> = services.iter().filter(|s| s.vip.is_ipv4() == family.v4).collect();
            text += &self.table(family, &of_family);
        }
        self.node.netns().nft(&text)
    }

    fn table(&self, family: &Family, services: &[&NatService]) -> String {
        let nft = family.nft;
        let (mut chains, mut dispatch, mut empty) = (String::new(), String::new(), String::new());
        for (s, service) in services.iter().enumerate() {
            let (ip, port, proto) = (service.vip.ip(), service.vip.port(), service.proto.lower());
            let select = format!("{nft} daddr {ip} {proto} dport {port}");
            let verdict = match service.when_empty {
                WhenEmpty::Reject => "reject",
                WhenEmpty::Drop => "drop",
            };
            if service.endpoints.is_empty() {
                empty += &format!("  ct state new {select} {verdict}\n");
                continue;
            }
            for (e, endpoint) in service.endpoints.iter().enumerate() {
                // Hairpin: a pod that reaches itself must see another source.
                chains += &format!(
                    " chain ep-{s}-{e} {{\n  {nft} saddr {} meta mark set meta mark | 0x4000\n  meta l4proto {proto} dnat to {endpoint}\n }}\n",
                    endpoint.ip()
                );
            }
            let count = service.endpoints.len();
            let pick = match service.choice {
                Choice::First => format!("goto ep-{s}-0"),
                Choice::Random if count == 1 => format!("goto ep-{s}-0"),
                Choice::Random => {
                    let map: Vec<String> = (0..count).map(|e| format!("{e} : goto ep-{s}-{e}")).collect();
                    format!("numgen random mod {count} vmap {{ {} }}", map.join(", "))
                }
            };
            chains += &format!(
                " chain svc-{s} {{\n  {nft} saddr != {} meta mark set meta mark | 0x4000\n  {pick}\n }}\n",
                family.pods
            );
            dispatch += &format!("  {select} goto svc-{s}\n");
        }
        if self.mode == ProxyMode::Nftables {
            empty += &format!("  ct state new {nft} daddr {} drop\n", family.services);
        }
        let invalid = if self.mode == ProxyMode::Nftables {
            "  ct state invalid drop\n"
        } else {
            ""
        };
        format!(
            "table {nft} kube-proxy {{}}\ndelete table {nft} kube-proxy\ntable {nft} kube-proxy {{\n{chains}\
             \x20chain services {{\n{dispatch} }}\n\
             \x20chain prerouting {{\n  type nat hook prerouting priority dstnat\n  jump services\n }}\n\
             \x20chain output {{\n  type nat hook output priority -100\n  jump services\n }}\n\
             \x20chain postrouting {{\n  type nat hook postrouting priority srcnat\n  meta mark & 0x4000 == 0x4000 meta mark set meta mark & 0xffffbfff masquerade\n }}\n\
             \x20chain no-endpoints {{\n{empty} }}\n\
             \x20chain filter-forward {{\n  type filter hook forward priority -90\n  jump no-endpoints\n }}\n\
             \x20chain filter-output {{\n  type filter hook output priority -90\n{invalid}  jump no-endpoints\n }}\n}}\n"
        )
    }
}

struct Family {
    v4: bool,
    nft: &'static str,
    pods: &'static str,
    services: &'static str,
}

const FAMILIES: [Family; 2] = [
    Family {
        v4: true,
        nft: "ip",
        pods: "10.244.0.0/16",
        services: "10.96.0.0/16",
    },
    Family {
        v4: false,
        nft: "ip6",
        pods: "fd00:10:244::/48",
        services: "fd00:10:96::/112",
    },
];

/// The address in `host`'s family of `vip` with this port.
pub fn endpoint_of(host: &impl Host, vip: IpAddr, port: u16) -> SocketAddr {
    SocketAddr::new(host.ip_like(vip), port)
}
