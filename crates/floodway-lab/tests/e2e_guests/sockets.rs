//! What an application in a guest without the module sees of its connections, with early acknowledgement as without any offload: when `close` returns, what
//! is unacknowledged, which error ends a connection that nobody answers, and that half-closed and reset ones are what they are.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use floodway_guest::sockets::{Call, Outcome, Script};
use floodway_guest::stream::{self, Bytes};
use floodway_lab::net::Namespace;
use floodway_lab::path::Path;
use floodway_lab::switch_process::Offload;
use floodway_lab::transfer::inside;
use floodway_netem::{LinkSpec, Loss, PortSpec, Spec};
use rustix::net::sockopt;

use crate::scene::{Guest, Scene};

const UPLINK: &str = "[[uplink]]\nname = \"host\"\nkind = \"tap\"\ndevice = \"fw0\"\n";
const VM: &str = "vm";
const PORT: u16 = 5000;
/// One way, in milliseconds.
const DELAY: f64 = 10.0;
/// More than the peer's kernel and the path take while nobody reads.
const BYTES: u64 = 1 << 20;
/// What a peer leaves unread: more than its kernel takes, and less than the guest's socket.
const UNREAD: u64 = 192 << 10;
/// Of the peer's socket; its kernel doubles it.
const RECEIVE_BUFFER: usize = 32 << 10;
/// Of the guest's socket; its kernel doubles it.
const SEND_BUFFER: usize = 208 << 10;
/// More than a guest's socket takes.
const ENDLESS: u64 = 64 << 20;
const SEED: u64 = 1;
/// Lets the guest's socket take what the peer leaves unread.
const ROOM: Call = Call::SendBuffer { bytes: SEND_BUFFER };
const LOOK: Duration = Duration::from_millis(10);
/// How long the peer waits to see that the guest waits for it.
const WATCH: Duration = Duration::from_secs(1);
/// Far longer than anything takes on a loaded machine.
const LONG: Duration = Duration::from_secs(300);
/// Shortest time after which a guest may give its peer up, in milliseconds.
const GIVE_UP: u32 = 2000;

/// A VM behind the switch, and the other end behind a path.
struct Ends {
    scene: Scene,
    path: Mutex<Path>,
    far: Namespace,
    listener: TcpListener,
    address: SocketAddr,
}

/// What the other end does: it has its socket, and can ask whether the guest is done.
type Peer<'a> = &'a dyn Fn(TcpStream, &dyn Fn() -> bool);

impl Ends {
    fn start() -> Self {
        let guests = [Guest {
            name: VM,
            mac: "52:54:00:00:00:01",
            keys: "offload = { transmit = false }",
            queue_pairs: 1,
        }];
        let scene = Scene::start("sockets", UPLINK, &guests);
        let far = Namespace::create("sockets-far").unwrap();
        let mut ends = ["near", "far"].map(|name| {
            let namespace = if name == "near" { &scene.host } else { &far };
            PortSpec::tap(name, Some(namespace.name()), &format!("{name}0"))
        });
        for end in &mut ends {
            end.egress = LinkSpec { delay_ms: DELAY, ..LinkSpec::default() };
        }
        let [near, end] = ends;
        let path = Path::start(&Spec::path(near, end), None).unwrap();
        scene.host.add_address("fw0", "10.0.0.254/24").unwrap();
        scene.host.add_address("near0", "10.0.1.254/24").unwrap();
        far.add_address("far0", "10.0.1.1/24").unwrap();
        far.ip(&["route", "add", "default", "via", "10.0.1.254"]).unwrap();
        let mut forward = scene.host.command("sysctl");
        forward.args(["-q", "-w", "net.ipv4.ip_forward=1"]);
        floodway_lab::process::run_command(forward).unwrap();
        scene.address(0, "10.0.0.1/24");
        scene.run(0, "ip route add default via 10.0.0.254");
        scene.ping(0, "10.0.1.1");
        let address = SocketAddr::new("10.0.1.1".parse().unwrap(), PORT);
        let listener = inside(&far, || TcpListener::bind(address)).unwrap().unwrap();
        listener.set_nonblocking(true).unwrap();
        // Sockets that it accepts inherit it.
        sockopt::set_socket_recv_buffer_size(&listener, RECEIVE_BUFFER).unwrap();
        Self { scene, path: Mutex::new(path), far, listener, address }
    }

    fn set_mode(&self, mode: &'static str) {
        let offload = Offload { mode: Some(mode), ..Offload::default() };
        self.scene.switch.set_offload(VM, &offload).unwrap();
    }

    fn early_acks(&self) -> u64 {
        self.scene.switch.offload_counters(VM).unwrap()["early_acks"]
    }

    /// Lets the guest make calls while the other end does its part.
    fn run(&self, calls: &[Call], peer: Peer<'_>) -> Vec<Outcome> {
        let timeout_ms = LONG.as_millis() as u64;
        let script = Script { address: self.address, timeout_ms, calls: calls.to_vec() };
        thread::scope(|scope| {
            let guest = scope.spawn(|| self.scene.agent(0).socket_calls(&script).unwrap());
            let socket = accept(&self.listener, &|| guest.is_finished());
            if let Some(socket) = socket {
                peer(socket, &|| guest.is_finished());
            }
            guest.join().unwrap()
        })
    }

    /// Lets the path lose everything, or nothing.
    fn lose(&self, everything: bool) {
        let mut path = self.path.lock().unwrap();
        for port in ["near", "far"] {
            let loss = everything.then_some(Loss::Random(1.0));
            path.update(port, |link| link.loss = loss).unwrap();
        }
    }

    /// What each call of each script has returned.
    fn outcomes(&self) -> Vec<(&'static str, Vec<Outcome>)> {
        let send = Call::Send { bytes: BYTES, seed: SEED };
        let endless = Call::Send { bytes: ENDLESS, seed: SEED };
        let linger = |seconds| [ROOM, Call::Linger { seconds }, send.clone(), Call::Close];
        let silent = |mut socket: TcpStream, is_done: &dyn Fn() -> bool| {
            socket.read_exact(&mut [0; 1000]).unwrap();
            self.lose(true);
            wait_for(is_done);
            self.lose(false);
        };
        vec![
            ("lingers", self.run(&linger(300), &reads_when_waited_for)),
            ("lingers in vain", self.run(&linger(1), &reads_when_left)),
            (
                "acknowledged",
                self.run(&[ROOM, send.clone(), Call::AwaitAcknowledged], &reads_when_waited_for),
            ),
            ("half-closed", self.run(&[send, Call::ShutdownWrite, Call::ReadToEnd], &answers)),
            ("reset", self.run(std::slice::from_ref(&endless), &resets)),
            ("silent", self.run(&[Call::UserTimeout { ms: GIVE_UP }, endless], &silent)),
        ]
    }
}

/// Returns nothing if the guest has ended without a connection.
fn accept(listener: &TcpListener, is_done: &dyn Fn() -> bool) -> Option<TcpStream> {
    while !is_done() {
        if let Ok((socket, _)) = listener.accept() {
            socket.set_nonblocking(false).unwrap();
            socket.set_read_timeout(Some(LONG)).unwrap();
            return Some(socket);
        }
        thread::sleep(LOOK);
    }
    None
}

fn wait_for(is_done: &dyn Fn() -> bool) {
    while !is_done() {
        thread::sleep(LOOK);
    }
}

/// Reads most of it. What is left cannot have been acknowledged.
fn reads_most(socket: &mut TcpStream) -> Vec<u8> {
    let mut got = vec![0; (BYTES - UNREAD) as usize];
    socket.read_exact(&mut got).unwrap();
    got
}

fn reads_the_rest(mut socket: TcpStream, mut got: Vec<u8>) {
    socket.read_to_end(&mut got).unwrap();
    assert!(got == bytes(BYTES), "{} bytes", got.len());
}

/// Sees that the guest waits for what is not read yet.
fn reads_when_waited_for(mut socket: TcpStream, is_done: &dyn Fn() -> bool) {
    let got = reads_most(&mut socket);
    thread::sleep(WATCH);
    assert!(!is_done(), "the guest was told that its peer has what nobody has read");
    reads_the_rest(socket, got);
}

/// Reads the rest when the guest's application is gone.
fn reads_when_left(mut socket: TcpStream, is_done: &dyn Fn() -> bool) {
    let got = reads_most(&mut socket);
    wait_for(is_done);
    reads_the_rest(socket, got);
}

/// Reads to the end of the stream, and answers then.
fn answers(mut socket: TcpStream, _: &dyn Fn() -> bool) {
    let mut got = Vec::new();
    socket.read_to_end(&mut got).unwrap();
    assert!(got == bytes(BYTES), "{} bytes", got.len());
    socket.write_all(&got).unwrap();
}

/// Resets the connection in mid-stream.
fn resets(mut socket: TcpStream, _: &dyn Fn() -> bool) {
    socket.read_exact(&mut [0; 100_000]).unwrap();
    sockopt::set_socket_linger(&socket, Some(Duration::ZERO)).unwrap();
}

fn bytes(len: u64) -> Vec<u8> {
    let mut bytes = vec![0; len as usize];
    Bytes::new(SEED).fill(&mut bytes);
    bytes
}

fn returns(value: u64) -> Outcome {
    Outcome { value, ..Outcome::default() }
}

fn fails(error: i32) -> Outcome {
    Outcome { error: Some(error), ..Outcome::default() }
}

#[test]
fn applications_see_the_same_with_early_acknowledgement() {
    let ends = Ends::start();
    let without = ends.outcomes();
    assert_eq!(ends.early_acks(), 0);
    ends.set_mode("agentless");
    let with = ends.outcomes();
    assert!(ends.early_acks() > 0, "nothing was acknowledged early");
    assert_eq!(with, without);
    let sha256 = stream::sha256(&mut &bytes(BYTES)[..]).ok();
    let [done, sent] = [returns(0), returns(BYTES)];
    let expected = [
        ("lingers", vec![done.clone(), done.clone(), sent.clone(), done.clone()]),
        ("lingers in vain", vec![done.clone(), done.clone(), sent.clone(), done.clone()]),
        ("acknowledged", vec![done.clone(), sent.clone(), done.clone()]),
        ("half-closed", vec![sent, done.clone(), Outcome { sha256, ..returns(BYTES) }]),
        ("reset", vec![fails(libc::ECONNRESET)]),
        ("silent", vec![done, fails(libc::ETIMEDOUT)]),
    ];
    assert_eq!(with, expected);
    drop(ends.far);
}
