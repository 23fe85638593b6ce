//! Bytes that were acknowledged to a guest early, across deaths of the data plane. Needs root and ip(8).
//!
//! The guest is a sender that forgets what is acknowledged; its peer is behind an uplink, loses 1 % of what comes, and acknowledges 10 ms late.

use std::fs;
use std::io::ErrorKind;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::Child;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use floodway_process::sealed;
use floodway_switch::testing::Frontend;
use floodway_switch::testing::frames::mac;
use floodway_switch::testing::{wait, wait_until};
use floodway_wire::build::{Link, Tcp};
use floodway_wire::tcp::Flags;

use crate::scene::{Scene, Vm};
use crate::service_manager::Manager;
use crate::uplinks::{in_namespace, ip, uplink};

/// Round trips on a busy machine must not end early acknowledgement.
pub const AGENTLESS: &str = "[port.offload]\ntransmit = \"agentless\"\nearly_ack_delay_ms = 1000\n";
const GUEST: &str = "10.77.0.2:4000";
const PEER: &str = "10.77.0.1:80";
/// Address of the peer, which is behind the uplink.
const PEER_NUMBER: u8 = 77;
const ISN: u32 = 1_000;
const PEER_ISN: u32 = 5_000;
const MSS: usize = 1_000;
/// The guest repeats what is not acknowledged after so long.
const GUEST_RTO: Duration = Duration::from_millis(300);
/// The peer acknowledges after so long.
const PEER_DELAY: Duration = Duration::from_millis(10);
/// Deaths of data planes.
const KILLS: u32 = 20;
const SEED: u64 = 0x51ed_2701;

/// The byte of the stream at `offset`.
fn byte(offset: u32) -> u8 {
    (offset.wrapping_mul(0x9e37_79b9) >> 24) as u8
}

/// A segment as it came.
#[derive(Clone, Copy, Debug)]
struct Got<'a> {
    sequence: u32,
    acknowledgment: u32,
    window: u32,
    flags: Flags,
    payload: &'a [u8],
}

/// The IPv4 segment in `frame` between ports 4000 and 80.
fn parse(frame: &[u8]) -> Option<Got<'_>> {
    let tcp = frame.get(34..)?;
    if frame[12..14] != [8, 0] || frame[23] != 6 || tcp.len() < 20 {
        return None;
    }
    let end = 14 + usize::from(u16::from_be_bytes([frame[16], frame[17]]));
    let word = |at: usize| u32::from_be_bytes([tcp[at], tcp[at + 1], tcp[at + 2], tcp[at + 3]]);
    Some(Got {
        sequence: word(4),
        acknowledgment: word(8),
        window: u16::from_be_bytes([tcp[14], tcp[15]]).into(),
        flags: Flags(tcp[13]),
        payload: frame.get(34 + 4 * usize::from(tcp[12] >> 4)..end)?,
    })
}

/// The host behind the uplink: takes what comes in order, and loses some.
struct Peer {
    socket: OwnedFd,
    segment: Tcp,
    received: u32,
    random: u64,
    lost: u32,
    resets: u32,
    /// Acknowledgements that are still to leave.
    acks: std::collections::VecDeque<(Instant, u32)>,
}

/// A socket that gets every frame of the interface with this number.
fn packet_socket(index: i32) -> OwnedFd {
    let everything = (libc::ETH_P_ALL as u16).to_be();
    let kind = libc::SOCK_RAW | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: takes plain numbers.
    let socket = unsafe { libc::socket(libc::AF_PACKET, kind, everything.into()) };
    assert!(socket >= 0, "a packet socket needs root");
    // SAFETY: just opened, and nobody else's.
    let socket = unsafe { OwnedFd::from_raw_fd(socket) };
    // SAFETY: all zeros are an address.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    (address.sll_protocol, address.sll_ifindex) = (everything, index);
    let len = size_of::<libc::sockaddr_ll>() as u32;
    // SAFETY: reads `len` bytes of an address.
    let rc = unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), len) };
    assert_eq!(rc, 0, "{}", std::io::Error::last_os_error());
    socket
}

impl Peer {
    fn new(device: &str) -> Self {
        let index: i32 = ip(&format!("-oneline link show dev {device}"))
            .split(':')
            .next()
            .and_then(|index| index.parse().ok())
            .unwrap();
        let socket = packet_socket(index);
        let link = Link::new(mac(PEER_NUMBER), mac(2));
        let mut segment = Tcp::new(link, PEER.parse().unwrap(), GUEST.parse().unwrap());
        segment.sequence = PEER_ISN;
        let (received, random) = (0, SEED);
        Self { socket, segment, received, random, lost: 0, resets: 0, acks: Default::default() }
    }

    fn loses(&mut self) -> bool {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let lost = self.random.is_multiple_of(100);
        self.lost += u32::from(lost);
        lost
    }

    fn send(&mut self, flags: Flags, acknowledgment: u32) {
        (self.segment.flags, self.segment.acknowledgment) = (flags, acknowledgment);
        let frame = self.segment.build(b"");
        // SAFETY: reads a frame. What does not leave is lost, as on any network.
        unsafe { libc::send(self.socket.as_raw_fd(), frame.as_ptr().cast(), frame.len(), 0) };
    }

    fn run(&mut self) {
        let mut frame = [0; 70_000];
        loop {
            let room = frame.len();
            // SAFETY: writes at most as many bytes as there are.
            let len =
                unsafe { libc::recv(self.socket.as_raw_fd(), frame.as_mut_ptr().cast(), room, 0) };
            let Ok(len) = usize::try_from(len) else {
                let error = std::io::Error::last_os_error();
                assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}");
                break;
            };
            // What it sends itself it sees, too.
            if let Some(got) = parse(&frame[..len]).filter(|_| frame[6..12] == mac(2).0) {
                self.take(got);
            }
        }
        self.send_acks();
    }

    /// Drops what is in the socket. It may be everything that is owed.
    fn lose_what_has_come(&mut self) {
        let mut frame = [0; 1];
        // SAFETY: writes at most as many bytes as there are.
        while unsafe { libc::recv(self.socket.as_raw_fd(), frame.as_mut_ptr().cast(), 1, 0) } >= 0 {
            self.lost += 1;
        }
    }

    /// Sends the acknowledgements that are due.
    fn send_acks(&mut self) {
        while let Some(&(at, ack)) = self.acks.front()
            && at <= Instant::now()
        {
            self.acks.pop_front();
            if !self.loses() {
                self.send(Flags::ACK, ack);
            }
        }
    }

    fn take(&mut self, got: Got<'_>) {
        if got.flags.intersects(Flags::SYN) {
            self.send(Flags::SYN.with(Flags::ACK), ISN + 1);
            self.segment.sequence = PEER_ISN + 1;
            return;
        }
        self.resets += u32::from(got.flags.intersects(Flags::RST));
        // A GSO packet is not lost whole.
        for (index, payload) in got.payload.chunks(MSS).enumerate() {
            let offset = got.sequence.wrapping_sub(ISN + 1) + (index * MSS) as u32;
            if self.loses() {
                continue;
            }
            self.accept(offset, payload);
            self.acks.push_back((Instant::now() + PEER_DELAY, ISN + 1 + self.received));
        }
    }

    /// Takes in what is next of the stream in `payload`, which begins at `offset`.
    fn accept(&mut self, offset: u32, payload: &[u8]) {
        if offset > self.received || offset + payload.len() as u32 <= self.received {
            return;
        }
        for &value in &payload[(self.received - offset) as usize..] {
            assert_eq!(value, byte(self.received), "byte {}", self.received);
            self.received += 1;
        }
    }
}

/// The guest's TCP: sends as far as the window lets it, and has nothing of what was acknowledged.
struct Sender {
    segment: Tcp,
    una: u32,
    next: u32,
    edge: u32,
    progress: Instant,
    resets: u32,
}

impl Sender {
    fn connect(vm: &mut Vm, peer: &mut Peer) -> Self {
        let link = Link::new(mac(2), mac(PEER_NUMBER));
        let mut segment = Tcp::new(link, GUEST.parse().unwrap(), PEER.parse().unwrap());
        (segment.sequence, segment.flags) = (ISN, Flags::SYN);
        segment.options = vec![2, 4, 0x03, 0xe8];
        vm.send(&segment.build(b""));
        segment.options = Vec::new();
        let edge = wait("the peer's SYN", || {
            peer.run();
            let frames = std::iter::from_fn(|| vm.guest.recv(0));
            frames.filter_map(|(_, frame)| parse(&frame).map(|got| got.window)).last()
        });
        (segment.flags, segment.acknowledgment) = (Flags::ACK, PEER_ISN + 1);
        segment.sequence = ISN + 1;
        vm.send(&segment.build(b""));
        Self { segment, una: 0, next: 0, edge, progress: Instant::now(), resets: 0 }
    }

    fn hear(&mut self, vm: &mut Vm) {
        while let Some((_, frame)) = vm.guest.recv(0) {
            let Some(got) = parse(&frame) else { continue };
            self.resets += u32::from(got.flags.intersects(Flags::RST));
            let una = got.acknowledgment.wrapping_sub(ISN + 1);
            if una > self.una && una <= self.next {
                (self.una, self.progress) = (una, Instant::now());
            }
            if una == self.una {
                self.edge = self.edge.max(una + got.window);
            }
        }
    }

    /// Hears what has come, and sends what may leave of the first `total` bytes.
    fn run(&mut self, vm: &mut Vm, total: u32) {
        self.hear(vm);
        if self.progress.elapsed() > GUEST_RTO {
            (self.next, self.progress) = (self.una, Instant::now());
        }
        while self.next < total.min(self.edge) {
            let len = (total.min(self.edge) - self.next).min(MSS as u32);
            let payload: Vec<u8> = (0..len).map(|at| byte(self.next + at)).collect();
            self.segment.sequence = ISN + 1 + self.next;
            if !vm.guest.send(0, &Default::default(), &self.segment.build(&payload)) {
                return;
            }
            self.next += len;
        }
    }
}

/// A switch whose second guest sends to a peer behind its uplink.
pub struct World {
    pub scene: Scene,
    peer: Peer,
    sender: Sender,
    vm: Vm,
    _other: Vm,
}

impl World {
    fn new() -> Self {
        Self::with(AGENTLESS)
    }

    /// One with these settings for the guest's port.
    pub fn with(mechanisms: &str) -> Self {
        Self::within(tempfile::tempdir().unwrap(), mechanisms)
    }

    /// The same, with the switch in `directory`.
    fn within(directory: tempfile::TempDir, mechanisms: &str) -> Self {
        ip("link add fwp0 type veth peer name fwp1");
        ip("link set fwp0 up");
        ip("link set fwp1 up");
        let scene = Scene::launch_in(
            directory,
            &format!("{mechanisms}{}", uplink("packet", "fwp0")),
            &["--longest-pause", "0", "--log", "warn"],
        );
        let (other, mut vm) = (scene.boot(1), scene.boot(2));
        let mut peer = Peer::new("fwp1");
        let sender = Sender::connect(&mut vm, &mut peer);
        Self { scene, peer, sender, vm, _other: other }
    }

    /// Runs both ends while `work` runs, with ever more bytes to send. Returns what it returned.
    pub fn transfer<T: Send>(
        &mut self,
        total: &mut u32,
        work: impl FnOnce(&Scene) -> T + Send,
    ) -> T {
        let over = AtomicBool::new(false);
        let Self { scene, peer, sender, vm, .. } = self;
        thread::scope(|scope| {
            let working = scope.spawn(|| {
                let result = work(scene);
                over.store(true, Relaxed);
                result
            });
            while !over.load(Relaxed) && !working.is_finished() {
                *total = (*total).max(sender.una + 200_000);
                sender.run(vm, *total);
                peer.run();
                thread::sleep(Duration::from_micros(200));
            }
            working.join().unwrap()
        })
    }

    /// One that owes bytes to a peer which says nothing any more, and the number of all that the guest has to send.
    fn owing() -> (Self, u32) {
        Self::owing_within(tempfile::tempdir().unwrap())
    }

    /// The same, with the switch in `directory`.
    fn owing_within(directory: tempfile::TempDir) -> (Self, u32) {
        let (mut world, mut total) = (Self::within(directory, AGENTLESS), 0);
        // A round trip that was long on a busy machine ends early acknowledgement until there are shorter ones.
        wait_until("bytes that stay owed", || {
            world.transfer(&mut total, |scene| {
                wait_until("bytes that are owed", || owed(scene) > 0);
            });
            total += 100_000;
            let Self { scene, sender, vm, .. } = &mut world;
            // ACKs that the peer has sent before come first.
            let silent = Instant::now();
            while silent.elapsed() < 50 * PEER_DELAY {
                sender.run(vm, total);
            }
            owed(scene) > 0
        });
        (world, total)
    }

    /// Runs both ends until the first `total` bytes have arrived.
    fn deliver(&mut self, total: u32) {
        let Self { peer, sender, vm, .. } = self;
        wait_until("the rest", || {
            sender.run(vm, total);
            peer.run();
            peer.received == total
        });
    }

    /// Transfers what is left of the first `total` bytes: all of them arrive, and nobody resets the connection.
    pub fn finish(&mut self, total: u32) {
        self.deliver(total);
        assert_eq!(peer_and_guest_resets(self), (0, 0));
        assert!(self.peer.lost > 0);
    }

    pub fn offload(&self) -> serde_json::Value {
        wait("a status", || self.scene.status())["ports"][1]["offload"].clone()
    }
}

/// Bytes that the second port owes.
fn owed(scene: &Scene) -> u64 {
    offloaded(scene).map_or(0, |(owed, _)| owed)
}

/// Bytes that the second port owes, and the number of its connections that are offloaded.
pub fn offloaded(scene: &Scene) -> Option<(u64, u64)> {
    let offload = &scene.status()?["ports"][1]["offload"];
    Some((offload["owed"].as_u64()?, offload["online"].as_u64()?))
}

/// T1: the guest has nothing any more of what the switches owe.
#[test]
fn what_a_guest_was_told_has_arrived_arrives_however_often_data_planes_die() {
    in_namespace(|| {
        let mut world = World::new();
        let mut total = 0;
        world.transfer(&mut total, |scene| {
            for kills in 0..KILLS {
                // A data plane that dies just when everything is paid leaves a connection that the next one meets in mid-stream, and lets pass from then on.
                let is_owed = wait("bytes that are owed", || match offloaded(scene)? {
                    (0, 0) if kills > 0 => Some(false),
                    (owed, _) => (owed > 0).then_some(true),
                });
                if !is_owed {
                    break;
                }
                scene.kill_data_plane();
            }
        });
        world.deliver(total);
        let offload = world.offload();
        let counter = |name: &str| offload["counters"][name].as_u64().unwrap();
        assert!(counter("adopted") > 0 && counter("early_acks") > 0, "{offload}");
        let broken = ["adopted_broken", "adopted_unknown", "early_acks_aborted"].map(counter);
        assert_eq!((broken, peer_and_guest_resets(&world)), ([0; 3], (0, 0)));
        assert!(world.peer.lost > 0 && offload["mode"] == "agentless");
        eprintln!(
            "seed {SEED:#x}: {total} bytes, {} lost, adopted {}",
            world.peer.lost,
            counter("adopted"),
        );
    });
}

/// T1: the descriptor store has the journals.
#[test]
fn what_is_owed_outlives_the_death_of_broker_and_data_plane() {
    in_namespace(|| {
        let (mut world, total) = World::owing();
        let World { scene, .. } = &mut world;
        let data_plane = scene.data_plane();
        scene.kill_broker();
        crate::scene::signal(data_plane, libc::SIGKILL);
        scene.start_broker();
        world.deliver(total);
        let counters = world.offload()["counters"].clone();
        assert_eq!((&counters["adopted"], peer_and_guest_resets(&world)), (&1.into(), (0, 0)));
    });
}

/// Nothing is left: the next switch sees that the guest goes on from beyond what the peer expects.
#[test]
fn both_ends_are_reset_after_the_death_of_all_processes() {
    in_namespace(|| {
        let (mut world, total) = World::owing();
        let World { scene, .. } = &mut world;
        scene.kill_all();
        world.peer.lose_what_has_come();
        let World { scene, peer, sender, vm, .. } = &mut world;
        scene.start_broker();
        vm.frontend = Frontend::attach(&scene.path("vm2.sock"), &vm.guest);
        wait_until("the end of the connection", || {
            sender.run(vm, total);
            peer.run();
            peer.resets > 0 && sender.resets > 0
        });
        assert!(world.peer.received < total);
        assert_eq!(world.offload()["counters"]["adopted_broken"], 1);
    });
}

/// T1: a service manager has duplicates of the journals. The budget may be another one by then.
#[test]
fn what_is_owed_outlives_the_death_of_all_processes_under_a_service_manager() {
    in_namespace(|| {
        let directory = tempfile::tempdir().unwrap();
        let mut manager = Manager::of(directory.path());
        let (mut world, total) = World::owing_within(directory);
        manager.hear();
        assert_eq!(manager.kept.len(), 2, "one for each port");
        world.scene.kill_all();
        manager.kept.insert("other".into(), sealed::fixed("other", 8).unwrap());
        let file = world.scene.path("switch.toml");
        let text = fs::read_to_string(&file).unwrap();
        fs::write(&file, text.replace(AGENTLESS, &format!("{AGENTLESS}budget = 1048576\n")))
            .unwrap();
        world.scene.start_broker_by(manager.start());
        world.vm.frontend = Frontend::attach(&world.scene.path("vm2.sock"), &world.vm.guest);
        world.deliver(total);
        let counters = world.offload()["counters"].clone();
        assert_eq!((&counters["adopted"], peer_and_guest_resets(&world)), (&1.into(), (0, 0)));
        manager.hear();
        assert_eq!(manager.kept.len(), 2, "the other one is of no use");
        // And over a stop, after which nothing is owed.
        terminate(&mut world.scene.broker);
        manager.hear();
        assert_eq!(manager.kept.len(), 2);
        world.scene.start_broker_by(manager.start());
        assert_eq!(world.offload()["counters"]["adopted"], 0);
    });
}

fn peer_and_guest_resets(world: &World) -> (u32, u32) {
    (world.peer.resets, world.sender.resets)
}

/// What the guest believes to have arrived, nobody sends any more: both ends hear of it.
#[test]
fn a_switch_that_is_stopped_resets_connections_that_owe_bytes() {
    in_namespace(|| {
        let (mut world, _) = World::owing();
        let World { scene, peer, sender, vm, .. } = &mut world;
        terminate(&mut scene.broker);
        peer.run();
        sender.run(vm, 0);
        assert!(peer.resets > 0 && sender.resets > 0, "{} {}", peer.resets, sender.resets);
    });
}

pub fn terminate(broker: &mut Child) {
    crate::scene::signal(broker.id().into(), libc::SIGTERM);
    assert!(broker.wait().unwrap().success());
}
