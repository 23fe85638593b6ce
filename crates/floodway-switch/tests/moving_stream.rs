//! A VM that moves between two switches while a TCP stream comes for it. Needs root and ip(8).
//!
//! Each VM is the kernel of a network namespace behind a tap, and virtio rings in memory of its own: a thread carries frames between
//! the two, as a virtio-net driver does. So TCP, its congestion control and its timers are Linux's; only the processor is
//! not virtual. The move is QEMU's: memory is copied while the VM runs, with the switch's dirty log on; the rings stop, what has changed since
//! is copied, the rings go on at the other switch, and the VM announces itself.

mod netns;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use floodway_switch::Switch;
use floodway_switch::api::status::Way;
use floodway_switch::config::Config;
use floodway_switch::frame::iovec::GuestIoVec;
use floodway_switch::testing::frames::mac;
use floodway_switch::testing::memory::memfd;
use floodway_switch::testing::message::SET_FEATURES;
use floodway_switch::testing::{Frontend, Guest, GuestConfig, TestMemory, wait, wait_until};
use floodway_switch::uplink::tap;
use floodway_switch::vhost::features;
use floodway_wire::build::Link;
use floodway_wire::vnet::VnetHdr;
use floodway_wire::{MacAddr, arp};

const PAGE: u64 = 4096;
const LOG_BYTES: u64 = 1 << 16;
/// Bytes of the stream before and after each move.
const LEG: u64 = 24 << 20;
const MOVES: u64 = 4;
/// Bytes of a frame from which on it is one of the stream.
const LARGE: usize = 1000;

struct Hosts {
    switches: [Switch; 2],
    configs: [Config; 2],
}

impl Hosts {
    fn start(dir: &Path) -> Self {
        netns::add_veth();
        let configs = [0, 1].map(|host| {
            let port = |n: u8| {
                let socket = dir.join(format!("host{host}-vm{n}.sock"));
                format!("[[port]]\nname = \"vm{n}\"\nsocket = {socket:?}\nmac = \"{}\"\n", mac(n))
            };
            let ports = if host == 0 { port(2) + &port(1) } else { port(2) };
            let control = dir.join(format!("c{host}.sock"));
            let uplink =
                format!("[[uplink]]\nname = \"up\"\nkind = \"packet\"\ndevice = \"v{host}\"\n");
            let text = format!("control = {control:?}\n{ports}{uplink}");
            Config::parse(&text, Path::new("test")).expect("a good configuration")
        });
        let switches = [0, 1].map(|host| Switch::start(&configs[host]).expect("start a switch"));
        Self { switches, configs }
    }

    fn attach(&self, host: usize, port: usize, guest: &Guest) -> Frontend {
        Frontend::attach(&self.configs[host].ports[port].socket, guest)
    }

    /// VM 1 has sent from guest to guest and by the uplink.
    fn check_ways(&self) {
        let traffic = self.switches[0].status_source().status().traffic;
        let ways: Vec<_> = traffic.iter().filter(|t| t.from == "vm1").map(|t| t.by).collect();
        assert!(ways.contains(&Way::Channel) && ways.contains(&Way::Uplink), "{traffic:?}");
    }
}

/// A VM: a kernel's tap, and the rings of a device.
struct Vm {
    guest: Guest,
    tap: netns::Halves,
    /// A frame for which there was no room.
    kept: Option<(VnetHdr, Vec<u8>)>,
    /// When a frame came last, and the longest time without any since the stream began.
    last: Option<Instant>,
    gap: Duration,
}

impl Vm {
    fn new(tap: netns::Halves) -> Self {
        let guest = Guest::new(GuestConfig::default());
        Self { guest, tap, kept: None, last: None, gap: Duration::ZERO }
    }

    /// Carries until so many bytes of the stream were received.
    fn carry_to(&mut self, received: &AtomicU64, bytes: u64) {
        wait_until("the stream to go on", || {
            self.carry();
            received.load(Ordering::Relaxed) >= bytes
        });
    }

    fn carry_until(&mut self, halt: &AtomicBool) {
        while !halt.load(Ordering::Relaxed) {
            if !self.carry() {
                thread::sleep(Duration::from_micros(50));
            }
        }
    }

    /// Carries all there is, both ways; returns whether there was anything.
    fn carry(&mut self) -> bool {
        let mut any = false;
        loop {
            let next = self.kept.take().or_else(|| {
                let received = self.tap.0.recv().expect("the tap");
                received.map(|received| (received.vnet, received.frame.to_vec()))
            });
            let Some((vnet, frame)) = next else { break };
            if !self.guest.send(0, &vnet, &frame) {
                self.kept = Some((vnet, frame));
                break;
            }
            any = true;
        }
        while let Some((vnet, frame)) = self.guest.recv(0) {
            any = true;
            if frame.len() >= LARGE {
                let now = Instant::now();
                let since = self.last.replace(now).map_or(Duration::ZERO, |last| now - last);
                self.gap = self.gap.max(since);
            }
            // The kernel has no room: as a full socket buffer, that is a loss which TCP repairs.
            drop(self.tap.1.send(&vnet, &[GuestIoVec::from_slice(&frame)]));
        }
        any
    }
}

/// Opens the tap of VM `n` in this thread's namespace.
fn plug(n: u8) -> netns::Halves {
    let (receiver, sender) = wait("the tap", || tap::open("vm0").ok());
    netns::ip(&format!("link set vm0 address {}", mac(n)));
    netns::ip(&format!("addr add 10.0.0.{n}/24 dev vm0"));
    (Box::new(receiver), Box::new(sender))
}

/// The stream: byte `at`.
fn byte(at: u64) -> u8 {
    ((at >> 3).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (8 * (at & 7))) as u8
}

/// Sends until `done`; answers how many bytes.
fn send(server: SocketAddr, done: &AtomicBool) -> u64 {
    let mut stream = TcpStream::connect_timeout(&server, netns::PATIENCE).expect("connect");
    let mut sent = 0;
    while !done.load(Ordering::Relaxed) {
        let chunk: Vec<u8> = (sent..sent + 32_768).map(byte).collect();
        stream.write_all(&chunk).expect("write");
        sent += chunk.len() as u64;
    }
    sent
}

/// Receives to the end; compares every byte. Answers how many there were.
fn receive(listener: &TcpListener, received: &AtomicU64) -> u64 {
    let (mut stream, _) = listener.accept().expect("accept");
    stream.set_read_timeout(Some(netns::PATIENCE)).expect("set the time-out");
    let (mut buffer, mut at) = (vec![0; 1 << 16], 0);
    loop {
        let n = stream.read(&mut buffer).expect("read");
        if n == 0 {
            return at;
        }
        let intact = buffer[..n].iter().zip(at..).all(|(&got, at)| got == byte(at));
        assert!(intact, "other bytes than were sent, around {at}");
        at += n as u64;
        received.store(at, Ordering::Relaxed);
    }
}

/// What a guest says when it has come to a host.
fn announcement() -> Vec<u8> {
    let own = "10.0.0.2".parse().expect("an address");
    let packet = arp::Packet {
        operation: arp::REQUEST,
        sender_mac: mac(2),
        sender_ip: own,
        target_mac: MacAddr::default(),
        target_ip: own,
    };
    Link::new(mac(2), MacAddr::BROADCAST).arp(&packet)
}

fn pages(ranges: impl Iterator<Item = (u64, u64)>) -> BTreeSet<u64> {
    ranges.flat_map(|(at, len)| at / PAGE..(at + len).div_ceil(PAGE)).collect()
}

fn read(memory: &TestMemory, page: u64) -> Vec<u8> {
    memory.read(page * PAGE, PAGE as usize)
}

/// A dirty log as a front-end has it.
struct Log(File);

impl Log {
    fn start(frontend: &mut Frontend, negotiated: u64) -> Self {
        let file = memfd(LOG_BYTES);
        frontend.set_log_base(&file, LOG_BYTES).expect("the switch takes the log");
        let logged = (negotiated | features::LOG_ALL).to_ne_bytes();
        frontend.request(SET_FEATURES, &logged, &[]).expect("offered");
        Self(file)
    }

    fn pages(&self) -> BTreeSet<u64> {
        let mut bits = vec![0; LOG_BYTES as usize];
        self.0.read_exact_at(&mut bits, 0).expect("the log");
        let is_set = |page: &u64| bits[(page / 8) as usize] >> (page % 8) & 1 == 1;
        (0..8 * LOG_BYTES).filter(is_set).collect()
    }
}

/// Moves a VM to where `attach` puts it; answers for how long it stood still.
fn relocate(
    vm: &mut Vm,
    mut from: Frontend,
    attach: impl FnOnce(&Guest) -> Frontend,
) -> (Frontend, Duration) {
    let regions: Vec<_> = vm.guest.memory.layouts().map(|r| (r.gpa, r.size)).collect();
    let (old, new) = (vm.guest.memory.clone(), TestMemory::new(&regions));
    let all = pages(regions.into_iter());
    let log = Log::start(&mut from, vm.guest.config.features);
    let mut copied = BTreeMap::new();
    for &page in &all {
        let bytes = read(&old, page);
        new.write(page * PAGE, &bytes);
        copied.insert(page, bytes);
        vm.carry();
    }
    let stopped = Instant::now();
    for index in [0, 1] {
        from.get_vring_base(index).expect("the ring stops");
    }
    let changed: BTreeSet<_> =
        pages(vm.guest.written_by_guest()).union(&log.pages()).copied().collect();
    for &page in changed.iter().filter(|&page| all.contains(page)) {
        new.write(page * PAGE, &read(&old, page));
    }
    vm.guest.move_to(new);
    drop(from);
    let frontend = attach(&vm.guest);
    let still = stopped.elapsed();
    wait("room to transmit", || {
        vm.guest.send(0, &VnetHdr::default(), &announcement()).then_some(())
    });
    vm.carry();
    copied.retain(|page, bytes| !changed.contains(page) && read(&old, *page) != *bytes);
    assert!(copied.is_empty(), "written by the switch, and not in the log: {:?}", copied.keys());
    (frontend, still)
}

/// Returns where the VM is in the end, and for how long it stood still at most.
fn move_back_and_forth(
    hosts: &Hosts,
    mover: &mut Vm,
    mut place: Frontend,
    received: &AtomicU64,
) -> (Frontend, Duration) {
    let mut stood = Duration::ZERO;
    for leg in 1..=MOVES {
        mover.carry_to(received, leg * LEG);
        let still;
        (place, still) = relocate(mover, place, |guest| hosts.attach((leg % 2) as usize, 0, guest));
        stood = stood.max(still);
    }
    mover.carry_to(received, (MOVES + 1) * LEG);
    (place, stood)
}

#[test]
fn a_stream_to_a_vm_that_moves_back_and_forth_arrives_byte_for_byte() {
    netns::within(|| {
        let dir = tempfile::tempdir().expect("a directory");
        let hosts = Hosts::start(dir.path());
        let (sending, carrying) = (AtomicBool::new(false), AtomicBool::new(false));
        let received = AtomicU64::new(0);
        let server: SocketAddr = "10.0.0.2:5000".parse().expect("an address");
        let [(give1, take1), (give2, take2)] = [mpsc::channel(), mpsc::channel()];
        let (ready, listening) = mpsc::channel();
        let (attached, go) = mpsc::channel();
        let (until, progress) = (&sending, &received);
        thread::scope(|scope| {
            let over = netns::SetWhenDropped(&carrying);
            let receiver = netns::spawn(scope, move || {
                give2.send(plug(2)).expect("hand over the tap");
                let listener = TcpListener::bind(server).expect("listen");
                ready.send(()).expect("say so");
                receive(&listener, progress)
            });
            let sender = netns::spawn(scope, move || {
                give1.send(plug(1)).expect("hand over the tap");
                listening.recv_timeout(netns::PATIENCE).expect("a server");
                go.recv_timeout(netns::PATIENCE).expect("a switch");
                send(server, until)
            });
            let mut peer = Vm::new(take1.recv_timeout(netns::PATIENCE).expect("a tap"));
            let mut mover = Vm::new(take2.recv_timeout(netns::PATIENCE).expect("a tap"));
            let attached_peer = hosts.attach(0, 1, &peer.guest);
            let place = hosts.attach(0, 0, &mover.guest);
            attached.send(()).expect("say so");
            let halt = &carrying;
            scope.spawn(move || {
                let _attached = attached_peer;
                peer.carry_until(halt);
            });
            let (_place, stood) = move_back_and_forth(&hosts, &mut mover, place, &received);
            sending.store(true, Ordering::Relaxed);
            wait_until("the end of the stream", || {
                mover.carry();
                receiver.is_finished()
            });
            let sent = sender.join().expect("the sender");
            assert_eq!(receiver.join().expect("the receiver"), sent);
            eprintln!(
                "{MOVES} moves in {} MB: the VM stood still for at most {stood:?}, nothing came for at most {:?}",
                sent >> 20,
                mover.gap
            );
            drop(over);
        });
        hosts.check_ways();
    });
}
