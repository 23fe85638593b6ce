//! Ports that come, change and go behind a broker, whatever happens to data planes.

mod networks;
mod random;

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use floodway_switch::Config;
use floodway_switch::api::control::manage_path;
use floodway_switch::api::edit::{Document, Kind};
use floodway_switch::config::PortConfig;
use floodway_switch::control::{ClientError, ControlClient};
use floodway_switch::testing::frames::{mac, number_of, numbered};
use floodway_switch::testing::{wait, wait_until};
use serde_json::{Value, json};

use crate::scene::{Scene, configure, descriptors, exchange, signal};

impl Scene {
    pub fn client(&self) -> ControlClient {
        ControlClient::new(&self.path("control.sock")).unwrap()
    }

    /// The configuration that runs, as the broker has it.
    fn configuration(&self) -> Config {
        Config::parse(&self.client().config().unwrap(), "running".as_ref()).unwrap()
    }

    /// The same, as the data plane has it.
    fn data_planes_configuration(&self) -> Config {
        let text = wait("the data plane", || self.client().get_bytes("/v1/config").ok());
        Config::parse(str::from_utf8(&text).unwrap(), "running".as_ref()).unwrap()
    }

    /// Makes the switch what `edit` makes of its configuration.
    fn change(&self, edit: impl FnOnce(&mut Config)) -> Result<String, String> {
        let mut config = self.configuration();
        edit(&mut config);
        self.apply(&config)
    }

    fn apply(&self, config: &Config) -> Result<String, String> {
        let plan = self.client().apply(&toml::to_string(config).unwrap(), false);
        plan.map(|plan| plan.to_string()).map_err(|error| error.to_string())
    }

    /// A port for VM `n` with a socket beside those of the others.
    fn new_port(&self, n: u8) -> PortConfig {
        let socket = self.path(&format!("vm{n}.sock"));
        PortConfig { mac: Some(mac(n)), storm_pps: 0, ..PortConfig::new(format!("vm{n}"), socket) }
    }

    fn json(&self) -> Value {
        wait("a status", || self.status())
    }

    /// Kills the data plane that there is now, if there is one.
    fn kill_whoever_serves(&self) {
        let broker = self.broker.id();
        let children = fs::read_to_string(format!("/proc/{broker}/task/{broker}/children"));
        for child in children.unwrap().split_whitespace() {
            signal(child.parse().unwrap(), libc::SIGKILL);
        }
    }
}

pub fn keys(value: Value) -> Document {
    match value {
        Value::Object(keys) => keys,
        other => panic!("{other}"),
    }
}

fn remove(n: u8) -> impl Fn(&mut Config) {
    move |config| config.ports.retain(|port| port.name != format!("vm{n}"))
}

fn names(status: &Value) -> BTreeSet<String> {
    let ports = status["ports"].as_array().unwrap().iter();
    ports.map(|port| port["name"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_port_that_is_added_works_and_one_that_is_removed_leaves_nothing() {
    let scene = Scene::start();
    let mut a = scene.boot(1);
    let cycle = |a: &mut _, number| {
        let plan = scene.change(|config| config.ports.push(scene.new_port(3))).unwrap();
        assert!(plan.starts_with("+ port vm3: "), "{plan}");
        let mut c = scene.boot(3);
        exchange(a, &mut c, number);
        scene.change(remove(3)).unwrap();
        assert!(!scene.path("vm3.sock").exists());
        wait_until("the front-end to be disconnected", || c.frontend.is_closed());
    };
    // What the first one makes for good is less than what all would leave behind.
    let before = descriptors(&scene.broker);
    (0..20).for_each(|number| cycle(&mut a, number));
    wait_until("everything to be let go", || descriptors(&scene.broker) < before + 20);
    let check = || {
        let status = scene.json();
        assert_eq!(names(&status), BTreeSet::from(["vm1".into(), "vm2".into()]));
        let removed = &status["removed"];
        assert_eq!(removed["ports"], 20);
        assert_eq!(
            (&removed["rx"]["packets"], &removed["tx"]["packets"]),
            (&20.into(), &20.into())
        );
        assert!(!status["l2"].to_string().contains("vm3"), "{}", status["l2"]);
    };
    check();
    scene.kill_whoever_serves();
    wait_until("the next one", || scene.json()["switch"]["predecessors"]["count"] == 1);
    check();
}

#[test]
fn ports_that_came_and_changed_outlive_a_data_plane_with_their_front_ends_and_counters() {
    let scene = Scene::start();
    let (mut a, mut b) = (scene.boot(1), scene.boot(2));
    scene.change(|config| config.ports.push(scene.new_port(3))).unwrap();
    scene.change(remove(1)).unwrap();
    wait_until("the front-end to be disconnected", || a.frontend.is_closed());
    // It gets the number that was free for longest, and not that of the other.
    scene.change(|config| config.ports.insert(0, scene.new_port(1))).unwrap();
    a = scene.boot(1);
    let mut c = scene.boot(3);
    for number in 0..10 {
        exchange(&mut c, &mut b, number);
        exchange(&mut a, &mut c, number);
    }
    let counted = || {
        let status = scene.json();
        let ports = status["ports"].as_array().unwrap();
        let packets = |port: &Value| {
            let queue = &port["queues"][0];
            let packets = |way: &str| queue[way]["packets"].as_u64().unwrap();
            (port["name"].as_str().unwrap().to_owned(), packets("rx"), packets("tx"))
        };
        ports.iter().map(packets).collect::<Vec<_>>()
    };
    let expected = [("vm1", 10, 10), ("vm2", 10, 10), ("vm3", 20, 20)]
        .map(|(name, n, m)| (name.to_owned(), n, m));
    assert_eq!(counted(), expected);
    scene.kill_data_plane();
    let after = counted();
    for (after, before) in after.iter().zip(&expected) {
        assert!(after.1 >= before.1 && after.2 >= before.2, "{after:?} after {before:?}");
    }
    for number in 10..20 {
        exchange(&mut c, &mut b, number);
        exchange(&mut a, &mut c, number);
    }
}

#[test]
fn no_frame_between_others_is_lost_while_ports_come_and_go() {
    const FRAMES: u32 = 5000;
    let scene = Scene::start();
    let (mut a, mut b) = (scene.boot(1), scene.boot(2));
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let changes = scope.spawn(|| {
            let mut changes = 0;
            while !done.load(Ordering::Relaxed) {
                scene.change(|all| all.ports.extend([4, 5].map(|n| scene.new_port(n)))).unwrap();
                let vm = scene.boot(4);
                scene.change(remove(4)).unwrap();
                drop(vm);
                scene.change(remove(5)).unwrap();
                changes += 3;
            }
            changes
        });
        for number in 0..FRAMES {
            a.send(&numbered(1, 2, number, 64));
            let frame = wait("a frame", || b.guest.recv(0)).1;
            assert_eq!(number_of(&frame), Some(number));
        }
        done.store(true, Ordering::Relaxed);
        assert!(changes.join().unwrap() > 0);
    });
    let status = scene.json();
    for port in 0..2 {
        let drops = &status["ports"][port]["queues"][0]["rx"]["drops"];
        assert!(drops.as_object().unwrap().values().all(|n| *n == 0), "{drops}");
    }
}

#[test]
fn what_cannot_be_done_changes_nothing() {
    let scene = Scene::start();
    let (mut a, mut b) = (scene.boot(1), scene.boot(2));
    let before = scene.configuration();
    let taken = scene.path("taken.sock");
    let _listener = UnixListener::bind(&taken).unwrap();
    let open = descriptors(&scene.broker);
    // More often than there are numbers for ports.
    for _ in 0..100 {
        let error = scene.change(|config| {
            config.ports.remove(0);
            config.ports.push(scene.new_port(3));
            config.ports.push(PortConfig { socket: taken.clone(), ..scene.new_port(9) });
        });
        let expected = format!("port \"vm9\": socket = \"{}\": a live process", taken.display());
        let error = error.unwrap_err();
        assert!(error.starts_with(&expected), "{error}");
        assert!(!scene.path("vm3.sock").exists());
    }
    let error = scene.change(|config| {
        config.ports[0].permissions.mode = 0o600;
        config.ports[1].permissions.group = Some("no-such-group-here".into());
    });
    let error = error.unwrap_err();
    assert!(error.contains("\"vm2\".permissions") && error.contains("no-such-group"), "{error}");
    let mode = |n| fs::metadata(scene.path(&format!("vm{n}.sock"))).unwrap().permissions().mode();
    assert_eq!(mode(1) & 0o777, 0o660, "what was changed was changed back");
    let error = scene.change(|config| config.workers.push(config.workers[0].clone()));
    let expected = "cannot be changed while the switch runs: worker; restart it";
    assert_eq!(error.unwrap_err(), expected);
    assert_eq!(scene.configuration(), before);
    assert_eq!(scene.data_planes_configuration(), before);
    wait_until("everything to be let go", || descriptors(&scene.broker) <= open);
    // A dry run says what it would do.
    let plan = scene.client().delete(Kind::Port, "vm1", true).unwrap();
    assert_eq!(plan.to_string(), "- port vm1");
    exchange(&mut a, &mut b, 0);
}

/// A switch whose processes may have so many descriptors each.
fn start_limited(descriptors: u32) -> Scene {
    let directory = tempfile::tempdir().unwrap();
    configure(directory.path(), "control.sock", "");
    let floodway = env!("CARGO_BIN_EXE_floodway");
    let script = format!("ulimit -n {descriptors} && exec {floodway} run --config switch.toml");
    let mut command = Command::new("sh");
    command.args(["-c", &script]).env_remove("FLOODWAY_LOG").current_dir(directory.path());
    let scene = Scene { broker: command.spawn().unwrap(), directory };
    scene.json();
    scene
}

#[test]
fn there_is_room_for_64_ports_and_for_each_that_takes_the_place_of_another() {
    // With fewer the broker refuses them for that reason. Root may have more than its limit says.
    let raise = Command::new("sh").args(["-c", "ulimit -n 25000"]).status().unwrap();
    if !raise.success() {
        eprintln!("skipped: a process may not have 25 000 descriptors here");
        return;
    }
    let scene = start_limited(25_000);
    scene.change(|config| config.ports.extend((3..=64).map(|n| scene.new_port(n)))).unwrap();
    assert_eq!(names(&scene.json()).len(), 64);
    let error = scene.change(|config| config.ports.push(scene.new_port(65))).unwrap_err();
    assert_eq!(error, "64 ports are the most without a restart; restart the switch");
    scene.change(|config| config.ports[63].mtu = 900).unwrap();
    scene.kill_whoever_serves();
    scene.change(remove(64)).unwrap();
    scene.change(|config| config.ports.push(scene.new_port(65))).unwrap();
    assert_eq!(scene.data_planes_configuration(), scene.configuration());
}

#[test]
fn settings_change_at_once_and_what_a_front_end_has_to_know_makes_it_connect_again() {
    let scene = Scene::start();
    let (mut a, mut b) = (scene.boot(1), scene.boot(2));
    let plan = scene.change(|config| {
        config.ports[0].storm_pps = 7;
        config.ports[1].offload.transmit = true;
    });
    let expected = "~ port vm1: storm_pps = 0 -> 7\n~ port vm2: offload.transmit = default -> true";
    assert_eq!(plan.unwrap(), expected);
    exchange(&mut a, &mut b, 0);
    let change = keys(json!({ "mtu": 500 }));
    let plan = scene.client().patch(Kind::Port, "vm2", &change, false).unwrap().to_string();
    assert_eq!(plan, "~ port vm2: mtu = default -> 500 (its front-end connects again)");
    wait_until("the front-end to be disconnected", || b.frontend.is_closed());
    // The socket is the same all the time.
    let mut b = scene.boot(2);
    let (large, small) = (numbered(1, 2, 1, 1000), numbered(1, 2, 2, 300));
    a.send(&large);
    a.send(&small);
    let frame = wait("a frame", || b.guest.recv(0)).1;
    assert_eq!(number_of(&frame), Some(2), "the other is too large now");
    assert!(!a.frontend.is_closed());
    // Another port takes the socket and the address of one that goes.
    scene.change(|config| config.ports[1].name = "other".into()).unwrap();
    wait_until("the front-end to be disconnected", || b.frontend.is_closed());
    let mut b = scene.boot(2);
    a.send(&small);
    b.expect(&small);
    // Two ports change places.
    scene
        .change(|config| {
            let [one, two] = config.ports.get_disjoint_mut([0, 1]).unwrap();
            std::mem::swap(&mut one.socket, &mut two.socket);
        })
        .unwrap();
    wait_until("both to be disconnected", || a.frontend.is_closed() && b.frontend.is_closed());
    assert_eq!(scene.data_planes_configuration(), scene.configuration());
}

#[test]
fn rights_of_a_socket_that_stays_are_changed_and_a_socket_that_was_removed_comes_back() {
    let scene = Scene::start();
    let access = |n| {
        let metadata = fs::metadata(scene.path(&format!("vm{n}.sock"))).unwrap();
        (std::os::unix::fs::MetadataExt::uid(&metadata), metadata.permissions().mode() & 0o777)
    };
    let rights = json!({ "permissions": { "owner": "65534", "mode": "0600" } });
    scene.client().patch(Kind::Port, "vm1", &keys(rights), false).unwrap();
    assert_eq!((access(1), access(2)), ((65534, 0o600), (0, 0o660)));
    scene.client().patch(Kind::Port, "vm1", &keys(json!({ "permissions": null })), false).unwrap();
    assert_eq!(access(1), (0, 0o660));
    fs::remove_file(scene.path("vm1.sock")).unwrap();
    scene.client().patch(Kind::Port, "vm1", &keys(json!({ "mtu": 1400 })), false).unwrap();
    assert_eq!(access(1), (0, 0o660));
    drop(scene.boot(1));
}

#[test]
fn settings_made_at_run_time_are_part_of_a_change_and_do_not_come_back_after_it() {
    let scene = Scene::start();
    let _vms = (scene.boot(1), scene.boot(2));
    let file = scene.configuration();
    assert!(scene.output(&["offload", "vm1", "--transmit", "on"]).status.success());
    assert!(scene.output(&["inbound", "--capacity", "1000"]).status.success());
    let transmits = || scene.json()["ports"][0]["offload"]["transmit"] == true;
    scene.change(|config| config.ports.push(scene.new_port(3))).unwrap();
    assert!(scene.configuration().ports[0].offload.transmit);
    scene.kill_data_plane();
    assert!(transmits());
    assert_eq!(scene.data_planes_configuration(), scene.configuration());
    // The file says otherwise.
    scene.apply(&file).unwrap();
    assert!(!transmits());
    scene.kill_data_plane();
    assert!(!transmits());
    assert_eq!((scene.configuration(), scene.data_planes_configuration()), (file.clone(), file));
}

/// Lets the data plane send `datagram` to its broker; returns what the broker ends it for.
#[cfg(target_arch = "x86_64")]
fn end_of_one_that_says(scene: &Scene, datagram: &[u8]) -> String {
    let process = scene.data_plane();
    let mut tracee = crate::trace::Tracee::attach(process);
    let at = tracee.push(datagram);
    tracee.last_call(libc::SYS_write, [0, at, datagram.len() as i64]);
    wait_until("another one", || scene.json()["switch"]["pid"] != process);
    let status = scene.json();
    status["switch"]["predecessors"]["last_end"].as_str().unwrap().to_owned()
}

#[cfg(target_arch = "x86_64")]
#[test]
fn a_data_plane_that_asks_for_a_change_or_answers_none_is_ended() {
    let scene = Scene::start();
    let before = scene.configuration();
    // As the broker would say it: change 1, to 9 bytes. A data plane has no words for it.
    let end = end_of_one_that_says(&scene, &[6, 1, 9]);
    assert!(end.starts_with("it broke the protocol: ") && end.contains("is no message"), "{end}");
    let end = end_of_one_that_says(&scene, &[4, 1, 0]);
    assert_eq!(end, "it broke the protocol: it answers change 1, which is not open");
    assert_eq!(scene.configuration(), before);
    let (mut a, mut b) = (scene.boot(1), scene.boot(2));
    exchange(&mut a, &mut b, 0);
}

#[test]
fn a_data_plane_takes_no_changes_from_operators() {
    let scene = Scene::start();
    // As it would be for a client that does not know of the broker.
    let other = scene.path("other.sock");
    std::os::unix::fs::symlink(scene.path("control.sock"), &other).unwrap();
    let error = ControlClient::new(&other).unwrap().delete(Kind::Port, "vm1", false).unwrap_err();
    let expected = "the configuration of a switch of two processes is changed by its broker, at the path of the control socket with .manage behind it";
    assert_eq!(error.to_string(), expected);
    assert_eq!(names(&scene.json()).len(), 2);
}

/// Becomes another user, in this thread alone.
fn become_user(uid: i64) {
    // SAFETY: plain numbers; the call itself, not the C library's, so that other threads stay who they are.
    assert_eq!(unsafe { libc::syscall(libc::SYS_setresuid, uid, uid, uid) }, 0);
}

#[test]
fn the_manage_socket_refuses_a_peer_without_rights() {
    let scene = Scene::start();
    let manage = manage_path(&scene.path("control.sock"));
    assert_eq!(fs::metadata(&manage).unwrap().permissions().mode() & 0o777, 0o600);
    let open =
        |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    open(scene.directory.path(), 0o755);
    open(&scene.path("control.sock"), 0o666);
    let as_nobody = || {
        thread::scope(|scope| {
            let asked = scope.spawn(|| {
                become_user(65534);
                let read = scene.client().ports().map(|ports| ports.len());
                (scene.client().delete(Kind::Port, "vm1", false).unwrap_err(), read)
            });
            asked.join().unwrap()
        })
    };
    let (error, read) = as_nobody();
    assert!(matches!(&error, ClientError::PermissionDenied(path) if *path == manage), "{error}");
    assert_eq!(read.unwrap(), 2, "who may ask the control socket learns what there is");
    // Whatever has become of the file's mode.
    open(&manage, 0o666);
    let expected =
        "uid 65534 may not change the configuration (run as root, or as the user of the switch)";
    let (error, read) = as_nobody();
    assert_eq!(
        (error.to_string(), read.unwrap_err().to_string()),
        (expected.into(), expected.into())
    );
    assert_eq!(names(&scene.json()).len(), 2);
    scene.client().delete(Kind::Port, "vm1", false).unwrap();
}

#[test]
fn a_port_for_which_there_could_be_no_descriptors_is_refused() {
    let scene = start_limited(1000);
    let error = scene.change(|config| config.ports.push(scene.new_port(3))).unwrap_err();
    let expected = "the broker can need 1189 file descriptors for this configuration, and the process may have 1000";
    assert!(error.starts_with(expected), "{error}");
    assert!(!scene.path("vm3.sock").exists());
    // Another one in the place of one that is there would have to be there beside it for a moment.
    assert!(scene.change(|config| config.ports[1].mtu = 900).is_err());
    scene.change(|config| config.ports[1].storm_pps = 9).unwrap();
}

#[test]
fn a_port_that_nobody_has_connected_to_holds_few_descriptors() {
    const MORE: usize = 10;
    let scene = Scene::start();
    let held = || {
        let data_plane = fs::read_dir(format!("/proc/{}/fd", scene.data_plane())).unwrap();
        [descriptors(&scene.broker), data_plane.count()]
    };
    let before = held();
    let more = (3..).map(|n| scene.new_port(n)).take(MORE);
    scene.change(|config| config.ports.extend(more)).unwrap();
    // Of hundreds that it is allowed: those are for what its front-end may send.
    let most = [before[0] + 6 * MORE, before[1] + 4 * MORE];
    wait_until("what the change took to be let go", || {
        let now = held();
        now[0] <= most[0] && now[1] <= most[1]
    });
    assert_eq!(names(&scene.json()).len(), 2 + MORE);
}
