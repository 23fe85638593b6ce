//! A data plane whose broker is the test: what it does when a guest moves to another host, or comes from one.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Child, Command};
use std::sync::mpsc;
use std::thread;

use floodway_process::channel::{Channel, Received};
use floodway_process::message::{FromDataPlane, FromPort, ToDataPlane, ToPort, VERSION};
use floodway_process::sealed;
use floodway_switch::kept::WORD;
use floodway_switch::kept::flows::FORMAT;
use floodway_switch::kept::journal::words;
use floodway_switch::testing::broker::pass_on;
use floodway_switch::testing::frames::mac;
use floodway_switch::testing::memory::memfd;
use floodway_switch::testing::message::SET_FEATURES;
use floodway_switch::testing::{Frontend, Guest, GuestConfig, HANG};
use floodway_switch::vhost::features;

const JOURNAL: u32 = 8 << 20;
const ROOM: u64 = 1 << 20;

struct Plane {
    process: Child,
    channel: Channel<ToDataPlane, FromDataPlane>,
    frontends: mpsc::Sender<UnixStream>,
    _directory: tempfile::TempDir,
}

impl Plane {
    /// One that serves a port whose offload is on, in its sandbox.
    fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let control = directory.path().join("control.sock");
        let text = format!(
            "control = {control:?}\n[[port]]\nname = \"vm1\"\nsocket = \"/unused\"\nmac = \"{}\"\n\
             [port.offload]\ntransmit = true\nreceive = true\n",
            mac(1)
        );
        let (channel, theirs) = Channel::<ToDataPlane, FromDataPlane>::pair().unwrap();
        channel.set_time_limit(Some(HANG)).unwrap();
        let stdin: OwnedFd = theirs.as_fd().try_clone_to_owned().unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_floodway"));
        command.args(["data-plane", "--name", "test", "--log", "warn"]);
        if rustix::process::geteuid().is_root() {
            command.args(["--uid", "65534", "--gid", "65534"]);
        }
        let process = command.env_clear().stdin(stdin).spawn().unwrap();
        drop(theirs);
        let (frontends, waiting) = mpsc::channel();
        let plane = Self { process, channel, frontends, _directory: directory };
        let control = UnixListener::bind(control).unwrap();
        control.set_nonblocking(true).unwrap();
        plane.equip(&text, &control.into(), waiting);
        let FromDataPlane::Ready { version: VERSION, .. } = plane.hear() else {
            panic!("it is not ready")
        };
        plane
    }

    fn equip(&self, text: &str, control: &OwnedFd, frontends: mpsc::Receiver<UnixStream>) {
        self.say(&ToDataPlane::Hello { version: VERSION, restarts: 0, last_end: None }, &[]);
        let configuration = sealed::seal("test", text.as_bytes()).unwrap();
        let bytes = text.len() as u32;
        let says = ToDataPlane::Configuration {
            bytes,
            numbers: 64,
            uplink_numbers: 16,
            uplinks: Vec::new(),
        };
        self.say(&says, &[&configuration]);
        self.say(&ToDataPlane::Control, &[control]);
        let (ours, theirs) = Channel::<ToPort, FromPort>::pair().unwrap();
        let journal = sealed::fixed("test", (words(JOURNAL) * WORD) as u64).unwrap();
        let port = ToDataPlane::Port { index: 0, number: 0, instance: 1, journal: JOURNAL };
        self.channel.send(&port, &[theirs.as_fd(), journal.as_fd()]).unwrap();
        self.say(&ToDataPlane::Start, &[]);
        thread::spawn(move || pass_on(&ours, &frontends));
    }

    fn say(&self, message: &ToDataPlane, files: &[&OwnedFd]) {
        let files: Vec<_> = files.iter().map(|file| file.as_fd()).collect();
        self.channel.send(message, &files).unwrap();
    }

    /// The next thing that it says, but for signs of life.
    fn hear(&self) -> FromDataPlane {
        loop {
            match self.channel.recv().unwrap() {
                Received::Message(FromDataPlane::Alive { .. }, _) => {}
                Received::Message(message, _) => return message,
                other => panic!("{other:?}"),
            }
        }
    }

    fn connect(&self) -> Frontend {
        let (ours, theirs) = UnixStream::pair().unwrap();
        self.frontends.send(theirs).unwrap();
        Frontend::new(ours)
    }
}

impl Drop for Plane {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn log(frontend: &mut Frontend, guest: &Guest, logs: bool) {
    frontend.set_log_base(&memfd(1 << 16), 1 << 16).unwrap();
    let negotiated = guest.config.features & !features::LOG_ALL;
    let features = if logs { negotiated | features::LOG_ALL } else { negotiated };
    frontend.request(SET_FEATURES, &features.to_ne_bytes(), &[]).unwrap();
}

fn stop(frontend: &mut Frontend) {
    for index in [0, 1] {
        frontend.get_vring_base(index).unwrap();
    }
}

/// In its sandbox it has all that this takes. The guest comes back to where it was.
#[test]
fn a_guest_leaves_and_comes_with_what_it_has_left_with() {
    let plane = Plane::start();
    let guest = Guest::new(GuestConfig::default());
    let mut frontend = plane.connect();
    frontend.set_up(&guest).unwrap();
    let leaving = |leaving| FromDataPlane::Leaving { port: 0, leaving };
    log(&mut frontend, &guest, true);
    assert_eq!(plane.hear(), leaving(true));
    log(&mut frontend, &guest, false);
    assert_eq!(plane.hear(), leaving(false), "it has thought better of it");
    log(&mut frontend, &guest, true);
    assert_eq!(plane.hear(), leaving(true));
    let file = sealed::fixed("flows", ROOM).unwrap();
    plane.say(&ToDataPlane::Export { port: 0, flows: FORMAT, bytes: ROOM }, &[&file]);
    stop(&mut frontend);
    let FromDataPlane::Exported { port: 0, online: 0, bytes } = plane.hear() else { panic!() };
    assert!(bytes > 0 && bytes < ROOM);
    plane.say(&ToDataPlane::Released { port: 0 }, &[]);
    plane.say(&ToDataPlane::Arriving { port: 0, arriving: true }, &[]);
    plane.say(&ToDataPlane::Import { port: 0, bytes }, &[&file]);
    // What comes before it has been heard then.
    plane.say(&ToDataPlane::Import { port: 7, bytes }, &[&file]);
    let nobody = FromDataPlane::Imported { port: 7, taken: false, carried: 0, online: 0 };
    assert_eq!(plane.hear(), nobody);
    log(&mut frontend, &guest, false);
    frontend.set_up(&guest).unwrap();
    let imported = |taken| FromDataPlane::Imported { port: 0, taken, carried: 0, online: 0 };
    assert_eq!(plane.hear(), imported(true));
    // Whatever it cannot use it answers, and goes on.
    plane.say(&ToDataPlane::Import { port: 0, bytes }, &[&file]);
    assert_eq!(plane.hear(), imported(false), "the guest runs");
}

/// What was under way with a broker that has gone is over: nobody waits for it.
#[test]
fn another_broker_ends_all_moves() {
    let plane = Plane::start();
    let guest = Guest::new(GuestConfig::default());
    let mut frontend = plane.connect();
    plane.say(&ToDataPlane::Arriving { port: 0, arriving: true }, &[]);
    plane.say(&ToDataPlane::Broker { pid: 1 }, &[]);
    frontend.set_up(&guest).unwrap();
    log(&mut frontend, &guest, true);
    assert_eq!(plane.hear(), FromDataPlane::Leaving { port: 0, leaving: true });
    plane.say(&ToDataPlane::Broker { pid: 2 }, &[]);
    let file = sealed::fixed("flows", ROOM).unwrap();
    plane.say(&ToDataPlane::Export { port: 0, flows: FORMAT, bytes: ROOM }, &[&file]);
    stop(&mut frontend);
    assert_eq!(plane.hear(), FromDataPlane::Exported { port: 0, online: 0, bytes: 0 });
    plane.say(&ToDataPlane::Import { port: 0, bytes: ROOM }, &[&file]);
    let says = plane.hear();
    assert!(matches!(says, FromDataPlane::Imported { taken: false, .. }), "{says:?}");
}
