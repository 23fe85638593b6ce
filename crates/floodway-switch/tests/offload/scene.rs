//! A host with a switch, and a guest whose TCP stack is the kernel's, behind the guest's virtqueues.

use std::collections::VecDeque;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, mpsc};
use std::thread;

use floodway_core::offload::Config as OffloadConfig;
use floodway_switch::Switch;
use floodway_switch::api::control::{FlowQuery, FlowStatus};
use floodway_switch::config::Config;
use floodway_switch::frame::iovec::GuestIoVec;
use floodway_switch::operator::ControlApi;
use floodway_switch::testing::frames::mac;
use floodway_switch::testing::{Frontend, Guest, GuestConfig, as_driver_sends};
use floodway_switch::uplink::{Receiver, Sender, tap};
use floodway_switch::vhost::features;
use floodway_wire::checksum::{self, Verification};
use floodway_wire::name::Beginning;
use floodway_wire::notice::{self, ETHERTYPE, GuestNonce, Notice};
use floodway_wire::tcp::Flags;
use floodway_wire::vnet::VnetHdr;
use floodway_wire::{FiveTuple, FlowName, parse};

use crate::netns;

/// What the guest's module wants to find in notices.
const NONCE: u64 = 0x0102_0304_0506_0708;

/// What the relay between the guest's stack and its virtqueues has seen.
#[derive(Default)]
pub struct Seen {
    pub heartbeats: AtomicU64,
    pub managed: AtomicU64,
    pub offline: AtomicU64,
    pub epoch: AtomicU64,
    /// Notices that bear the guest's nonce, and those that do not.
    pub authentic: AtomicU64,
    pub unauthentic: AtomicU64,
    /// The guest's module says that it reads names in SYN-ACKs.
    pub reads_names: AtomicBool,
    /// Flows that managed notices have named, and those that SYN-ACKs have.
    pub named: Mutex<Vec<FiveTuple>>,
    pub named_inside: Mutex<Vec<FiveTuple>>,
}

impl Seen {
    /// Counts a notice; returns whether the frame is one.
    fn note(&self, frame: &[u8]) -> bool {
        if frame[12..14] != ETHERTYPE.to_be_bytes() {
            return false;
        }
        assert_eq!(frame[..6], mac(1).0, "a notice is for the guest");
        let notice = Notice::parse(frame).expect("a good notice");
        if let Notice::Managed { flow, .. } = notice {
            self.named.lock().expect("flows").push(flow);
        }
        match notice {
            Notice::Heartbeat { .. } => &self.heartbeats,
            Notice::Managed { .. } => &self.managed,
            Notice::Offline { .. } => &self.offline,
        }
        .fetch_add(1, Relaxed);
        self.epoch.store(notice.epoch().into(), Relaxed);
        let is_authentic = notice::nonce(frame) == Some(NONCE);
        let count = if is_authentic { &self.authentic } else { &self.unauthentic };
        count.fetch_add(1, Relaxed);
        true
    }
}

/// Notes a SYN-ACK that bears a name, which has to be that of its flow.
fn note_name(seen: &Seen, vnet: &VnetHdr, frame: &[u8]) {
    let Ok(meta) = parse(frame, frame.len()) else { return };
    let Some(tcp) = meta.tcp().filter(|tcp| tcp.flags.contains(Flags::SYN.with(Flags::ACK))) else {
        return;
    };
    let options = &frame[usize::from(meta.transport_offset) + 20..meta.payload_offset.into()];
    let Some(at) = options.windows(4).position(|head| head == [254, 16, b'F', b'W']) else {
        return;
    };
    let flow = meta.flow.reversed();
    let epoch = seen.epoch.load(Relaxed) as u32;
    let expected = FlowName::new(&flow, NONCE).option(NONCE, epoch, Beginning::of(tcp));
    assert_eq!(options[at..], expected, "the last option, for this connection alone");
    let mut complete = frame.to_vec();
    if vnet.needs_csum() {
        checksum::complete(&mut complete, vnet.csum_start, vnet.csum_offset).expect("a field");
    }
    assert_eq!(checksum::verify_transport(&complete, &meta), Ok(Verification::Good));
    seen.named_inside.lock().expect("flows").push(flow);
}

/// The guest's virtqueues and its front-end.
pub struct Vm {
    guest: Mutex<Guest>,
    frontend: Mutex<Option<Frontend>>,
    /// The guest takes nothing out of its receive rings.
    deaf: AtomicBool,
}

impl Vm {
    pub fn guest(&self) -> MutexGuard<'_, Guest> {
        self.guest.lock().expect("a guest")
    }

    pub fn frontend(&self) -> MutexGuard<'_, Option<Frontend>> {
        self.frontend.lock().expect("a front-end")
    }

    pub fn set_deaf(&self, deaf: bool) {
        self.deaf.store(deaf, Relaxed);
    }
}

/// A host with a switch, and a guest with a TCP stack.
pub struct Scene {
    pub operator: Arc<dyn ControlApi>,
    pub seen: Arc<Seen>,
    pub vm: Arc<Vm>,
    /// Makes a connection from the guest to an address of the host.
    connect: mpsc::Sender<SocketAddr>,
    connected: mpsc::Receiver<TcpStream>,
}

impl Scene {
    /// A connection: the guest's end and the host's.
    pub fn connection(&self, v6: bool) -> (TcpStream, TcpStream) {
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

    pub fn flows(&self) -> Vec<FlowStatus> {
        self.operator.flows(&FlowQuery::default()).expect("flows").flows
    }

    pub fn counter(&self, name: &str) -> u64 {
        self.operator.status().ports[0].offload.counters[name]
    }
}

pub fn config(dir: &Path, offload: OffloadConfig) -> Config {
    config_with(dir, offload, "fwo0")
}

/// As [`config`], with this device for the uplink.
pub fn config_with(dir: &Path, offload: OffloadConfig, device: &str) -> Config {
    let text = format!(
        "control = {:?}\n[[port]]\nname = \"vm1\"\nsocket = {:?}\nmac = \"{}\"\n\
         [[uplink]]\nname = \"up0\"\nkind = \"tap\"\ndevice = \"{device}\"\n[[worker]]\n[[worker]]\n",
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

/// What the guest's module answers to a notice that it cannot believe.
fn guest_nonce(reads_names: bool) -> Vec<u8> {
    let mut frame = [0; notice::MAX_FRAME_LEN];
    GuestNonce { nonce: NONCE, reads_names }.write_frame(mac(1), &mut frame);
    frame.to_vec()
}

/// Moves frames between the guest's stack, behind a tap, and its virtqueues.
fn relay(
    vm: &Vm,
    (receiver, sender): &mut (tap::TapReceiver, tap::TapSender),
    seen: &Seen,
    done: &AtomicBool,
) {
    let offloads = features::tx(vm.guest().config.features).offloads;
    let mut waiting = VecDeque::new();
    while !done.load(Relaxed) {
        let mut guest = vm.guest();
        while waiting.len() < 64
            && let Some(received) = receiver.recv().expect("receive")
        {
            as_driver_sends(offloads, received.vnet, received.frame, |vnet, frame| {
                waiting.push_back((vnet, frame.to_vec()));
            });
        }
        while waiting.front().is_some_and(|(vnet, frame)| guest.send(0, vnet, frame)) {
            waiting.pop_front();
        }
        while !vm.deaf.load(Relaxed)
            && let Some((vnet, frame)) = guest.recv(0)
        {
            if seen.note(&frame) {
                if notice::nonce(&frame).is_none() {
                    let answer = guest_nonce(seen.reads_names.load(Relaxed));
                    waiting.push_back((VnetHdr::default(), answer));
                }
            } else {
                note_name(seen, &vnet, &frame);
                let vnet = VnetHdr { num_buffers: 0, ..vnet };
                let _ = sender.send(&vnet, &[GuestIoVec::from_slice(&frame)]);
            }
        }
        let fds = [receiver.fd(), guest.pairs[0].rx.call.as_raw_fd()];
        let _ = guest.pairs[0].rx.take_interrupts();
        drop(guest);
        let mut list = fds.map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
        // SAFETY: the list is valid during the call. A short time-out, to look at `done`.
        unsafe { libc::poll(list.as_mut_ptr(), 2, 5) };
    }
}

/// Sets the scene and calls `test` on it, in the host's namespace.
pub fn with_scene(features: u64, offload: OffloadConfig, test: impl FnOnce(&Scene) + Send) {
    with_guest(GuestConfig { features, ..GuestConfig::default() }, offload, test);
}

/// As [`with_scene`], with a guest of a given kind.
pub fn with_guest(guest: GuestConfig, offload: OffloadConfig, test: impl FnOnce(&Scene) + Send) {
    netns::within(|| {
        let dir = tempfile::tempdir().expect("a directory");
        let config = config(dir.path(), offload);
        let switch = Switch::start(&config).expect("start the switch");
        netns::ip("addr add 10.9.0.1/24 dev fwo0");
        netns::ip("addr add fd00:9::1/64 dev fwo0 nodad");
        let guest = Guest::new(guest);
        let frontend = Frontend::attach(&config.ports[0].socket, &guest);
        act(guest, frontend, switch.operator(), test);
        switch.stop();
    });
}

/// Calls `test` on a scene with `guest`, whose front-end is connected to the switch of `operator`, in the host's namespace.
pub fn act(
    guest: Guest,
    frontend: Frontend,
    operator: Arc<dyn ControlApi>,
    test: impl FnOnce(&Scene) + Send,
) {
    let vm = Arc::new(Vm {
        guest: Mutex::new(guest),
        frontend: Mutex::new(Some(frontend)),
        deaf: AtomicBool::new(false),
    });
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
        let relayed_vm = Arc::clone(&vm);
        scope.spawn(move || relay(&relayed_vm, &mut halves, &relayed, done));
        test(&Scene { operator, seen, vm, connect, connected });
    });
}
