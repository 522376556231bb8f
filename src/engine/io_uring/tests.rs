//! The traps of multishot receives, each made to happen on loopback.
#![allow(clippy::unwrap_used)]

use super::*;
use crate::net::socket::{local_addr, upstream_udp};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

/// Sends every datagram back from the socket it came to, and remembers what happened.
#[derive(Default)]
struct Echo {
    keys: Vec<SocketKey>,
    received: Vec<(u32, SocketAddr, usize)>,
    errors: Vec<(u32, i32)>,
    failed: Vec<(u64, i32)>,
    woken: usize,
    quiet: bool,
}

impl Handler for Echo {
    fn datagram(&mut self, out: &mut dyn Outbox, token: u32, datagram: Datagram<'_>) {
        assert!(!datagram.truncated);
        self.received.push((token, datagram.from, datagram.payload.len()));
        if !self.quiet {
            out.send(
                self.keys[token as usize],
                &datagram.from,
                datagram.payload,
                u64::from(token),
            );
        }
    }

    fn socket_error(&mut self, _: &mut dyn Outbox, token: u32, fd: BorrowedFd<'_>, errno: i32) {
        self.errors.push((token, errno));
        while crate::net::errqueue::read(fd, &mut [0; 64]).unwrap().is_some() {}
    }

    fn send_failed(&mut self, _: &mut dyn Outbox, tag: u64, errno: i32) {
        self.failed.push((tag, errno));
    }

    fn woken(&mut self, _: &mut dyn Outbox) {
        self.woken += 1;
    }
}

fn turn(engine: &mut Uring, wait: Wait, echo: &mut Echo) {
    engine.wait(wait).unwrap();
    engine.dispatch(echo).unwrap();
}

/// A socket whose receive buffer holds a test's whole traffic.
fn roomy() -> UdpSocket {
    upstream_udp([127, 0, 0, 1].into(), 4 << 20).unwrap().into()
}

struct Rig {
    engine: Uring,
    echo: Echo,
    addr: SocketAddr,
    waker: Waker,
}

impl Rig {
    fn new(config: Config) -> Self {
        let waker = Waker::new().unwrap();
        let mut engine = Uring::new(config, waker.clone()).unwrap();
        let fd = upstream_udp([127, 0, 0, 1].into(), 4 << 20).unwrap();
        let port = local_addr(fd.as_fd()).unwrap().port();
        let key = engine.add_socket(fd, 0).unwrap();
        let echo = Echo {
            keys: vec![key],
            ..Echo::default()
        };
        Self {
            engine,
            echo,
            addr: SocketAddr::new([127, 0, 0, 1].into(), port),
            waker,
        }
    }

    fn client(&self) -> UdpSocket {
        let client = roomy();
        client.connect(self.addr).unwrap();
        client.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        client
    }

    fn turn_until(&mut self, done: impl Fn(&Echo) -> bool) {
        let deadline = Instant::now() + Duration::from_secs(5);
        while !done(&self.echo) {
            assert!(
                Instant::now() < deadline,
                "{:?} {:?}",
                self.echo.received,
                self.engine.stats()
            );
            turn(&mut self.engine, Some(Duration::from_millis(20)), &mut self.echo);
        }
        // What the last turn queued leaves with the next enter.
        turn(&mut self.engine, Some(Duration::ZERO), &mut self.echo);
    }
}

fn small() -> Config {
    Config {
        sq_entries: 64,
        cq_entries: 256,
        buffers: 16,
        max_sockets: 64,
    }
}

#[test]
fn echoes_every_size_whole() {
    let mut rig = Rig::new(small());
    let client = rig.client();
    for size in [1, 512, 1432, 4096, 8932, 65_507] {
        let sent: Vec<u8> = (0..size).map(|i| (i * 31 % 251) as u8).collect();
        client.send(&sent).unwrap();
        rig.turn_until(|e| e.received.last().is_some_and(|r| r.2 == size));
        let mut back = vec![0; 65_536];
        let n = client.recv(&mut back).unwrap();
        assert_eq!(&back[..n], &sent[..]);
    }
}

#[test]
fn zero_length_datagrams_do_not_stop_receiving() {
    let mut rig = Rig::new(small());
    let client = rig.client();
    for _ in 0..5 {
        client.send(b"").unwrap();
    }
    client.send(b"after").unwrap();
    rig.turn_until(|e| e.received.len() == 6);
    assert_eq!(rig.echo.received.iter().filter(|r| r.2 == 0).count(), 5);
    assert!(
        rig.engine.stats().rearmed >= 5,
        "each empty datagram ends the multishot: {:?}",
        rig.engine.stats()
    );
}

#[test]
fn a_refused_send_is_reported_and_receiving_goes_on() {
    let mut rig = Rig::new(small());
    let closed = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let key = rig.echo.keys[0];
    for round in 1..=3 {
        rig.engine.outbox().send(key, &closed, b"x", 7);
        // The refusal either ends the receive or fails the next send; both are reported.
        rig.turn_until(|e| e.errors.len() + e.failed.len() >= round);
    }
    assert!(
        rig.echo.errors.iter().all(|e| *e == (0, libc::ECONNREFUSED)),
        "{:?}",
        rig.echo.errors
    );
    let client = rig.client();
    client.send(b"still there").unwrap();
    rig.turn_until(|e| !e.received.is_empty());
}

#[test]
fn an_empty_buffer_ring_loses_nothing_that_the_socket_holds() {
    let mut rig = Rig::new(Config { buffers: 2, ..small() });
    let client = rig.client();
    for i in 0..500u32 {
        client.send(&i.to_be_bytes()).unwrap();
    }
    rig.turn_until(|e| e.received.len() == 500);
    assert!(
        rig.engine.stats().buffers_exhausted > 0,
        "the test did not exhaust the buffers"
    );
    let mut seen = [0u8; 4];
    for i in 0..500u32 {
        client.recv(&mut seen).unwrap();
        assert_eq!(u32::from_be_bytes(seen), i, "order and bytes survive");
    }
}

#[test]
fn completion_queue_pressure_loses_nothing() {
    // 64 sockets with datagrams waiting, and a completion queue of 8.
    let waker = Waker::new().unwrap();
    let config = Config {
        sq_entries: 4,
        cq_entries: 8,
        buffers: 512,
        max_sockets: 128,
    };
    let mut engine = Uring::new(config, waker).unwrap();
    let mut echo = Echo::default();
    let mut addrs = Vec::new();
    for token in 0..64 {
        let fd = upstream_udp([127, 0, 0, 1].into(), 1 << 20).unwrap();
        addrs.push(SocketAddr::new(
            [127, 0, 0, 1].into(),
            local_addr(fd.as_fd()).unwrap().port(),
        ));
        echo.keys.push(engine.add_socket(fd, token).unwrap());
    }
    let client = roomy();
    for _ in 0..5 {
        for addr in &addrs {
            client.send_to(b"pressure", addr).unwrap();
        }
    }
    let deadline = Instant::now() + Duration::from_secs(5);
    while echo.received.len() < 320 && Instant::now() < deadline {
        turn(&mut engine, Some(Duration::from_millis(20)), &mut echo);
    }
    turn(&mut engine, Some(Duration::ZERO), &mut echo);
    assert_eq!(echo.received.len(), 320);
    assert!(
        engine.stats().cq_overflow > 0,
        "the test did not overflow the queue: {:?}",
        engine.stats()
    );
    client.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    for _ in 0..320 {
        client.recv(&mut [0; 16]).unwrap();
    }
}

#[test]
fn a_removed_socket_is_closed_and_its_slot_reused() {
    let mut rig = Rig::new(small());
    turn(&mut rig.engine, Some(Duration::ZERO), &mut rig.echo);
    let key = rig.echo.keys[0];
    rig.engine.remove_socket(key).unwrap();
    let deadline = Instant::now() + Duration::from_secs(5);
    while rig.engine.sockets() > 0 {
        assert!(Instant::now() < deadline, "the socket was never closed");
        turn(&mut rig.engine, Some(Duration::from_millis(5)), &mut rig.echo);
    }
    // The port is free again, so the kernel has really closed it.
    UdpSocket::bind(("0.0.0.0", rig.addr.port())).unwrap();
    let fd = upstream_udp([127, 0, 0, 1].into(), 65_536).unwrap();
    let port = local_addr(fd.as_fd()).unwrap().port();
    rig.echo.keys[0] = rig.engine.add_socket(fd, 0).unwrap();
    assert_eq!(rig.echo.keys[0], key);
    rig.addr.set_port(port);
    rig.client().send(b"again").unwrap();
    rig.turn_until(|e| e.received.len() == 1);
}

#[test]
fn the_socket_limit_is_an_error_not_a_panic() {
    let mut engine = Uring::new(
        Config {
            max_sockets: 2,
            ..small()
        },
        Waker::new().unwrap(),
    )
    .unwrap();
    for token in 0..2 {
        engine
            .add_socket(upstream_udp([127, 0, 0, 1].into(), 4096).unwrap(), token)
            .unwrap();
    }
    let error = engine
        .add_socket(upstream_udp([127, 0, 0, 1].into(), 4096).unwrap(), 2)
        .unwrap_err();
    assert!(error.to_string().contains("limit of 2 sockets"), "{error}");
}

#[test]
fn a_wake_from_another_thread_ends_the_wait_every_time() {
    let mut rig = Rig::new(small());
    for n in 1..=3 {
        let waker = rig.waker.clone();
        let thread = std::thread::spawn(move || waker.wake());
        rig.turn_until(|e| e.woken == n);
        thread.join().unwrap();
    }
}

#[test]
fn a_wait_ends_in_time() {
    let mut rig = Rig::new(small());
    let before = Instant::now();
    turn(&mut rig.engine, Some(Duration::from_millis(30)), &mut rig.echo);
    assert!(before.elapsed() >= Duration::from_millis(29));
}

#[test]
fn more_sends_than_the_queue_holds_all_leave() {
    let mut rig = Rig::new(small());
    rig.echo.quiet = true;
    let sink = roomy();
    sink.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    let (key, to) = (
        rig.echo.keys[0],
        SocketAddr::new([127, 0, 0, 1].into(), sink.local_addr().unwrap().port()),
    );
    let big = vec![7u8; 60_000];
    for i in 0..100u32 {
        rig.engine.outbox().send(key, &to, &i.to_be_bytes(), 0);
    }
    for _ in 0..6 {
        rig.engine.outbox().send(key, &to, &big, 0);
    }
    turn(&mut rig.engine, Some(Duration::ZERO), &mut rig.echo);
    let mut buffer = vec![0; 65_536];
    for i in 0..100u32 {
        let n = sink.recv(&mut buffer).unwrap();
        assert_eq!(&buffer[..n], i.to_be_bytes());
    }
    for _ in 0..6 {
        let n = sink.recv(&mut buffer).unwrap();
        assert_eq!(&buffer[..n], &big[..]);
    }
    assert!(rig.echo.failed.is_empty(), "{:?}", rig.echo.failed);
}

/// Runs `body` on a thread whose system call `call` answers with `errno`.
fn with_syscall_denied(call: i64, errno: i32, body: impl FnOnce() + Send + 'static) {
    use seccompiler::{SeccompAction, SeccompFilter};
    let filter: seccompiler::BpfProgram = SeccompFilter::new(
        [(call, vec![])].into(),
        SeccompAction::Allow,
        SeccompAction::Errno(errno as u32),
        std::env::consts::ARCH.try_into().unwrap(),
    )
    .unwrap()
    .try_into()
    .unwrap();
    let thread = std::thread::spawn(move || {
        seccompiler::apply_filter(&filter).unwrap();
        body();
    });
    thread.join().unwrap();
}

#[test]
fn a_seccomp_profile_is_named_as_the_likely_cause() {
    with_syscall_denied(libc::SYS_io_uring_setup, libc::EPERM, || {
        let error = Uring::new(small(), Waker::new().unwrap()).err().unwrap();
        assert!(matches!(error, SetupError::Forbidden { .. }), "{error}");
        let words = error.to_string();
        assert!(
            words.contains("seccomp") || words.contains("io_uring_disabled"),
            "{words}"
        );
    });
}

#[test]
fn a_kernel_without_io_uring_is_told_from_one_that_forbids_it() {
    with_syscall_denied(libc::SYS_io_uring_setup, libc::ENOSYS, || {
        let error = Uring::new(small(), Waker::new().unwrap()).err().unwrap();
        assert!(matches!(error, SetupError::Missing(_)), "{error}");
        assert!(error.to_string().contains("6.1"), "{error}");
    });
}

#[test]
fn a_kernel_that_refuses_registrations_is_too_old() {
    with_syscall_denied(libc::SYS_io_uring_register, libc::EINVAL, || {
        let error = Uring::new(small(), Waker::new().unwrap()).err().unwrap();
        assert!(matches!(error, SetupError::TooOld(_)), "{error}");
    });
}
