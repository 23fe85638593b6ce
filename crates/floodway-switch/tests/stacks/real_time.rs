//! A whole switch in real time: a guest with a foreign stack behind the in-process vhost-user front-end, and a peer beyond
//! a TAP uplink, on a path that may harm. Needs root and ip(8).
//!
//! What is asserted are streams, how they end, and counters; a run that takes longer than [`LIMIT`] hangs.

use std::collections::VecDeque;
use std::os::fd::AsRawFd;
use std::path::Path as FilePath;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::thread;

use floodway_core::offload::Config as OffloadConfig;
use floodway_core::time::{Duration, Instant};
use floodway_switch::Switch;
use floodway_switch::config::Config;
use floodway_switch::frame::iovec::GuestIoVec;
use floodway_switch::testing::frames::mac;
use floodway_switch::testing::{Frontend, Guest, GuestConfig};
use floodway_switch::uplink::{Receiver, Sender, packet};
use floodway_switch::vhost::features;
use floodway_wire::vnet::VnetHdr;

use super::app::{App, Close, Plan, Reading, Stream};
use super::linux::{Linux, complete};
use super::lwip::Lwip;
use super::netns;
use super::path::{Path, PathConfig};
use super::smol::{Options, Smoltcp};
use super::stack::{Addresses, Stack};
use super::world::as_sent;

/// When a run counts as hanging.
const LIMIT: Duration = Duration::from_secs(60);

const GUEST: Addresses = Addresses { own: 1, peer: 2 };
const PEER: Addresses = Addresses { own: 2, peer: 1 };

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Smoltcp,
    Lwip,
    Linux,
}

/// A run.
#[derive(Clone, Copy, Debug)]
struct Cell {
    guest: Kind,
    peer: Kind,
    transmit: bool,
    receive: bool,
    plans: [Plan; 2],
    path: PathConfig,
    /// The guest's device has checksum and segmentation offload.
    device_offloads: bool,
}

/// Time since the start of a run.
#[derive(Clone, Copy)]
struct Clock(std::time::Instant);

impl Clock {
    fn now(self) -> Instant {
        Instant::ZERO + self.0.elapsed()
    }
}

fn stack(kind: Kind, at: Addresses, listens: bool) -> Box<dyn Stack> {
    let options = Options { timestamps: true, ..Options::default() };
    match kind {
        Kind::Smoltcp => Box::new(Smoltcp::new(at, listens, options, 1)),
        Kind::Lwip => Box::new(Lwip::new(at, listens, 1)),
        Kind::Linux => Box::new(Linux::new(at, 1500)),
    }
}

/// Where a stack's frames go to and come from.
trait Link {
    fn recv(&mut self, now: Instant) -> Vec<Vec<u8>>;
    fn send(&mut self, now: Instant, frames: Vec<Vec<u8>>);
    /// Waits for frames, for at most a millisecond.
    fn wait(&self);
}

fn wait_for(fd: i32) {
    let mut list = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: the list is valid during the call.
    unsafe { libc::poll(&raw mut list, 1, 1) };
}

/// The guest's virtqueues.
struct Device {
    guest: Guest,
    gso_packets: bool,
    /// Frames for which the transmit queue has no room.
    waiting: VecDeque<(VnetHdr, Vec<u8>)>,
}

impl Link for Device {
    fn recv(&mut self, _: Instant) -> Vec<Vec<u8>> {
        let _ = self.guest.pairs[0].rx.take_interrupts();
        let mut frames = Vec::new();
        while let Some((vnet, frame)) = self.guest.recv(0) {
            complete(VnetHdr { num_buffers: 0, ..vnet }, &frame, &mut frames);
        }
        frames
    }

    fn send(&mut self, _: Instant, frames: Vec<Vec<u8>>) {
        self.waiting.extend(as_sent(frames, self.gso_packets));
        while self.waiting.front().is_some_and(|(vnet, frame)| self.guest.send(0, vnet, frame)) {
            self.waiting.pop_front();
        }
    }

    fn wait(&self) {
        wait_for(self.guest.pairs[0].rx.call.as_raw_fd());
    }
}

/// The far side of the switch's TAP, and a path from there to the peer and back.
struct Network {
    receiver: packet::PacketReceiver,
    sender: packet::PacketSender,
    to_peer: Path,
    to_guest: Path,
}

impl Link for Network {
    fn recv(&mut self, now: Instant) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        while let Some(received) = self.receiver.recv().expect("receive") {
            complete(received.vnet, received.frame, &mut frames);
        }
        for frame in frames {
            self.to_peer.send(now, frame);
        }
        std::iter::from_fn(|| self.to_peer.pop(now)).collect()
    }

    fn send(&mut self, now: Instant, frames: Vec<Vec<u8>>) {
        for frame in frames {
            self.to_guest.send(now, frame);
        }
        while let Some(frame) = self.to_guest.pop(now) {
            // A queue that is full loses frames, as networks do.
            let _ = self.sender.send(&VnetHdr::default(), &[GuestIoVec::from_slice(&frame)]);
        }
    }

    fn wait(&self) {
        wait_for(self.receiver.fd());
    }
}

/// What an end wrote and read.
struct Outcome {
    written: Stream,
    read: Stream,
    detail: String,
}

/// What the ends and the test tell each other.
struct Progress {
    clock: Clock,
    /// Ends that have written and read everything.
    done: AtomicU32,
    /// Nobody needs the ends any more.
    over: AtomicBool,
}

/// Runs one end until the run is over.
fn run_end(
    progress: &Progress,
    stack: &mut dyn Stack,
    link: &mut dyn Link,
    mut app: App,
) -> Outcome {
    let mut is_done = false;
    while !progress.over.load(SeqCst) {
        let now = progress.clock.now();
        for frame in link.recv(now) {
            stack.input(now, &frame);
        }
        stack.poll(now);
        while app.run(now, stack) {
            stack.poll(now);
        }
        link.send(now, stack.take_output());
        if !is_done && app.is_done_writing() && stack.status().ended {
            is_done = true;
            progress.done.fetch_add(1, SeqCst);
        }
        link.wait();
    }
    Outcome { written: app.written(), read: app.read_so_far(), detail: stack.detail() }
}

fn config(dir: &FilePath, offload: OffloadConfig) -> Config {
    let text = format!(
        "control = {:?}\n[[port]]\nname = \"vm1\"\nsocket = {:?}\nmac = \"{}\"\n\
         [[uplink]]\nname = \"up0\"\nkind = \"tap\"\ndevice = \"fws0\"\n[[worker]]\n",
        dir.join("c.sock"),
        dir.join("vm1.sock"),
        mac(1),
    );
    let mut config = Config::parse(&text, FilePath::new("test")).expect("a good configuration");
    config.ports[0].offload = offload;
    config
}

fn guest_features(device_offloads: bool) -> u64 {
    let none = features::CSUM | features::HOST_TSO4 | features::HOST_TSO6 | features::HOST_ECN;
    let none = none | features::GUEST_CSUM | features::GUEST_TSO4 | features::GUEST_TSO6;
    let none = none | features::GUEST_ECN | features::LOG_ALL;
    features::offered(1) & if device_offloads { !features::LOG_ALL } else { !none }
}

impl Cell {
    /// Runs the cell in a network namespace of its own.
    fn run(&self) {
        netns::within(|| {
            let dir = tempfile::tempdir().expect("a directory");
            let (transmit, receive) = (self.transmit, self.receive);
            let offload = OffloadConfig { transmit, receive, ..OffloadConfig::default() };
            let config = config(dir.path(), offload);
            let switch = Switch::start(&config).expect("start the switch");
            let features = guest_features(self.device_offloads);
            let guest = Guest::new(GuestConfig { features, ..GuestConfig::default() });
            let _frontend = Frontend::attach(&config.ports[0].socket, &guest);
            let waiting = VecDeque::new();
            let device = Device { guest, gso_packets: self.device_offloads, waiting };
            self.run_ends(device, &switch);
            switch.stop();
        });
    }

    fn run_ends(&self, mut device: Device, switch: &Switch) {
        let (receiver, sender) = packet::open("fws0").expect("open the tap's far side");
        let (to_peer, to_guest) = (Path::new(self.path, 1), Path::new(self.path, 2));
        let mut network = Network { receiver, sender, to_peer, to_guest };
        let clock = Clock(std::time::Instant::now());
        let progress = &Progress { clock, done: AtomicU32::new(0), over: AtomicBool::new(false) };
        let outcomes = thread::scope(|scope| {
            let over = netns::SetWhenDropped(&progress.over);
            let guest = scope.spawn(move || {
                let mut stack = stack(self.guest, GUEST, false);
                stack.connect();
                run_end(progress, &mut *stack, &mut device, App::new(self.plans[0], 3))
            });
            let peer = scope.spawn(move || {
                let mut stack = stack(self.peer, PEER, true);
                run_end(progress, &mut *stack, &mut network, App::new(self.plans[1], 4))
            });
            self.wait(progress, switch);
            drop(over);
            [guest, peer].map(|end| end.join().expect("an end"))
        });
        self.check(&outcomes, switch);
    }

    /// Waits until both ends are done and the switch has nothing left of them, or the time is up.
    fn wait(&self, progress: &Progress, switch: &Switch) {
        let stored = || switch.operator().status().ports[0].offload.stored_bytes;
        while progress.clock.now() < Instant::ZERO + LIMIT {
            if progress.done.load(SeqCst) == 2 && stored() == 0 {
                return;
            }
            thread::sleep(Duration::from_millis(2));
        }
    }

    fn check(&self, [guest, peer]: &[Outcome; 2], switch: &Switch) {
        let port = switch.operator().status().ports[0].offload.clone();
        let context = format!("{self:?}: guest {}, peer {}, {port:?}", guest.detail, peer.detail);
        assert_eq!(guest.written, peer.read, "{context}");
        assert_eq!(peer.written, guest.read, "{context}");
        let [sent, received] = self.plans.map(|plan| plan.bytes);
        assert_eq!((guest.written.bytes, guest.read.bytes), (sent, received), "{context}");
        let used = |name: &str| port.counters[name] > 0;
        // A FIN counts, too.
        assert_eq!(used("stored_bytes"), self.transmit, "{context}");
        assert_eq!(used("acknowledged_bytes"), self.receive && received > 0, "{context}");
        assert_eq!(port.stored_bytes, 0, "{context}");
    }
}

/// Bytes of a stream.
const BYTES: u64 = 400_000;

fn plan(bytes: u64, reading: Reading, close: Close, lone_fin: bool) -> Plan {
    Plan { bytes, reading, close, lone_fin }
}

/// Runs a cell with the offload off, in either half, and in both, all at once.
fn run_all_ways(cell: Cell) {
    thread::scope(|scope| {
        for (transmit, receive) in [(false, false), (true, false), (false, true), (true, true)] {
            scope.spawn(move || Cell { transmit, receive, ..cell }.run());
        }
    });
}

/// Streams both ways at once over a good path, FINs on data, GSO packets from the guest.
fn good(guest: Kind, peer: Kind) -> Cell {
    Cell {
        guest,
        peer,
        transmit: false,
        receive: false,
        plans: [
            plan(BYTES, Reading::AtOnce, Close::WhenWritten, false),
            plan(BYTES, Reading::AtOnce, Close::AfterPeer, false),
        ],
        path: PathConfig::default(),
        device_offloads: true,
    }
}

/// How the end reads that gets a stream of `sender`: it stops until the window closes, but not for lwIP, which sometimes
/// never sends again after that; see [`super::virtual_time`], where both have closed windows in cases that are always the same.
fn reading(sender: Kind) -> Reading {
    let pauses = Reading::Pauses { bytes: 50_000, pause: Duration::from_millis(100) };
    if sender == Kind::Lwip { Reading::AtOnce } else { pauses }
}

/// A stream one way over a path that harms. smoltcp can stop for good when both ends have lost data at once.
fn bad(guest: Kind, peer: Kind, upload: bool) -> Cell {
    let bytes = if upload { [BYTES, 0] } else { [0, BYTES] };
    let closes = if upload {
        [Close::WhenWritten, Close::AfterPeer]
    } else {
        [Close::AfterPeer, Close::WhenWritten]
    };
    let lone_fin = guest == Kind::Smoltcp || peer == Kind::Smoltcp;
    let path = PathConfig {
        delay: Duration::from_millis(1),
        loss: 10,
        reorder: 20,
        reorder_by: Duration::from_millis(2),
        duplicate: 5,
        ..PathConfig::default()
    };
    let plans = [
        plan(bytes[0], reading(peer), closes[0], lone_fin),
        plan(bytes[1], reading(guest), closes[1], lone_fin),
    ];
    Cell { plans, path, device_offloads: false, ..good(guest, peer) }
}

fn streams_arrive(guest: Kind, peer: Kind) {
    run_all_ways(good(guest, peer));
    run_all_ways(bad(guest, peer, true));
    run_all_ways(bad(guest, peer, false));
}

#[test]
fn streams_arrive_between_smoltcp_and_linux() {
    streams_arrive(Kind::Smoltcp, Kind::Linux);
}

#[test]
fn streams_arrive_between_smoltcp_and_lwip() {
    streams_arrive(Kind::Smoltcp, Kind::Lwip);
}

#[test]
fn streams_arrive_between_smoltcp_and_smoltcp() {
    streams_arrive(Kind::Smoltcp, Kind::Smoltcp);
}

#[test]
fn streams_arrive_between_lwip_and_linux() {
    streams_arrive(Kind::Lwip, Kind::Linux);
}

#[test]
fn streams_arrive_between_lwip_and_lwip() {
    streams_arrive(Kind::Lwip, Kind::Lwip);
}

#[test]
fn streams_arrive_between_lwip_and_smoltcp() {
    streams_arrive(Kind::Lwip, Kind::Smoltcp);
}
