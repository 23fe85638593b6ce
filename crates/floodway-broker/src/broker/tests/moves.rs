//! Two brokers in one process, with connections between them over the loopback interface, and data planes that are this test.

mod bounds;
mod strangers;

use std::cell::Cell;
use std::fs;
use std::io::Write;
use std::net::TcpListener;
use std::os::unix::net::UnixListener;

use floodway_process::message::{FromPort, ToPort};
use floodway_process::moves::{Move, Moves as Report};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use tempfile::TempDir;

use super::*;
use crate::migration::testing::Peer;
use crate::migration::{Files, Settings as MoveSettings, Trust};
use crate::vm::Vm;

/// The format of connections' state.
const FORMAT: u32 = 3;
/// Number of the port that VMs leave and come to.
const PORT: u16 = 1;
/// Bytes of state that the port takes: its journal is for 7 bytes.
const ROOM: u64 = (16 << 20) + 14;

/// An authority that makes certificates.
struct Authority {
    dir: TempDir,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Self {
        let dir = TempDir::new().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        // Two with one name would differ by their signatures alone.
        params.distinguished_name.push(DnType::CommonName, dir.path().to_str().unwrap());
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap();
        fs::write(dir.path().join("ca.pem"), certificate.pem()).unwrap();
        Self { dir, issuer: Issuer::new(params, key) }
    }

    /// What the host `name` has.
    fn trust(&self, name: &str) -> Trust {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let file = |name: String, text: String| {
            let path = self.dir.path().join(name);
            fs::write(&path, text).unwrap();
            path
        };
        Trust::Certificates(Files {
            certificate: file(format!("{name}.pem"), certificate.pem()),
            key: file(format!("{name}.key"), key.serialize_pem()),
            authorities: self.dir.path().join("ca.pem"),
        })
    }
}

/// A host: a broker with one port, and the data plane that it has started.
struct Host {
    // Dropped in this order: a broker that stops waits for its data plane.
    plane: Plane,
    scene: Scene,
    address: Option<std::net::SocketAddr>,
    thread: Arc<PortThread>,
    dir: TempDir,
    /// Moves that are over.
    moves: Cell<u32>,
}

fn vm() -> Vm {
    Vm { network: "red".to_owned(), mac: [2, 0, 0, 0, 0, 1] }
}

fn settings(trust: Trust, hosts: &[std::net::SocketAddr]) -> MoveSettings {
    let hosts = hosts.iter().map(|host| (host.ip().to_string(), host.port())).collect();
    let listen = Some("127.0.0.1:0".parse().unwrap());
    MoveSettings { listen, hosts, trust, flows: FORMAT }
}

impl Host {
    fn start(settings: MoveSettings) -> Self {
        let dir = TempDir::new().unwrap();
        let listener = UnixListener::bind(dir.path().join("vm.sock")).unwrap();
        let limits = Limits::of_port(2);
        let faults = mpsc::channel().0;
        let thread =
            PortThread::start("vm", Source::Listen(listener), limits, faults, Past::none());
        let thread = Arc::new(thread.unwrap());
        let mut layout = layout("old", &[]);
        layout.ports.push(Place {
            number: PORT,
            instance: 1,
            name: "vm".to_owned(),
            vm: Some(vm()),
            thread: Arc::clone(&thread),
            journal: Arc::new(Journal::new(7, 64).unwrap()),
        });
        let moves = Moves::start(settings).unwrap();
        let address = moves.address();
        let scene = Scene::with(layout, moves);
        let (plane, ..) = scene.next();
        live(&plane);
        Self { scene, plane, address, thread, dir, moves: Cell::new(0) }
    }

    fn address(&self) -> std::net::SocketAddr {
        self.address.unwrap()
    }

    /// A front-end whose VM waits to arrive.
    fn connect(&self) -> UnixStream {
        let front_end = UnixStream::connect(self.dir.path().join("vm.sock")).unwrap();
        self.until(|front_end| front_end.is_some());
        self.resume();
        front_end
    }

    /// Takes the front-end over, as a data plane does before its messages are passed on.
    fn resume(&self) {
        let channel = self.plane.ports.borrow()[0].try_clone().unwrap();
        let channel = Channel::<FromPort, ToPort>::from(channel);
        loop {
            match channel.recv().unwrap() {
                Received::Message(ToPort::Replayed { session }, _) => {
                    break channel.send(&FromPort::Resumed { session }, &[]).unwrap();
                }
                Received::Message(..) => {}
                other => panic!("{other:?}"),
            }
        }
    }

    /// Waits until its front-end is as it should be.
    fn until(&self, is_so: impl Fn(Option<(u32, bool)>) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !is_so(self.thread.front_end()) {
            assert!(Instant::now() < deadline);
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// The next message about a move.
    fn hear(&self) -> (ToDataPlane, Vec<OwnedFd>) {
        hear(&self.plane)
    }

    fn leave(&self) {
        self.plane.say(&FromDataPlane::Leaving { port: PORT, leaving: true });
    }

    fn stay(&self) {
        self.plane.say(&FromDataPlane::Leaving { port: PORT, leaving: false });
    }

    /// What came has been taken in, or cannot be.
    fn imported(&self, taken: bool) {
        let count = u32::from(taken);
        let imported = FromDataPlane::Imported { port: PORT, taken, carried: count, online: count };
        self.plane.say(&imported);
    }

    /// Reports until `is_so`; returns that.
    fn report(&self, is_so: impl Fn(&Report) -> bool) -> Report {
        loop {
            if let (ToDataPlane::Moves(report), _) = recv(&self.plane)
                && is_so(&report)
            {
                return report;
            }
        }
    }

    /// Takes the memory in which it is to leave its connections, and leaves `state` there.
    fn export(&self, state: &[u8]) {
        let (message, mut files) = self.hear();
        assert_eq!(message, ToDataPlane::Export { port: PORT, flows: FORMAT, bytes: ROOM });
        let file = fs::File::from(files.pop().unwrap());
        std::os::unix::fs::FileExt::write_all_at(&file, state, 0).unwrap();
        let bytes = state.len() as u64;
        self.plane.say(&FromDataPlane::Exported { port: PORT, online: 5, bytes });
    }
}

/// Lets the data plane give signs of life, until it has ended.
fn live(plane: &Plane) {
    let channel = plane.channel.as_fd().try_clone_to_owned().unwrap();
    let channel = Channel::<FromDataPlane, ToDataPlane>::from(channel);
    thread::spawn(move || {
        for count in 1.. {
            thread::sleep(Duration::from_millis(500));
            if channel.send(&FromDataPlane::Alive { count }, &[]).is_err() {
                break;
            }
        }
    });
}

fn hear(plane: &Plane) -> (ToDataPlane, Vec<OwnedFd>) {
    loop {
        match recv(plane) {
            (ToDataPlane::Moves(_) | ToDataPlane::Programs(_), _) => {}
            heard => return heard,
        }
    }
}

const ARRIVES: ToDataPlane = ToDataPlane::Arriving { port: PORT, arriving: true };
const ARRIVES_NOT: ToDataPlane = ToDataPlane::Arriving { port: PORT, arriving: false };
const STAYS: ToDataPlane = ToDataPlane::StayBehind { port: PORT };
const RELEASED: ToDataPlane = ToDataPlane::Released { port: PORT };

/// Two hosts of one authority; a VM leaves the first, and its front-end waits at the second.
struct Pair {
    source: Host,
    destination: Host,
    front_end: UnixStream,
}

impl Pair {
    fn start() -> Self {
        let authority = Authority::new();
        let destination = Host::start(settings(authority.trust("127.0.0.1"), &[]));
        let source =
            Host::start(settings(authority.trust("source.example"), &[destination.address()]));
        let front_end = destination.connect();
        Self { source, destination, front_end }
    }

    /// The VM leaves, and is expected.
    fn leave() -> Self {
        let pair = Self::start();
        pair.source.leave();
        assert_eq!(pair.destination.hear().0, ARRIVES);
        pair
    }

    /// Its connections have come, and the data plane has not answered.
    fn import(state: &[u8]) -> Self {
        let pair = Self::leave();
        pair.source.export(state);
        let (message, mut files) = pair.destination.hear();
        assert_eq!(message, ToDataPlane::Import { port: PORT, bytes: state.len() as u64 });
        assert_eq!(sealed::read(files.pop().unwrap(), state.len()).unwrap(), state);
        pair
    }
}

#[test]
fn connections_follow_a_vm_to_the_host_that_waits_for_it() {
    // More than one piece, and as much as there is room for.
    for bytes in [1, 200_000, ROOM] {
        let state: Vec<u8> = (0..bytes).map(|at| (at / 7) as u8).collect();
        let Pair { source, destination, front_end } = Pair::import(&state);
        destination.plane.say(&FromDataPlane::Imported {
            port: PORT,
            taken: true,
            carried: 4,
            online: 3,
        });
        assert_eq!(source.hear().0, RELEASED);
        let report = destination.report(|report| report.arrived == 1);
        let last = Move {
            number: 1,
            port: "vm".to_owned(),
            inward: true,
            host: "127.0.0.1".to_owned(),
            online: 5,
            carried: 3,
            problem: None,
        };
        assert_eq!(report, Report { arrived: 1, last: Some(last.clone()), ..Report::default() });
        let report = source.report(|report| report.left == 1);
        let host = destination.address().to_string();
        let last = Move { inward: false, host, ..last };
        assert_eq!(report, Report { left: 1, last: Some(last), ..Report::default() });
        drop(front_end);
    }
}

#[test]
fn connections_follow_a_vm_in_plain_text_if_both_hosts_say_so() {
    let destination = Host::start(settings(Trust::Plain, &[]));
    let source = Host::start(settings(Trust::Plain, &[destination.address()]));
    let _front_end = destination.connect();
    source.leave();
    assert_eq!(destination.hear().0, ARRIVES);
    source.export(b"state");
    assert_eq!(destination.hear().0, ToDataPlane::Import { port: PORT, bytes: 5 });
    destination.imported(true);
    assert_eq!(source.hear().0, RELEASED);
}

/// A VM leaves `source`; returns why its connections stay.
fn problem(source: &Host) -> String {
    source.leave();
    let (mut stays, mut problem) = (false, None);
    while !stays || problem.is_none() {
        match recv(&source.plane).0 {
            STAYS => stays = true,
            ToDataPlane::Moves(Report { last: Some(last), .. })
                if last.number > source.moves.get() =>
            {
                source.moves.set(last.number);
                problem = last.problem;
            }
            ToDataPlane::Moves(_) | ToDataPlane::Programs(_) => {}
            other => panic!("{other:?}"),
        }
    }
    problem.unwrap()
}

#[test]
fn a_vm_that_nobody_expects_stays_behind() {
    let authority = Authority::new();
    let trust = authority.trust("127.0.0.1");
    let destination = Host::start(settings(trust.clone(), &[]));
    let source = Host::start(settings(trust.clone(), &[destination.address()]));
    assert!(problem(&source).ends_with("port \"vm\" has no front-end"));
    let mut front_end = destination.connect();
    // `SET_VRING_KICK`, without a descriptor: the ring is polled.
    let message = [12, 1, 8, 0x100, 0].map(u32::to_ne_bytes).concat();
    front_end.write_all(&message).unwrap();
    destination.until(|front_end| front_end.is_some_and(|(_, started)| started));
    assert!(problem(&source).ends_with("port \"vm\" has a VM that runs or has run"));
    // One that cannot read the format, and one that listens nowhere.
    let other = MoveSettings { flows: FORMAT + 1, ..settings(trust.clone(), &[]) };
    let other = Host::start(other);
    let source = Host::start(settings(trust.clone(), &[other.address()]));
    assert!(
        problem(&source).ends_with("it takes version 4 of the format of connections, and not 3")
    );
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let source = Host::start(settings(trust.clone(), &[nobody]));
    assert!(problem(&source).contains(&nobody.to_string()));
    let source = Host::start(settings(trust, &[]));
    assert_eq!(problem(&source), "no other host is configured");
}

#[test]
fn the_one_of_many_hosts_that_waits_for_a_vm_takes_its_connections() {
    let authority = Authority::new();
    let trust = authority.trust("127.0.0.1");
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let others = [0, 1].map(|_| Host::start(settings(trust.clone(), &[])));
    let destination = Host::start(settings(trust.clone(), &[]));
    let _front_end = destination.connect();
    let mut hosts = vec![silent.local_addr().unwrap(), destination.address()];
    hosts.extend(others.iter().map(Host::address));
    let source = Host::start(settings(trust, &hosts));
    source.leave();
    assert_eq!(destination.hear().0, ARRIVES);
    source.export(b"state");
    assert_eq!(destination.hear().0, ToDataPlane::Import { port: PORT, bytes: 5 });
}

#[test]
fn a_host_that_says_nothing_keeps_no_vm_waiting() {
    // One that accepts, and one that says yes and no more.
    let authority = Authority::new();
    let trust = authority.trust("127.0.0.1");
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let source = Host::start(settings(trust.clone(), &[silent.local_addr().unwrap()]));
    let found = problem(&source);
    assert!(found.contains("did not answer in time"), "{found}");
    let peer = Peer::listen(&trust);
    let source = Host::start(settings(trust, &[peer.address()]));
    source.leave();
    let mut link = peer.accept();
    link.expect(FORMAT);
    link.agree();
    assert!(matches!(source.hear().0, ToDataPlane::Export { .. }));
    assert_eq!(source.hear().0, STAYS);
}

#[test]
fn a_vm_that_stays_after_all_keeps_its_connections() {
    let pair = Pair::leave();
    assert!(matches!(pair.source.hear().0, ToDataPlane::Export { .. }));
    pair.source.stay();
    assert_eq!(pair.destination.hear().0, ARRIVES_NOT);
    // Also when all of it is there already: the destination has to confirm that.
    let pair = Pair::import(b"state");
    pair.source.stay();
    assert_eq!(pair.destination.hear().0, ARRIVES_NOT);
    pair.destination.imported(false);
    let report = pair.source.report(|report| report.failed > 0);
    let problem = report.last.and_then(|last| last.problem);
    assert_eq!(problem.as_deref(), Some("the VM stays where it was"), "it waited in vain");
    // It can leave again.
    pair.source.leave();
    assert_eq!(pair.destination.hear().0, ARRIVES);
}

#[test]
fn a_vm_that_is_called_back_when_it_runs_over_there_is_at_home_there() {
    let pair = Pair::import(b"state");
    pair.source.stay();
    assert_eq!(pair.destination.hear().0, ARRIVES_NOT);
    // Said before that was heard.
    pair.destination.imported(true);
    assert_eq!(pair.source.hear().0, RELEASED);
    pair.destination.report(|report| report.arrived == 1 && report.arriving == 0);
}

#[test]
fn a_front_end_that_goes_takes_the_arrival_with_it() {
    let Pair { source, destination, front_end } = Pair::leave();
    assert!(matches!(source.hear().0, ToDataPlane::Export { .. }));
    drop(front_end);
    assert_eq!(destination.hear().0, ARRIVES_NOT);
    assert_eq!(source.hear().0, STAYS);
}

#[test]
fn what_a_data_plane_cannot_take_is_owed_where_it_came_from() {
    let pair = Pair::import(b"state");
    pair.destination.imported(false);
    assert_eq!(pair.source.hear().0, STAYS);
    let pair = Pair::leave();
    let exported = FromDataPlane::Exported { port: PORT, online: 1, bytes: 0 };
    assert!(matches!(pair.source.hear().0, ToDataPlane::Export { .. }));
    pair.source.plane.say(&exported);
    assert_eq!(pair.destination.hear().0, ARRIVES_NOT);
}

#[test]
fn the_death_of_a_data_plane_ends_what_it_had_and_nothing_else() {
    // At the source, before it has exported.
    let Pair { source, destination, front_end } = Pair::leave();
    drop(source.plane);
    assert_eq!(destination.hear().0, ARRIVES_NOT);
    let (plane, ..) = source.scene.next();
    // It says so again, as the front-end still wants writes to be noted.
    plane.say(&FromDataPlane::Leaving { port: PORT, leaving: true });
    assert_eq!(destination.hear().0, ARRIVES);
    assert!(matches!(hear(&plane).0, ToDataPlane::Export { .. }));
    // At the destination, while it waits: the next one waits, too.
    drop(destination.plane);
    let (next, ..) = destination.scene.next();
    assert_eq!(hear(&next).0, ARRIVES);
    drop(front_end);
}

#[test]
fn what_was_exported_goes_on_without_the_data_plane_that_wrote_it() {
    let Pair { source, destination, front_end } = Pair::import(b"state");
    drop(source.plane);
    let (plane, ..) = source.scene.next();
    destination.imported(true);
    assert_eq!(hear(&plane).0, RELEASED);
    drop(front_end);
}

#[test]
fn a_data_plane_that_dies_over_an_import_has_taken_nothing() {
    let Pair { source, destination, front_end } = Pair::import(b"state");
    drop(destination.plane);
    assert_eq!(source.hear().0, STAYS);
    drop(front_end);
}

#[test]
fn the_death_of_a_switch_ends_moves_at_the_other_one() {
    let Pair { source, destination, front_end } = Pair::leave();
    assert!(matches!(source.hear().0, ToDataPlane::Export { .. }));
    drop((source.plane, source.scene));
    assert_eq!(destination.hear().0, ARRIVES_NOT);
    drop(front_end);
    let Pair { source, destination, front_end } = Pair::leave();
    assert!(matches!(source.hear().0, ToDataPlane::Export { .. }));
    drop((destination.plane, destination.scene));
    assert_eq!(source.hear().0, STAYS);
    drop(front_end);
}

#[test]
fn a_connection_that_ends_after_the_state_has_come_takes_nothing_back() {
    let authority = Authority::new();
    let trust = authority.trust("127.0.0.1");
    let destination = Host::start(settings(trust.clone(), &[]));
    let _front_end = destination.connect();
    let mut link = Peer::connect(&trust, destination.address());
    link.ask(&vm(), FORMAT);
    assert_eq!(destination.hear().0, ARRIVES);
    link.send_state(5, b"state");
    assert_eq!(destination.hear().0, ToDataPlane::Import { port: PORT, bytes: 5 });
    drop(link);
    destination.imported(true);
    destination.report(|report| report.arrived == 1 && report.arriving == 0);
}

#[test]
fn a_data_plane_that_says_it_has_written_more_than_it_could_is_ended() {
    let pair = Pair::leave();
    assert!(matches!(pair.source.hear().0, ToDataPlane::Export { .. }));
    // Of no move, or of another stage: perhaps an answer that was under way.
    pair.source.plane.say(&FromDataPlane::Exported { port: PORT + 1, online: 1, bytes: ROOM + 1 });
    pair.source.imported(true);
    pair.source.plane.say(&FromDataPlane::Exported { port: PORT, online: 1, bytes: ROOM + 1 });
    let (_plane, ..) = pair.source.scene.next();
    assert_eq!(pair.destination.hear().0, ARRIVES_NOT);
}

#[test]
fn a_switch_that_knows_of_no_host_answers_at_once() {
    let scene = Scene::start();
    let (plane, ..) = scene.next();
    plane.say(&FromDataPlane::Leaving { port: PORT, leaving: true });
    assert_eq!(hear(&plane).0, STAYS);
}
