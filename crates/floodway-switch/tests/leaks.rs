//! What a hundred connections, and ports that come and go, leave behind. Alone in its process, so that nothing else opens files.

#[path = "switch/net.rs"]
#[allow(dead_code)]
mod net;

use std::fs;

use floodway_switch::api::status::PortState;
use floodway_switch::config::{Config, PortConfig};
use floodway_switch::testing::frames::numbered;
use floodway_switch::testing::{Frontend, Guest, GuestConfig, wait_until};

use net::{Net, port};

/// Descriptors, and mappings of guests' memory.
fn resources() -> (usize, usize) {
    let fds = fs::read_dir("/proc/self/fd").unwrap().count();
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    (fds, maps.lines().filter(|line| line.contains("floodway-test")).count())
}

/// Adds a port with a guest, fails to add another one, and removes the first.
fn change_ports(net: &Net) {
    let operator = net.switch.as_ref().expect("the switch runs").operator();
    let with = |n: u8, running: &Config| {
        let socket = net.config.control.with_file_name(format!("vm{n}.sock"));
        let mut config = running.clone();
        config.ports.push(PortConfig { socket, ..port(n) });
        config
    };
    let socket = net.config.control.with_file_name("vm3.sock");
    operator.reconfigure(&|running| Ok(with(3, running)), false).unwrap();
    let guest = Guest::new(GuestConfig::default());
    let frontend = Frontend::attach(&socket, &guest);
    let nobody = |running: &Config| {
        let mut config = with(5, &with(4, running));
        config.ports[4].socket = "/proc/no-sockets-here".into();
        Ok(config)
    };
    operator.reconfigure(&nobody, false).unwrap_err();
    let without = |running: &Config| {
        let mut config = running.clone();
        config.ports.truncate(2);
        Ok(config)
    };
    operator.reconfigure(&without, false).unwrap();
    drop(frontend);
}

#[test]
fn connections_leave_nothing_behind() {
    let mut net = Net::of(2);
    let cycle = |net: &Net, number| {
        let [mut a, mut b] = [1, 2].map(|n| net.boot(n, GuestConfig::default()));
        let frame = numbered(1, 2, number, 300);
        a.send(&frame);
        b.expect(&frame);
        b.reconnect(net);
        drop((a, b));
        change_ports(net);
        wait_until("the ports to go down", || {
            [1, 2].iter().all(|&n| net.port(n).state == PortState::Down)
        });
    };
    cycle(&net, 0);
    wait_until("memory to be let go", || resources().1 == 0);
    let before = resources();
    for number in 0..100 {
        cycle(&net, number);
        if number % 10 == 0 {
            net.restart();
        }
    }
    wait_until("everything to be let go", || resources() == before);
}
