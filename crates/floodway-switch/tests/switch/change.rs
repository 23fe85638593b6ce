//! Ports that come, change and go while others move frames.

use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use floodway_switch::api::control::ControlError;
use floodway_switch::api::plan::Plan;
use floodway_switch::config::{Config, PortConfig};
use floodway_switch::testing::frames::{number_of, numbered};
use floodway_switch::testing::{Frontend, Guest, GuestConfig, wait_until};

use crate::net::{Net, Vm, port};

impl Net {
    /// Makes the switch what `edit` makes of its configuration.
    fn change(&self, edit: impl Fn(&mut Config)) -> Result<Plan, ControlError> {
        let operator = self.switch.as_ref().expect("the switch runs").operator();
        operator.reconfigure(&|running| Ok(edited(running, &edit)), false)
    }

    fn configuration(&self) -> Config {
        let operator = self.switch.as_ref().expect("the switch runs").operator();
        operator.configuration().unwrap()
    }

    /// A port for VM `n` with a socket in the directory of the others.
    fn new_port(&self, n: u8) -> PortConfig {
        let socket = self.config.control.with_file_name(format!("vm{n}.sock"));
        PortConfig { socket, ..port(n) }
    }

    /// A VM on the socket of VM `n`, which the configuration at the start did not have.
    fn boot_late(&self, n: u8) -> Vm {
        let guest = Guest::new(GuestConfig::default());
        let frontend = Some(Frontend::attach(&self.new_port(n).socket, &guest));
        Vm { n, guest, frontend }
    }
}

fn edited(running: &Config, edit: &impl Fn(&mut Config)) -> Config {
    let mut config = running.clone();
    edit(&mut config);
    config
}

fn remove(n: u8) -> impl Fn(&mut Config) {
    move |config| config.ports.retain(|port| port.name != format!("vm{n}"))
}

#[test]
fn a_port_that_is_added_works_and_one_that_is_removed_leaves_nothing() {
    let net = Net::of(2);
    let mut a = net.boot(1, GuestConfig::default());
    let plan = net.change(|config| config.ports.push(net.new_port(3))).unwrap();
    assert!(plan.to_string().starts_with("+ port vm3: "), "{plan}");
    let mut c = net.boot_late(3);
    for number in 0..100 {
        let frame = numbered(1, 3, number, 200);
        a.send(&frame);
        c.expect(&frame);
        let back = numbered(3, 1, number, 100);
        c.send(&back);
        a.expect(&back);
    }

    net.change(remove(3)).unwrap();
    assert!(!net.new_port(3).socket.exists());
    let status = net.status();
    assert_eq!(status.ports.len(), 2);
    let removed = &status.removed;
    assert_eq!((removed.ports, removed.rx.packets, removed.tx.packets), (1, 100, 100));
    assert!(status.l2.iter().all(|entry| entry.port != "vm3"), "{:?}", status.l2);
    a.send(&numbered(1, 3, 100, 200));
    wait_until("the drop of a frame to nobody", || net.tx_drops(1, "no_destination") == 1);
}

#[test]
fn no_frame_between_others_is_lost_while_ports_come_and_go() {
    const FRAMES: u32 = 20_000;
    let mut ports: Vec<_> = (1..=3).map(port).collect();
    ports[2].worker = 1;
    let net = Net::start(ports);
    let [mut a, mut b, mut c] = [1, 2, 3].map(|n| net.boot(n, GuestConfig::default()));
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let changes = scope.spawn(|| {
            let mut changes = 0;
            while !done.load(Ordering::Relaxed) {
                let config = |n| PortConfig { worker: usize::from(n % 2), ..net.new_port(n) };
                net.change(|all| all.ports.extend([4, 5].map(config))).unwrap();
                let vm = net.boot_late(4);
                net.change(remove(4)).unwrap();
                drop(vm);
                net.change(remove(5)).unwrap();
                changes += 3;
            }
            changes
        });
        for number in 0..FRAMES {
            let (to_b, to_c) = (numbered(1, 2, number, 64), numbered(2, 3, number, 64));
            a.send(&to_b);
            b.send(&to_c);
            assert_eq!(number_of(&b.recv().1), Some(number));
            assert_eq!(number_of(&c.recv().1), Some(number));
        }
        done.store(true, Ordering::Relaxed);
        assert!(changes.join().unwrap() > 0);
    });
    for n in 1..=3 {
        let port = net.port(n);
        assert_eq!((port.rx().dropped(), port.tx().dropped()), (0, 0), "VM {n}");
    }
}

#[test]
fn what_cannot_be_done_changes_nothing() {
    let net = Net::of(2);
    let before = net.configuration();
    let taken = net.new_port(9).socket;
    let _listener = UnixListener::bind(&taken).unwrap();
    // More often than there are numbers for ports.
    for _ in 0..100 {
        let error = net.change(|config| {
            config.ports.remove(0);
            config.ports.extend([3, 9].map(|n| net.new_port(n)));
        });
        let error = error.unwrap_err().to_string();
        assert!(
            error.starts_with(&format!("port \"vm9\": socket = \"{}\"", taken.display())),
            "{error}"
        );
        assert!(!net.new_port(3).socket.exists());
    }
    let nobody = |config: &mut Config| {
        let mut port = net.new_port(3);
        port.permissions.group = Some("no-such-group-here".into());
        config.ports.push(port);
    };
    let error = net.change(nobody).unwrap_err().to_string();
    assert!(
        error.contains("port \"vm3\".permissions") && error.contains("no-such-group-here"),
        "{error}"
    );
    let error = net.change(|config| config.workers.push(config.workers[0].clone()));
    assert_eq!(
        error.unwrap_err().to_string(),
        "cannot be changed while the switch runs: worker; restart it"
    );
    assert_eq!(net.configuration(), before);
    let [mut a, mut b] = [1, 2].map(|n| net.boot(n, GuestConfig::default()));
    let frame = numbered(1, 2, 0, 64);
    a.send(&frame);
    b.expect(&frame);
}

#[test]
fn there_is_room_for_64_ports() {
    let net = Net::of(1);
    net.change(|config| config.ports.extend((2..=64).map(|n| net.new_port(n)))).unwrap();
    assert_eq!(net.status().ports.len(), 64);
    let error = net.change(|config| config.ports.push(net.new_port(65))).unwrap_err();
    let expected = "64 ports are the most without a restart; restart the switch";
    assert_eq!(error, ControlError::Failed(expected.to_owned()));
    // One that goes makes room for itself.
    net.change(|config| config.ports[63].mtu = 900).unwrap();
    net.change(remove(64)).unwrap();
    net.change(|config| config.ports.push(net.new_port(65))).unwrap();
}

#[test]
fn settings_change_at_once_and_what_a_front_end_has_to_know_makes_it_connect_again() {
    let net = Net::of(2);
    let [mut a, mut b] = [1, 2].map(|n| net.boot(n, GuestConfig::default()));
    let plan = net.change(|config| {
        config.ports[0].storm_pps = 7;
        config.ports[1].offload.transmit = true;
    });
    let expected = "~ port vm1: storm_pps = 0 -> 7\n~ port vm2: offload.transmit = default -> true";
    assert_eq!(plan.unwrap().to_string(), expected);
    assert!(net.port(2).offload.transmit);
    let frame = numbered(1, 2, 0, 1000);
    a.send(&frame);
    b.expect(&frame);

    let plan = net.change(|config| config.ports[1].mtu = 500).unwrap();
    let expected = "~ port vm2: mtu = default -> 500 (its front-end connects again)";
    assert_eq!(plan.to_string(), expected);
    b.reconnect(&net);
    let small = numbered(1, 2, 1, 300);
    a.send(&frame);
    a.send(&small);
    b.expect(&small);
    assert_eq!(net.rx_drops(2, "oversize"), 1);
    assert!(net.port(2).offload.transmit, "settings of before hold");
}

#[test]
fn a_port_can_take_the_socket_and_the_address_of_one_that_goes() {
    let net = Net::of(2);
    let [mut a, b] = [1, 2].map(|n| net.boot(n, GuestConfig::default()));
    net.change(|config| config.ports[1].name = "other".into()).unwrap();
    assert_eq!(net.port(2).name, "other");
    let mut b = b;
    b.reconnect(&net);
    let frame = numbered(1, 2, 0, 64);
    a.send(&frame);
    b.expect(&frame);
}

/// Pseudo-random numbers (Knuth's MMIX generator): the same in every run.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }
}

/// One change, which may be none, or not be valid.
fn random_change(net: &Net, dice: &mut Dice, foreign: &Path, config: &mut Config) {
    let n = 3 + dice.roll(6) as u8;
    let known = config.ports.iter().position(|port| port.name == format!("vm{n}"));
    match (dice.roll(8), known) {
        (0..=2, None) => config.ports.push(net.new_port(n)),
        (3, None) => config.ports.push(PortConfig { socket: foreign.into(), ..net.new_port(n) }),
        (0, Some(at)) => drop(config.ports.remove(at)),
        (1, Some(at)) => config.ports[at].mtu = 1000 + dice.roll(500) as u16,
        (2, Some(at)) => config.ports[at].storm_pps = dice.roll(50) as u32,
        (3, Some(at)) => config.ports[at].offload.transmit ^= true,
        (4, Some(at)) => config.ports[at].inbound_weight = 1 + dice.roll(9) as u32,
        (5, Some(at)) => config.ports[at].socket = foreign.into(),
        (6, _) => config.l2.ageing *= 2,
        _ => config.ports.swap(0, 1),
    }
}

#[test]
fn after_a_thousand_random_changes_under_traffic_the_switch_is_as_a_fresh_one() {
    let net = Net::of(2);
    let [mut a, mut b] = [1, 2].map(|n| net.boot(n, GuestConfig::default()));
    let foreign = net.new_port(99).socket;
    let _listener = UnixListener::bind(&foreign).unwrap();
    let mut dice = Dice(1);
    let (mut made, mut refused) = (0, 0);
    for number in 0..1000 {
        let mut wanted = net.configuration();
        random_change(&net, &mut dice, &foreign, &mut wanted);
        let before = net.configuration();
        match net.change(|config| *config = wanted.clone()) {
            Ok(_) => made += 1,
            Err(_) => {
                // A port whose new socket is taken is as it was.
                assert_eq!(net.configuration(), before);
                refused += 1;
            }
        }
        let frame = numbered(1, 2, number, 64);
        a.send(&frame);
        b.expect(&frame);
    }
    assert!(made > 500 && refused > 50, "{made} made, {refused} refused");
    let last = net.configuration();
    drop((a, b));
    let mut net = net;
    net.config = last.clone();
    net.restart();
    assert_eq!(net.configuration(), last);
}
