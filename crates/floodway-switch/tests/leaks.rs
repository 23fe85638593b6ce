//! What a hundred connections leave behind. Alone in its process, so that nothing else opens files.

#[path = "switch/net.rs"]
#[allow(dead_code)]
mod net;

use std::fs;

use floodway_switch::api::status::PortState;
use floodway_switch::testing::frames::numbered;
use floodway_switch::testing::{GuestConfig, wait_until};

use net::Net;

/// Descriptors, and mappings of guests' memory.
fn resources() -> (usize, usize) {
    let fds = fs::read_dir("/proc/self/fd").unwrap().count();
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    (fds, maps.lines().filter(|line| line.contains("floodway-test")).count())
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
