//! Names in SYN-ACKs. The peer is this test, too: it answers a SYN and says no more, so that there is nothing but the handshake.

use std::net::SocketAddr;

use floodway_lab::agent::Spawned;
use floodway_lab::guest_image::{Contents, GuestImage, Packages};
use floodway_lab::kernel::{Kernel, Series};
use floodway_wire::build::{Link, Tcp};
use floodway_wire::checksum::ChecksumState;
use floodway_wire::ethernet::TYPE_IPV4;
use floodway_wire::name::{Beginning, OPTION_LEN, append_option};
use floodway_wire::tcp::{Flags, Header, OptionSummary};
use floodway_wire::{FiveTuple, FlowName, Meta, Notice, parse};

use super::{GUEST, Guest, LIFETIME, ONLINE, PacketSocket, SWITCH, both_kernels_with, wait_until};

const EPOCH: u32 = 5;
const ISN: u32 = 0xffff_ffff;
/// NAT in the guest, and what it needs of Debian.
const NFT: &str = "/usr/sbin/nft";
const PACKAGES: [&str; 9] = [
    "nftables",
    "libnftables1",
    "libnftnl11",
    "libmnl0",
    "libjansson4",
    "libgmp10",
    "libxtables12",
    "libedit2",
    "libbsd0",
];
/// A container as container engines make them: a namespace with a link of its own, and its addresses translated.
const CONTAINER: [&str; 13] = [
    "ip netns add box",
    "ip link add name outer type veth peer name inner netns box",
    "ip address add 172.17.0.1/16 dev outer",
    "ip link set outer up",
    "ip netns exec box ip address add 172.17.0.2/16 dev inner",
    "ip netns exec box ip link set inner up",
    "ip netns exec box ip link set lo up",
    "ip netns exec box ip route add default via 172.17.0.1",
    "sysctl -w net.ipv4.ip_forward=1",
    "/usr/sbin/nft add table ip nat",
    "/usr/sbin/nft add chain ip nat post { type nat hook postrouting priority 100 ; }",
    "/usr/sbin/nft add rule ip nat post ip saddr 172.17.0.0/16 masquerade",
    "/usr/sbin/nft list ruleset",
];

/// What a program in the container is run by; busybox's shell has an `ip` of its own.
const INSIDE: &str = "/usr/bin/ip netns exec box";

fn image(series: Series) -> GuestImage {
    let packages = Packages::fetch(&PACKAGES).unwrap();
    let contents = Contents {
        files: packages.with_libraries(&[NFT]).unwrap(),
        modules: ["veth", "nft_chain_nat", "nft_masq"].map(str::to_owned).to_vec(),
        ..Contents::default()
    };
    GuestImage::build(&Kernel::fetch(series).unwrap(), &contents).unwrap()
}

/// A host that answers SYNs of one guest, behind a switch that is also this test.
struct Peer<'a> {
    guest: &'a Guest,
    socket: PacketSocket,
    address: String,
}

/// A connection of a guest.
struct Connection<'a> {
    guest: &'a Guest,
    job: Spawned,
    /// What programs in the connection's namespace are run by.
    prefix: &'static str,
    /// As the guest transmits it on the wire.
    flow: FiveTuple,
}

/// Which option a SYN-ACK bears.
type Option16 = Option<[u8; OPTION_LEN]>;

impl<'a> Peer<'a> {
    fn new(guest: &'a Guest) -> Self {
        let address = format!("10.250.{}.77", guest.subnet);
        guest.exec(&format!("ip neighbour add {address} lladdr {SWITCH} dev eth0"));
        let socket = PacketSocket::open(guest.interface_index(), TYPE_IPV4);
        Self { guest, socket, address }
    }

    /// A connection to `port` whose program writes a line each second. `option` says for the SYN, as it is on the wire, what the SYN-ACK bears.
    fn connect(
        &self,
        prefix: &'static str,
        port: u16,
        option: impl Fn(FlowName, Beginning) -> Option16,
    ) -> Connection<'a> {
        let source = "while true; do echo; sleep 1; done";
        let script = format!("{source} | {prefix} nc {} {port}", self.address);
        let job = self.guest.vm.agent().spawn(&["sh", "-c", &script]).unwrap();
        let (meta, clock) = self.syn(port);
        let nonce = self.nonce();
        let syn = meta.tcp().unwrap().sequence;
        let beginning = Beginning { ack: syn.wrapping_add(1), next: ISN.wrapping_add(1) };
        self.answer(&meta, clock, option(FlowName::new(&meta.flow, nonce), beginning));
        let connection = Connection { guest: self.guest, job, prefix, flow: meta.flow };
        wait_until("the handshake", || connection.sockets().contains("cwnd:"));
        connection
    }

    fn nonce(&self) -> u64 {
        self.guest.nonce.load(std::sync::atomic::Ordering::Relaxed)
    }

    /// What a switch that knows the nonce puts into a SYN-ACK.
    fn right(&self, name: FlowName, beginning: Beginning) -> Option16 {
        Some(name.option(self.nonce(), EPOCH, beginning))
    }

    /// A SYN to that port, and its timestamp.
    fn syn(&self, port: u16) -> (Meta, u32) {
        let mut found = None;
        wait_until("a SYN", || {
            found = self.socket.recv().and_then(|frame| {
                let meta = parse(&frame, frame.len()).ok()?;
                let is_syn = meta.tcp()?.flags == Flags::SYN && meta.flow.dst_port == port;
                let tcp = Header::parse(&frame[meta.transport_offset.into()..]).ok()?;
                let options = OptionSummary::parse(tcp.option_bytes()).ok()?;
                is_syn.then_some((meta, options.timestamps?.value))
            });
            found.is_some()
        });
        found.unwrap()
    }

    fn answer(&self, syn: &Meta, clock: u32, option: Option16) {
        let flow = syn.flow.reversed();
        let end = |ip, port| SocketAddr::new(ip, port);
        let (src, dst) = (end(flow.src_ip(), flow.src_port), end(flow.dst_ip(), flow.dst_port));
        let mut tcp = Tcp::new(Link::new(SWITCH, GUEST), src, dst);
        (tcp.flags, tcp.sequence) = (Flags::SYN.with(Flags::ACK), ISN);
        tcp.acknowledgment = syn.tcp().unwrap().sequence.wrapping_add(1);
        tcp.options =
            [&[2, 4, 5, 0xb4, 4, 2, 8, 10, 0, 0, 0, 1][..], &clock.to_be_bytes()].concat();
        tcp.options.extend([1, 3, 3, 7]);
        let mut frame = tcp.build(&[]);
        let meta = parse(&frame, frame.len()).unwrap();
        if let Some(option) = option {
            frame.resize(frame.len() + OPTION_LEN, 0);
            let state = ChecksumState::Unverified;
            assert_eq!(append_option(&mut frame, &meta, state, &option), Some(frame.len()));
        }
        self.guest.send_frame(&frame);
    }
}

impl Connection<'_> {
    fn sockets(&self) -> String {
        let ss = format!("{} ss -Htinm dport = :{}", self.prefix, self.flow.dst_port);
        self.guest.exec(ss.trim())
    }

    /// It was online when its handshake ended: its send buffer is at its largest.
    fn was_named_in_time(&self) -> bool {
        let largest = self.guest.exec("cat /proc/sys/net/ipv4/tcp_wmem");
        let largest = largest.split_whitespace().last().unwrap().to_owned();
        self.sockets().contains(&format!("tb{largest}"))
    }

    fn is_online(&self) -> bool {
        self.sockets().contains(&format!("cwnd:{ONLINE}"))
    }
}

impl Drop for Connection<'_> {
    fn drop(&mut self) {
        let _ = self.guest.vm.agent().signal(&self.job, libc::SIGKILL);
    }
}

#[test]
fn a_name_in_a_syn_ack_takes_its_connection_online_whatever_its_addresses() {
    both_kernels_with(image, |guest, _| {
        guest.exec("floodway-guest install");
        assert_eq!(guest.status()["reads_names"], true);
        for command in CONTAINER {
            guest.exec(command);
        }
        guest.learn_nonce();
        let peer = Peer::new(&guest);
        names_that_are_not_believed(&guest, &peer);
        named_in_a_syn_ack(&guest, &peer);
        named_behind_nat(&guest, &peer);
        assert!(guest.exec("floodway-guest status").contains("names in SYN-ACKs are read: yes"));
        reinstallation_and_removal(&guest, &peer);
    });
}

fn heartbeat(guest: &Guest, epoch: u32) {
    guest.send(Notice::Heartbeat { epoch, lifetime: LIFETIME });
    wait_until("the epoch", || guest.status()["interfaces"][0]["heartbeat"]["epoch"] == epoch);
}

/// Of an epoch that was not heard, of another connection, with a bit that is wrong; and without a name.
fn names_that_are_not_believed(guest: &Guest, peer: &Peer<'_>) {
    let check = |port: u16, count: u64, option: &dyn Fn(FlowName, Beginning) -> Option16| {
        let connection = peer.connect("", port, option);
        assert!(!connection.was_named_in_time() && !connection.is_online(), "{port}");
        assert_eq!(guest.counter("unauthentic_names"), count, "{port}");
    };
    check(1001, 1, &|name, beginning| peer.right(name, beginning));
    heartbeat(guest, EPOCH);
    check(1002, 2, &|name, Beginning { ack, next }| {
        peer.right(name, Beginning { ack: ack ^ 1, next })
    });
    check(1003, 3, &|name, beginning| {
        let mut option = peer.right(name, beginning)?;
        option[OPTION_LEN - 1] ^= 1;
        Some(option)
    });
    check(1004, 3, &|_, _| None);
    assert_eq!(guest.counter("flows_named_in_syn_acks"), 0);
    assert_eq!(guest.counter("flows_gone_online"), 0);
}

/// No notice names the flow, and the latest heartbeat is long over.
fn named_in_a_syn_ack(guest: &Guest, peer: &Peer<'_>) {
    wait_until("silence", || guest.status()["interfaces"][0]["heartbeat"]["valid"] == false);
    let connection = peer.connect("", 1005, |name, beginning| peer.right(name, beginning));
    assert!(connection.was_named_in_time(), "{}", connection.sockets());
    assert_eq!(guest.counter("flows_named_in_syn_acks"), 1);
    assert_eq!(guest.counter("managed_notices"), 0);
    assert!(guest.counter("flows_gone_online") >= 1);
    assert_eq!(guest.status()["managed_flows"], 1);
    drop(connection);
}

/// Addresses of the socket are nowhere on the wire. Later notices, which have those of the wire, find it by its name.
fn named_behind_nat(guest: &Guest, peer: &Peer<'_>) {
    let _greeting = guest.keep_greeting(EPOCH);
    let named = guest.counter("flows_named_in_syn_acks");
    let right = |name, beginning| peer.right(name, beginning);
    let connection = peer.connect(INSIDE, 1006, right);
    assert_eq!(connection.flow.src_ip().to_string(), format!("10.250.{}.2", guest.subnet));
    assert!(connection.sockets().contains("172.17.0.2"), "{}", connection.sockets());
    assert!(connection.was_named_in_time(), "{}", connection.sockets());
    assert_eq!(guest.counter("flows_named_in_syn_acks"), named + 1);
    let (online, offline) =
        (guest.counter("flows_gone_online"), guest.counter("flows_gone_offline"));
    guest.send(Notice::Offline { epoch: EPOCH, flow: connection.flow });
    wait_until("offline", || guest.counter("flows_gone_offline") > offline);
    guest.send(Notice::Managed { epoch: EPOCH, lifetime: LIFETIME, flow: connection.flow });
    wait_until("online again", || guest.counter("flows_gone_online") > online);
}

/// Another installation has another nonce, and reads names in the place of the one before.
fn reinstallation_and_removal(guest: &Guest, peer: &Peer<'_>) {
    let before = peer.nonce();
    guest.exec("floodway-guest install");
    guest.learn_nonce();
    heartbeat(guest, EPOCH);
    let old = |name: FlowName, beginning| Some(name.option(before, EPOCH, beginning));
    assert!(!peer.connect("", 1007, old).was_named_in_time());
    assert_eq!(guest.counter("unauthentic_names"), 1);
    let right = |name, beginning| peer.right(name, beginning);
    assert!(peer.connect("", 1008, right).was_named_in_time());
    assert_eq!(guest.counter("flows_named_in_syn_acks"), 1);
    guest.exec("floodway-guest remove");
    assert_eq!(guest.status()["reads_names"], false);
}
