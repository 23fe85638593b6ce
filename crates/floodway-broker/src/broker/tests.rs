//! A broker whose data planes are this test: each is a process that does nothing, and its end of the channel.

mod moves;

use std::cell::RefCell;
use std::io::PipeWriter;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::thread::{self, JoinHandle};

use floodway_process::message::Setting;
use floodway_process::upgrade::{Program, Programs};

use super::*;
use crate::journal::Journal;
use crate::layout::Place;
use crate::port::{Past, PortThread, Source};
use crate::record::Limits;
use crate::supervision::LONGEST_PAUSE;

/// The format of connections that other programs read.
const FLOWS: u32 = 5;
/// Far beyond what anything here takes; only a failed test waits this long.
const PATIENCE: Duration = Duration::from_secs(30);

/// A data plane's end. Its process lives as long as this.
struct Plane {
    channel: Channel<FromDataPlane, ToDataPlane>,
    /// The program that was to be started, if it is another one.
    program: Option<String>,
    /// Its ends of ports' channels, while it lives.
    ports: RefCell<Vec<OwnedFd>>,
    _life: PipeWriter,
}

/// A running broker.
struct Scene {
    planes: Receiver<Plane>,
    changes: Arc<Changes>,
    settings: Arc<Settings>,
    upgrades: Arc<UpgradeControl>,
    stop: Option<UnixStream>,
    broker: Option<JoinHandle<Outcome>>,
}

fn layout(name: &str, ports: &[u64]) -> Layout {
    let place = |&instance: &u64| {
        let source =
            Source::Connect { path: PathBuf::from("/nobody"), describe: |_| String::new() };
        let limits = Limits::of_port(2);
        let thread =
            PortThread::start("p", source, limits, mpsc::channel().0, Past::none()).unwrap();
        let journal = Arc::new(Journal::new(7, 64).unwrap());
        let (number, name) = (instance as u16, "p".to_owned());
        Place { number, instance, name, vm: None, thread: Arc::new(thread), journal }
    };
    Layout {
        configuration: name.into(),
        ports: ports.iter().map(place).collect(),
        uplinks: Vec::new(),
    }
}

impl Scene {
    fn start() -> Self {
        Self::with(layout("old", &[1]), Moves::default())
    }

    fn with(layout: Layout, moves: Moves) -> Self {
        let (planes, started) = mpsc::channel();
        let (changes, settings) =
            (Arc::new(Changes::new().unwrap()), Arc::new(Settings::default()));
        let (stop, stopped) = UnixStream::pair().unwrap();
        let upgrades = Arc::new(UpgradeControl::new(Programs::default()).unwrap());
        let (stop, broker) = (Some(stop), None);
        let mut scene = Self { planes: started, changes, settings, upgrades, stop, broker };
        let (changes, settings) = (Arc::clone(&scene.changes), Arc::clone(&scene.settings));
        let upgrades = Arc::clone(&scene.upgrades);
        scene.broker = Some(thread::spawn(move || {
            let start = move |channel: OwnedFd, candidate: Option<&Candidate>| {
                let (input, life) = io::pipe()?;
                let channel = Channel::from(channel);
                channel.set_time_limit(Some(PATIENCE))?;
                let program = candidate.map(|candidate| candidate.program.binary.clone());
                let ports = RefCell::default();
                planes.send(Plane { channel, program, ports, _life: life }).unwrap();
                Command::new("cat").stdin(input).spawn()
            };
            let (_faults, heard) = mpsc::channel();
            let control = UnixStream::pair().unwrap().0;
            let mut broker = Broker {
                start: &start,
                layout: Transaction::new(layout),
                numbers: 9,
                control: control.as_fd(),
                uplink_numbers: 4,
                notices: &Notices::new().unwrap(),
                faults: &heard,
                on_event: &|_| {},
                stop: stopped.as_fd(),
                longest_pause: LONGEST_PAUSE,
                state: Vec::new(),
                settings: &settings,
                changes: &changes,
                store: Store::none(),
                past: None,
                upgrades: &upgrades,
                progress: Progress::default(),
                moves,
            };
            broker.run().unwrap()
        }));
        scene
    }

    /// The next data plane, and the configuration that it starts with, with the instances of its ports.
    fn next(&self) -> (Plane, String, Vec<u64>) {
        let plane = self.planes.recv_timeout(PATIENCE).unwrap();
        let (configuration, instances) = plane.take_all();
        plane.serve();
        (plane, configuration, instances)
    }

    /// Asks for an upgrade to `program`.
    fn upgrade(&self, program: &str) {
        let file = std::fs::File::open("/dev/null").unwrap().into();
        let program = Program::new("2", program);
        self.upgrades.ask(Candidate { program, flows: FLOWS, file }).unwrap();
    }

    /// Waits until the upgrade is over; returns why it failed.
    fn problem(&self) -> Option<String> {
        let deadline = Instant::now() + PATIENCE;
        while self.upgrades.state().is_running {
            assert!(Instant::now() < deadline);
            thread::sleep(Duration::from_millis(1));
        }
        self.upgrades.state().programs.upgrades.problem
    }
}

impl Plane {
    /// Takes everything up to the start.
    fn take_all(&self) -> (String, Vec<u64>) {
        let (mut configuration, mut instances) = (String::new(), Vec::new());
        loop {
            match recv(self) {
                (ToDataPlane::Configuration { bytes, numbers: 9, .. }, mut files) => {
                    configuration = text(files.pop().unwrap(), bytes);
                }
                (ToDataPlane::Port { instance, .. }, files) => {
                    instances.push(instance);
                    self.ports.borrow_mut().extend(files);
                }
                (ToDataPlane::Start, _) => break,
                _ => {}
            }
        }
        (configuration, instances)
    }

    fn serve(&self) {
        let confinement = floodway_process::message::Confinement::Full;
        self.say(&FromDataPlane::Ready { version: VERSION, confinement, carried: 3 });
    }

    fn say(&self, message: &FromDataPlane) {
        self.channel.send(message, &[]).unwrap();
    }

    /// Waits for `message`, and takes notes of programs that come before it.
    fn expect(&self, message: &ToDataPlane) {
        while let (found, _) = recv(self)
            && found != *message
        {
            assert!(matches!(found, ToDataPlane::Programs(_)), "{found:?}");
        }
    }

    /// Waits until it is to prepare a hand-over, for which it gets memory.
    fn expect_to_prepare(&self) {
        loop {
            match recv(self) {
                (ToDataPlane::PrepareHandOver { flows: FLOWS, bytes }, files) => {
                    assert!(files.len() == 1 && bytes > 0);
                    break;
                }
                (found, _) => assert!(matches!(found, ToDataPlane::Programs(_)), "{found:?}"),
            }
        }
    }

    /// Goes as far as a data plane of another program goes beside the one that runs.
    fn stand_by(&self) {
        loop {
            match recv(self).0 {
                ToDataPlane::StandBy { .. } => break,
                ToDataPlane::Port { .. } | ToDataPlane::State { .. } | ToDataPlane::Start => {
                    panic!("it is given what another one has")
                }
                _ => {}
            }
        }
        self.say(&FromDataPlane::StandsBy { version: VERSION });
    }
}

impl Scene {
    /// Asks for a change to a layout with the ports 1 and 2; returns what becomes of it.
    fn change(&self) -> JoinHandle<Result<(), NotChanged>> {
        let changes = Arc::clone(&self.changes);
        thread::spawn(move || changes.make(layout("new", &[1, 2]), vec!["settled".to_owned()]))
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(broker) = self.broker.take() {
            let ended = broker.join();
            assert!(ended.is_ok() || thread::panicking());
        }
    }
}

fn recv(plane: &Plane) -> (ToDataPlane, Vec<OwnedFd>) {
    match plane.channel.recv().unwrap() {
        Received::Message(message, descriptors) => (message, descriptors),
        other => panic!("{other:?}"),
    }
}

fn text(file: OwnedFd, bytes: u32) -> String {
    String::from_utf8(sealed::read(file, bytes as usize).unwrap()).unwrap()
}

/// Takes a change, which has to be complete: a new port and then the configuration. Returns its number.
fn take_change(plane: &Plane) -> u64 {
    let (port, channel) = recv(plane);
    let expected = ToDataPlane::Port { index: 1, number: 2, instance: 2, journal: 7 };
    assert_eq!((port, channel.len()), (expected, 2));
    match recv(plane) {
        (ToDataPlane::Change { number, bytes, .. }, mut files) => {
            assert_eq!(text(files.pop().unwrap(), bytes), "new");
            number
        }
        other => panic!("{other:?}"),
    }
}

fn remember(plane: &Plane, key: &str) {
    let setting = Setting { key: key.to_owned(), value: vec![1] };
    plane.channel.send(&FromDataPlane::Remember(setting), &[]).unwrap();
}

fn keys(scene: &Scene) -> Vec<String> {
    scene.settings.all().into_iter().map(|setting| setting.key).collect()
}

#[test]
fn a_change_that_is_made_is_in_force_and_settings_that_are_part_of_it_are_forgotten() {
    let scene = Scene::start();
    let (plane, configuration, ports) = scene.next();
    assert_eq!((configuration.as_str(), ports), ("old", vec![1]));
    remember(&plane, "settled");
    remember(&plane, "other");
    let change = scene.change();
    let number = take_change(&plane);
    // Made before the change.
    remember(&plane, "settled");
    plane.channel.send(&FromDataPlane::Changed { number, refusal: None }, &[]).unwrap();
    assert_eq!(change.join().unwrap(), Ok(()));
    assert_eq!(keys(&scene), ["other"]);
    drop(plane);
    let (_plane, configuration, ports) = scene.next();
    assert_eq!((configuration.as_str(), ports), ("new", vec![1, 2]));
}

#[test]
fn a_change_that_is_refused_changes_nothing() {
    let scene = Scene::start();
    let (plane, ..) = scene.next();
    remember(&plane, "settled");
    for round in 1..3 {
        let change = scene.change();
        let number = take_change(&plane);
        assert_eq!(number, round);
        let refusal = Some("no threads".to_owned());
        plane.channel.send(&FromDataPlane::Changed { number, refusal }, &[]).unwrap();
        let refused = Err(NotChanged::Refused("no threads".to_owned()));
        assert_eq!(change.join().unwrap(), refused);
    }
    assert_eq!(keys(&scene), ["settled"]);
    drop(plane);
    let (_plane, configuration, ports) = scene.next();
    assert_eq!((configuration.as_str(), ports), ("old", vec![1]));
}

#[test]
fn a_data_plane_that_dies_over_a_change_is_replaced_by_one_that_starts_with_it() {
    // Before it has looked, and when it has.
    for seen in [false, true] {
        let scene = Scene::start();
        let (plane, ..) = scene.next();
        let change = scene.change();
        if seen {
            take_change(&plane);
        } else {
            wait_for(&[plane.channel.as_fd()], Some(PATIENCE));
        }
        drop(plane);
        assert_eq!(change.join().unwrap(), Ok(()), "seen: {seen}");
        let (_plane, configuration, ports) = scene.next();
        assert_eq!((configuration.as_str(), ports), ("new", vec![1, 2]));
    }
}

#[test]
fn an_answer_to_no_change_or_to_another_ends_a_data_plane() {
    let scene = Scene::start();
    let (plane, ..) = scene.next();
    plane.channel.send(&FromDataPlane::Changed { number: 1, refusal: None }, &[]).unwrap();
    let (plane, configuration, _) = scene.next();
    assert_eq!(configuration, "old");
    let change = scene.change();
    let number = take_change(&plane) + 1;
    plane
        .channel
        .send(&FromDataPlane::Changed { number, refusal: Some("no".to_owned()) }, &[])
        .unwrap();
    assert_eq!(change.join().unwrap(), Ok(()));
    let (_plane, configuration, _) = scene.next();
    assert_eq!(configuration, "new");
}

#[test]
fn nobody_waits_for_a_change_of_a_switch_that_stops() {
    let scene = Scene::start();
    let (plane, ..) = scene.next();
    let change = scene.change();
    take_change(&plane);
    let changes = Arc::clone(&scene.changes);
    drop(scene);
    assert_eq!(change.join().unwrap(), Err(NotChanged::Stopping));
    assert_eq!(changes.make(layout("new", &[]), Vec::new()), Err(NotChanged::Stopping));
}

/// A switch whose upgrade to another program has come to the point where the data plane lets go.
fn handing_over() -> (Scene, Plane, Plane) {
    let scene = Scene::start();
    let (old, ..) = scene.next();
    assert_eq!(old.program, None);
    scene.upgrade("next");
    let new = scene.planes.recv_timeout(PATIENCE).unwrap();
    assert_eq!(new.program.as_deref(), Some("next"));
    new.stand_by();
    old.expect_to_prepare();
    old.say(&FromDataPlane::HandOverPrepared);
    old.expect(&ToDataPlane::HandOver);
    (scene, old, new)
}

#[test]
fn a_successor_gets_everything_when_the_data_plane_has_let_go_of_it() {
    let (mut scene, old, new) = handing_over();
    old.say(&FromDataPlane::HandedOver { online: 4 });
    assert_eq!(new.take_all().1, [1]);
    new.serve();
    let outcome = scene.broker.take().unwrap().join().unwrap();
    assert!(matches!(outcome, Outcome::Replaced(candidate) if candidate.program.binary == "next"));
    let programs = scene.upgrades.state().programs;
    assert_eq!(programs.data_plane.binary, "next");
    assert_eq!((programs.upgrades.count, programs.upgrades.problem), (1, None));
    assert_eq!((programs.upgrades.online, programs.upgrades.carried), (4, 3));
}

#[test]
fn a_change_waits_for_the_end_of_an_upgrade() {
    let (scene, old, new) = handing_over();
    let change = scene.change();
    wait_for(&[scene.changes.as_fd()], Some(PATIENCE));
    old.say(&FromDataPlane::HandedOver { online: 4 });
    let (configuration, ports) = new.take_all();
    // It starts with the layout that was in force at the hand-over.
    assert_eq!((configuration.as_str(), ports), ("", vec![1]));
    drop(new);
    let (_plane, configuration, ports) = scene.next();
    assert_eq!((configuration.as_str(), ports), ("new", vec![1, 2]));
    assert_eq!(change.join().unwrap(), Ok(()));
}

#[test]
fn a_data_plane_that_dies_over_its_hand_over_is_followed_by_its_successor() {
    let (_scene, old, new) = handing_over();
    drop(old);
    assert_eq!(new.take_all().1, [1]);
}

#[test]
fn a_successor_that_dies_after_that_is_followed_by_the_program_of_before() {
    let (scene, old, new) = handing_over();
    old.say(&FromDataPlane::HandedOver { online: 4 });
    new.take_all();
    drop(new);
    let (plane, ..) = scene.next();
    assert_eq!(plane.program, None);
    let problem = scene.problem().unwrap();
    assert!(problem.starts_with("the data plane of the new program did not start: "), "{problem}");
}

#[test]
fn a_successor_that_dies_before_that_changes_nothing() {
    for stands_by in [false, true] {
        let scene = Scene::start();
        let (old, ..) = scene.next();
        scene.upgrade("next");
        let new = scene.planes.recv_timeout(PATIENCE).unwrap();
        if stands_by {
            new.stand_by();
            old.expect_to_prepare();
        }
        drop(new);
        assert!(scene.problem().is_some());
        if stands_by {
            old.expect(&ToDataPlane::CancelHandOver);
        }
        // It goes on, and can be changed and upgraded.
        scene.upgrade("another");
        let new = scene.planes.recv_timeout(PATIENCE).unwrap();
        new.stand_by();
        old.expect_to_prepare();
    }
}

#[test]
fn a_successor_that_says_what_it_may_not_changes_nothing() {
    let wrong = [
        FromDataPlane::StandsBy { version: VERSION + 1 },
        FromDataPlane::HandedOver { online: 4 },
        FromDataPlane::Alive { count: 1 },
    ];
    let scene = Scene::start();
    let (_old, ..) = scene.next();
    for message in wrong {
        scene.upgrade("next");
        let new = scene.planes.recv_timeout(PATIENCE).unwrap();
        new.say(&message);
        assert!(scene.problem().is_some(), "{message:?}");
    }
}

#[test]
fn a_data_plane_that_hands_over_unasked_is_ended() {
    let scene = Scene::start();
    let (old, ..) = scene.next();
    // A late answer is no violation: the data plane cannot know that the upgrade was given up.
    old.say(&FromDataPlane::HandOverPrepared);
    old.say(&FromDataPlane::HandedOver { online: 4 });
    let (plane, ..) = scene.next();
    assert_eq!(plane.program, None);
}

#[test]
fn the_death_of_the_data_plane_before_it_lets_go_ends_the_upgrade() {
    let scene = Scene::start();
    let (old, ..) = scene.next();
    scene.upgrade("next");
    let new = scene.planes.recv_timeout(PATIENCE).unwrap();
    new.stand_by();
    old.expect_to_prepare();
    drop(old);
    let (plane, ..) = scene.next();
    assert_eq!(plane.program, None);
    let problem = scene.problem().unwrap();
    assert!(problem.starts_with("the data plane that was to be replaced ended: "), "{problem}");
}
