//! Real TCP over an emulated network. Needs root.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;
use std::path::Path as FilePath;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use floodway_lab::child::Process;
use floodway_lab::net::{self, Namespace};
use floodway_lab::path::Path;
use floodway_lab::process;
use floodway_netem::model::LinkCounters;
use floodway_netem::{Counters, LinkSpec, Loss, PortSpec, Side, Spec};

const PATIENCE: Duration = Duration::from_secs(120);
const PORT: u16 = 5000;

/// Hosts in namespaces of their own, each with a card `eth0`, plugged into ports `p0`, `p1`, ... of
/// one more namespace.
struct Hosts {
    net: u8,
    hosts: Vec<Namespace>,
    network: Namespace,
}

impl Hosts {
    fn new(name: &str, net: u8, count: u8) -> Self {
        let network = Namespace::create(&format!("{name}-n")).unwrap();
        let hosts = (0..count).map(|n| Namespace::create(&format!("{name}-{n}")).unwrap());
        let hosts = Self { net, hosts: hosts.collect(), network };
        for (n, host) in (0..count).zip(&hosts.hosts) {
            net::plug(host, "eth0", &hosts.network, &format!("p{n}")).unwrap();
            host.add_address("eth0", &net::cidr(net, n + 1)).unwrap();
        }
        hosts
    }

    fn port(&self, n: usize) -> PortSpec {
        PortSpec::packet(&format!("p{n}"), Some(self.network.name()), &format!("p{n}"))
    }

    fn ports(&self) -> Vec<PortSpec> {
        (0..self.hosts.len()).map(|n| self.port(n)).collect()
    }

    fn address(&self, n: u8) -> String {
        net::address(self.net, n + 1)
    }

    fn ping(&self, from: usize, to: u8) {
        let mut ping = self.hosts[from].command("busybox");
        ping.args(["ping", "-c", "1", "-W", "60", &self.address(to)]);
        process::run_command(ping).unwrap();
    }
}

/// Runs `body` in a thread in the namespace.
fn inside<T: Send + 'static>(
    namespace: &Namespace,
    body: impl FnOnce() -> T + Send + 'static,
) -> thread::JoinHandle<T> {
    let file = File::open(namespace.path()).unwrap();
    thread::spawn(move || {
        // SAFETY: takes no pointers; changes the namespace of this thread only.
        assert_eq!(unsafe { libc::setns(file.as_raw_fd(), libc::CLONE_NEWNET) }, 0);
        body()
    })
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len as u64).map(|i| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
}

/// Sends a pattern from one host to another over TCP and back again, and compares it at both ends.
/// Returns the time that it took.
fn transfer(hosts: &Hosts, from: usize, to: u8, len: usize) -> Duration {
    let listener = inside(&hosts.hosts[usize::from(to)], move || {
        TcpListener::bind(("0.0.0.0", PORT)).unwrap()
    });
    let listener = listener.join().unwrap();
    let server = inside(&hosts.hosts[usize::from(to)], move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut got = vec![0; len];
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.read_exact(&mut got).unwrap();
        assert!(got == pattern(len), "the server got other bytes than were sent");
        stream.write_all(&got).unwrap();
    });
    let address: SocketAddr = format!("{}:{PORT}", hosts.address(to)).parse().unwrap();
    let client = inside(&hosts.hosts[from], move || {
        let started = Instant::now();
        let mut stream = TcpStream::connect_timeout(&address, PATIENCE).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(&pattern(len)).unwrap();
        let mut got = vec![0; len];
        stream.read_exact(&mut got).unwrap();
        assert!(got == pattern(len), "the client got other bytes than were sent");
        started.elapsed()
    });
    server.join().unwrap();
    client.join().unwrap()
}

/// A UDP socket in the namespace whose packets have DSCP 46 (expedited forwarding).
fn expedited_socket(namespace: &Namespace) -> UdpSocket {
    let open = || UdpSocket::bind(("0.0.0.0", PORT)).unwrap();
    let socket = inside(namespace, open).join().unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let tos: libc::c_int = 46 << 2;
    let len = size_of_val(&tos) as libc::socklen_t;
    let value = (&raw const tos).cast();
    let fd = socket.as_raw_fd();
    // SAFETY: the value is of the length given and is read during the call only.
    let rc = unsafe { libc::setsockopt(fd, libc::IPPROTO_IP, libc::IP_TOS, value, len) };
    assert_eq!(rc, 0);
    socket
}

/// Sends datagrams with DSCP 46 to and fro.
fn expedited_echo(hosts: &Hosts, from: usize, to: u8, count: u32) {
    let client = expedited_socket(&hosts.hosts[from]);
    let server = expedited_socket(&hosts.hosts[usize::from(to)]);
    for _ in 0..count {
        let mut buffer = [0; 100];
        client.send_to(b"hello", (hosts.address(to), PORT)).unwrap();
        let (len, peer) = server.recv_from(&mut buffer).unwrap();
        server.send_to(&buffer[..len], peer).unwrap();
        assert_eq!(client.recv(&mut buffer).unwrap(), 5);
    }
}

/// What went in has come out, or it is known what became of it.
fn assert_accounted(link: &LinkCounters) {
    let dropped = link.high.dropped.packets + link.low.dropped.packets;
    let gone = link.delivered.packets + dropped + link.lost.packets + link.overflowed.packets;
    let all = link.received.packets + link.duplicated.packets;
    assert_eq!(all, gone + link.held_packets, "{link:?}");
}

/// Counters at a moment when nothing is under way.
fn settled(path: &Path) -> Counters {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let counters = path.counters().unwrap();
        let links =
            counters.ports.iter().flat_map(|port| port.ingress.iter().chain([&port.egress]));
        if links.clone().all(|link| link.held_packets == 0) {
            links.for_each(assert_accounted);
            return counters;
        }
        assert!(Instant::now() < deadline, "packets are still under way: {counters:?}");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn tcp_arrives_intact_over_a_long_lossy_path() {
    let hosts = Hosts::new("lossy", 20, 2);
    let link = LinkSpec {
        rate_mbit: Some(50.0),
        delay_ms: 10.0,
        jitter_ms: 0.5,
        queue_bytes: 64_000,
        loss: Some(Loss::Random(0.01)),
        duplicate: 0.01,
        corrupt: 0.005,
        ..LinkSpec::default()
    };
    let [mut a, mut b] = [0, 1].map(|n| hosts.port(n));
    (a.egress, b.egress) = (link.clone(), link);
    let path = Path::start(&Spec::path(a, b), None).unwrap();
    let len = 4 << 20;
    let time = transfer(&hosts, 0, 1, len);
    let counters = settled(&path);
    let rate = len as f64 * 16.0 / time.as_secs_f64() / 1e6;
    println!("{rate:.1} Mbit/s both ways one after the other");
    println!("{}", serde_json::to_string_pretty(&counters).unwrap());
    for port in &counters.ports {
        // Each direction carried at least 2900 packets. None with a flipped bit among them would
        // have a probability of 5e-7, and the seed is fixed.
        assert!(port.egress.lost.packets > 0 && port.egress.delivered.bytes > len as u64);
        assert!(port.egress.corrupted.packets > 0 && port.egress.duplicated.packets > 0);
        assert_eq!(port.device.sent, port.egress.delivered.packets);
        assert_eq!((port.device.unusable, port.device.missed), (0, 0));
    }
    // GSO packets came in, packets went on.
    let (a, b) = (&counters.ports[0], &counters.ports[1]);
    assert!(a.device.received_frames < b.egress.received.packets);
    assert_eq!(b.egress.received.packets + a.egress.received.packets, counters.fabric.forwarded);
    assert_eq!(counters.lateness.count, a.device.sent + b.device.sent);
}

#[test]
fn a_switch_joins_many_and_its_links_change_while_it_runs() {
    let hosts = Hosts::new("switch", 21, 3);
    let gigabit = LinkSpec { rate_mbit: Some(1000.0), ..LinkSpec::default() };
    let mut ports = hosts.ports();
    for port in &mut ports {
        port.ingress = Some(gigabit.clone());
        port.egress = LinkSpec { high_dscp: vec![46], ..gigabit.clone() };
    }
    let mut path = Path::start(&Spec::switch(ports), None).unwrap();
    transfer(&hosts, 0, 1, 1 << 20);
    transfer(&hosts, 2, 1, 1 << 20);
    let before = settled(&path);
    let third = before.port("p2").unwrap();
    // Once learned, the address of the third host's partner is not flooded to the first: only ARP's
    // broadcasts and first packets are copied.
    assert!(before.fabric.flood_copies < 50, "{:?}", before.fabric);
    assert!(third.egress.delivered.bytes > 1 << 20 && third.ingress.unwrap().lost.packets == 0);
    assert_eq!(third.egress.high.sent.packets, 0);

    // From now on nothing reaches the third host but what is of the high class: all else is lost.
    path.update("p2", |link| link.loss = Some(Loss::Random(1.0))).unwrap();
    let mut ping = hosts.hosts[0].command("busybox");
    ping.args(["ping", "-c", "1", "-W", "1", &hosts.address(2)]);
    assert!(process::run_command(ping).is_err());
    assert!(settled(&path).port("p2").unwrap().egress.lost.packets > 0);
    path.update("p2", |link| link.loss = None).unwrap();
    assert_eq!(path.spec().port[2].egress.high_dscp, [46]);
    hosts.ping(0, 2);

    let error = path.set("p9", Side::Egress, &gigabit).unwrap_err().to_string();
    assert!(error.contains("p9"), "{error}");
    path.reset_marks().unwrap();
    let last = path.stop().unwrap();
    assert!(last.lateness.count < before.lateness.count);
    assert!(last.fabric.forwarded > before.fabric.forwarded);
}

#[test]
fn packets_of_the_high_class_are_counted_apart_and_marked_when_the_queue_is_long() {
    let hosts = Hosts::new("class", 22, 2);
    for host in &hosts.hosts {
        let mut sysctl = host.command("busybox");
        sysctl.args(["sysctl", "-w", "net.ipv4.tcp_ecn=1"]);
        process::run_command(sysctl).unwrap();
    }
    let link = LinkSpec {
        rate_mbit: Some(20.0),
        high_dscp: vec![46],
        ecn_bytes: Some(15_000),
        queue_bytes: 4 << 20,
        ..LinkSpec::default()
    };
    let [mut a, mut b] = [0, 1].map(|n| hosts.port(n));
    (a.egress, b.egress) = (link.clone(), link);
    let path = Path::start(&Spec::path(a, b), None).unwrap();
    expedited_echo(&hosts, 0, 1, 3);
    transfer(&hosts, 0, 1, 2 << 20);
    let counters = settled(&path);
    for port in &counters.ports {
        assert_eq!(port.egress.high.sent.packets, 3, "{port:?}");
        assert!(port.egress.low.marked.packets > 0, "{port:?}");
        assert!(port.egress.low.queue_high_water_bytes >= 15_000, "{port:?}");
        // The queue holds more than is ever sent.
        assert_eq!(port.egress.low.dropped.packets, 0, "{port:?}");
    }
}

#[test]
fn a_tap_is_a_host_and_goes_with_the_path() {
    let [left, right] = ["tap-l", "tap-r"].map(|name| Namespace::create(name).unwrap());
    let ports = [&left, &right].map(|host| PortSpec::tap("eth0", Some(host.name()), "eth0"));
    let [a, mut b] = ports;
    b.name = "other".into();
    let path = Path::start(&Spec::path(a, b), Some(0)).unwrap();
    left.add_address("eth0", &net::cidr(23, 1)).unwrap();
    right.add_address("eth0", &net::cidr(23, 2)).unwrap();
    let hosts =
        Hosts { net: 23, hosts: vec![left, right], network: Namespace::create("tap-n").unwrap() };
    transfer(&hosts, 0, 1, 4 << 20);
    let counters = settled(&path);
    let unusable: u64 = counters.ports.iter().map(|port| port.device.unusable).sum();
    assert_eq!(unusable, 0);
    let devices = || process::run(&["ip", "-n", hosts.hosts[0].name(), "link"]).unwrap();
    assert!(devices().contains("eth0"));
    drop(path);
    assert!(!devices().contains("eth0"));
}

#[test]
fn what_is_wrong_is_said() {
    let hosts = Hosts::new("wrong", 24, 1);
    let missing = PortSpec::packet("b", Some(hosts.network.name()), "nothing0");
    let error = Path::start(&Spec::path(hosts.port(0), missing), None).unwrap_err().to_string();
    assert!(error.contains("port b") && error.contains("nothing0"), "{error}");
    let nowhere = PortSpec::packet("b", Some("no-such-namespace"), "eth0");
    let error = Path::start(&Spec::path(hosts.port(0), nowhere), None).unwrap_err().to_string();
    assert!(error.contains("no-such-namespace"), "{error}");
    let mut silly = hosts.port(0);
    silly.egress.rate_mbit = Some(-1.0);
    let error = Path::start(&Spec::path(hosts.port(0), silly), None).unwrap_err();
    assert!(
        format!("{error:#}").contains("same name") || format!("{error:#}").contains("rate_mbit")
    );
}

#[test]
fn by_hand_it_answers_signals_and_leaves_its_counters() {
    let hosts = Hosts::new("hand", 25, 2);
    let dir = tempfile::tempdir().unwrap();
    let [control, json] = ["control", "json"].map(|file| dir.path().join(file));
    let end = |n| format!("{}:p{n}", hosts.network.name());
    let mut command = Command::new(env!("CARGO_BIN_EXE_floodway-lab"));
    command.args(["path", "run", "--between", &end(0), &end(1), "--delay-ms", "2", "--control"]);
    command.arg(&control).arg("--json").arg(&json).stdout(Stdio::null());
    let running = Process::spawn("path", command).unwrap();
    let deadline = Instant::now() + PATIENCE;
    while !FilePath::new(&control).exists() {
        assert!(Instant::now() < deadline && running.try_wait().unwrap().is_none());
        thread::sleep(Duration::from_millis(5));
    }
    hosts.ping(0, 1);
    let lab = |arguments: &[&str]| {
        let mut argv = vec![env!("CARGO_BIN_EXE_floodway-lab"), "path", arguments[0], "--control"];
        argv.push(control.to_str().unwrap());
        argv.extend(&arguments[1..]);
        process::run(&argv)
    };
    let counters: Counters = serde_json::from_str(&lab(&["counters"]).unwrap()).unwrap();
    assert!(counters.port("a").unwrap().egress.delivered.packets > 0);
    lab(&["set", "a", "egress", "rate_mbit = 10", "loss = 0.5"]).unwrap();
    let error = lab(&["set", "a", "egress", "loss = 5"]).unwrap_err().to_string();
    assert!(error.contains("loss = 5"), "{error}");
    let error = lab(&["set", "a", "ingress", "loss = 0.5"]).unwrap_err().to_string();
    assert!(error.contains("ingress"), "{error}");
    running.signal(libc::SIGUSR1).unwrap();
    let status = running.terminate(PATIENCE).unwrap();
    assert!(status.success(), "{status}");
    let text = std::fs::read_to_string(&json).unwrap();
    let last: Counters = serde_json::from_str(&text).unwrap();
    assert!(last.uptime_s > counters.uptime_s);
    assert!(!control.exists());
}
