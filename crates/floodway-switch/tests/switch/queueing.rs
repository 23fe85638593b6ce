//! Receivers that give no buffers back.

use floodway_switch::config::PortConfig;
use floodway_switch::testing::frames::{number_of, numbered, partial, pattern, tcp};
use floodway_switch::testing::{GuestConfig, wait, wait_until};
use floodway_switch::vhost::features;
use floodway_wire::vnet::VnetHdr;

use crate::net::{Net, Vm, port};

const RING: u16 = 16;

fn slow_receiver(event_idx: bool) -> GuestConfig {
    let off = if event_idx { 0 } else { features::EVENT_IDX };
    GuestConfig { ring_size: RING, features: features::offered(1) & !off, ..GuestConfig::default() }
}

fn start(queue_bytes: usize, receiver: GuestConfig) -> (Net, Vm, Vm) {
    // A worker each: the one that delivers is not the one that drains.
    let net = Net::start(vec![port(1), PortConfig { queue_bytes, worker: 1, ..port(2) }]);
    let a = net.boot(1, GuestConfig::default());
    let mut b = net.boot(2, receiver);
    b.guest.auto_refill = false;
    (net, a, b)
}

#[test]
fn waiting_frames_come_in_order_when_buffers_are_given_back() {
    for event_idx in [false, true] {
        let (net, mut a, mut b) = start(4 << 20, slow_receiver(event_idx));
        let total = 200;
        (0..total).for_each(|i| a.send(&numbered(1, 2, i, 500)));
        let waiting = u64::from(total) - u64::from(RING);
        wait_until("frames to wait", || net.port(2).pending().0 == waiting);
        assert_eq!(net.port(2).pending().1, waiting * 1024, "small frames are charged 1 KiB");
        for number in 0..total {
            let (_, frame) = b.recv();
            assert_eq!(number_of(&frame), Some(number), "event_idx={event_idx}");
            // One at a time, and only a kick to tell of it.
            b.guest.refill(0, 1);
        }
        assert_eq!(net.port(2).rx().dropped(), 0);
        assert_eq!(net.port(2).pending(), (0, 0));
    }
}

#[test]
fn a_gso_packet_waits_until_there_are_enough_buffers() {
    for event_idx in [false, true] {
        // A ring of 32 takes the frame's 20 buffers, and is given one a time.
        let receiver = GuestConfig { ring_size: 32, ..slow_receiver(event_idx) };
        let (net, mut a, mut b) = start(4 << 20, receiver);
        for i in 0..32 {
            a.send(&numbered(1, 2, i, 100));
        }
        for i in 0..32 {
            assert_eq!(number_of(&b.recv().1), Some(i));
        }
        let frame = tcp(1, 2, false).build_partial(&pattern(1, 30_000));
        a.send_with(&partial(&frame, 1448), &frame);
        wait_until("the frame to wait", || net.port(2).pending().0 == 1);
        for _ in 0..20 {
            b.guest.refill(0, 1);
        }
        assert!(b.recv().1 == frame, "event_idx={event_idx}");
    }
}

#[test]
fn the_queue_is_bounded_and_what_it_does_not_take_is_counted() {
    let bound = 128 << 10;
    let (net, mut a, mut b) = start(bound, slow_receiver(true));
    let total = 1000;
    (0..total).for_each(|i| a.send(&numbered(1, 2, i, 100)));
    a.wait_sent();
    let status = net.port(2);
    assert_eq!(status.pending(), (128, bound as u64));
    assert_eq!(status.rx().packets, u64::from(RING));
    assert_eq!(net.rx_drops(2, "queue_full"), u64::from(total) - 128 - u64::from(RING));

    b.guest.auto_refill = true;
    for number in 0..128 + u32::from(RING) {
        let (_, frame) = b.recv();
        assert_eq!(number_of(&frame), Some(number));
        b.guest.refill(0, usize::MAX);
    }
    let next = numbered(1, 2, total, 100);
    a.send(&next);
    b.expect(&next);
}

#[test]
fn newer_frames_do_not_overtake_waiting_ones() {
    let (net, mut a, mut b) = start(4 << 20, slow_receiver(true));
    let (mut sent, mut received) = (0, 0);
    for round in 0..150u32 {
        for _ in 0..round % 40 {
            a.send(&numbered(1, 2, sent, 900));
            sent += 1;
        }
        b.guest.refill(0, (round % 7) as usize);
        while let Some((_, frame)) = b.guest.recv(0) {
            assert_eq!(number_of(&frame), Some(received));
            received += 1;
        }
    }
    b.guest.auto_refill = true;
    b.guest.refill(0, usize::MAX);
    while received < sent {
        let (_, frame) = wait("the rest", || b.guest.recv(0));
        assert_eq!(number_of(&frame), Some(received));
        received += 1;
    }
    assert_eq!(net.port(2).rx().dropped(), 0);
}

#[test]
fn frames_that_wait_for_a_guest_that_leaves_are_counted() {
    let (net, mut a, mut b) = start(4 << 20, slow_receiver(true));
    (0..100).for_each(|i| a.send(&numbered(1, 2, i, 100)));
    wait_until("frames to wait", || net.port(2).pending().0 == 100 - u64::from(RING));
    b.frontend = None;
    wait_until("counters", || net.rx_drops(2, "port_down") == 100 - u64::from(RING));
    assert_eq!(net.port(2).pending(), (0, 0));
}

#[test]
fn a_slow_receiver_does_not_slow_others_down() {
    let net = Net::of(3);
    let [mut a, mut b, mut c] = [1, 2, 3].map(|n| net.boot(n, slow_receiver(true)));
    b.guest.auto_refill = false;
    for number in 0..5000 {
        a.send(&numbered(1, 2, number, 1400));
        let frame = numbered(1, 3, number, 1400);
        a.send_with(&VnetHdr::default(), &frame);
        c.expect(&frame);
    }
    wait_until("counters", || {
        let (waiting, _) = net.port(2).pending();
        let rx = net.port(2).rx();
        rx.packets + waiting + rx.drops["queue_full"] == 5000
    });
}

#[test]
fn a_frame_that_can_never_fit_does_not_hold_up_the_others() {
    // 16 buffers of 1536 bytes are 24 KiB altogether.
    let (net, mut a, mut b) = start(4 << 20, slow_receiver(true));
    b.guest.auto_refill = true;
    let frame = tcp(1, 2, false).build_partial(&pattern(1, 60_000));
    a.send_with(&partial(&frame, 1448), &frame);
    let small = numbered(1, 2, 1, 100);
    a.send(&small);
    b.expect(&small);
    wait_until("counters", || net.rx_drops(2, "no_large_buffer") == 1);
}

#[test]
fn a_ring_of_tiny_buffers_is_not_walked_for_ever() {
    let receiver = GuestConfig { ring_size: 32768, rx_buffer: 16, ..GuestConfig::default() };
    let (net, mut a, mut b) = start(4 << 20, receiver);
    let frame = tcp(1, 2, false).build_partial(&pattern(1, 60_000));
    a.send_with(&partial(&frame, 1448), &frame);
    let small = numbered(1, 2, 1, 100);
    a.send(&small);
    b.expect(&small);
    wait_until("counters", || net.rx_drops(2, "no_large_buffer") == 1);
}
