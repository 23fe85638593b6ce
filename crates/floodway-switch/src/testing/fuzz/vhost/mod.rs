//! A hostile front-end: any messages with any descriptors, in any order, while the rings run.
//!
//! An input is a sequence of operations, a byte each with what belongs to it. Messages go over a socket pair to what serves a
//! port's socket in a switch ([`Session`]); between them the worker has its rounds, the guest writes its rings, and a file that the
//! front-end has shared shrinks. Another port has a guest that behaves.
//!
//! - **Cost**: a message costs no more than setting all rings up again in the largest memory, a round of the worker no more than a
//!   port's quantum and what it delivers, in units of [`work`], whatever came before.
//! - The port keeps no more descriptors than its rings need, and none when the front-end is gone; no more mappings than its limits allow.
//! - The other guest is served to the end.

mod files;
mod message;

use std::cell::OnceCell;
use std::io::Read;
use std::net::Shutdown;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use floodway_core::time::Instant;
use floodway_wire::MacAddr;
use floodway_wire::vnet::VnetHdr;
use vmm_sys_util::eventfd::EventFd;

use super::cursor::Cursor;
use crate::config::Config;
use crate::memory::MAX_REGIONS;
use crate::memory::sigbus;
use crate::pipeline::forward::Forwarder;
use crate::queues::call;
use crate::queues::ring::Ring;
use crate::queues::tx::Batch;
use crate::queues::virtqueue::{MAX_CHAIN, Virtqueue};
use crate::runtime::polling::Polling;
use crate::runtime::worker::{QUANTUM, Worker};
use crate::state::port::Port;
use crate::state::queue_pair::QueuePair;
use crate::state::shared::Shared;
use crate::stats::ledger::MODEL;
use crate::stats::work::{self, Work};
use crate::stats::{DropReason, Traffic};
use crate::sync::lock;
use crate::testing::frames::{mac, numbered};
use crate::testing::{Guest, GuestConfig, TxShape};
use crate::vhost::connection::Session;
use crate::vhost::device::Device;
use crate::vhost::features;

use files::Files;
use message::Message;

/// Queue pairs of the hostile port.
const PAIRS: usize = 2;
/// Comparisons of a look-up among the most regions.
const LOOK_UP: u64 = 9;
/// Most work of a message: the three parts of each ring are looked for among all regions, the regions are sorted, and what has been
/// used is published and marked.
const MESSAGE_COST: u64 =
    (2 * PAIRS * 3 * MAX_REGIONS + 4 * LOOK_UP as usize * MAX_REGIONS + 4096) as u64;
/// Most work of a descriptor: it is looked up, and what it names.
const DESCRIPTOR_COST: u64 = 2 * (1 + LOOK_UP);
/// Most work of a worker's round but for placing frames: nanoseconds of a quantum, of which a descriptor takes some, and the
/// chain that goes beyond, whose table may end before it does.
const ROUND_COST: u64 =
    (QUANTUM as u64 * 1000 / MODEL.descriptor + 2 * MAX_CHAIN as u64) * DESCRIPTOR_COST;
/// Most work of placing a frame, or of finding that it has no place.
const PLACE_COST: u64 = 2 * (2048 + MAX_CHAIN as u64) * DESCRIPTOR_COST;
/// Operations of an input that are carried out.
const OPERATIONS: usize = 512;

/// Feeds a front-end's doings to a port. Panics where the module's rules do not hold.
///
/// # Panics
/// See the module.
pub fn vhost(input: &[u8]) {
    // What stays open from one input to the next.
    call::check_aio().expect("AIO");
    Files::prepare();
    let before = (open_descriptors(), mappings());
    let mut world = World::new(Files::new());
    let idle = open_descriptors();
    let mut input = Cursor(input);
    while world.may_go_on() && world.step(&mut input).is_some() {
        world.serve();
        let more = open_descriptors() - idle;
        assert!(more <= 4 * PAIRS, "{more} descriptors");
    }
    world.end();
    drop(world);
    assert_eq!((open_descriptors(), mappings()), before, "descriptors or mappings are left");
}

/// Returns how many descriptors the process has; zero among other tests, which have some at the same time.
fn open_descriptors() -> usize {
    if cfg!(fuzzing) { std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count) } else { 0 }
}

/// Returns how many files of front-ends are mapped; zero among other tests.
fn mappings() -> usize {
    if cfg!(fuzzing) { sigbus::mappings() } else { 0 }
}

struct World {
    files: Files,
    /// Operations that are still carried out.
    left: usize,
    shared: Arc<Shared>,
    device: Arc<Mutex<Device>>,
    worker: Worker,
    forwarder: Forwarder,
    batch: Batch,
    /// The guest of the other port.
    victim: Guest,
    now: Instant,
    /// The front-end's end of the connection, and a look at what waits at the other one.
    stream: UnixStream,
    unread: UnixStream,
    session: Session,
}

impl World {
    fn new(files: Files) -> Self {
        let shared = Shared::without_threads(&config()).expect("a switch");
        let alarm = Arc::new(EventFd::new(libc::EFD_NONBLOCK).expect("descriptors left"));
        let device = Arc::new(Mutex::new(Device::new(Arc::clone(&shared.port_at(0)), alarm)));
        let victim = Guest::new(GuestConfig {
            ring_size: 16,
            tx_slots: 4,
            rx_buffer: 2048,
            two_regions: false,
            tx_shape: TxShape::Single,
            ..GuestConfig::default()
        });
        attach(&shared.port_at(1), &victim);
        let (stream, unread, session) = connect(&shared.port_at(0), &device);
        Self {
            files,
            left: OPERATIONS,
            worker: worker(&shared),
            forwarder: Forwarder::new(Arc::clone(&shared)),
            shared,
            device,
            batch: Batch::default(),
            victim,
            now: Instant::from_millis(1),
            stream,
            unread,
            session,
        }
    }

    /// Returns `true` if another operation may be carried out, and counts it.
    fn may_go_on(&mut self) -> bool {
        self.left = self.left.saturating_sub(1);
        self.left > 0
    }

    /// Carries out the next operation of an input; `None` if that ends.
    fn step(&mut self, input: &mut Cursor<'_>) -> Option<()> {
        match input.byte()? % 16 {
            0..=5 => {
                let message = Message::read(input, &self.files)?;
                self.send(&message);
            }
            6 => {
                let (ring, page) = (input.byte()?, u64::from(input.byte()?));
                let (len, flags) = (u32::from(input.u16()?), u16::from(input.byte()?));
                self.files.post(ring, page % files::PAGES * files::PAGE, len, flags);
            }
            7 => {
                let (file, at) = (input.byte()?, u64::from(input.u16()?) * 4);
                self.files.write(file, at, &input.bytes::<8>()?);
            }
            8 | 9 => self.round(),
            10 => {
                let len = usize::from(input.u16()? % 1500);
                self.victim_sends(len);
                self.round();
            }
            11 => self.files.shrink(),
            12 => self.hang_up(),
            13 => {
                let from = u64::from(input.byte()?);
                for n in from..from + u64::from(input.byte()?) {
                    if !self.may_go_on() {
                        break;
                    }
                    self.send(&Message::add_page(n, &self.files));
                    self.serve();
                }
            }
            14 => {
                lock(&self.device).drop_retired();
            }
            _ => self.shared.ports().iter().for_each(|port| port.expire_stopped_guest()),
        }
        Some(())
    }

    fn send(&self, message: &Message) {
        // No room: the switch has not taken what was sent before, and need not.
        let _ = crate::testing::message::send(&self.stream, &message.bytes, &message.descriptors);
    }

    /// Lets the port's thread take all messages that have come whole.
    fn serve(&mut self) {
        while self.has_message() {
            if lock(&self.device).lost_memory().is_some() || !self.handle_message() {
                return self.reconnect();
            }
        }
    }

    /// Returns `true` if the connection goes on.
    fn handle_message(&mut self) -> bool {
        let _ = work::take();
        let goes_on = self.session.handle_message().unwrap_or(false);
        let work = work::take();
        assert!(work.total() <= MESSAGE_COST, "{work:?} for a message");
        // Answers are read, or the port would wait for that.
        while (&self.stream).read(&mut [0; 4096]).is_ok_and(|n| n > 0) {}
        goes_on
    }

    /// Returns `true` if the port's thread would not have to wait for the rest of a message.
    fn has_message(&self) -> bool {
        let mut header = [0_u8; 12];
        let (mut waiting, fd): (libc::c_int, _) = (0, self.unread.as_raw_fd());
        // SAFETY: the pointers lead to a number and to as many bytes as are named.
        let peeked = unsafe {
            libc::ioctl(fd, libc::FIONREAD, &raw mut waiting);
            let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
            libc::recv(fd, header.as_mut_ptr().cast(), header.len(), flags)
        };
        let size = u32::from_ne_bytes([header[8], header[9], header[10], header[11]]);
        // What is too long is refused by its header.
        peeked == 12 && (size > 4096 || waiting as u32 >= 12 + size)
    }

    /// The front-end hangs up, in the middle of a message or not, and another one comes.
    fn hang_up(&mut self) {
        let _ = self.stream.shutdown(Shutdown::Write);
        for _ in 0..OPERATIONS {
            if lock(&self.device).lost_memory().is_some() || !self.handle_message() {
                break;
            }
        }
        self.reconnect();
    }

    /// The connection ends, and another one comes.
    fn reconnect(&mut self) {
        lock(&self.device).disconnect();
        self.check_victim();
        (self.stream, self.unread, self.session) = connect(&self.shared.port_at(0), &self.device);
    }

    /// A round of the worker.
    fn round(&mut self) {
        self.now += Duration::from_millis(1);
        let before = self.placed();
        let _ = work::take();
        self.worker.poll(&mut self.forwarder, &mut self.batch, self.now);
        self.forwarder.interrupt(self.now + Duration::from_millis(1));
        let work = work::take();
        // Each is tried once when it comes, and the first that waits in each queue again.
        let places = self.placed() - before + 2 * (PAIRS as u64 + 1);
        assert!(within(&work, places), "{work:?} for a round that placed {places}");
        self.batch.release();
        while self.victim.recv(0).is_some() {}
    }

    /// Frames that were put into receive queues or dropped there.
    fn placed(&self) -> u64 {
        let sum = |traffic: &Traffic| {
            let dropped = DropReason::ALL.iter().map(|&reason| traffic.drops(reason));
            traffic.packets.get() + dropped.sum::<u64>()
        };
        let at = |pair: &QueuePair| {
            let sent = sum(&pair.tx().traffic);
            let rx = pair.rx();
            sent + sum(&rx.traffic) + rx.pending().0 as u64
        };
        self.shared.ports().iter().flat_map(|port| &port.pairs).map(at).sum()
    }

    /// The guest that behaves sends a frame to everybody, and one to the other guest.
    fn victim_sends(&mut self, len: usize) {
        for dst in [MacAddr::BROADCAST, mac(1)] {
            let mut frame = numbered(2, 1, 0, len);
            frame[..6].copy_from_slice(&dst.0);
            let sent = self.victim.send_quietly(0, &VnetHdr::default(), &frame);
            assert!(sent, "its transmit ring is not served");
        }
    }

    /// The guest that behaves is served, whatever the other one has done.
    fn check_victim(&mut self) {
        self.victim_sends(60);
        self.round();
        assert_eq!(self.victim.transmitting(0), 0);
        assert_eq!(self.shared.port_at(1).rx_running(), 1);
    }

    fn end(&mut self) {
        self.hang_up();
        self.round();
    }
}

fn within(work: &Work, places: u64) -> bool {
    work.total() <= (PAIRS as u64 + 1) * ROUND_COST + places * PLACE_COST
}

fn config() -> Config {
    thread_local! {
        static CONFIG: OnceCell<Config> = const { OnceCell::new() };
    }
    let text = format!(
        "[[port]]\nname = \"hostile\"\nsocket = \"/unused0\"\nqueue_pairs = {PAIRS}\nstorm_pps = 0\n\
         [[port]]\nname = \"victim\"\nsocket = \"/unused1\"\nmac = \"{}\"\nstorm_pps = 0\n",
        mac(2)
    );
    CONFIG.with(|config| {
        config.get_or_init(|| Config::parse(&text, Path::new("fuzz")).expect("good")).clone()
    })
}

fn worker(shared: &Arc<Shared>) -> Worker {
    let waker = Arc::clone(&shared.port_at(0).waker);
    Worker::new(Arc::clone(shared), 0, waker, Polling::new(Duration::ZERO))
}

fn attach(port: &Port, guest: &Guest) {
    let memory = Arc::new(guest.memory.map());
    let ring = |index| {
        let driver = &guest.queue(index).driver;
        let queue = Virtqueue::new(Arc::clone(&memory), driver.size(), driver.addresses(), true);
        Ring { queue: queue.expect("good rings"), call: None }
    };
    let pair = &port.pairs[0];
    pair.rx().start(ring(0), features::rx(guest.config.features));
    pair.tx().start(ring(1), features::tx(guest.config.features));
    pair.tx().set_enabled(true);
    port.update_rx_running();
}

/// A connection: the front-end's end, another descriptor of the port's end, and what serves that.
fn connect(port: &Arc<Port>, device: &Arc<Mutex<Device>>) -> (UnixStream, UnixStream, Session) {
    let (front, back) = UnixStream::pair().expect("descriptors left");
    front.set_nonblocking(true).expect("a socket");
    let unread = back.try_clone().expect("descriptors left");
    port.set_connected(true);
    let session = Session::open(back, Arc::clone(port), Arc::clone(device)).expect("a socket");
    (front, unread, session)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::fuzz::replay;

    #[test]
    fn seeds_of_the_fuzz_target_hold() {
        replay("vhost_user", vhost);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn any_front_end_harms_only_itself(input in prop::collection::vec(any::<u8>(), 0..600)) {
            vhost(&input);
        }
    }
}
