//! TCP offload between two real TCP stacks: one is behind a TAP uplink, the other behind a guest's
//! virtqueues. Needs root and ip(8).

mod netns;

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use floodway_core::offload::Config as OffloadConfig;
use floodway_switch::Switch;
use floodway_switch::config::Config;
use floodway_switch::frame::with_slice;
use floodway_switch::operate::{FlowQuery, FlowStatus, OffloadChange, Operator};
use floodway_switch::segment::Segment;
use floodway_switch::testing::frames::mac;
use floodway_switch::testing::{Frontend, Guest, GuestConfig, wait, wait_until};
use floodway_switch::uplink::{Receiver, Sender, tap};
use floodway_switch::vhost::features;
use floodway_switch::vnet_offload::{self, Offloads};
use floodway_wire::notice::{ETHERTYPE, Notice};
use floodway_wire::vnet::{F_NEEDS_CSUM, VnetHdr};

/// What the relay between the guest's stack and its virtqueues has seen.
#[derive(Default)]
struct Seen {
    hellos: AtomicU64,
    managed: AtomicU64,
    offline: AtomicU64,
    epoch: AtomicU64,
}

impl Seen {
    /// Counts a notice; answers whether the frame is one.
    fn note(&self, frame: &[u8]) -> bool {
        if frame[12..14] != ETHERTYPE.to_be_bytes() {
            return false;
        }
        assert_eq!(frame[..6], mac(1).0, "a notice is for the guest");
        let notice = Notice::parse(frame).expect("a good notice");
        match notice {
            Notice::Hello { .. } => &self.hellos,
            Notice::Managed { .. } => &self.managed,
            Notice::Offline { .. } => &self.offline,
        }
        .fetch_add(1, Relaxed);
        self.epoch.store(notice.epoch().into(), Relaxed);
        true
    }
}

/// A host with a switch, and a guest with a TCP stack.
struct Scene {
    operator: Arc<dyn Operator>,
    seen: Arc<Seen>,
    /// Makes a connection from the guest to an address of the host.
    connect: mpsc::Sender<SocketAddr>,
    connected: mpsc::Receiver<TcpStream>,
}

impl Scene {
    /// A connection: the guest's end and the host's.
    fn connection(&self, v6: bool) -> (TcpStream, TcpStream) {
        let host = if v6 { "[fd00:9::1]:0" } else { "10.9.0.1:0" };
        let listener = TcpListener::bind(host).expect("listen");
        self.connect.send(listener.local_addr().expect("an address")).expect("ask the guest");
        let guest = self.connected.recv_timeout(netns::PATIENCE).expect("the guest's end");
        let (host, _) = listener.accept().expect("accept");
        for end in [&guest, &host] {
            end.set_read_timeout(Some(netns::PATIENCE)).expect("set the time-out");
            end.set_write_timeout(Some(netns::PATIENCE)).expect("set the time-out");
        }
        (guest, host)
    }

    fn flows(&self) -> Vec<FlowStatus> {
        self.operator.flows(&FlowQuery::default()).expect("flows").flows
    }

    fn counter(&self, name: &str) -> u64 {
        self.operator.status().ports[0].offload.counters[name]
    }
}

fn config(dir: &Path, offload: OffloadConfig) -> Config {
    let text = format!(
        "control = {:?}\n[[port]]\nname = \"vm1\"\nsocket = {:?}\nmac = \"{}\"\n\
         [[uplink]]\nname = \"up0\"\nkind = \"tap\"\ndevice = \"fwo0\"\n[[worker]]\n[[worker]]\n",
        dir.join("c.sock"),
        dir.join("vm1.sock"),
        mac(1),
    );
    let mut config = Config::parse(&text, Path::new("test")).expect("a good configuration");
    config.ports[0].offload = offload;
    // The port's worker and the uplink's are two.
    config.uplinks[0].worker = 1;
    config
}

/// Finishes a frame of the guest's stack as its driver would: the tap leaves everything to the device.
fn as_negotiated(
    offloads: Offloads,
    vnet: VnetHdr,
    frame: &[u8],
    frames: &mut VecDeque<(VnetHdr, Vec<u8>)>,
) {
    let vnet = VnetHdr { flags: vnet.flags & F_NEEDS_CSUM, ..vnet };
    if offloads.allow(&vnet) {
        return frames.push_back((vnet, frame.to_vec()));
    }
    with_slice(vnet, frame, |frame| {
        vnet_offload::finish(frame, offloads, |vnet, bytes| {
            frames.push_back((vnet, bytes.to_vec()));
        })
        .expect("a good frame");
    });
}

/// Moves frames between the guest's stack, behind a tap, and its virtqueues.
fn relay(
    guest: &mut Guest,
    (receiver, sender): &mut (tap::TapReceiver, tap::TapSender),
    seen: &Seen,
    done: &AtomicBool,
) {
    let offloads = features::tx(guest.config.features).offloads;
    let mut waiting = VecDeque::new();
    while !done.load(Relaxed) {
        while waiting.len() < 64
            && let Some(received) = receiver.recv().expect("receive")
        {
            as_negotiated(offloads, received.vnet, received.frame, &mut waiting);
        }
        while waiting.front().is_some_and(|(vnet, frame)| guest.send(0, vnet, frame)) {
            waiting.pop_front();
        }
        while let Some((vnet, frame)) = guest.recv(0) {
            if !seen.note(&frame) {
                let vnet = VnetHdr { num_buffers: 0, ..vnet };
                let _ = sender.send(&vnet, &[Segment::from_slice(&frame)]);
            }
        }
        let fds = [receiver.fd(), guest.pairs[0].rx.call.as_raw_fd()];
        let mut list = fds.map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
        // SAFETY: the list is valid during the call. A short time-out, to look at `done`.
        unsafe { libc::poll(list.as_mut_ptr(), 2, 5) };
        let _ = guest.pairs[0].rx.take_interrupts();
    }
}

/// Sets the scene and calls `test` on it, in the host's namespace.
fn with_scene(features: u64, offload: OffloadConfig, test: impl FnOnce(&Scene) + Send) {
    netns::within(|| {
        let dir = tempfile::tempdir().expect("a directory");
        let config = config(dir.path(), offload);
        let switch = Switch::start(&config).expect("start the switch");
        netns::ip("addr add 10.9.0.1/24 dev fwo0");
        netns::ip("addr add fd00:9::1/64 dev fwo0 nodad");
        let mut guest = Guest::new(GuestConfig { features, ..GuestConfig::default() });
        let _frontend = Frontend::attach(&config.ports[0].socket, &guest);
        let seen = Arc::new(Seen::default());
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            let _over = netns::SetWhenDropped(&done);
            let (connect, requests) = mpsc::channel::<SocketAddr>();
            let (streams, connected) = mpsc::channel();
            let (give, halves) = mpsc::channel();
            netns::spawn(scope, move || {
                let halves = tap::open("gst0").expect("open the guest's tap");
                netns::ip(&format!("link set dev gst0 address {}", mac(1)));
                netns::ip("addr add 10.9.0.2/24 dev gst0");
                netns::ip("addr add fd00:9::2/64 dev gst0 nodad");
                give.send(halves).expect("hand over the tap");
                for address in requests {
                    let stream = TcpStream::connect_timeout(&address, netns::PATIENCE);
                    streams.send(stream.expect("connect")).expect("hand over the connection");
                }
            });
            let mut halves = halves.recv_timeout(netns::PATIENCE).expect("the guest's tap");
            let (relayed, done) = (Arc::clone(&seen), &done);
            scope.spawn(move || relay(&mut guest, &mut halves, &relayed, done));
            test(&Scene { operator: switch.operator(), seen, connect, connected });
        });
        switch.stop();
    });
}

fn offload(transmit: bool, receive: bool) -> OffloadConfig {
    OffloadConfig { transmit, receive, ..OffloadConfig::default() }
}

fn bytes(len: usize) -> Vec<u8> {
    (0..len as u64).map(|i| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
}

/// Sends `len` bytes, which must arrive as they are.
fn transfer(from: &mut TcpStream, to: &mut TcpStream, len: usize) {
    let data = bytes(len);
    thread::scope(|scope| {
        scope.spawn(|| from.write_all(&data).expect("write"));
        let mut got = vec![0; len];
        to.read_exact(&mut got).expect("read");
        assert!(got == data, "the bytes differ from what was sent");
    });
}

/// Both directions, both address families, with and without checksum and segmentation offload.
fn bytes_arrive(transmit: bool, receive: bool) {
    let all = features::offered(1);
    let none = all
        & !(features::CSUM | features::HOST_TSO4 | features::HOST_TSO6)
        & !(features::GUEST_CSUM | features::GUEST_TSO4 | features::GUEST_TSO6)
        & !(features::HOST_ECN | features::GUEST_ECN);
    for (features, len) in [(all, 4 << 20), (none, 1 << 20)] {
        with_scene(features, offload(transmit, receive), |scene| {
            for v6 in [false, true] {
                let (mut guest, mut host) = scene.connection(v6);
                transfer(&mut guest, &mut host, len);
                transfer(&mut host, &mut guest, len);
                transfer(&mut guest, &mut host, len);
            }
            assert_eq!(scene.counter("flows_opened"), 2);
            assert_eq!(scene.counter("stored_bytes") > 0, transmit);
            assert_eq!(scene.counter("acknowledged_bytes") > 0, receive);
            assert_eq!(scene.counter("timeouts"), 0);
            wait_until("all memory to be free", || {
                scene.operator.status().ports[0].offload.stored_bytes == 0
            });
        });
    }
}

#[test]
fn bytes_arrive_with_transmit_offload() {
    bytes_arrive(true, false);
}

#[test]
fn bytes_arrive_with_receive_offload() {
    bytes_arrive(false, true);
}

#[test]
fn bytes_arrive_with_both() {
    bytes_arrive(true, true);
}

#[test]
fn a_port_without_offload_knows_no_flows() {
    with_scene(features::offered(1), offload(false, false), |scene| {
        for v6 in [false, true] {
            let (mut guest, mut host) = scene.connection(v6);
            transfer(&mut guest, &mut host, 1 << 20);
        }
        assert!(scene.flows().is_empty());
        assert_eq!((scene.counter("flows_opened"), scene.seen.hellos.load(Relaxed)), (0, 0));
    });
}

/// Nothing happens but timers: the port's worker is asleep between them.
#[test]
fn timers_wake_a_sleeping_worker() {
    with_scene(features::offered(1), offload(true, false), |scene| {
        let (mut guest, mut host) = scene.connection(false);
        transfer(&mut guest, &mut host, 1 << 20);
        let hellos = || scene.seen.hellos.load(Relaxed);
        let sleeps = || scene.operator.status().workers[0].sleeps;
        let (before, slept) = (hellos(), sleeps());
        wait_until("the guest to hear hellos", || hellos() >= before + 10);
        assert!(sleeps() >= slept + 5, "the worker did not sleep in between");
        assert!(scene.seen.managed.load(Relaxed) > 0);
        assert_ne!(scene.seen.epoch.load(Relaxed), 0);
    });
}

#[test]
fn flows_are_shown_and_drained() {
    with_scene(features::offered(1), offload(true, false), |scene| {
        let mut pairs: Vec<_> = (0..3).map(|_| scene.connection(false)).collect();
        for (guest, host) in &mut pairs {
            transfer(guest, host, 100_000);
        }
        let flows = scene.flows();
        assert_eq!(flows.len(), 3);
        for (flow, (guest, host)) in flows.iter().map(|flow| {
            let owner = pairs.iter().find(|(guest, _)| {
                guest.local_addr().expect("an address").to_string() == flow.guest
            });
            (flow, owner.expect("a connection of ours"))
        }) {
            assert_eq!(flow.peer, host.local_addr().expect("an address").to_string());
            assert_eq!(flow.guest, host.peer_addr().expect("an address").to_string());
            assert_eq!((flow.port.as_str(), flow.tx.as_str()), ("vm1", "ACTIVE"), "{guest:?}");
            assert!(flow.cwnd > 0 && flow.srtt_us.is_some(), "{flow:?}");
        }
        // Page by page it is the same.
        let mut paged = Vec::new();
        let mut query = FlowQuery { limit: Some(1), ..FlowQuery::default() };
        loop {
            let page = scene.operator.flows(&query).expect("flows");
            assert!(page.flows.len() <= 1);
            paged.extend(page.flows.into_iter().map(|flow| flow.guest));
            query.cursor = page.next;
            if query.cursor.is_none() {
                break;
            }
        }
        assert_eq!(paged, flows.iter().map(|flow| flow.guest.clone()).collect::<Vec<_>>());

        assert!(scene.operator.drain("vm1", Some(true)).expect("a port").draining);
        wait_until("the drain", || scene.operator.drain("vm1", None).expect("a port").drained);
        assert!(scene.flows().iter().all(|flow| flow.tx == "OFFLINE"), "{:?}", scene.flows());
        assert!(scene.seen.offline.load(Relaxed) >= 3);
        for (guest, host) in &mut pairs {
            transfer(guest, host, 100_000);
        }
        assert!(!scene.operator.drain("vm1", Some(false)).expect("a port").draining);
        for (guest, host) in &mut pairs {
            transfer(guest, host, 100_000);
        }
        wait_until("a flow to come back", || {
            let (guest, host) = &mut pairs[0];
            transfer(guest, host, 1000);
            scene.flows().iter().any(|flow| flow.tx == "ACTIVE")
        });
    });
}

#[test]
fn offload_is_switched_while_bytes_flow() {
    with_scene(features::offered(1), offload(false, false), |scene| {
        let operator = &scene.operator;
        let set = |transmit, receive| {
            let change = OffloadChange {
                transmit: Some(transmit),
                receive: Some(receive),
                ..OffloadChange::default()
            };
            operator.offload("vm1", &change).expect("a good change");
        };
        set(true, true);
        let (mut guest, mut host) = scene.connection(false);
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                for i in 0u32.. {
                    if over.load(Relaxed) {
                        break;
                    }
                    set(i & 1 == 0, i & 2 == 0);
                    thread::sleep(Duration::from_millis(20));
                }
            });
            let _over = netns::SetWhenDropped(&over);
            for _ in 0..4 {
                transfer(&mut guest, &mut host, 4 << 20);
                transfer(&mut host, &mut guest, 4 << 20);
            }
        });
    });
}

/// A guest that goes takes its flows along, and the next one hears of another epoch.
#[test]
fn a_guest_that_goes_is_forgotten() {
    with_scene(features::offered(1), offload(true, true), |scene| {
        let (mut guest, mut host) = scene.connection(false);
        transfer(&mut guest, &mut host, 100_000);
        assert_eq!(scene.flows().len(), 1);
    });
    let dir = tempfile::tempdir().expect("a directory");
    let mut config = config(dir.path(), offload(true, true));
    config.uplinks.clear();
    let switch = Switch::start(&config).expect("start the switch");
    let guest = Guest::new(GuestConfig::default());
    let frontend = Frontend::attach(&config.ports[0].socket, &guest);
    let operator = switch.operator();
    assert!(operator.drain("vm1", Some(true)).expect("a port").draining);
    drop(frontend);
    let draining = || operator.drain("vm1", None).expect("a port").draining;
    wait("the drain to end with its guest", || (!draining()).then_some(()));
}
