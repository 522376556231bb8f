//! Real DNS servers as endpoints. Every name under `lab.` resolves to the pod's own addresses, so the answer says who
//! answered; `whoami.lab. TXT` gives the tag.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use nix::sys::signal::Signal;

use crate::dnswire::QType;
use crate::node::{Host, Pod};
use crate::process::{Cmd, Process};
use crate::{Error, Result, wait_for};

/// Which program serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DnsServerKind {
    /// dnsmasq.
    Dnsmasq,
    /// unbound.
    Unbound,
}

/// A DNS server in a pod on port 53, UDP and TCP, both families. Killed when dropped.
pub struct DnsServer {
    pod: Pod,
    process: Process,
}

impl DnsServer {
    /// Starts a server in `pod`; `tag` is the text of `whoami.lab. TXT`. Does not wait: see [`DnsServer::wait_ready`].
    /// `directory` receives the configuration file.
    pub fn start(pod: &Pod, kind: DnsServerKind, tag: &str, directory: &Path) -> Result<DnsServer> {
        let command = match kind {
            DnsServerKind::Dnsmasq => dnsmasq(pod, tag)?,
            DnsServerKind::Unbound => unbound(pod, tag, directory)?,
        };
        Ok(DnsServer {
            process: pod.spawn(&command)?,
            pod: pod.clone(),
        })
    }

    /// Its IPv4 or IPv6 address with port 53.
    pub fn address(&self, like: IpAddr) -> SocketAddr {
        SocketAddr::new(self.pod.ip_like(like), 53)
    }

    /// Its pod.
    pub fn pod(&self) -> &Pod {
        &self.pod
    }

    /// The process, for [`Process::pause`], [`Process::kill`] and the like.
    pub fn process(&self) -> &Process {
        &self.process
    }

    /// Waits until it answers, in both families.
    pub fn wait_ready(&self, timeout: Duration) -> Result<()> {
        for address in [self.address([0, 0, 0, 0].into()), self.address([0u16; 8].into())] {
            wait_for(
                &format!("answer of `{}` on {address}", self.process.command()),
                timeout,
                || {
                    if !self.process.is_running() {
                        return Err(Error::other(format!(
                            "`{}` ended: {}",
                            self.process.command(),
                            self.process.stderr()
                        )));
                    }
                    self.pod
                        .netns()
                        .dns_query(address, "whoami.lab", QType::A, Duration::from_millis(100))
                },
            )?;
        }
        Ok(())
    }

    /// SIGTERM, then waits for the end.
    pub fn stop(&self) -> Result<()> {
        self.process.signal(Signal::SIGTERM)?;
        self.process.wait(Duration::from_secs(5)).map(|_| ())
    }
}

// Both run as root of the laboratory: a change of user would clear their parent-death signal.

fn dnsmasq(pod: &Pod, tag: &str) -> Result<Cmd> {
    crate::lab::require_program("dnsmasq", "dnsmasq-base")?;
    let (v4, v6) = (pod.ipv4(), pod.ipv6());
    Ok(Cmd::new("dnsmasq")
        .args([
            "--no-daemon",
            "--conf-file=/dev/null",
            "--no-resolv",
            "--no-hosts",
            "--cache-size=0",
            "--pid-file=",
        ])
        .args(["--bind-interfaces", "--port=53"])
        .args([format!("--listen-address={v4}"), format!("--listen-address={v6}")])
        .args([
            format!("--address=/lab/{v4}"),
            format!("--address=/lab/{v6}"),
            format!("--txt-record=whoami.lab,{tag}"),
        ]))
}

fn unbound(pod: &Pod, tag: &str, directory: &Path) -> Result<Cmd> {
    crate::lab::require_program("unbound", "unbound")?;
    let (v4, v6) = (pod.ipv4(), pod.ipv6());
    let text = format!(
        "server:\n  interface: {v4}\n  interface: {v6}\n  port: 53\n  do-daemonize: no\n  username: \"\"\n  chroot: \"\"\n\
         \x20 directory: \"\"\n  pidfile: \"\"\n  use-syslog: no\n  access-control: 0.0.0.0/0 allow\n  access-control: ::0/0 allow\n\
         \x20 module-config: \"iterator\"\n  num-threads: 1\n  so-reuseport: no\n  outgoing-range: 64\n  num-queries-per-thread: 64\n\
         \x20 msg-cache-size: 1m\n  rrset-cache-size: 1m\n  infra-cache-numhosts: 100\n\
         \x20 local-zone: \"lab.\" redirect\n  local-data: \"lab. 0 A {v4}\"\n  local-data: \"lab. 0 AAAA {v6}\"\n\
         \x20 local-data: 'lab. 0 TXT \"{tag}\"'\nremote-control:\n  control-enable: no\n"
    );
    let file = directory.join(format!("unbound-{}.conf", pod.netns().name()));
    std::fs::write(&file, text).map_err(Error::io(format!("write {}", file.display())))?;
    Ok(Cmd::new("unbound").args(["-d", "-c"]).arg(file))
}
