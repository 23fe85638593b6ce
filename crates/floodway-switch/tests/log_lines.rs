//! Log lines that front-ends and guests can cause. Alone in its process, whose log it counts.

#[path = "switch/net.rs"]
#[allow(dead_code)]
mod net;

use std::fmt::Debug;
use std::fs;
use std::net::Ipv6Addr;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, symlink};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use floodway_switch::config::{PortConfig, SocketMode};
use floodway_switch::testing::frames::{ipv6, mac};
use floodway_switch::testing::{Frontend, Guest, GuestConfig, message, wait_until};
use floodway_wire::MacAddr;
use floodway_wire::build::{Ip, Link};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use net::{Net, port};

/// Counts events that an operator's log shows.
struct Count;

static LINES: AtomicU64 = AtomicU64::new(0);
/// Lines that name a link-local address.
static ADDRESSES: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Lines that say why a port cannot connect.
static CONNECTS: Mutex<Vec<String>> = Mutex::new(Vec::new());

impl Visit for Count {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let text = format!("{value:?}");
        if field.name() != "message" {
            return;
        }
        if let Some((address, _)) = text.split_once(" is a link-local address") {
            let address = address.trim_start_matches("dropped: ").to_owned();
            ADDRESSES.lock().unwrap().push(address);
        } else if text.starts_with("cannot connect") {
            CONNECTS.lock().unwrap().push(text);
        }
    }
}

impl Subscriber for Count {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::INFO
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, event: &Event<'_>) {
        event.record(&mut Self);
        LINES.fetch_add(1, Ordering::Relaxed);
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// More than this many in a second are too many, after a burst of as many.
const FEW: u64 = 25;

/// Calls `outsider` many times; returns whether few lines were logged.
fn is_quiet(what: &str, mut outsider: impl FnMut()) {
    let (before, started) = (LINES.load(Ordering::Relaxed), Instant::now());
    (0..200).for_each(|_| outsider());
    let lines = LINES.load(Ordering::Relaxed) - before;
    assert!(lines <= FEW * (1 + started.elapsed().as_secs()), "{what}: {lines} lines");
}

#[test]
fn outsiders_cause_few_log_lines() {
    tracing::subscriber::set_global_default(Count).unwrap();
    let ips = vec![ipv6(5)];
    let checked = PortConfig { ips, ..port(5) };
    let client = PortConfig { mode: SocketMode::Client, ..port(6) };
    let net = Net::start((1..=4).map(port).chain([checked, client]).collect());

    let mut vm = net.boot(1, GuestConfig::default());
    let file = tempfile::tempfile().unwrap();
    is_quiet("requests that are refused", || {
        let frontend = vm.frontend();
        let ring = 0u64.to_ne_bytes();
        assert!(frontend.request(message::SET_VRING_CALL, &ring, &[file.as_raw_fd()]).is_err());
    });
    let silent = LINES.load(Ordering::Relaxed);
    // One that is quiet is still heard.
    drop(net.boot(2, GuestConfig::default()));
    wait_until("a line", || LINES.load(Ordering::Relaxed) >= silent + 2);

    is_quiet("connections", || {
        drop(Frontend::connect(&net.socket(3)));
    });

    let mut vm = net.boot(4, GuestConfig::default());
    is_quiet("rings that break", || {
        vm.guest = Guest::new(GuestConfig::default());
        vm.guest.pairs[0].tx.driver.set_avail_idx(1000);
        vm.guest.pairs[0].rx.driver.set_avail_idx(1000);
        let frontend = vm.frontend.as_mut().unwrap();
        frontend.set_up(&vm.guest).unwrap();
        vm.guest.pairs[0].tx.kick.write(1).unwrap();
    });

    a_refused_link_local_address_is_named_once(&net);
    what_keeps_a_port_from_connecting_is_logged_once(&net);
}

fn what_keeps_a_port_from_connecting_is_logged_once(net: &Net) {
    let diagnosis = || net.switch.as_ref().unwrap().operator().diagnose("vm6").unwrap();
    // Nobody listens there: that is nothing to log.
    let attempts = diagnosis().socket.attempts;
    wait_until("attempts", || diagnosis().socket.attempts > attempts + 2);
    assert_eq!(*CONNECTS.lock().unwrap(), [""; 0]);
    let path = net.socket(6);
    symlink(&path, &path).unwrap();
    wait_until("a problem", || diagnosis().socket.problem.is_some());
    let attempts = diagnosis().socket.attempts;
    wait_until("attempts", || diagnosis().socket.attempts > attempts + 2);
    let found = fs::symlink_metadata(&path).unwrap();
    let uid = rustix::process::geteuid().as_raw();
    let expected = format!(
        "cannot connect to {0} as uid {uid}: Too many levels of symbolic links (os error 40); \
         {0} is of uid {1}, gid {2}, mode 0777",
        path.display(),
        found.uid(),
        found.gid()
    );
    assert_eq!(*CONNECTS.lock().unwrap(), [expected]);
    // What is mended is connected to.
    fs::remove_file(&path).unwrap();
    let listener = net.listen(6);
    drop(Frontend::accept(&listener));
    wait_until("the problem to be over", || diagnosis().socket.problem.is_none());
}

fn a_refused_link_local_address_is_named_once(net: &Net) {
    let mut vm = net.boot(5, GuestConfig::default());
    let frame = |last| {
        let address = Ipv6Addr::new(0xfe80, 0, 0, 0, 1, 2, 3, last);
        let ip = Ip::new(address.into(), Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1).into());
        ip.frame(&Link::new(mac(5), MacAddr::BROADCAST), 59, b"nothing")
    };
    (0..50).for_each(|_| vm.send(&frame(4)));
    vm.send(&frame(5));
    wait_until("all dropped", || net.tx_drops(5, "spoofed_ip") == 51);
    assert_eq!(*ADDRESSES.lock().unwrap(), ["fe80::1:2:3:4", "fe80::1:2:3:5"]);
}
