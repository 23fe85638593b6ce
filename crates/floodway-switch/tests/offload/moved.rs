//! Connections follow a guest from the port of one host to that of another. What brokers say to each other is said by hand here.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read};
use std::net::{Ipv4Addr, Shutdown, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use floodway_core::offload::{Config as OffloadConfig, EarlyAck};
use floodway_process::channel::Channel;
use floodway_process::message::{FromDataPlane, FromPort, ToPort};
use floodway_process::sealed;
use floodway_switch::Switch;
use floodway_switch::api::control::FlowQuery;
use floodway_switch::api::status::PortState;
use floodway_switch::config::{Config, UplinkKind};
use floodway_switch::kept::WORD;
use floodway_switch::kept::flows::FORMAT;
use floodway_switch::kept::journal::{KeptJournal, budget, words};
use floodway_switch::state::supply::{Bell, DeviceSupply};
use floodway_switch::switch::{self, BrokerPort, BrokerUplink, Brokered, MoveStep};
use floodway_switch::testing::broker::pass_on;
use floodway_switch::testing::memory::memfd;
use floodway_switch::testing::message::SET_FEATURES;
use floodway_switch::testing::{Frontend, Guest, GuestConfig, wait, wait_until};
use floodway_switch::uplink::Device;
use floodway_switch::vhost::features;

use crate::netns;
use crate::scene::{Scene, act, config_with};
use crate::stopped::{expect_owed, owe, small};
use crate::{offload, transfer};

const ROOM: u64 = 32 << 20;

/// A switch, and what a broker has of it.
struct Host {
    switch: Switch,
    journal: OwnedFd,
    budget: u32,
    /// Front-ends for its port.
    frontends: mpsc::Sender<UnixStream>,
    /// The broker's end of the port's channel.
    channel: OwnedFd,
    said: Mutex<VecDeque<FromDataPlane>>,
}

impl Host {
    fn start(config: &Config, device: &str) -> Self {
        switch::prepare_confined(config).expect("prepared");
        let opened = Device::open(UplinkKind::Tap, device).expect("a device");
        netns::ip(&format!("link set {device} master br0"));
        let bell = Arc::new(Bell::new().expect("a bell"));
        let device = Arc::new(DeviceSupply::new(Some(opened), Arc::clone(&bell)));
        let budget = budget(&config.ports[0].offload);
        let journal = sealed::fixed("journal", (words(budget) * WORD) as u64).expect("memory");
        let (ours, theirs) = Channel::pair().expect("a channel");
        let port = BrokerPort {
            number: 0,
            instance: 1,
            channel: theirs.as_fd().try_clone_to_owned().expect("descriptors"),
            journal: Some(KeptJournal::open(&journal, budget).expect("a journal")),
        };
        drop::<Channel<FromPort, ToPort>>(theirs);
        let brokered = Brokered {
            ports: [(0, port)].into(),
            numbers: switch::numbers(config),
            uplinks: vec![BrokerUplink { number: 0, device }],
            counters: None,
            pairs: None,
            addresses: Vec::new(),
            turns: None,
            arrived: [].into(),
            awaits_guests: false,
        };
        let switch = Switch::start_behind_broker(config, brokered).expect("a switch");
        switch.speak_of_moves(bell);
        let (frontends, waiting) = mpsc::channel();
        let channel = ours.as_fd().try_clone_to_owned().expect("descriptors");
        thread::spawn(move || pass_on(&ours, &waiting));
        Self { switch, journal, budget, frontends, channel, said: Mutex::default() }
    }

    /// Its broker goes.
    fn lose_broker(&self) {
        let channel = self.channel.try_clone().expect("descriptors");
        UnixStream::from(channel).shutdown(Shutdown::Both).expect("a channel");
    }

    fn connect(&self) -> Frontend {
        let (ours, theirs) = UnixStream::pair().expect("sockets");
        self.frontends.send(theirs).expect("a broker");
        Frontend::new(ours)
    }

    /// The next thing that the switch says.
    fn hear(&self) -> FromDataPlane {
        wait("the switch to say something", || {
            let mut said = self.said.lock().expect("a lock");
            said.extend(self.switch.take_said());
            said.pop_front()
        })
    }

    fn follow(&self, step: MoveStep) {
        self.switch.follow_move(0, step);
    }

    fn flows(&self) -> Vec<String> {
        let flows = self.switch.operator().flows(&FlowQuery::default()).expect("flows").flows;
        flows.into_iter().map(|flow| flow.tx).collect()
    }

    fn counter(&self, name: &str) -> u64 {
        self.switch.operator().status().ports[0].offload.counters[name]
    }

    fn runs(&self) -> bool {
        self.switch.operator().status().ports[0].state == PortState::Running
    }

    /// Records in its journal of what is owed.
    fn owed(&self) -> usize {
        KeptJournal::open(&self.journal, self.budget).expect("a journal").adopt().1.len()
    }
}

/// The first host has the guest.
fn with_hosts(
    guest: GuestConfig,
    offload: &OffloadConfig,
    test: impl FnOnce(&[Host; 2], &Scene) + Send,
) {
    with_hosts_until_stopped(guest, offload, |_| (), test, |()| ());
}

/// As [`with_hosts`], with what `change` makes of the second one's configuration. `after` looks what has become of what `test` returns when the switches have stopped.
fn with_hosts_until_stopped<R: Send>(
    guest: GuestConfig,
    offload: &OffloadConfig,
    change: impl FnOnce(&mut Config) + Send,
    test: impl FnOnce(&[Host; 2], &Scene) -> R + Send,
    after: impl FnOnce(R) + Send,
) {
    netns::within(|| {
        let dirs = [0, 1].map(|_| tempfile::tempdir().expect("a directory"));
        netns::ip("link add br0 type bridge");
        netns::ip("link set br0 up");
        netns::ip("addr add 10.9.0.1/24 dev br0");
        let devices = ["fwo0", "fwo1"];
        let mut configs = [0, 1].map(|n| config_with(dirs[n].path(), offload.clone(), devices[n]));
        change(&mut configs[1]);
        let hosts = [0, 1].map(|n| Host::start(&configs[n], devices[n]));
        let guest = Guest::new(guest);
        let mut frontend = hosts[0].connect();
        frontend.set_up(&guest).expect("the switch takes the guest");
        let mut result = None;
        let test = |scene: &Scene| result = Some(test(&hosts, scene));
        act(guest, frontend, hosts[0].switch.operator(), test);
        hosts.into_iter().for_each(|host| host.switch.stop());
        after(result.expect("a result"));
    });
}

/// The guest of `scene` is about to move.
fn begin(scene: &Scene, moves: bool) {
    let mut frontend = scene.vm.frontend();
    let frontend = frontend.as_mut().expect("a front-end");
    frontend.set_log_base(&memfd(1 << 16), 1 << 16).expect("the switch takes the log");
    let negotiated = scene.vm.guest().config.features & !features::LOG_ALL;
    let features = if moves { negotiated | features::LOG_ALL } else { negotiated };
    frontend.request(SET_FEATURES, &features.to_ne_bytes(), &[]).expect("offered");
}

fn stop(scene: &Scene) {
    let mut frontend = scene.vm.frontend();
    let frontend = frontend.as_mut().expect("a front-end");
    for index in [0, 1] {
        frontend.get_vring_base(index).expect("the ring stops");
    }
}

/// The guest's connections have left `from`, and lie in a file of so many bytes.
fn leave(from: &Host, scene: &Scene) -> (OwnedFd, u64) {
    begin(scene, true);
    assert_eq!(from.hear(), FromDataPlane::Leaving { port: 0, leaving: true });
    let file = sealed::fixed("flows", ROOM).expect("memory");
    let into = file.try_clone().expect("descriptors");
    from.follow(MoveStep::Export { flows: FORMAT, file: into, bytes: ROOM });
    // A message behind it has been handled when the order has been followed.
    begin(scene, true);
    stop(scene);
    let FromDataPlane::Exported { port: 0, bytes, .. } = from.hear() else {
        panic!("not exported")
    };
    assert!(bytes > 0);
    (file, bytes)
}

/// The guest starts at `to`, with the rings that it has.
fn start(to: &Host, scene: &Scene) {
    let mut frontend = scene.vm.frontend();
    // The one before is gone.
    *frontend = None;
    let mut next = to.connect();
    next.set_up(&scene.vm.guest()).expect("the switch takes the guest");
    *frontend = Some(next);
}

/// The guest starts again where it is.
fn start_again(scene: &Scene) {
    let mut frontend = scene.vm.frontend();
    let again = frontend.as_mut().expect("a front-end").set_up(&scene.vm.guest());
    again.expect("the switch takes the guest");
}

/// Returns how many connections have come.
fn taken(to: &Host) -> u32 {
    match to.hear() {
        FromDataPlane::Imported { port: 0, taken: true, carried, .. } => carried,
        other => panic!("{other:?}"),
    }
}

fn move_guest(from: &Host, to: &Host, scene: &Scene) -> u32 {
    let (file, bytes) = leave(from, scene);
    to.follow(MoveStep::Arriving(true));
    to.follow(MoveStep::Import { file, bytes });
    start(to, scene);
    let carried = taken(to);
    from.follow(MoveStep::Released);
    carried
}

/// Under load in both directions, with the guest's bytes acknowledged early, too.
#[test]
fn connections_follow_a_guest_to_another_host_and_back() {
    for early_ack in [EarlyAck::Never, EarlyAck::Always] {
        let early_ack_min_rtt = Duration::ZERO;
        let offload = OffloadConfig { early_ack, early_ack_min_rtt, ..offload(true, true) };
        with_hosts(GuestConfig::default(), &offload, |hosts, scene| {
            let (mut guest, mut host) = scene.connection(false);
            let (mut guest_2, mut host_2) = scene.connection(false);
            let done = AtomicBool::new(false);
            thread::scope(|scope| {
                let _over = netns::SetWhenDropped(&done);
                scope.spawn(|| {
                    while !done.load(Relaxed) {
                        transfer(&mut guest, &mut host, 1_000_000);
                    }
                });
                scope.spawn(|| {
                    while !done.load(Relaxed) {
                        transfer(&mut host_2, &mut guest_2, 1_000_000);
                    }
                });
                for n in 0..6 {
                    let [from, to] = [&hosts[n % 2], &hosts[(n + 1) % 2]];
                    thread::sleep(Duration::from_millis(100));
                    assert_eq!(move_guest(from, to, scene), 2);
                    wait_until("the source to owe nothing", || from.owed() == 0);
                    assert!(from.flows().is_empty());
                    wait_until("both to be online", || to.flows() == ["ACTIVE", "ACTIVE"]);
                }
                done.store(true, Relaxed);
            });
            for host in hosts {
                for name in ["aborted", "early_acks_aborted", "adopted_broken", "went_offline"] {
                    assert_eq!(host.counter(name), 0, "{name}");
                }
            }
        });
    }
}

/// R1 over a move: what was acknowledged for the guest, and waited for it or was lost with its rings, is delivered at the other host.
#[test]
fn what_was_acknowledged_for_a_guest_is_delivered_at_the_other_host() {
    with_hosts(small(), &offload(true, true), |hosts, scene| {
        let (mut guest, mut host) = owe(scene);
        let [from, to] = hosts;
        let waiting = || from.switch.operator().status().ports[0].pending().0;
        let before = waiting();
        let (file, bytes) = leave(from, scene);
        assert!(from.owed() > 0 && from.flows().is_empty(), "owed, and set aside");
        // But for what has come since.
        assert!(waiting() < before, "it goes along, and does not follow as well");
        to.follow(MoveStep::Arriving(true));
        to.follow(MoveStep::Import { file, bytes });
        *scene.vm.guest() = Guest::new(small());
        start(to, scene);
        assert_eq!(taken(to), 1);
        assert!(to.owed() > 0, "in the journal before the guest runs");
        from.follow(MoveStep::Released);
        wait_until("the source to owe nothing", || from.owed() == 0);
        scene.vm.set_deaf(false);
        expect_owed(&mut guest);
        transfer(&mut guest, &mut host, 100_000);
        transfer(&mut host, &mut guest, 100_000);
        wait_until("nothing to be owed", || to.owed() == 0);
    });
}

/// The move fails after the guest was stopped: it goes on where it was, with all that it is owed.
#[test]
fn a_move_that_fails_after_the_stop_loses_nothing() {
    for stays_behind in [false, true] {
        with_hosts(small(), &offload(true, true), |hosts, scene| {
            let (mut guest, mut host) = owe(scene);
            let [from, _] = hosts;
            drop(leave(from, scene));
            if stays_behind {
                from.follow(MoveStep::StayBehind);
                wait_until("the flow to be back, and drained", || from.flows() == ["OFFLINE"]);
            }
            begin(scene, false);
            start_again(scene);
            if !stays_behind {
                assert_eq!(from.hear(), FromDataPlane::Leaving { port: 0, leaving: false });
            }
            from.follow(MoveStep::Released);
            scene.vm.set_deaf(false);
            expect_owed(&mut guest);
            wait_until("the flow to be online", || {
                transfer(&mut guest, &mut host, 10_000);
                from.flows() == ["ACTIVE"]
            });
            assert_eq!(from.counter("went_offline"), u64::from(stays_behind));
            assert_eq!(from.counter("aborted"), 0);
        });
    }
}

/// Without another host, and where nobody answers, it is as without a broker.
#[test]
fn a_port_whose_connections_nobody_takes_drains_by_itself() {
    with_hosts(GuestConfig::default(), &offload(true, true), |hosts, scene| {
        let (mut guest, mut host) = scene.connection(false);
        let [from, _] = hosts;
        for answers in [true, false] {
            wait_until("the flow to be online", || {
                transfer(&mut guest, &mut host, 10_000);
                from.flows() == ["ACTIVE"]
            });
            begin(scene, true);
            assert_eq!(from.hear(), FromDataPlane::Leaving { port: 0, leaving: true });
            if answers {
                from.follow(MoveStep::StayBehind);
            }
            wait_until("the drain", || from.flows() == ["OFFLINE"]);
            let file = sealed::fixed("flows", ROOM).expect("memory");
            from.follow(MoveStep::Export { flows: FORMAT, file, bytes: ROOM });
            stop(scene);
            begin(scene, false);
            let nothing = FromDataPlane::Exported { port: 0, online: 0, bytes: 0 };
            assert_eq!(from.hear(), nothing, "it is too late for that");
            start_again(scene);
        }
        begin(scene, true);
        assert_eq!(from.hear(), FromDataPlane::Leaving { port: 0, leaving: true });
        let file = sealed::fixed("flows", ROOM).expect("memory");
        from.follow(MoveStep::Export { flows: FORMAT + 1, file, bytes: ROOM });
        assert_eq!(from.hear(), FromDataPlane::Exported { port: 0, online: 0, bytes: 0 });
        wait_until("the drain", || from.flows() == ["OFFLINE"]);
    });
}

/// Rings wait for connections: until they come, or are not to be expected any more, or for as long as the switch has patience.
#[test]
fn rings_of_a_guest_that_arrives_wait_and_not_for_ever() {
    with_hosts(GuestConfig::default(), &offload(true, true), |hosts, scene| {
        let (mut guest, mut host) = scene.connection(false);
        transfer(&mut guest, &mut host, 100_000);
        let [from, to] = hosts;
        let (file, bytes) = leave(from, scene);
        to.follow(MoveStep::Arriving(true));
        // An order is followed before the next message.
        start(to, scene);
        assert!(!to.runs(), "it waits");
        to.follow(MoveStep::Import { file, bytes });
        assert_eq!(taken(to), 1);
        wait_until("the guest to run", || to.runs());
        from.follow(MoveStep::Released);
        transfer(&mut guest, &mut host, 100_000);
        // It goes back, and nothing comes with it.
        start(from, scene);
        for is_cancelled in [true, false] {
            stop(scene);
            from.follow(MoveStep::Arriving(true));
            start_again(scene);
            assert!(!from.runs(), "it waits");
            if is_cancelled {
                from.follow(MoveStep::Arriving(false));
            }
            wait_until("the guest to run", || from.runs());
            transfer(&mut guest, &mut host, 100_000);
        }
    });
}

/// What cannot be read is as if it had not come, and so is what comes when the guest runs already, or is not expected.
#[test]
fn what_comes_too_late_or_cannot_be_read_is_not_taken() {
    with_hosts(GuestConfig::default(), &offload(true, true), |hosts, scene| {
        let (mut guest, mut host) = scene.connection(false);
        transfer(&mut guest, &mut host, 100_000);
        let [from, to] = hosts;
        let (file, bytes) = leave(from, scene);
        let import = |bytes| {
            let file = file.try_clone().expect("descriptors");
            to.follow(MoveStep::Import { file, bytes });
            to.hear()
        };
        let refused = FromDataPlane::Imported { port: 0, taken: false, carried: 0, online: 0 };
        let later = || to.follow(MoveStep::Arriving(true));
        let frontend = to.connect();
        assert_eq!(import(bytes), refused, "nothing was expected");
        later();
        assert_eq!(import(bytes - 1), refused, "it has no end");
        later();
        drop(frontend);
        start(to, scene);
        assert!(to.runs(), "the front-end that was expected has gone");
        later();
        assert_eq!(import(bytes), refused, "the guest runs");
        from.follow(MoveStep::StayBehind);
        transfer(&mut guest, &mut host, 100_000);
    });
}

/// R1 where nobody will say whether the other host has what was acknowledged: the peer hears of it.
#[test]
fn what_is_set_aside_when_the_switch_stops_is_reset() {
    let test = |hosts: &[Host; 2], scene: &Scene| {
        let ends = owe(scene);
        drop(leave(&hosts[0], scene));
        ends
    };
    let after = |(_guest, mut host): (TcpStream, TcpStream)| {
        let error = host.read(&mut [0; 1]).expect_err("no end of what was sent");
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    };
    with_hosts_until_stopped(small(), &offload(true, true), |_| (), test, after);
}

/// Without a broker nobody says any more what becomes of a move: connections are back, and rings do not wait.
#[test]
fn a_port_that_loses_its_broker_goes_on_alone() {
    with_hosts(GuestConfig::default(), &offload(true, true), |hosts, scene| {
        let (mut guest, mut host) = scene.connection(false);
        transfer(&mut guest, &mut host, 100_000);
        let [from, to] = hosts;
        drop(leave(from, scene));
        to.follow(MoveStep::Arriving(true));
        start(to, scene);
        assert!(from.flows().is_empty() && !to.runs(), "set aside, and it waits");
        to.lose_broker();
        wait_until("the guest to run", || to.runs());
        from.lose_broker();
        wait_until("the connection to be back", || from.flows().len() == 1);
    });
}

/// Whoever may connect to this host is not believed more than a guest.
#[test]
fn connections_of_another_guest_are_not_taken() {
    let elsewhere =
        |config: &mut Config| config.ports[0].ips = vec![Ipv4Addr::new(10, 9, 0, 7).into()];
    let test = |hosts: &[Host; 2], scene: &Scene| {
        let (mut guest, mut host) = scene.connection(false);
        transfer(&mut guest, &mut host, 100_000);
        let [from, to] = hosts;
        let (file, bytes) = leave(from, scene);
        to.follow(MoveStep::Arriving(true));
        to.follow(MoveStep::Import { file, bytes });
        let refused = FromDataPlane::Imported { port: 0, taken: false, carried: 0, online: 0 };
        start(to, scene);
        assert_eq!(to.hear(), refused);
    };
    let offload = offload(true, true);
    with_hosts_until_stopped(GuestConfig::default(), &offload, elsewhere, test, |()| ());
}
