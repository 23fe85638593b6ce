//! What lies at the paths of ports' sockets when a switch starts, and what it leaves there.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{UnixListener, UnixStream};

use floodway_switch::Switch;
use floodway_switch::config::{Config, Permissions, PortConfig};
use floodway_switch::testing::GuestConfig;
use floodway_switch::testing::frames::numbered;

use crate::net::{Net, port};

/// The configuration of a second switch, with a control socket of its own.
fn second(net: &Net) -> Config {
    Config { control: net.config.control.with_extension("second"), ..net.config.clone() }
}

#[test]
fn a_file_at_a_ports_path_stays_and_is_named() {
    let mut net = Net::of(2);
    net.switch = None;
    fs::write(net.socket(2), "mine").unwrap();
    let error = Switch::start(&net.config).err().expect("the path is taken").to_string();
    let expected = format!(
        "port \"vm2\": socket = \"{}\": the file exists and is not a socket (remove it, or choose another path)",
        net.socket(2).display()
    );
    assert_eq!(error, expected);
    assert_eq!(fs::read(net.socket(2)).unwrap(), b"mine");
    assert!(!net.socket(1).exists(), "what was made before is gone again");
}

#[test]
fn a_socket_has_the_rights_that_are_configured_whatever_the_umask() {
    // Anything but what the process's umask leaves of 0777.
    let rights =
        Permissions { owner: Some("4321".into()), group: Some("1234".into()), mode: 0o626 };
    let configured = PortConfig { permissions: rights, ..port(1) };
    let net = Net::start(vec![configured, port(2)]);
    let found = fs::metadata(net.socket(1)).unwrap();
    assert_eq!((found.uid(), found.gid(), found.mode() & 0o7777), (4321, 1234, 0o626));
    let found = fs::metadata(net.socket(2)).unwrap();
    assert_eq!(found.mode() & 0o7777, 0o660);
    net.boot(1, GuestConfig::default());
}

#[test]
fn an_owner_that_does_not_exist_is_named_with_its_port() {
    let mut net = Net::of(1);
    net.switch = None;
    net.config.ports[0].permissions.owner = Some("no-such-user".into());
    let error = Switch::start(&net.config).err().expect("nobody to give it to").to_string();
    let expected = format!(
        "port \"vm1\": socket = \"{}\": permissions.owner = \"no-such-user\": the host has no such user (create it, or name another)",
        net.socket(1).display()
    );
    assert_eq!(error, expected);
    assert!(!net.socket(1).exists());
}

#[test]
fn a_second_switch_takes_no_live_socket() {
    let net = Net::of(2);
    let [mut a, mut b] = [1, 2].map(|n| net.boot(n, GuestConfig::default()));
    let error = Switch::start(&second(&net)).err().expect("the socket is served").to_string();
    assert!(
        error.starts_with("port \"vm1\": socket = ") && error.contains("live process"),
        "{error}"
    );
    // Nothing of the first one is gone: guests are served, and may come anew.
    b.reconnect(&net);
    let frame = numbered(1, 2, 1, 100);
    a.send(&frame);
    b.expect(&frame);
}

#[test]
fn a_switch_that_stops_leaves_sockets_that_are_not_its_own() {
    let mut net = Net::of(1);
    fs::remove_file(net.socket(1)).unwrap();
    let theirs = Switch::start(&second(&net)).unwrap();
    net.switch = None;
    assert!(UnixStream::connect(net.socket(1)).is_ok(), "the second switch is served no more");
    drop(theirs);
    assert!(!net.socket(1).exists());
}

#[test]
fn the_socket_of_a_dead_process_is_replaced() {
    let mut net = Net::of(1);
    net.switch = None;
    drop(UnixListener::bind(net.socket(1)).unwrap());
    net.restart();
    net.boot(1, GuestConfig::default());
}
