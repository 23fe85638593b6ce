//! Either side goes away and comes back.

use std::os::unix::net::UnixListener;

use floodway_switch::api::status::PortState;
use floodway_switch::config::{PortConfig, SocketMode};
use floodway_switch::testing::frames::{number_of, numbered};
use floodway_switch::testing::message;
use floodway_switch::testing::{Frontend, Guest, GuestConfig, wait_until};
use floodway_switch::vhost::features;

use crate::net::{Net, Vm, port};

fn exchange(a: &mut Vm, b: &mut Vm, number: u32) {
    let there = numbered(a.n, b.n, number, 700);
    a.send(&there);
    b.expect(&there);
    let back = numbered(b.n, a.n, number, 700);
    b.send(&back);
    a.expect(&back);
}

fn both(net: &Net) -> (Vm, Vm) {
    let [a, b] = [1, 2].map(|n| net.boot(n, GuestConfig::default()));
    (a, b)
}

#[test]
fn a_switch_that_starts_again_goes_on_where_the_last_one_stopped() {
    let mut net = Net::of(2);
    let (mut a, mut b) = both(&net);
    for cycle in 0..5 {
        exchange(&mut a, &mut b, cycle);
        // Transmitted while there is no switch, and without a kick: none will come later either.
        net.switch = None;
        let stranded: Vec<_> = (0..20).map(|i| numbered(1, 2, 100 * cycle + i, 300)).collect();
        for frame in &stranded {
            assert!(a.guest.send_quietly(0, &Default::default(), frame));
        }
        b.guest.auto_refill = false;
        net.restart();
        // The receiver first: what is sent to a port that is not there is dropped, and rightly.
        b.reconnect(&net);
        a.reconnect(&net);
        for frame in &stranded {
            b.expect(frame);
        }
        a.wait_sent();
        assert_eq!(a.guest.pairs[0].tx.driver.free(), 256, "every descriptor is back");
        b.guest.auto_refill = true;
        b.guest.refill(0, usize::MAX);
        exchange(&mut a, &mut b, cycle);
    }
}

#[test]
fn a_switch_killed_under_traffic_loses_no_descriptors() {
    let mut net = Net::of(2);
    let (mut a, mut b) = both(&net);
    let mut number = 0;
    for _ in 0..10 {
        for _ in 0..500 {
            while !a.guest.send(0, &Default::default(), &numbered(1, 2, number, 200)) {
                while b.guest.recv(0).is_some() {}
            }
            number += 1;
        }
        net.restart();
        b.reconnect(&net);
        a.reconnect(&net);
    }
    let last = numbered(1, 2, number, 200);
    a.send(&last);
    wait_until("the last frame", || {
        std::iter::from_fn(|| b.guest.recv(0)).any(|(_, frame)| frame == last)
    });
    a.wait_sent();
    assert_eq!(a.guest.pairs[0].tx.driver.free(), 256);
    assert_eq!(b.guest.pairs[0].rx.driver.in_flight(), 256, "all receive buffers are posted");
}

#[test]
fn a_vm_that_crashes_and_boots_again_is_served() {
    let net = Net::of(2);
    let (mut a, mut b) = both(&net);
    for cycle in 0..20 {
        exchange(&mut a, &mut b, cycle);
        b.frontend = None;
        wait_until("the port to go down", || net.port(2).state == PortState::Down);
        b = net.boot(2, GuestConfig::default());
    }
    exchange(&mut a, &mut b, 99);
}

#[test]
fn a_frontend_that_crashes_keeps_its_guest() {
    let net = Net::of(2);
    let (mut a, mut b) = both(&net);
    for cycle in 0..20 {
        exchange(&mut a, &mut b, cycle);
        b.reconnect(&net);
        a.reconnect(&net);
    }
}

/// Attaches `guest` to a port in client mode. Connections of a dead switch may be waiting, too.
fn accept(listener: &UnixListener, guest: &Guest) -> Frontend {
    loop {
        let mut frontend = Frontend::accept(listener);
        if frontend.set_up(guest).is_ok() {
            return frontend;
        }
    }
}

#[test]
fn a_port_in_client_mode_connects_again_and_again() {
    let client = |n| PortConfig { mode: SocketMode::Client, ..port(n) };
    let mut net = Net::start(vec![client(1), port(2)]);
    let mut b = net.boot(2, GuestConfig::default());
    let listener = net.listen(1);
    let guest = Guest::new(GuestConfig::default());
    let mut a = Vm { n: 1, guest, frontend: None };
    for cycle in 0..10 {
        // Even rounds: the front-end crashed. Odd ones: the switch did.
        if cycle % 2 == 1 {
            net.restart();
            b.reconnect(&net);
        }
        a.frontend = Some(accept(&listener, &a.guest));
        exchange(&mut a, &mut b, cycle);
        a.frontend = None;
    }
    // The VM is away altogether, and comes back.
    drop(listener);
    let listener = net.listen(1);
    a.frontend = Some(accept(&listener, &a.guest));
    exchange(&mut a, &mut b, 99);
}

#[test]
fn rings_stop_and_go_on() {
    let net = Net::of(2);
    let (mut a, mut b) = both(&net);
    for number in 0..300 {
        exchange(&mut a, &mut b, number);
    }
    a.wait_sent();
    for ring in 0..2 {
        let base = b.frontend().get_vring_base(ring).unwrap();
        assert_eq!(base, b.guest.queue(ring).driver.used_idx(), "ring {ring}");
    }
    a.send(&numbered(1, 2, 1000, 64));
    a.wait_sent();
    b.send(&numbered(2, 1, 1001, 64));

    let mut frontend = b.frontend.take().unwrap();
    for ring in 0..2 {
        frontend.start_vring(&b.guest, ring).unwrap();
    }
    b.frontend = Some(frontend);
    // What was transmitted meanwhile is served without a kick, and what came meanwhile has waited.
    assert_eq!(number_of(&a.recv().1), Some(1001));
    assert_eq!(number_of(&b.recv().1), Some(1000));
    exchange(&mut a, &mut b, 2000);
}

#[test]
fn a_ring_that_does_not_run_tells_where_it_stopped() {
    let net = Net::of(2);
    let (mut a, mut b) = both(&net);
    for number in 0..70 {
        exchange(&mut a, &mut b, number);
    }
    // As QEMU does when its VM stops: disable first, then ask.
    for ring in 0..2 {
        b.frontend().set_vring_enable(ring, false).unwrap();
    }
    for ring in 0..2 {
        let base = b.frontend().get_vring_base(ring).unwrap();
        assert_eq!(base, b.guest.queue(ring).driver.used_idx(), "ring {ring}");
        assert!(base >= 70);
    }
}

#[test]
fn a_ring_that_was_reset_tells_where_it_stopped() {
    let net = Net::of(2);
    let (mut a, mut b) = both(&net);
    for number in 0..70 {
        exchange(&mut a, &mut b, number);
    }
    // As QEMU 7.2 does when its VM stops: status 0 first, then ask.
    b.frontend().request(message::SET_STATUS, &0u64.to_le_bytes(), &[]).unwrap();
    for ring in 0..2 {
        let base = b.frontend().get_vring_base(ring).unwrap();
        assert_eq!(base, b.guest.queue(ring).driver.used_idx(), "ring {ring}");
    }
}

#[test]
fn a_disabled_ring_gets_nothing_until_it_is_enabled() {
    let net = Net::of(2);
    let (mut a, mut b) = both(&net);
    b.frontend().set_vring_enable(0, false).unwrap();
    a.send(&numbered(1, 2, 0, 64));
    a.wait_sent();
    assert!(b.guest.recv(0).is_none());
    b.frontend().set_vring_enable(0, true).unwrap();
    assert_eq!(number_of(&b.recv().1), Some(0));
    exchange(&mut a, &mut b, 1);
}

#[test]
fn the_memory_table_may_change_under_traffic() {
    let net = Net::of(2);
    let (mut a, mut b) = both(&net);
    for round in 0..50 {
        for number in 0..20 {
            a.send(&numbered(1, 2, round * 20 + number, 1000));
        }
        let memory = b.guest.memory.clone();
        b.frontend().set_mem_table(&memory).unwrap();
        for number in 0..20 {
            assert_eq!(number_of(&b.recv().1), Some(round * 20 + number));
        }
    }
    assert_eq!(net.port(2).rx().dropped(), 0);
}

#[test]
fn memory_slots_come_and_go() {
    let net = Net::of(2);
    let (mut a, mut b) = both(&net);
    let memory = b.guest.memory.clone();
    // Region 0 holds the rings: they stop, and the front-end is told that all is well.
    b.frontend().remove_mem_region(&memory, 0).unwrap();
    wait_until("the rings to stop", || net.port(2).state != PortState::Running);
    a.send(&numbered(1, 2, 0, 64));
    a.wait_sent();
    b.frontend().add_mem_region(&memory, 0).unwrap();
    assert_eq!(number_of(&b.recv().1), Some(0));
    exchange(&mut a, &mut b, 1);
    // Another memory at the same addresses is none of these regions.
    let other = Guest::new(GuestConfig::default()).memory.clone();
    assert!(b.frontend().add_mem_region(&other, 1).is_err());
    exchange(&mut a, &mut b, 2);
}

#[test]
fn a_front_end_may_say_its_memory_for_each_queue_pair() {
    let net = Net::of(2);
    let (mut a, mut b) = both(&net);
    let memory = b.guest.memory.clone();
    // As QEMU before 8.0 does: a region that is there already, and one that has gone already.
    b.frontend().add_mem_region(&memory, 0).unwrap();
    b.frontend().add_mem_region(&memory, 1).unwrap();
    exchange(&mut a, &mut b, 0);
    for _ in 0..2 {
        b.frontend().remove_mem_region(&memory, 1).unwrap();
    }
    for _ in 0..2 {
        b.frontend().add_mem_region(&memory, 1).unwrap();
    }
    exchange(&mut a, &mut b, 1);
    assert_eq!(net.port(2).rx().dropped(), 0);
}

#[test]
fn a_device_that_was_reset_can_be_set_up_again() {
    let net = Net::of(2);
    let (mut a, mut b) = both(&net);
    exchange(&mut a, &mut b, 0);
    b.frontend().request(message::RESET_DEVICE, &[], &[]).unwrap();
    assert_ne!(net.port(2).state, PortState::Running);
    // The guest boots another driver with other features, in the same memory.
    let config = GuestConfig {
        features: features::offered(1) & !features::EVENT_IDX,
        ..GuestConfig::default()
    };
    b.guest = Guest::new(config);
    let mut frontend = b.frontend.take().unwrap();
    frontend.set_up(&b.guest).unwrap();
    b.frontend = Some(frontend);
    exchange(&mut a, &mut b, 1);
}
