//! Writes the laboratory's Nodes, Services and EndpointSlices as ordinary Kubernetes YAML, one file per object group, each
//! replaced atomically: written under a hidden name, then renamed.

use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use crate::lab::Lab;
use crate::netns::lock;
use crate::node::{Host, Pod};
use crate::{Error, Proto, Result};

/// One port of a Service.
#[derive(Clone, Debug)]
pub struct ServicePortSpec {
    /// Port name; joins Service and EndpointSlice.
    pub name: String,
    /// Port of the ClusterIP.
    pub port: u16,
    /// Port of the endpoints.
    pub target_port: u16,
    /// Protocol.
    pub proto: Proto,
}

/// A Service with ClusterIPs.
#[derive(Clone, Debug, Default)]
pub struct LabService {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// One or two ClusterIPs of different families; there is one EndpointSlice per family.
    pub cluster_ips: Vec<IpAddr>,
    /// Ports.
    pub ports: Vec<ServicePortSpec>,
    /// Labels of the Service.
    pub labels: Vec<(String, String)>,
    /// Annotations of the Service.
    pub annotations: Vec<(String, String)>,
    /// Further lines of `spec`, for example `internalTrafficPolicy: Local`.
    pub spec: Vec<String>,
}

impl LabService {
    /// `kube-system/kube-dns` with `dns` 53/UDP and `dns-tcp` 53/TCP on 10.96.0.10 and fd00:10:96::a.
    pub fn kube_dns() -> LabService {
        LabService {
            namespace: "kube-system".to_string(),
            name: "kube-dns".to_string(),
            cluster_ips: vec![
                Ipv4Addr::new(10, 96, 0, 10).into(),
                Ipv6Addr::new(0xfd00, 0x10, 0x96, 0, 0, 0, 0, 0xa).into(),
            ],
            ports: vec![
                ServicePortSpec {
                    name: "dns".to_string(),
                    port: 53,
                    target_port: 53,
                    proto: Proto::Udp,
                },
                ServicePortSpec {
                    name: "dns-tcp".to_string(),
                    port: 53,
                    target_port: 53,
                    proto: Proto::Tcp,
                },
            ],
            ..LabService::default()
        }
    }

    /// `NAMESPACE/NAME`.
    pub fn key(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }
}

/// What an EndpointSlice says about an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndpointState {
    /// ready, serving.
    Ready,
    /// Neither ready nor serving.
    NotReady,
    /// Terminating and still serving.
    Terminating,
    /// Terminating and no longer serving.
    TerminatingNotServing,
    /// Not in the slice.
    Gone,
}

/// An endpoint: a pod's addresses and place.
#[derive(Clone, Debug)]
pub struct LabEndpoint {
    /// The pod's name.
    pub name: String,
    /// Its IPv4 address.
    pub ipv4: Ipv4Addr,
    /// Its IPv6 address.
    pub ipv6: Ipv6Addr,
    /// Its node.
    pub node: String,
    /// Its node's zone.
    pub zone: String,
    /// Its conditions.
    pub state: EndpointState,
}

/// A folder of manifests. Every change is written before the call returns.
pub struct Manifests {
    folder: PathBuf,
    zones: Vec<(String, String)>,
    services: Mutex<Vec<(LabService, Vec<LabEndpoint>)>>,
}

impl Manifests {
    /// Creates the folder and writes the laboratory's Nodes.
    pub fn new(folder: impl AsRef<Path>, lab: &Lab) -> Result<Manifests> {
        let folder = folder.as_ref().to_path_buf();
        std::fs::create_dir_all(&folder).map_err(Error::io(format!("create {}", folder.display())))?;
        let mut text = String::new();
        for node in lab.nodes() {
            let _ = write!(
                text,
                "---\napiVersion: v1\nkind: Node\nmetadata:\n  name: {n}\n  labels:\n    kubernetes.io/hostname: {n}\n\
                 \x20   topology.kubernetes.io/zone: {z}\nspec:\n  podCIDR: {c4}\n  podCIDRs: [\"{c4}\", \"{c6}\"]\nstatus:\n  addresses:\n\
                 \x20   - {{type: InternalIP, address: \"{a4}\"}}\n    - {{type: InternalIP, address: \"{a6}\"}}\n\
                 \x20 conditions:\n    - {{type: Ready, status: \"True\"}}\n",
                n = node.name(),
                z = node.zone(),
                c4 = node.pod_cidr_v4(),
                c6 = node.pod_cidr_v6(),
                a4 = node.ipv4(),
                a6 = node.ipv6(),
            );
        }
        let zones = lab
            .nodes()
            .iter()
            .map(|n| (n.name().to_string(), n.zone().to_string()))
            .collect();
        let manifests = Manifests {
            folder,
            zones,
            services: Mutex::new(Vec::new()),
        };
        manifests.write("nodes.yaml", &text)?;
        Ok(manifests)
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Adds or replaces a Service, keeping its endpoints.
    pub fn set_service(&self, service: LabService) -> Result<()> {
        let mut services = lock(&self.services);
        let at = services.iter().position(|(s, _)| s.key() == service.key());
        let at = at.unwrap_or_else(|| {
            services.push((service.clone(), Vec::new()));
            services.len() - 1
        });
        services[at].0 = service;
        self.write_service(&services[at])
    }

    /// Removes a Service and its slices.
    pub fn remove_service(&self, key: &str) -> Result<()> {
        let mut services = lock(&self.services);
        services.retain(|(s, _)| s.key() != key);
        let path = self.folder.join(file_of(key));
        std::fs::remove_file(&path).map_err(Error::io(format!("remove {}", path.display())))
    }

    /// Sets what the slices of service `key` say about one pod.
    pub fn set_endpoint(&self, key: &str, pod: &Pod, state: EndpointState) -> Result<()> {
        self.set_endpoints(key, &[(pod, state)])
    }

    /// Sets what the slices of service `key` say about several pods, in one step.
    pub fn set_endpoints(&self, key: &str, pods: &[(&Pod, EndpointState)]) -> Result<()> {
        let mut services = lock(&self.services);
        let found = services.iter_mut().find(|(s, _)| s.key() == key);
        let found = found.ok_or_else(|| Error::other(format!("no service `{key}` in {}", self.folder.display())))?;
        for (pod, state) in pods {
            found.1.retain(|e| !(e.name == pod.name() && e.node == pod.node_name()));
            if *state != EndpointState::Gone {
                let zone = self
                    .zones
                    .iter()
                    .find(|(n, _)| n == pod.node_name())
                    .map(|(_, z)| z.clone());
                found.1.push(LabEndpoint {
                    name: pod.name().to_string(),
                    ipv4: pod.ipv4(),
                    ipv6: pod.ipv6(),
                    node: pod.node_name().to_string(),
                    zone: zone.unwrap_or_default(),
                    state: *state,
                });
            }
        }
        self.write_service(found)
    }

    /// The endpoints the slices of service `key` list.
    pub fn endpoints(&self, key: &str) -> Vec<LabEndpoint> {
        let services = lock(&self.services);
        services
            .iter()
            .find(|(s, _)| s.key() == key)
            .map(|(_, e)| e.clone())
            .unwrap_or_default()
    }

    fn write_service(&self, (service, endpoints): &(LabService, Vec<LabEndpoint>)) -> Result<()> {
        let mut text = service_yaml(service);
        for ip in &service.cluster_ips {
            text += &slice_yaml(service, ip.is_ipv4(), endpoints);
        }
        self.write(&file_of(&service.key()), &text)
    }

    /// Replaces a file of the folder atomically; for files of the caller's own too.
    pub fn write(&self, name: &str, text: &str) -> Result<()> {
        let (path, hidden) = (self.folder.join(name), self.folder.join(format!(".{name}.tmp")));
        std::fs::write(&hidden, text).map_err(Error::io(format!("write {}", hidden.display())))?;
        std::fs::rename(&hidden, &path).map_err(Error::io(format!("rename {} to {}", hidden.display(), path.display())))
    }
}

fn file_of(key: &str) -> String {
    format!("{}.yaml", key.replace('/', "-"))
}

fn map_yaml(name: &str, entries: &[(String, String)]) -> String {
    if entries.is_empty() {
        return String::new();
    }
    let lines: String = entries.iter().map(|(k, v)| format!("    {k}: {v:?}\n")).collect();
    format!("  {name}:\n{lines}")
}

fn service_yaml(service: &LabService) -> String {
    let mut text = format!(
        "---\napiVersion: v1\nkind: Service\nmetadata:\n  namespace: {}\n  name: {}\n{}{}spec:\n  type: ClusterIP\n",
        service.namespace,
        service.name,
        map_yaml("labels", &service.labels),
        map_yaml("annotations", &service.annotations)
    );
    if let Some(first) = service.cluster_ips.first() {
        let ips: Vec<String> = service.cluster_ips.iter().map(|i| format!("\"{i}\"")).collect();
        let families: Vec<&str> = service.cluster_ips.iter().map(|i| family(i.is_ipv4())).collect();
        let policy = if ips.len() > 1 {
            "RequireDualStack"
        } else {
            "SingleStack"
        };
        let _ = write!(
            text,
            "  clusterIP: \"{first}\"\n  clusterIPs: [{}]\n  ipFamilies: [{}]\n  ipFamilyPolicy: {policy}\n",
            ips.join(", "),
            families.join(", ")
        );
    }
    for line in &service.spec {
        let _ = writeln!(text, "  {line}");
    }
    text += "  ports:\n";
    for p in &service.ports {
        let _ = writeln!(
            text,
            "    - {{name: {}, port: {}, targetPort: {}, protocol: {}}}",
            p.name,
            p.port,
            p.target_port,
            p.proto.upper()
        );
    }
    text
}

fn family(v4: bool) -> &'static str {
    if v4 { "IPv4" } else { "IPv6" }
}

fn slice_yaml(service: &LabService, v4: bool, endpoints: &[LabEndpoint]) -> String {
    let mut text = format!(
        "---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata:\n  namespace: {ns}\n  name: {n}-{f}\n  labels:\n\
         \x20   kubernetes.io/service-name: {n}\n    endpointslice.kubernetes.io/managed-by: endpointslice-controller.k8s.io\n\
         addressType: {family}\nports:\n",
        ns = service.namespace,
        n = service.name,
        f = family(v4).to_lowercase(),
        family = family(v4),
    );
    for p in &service.ports {
        let _ = writeln!(
            text,
            "  - {{name: {}, port: {}, protocol: {}}}",
            p.name,
            p.target_port,
            p.proto.upper()
        );
    }
    text += if endpoints.is_empty() {
        "endpoints: []\n"
    } else {
        "endpoints:\n"
    };
    for e in endpoints {
        let (ready, serving, terminating) = match e.state {
            EndpointState::Ready => (true, true, false),
            EndpointState::NotReady | EndpointState::Gone => (false, false, false),
            EndpointState::Terminating => (false, true, true),
            EndpointState::TerminatingNotServing => (false, false, true),
        };
        let address = if v4 { e.ipv4.to_string() } else { e.ipv6.to_string() };
        let _ = write!(
            text,
            "  - addresses: [\"{address}\"]\n    conditions: {{ready: {ready}, serving: {serving}, terminating: {terminating}}}\n\
             \x20   nodeName: {}\n    zone: {}\n    targetRef: {{kind: Pod, namespace: {}, name: {}}}\n",
            e.node, e.zone, service.namespace, e.name
        );
    }
    text
}
