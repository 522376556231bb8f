//! A small laboratory for the redirection: anonymous network namespaces held by open descriptors, so that nothing can
//! stay behind, however a test ends. One node, one client pod, one endpoint, and a kube-proxy stand-in in nft.
#![allow(clippy::unwrap_used, clippy::expect_used, dead_code)]

use nix::sched::{CloneFlags, setns, unshare};
use nodeward::redirect::RedirectConfig;
use socket2::{Domain, Protocol, Socket, Type};
use std::fs::File;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

pub const VIP4: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 96, 0, 10)), 53);
pub const VIP6: SocketAddr = SocketAddr::new(IpAddr::V6(Ipv6Addr::new(0xfd00, 0x96, 0, 0, 0, 0, 0, 0x10)), 53);
pub const ENDPOINT4: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 1, 1, 2)), 5300);
pub const PATIENCE: Duration = Duration::from_millis(400);

/// The program under test.
pub fn program() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_nodeward"))
}

/// Runs the body as a node: in a thread of its own inside a fresh network namespace, as root or in a user namespace.
pub fn on_a_node(body: impl FnOnce() + Send + 'static) {
    if !nix::unistd::geteuid().is_root() {
        return again_in_a_user_namespace();
    }
    let name = thread::current().name().unwrap_or("node").to_owned();
    let thread = thread::Builder::new().name(name).spawn(move || {
        unshare(CloneFlags::CLONE_NEWNET).unwrap();
        run("ip link set lo up");
        body();
    });
    if let Err(panic) = thread.unwrap().join() {
        std::panic::resume_unwind(panic);
    }
}

fn again_in_a_user_namespace() {
    let name = thread::current().name().expect("a test thread").to_owned();
    let status = Command::new("unshare")
        .args(["--user", "--map-root-user", "--net"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", &name, "--nocapture", "--include-ignored"])
        .status()
        .expect("unshare (util-linux)");
    assert!(status.success(), "{name} failed inside a user namespace");
}

/// A single-threaded runtime on the calling thread, as the agent's control thread has.
pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(future)
}

/// Runs a command in this thread's namespace; words are separated by blanks.
pub fn run(command: &str) -> String {
    let (ok, text) = try_run(command);
    assert!(ok, "{command}: {text}");
    text
}

pub fn try_run(command: &str) -> (bool, String) {
    let words: Vec<&str> = command.split(' ').collect();
    let output = Command::new(words[0])
        .args(&words[1..])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    (output.status.success(), text.into_owned())
}

pub fn nft(rules: &str) {
    let mut child = Command::new("nft")
        .args(["-f", "-"])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), rules.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success(), "{rules}");
}

pub fn sysctl(path: &str, value: &str) {
    std::fs::write(format!("/proc/sys/net/{path}"), value).unwrap();
}

/// Link-local addresses are usable at once, not after a second of duplicate address detection.
fn no_address_detection() {
    sysctl("ipv6/conf/all/accept_dad", "0");
    sysctl("ipv6/conf/default/accept_dad", "0");
}

/// A network namespace that lives while this value does.
pub struct Namespace(File);

impl Namespace {
    pub fn new() -> Self {
        let made = thread::spawn(|| {
            unshare(CloneFlags::CLONE_NEWNET).unwrap();
            no_address_detection();
            run("ip link set lo up");
            File::open("/proc/thread-self/ns/net").unwrap()
        });
        Self(made.join().unwrap())
    }

    /// Runs the body in a thread inside the namespace.
    pub fn spawn<T: Send + 'static>(&self, body: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
        let file = self.0.try_clone().unwrap();
        thread::spawn(move || {
            setns(file, CloneFlags::CLONE_NEWNET).unwrap();
            body()
        })
    }

    pub fn run<T: Send + 'static>(&self, body: impl FnOnce() -> T + Send + 'static) -> T {
        self.spawn(body).join().unwrap()
    }

    /// Joins it to the calling thread's namespace by a veth pair; `n` numbers the subnet.
    pub fn connect(&self, n: u8) {
        let path = format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd());
        run(&format!("ip link add veth{n} type veth peer name eth0 netns {path}"));
        run(&format!("ip addr add 10.1.{n}.1/24 dev veth{n}"));
        run(&format!("ip addr add fd00:1:{n}::1/64 dev veth{n} nodad"));
        run(&format!("ip link set veth{n} up"));
        self.run(move || {
            run(&format!("ip addr add 10.1.{n}.2/24 dev eth0"));
            run(&format!("ip addr add fd00:1:{n}::2/64 dev eth0 nodad"));
            run("ip link set eth0 up");
            run(&format!("ip route add default via 10.1.{n}.1"));
            run(&format!("ip route add default via fd00:1:{n}::1"));
            has_link_local("eth0");
        });
        has_link_local(&format!("veth{n}"));
    }
}

/// Waits for the link-local address, which the kernel adds when it has noticed the carrier. Neighbour solicitations for
/// packets with a foreign source address need it.
fn has_link_local(interface: &str) {
    within(Duration::from_secs(5), "link-local address", || {
        let (_, text) = try_run(&format!("ip -6 addr show dev {interface} scope link"));
        text.contains("fe80") && !text.contains("tentative")
    });
}

/// The node's surroundings. The calling thread is the node.
pub struct Lab {
    pub pod: Namespace,
    pub endpoint: Namespace,
    _server: Vec<Server>,
}

impl Lab {
    pub fn new() -> Self {
        let (pod, endpoint) = (Namespace::new(), Namespace::new());
        no_address_detection();
        sysctl("ipv4/ip_forward", "1");
        sysctl("ipv6/conf/all/forwarding", "1");
        pod.connect(0);
        endpoint.connect(1);
        // Host clients need a route to the VIPs, as they have on a node with a default route.
        run("ip route add 10.96.0.0/16 dev veth1");
        run("ip route add fd00:96::/64 dev veth1");
        nft("table inet standin {
              chain pre { type nat hook prerouting priority dstnat;
                ip daddr 10.96.0.10 udp dport 53 dnat ip to 10.1.1.2:5300
                ip6 daddr fd00:96::10 udp dport 53 dnat ip6 to [fd00:1:1::2]:5300; }
              chain out { type nat hook output priority -100;
                ip daddr 10.96.0.10 udp dport 53 dnat ip to 10.1.1.2:5300
                ip6 daddr fd00:96::10 udp dport 53 dnat ip6 to [fd00:1:1::2]:5300; }
            }");
        let server = |address: &str| {
            let address: SocketAddr = address.parse().unwrap();
            endpoint.run(move || Server::start(UdpSocket::bind(address).unwrap(), "standin"))
        };
        let servers = vec![server("10.1.1.2:5300"), server("[fd00:1:1::2]:5300")];
        Self {
            pod,
            endpoint,
            _server: servers,
        }
    }

    /// Who answers the pod.
    pub fn pod_asks(&self, vip: SocketAddr) -> Option<String> {
        self.pod.run(move || ask(vip))
    }
}

/// One question on a fresh port; the answer counts only if it comes from the address asked.
pub fn ask(vip: SocketAddr) -> Option<String> {
    let any: IpAddr = if vip.is_ipv4() {
        Ipv4Addr::UNSPECIFIED.into()
    } else {
        Ipv6Addr::UNSPECIFIED.into()
    };
    let socket = UdpSocket::bind((any, 0)).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket.connect(vip).unwrap();
    socket.send(b"who?").ok()?;
    let mut buffer = [0; 64];
    let n = socket.recv(&mut buffer).ok()?;
    Some(String::from_utf8_lossy(&buffer[..n]).into_owned())
}

/// A UDP server that answers everything with one word.
pub struct Server {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    pub fn start(socket: UdpSocket, word: &'static str) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let flag = stop.clone();
        socket.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        let thread = thread::spawn(move || {
            let mut buffer = [0; 2048];
            while !flag.load(Ordering::Relaxed) {
                if let Ok((_, peer)) = socket.recv_from(&mut buffer) {
                    let _ = socket.send_to(word.as_bytes(), peer);
                }
            }
        });
        Self {
            stop,
            thread: Some(thread),
        }
    }

    /// What the dataplane does: a transparent socket on the VIP with the listener's mark.
    pub fn on_vip(vip: SocketAddr, config: &RedirectConfig) -> Self {
        let socket = Socket::new(Domain::for_address(vip), Type::DGRAM, Some(Protocol::UDP)).unwrap();
        if vip.is_ipv4() {
            socket.set_ip_transparent_v4(true).unwrap();
        } else {
            socket.set_ip_transparent_v6(true).unwrap();
        }
        socket.set_mark(config.marks().listener_socket).unwrap();
        socket.bind(&vip.into()).unwrap();
        Self::start(socket.into(), "ours")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A process that is killed when the test ends.
pub struct Process(pub Child);

impl Process {
    pub fn kill(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Waits until the condition holds and says how long that took.
pub fn within(limit: Duration, what: &str, mut condition: impl FnMut() -> bool) -> Duration {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < limit, "not within {limit:?}: {what}");
        thread::sleep(Duration::from_millis(1));
    }
    start.elapsed()
}

pub fn table_exists(name: &str) -> bool {
    run("nft list tables")
        .lines()
        .any(|l| l == format!("table inet {name}"))
}

/// Our rules of both families, by the protocol number they carry.
pub fn our_rules() -> Vec<String> {
    ["ip -4 rule show", "ip -6 rule show"]
        .iter()
        .flat_map(|c| run(c).lines().map(str::to_owned).collect::<Vec<_>>())
        .filter(|l| l.contains("proto 78"))
        .collect()
}

pub fn our_routes() -> Vec<String> {
    ["ip -4 route show table all", "ip -6 route show table all"]
        .iter()
        .flat_map(|c| run(c).lines().map(str::to_owned).collect::<Vec<_>>())
        .filter(|l| l.contains("proto 78"))
        .collect()
}
