//! Random changes.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use floodway_switch::Config;
use floodway_switch::api::edit::{self, Kind};
use floodway_switch::config::{NetworkConfig, PortConfig, UplinkConfig, UplinkKind};
use floodway_switch::testing::frames::{number_of, numbered};
use floodway_switch::testing::{wait, wait_until};

use super::names;
use crate::scene::{Scene, exchange, run, signal};
use crate::uplinks::in_namespace;

/// Pseudo-random numbers (Knuth's MMIX generator): the same in every run.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }
}

/// One change, which may be none, or not be possible.
fn random_change(scene: &Scene, dice: &mut Dice, foreign: &Path, config: &mut Config) {
    let n = 3 + dice.roll(6) as u8;
    let known = config.ports.iter().position(|port| port.name == format!("vm{n}"));
    match (dice.roll(8), known) {
        (0..=2, None) => config.ports.push(scene.new_port(n)),
        (3, None) => config.ports.push(PortConfig { socket: foreign.into(), ..scene.new_port(n) }),
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

/// One change of networks and uplinks, which may not be possible: a TAP device for each of three uplinks, and an interface that is not there.
fn random_change_of_uplinks(dice: &mut Dice, config: &mut Config) {
    let n = dice.roll(3);
    let name = format!("up{n}");
    let known = config.uplinks.iter().position(|uplink| uplink.name == name);
    let red = config.networks.iter().position(|network| network.name == "red");
    let tap = UplinkConfig::new(&name, UplinkKind::Tap, format!("fwr{n}"));
    match (dice.roll(8), known, red) {
        (0..=2, None, _) => config.uplinks.push(tap),
        (3, None, _) => {
            config.uplinks.push(UplinkConfig::new(&name, UplinkKind::Packet, "nowhere"));
        }
        (0, Some(at), _) => drop(config.uplinks.remove(at)),
        (1, Some(at), _) => config.uplinks[at].storm_pps = dice.roll(50) as u32,
        (2, Some(at), _) => config.uplinks[at].queue.rate = Some(1_000_000 * (1 + dice.roll(9))),
        // Another name for the same device.
        (3, Some(at), _) => config.uplinks[at].name = format!("{name}b"),
        (4, Some(at), Some(red)) => config.uplinks[at].tagged = vec![config.networks[red].clone()],
        (5, _, None) => config.networks.push(NetworkConfig::new("red", 10)),
        (5, _, Some(red)) => config.networks[red].vid = 10 + dice.roll(9) as u16,
        (6, _, Some(red)) => drop(config.networks.remove(red)),
        _ => config.uplinks.retain(|uplink| !uplink.name.ends_with('b')),
    }
}

/// What a switch makes of `config`: networks are named by ports and uplinks. As it is, if it is not valid.
fn as_read(config: Config) -> Config {
    Config::parse(&toml::to_string(&config).unwrap(), "wanted".as_ref()).unwrap_or(config)
}

/// What differs between two configurations: networks, ports and uplinks that come, change or go.
fn differences(before: &Config, wanted: &Config) -> BTreeSet<(&'static str, String)> {
    let of = |kind: Kind| {
        let names = kind.names(before).into_iter().chain(kind.names(wanted));
        let keys = move |config, name| edit::document(config, kind, name).ok();
        let differ = names.filter(move |name| keys(before, name) != keys(wanted, name));
        differ.map(move |name| (kind.name(), name.to_owned()))
    };
    Kind::ALL.into_iter().flat_map(of).collect()
}

/// Makes the switch `wanted`: if that differs in one thing by a request for it, which is counted in `requests`, and else as a file.
fn make(scene: &Scene, wanted: &Config, requests: &mut u32) -> Result<String, String> {
    let differences: Vec<_> = differences(&scene.configuration(), wanted).into_iter().collect();
    let [(section, name)] = &differences[..] else { return scene.apply(wanted) };
    *requests += 1;
    let kind = Kind::ALL.into_iter().find(|kind| kind.name() == *section).unwrap();
    let plan = match edit::document(wanted, kind, name) {
        Ok(keys) => scene.client().put(kind, name, &keys, false),
        Err(_) => scene.client().delete(kind, name, false),
    };
    plan.map(|plan| plan.to_string()).map_err(|error| error.to_string())
}

/// Makes `count` random changes, calling `before_each` with the number of the next, and checks that each is made wholly or not at all. Returns how many were
/// made and refused.
fn change_at_random(scene: &Scene, count: u32, mut before_each: impl FnMut(u32)) -> (u32, u32) {
    let foreign = scene.path("foreign.sock");
    let _listener = UnixListener::bind(&foreign).unwrap();
    let mut dice = Dice(1);
    let (mut made, mut refused, mut requests) = (0, 0, 0);
    for number in 0..count {
        let before = scene.configuration();
        let mut wanted = before.clone();
        match dice.roll(3) {
            0 => random_change_of_uplinks(&mut dice, &mut wanted),
            _ => random_change(scene, &mut dice, &foreign, &mut wanted),
        }
        let wanted = as_read(wanted);
        before_each(number);
        match make(scene, &wanted, &mut requests) {
            Ok(plan) => {
                // The order of ports alone is no change.
                let expected = if plan == "no changes" { before } else { wanted };
                assert_eq!(scene.configuration(), expected);
                made += 1;
            }
            Err(error) => {
                assert_eq!(scene.configuration(), before, "{error}");
                refused += 1;
            }
        }
    }
    assert!(requests > count / 4 && requests < count * 9 / 10, "{requests} by requests");
    (made, refused)
}

/// Descriptors of broker and data plane while nobody asks anything: the fewest of several looks.
fn held(scene: &Scene) -> [usize; 2] {
    [u64::from(scene.broker.id()), scene.data_plane()].map(|process| {
        let looks = (0..100).map(|_| {
            thread::sleep(Duration::from_millis(20));
            fs::read_dir(format!("/proc/{process}/fd")).unwrap().count()
        });
        looks.min().unwrap()
    })
}

/// Ends the switch, whose guests have gone, and starts another one from what was saved of it, which has to be the same and to hold as much.
fn check_against_a_fresh_start(mut scene: Scene) {
    wait_until("all ports to be down", || {
        scene.json()["ports"].as_array().unwrap().iter().all(|port| port["state"] == "down")
    });
    let held_before = held(&scene);
    let last = scene.configuration();
    assert_eq!(scene.data_planes_configuration(), last);
    let text = scene.client().config().unwrap();
    let sockets = |scene: &Scene| {
        let entries = fs::read_dir(scene.directory.path()).unwrap().map(|entry| entry.unwrap());
        entries.map(|entry| entry.file_name()).collect::<BTreeSet<_>>()
    };
    let uplinks = |scene: &Scene| scene.json()["uplinks"].as_array().unwrap().len();
    let (ports, files) = (names(&scene.json()), sockets(&scene));
    assert_eq!(uplinks(&scene), last.uplinks.len());
    fs::write(scene.path("switch.toml"), text).unwrap();
    signal(scene.broker.id().into(), libc::SIGTERM);
    assert_eq!(scene.broker.wait().unwrap().code(), Some(0));
    scene.broker = run(scene.directory.path()).spawn().unwrap();
    assert_eq!(names(&scene.json()), ports);
    assert_eq!(uplinks(&scene), last.uplinks.len());
    assert_eq!((scene.configuration(), scene.data_planes_configuration()), (last.clone(), last));
    assert_eq!(sockets(&scene), files);
    wait_until(&format!("{held_before:?} descriptors or more"), || {
        let fresh = held(&scene);
        held_before.iter().zip(fresh).all(|(before, fresh)| *before <= fresh)
    });
}

#[test]
fn after_a_thousand_random_changes_under_traffic_the_switch_is_as_a_fresh_one() {
    in_quiet_namespace(change_a_thousand_times);
}

/// Runs `body` in a network namespace where interfaces send nothing by themselves.
fn in_quiet_namespace(body: impl FnOnce() + Send) {
    in_namespace(|| {
        fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1").unwrap();
        body();
    });
}

fn change_a_thousand_times() {
    let scene = Scene::start();
    let (mut a, mut b) = (scene.boot(1), scene.boot(2));
    let (made, refused) = change_at_random(&scene, 1000, |number| {
        let frame = numbered(1, 2, number, 64);
        a.send(&frame);
        let got = wait("a frame", || b.guest.recv(0)).1;
        assert!(got == frame, "the next one is {:?}", number_of(&got));
    });
    assert!(made > 500 && refused > 50, "{made} made, {refused} refused");
    drop((a, b));
    check_against_a_fresh_start(scene);
}

#[test]
fn a_data_plane_killed_over_random_changes_leaves_the_switch_that_was_saved() {
    in_quiet_namespace(change_and_kill);
}

fn change_and_kill() {
    let scene = Scene::start();
    let (mut a, mut b) = (scene.boot(1), scene.boot(2));
    let (ask, asked) = mpsc::channel::<Duration>();
    thread::scope(|scope| {
        scope.spawn(|| {
            for after in asked {
                thread::sleep(after);
                scene.kill_whoever_serves();
            }
        });
        let mut dice = Dice(7);
        let (made, refused) = change_at_random(&scene, 200, |number| {
            if number % 25 == 24 {
                ask.send(Duration::from_micros(dice.roll(4000))).unwrap();
            }
        });
        assert!(made > 100 && refused > 10, "{made} made, {refused} refused");
        drop(ask);
    });
    wait_until("all deaths", || scene.json()["switch"]["predecessors"]["count"] == 8);
    wait_until("both to run", || {
        let status = scene.json();
        let ports = status["ports"].as_array().unwrap().clone();
        ports.iter().filter(|port| port["state"] == "running").count() == 2
    });
    // What never changed was never disconnected.
    assert!(!a.frontend.is_closed() && !b.frontend.is_closed());
    exchange(&mut a, &mut b, 0);
    drop((a, b));
    check_against_a_fresh_start(scene);
}
