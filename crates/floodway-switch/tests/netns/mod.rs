//! Threads in network namespaces of their own, and a relay between two uplinks.

// Each test file uses its own part of this.
#![allow(dead_code)]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::RawFd;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc;
use std::thread::{self, Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

use floodway_switch::frame::iovec::GuestIoVec;
use floodway_switch::uplink::{Receiver, SendError, Sender};
use floodway_wire::vnet::VnetHdr;

/// A test that waits longer than this for anything has failed.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Runs `body` in a thread in an empty network namespace, which goes away with its last user.
pub fn spawn<'s, T: Send + 's>(
    scope: &'s Scope<'s, '_>,
    body: impl FnOnce() -> T + Send + 's,
) -> ScopedJoinHandle<'s, T> {
    scope.spawn(move || {
        enter();
        body()
    })
}

/// Runs `body` in an empty network namespace.
pub fn within<T: Send>(body: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| match spawn(scope, body).join() {
        Ok(value) => value,
        Err(panic) => std::panic::resume_unwind(panic),
    })
}

fn enter() {
    // SAFETY: takes no pointers; changes the namespace of this thread only.
    let rc = unsafe { libc::unshare(libc::CLONE_NEWNET) };
    let error = std::io::Error::last_os_error();
    assert_eq!(rc, 0, "this test needs a network namespace of its own (run it as root): {error}");
}

/// Takes this thread's privileges away.
pub fn become_nobody() {
    // SAFETY: takes no pointers. The bare system call concerns this thread only.
    let rc = unsafe { libc::syscall(libc::SYS_setresuid, 65534, 65534, 65534) };
    assert_eq!(rc, 0, "cannot become nobody: {}", std::io::Error::last_os_error());
}

/// Waits until the kernel has noticed the carrier of `device`; before that it drops what is sent,
/// and calls it sent.
pub fn wait_until_running(device: &str) {
    let deadline = Instant::now() + PATIENCE;
    while !ip(&format!("-oneline link show dev {device}")).contains(" state UP ") {
        assert!(Instant::now() < deadline, "{device} did not come up for {PATIENCE:?}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Adds the veth pair `v0` and `v1`, on which the kernel sends nothing of its own, and waits until both are up.
pub fn add_veth() {
    ip("link add v0 type veth peer name v1");
    for name in ["v0", "v1"] {
        ip(&format!("link set {name} addrgenmode none"));
        ip(&format!("link set {name} up"));
    }
    ["v0", "v1"].into_iter().for_each(wait_until_running);
}

/// Runs ip(8) in this thread's namespace; returns what it printed.
pub fn ip(arguments: &str) -> String {
    let output = Command::new("ip").args(arguments.split_whitespace()).output();
    let output = output.expect("this test needs ip(8), from Debian's package iproute2");
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "ip {arguments}: {complaint}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Waits until `fd` has something to say.
pub fn wait(fd: RawFd) {
    let mut list = [libc::pollfd { fd, events: libc::POLLIN, revents: 0 }];
    // SAFETY: the list is valid during the call.
    let n = unsafe { libc::poll(list.as_mut_ptr(), 1, PATIENCE.as_millis() as i32) };
    assert_eq!(n, 1, "nothing happened for {PATIENCE:?}");
}

/// Receives until a frame `accepts`; returns it.
pub fn receive(
    from: &mut dyn Receiver,
    accepts: impl Fn(&VnetHdr, &[u8]) -> bool,
) -> (VnetHdr, Vec<u8>) {
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline {
        match from.recv().expect("receive") {
            Some(r) if accepts(&r.vnet, r.frame) => return (r.vnet, r.frame.to_vec()),
            Some(_) => {}
            None => wait(from.fd()),
        }
    }
    panic!("no such frame for {PATIENCE:?}");
}

/// What a relay has seen in one direction.
#[derive(Debug, Default)]
pub struct Seen {
    pub frames: u64,
    pub unfinished_checksums: u64,
    pub gso_packets: u64,
    pub longest: usize,
}

impl Seen {
    /// TCP came through as the sender made it: in frames of many segments, not summed yet.
    pub fn assert_gso_packets(&self) {
        assert!(self.gso_packets > 0 && self.unfinished_checksums > 0, "{self:?}");
        assert!(self.longest > 8 * 1514, "{self:?}");
    }
}

/// A frame on its way.
pub struct Passing {
    pub vnet: VnetHdr,
    pub frame: Vec<u8>,
}

/// One direction of a relay.
pub struct Direction<'a> {
    pub from: &'a mut dyn Receiver,
    pub to: &'a mut dyn Sender,
    pub edit: &'a dyn Fn(&mut Passing),
}

impl Direction<'_> {
    /// Passes on all there is, in three pieces each.
    fn pump(&mut self, seen: &mut Seen) {
        while let Some(received) = self.from.recv().expect("receive") {
            let mut passing = Passing { vnet: received.vnet, frame: received.frame.to_vec() };
            (self.edit)(&mut passing);
            seen.frames += 1;
            seen.unfinished_checksums += u64::from(passing.vnet.needs_csum());
            seen.gso_packets += u64::from(passing.vnet.is_gso());
            seen.longest = seen.longest.max(passing.frame.len());
            let (a, rest) = passing.frame.split_at(5);
            let (b, c) = rest.split_at(rest.len() / 2);
            match self.to.send(&passing.vnet, &[a, b, c].map(GuestIoVec::from_slice)) {
                Ok(()) | Err(SendError::Full | SendError::Refused) => {}
                Err(SendError::Failed(e)) => panic!("cannot pass on {:?}: {e}", passing.vnet),
            }
        }
    }
}

/// Relays both directions until `done`; what it has seen in each.
pub fn relay(mut there: Direction<'_>, mut back: Direction<'_>, done: &AtomicBool) -> [Seen; 2] {
    let mut seen = [Seen::default(), Seen::default()];
    while !done.load(Relaxed) {
        there.pump(&mut seen[0]);
        back.pump(&mut seen[1]);
        let fds = [there.from.fd(), back.from.fd()];
        let mut list = fds.map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
        // SAFETY: the list is valid during the call. A short time-out, to look at `done`.
        unsafe { libc::poll(list.as_mut_ptr(), 2, 10) };
    }
    seen
}

/// Both halves of an uplink.
pub type Halves = (Box<dyn Receiver>, Box<dyn Sender>);

/// Two hosts' TCP stacks, each in a namespace with an uplink that `setup` opened there. While a
/// client in the first talks to a server at `server` in the second, `relay` joins the uplinks
/// until it is told that the talk is over.
pub fn transfer<T>(
    setup: [&(dyn Fn() -> Halves + Sync); 2],
    server: SocketAddr,
    relay: impl FnOnce(Halves, Halves, &AtomicBool) -> T,
) -> T {
    let done = AtomicBool::new(false);
    let [setup_client, setup_server] = setup;
    thread::scope(|scope| {
        let (give_client, client_halves) = mpsc::channel();
        let (give_server, server_halves) = mpsc::channel();
        let (ready, listening) = mpsc::channel();
        spawn(scope, move || {
            give_server.send(setup_server()).expect("hand over the uplink");
            let listener = TcpListener::bind(server).expect("listen");
            ready.send(()).expect("say so");
            let (stream, _) = listener.accept().expect("accept");
            swap(stream, true);
        });
        let over = SetWhenDropped(&done);
        spawn(scope, move || {
            let _over = over;
            give_client.send(setup_client()).expect("hand over the uplink");
            listening.recv_timeout(PATIENCE).expect("a server");
            swap(TcpStream::connect_timeout(&server, PATIENCE).expect("connect"), false);
        });
        let client = client_halves.recv_timeout(PATIENCE).expect("the client's uplink");
        let server = server_halves.recv_timeout(PATIENCE).expect("the server's uplink");
        relay(client, server, &done)
    })
}

/// Ends a relay, also when the test fails.
pub struct SetWhenDropped<'a>(pub &'a AtomicBool);

impl Drop for SetWhenDropped<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// Bytes that a transfer carries in each direction.
const TRANSFER: usize = 4 << 20;

fn pattern() -> Vec<u8> {
    (0..TRANSFER as u64).map(|i| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
}

/// Moves the pattern one way, then the other.
fn swap(mut stream: TcpStream, receives_first: bool) {
    stream.set_read_timeout(Some(PATIENCE)).expect("set the time-out");
    stream.set_write_timeout(Some(PATIENCE)).expect("set the time-out");
    let expected = pattern();
    for receives in [receives_first, !receives_first] {
        if receives {
            let mut got = vec![0; TRANSFER];
            stream.read_exact(&mut got).expect("read");
            assert!(got == expected, "the bytes differ from what was sent");
        } else {
            stream.write_all(&expected).expect("write");
        }
    }
    assert_eq!(checksum_errors(), 0);
}

/// TCP segments that this namespace dropped for their checksum.
fn checksum_errors() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/net/snmp").expect("read the counters");
    let mut tcp = text.lines().filter(|line| line.starts_with("Tcp:"));
    let names = tcp.next().expect("names of the counters").split_whitespace();
    let values = tcp.next().expect("values of the counters").split_whitespace();
    let (_, value) =
        names.zip(values).find(|(name, _)| *name == "InCsumErrors").expect("a counter");
    value.parse().expect("a number")
}
