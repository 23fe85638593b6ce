//! Bytes that were acknowledged for a guest, across a death of the data plane. Needs root and ip(8).

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;
use std::thread;

use floodway_process::fault::Point;
use floodway_switch::kept::WORD;
use floodway_switch::testing::{Frontend, wait, wait_until};
use floodway_wire::MacAddr;
use floodway_wire::build::{Link, Tcp};
use floodway_wire::tcp::Flags;

use crate::owing::terminate;
use crate::scene::{Scene, Vm, signal};
use crate::service_manager::Manager;
use crate::uplinks::{in_namespace, ip, uplink};

/// VM 2 acknowledges nothing by itself.
const MECHANISMS: &str = "[port.offload]\nreceive = true\n";
const GUEST: &str = "10.77.0.2:80";
/// Sequence number of the guest's SYN.
const ISN: u32 = 1_000;

/// A guest's end of a connection, with as little of TCP as it takes.
struct Connection {
    segment: Tcp,
}

impl Connection {
    fn accept(vm: &mut Vm, host: MacAddr) -> Self {
        let syn = next(vm, |meta| meta.flags.intersects(Flags::SYN));
        let local = GUEST.parse().unwrap();
        let link = Link::new(floodway_switch::testing::frames::mac(vm.n), host);
        let mut segment = Tcp::new(link, local, ([10, 77, 0, 1], syn.src_port).into());
        (segment.sequence, segment.acknowledgment) = (ISN, syn.sequence.wrapping_add(1));
        segment.flags = Flags::SYN.with(Flags::ACK);
        vm.send(&segment.build(b""));
        (segment.sequence, segment.flags) = (ISN + 1, Flags::ACK);
        next(vm, |meta| meta.flags == Flags::ACK);
        Self { segment }
    }
}

/// A segment that the guest has got.
#[derive(Clone, Copy, Debug)]
struct Got {
    src_port: u16,
    sequence: u32,
    flags: Flags,
}

fn parse(frame: &[u8]) -> Option<Got> {
    let tcp = frame.get(34..)?;
    (frame[12..14] == [8, 0] && frame[23] == 6).then(|| Got {
        src_port: u16::from_be_bytes([tcp[0], tcp[1]]),
        sequence: u32::from_be_bytes([tcp[4], tcp[5], tcp[6], tcp[7]]),
        flags: Flags(tcp[13]),
    })
}

fn next(vm: &mut Vm, is_it: impl Fn(&Got) -> bool) -> Got {
    wait("a segment", || {
        std::iter::from_fn(|| vm.guest.recv(0)).filter_map(|(_, frame)| parse(&frame)).find(&is_it)
    })
}

/// Bytes that the peer has sent and nobody has acknowledged.
fn unacknowledged(stream: &TcpStream) -> i32 {
    let mut bytes = 0;
    // SAFETY: TIOCOUTQ writes an int.
    assert_eq!(unsafe { libc::ioctl(stream.as_raw_fd(), libc::TIOCOUTQ, &mut bytes) }, 0);
    bytes
}

/// A host's connection to a guest for which the switch has acknowledged bytes that the guest has lost.
struct Debt {
    scene: Scene,
    connection: Connection,
    peer: TcpStream,
    b: Vm,
    /// Of the first of these bytes.
    sequence: u32,
    _a: Vm,
}

fn configuration() -> String {
    format!("{MECHANISMS}{}", uplink("tap", "fwt0"))
}

const OWED: [u8; 1000] = [7; 1000];
/// What the record of a frame begins with that is kept for the first flow at the first place.
const FIRST_FRAME: u64 = 1 << 32 | 1;

impl Debt {
    fn make() -> Self {
        Self::make_by(Scene::start_with(&configuration()))
    }

    fn make_by(scene: Scene) -> Self {
        let mut debt = Self::none(scene);
        debt.peer.write_all(&OWED).unwrap();
        wait_until("the switch to acknowledge", || unacknowledged(&debt.peer) == 0);
        next(&mut debt.b, |_| true);
        debt
    }

    /// A connection, and no byte yet.
    fn none(scene: Scene) -> Self {
        ip("addr add 10.77.0.1/24 dev fwt0");
        let (a, mut b) = (scene.boot(1), scene.boot(2));
        ip(&format!(
            "neigh add 10.77.0.2 lladdr {} dev fwt0",
            floodway_switch::testing::frames::mac(2)
        ));
        let shown = ip("-oneline link show dev fwt0");
        let mut words = shown.split_whitespace().skip_while(|&word| word != "link/ether").skip(1);
        let host: MacAddr = words.next().unwrap().parse().unwrap();
        let peer = thread::spawn(|| TcpStream::connect(GUEST).unwrap());
        let connection = Connection::accept(&mut b, host);
        let peer = peer.join().unwrap();
        peer.set_nonblocking(true).unwrap();
        let sequence = connection.segment.acknowledgment;
        Self { scene, connection, peer, b, sequence, _a: a }
    }

    /// The guest answers, and the peer hears it.
    fn answer(&mut self) {
        self.connection.segment.flags = Flags::ACK.with(Flags::PSH);
        self.b.send(&self.connection.segment.build(b"thanks"));
        wait_until("the answer", || self.peer.read(&mut [0; 6]).is_ok_and(|read| read == 6));
    }

    /// Waits until the guest gets what it is owed.
    fn expect_bytes(&mut self) {
        let sequence = self.sequence;
        next(&mut self.b, |got| got.sequence == sequence && !got.flags.intersects(Flags::RST));
    }

    /// The guest acknowledges all of it.
    fn acknowledge(&mut self) {
        let segment = &mut self.connection.segment;
        segment.flags = Flags::ACK;
        segment.acknowledgment = self.sequence.wrapping_add(OWED.len() as u32);
        self.b.send(&segment.build(b""));
    }

    /// The peer's connection has been reset.
    fn is_reset(&mut self) -> bool {
        self.peer.read(&mut [0]).is_err_and(|e| e.kind() == ErrorKind::ConnectionReset)
    }

    fn counter(&self, name: &str) -> u64 {
        let status = wait("a status", || self.scene.status());
        status["ports"][1]["offload"]["counters"][name].as_u64().unwrap()
    }

    /// The journal of the guest's port, which is the only one that anything was written to.
    fn journal(&self) -> File {
        let descriptors = fs::read_dir(format!("/proc/{}/fd", self.scene.broker.id())).unwrap();
        let is_journal = |path: &PathBuf| {
            fs::read_link(path)
                .is_ok_and(|name| name.to_string_lossy().contains("memfd:floodway-journal"))
                && fs::metadata(path).is_ok_and(|file| file.blocks() > 0)
        };
        let mut found = descriptors.map(|entry| entry.unwrap().path()).filter(is_journal);
        let path = found.next().expect("a journal");
        assert!(found.next().is_none(), "another port has acknowledged something");
        OpenOptions::new().read(true).write(true).open(path).unwrap()
    }
}

#[test]
fn a_guest_that_is_owed_bytes_gets_them_however_often_data_planes_die() {
    in_namespace(|| {
        let mut debt = Debt::make();
        // It acknowledges nothing: each data plane finds what the one before it has found.
        for _ in 0..2 {
            debt.scene.kill_data_plane();
            debt.expect_bytes();
        }
        // The next one may die before it has delivered them, or has found them.
        let before = debt.scene.data_plane();
        signal(before, libc::SIGKILL);
        let next = wait("another one", || debt.scene.running().filter(|&pid| pid != before));
        signal(next, libc::SIGKILL);
        wait_until("one that serves", || {
            debt.scene.running().is_some_and(|pid| pid != before && pid != next)
                && debt.scene.status().is_some()
        });
        debt.expect_bytes();
        let adopted = debt.counter("adopted");
        assert!(adopted >= 3, "{adopted}");
        debt.acknowledge();
        wait_until("the end of the debt", || {
            debt.counter("flows_closed") == debt.counter("flows_opened")
        });
        // The connection goes on, and there is nothing left to find.
        debt.answer();
        debt.scene.kill_data_plane();
        let counters = ["adopted", "adopted_broken", "adopted_unknown", "aborted"];
        assert_eq!(counters.map(|name| debt.counter(name)), [adopted, 0, 0, 0]);
    });
}

#[test]
fn a_guest_that_is_owed_bytes_gets_them_across_an_upgrade() {
    in_namespace(|| {
        let mut debt = Debt::make();
        let upgrade = |debt: &Debt| {
            let output = debt.scene.output(&["upgrade"]);
            assert!(output.status.success(), "{output:?}");
        };
        let kept = |debt: &Debt| {
            wait("a status", || debt.scene.status())["ports"][1]["offload"]["kept"].clone()
        };
        for _ in 0..2 {
            upgrade(&debt);
            assert_eq!(kept(&debt), OWED.len());
            debt.expect_bytes();
        }
        debt.acknowledge();
        wait_until("the end of the debt", || kept(&debt) == 0);
        upgrade(&debt);
        // The connection was handed over, and not found in the journal.
        assert_eq!((debt.counter("adopted"), kept(&debt)), (0, 0.into()));
        // It is still acknowledged for the guest.
        let before = debt.counter("acknowledged_bytes");
        debt.peer.write_all(&OWED).unwrap();
        wait_until("the switch to acknowledge", || unacknowledged(&debt.peer) == 0);
        assert_eq!(debt.counter("acknowledged_bytes"), before + OWED.len() as u64);
        debt.sequence = debt.sequence.wrapping_add(OWED.len() as u32);
        debt.expect_bytes();
        debt.acknowledge();
        debt.connection.segment.flags = Flags::ACK.with(Flags::PSH);
        debt.b.send(&debt.connection.segment.build(b"thanks"));
        wait_until("the answer", || debt.peer.read(&mut [0; 6]).is_ok_and(|read| read == 6));
    });
}

/// Over a stop as well, if the service manager starts the switch again.
#[test]
fn a_guest_that_is_owed_bytes_gets_them_over_a_restart_by_a_service_manager() {
    in_namespace(|| {
        let directory = tempfile::tempdir().unwrap();
        let mut manager = Manager::of(directory.path());
        let mut debt = Debt::make_by(Scene::launch_in(directory, &configuration(), &[]));
        manager.hear();
        terminate(&mut debt.scene.broker);
        debt.scene.start_broker_by(manager.start());
        debt.b.frontend = Frontend::attach(&debt.scene.path("vm2.sock"), &debt.b.guest);
        debt.expect_bytes();
        assert_eq!(debt.counter("adopted"), 1);
    });
}

#[test]
fn a_connection_that_lacks_bytes_is_reset_at_both_ends() {
    in_namespace(|| {
        let mut debt = Debt::make();
        let journal = debt.journal();
        let mut words = vec![0; journal.metadata().unwrap().len() as usize];
        journal.read_exact_at(&mut words, 0).unwrap();
        let found = words.chunks(WORD).position(|word| word == FIRST_FRAME.to_ne_bytes());
        // The word behind it is the frame's sequence number and length.
        let at = (found.expect("the frame's record") + 1) * WORD;
        journal.write_all_at(&[0xff; WORD], at as u64).unwrap();
        debt.scene.kill_data_plane();
        next(&mut debt.b, |got| got.flags.intersects(Flags::RST));
        wait_until("the peer's reset", || debt.is_reset());
        assert_eq!(["adopted", "adopted_broken"].map(|name| debt.counter(name)), [0, 1]);
    });
}

#[test]
fn where_no_connection_can_be_named_all_are_reset() {
    in_namespace(|| {
        let mut debt = Debt::make();
        // The address in the record of the only flow.
        debt.journal().write_all_at(&[0xff; WORD], WORD as u64).unwrap();
        debt.scene.kill_data_plane();
        wait_until("the resets", || {
            debt.connection.segment.flags = Flags::ACK;
            debt.b.send(&debt.connection.segment.build(b""));
            debt.is_reset()
        });
        next(&mut debt.b, |got| got.flags.intersects(Flags::RST));
        assert_eq!(debt.counter("adopted_unknown"), 1);
    });
}

/// Lets the data plane die at `point` on the way of bytes that it acknowledges for a guest. Returns how often the point was passed until it had, and until the guest had acknowledged them itself.
fn die_at(point: Point, count: u64) -> [u64; 2] {
    println!("{point:?}, passing {count}");
    let (scene, points) = Scene::launch_with_points(&configuration());
    let mut debt = Debt::none(scene);
    let before = points.passed(point);
    points.arm(point, count);
    debt.peer.write_all(&OWED).unwrap();
    debt.expect_bytes();
    // Or by the guest itself, if the data plane has not come so far.
    let acknowledged = unacknowledged(&debt.peer) == 0;
    let passed = points.passed(point) - before;
    debt.acknowledge();
    wait_until("the acknowledgement", || unacknowledged(&debt.peer) == 0);
    wait_until("the death", || !points.is_armed(point));
    debt.answer();
    assert_eq!(["adopted_broken", "adopted_unknown"].map(|name| debt.counter(name)), [0, 0]);
    assert!(acknowledged || count > 0, "receive offload is on");
    wait_until("the end of the debt", || {
        debt.counter("flows_closed") == debt.counter("flows_opened") || count == 0
    });
    [passed, points.passed(point) - before]
}

#[test]
fn acknowledged_bytes_outlive_a_data_plane_that_ends_at_any_store_of_the_journal() {
    let mut passed = [0; 2];
    in_namespace(|| passed = die_at(Point::JournalStored, 0));
    let [kept, all] = passed;
    assert!(kept > 3 && all > kept, "{kept} stores of {all}");
    // Bytes of a frame are stored word by word, before anybody can find them.
    for count in [1, 2, kept / 2].into_iter().chain(kept - 3..=all) {
        in_namespace(|| {
            die_at(Point::JournalStored, count);
        });
    }
    for point in [Point::SegmentReceived, Point::AckSent] {
        in_namespace(|| {
            die_at(point, 1);
        });
    }
}
