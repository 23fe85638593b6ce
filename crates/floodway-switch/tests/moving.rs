//! A VM that moves between two switches while a co-resident VM sends to it. Needs root and ip(8).

mod netns;

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use floodway_switch::Switch;
use floodway_switch::api::status::{L2Entry, Status, Way};
use floodway_switch::config::Config;
use floodway_switch::testing::frames::{mac, number_of, numbered};
use floodway_switch::testing::message::SEND_RARP;
use floodway_switch::testing::{Frontend, Guest, GuestConfig, wait, wait_until};
use floodway_wire::build::Link;
use floodway_wire::vnet::VnetHdr;
use floodway_wire::{MacAddr, arp};

/// Broadcasts that a VM may send each second.
const STORM_PPS: u32 = 3;

/// Two hosts with a port for VM 2 each; VM 1 is on the first.
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
                let name = format!("name = \"vm{n}\"\nmac = \"{}\"\n", mac(n));
                format!("[[port]]\n{name}socket = {socket:?}\nstorm_pps = {STORM_PPS}\n")
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

    fn status(&self, host: usize) -> Status {
        self.switches[host].status_source().status()
    }

    /// Where the first host believes VM 2 to be.
    fn place_of_vm(&self) -> Option<String> {
        let entry = |entry: &L2Entry| entry.mac == mac(2).to_string();
        self.status(0).l2.into_iter().find(entry).map(|entry| entry.port)
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

/// Sends numbered frames to VM 2 until `done`; answers how many.
fn send(mut guest: Guest, done: &AtomicBool) -> u32 {
    let mut number = 0;
    while !done.load(Ordering::Relaxed) {
        let frame = numbered(1, 2, number, 200);
        wait("room to transmit", || guest.send(0, &VnetHdr::default(), &frame).then_some(()));
        number += 1;
        if number.is_multiple_of(8) {
            thread::sleep(Duration::from_micros(200));
        }
    }
    wait_until("transmission", || guest.transmitting(0) == 0);
    number
}

/// Numbers of the frames that have come, until `enough` says so.
fn receive(guest: &mut Guest, numbers: &mut Vec<u32>, enough: impl Fn(&[u32]) -> bool) {
    wait_until("frames", || {
        while let Some((_, frame)) = guest.recv(0) {
            numbers.extend(number_of(&frame).filter(|_| frame[..6] == mac(2).0));
        }
        enough(numbers)
    });
}

fn leave(mut frontend: Frontend) {
    for index in [0, 1] {
        frontend.get_vring_base(index).expect("the ring stops");
    }
}

#[test]
fn a_vm_that_leaves_its_host_loses_nothing_and_nothing_overtakes() {
    netns::within(|| {
        let dir = tempfile::tempdir().expect("a directory");
        let hosts = Hosts::start(dir.path());
        let (a, mut b) = (Guest::new(GuestConfig::default()), Guest::new(GuestConfig::default()));
        let _a = hosts.attach(0, 1, &a);
        let at_first = hosts.attach(0, 0, &b);
        let done = AtomicBool::new(false);
        let mut numbers = Vec::new();
        thread::scope(|scope| {
            let sender = scope.spawn(|| send(a, &done));
            receive(&mut b, &mut numbers, |n| n.len() > 1000);
            leave(at_first);
            let waiting = || hosts.status(0).ports[0].pending().0;
            wait_until("frames to wait for the VM", || waiting() > 100);
            // It says nothing itself: its switch announces it.
            let _at_second = hosts.attach(1, 0, &b);
            let before = numbers.len();
            receive(&mut b, &mut numbers, |n| n.len() > before + 2000);
            done.store(true, Ordering::Relaxed);
            let sent = sender.join().expect("the sender");
            receive(&mut b, &mut numbers, |n| n.last() == Some(&(sent - 1)));
            assert!(numbers.iter().copied().eq(0..sent), "lost or out of order");
        });
        let ways: Vec<_> = hosts
            .status(0)
            .traffic
            .iter()
            .filter(|t| t.from == "vm1" || t.to == "up")
            .map(|t| t.by)
            .collect();
        assert!(ways.contains(&Way::Channel) && ways.contains(&Way::Uplink), "{ways:?}");
    });
}

#[test]
fn a_vm_that_arrives_is_reached_from_memory_to_memory_at_once_and_nothing_overtakes() {
    netns::within(|| {
        let dir = tempfile::tempdir().expect("a directory");
        let hosts = Hosts::start(dir.path());
        let (a, mut b) = (Guest::new(GuestConfig::default()), Guest::new(GuestConfig::default()));
        let _a = hosts.attach(0, 1, &a);
        let far = hosts.attach(1, 0, &b);
        wait("room to transmit", || b.send(0, &VnetHdr::default(), &announcement()).then_some(()));
        wait_until("the VM in the table", || hosts.place_of_vm().as_deref() == Some("up"));
        let done = AtomicBool::new(false);
        let mut numbers = Vec::new();
        thread::scope(|scope| {
            let sender = scope.spawn(|| send(a, &done));
            receive(&mut b, &mut numbers, |n| n.len() > 1000);
            leave(far);
            // What came there is no frame that was copied from guest to guest.
            receive(&mut b, &mut numbers, |_| true);
            let _near = hosts.attach(0, 0, &b);
            let before = numbers.len();
            // The first host may have sent some more the other way.
            receive(&mut b, &mut numbers, |n| n.len() > before + 1500);
            done.store(true, Ordering::Relaxed);
            let sent = sender.join().expect("the sender");
            receive(&mut b, &mut numbers, |n| n.last() == Some(&(sent - 1)));
            assert!(numbers.is_sorted_by(|a, b| a < b), "out of order or twice");
        });
        let channel =
            hosts.status(0).traffic.iter().any(|t| t.by == Way::Channel && t.packets >= 1000);
        assert!(channel, "{:?}", hosts.status(0).traffic);
    });
}

#[test]
fn a_vm_that_comes_again_and_again_is_announced_within_its_storm_limit() {
    netns::within(|| {
        let dir = tempfile::tempdir().expect("a directory");
        let hosts = Hosts::start(dir.path());
        let (mut a, mut b) =
            (Guest::new(GuestConfig::default()), Guest::new(GuestConfig::default()));
        let _a = hosts.attach(0, 1, &a);
        let announced = || hosts.status(1).uplinks[0].tx.packets;
        leave(hosts.attach(1, 0, &b));
        let at_second = hosts.attach(1, 0, &b);
        assert!(a.send(0, &VnetHdr::default(), &numbered(1, 2, 0, 200)));
        receive(&mut b, &mut Vec::new(), |numbers| numbers == [0]);
        assert_eq!(announced(), 0, "nothing had come for it: nobody knows it");
        leave(at_second);
        for _ in 0..40 {
            leave(hosts.attach(1, 0, &b));
        }
        wait_until("the VM in the table", || hosts.place_of_vm().as_deref() == Some("up"));
        // A second's worth at once, and more only as time goes by.
        assert!(announced() < 40, "{}", announced());
    });
}

#[test]
fn a_front_end_may_ask_for_the_announcement() {
    netns::within(|| {
        let dir = tempfile::tempdir().expect("a directory");
        let hosts = Hosts::start(dir.path());
        let guest = Guest::new(GuestConfig::default());
        let mut frontend = hosts.attach(1, 0, &guest);
        let mut send_rarp = |mac: MacAddr| {
            let mut payload = [0; 8];
            payload[..6].copy_from_slice(&mac.0);
            frontend.request(SEND_RARP, &payload, &[])
        };
        send_rarp(mac(1)).expect_err("another's address");
        send_rarp(MacAddr::BROADCAST).expect_err("no address");
        assert_eq!(hosts.place_of_vm(), None);
        send_rarp(mac(2)).expect("its own address");
        wait_until("the VM in the table", || hosts.place_of_vm().as_deref() == Some("up"));
    });
}

/// Not even before the gateway has sent its first frame, and not if its port may take addresses over.
#[test]
fn a_gateways_configured_address_is_no_guests() {
    netns::within(|| {
        let dir = tempfile::tempdir().expect("a directory");
        netns::add_veth();
        let [control, socket] = ["c.sock", "vm.sock"].map(|name| dir.path().join(name));
        let text = format!(
            "control = {control:?}\n[[port]]\nname = \"vm\"\nsocket = {socket:?}\nallow_mac_takeover = true\n\
             [[uplink]]\nname = \"up\"\nkind = \"packet\"\ndevice = \"v0\"\ngateway_macs = [\"{}\"]\n",
            mac(9)
        );
        let config = Config::parse(&text, Path::new("test")).expect("a good configuration");
        let switch = Switch::start(&config).expect("start the switch");
        let mut guest = Guest::new(GuestConfig::default());
        let _frontend = Frontend::attach(&socket, &guest);
        for source in [9, 1] {
            let frame = numbered(source, 7, 0, 200);
            wait("room", || guest.send(0, &VnetHdr::default(), &frame).then_some(()));
        }
        let status = || switch.status_source().status();
        let place = |n| {
            let entry = status().l2.into_iter().find(|entry| entry.mac == mac(n).to_string());
            entry.map(|entry| entry.port)
        };
        wait_until("the guest's own address", || place(1).as_deref() == Some("vm"));
        assert_eq!(place(9).as_deref(), Some("up"));
        wait_until("the drop", || status().ports[0].tx().drops["spoofed_mac"] == 1);
    });
}
