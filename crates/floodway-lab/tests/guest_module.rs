//! The guest module on both kernels, in real VMs. Needs root.
//!
//! The host plays the switch by hand: it sends notices through the guest's tap. Timeouts only decide hangs. "Nothing happens"
//! is checked after the flow has made progress, never after a time.

#[path = "guest_module/names.rs"]
mod names;

use std::io::Read;
use std::mem::size_of;
use std::net::{Ipv6Addr, SocketAddr, TcpListener};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use floodway_lab::agent::{Interface, Spawned};
use floodway_lab::guest_image::GuestImage;
use floodway_lab::kernel::Series;
use floodway_lab::vm::{Config, Nic, Vm};
use floodway_lab::{cleanup, process};
use floodway_wire::notice::{self, GuestNonce, MAX_FRAME_LEN};
use floodway_wire::{FiveTuple, MacAddr, Notice};
use serde_json::Value;

/// Far longer than anything takes on a loaded machine.
const LONG: Duration = Duration::from_secs(300);
const SWITCH: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
const GUEST: MacAddr = MacAddr([0x52, 0x54, 0, 0, 0, 1]);
/// The window of a flow that is online.
const ONLINE: u64 = 1 << 15;
const LIFETIME: Duration = Duration::from_millis(300);

fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + LONG;
    while !condition() {
        assert!(Instant::now() < deadline, "{what}: not within {LONG:?}");
        thread::sleep(Duration::from_millis(20));
    }
}

/// A VM behind a tap.
struct Guest {
    vm: Vm,
    tap: String,
    subnet: u8,
    /// What the module wants to find in notices.
    nonce: AtomicU64,
}

impl Guest {
    fn boot(series: Series, subnet: u8, image: &GuestImage) -> Self {
        let tap = cleanup::interface_name(&format!("mod{subnet}")).unwrap();
        let name = format!("module-{}", series.to_string().replace('.', "-"));
        let nic = Nic::tap(&tap, GUEST.to_string());
        let vm = Vm::boot(Config::new(name, image).nic(nic)).unwrap();
        let guest = Self { vm, tap, subnet, nonce: AtomicU64::new(0) };
        for address in [format!("10.250.{subnet}.1/24"), format!("fd00:{subnet}::1/64")] {
            let mut add = vec!["ip", "addr", "add", &address, "dev", &guest.tap];
            add.extend(address.contains(':').then_some("nodad"));
            process::run(&add).unwrap();
        }
        process::run(&["ip", "link", "set", &guest.tap, "up"]).unwrap();
        let addresses = vec![format!("10.250.{subnet}.2/24"), format!("fd00:{subnet}::2/64")];
        let eth0 = Interface { name: "eth0".into(), addresses, ..Interface::default() };
        guest.vm.agent().configure_interface(&eth0).unwrap();
        guest
    }

    fn exec(&self, command: &str) -> String {
        let argv: Vec<_> = command.split(' ').collect();
        self.vm.agent().exec(&argv).unwrap().stdout_text()
    }

    fn status(&self) -> Value {
        serde_json::from_str(&self.exec("floodway-guest status --json")).unwrap()
    }

    fn counter(&self, name: &str) -> u64 {
        self.status()["counters"][name].as_u64().unwrap()
    }

    fn default_congestion_control(&self) -> String {
        self.exec("cat /proc/sys/net/ipv4/tcp_congestion_control").trim().to_owned()
    }

    /// The range from which the kernel takes ports for connections.
    fn set_local_ports(&self, first: u16, last: u16) {
        let script = format!("echo {first} {last} > /proc/sys/net/ipv4/ip_local_port_range");
        self.vm.agent().exec(&["sh", "-c", &script]).unwrap();
    }

    fn interface_index(&self) -> i32 {
        let path = format!("/sys/class/net/{}/ifindex", self.tap);
        std::fs::read_to_string(path).unwrap().trim().parse().unwrap()
    }

    fn send_frame(&self, frame: &[u8]) {
        send_frame(self.interface_index(), frame);
    }

    fn send(&self, notice: Notice) {
        self.send_frame(&self.frame(&notice));
    }

    fn frame(&self, notice: &Notice) -> [u8; MAX_FRAME_LEN] {
        let mut frame = [0; MAX_FRAME_LEN];
        notice.write_frame(SWITCH, GUEST, self.nonce.load(Ordering::Relaxed), &mut frame);
        frame
    }

    /// Learns the nonce of an installation that has just been made, as the switch does.
    fn learn_nonce(&self) {
        self.nonce.store(0, Ordering::Relaxed);
        let answers = PacketSocket::open(self.interface_index(), notice::ETHERTYPE);
        wait_until("the nonce", || {
            self.send(Notice::Heartbeat { epoch: 1, lifetime: LIFETIME });
            let answer = answers.recv().and_then(|answer| GuestNonce::parse(&answer).ok());
            self.nonce.store(answer.map_or(0, |answer| answer.nonce), Ordering::Relaxed);
            assert!(answer.is_none_or(|answer| answer.reads_names));
            answer.is_some()
        });
    }

    /// Sends heartbeats until dropped.
    fn keep_greeting(&self, epoch: u32) -> Repeated {
        let index = self.interface_index();
        let heartbeat = self.frame(&Notice::Heartbeat { epoch, lifetime: LIFETIME });
        Repeated::new(Duration::from_millis(50), move || send_frame(index, &heartbeat))
    }
}

/// Hears what a guest sends, of one type.
struct PacketSocket(OwnedFd);

impl PacketSocket {
    fn open(interface: i32, ethertype: u16) -> Self {
        let protocol = ethertype.to_be();
        // SAFETY: the descriptor is new and nobody else's; the address outlives the call and its length is right.
        unsafe {
            let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
            let socket = libc::socket(libc::AF_PACKET, kind, protocol.into());
            assert!(socket >= 0, "{}", std::io::Error::last_os_error());
            let socket = OwnedFd::from_raw_fd(socket);
            let mut address: libc::sockaddr_ll = std::mem::zeroed();
            address.sll_family = libc::AF_PACKET as u16;
            address.sll_protocol = protocol;
            address.sll_ifindex = interface;
            let len = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
            let bound = libc::bind(socket.as_raw_fd(), (&raw const address).cast(), len);
            assert_eq!(bound, 0, "{}", std::io::Error::last_os_error());
            Self(socket)
        }
    }

    /// The next frame, if there is one.
    fn recv(&self) -> Option<Vec<u8>> {
        let mut frame = vec![0; 2048];
        // SAFETY: the buffer is as long as is said, and lives through the call.
        let len =
            unsafe { libc::recv(self.0.as_raw_fd(), frame.as_mut_ptr().cast(), frame.len(), 0) };
        frame.truncate(usize::try_from(len).ok()?);
        Some(frame)
    }
}

/// Sends a frame out of an interface, past the host's own stack.
fn send_frame(interface: i32, frame: &[u8]) {
    // SAFETY: the address outlives the call and its length is right; the descriptor is closed at once.
    let sent = unsafe {
        let socket = libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0);
        assert!(socket >= 0, "{}", std::io::Error::last_os_error());
        let mut address: libc::sockaddr_ll = std::mem::zeroed();
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_ifindex = interface;
        let len = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        let sent = libc::sendto(
            socket,
            frame.as_ptr().cast(),
            frame.len(),
            0,
            (&raw const address).cast(),
            len,
        );
        libc::close(socket);
        sent
    };
    assert_eq!(
        usize::try_from(sent).ok(),
        Some(frame.len()),
        "{}",
        std::io::Error::last_os_error()
    );
}

/// Something done again and again on a thread of its own until dropped.
struct Repeated {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Repeated {
    fn new(pause: Duration, mut action: impl FnMut() + Send + 'static) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            while !seen.load(Ordering::Relaxed) {
                action();
                thread::sleep(pause);
            }
        });
        Self { stop, thread: Some(thread) }
    }
}

impl Drop for Repeated {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap();
    }
}

/// An endless transfer from the guest to this process.
struct Flow<'a> {
    guest: &'a Guest,
    job: Spawned,
    tuple: FiveTuple,
    received: Arc<AtomicU64>,
}

impl<'a> Flow<'a> {
    /// `source` is a shell command whose output is sent.
    fn open(guest: &'a Guest, address: &str, source: &str) -> Self {
        let listener = TcpListener::bind(address).unwrap();
        let local = listener.local_addr().unwrap();
        let script = format!("{source} | nc {} {}", local.ip(), local.port());
        let job = guest.vm.agent().spawn(&["sh", "-c", &script]).unwrap();
        let (mut stream, peer) = listener.accept().unwrap();
        let received = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&received);
        thread::spawn(move || {
            let mut buffer = vec![0; 1 << 16];
            while let Ok(len @ 1..) = stream.read(&mut buffer) {
                count.fetch_add(len as u64, Ordering::Relaxed);
            }
        });
        Self { guest, job, tuple: tuple(peer, local), received }
    }

    fn bulk(guest: &'a Guest) -> Self {
        Self::open(guest, &format!("10.250.{}.1:0", guest.subnet), "cat /dev/zero")
    }

    /// A number that `ss` prints as `name:number`.
    fn info(&self, name: &str) -> Option<u64> {
        let filter = format!("ss -Htin dport = :{}", self.tuple.dst_port);
        let text = self.guest.exec(&filter);
        let mut words = text.split_whitespace();
        let value = words.find_map(|word| word.strip_prefix(name)?.strip_prefix(':'));
        value.map(|value| value.parse().unwrap())
    }

    fn cwnd(&self) -> u64 {
        self.info("cwnd").expect("the connection is there")
    }

    fn wait_for_cwnd(&self, what: &str, condition: impl Fn(u64) -> bool) {
        wait_until(what, || condition(self.cwnd()));
    }

    /// Waits until acknowledgements must have come in.
    fn progress(&self) {
        let before = self.received.load(Ordering::Relaxed);
        wait_until("progress", || self.received.load(Ordering::Relaxed) > before + (8 << 20));
    }

    fn managed(&self, epoch: u32) -> Notice {
        Notice::Managed { epoch, lifetime: Duration::ZERO, flow: self.tuple }
    }
}

impl Drop for Flow<'_> {
    fn drop(&mut self) {
        let _ = self.guest.vm.agent().signal(&self.job, libc::SIGKILL);
    }
}

fn tuple(guest: SocketAddr, host: SocketAddr) -> FiveTuple {
    let tuple = match (guest, host) {
        (SocketAddr::V4(guest), SocketAddr::V4(host)) => FiveTuple::v4(*guest.ip(), *host.ip(), 6),
        (SocketAddr::V6(guest), SocketAddr::V6(host)) => FiveTuple::v6(*guest.ip(), *host.ip(), 6),
        _ => panic!("{guest} and {host} are of two families"),
    };
    tuple.with_ports(guest.port(), host.port())
}

/// Tests have the guests' names, and the machine, to themselves.
static ALONE: Mutex<()> = Mutex::new(());

fn both_kernels(test: impl Fn(Guest, Series) + Sync) {
    both_kernels_with(|series| GuestImage::debian(series).unwrap(), test);
}

fn both_kernels_with(image: impl Fn(Series) -> GuestImage, test: impl Fn(Guest, Series) + Sync) {
    // A test that failed before has left nothing behind that matters here.
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    thread::scope(|scope| {
        for (subnet, series) in (11u8..).zip(Series::ALL) {
            let (test, image) = (&test, image(series));
            scope.spawn(move || test(Guest::boot(series, subnet, &image), series));
        }
    });
}

#[test]
fn a_flow_is_online_exactly_while_the_switch_says_so() {
    both_kernels(|guest, _| {
        let before = guest.default_congestion_control();
        assert_eq!(guest.status()["registered"], false);
        guest.exec("floodway-guest install");
        let status = guest.status();
        assert_eq!((&status["registered"], &status["default"]), (&true.into(), &"floodway".into()));
        assert_eq!(status["loss_probes"], "3", "offline flows keep their tail loss probes");
        assert_eq!(status["interfaces"][0]["name"], "eth0");
        assert!(status["interfaces"][0]["heartbeat"].is_null());

        let flow = Flow::bulk(&guest);
        forged_notices_are_not_believed(&guest, &flow);
        guest.learn_nonce();
        malformed_notices_are_counted_and_ignored(&guest, &flow);
        named_without_heartbeat_is_offline(&guest, &flow);
        online_until_silence(&guest, &flow);
        another_epoch_is_offline(&guest, &flow);
        offline_notice(&guest, &flow);
        named_before_its_first_byte(&guest);
        ipv6(&guest);
        reinstallation_and_removal(&guest, &flow, &before);
    });
}

/// A network without a switch of ours, and somebody on it.
fn forged_notices_are_not_believed(guest: &Guest, flow: &Flow<'_>) {
    guest.send(flow.managed(7));
    let greeting = guest.keep_greeting(7);
    wait_until("forged notices", || guest.counter("unauthentic_notices") >= 10);
    flow.progress();
    assert_ne!(flow.cwnd(), ONLINE);
    assert!(guest.status()["interfaces"][0]["heartbeat"].is_null());
    drop(greeting);
}

fn malformed_notices_are_counted_and_ignored(guest: &Guest, flow: &Flow<'_>) {
    let good = guest.frame(&flow.managed(7));
    let unauthentic = guest.counter("unauthentic_notices");
    let broken = |at: usize, value: u8| {
        let mut frame = good;
        frame[at] = value;
        guest.send_frame(&frame);
    };
    // Not our magic: not ours to count.
    broken(14, 0);
    // Version, kind, family, IPv4 that is not mapped.
    broken(16, 2);
    broken(17, 9);
    broken(26, 5);
    broken(30, 1);
    // Epoch 0, and one of an older switch, without a nonce.
    guest.send(flow.managed(0));
    guest.send_frame(&good[..66]);
    wait_until("malformed notices", || guest.counter("malformed_notices") == 5);
    wait_until("the other", || guest.counter("unauthentic_notices") == unauthentic + 1);
    assert_eq!(guest.counter("managed_notices"), 0);
}

fn named_without_heartbeat_is_offline(guest: &Guest, flow: &Flow<'_>) {
    guest.send(flow.managed(7));
    wait_until("the notice", || guest.counter("managed_notices") == 1);
    flow.progress();
    assert_ne!(flow.cwnd(), ONLINE);
    assert_eq!(
        (guest.counter("flows_gone_online"), guest.status()["managed_flows"].as_u64()),
        (0, Some(0))
    );
}

fn online_until_silence(guest: &Guest, flow: &Flow<'_>) {
    let greeting = guest.keep_greeting(7);
    flow.wait_for_cwnd("online", |cwnd| cwnd == ONLINE);
    let status = guest.status();
    assert_eq!(status["managed_flows"], 1);
    assert_eq!(status["interfaces"][0]["heartbeat"]["epoch"], 7);
    drop(greeting);
    flow.wait_for_cwnd("its own window after silence", |cwnd| cwnd < ONLINE);
    assert_eq!(guest.status()["interfaces"][0]["heartbeat"]["valid"], false);
    assert!(guest.counter("flows_gone_offline") >= 1);
    let (heartbeats, online) =
        (guest.counter("heartbeat_notices"), guest.counter("flows_gone_online"));
    let lifetime = Duration::from_millis(200);
    guest.send(Notice::Managed { epoch: 7, lifetime, flow: flow.tuple });
    wait_until("online by the heartbeat in the notice", || {
        guest.counter("flows_gone_online") > online
    });
    flow.wait_for_cwnd("its own window after that", |cwnd| cwnd < ONLINE);
    assert_eq!(guest.counter("heartbeat_notices"), heartbeats);
}

fn another_epoch_is_offline(guest: &Guest, flow: &Flow<'_>) {
    let online_before = guest.counter("flows_gone_online");
    let _greeting = guest.keep_greeting(8);
    wait_until("the new epoch", || guest.status()["interfaces"][0]["heartbeat"]["epoch"] == 8);
    flow.progress();
    assert_ne!(flow.cwnd(), ONLINE);
    assert_eq!(guest.counter("flows_gone_online"), online_before);
    assert_eq!(guest.status()["managed_flows"], 0);
    guest.send(flow.managed(8));
    flow.wait_for_cwnd("online under the new epoch", |cwnd| cwnd == ONLINE);
}

fn offline_notice(guest: &Guest, flow: &Flow<'_>) {
    let _greeting = guest.keep_greeting(8);
    flow.wait_for_cwnd("online", |cwnd| cwnd == ONLINE);
    guest.send(Notice::Offline { epoch: 8, flow: flow.tuple });
    flow.wait_for_cwnd("offline by notice", |cwnd| cwnd < ONLINE);
    flow.progress();
    assert_ne!(flow.cwnd(), ONLINE);
}

/// What the switch should do: name the flow before the handshake's last segment reaches the guest.
fn named_before_its_first_byte(guest: &Guest) {
    let _greeting = guest.keep_greeting(9);
    wait_until("the epoch", || guest.status()["interfaces"][0]["heartbeat"]["epoch"] == 9);
    let listener = TcpListener::bind(format!("10.250.{}.1:0", guest.subnet)).unwrap();
    let host = listener.local_addr().unwrap();
    let port = 40_001;
    let from = SocketAddr::new(format!("10.250.{}.2", guest.subnet).parse().unwrap(), port);
    let named = guest.counter("managed_notices");
    guest.send(Notice::Managed { epoch: 9, lifetime: Duration::ZERO, flow: tuple(from, host) });
    wait_until("the notice", || guest.counter("managed_notices") == named + 1);
    guest.set_local_ports(port, port);
    let script = format!("sleep 100000 | nc {} {}", host.ip(), host.port());
    let job = guest.vm.agent().spawn(&["sh", "-c", &script]).unwrap();
    let connection = listener.accept().unwrap();
    guest.set_local_ports(32_768, 60_999);
    let info = guest.exec(&format!("ss -Htinm dport = :{}", host.port()));
    assert!(info.contains(&format!("cwnd:{ONLINE}")), "{info}");
    // The send buffer is at its largest from the start: tcp_wmem's third number.
    let largest = guest.exec("cat /proc/sys/net/ipv4/tcp_wmem");
    let largest = largest.split_whitespace().last().unwrap().to_owned();
    assert!(info.contains(&format!("tb{largest}")), "{info}");
    assert_eq!(guest.status()["managed_flows"], 1);
    guest.vm.agent().signal(&job, libc::SIGKILL).unwrap();
    drop(connection);
    wait_until("the entry goes with its flow", || guest.status()["managed_flows"] == 0);
}

fn ipv6(guest: &Guest) {
    let flow = Flow::open(guest, &format!("[fd00:{}::1]:0", guest.subnet), "cat /dev/zero");
    let _greeting = guest.keep_greeting(10);
    // One bit off: another flow.
    let other = Ipv6Addr::from_bits(flow.tuple.src.to_bits() ^ 1 << 64);
    let named = guest.counter("managed_notices");
    guest.send(Notice::Managed {
        epoch: 10,
        lifetime: Duration::ZERO,
        flow: FiveTuple { src: other, ..flow.tuple },
    });
    wait_until("the notice", || guest.counter("managed_notices") == named + 1);
    flow.progress();
    assert_ne!(flow.cwnd(), ONLINE);
    guest.send(flow.managed(10));
    flow.wait_for_cwnd("online over IPv6", |cwnd| cwnd == ONLINE);
}

fn reinstallation_and_removal(guest: &Guest, flow: &Flow<'_>, before: &str) {
    let greeting = guest.keep_greeting(11);
    guest.send(flow.managed(11));
    flow.wait_for_cwnd("online", |cwnd| cwnd == ONLINE);
    guest.exec("floodway-guest install --algorithm reno --interface eth0 --loss-probes off");
    assert_eq!(guest.status()["settings"]["algorithm"], "reno");
    assert_eq!(guest.status()["loss_probes"], "0");
    // The old programs hear nothing any more.
    flow.wait_for_cwnd("offline without a reader", |cwnd| cwnd < ONLINE);
    drop(greeting);
    let text = guest.exec("floodway-guest status");
    assert!(text.contains("registered: yes") && text.contains("eth0: "), "{text}");

    guest.exec("floodway-guest remove");
    assert_eq!(guest.default_congestion_control(), before);
    assert_eq!(guest.status()["registered"], false);
    assert_eq!(guest.status()["loss_probes"], "3");
    assert!(!guest.exec("tc filter show dev eth0 ingress").contains("bpf"));
    // Connections of before go on.
    flow.progress();
    guest.exec("floodway-guest remove");
    let refused = guest.vm.agent().exec(&["floodway-guest", "install", "--interface", "eth9"]);
    assert!(refused.unwrap_err().to_string().contains("no interface eth9"));
    assert_eq!(guest.status()["registered"], false);
}

/// The shadow algorithm alone, on a path with delay and loss made by the guest's own netem.
#[test]
fn plain_cuts_its_window_as_its_algorithm_says() {
    both_kernels(|guest, series| {
        let (algorithm, beta) = if series == Series::V6_1 { ("reno", 0.5) } else { ("cubic", 0.7) };
        let install =
            format!("floodway-guest install --plain --algorithm {algorithm} --initial-window 3");
        guest.exec(&install);
        assert_eq!(guest.status()["interfaces"].as_array().map(Vec::len), Some(0));
        let address = format!("10.250.{}.1:0", guest.subnet);
        let idle = Flow::open(&guest, &address, "sleep 100000");
        assert_eq!(idle.cwnd(), 3);
        drop(idle);

        guest.exec("tc qdisc add dev eth0 root netem delay 5ms limit 100000");
        // The receive window alone limits the flow; so slow start ends by itself, and nothing is lost.
        let flow = Flow::open(&guest, &address, "cat /dev/zero");
        let mut window = 0;
        wait_until("a steady window", || {
            flow.progress();
            std::mem::replace(&mut window, flow.cwnd()) == window
        });
        assert_eq!((flow.info("ssthresh"), window > 10), (None, true), "window {window}");

        guest.exec("tc qdisc change dev eth0 root netem delay 5ms limit 100000 loss 3%");
        wait_until("a loss", || flow.info("ssthresh").is_some());
        let ssthresh = flow.info("ssthresh").unwrap();
        assert!(ssthresh >= 2 && ssthresh as f64 <= window as f64 * beta, "{ssthresh} of {window}");
        // Under constant loss the window stays far below where it was.
        flow.progress();
        assert!(flow.cwnd() < window, "{} of {window}", flow.cwnd());

        guest.exec("tc qdisc change dev eth0 root netem delay 5ms limit 100000 loss 100%");
        flow.wait_for_cwnd("one segment after a timeout", |cwnd| cwnd == 1);
        guest.exec("tc qdisc change dev eth0 root netem delay 5ms limit 100000 loss 0%");
        flow.progress();
        let ssthresh = flow.info("ssthresh").unwrap();
        flow.wait_for_cwnd("growth beyond ssthresh", |cwnd| cwnd > ssthresh);
        guest.exec("floodway-guest remove");
    });
}

/// Those that have the default of before, and no other: what an application has chosen is its own.
#[test]
fn connections_that_are_older_than_the_module_use_it() {
    both_kernels(|guest, _| {
        let own = Flow::bulk(&guest);
        guest.exec("sysctl -w net.ipv4.tcp_congestion_control=reno");
        let older = Flow::bulk(&guest);
        let window = older.cwnd();
        guest.exec("floodway-guest install --loss-probes keep");
        assert_eq!(guest.counter("older_connections"), 1);
        assert!(older.info("cwnd").is_some_and(|cwnd| cwnd < ONLINE), "it had {window}");
        guest.learn_nonce();
        let _greeting = guest.keep_greeting(7);
        guest.send(own.managed(7));
        guest.send(older.managed(7));
        older.wait_for_cwnd("online", |cwnd| cwnd == ONLINE);
        own.progress();
        assert_ne!(own.cwnd(), ONLINE);
        guest.exec("floodway-guest remove");
        older.progress();
        assert_eq!(guest.default_congestion_control(), "reno");
    });
}

/// Whoever lacks something is told what.
#[test]
fn the_loader_says_what_is_missing() {
    let image = GuestImage::debian(Series::V6_1).unwrap();
    let config = Config::new("module-errors", &image);
    let vm = Vm::boot(config).unwrap();
    let error = |argv: &[&str]| format!("{:#}", vm.agent().exec(argv).unwrap_err());
    assert!(error(&["floodway-guest", "install"]).contains("no Ethernet device"));
    vm.agent().exec(&["mount", "-t", "tmpfs", "none", "/sys/kernel/btf"]).unwrap();
    assert!(error(&["floodway-guest", "install", "--plain"]).contains("CONFIG_DEBUG_INFO_BTF"));
}
