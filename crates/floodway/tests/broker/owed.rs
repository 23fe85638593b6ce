//! Bytes that were acknowledged for a guest, across a death of the data plane. Needs root and ip(8).

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::thread;

use floodway_switch::testing::{wait, wait_until};
use floodway_wire::MacAddr;
use floodway_wire::build::{Link, Tcp};
use floodway_wire::tcp::Flags;

use crate::scene::{Scene, Vm};
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

#[test]
#[ignore = "fails: the journal of acknowledged bytes is not wired in yet"]
fn a_connection_that_is_owed_bytes_gets_them_or_ends() {
    in_namespace(|| {
        let scene = Scene::start_with(&format!("{MECHANISMS}{}", uplink("tap", "fwt0")));
        ip("addr add 10.77.0.1/24 dev fwt0");
        let (_a, mut b) = (scene.boot(1), scene.boot(2));
        ip(&format!(
            "neigh add 10.77.0.2 lladdr {} dev fwt0",
            floodway_switch::testing::frames::mac(2)
        ));
        let shown = ip("-oneline link show dev fwt0");
        let mut words = shown.split_whitespace().skip_while(|&word| word != "link/ether").skip(1);
        let host: MacAddr = words.next().unwrap().parse().unwrap();
        let peer = thread::spawn(|| TcpStream::connect(GUEST).unwrap());
        let mut connection = Connection::accept(&mut b, host);
        let mut peer = peer.join().unwrap();
        peer.write_all(&[7; 1000]).unwrap();
        wait_until("the switch to acknowledge", || unacknowledged(&peer) == 0);
        let lost = next(&mut b, |_| true);
        scene.kill_data_plane();
        peer.set_nonblocking(true).unwrap();
        // The guest has lost it, and says so until it gets it, or either end hears that there is nothing to wait for.
        wait_until("the bytes, or a reset", || {
            connection.segment.flags = Flags::ACK;
            b.send(&connection.segment.build(b""));
            let mut got = std::iter::from_fn(|| b.guest.recv(0)).filter_map(|(_, f)| parse(&f));
            let is_answer =
                |got: Got| got.sequence == lost.sequence || got.flags.intersects(Flags::RST);
            let is_reset = peer.read(&mut [0]).is_err_and(|e| e.kind() != ErrorKind::WouldBlock);
            got.any(is_answer) || is_reset
        });
    });
}
