//! Co-resident guests: interrupts of a stream, guests that go and come back, and who sent to whom.

use floodway_switch::api::status::Way;
use floodway_switch::testing::frames::{mac, number_of, numbered};
use floodway_switch::testing::message::SEND_RARP;
use floodway_switch::testing::{GuestConfig, wait_until};

use crate::net::{Net, Vm, port};

/// Stops the guest's rings as QEMU does before it migrates, and ends the connection.
fn leave(vm: &mut Vm) {
    for index in [0, 1] {
        vm.frontend().get_vring_base(index).expect("the ring stops");
    }
    vm.frontend = None;
}

#[test]
fn what_comes_for_a_guest_that_is_away_waits_for_it() {
    let net = Net::of(2);
    let [mut a, mut b] = [1, 2].map(|n| net.boot(n, GuestConfig::default()));
    a.send(&numbered(1, 2, 0, 100));
    assert_eq!(number_of(&b.recv().1), Some(0));
    leave(&mut b);
    (1..200).for_each(|number| a.send(&numbered(1, 2, number, 100)));
    wait_until("frames to wait", || net.port(2).pending().0 == 199);
    b.reconnect(&net);
    (200..300).for_each(|number| a.send(&numbered(1, 2, number, 100)));
    for number in 1..300 {
        assert_eq!(number_of(&b.recv().1), Some(number));
    }
    assert_eq!(net.port(2).rx().dropped(), 0);
}

#[test]
fn what_waits_is_bounded_and_given_up() {
    let small = floodway_switch::config::PortConfig { queue_bytes: 64 << 10, ..port(2) };
    let net = Net::start(vec![port(1), small]);
    let [mut a, mut b] = [1, 2].map(|n| net.boot(n, GuestConfig::default()));
    leave(&mut b);
    (0..100).for_each(|number| a.send(&numbered(1, 2, number, 100)));
    wait_until("the bound", || net.rx_drops(2, "queue_full") == 36);
    assert_eq!(net.port(2).pending(), (64, 64 << 10));
    wait_until("the end of patience", || net.rx_drops(2, "port_down") == 64);
    assert_eq!(net.port(2).pending(), (0, 0));
    assert!(net.status().l2.iter().all(|entry| entry.port != "vm2"));
    a.send(&numbered(1, 2, 100, 100));
    wait_until("nobody to take it", || net.tx_drops(1, "no_destination") == 1);
}

#[test]
fn an_address_that_shows_up_at_another_port_takes_what_waits_with_it() {
    let any = |n| floodway_switch::config::PortConfig { mac: None, ..port(n) };
    let net = Net::start(vec![port(1), any(2), any(3)]);
    let [mut a, mut b, mut c] = [1, 2, 3].map(|n| net.boot(n, GuestConfig::default()));
    b.send(&numbered(2, 1, 0, 60));
    a.recv();
    leave(&mut b);
    (0..50).for_each(|number| a.send(&numbered(1, 2, number, 100)));
    wait_until("frames to wait", || net.port(2).pending().0 == 50);
    c.send(&numbered(2, 1, 1, 60));
    for number in 0..50 {
        assert_eq!(number_of(&c.recv().1), Some(number));
    }
    a.send(&numbered(1, 2, 50, 100));
    assert_eq!(number_of(&c.recv().1), Some(50));
}

/// A front-end may ask for its guest's announcement, but not in another's name.
#[test]
fn what_waits_for_a_guest_with_a_configured_address_is_nobody_elses() {
    let any = |n| floodway_switch::config::PortConfig { mac: None, ..port(n) };
    let net = Net::start(vec![port(1), port(2), any(3)]);
    let [mut a, mut b, mut thief] = [1, 2, 3].map(|n| net.boot(n, GuestConfig::default()));
    a.send(&numbered(1, 2, 0, 100));
    assert_eq!(number_of(&b.recv().1), Some(0));
    leave(&mut b);
    (1..50).for_each(|number| a.send(&numbered(1, 2, number, 100)));
    wait_until("frames to wait", || net.port(2).pending().0 == 49);
    let mut victim = [0; 8];
    victim[..6].copy_from_slice(&mac(2).0);
    thief.frontend().request(SEND_RARP, &victim, &[]).expect("it is a unicast address");
    thief.send(&numbered(2, 1, 50, 60));
    wait_until("the drop", || net.tx_drops(3, "spoofed_mac") == 1);
    b.reconnect(&net);
    for number in 1..50 {
        assert_eq!(number_of(&b.recv().1), Some(number));
    }
    assert!(thief.guest.recv(0).is_none());
}

#[test]
fn a_stream_of_small_frames_does_not_interrupt_for_each_and_the_last_one_is_told_of() {
    let net = Net::of(2);
    let [mut a, mut b] = [1, 2].map(|n| net.boot(n, GuestConfig::default()));
    let (total, mut received, mut interrupts) = (20_000_u32, 0, 0);
    let mut next = 0;
    // An interrupt is the guest's only reason to look.
    wait_until("all frames", || {
        while next < total
            && next - received < 200
            && a.guest.send(0, &Default::default(), &numbered(1, 2, next, 60))
        {
            next += 1;
        }
        let told = b.guest.pairs[0].rx.take_interrupts();
        interrupts += told;
        if told > 0 {
            loop {
                while let Some((_, frame)) = b.guest.recv(0) {
                    assert_eq!(number_of(&frame), Some(received));
                    received += 1;
                }
                if !b.guest.pairs[0].rx.driver.enable_interrupts() {
                    break;
                }
            }
        }
        received == total
    });
    let sent = net.port(2).queues[0].rx.notifications.sent;
    assert!(interrupts > 0 && sent < u64::from(total) / 4, "{sent} interrupts");
}

/// Frees what was sent, and asks to be told of more; answers how many frames are still being sent.
fn settle(vm: &mut Vm) -> u16 {
    loop {
        let left = vm.guest.transmitting(0);
        if !vm.guest.pairs[0].tx.driver.enable_interrupts() {
            return left;
        }
    }
}

#[test]
fn a_guest_that_waits_for_room_hears_of_it() {
    let net = Net::of(2);
    let [mut a, mut b] = [1, 2].map(|n| net.boot(n, GuestConfig::default()));
    let (total, mut next, mut received) = (20_000_u32, 0, 0);
    let (mut waits, mut left) = (false, 0);
    wait_until("all frames to be sent and given back", || {
        while b.guest.recv(0).is_some() {
            received += 1;
        }
        b.guest.refill(0, usize::MAX);
        // Who waits looks again only when told.
        if a.guest.pairs[0].tx.take_interrupts() > 0 {
            (waits, left) = (false, settle(&mut a));
        }
        if !waits && next < total {
            let frame = |next| numbered(1, 2, next, 60);
            while next < total && next - received < 200 {
                waits = !a.guest.send(0, &Default::default(), &frame(next));
                if waits {
                    break;
                }
                next += 1;
            }
            left = settle(&mut a);
            waits &= left > 0;
        }
        received == total && left == 0
    });
    let told = net.port(1).queues[0].tx.notifications.sent;
    assert!(told < u64::from(total) / 4, "{told} interrupts");
}

#[test]
fn the_status_says_who_sent_to_whom() {
    let net = Net::of(3);
    let [mut a, mut b] = [1, 2].map(|n| net.boot(n, GuestConfig::default()));
    (0..3).for_each(|number| a.send(&numbered(1, 2, number, 100)));
    b.send(&numbered(2, 1, 3, 58));
    wait_until("counters", || net.status().traffic.len() == 2);
    wait_until("all frames", || net.status().traffic[0].packets == 3);
    let seen: Vec<_> = net
        .status()
        .traffic
        .into_iter()
        .map(|t| (t.from, t.to, t.by, t.packets, t.bytes))
        .collect();
    let pair = |from: &str, to: &str, packets, bytes| {
        (from.to_owned(), to.to_owned(), Way::Channel, packets, bytes)
    };
    assert_eq!(seen, [pair("vm1", "vm2", 3, 3 * 142), pair("vm2", "vm1", 1, 100)]);
}
