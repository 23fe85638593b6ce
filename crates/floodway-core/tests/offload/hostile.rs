//! Guests and peers that mean harm, and ends that keep to no grant: one test per rule.

use floodway_core::offload::{BufferPolicy, Config, Segment, TxState};
use floodway_core::seq::Seq;
use floodway_core::time::{Duration, Instant};
use floodway_wire::tcp::Flags;
use floodway_wire::tcp::options::{SackBlock, Timestamps};

use crate::harness::packet::Packet;
use crate::harness::switch::{Action, Switch};
use crate::harness::tcp::Digest;
use crate::harness::{Setup, World, flow};

const MS: fn(u64) -> Duration = Duration::from_millis;
const SECONDS: fn(u64) -> Duration = Duration::from_secs;

fn connected(name: &'static str) -> World {
    let mut world = World::new(Setup { name, ..Setup::default() });
    world.connect();
    world.run_for(MS(50));
    world.transfer_some(10_000, 10_000);
    world
}

#[test]
fn single_bytes_do_not_fill_the_memory() {
    let mut world = connected("bytes");
    world.to_peer.config.loss = 1000;
    let mut stored = 0;
    for n in 0..60_000 {
        // Every second byte, so that nothing joins.
        let packet = world.guest_segment(2 * n, 1);
        stored += u32::from(world.guest_packet(&packet) == floodway_core::offload::Verdict::Absorb);
    }
    let limit = world.switch.offload.config().budget / 64;
    assert!(stored <= limit, "{stored} frames of one byte, {limit} allowed");
    // The same from the network.
    let mut world = connected("bytes-down");
    let mut kept = 0;
    let first = world.peer_segment(1);
    for n in 0..30_000 {
        let mut packet = first.clone();
        packet.segment.seq = first.segment.seq + n;
        packet.at += i64::from(n);
        let before = world.switch.offload.counters().acknowledged_bytes;
        world.network_packet(&packet);
        kept += world.switch.offload.counters().acknowledged_bytes - before;
    }
    assert!(kept <= u64::from(world.switch.offload.config().receive_budget / 512), "{kept}");
}

#[test]
fn a_guest_that_ignores_its_grants_uses_no_more_than_the_budget() {
    // I4: the monitor checks it after each call.
    let mut world = connected("greedy");
    world.to_peer.config.loss = 1000;
    for n in 0..2000 {
        let packet = world.guest_segment(n * 60_000 % 100_000_000, 60_000);
        world.guest_packet(&packet);
        world.flush();
    }
    assert!(world.refused > 1000);
    let (used, _) = world.switch.offload.used();
    assert!(used <= world.switch.offload.config().budget);
}

/// Opens a connection and says nothing else; the peer's window is `window` in units of `2^scale`.
fn open(switch: &mut Switch, now: Instant, port: u16, window: u16, scale: u8) {
    let mut syn = Packet { segment: Segment { flags: Flags::SYN, ..Segment::default() }, at: 0 };
    syn.segment.seq = Seq(1000);
    syn.segment.window = window;
    syn.segment.options.window_scale = Some(scale);
    let flow = flow(port);
    switch.guest_sends(now, &flow, &syn);
    let mut answer = syn.clone();
    answer.segment.flags = Flags::SYN.with(Flags::ACK);
    answer.segment.ack = Seq(1001);
    answer.segment.has_room = true;
    switch.peer_sends(now, &flow, &answer);
    let mut ack = answer.clone();
    ack.segment.flags = Flags::ACK;
    ack.segment.seq = Seq(1001);
    switch.guest_sends(now, &flow, &ack);
}

#[test]
fn the_same_addresses_in_two_vlans_are_two_connections() {
    let config = Config { transmit: true, receive: true, ..Config::default() };
    let (mut switch, now) = (Switch::new(config), Instant::from_millis(1));
    let mut syn = Packet { segment: Segment { flags: Flags::SYN, ..Segment::default() }, at: 0 };
    for (vlan, seq) in [(0, 1000), (5, 2000), (6, 3000)] {
        syn.segment.seq = Seq(seq);
        switch.guest_sends(now, &flow(1).in_vlan(vlan), &syn);
    }
    assert_eq!(switch.offload.len(), 3);
    // An answer in one of them is none to the others.
    syn.segment.flags = Flags::SYN.with(Flags::ACK);
    syn.segment.ack = Seq(2001);
    switch.peer_sends(now, &flow(1).in_vlan(5), &syn);
    let online = |vlan| switch.summary(&flow(1).in_vlan(vlan)).unwrap().tx == TxState::Active;
    assert_eq!([0, 5, 6].map(online), [false, true, false]);
}

#[test]
fn many_connections_of_a_guest_share_one_budget() {
    let config = Config {
        transmit: true,
        receive: true,
        budget: 1 << 20,
        max_flows: 1000,
        ..Config::default()
    };
    let mut switch = Switch::new(config);
    let mut now = Instant::from_millis(1);
    for round in 0..5_000_u32 {
        open(&mut switch, now, round as u16 % 3000, 65_535, 7);
        switch.flush(now);
        switch.take_actions();
        now += Duration::from_micros(700);
        while switch.offload.next_timeout() <= now {
            switch.on_time(now);
        }
        switch.take_actions();
        assert!(switch.offload.used().0 <= 1 << 20);
        assert!(switch.offload.len() <= 1000);
    }
    assert!(
        switch.offload.counters().flows_refused > 0,
        "a full table refuses what it cannot evict"
    );
}

/// Whoever opens connections in the guest's name need not be a socket of its kernel, which reads what SYN-ACKs bear.
#[test]
fn names_that_nobody_reads_put_no_heartbeat_off() {
    let mut switch = Switch::new(Config { transmit: true, ..Config::default() });
    switch.offload.name_in_syn_acks(true);
    let (mut now, mut heartbeats) = (Instant::from_millis(1), 0);
    for port in 0..60 {
        open(&mut switch, now, port, 65_535, 7);
        switch.flush(now);
        now += Duration::from_millis(50);
        switch.on_time(now);
        let actions = switch.take_actions();
        heartbeats += actions.iter().filter(|action| matches!(action, Action::Heartbeat)).count();
    }
    assert_eq!(switch.offload.counters().named_in_syn_ack, 60);
    assert!(heartbeats >= 25, "{heartbeats} in 3 s");
}

/// A name is worth something to whoever has its connection begin with the same numbers.
#[test]
fn a_late_syn_ack_with_other_numbers_bears_no_name() {
    let mut switch = Switch::new(Config { transmit: true, ..Config::default() });
    switch.offload.name_in_syn_acks(true);
    let now = Instant::from_millis(1);
    open(&mut switch, now, 1, 65_535, 7);
    for (seq, named) in [(1000, 2), (5000, 2), (999, 2)] {
        let mut again = Packet { segment: Segment::default(), at: 0 };
        again.segment.flags = Flags::SYN.with(Flags::ACK);
        (again.segment.seq, again.segment.ack) = (Seq(seq), Seq(1001));
        again.segment.has_room = true;
        switch.peer_sends(now, &flow(1), &again);
        assert_eq!(switch.offload.counters().named_in_syn_ack, named, "{seq}");
    }
}

#[test]
fn windows_in_large_units_stay_within_the_budget() {
    // The window of a SYN-ACK has no scale: the next one that is written rounds the edge up by most of a unit, and
    // the budget has just room for the flow.
    let buffer = BufferPolicy::None;
    let config = Config { transmit: true, budget: 1 << 18, buffer, ..Config::default() };
    let (budget, now) = (config.budget, Instant::from_millis(1));
    let mut online = 0;
    for len in (180_000..250_000).step_by(500) {
        let mut switch = Switch::new(config.clone());
        open(&mut switch, now, 1, 65_535, 6);
        let mut data = Packet { segment: Segment::default(), at: 0 };
        (data.segment.seq, data.segment.ack) = (Seq(1001), Seq(1001));
        data.segment.flags = Flags::ACK;
        while data.segment.seq.since(Seq(1001)) < len {
            data.segment.len = 10_000.min(len - data.segment.seq.since(Seq(1001)));
            switch.guest_sends(now, &flow(1), &data);
            switch.flush(now);
            data.segment.seq += data.segment.len;
        }
        open(&mut switch, now, 2, 5_000, 14);
        online += u32::from(switch.summary(&flow(2)).unwrap().tx == TxState::Active);
        switch.offload.drain(true, now, &mut switch.actions);
        switch.flush(now);
        assert!(switch.offload.used().0 <= budget, "{} behind {len}", switch.offload.used().0);
    }
    assert!(online > 0);
}

#[test]
fn a_clock_out_of_the_window_gets_into_nothing_that_we_make() {
    let mut world = connected("clock");
    let mut packet = world.blind(1 << 29);
    let clock = packet.segment.options.timestamps.as_mut().unwrap();
    clock.value = clock.value.wrapping_add(1 << 30);
    let poison = clock.value;
    packet.segment.flags = Flags::ACK;
    world.network_packet(&packet);
    // What the guest sends again is answered by an ACK that we make.
    let packet = world.guest_segment(-100, 100);
    world.switch.guest_sends(world.now, &world.flow.clone(), &packet);
    world.switch.flush(world.now);
    let made: Vec<_> = world
        .switch
        .take_actions()
        .into_iter()
        .filter_map(|action| match action {
            Action::ToGuest(packet) => packet.timestamps(),
            _ => None,
        })
        .collect();
    assert!(!made.is_empty());
    assert!(made.iter().all(|t: &Timestamps| t.value != poison));
}

#[test]
fn sack_blocks_of_all_kinds_do_no_harm() {
    let mut world = connected("sack");
    world.to_peer.config.rate = Some(500);
    world.to_peer.config.queue = 1 << 24;
    world.guest.write(300_000, world.now);
    world.run_for(MS(3));
    let una = world.blind(0).segment.ack.0.wrapping_sub(300_000);
    let released = world.switch.summary(&world.flow).unwrap().in_flight;
    assert!(released > 10_000);
    let base = world.guest.seq(world.guest.tx.una).0;
    assert_ne!(una, base.wrapping_add(1));
    let blocks = [(0, 1), (5, 3), (0, u32::MAX / 2), (1, 2), (u32::MAX - 5, 10), (2, 4), (3, 2900)];
    for (n, (left, right)) in blocks.into_iter().cycle().take(5_000).enumerate() {
        let shift = n as u32 % 10_000;
        let (left, right) = (
            base.wrapping_add(left).wrapping_add(shift),
            base.wrapping_add(right).wrapping_add(shift),
        );
        let mut packet = world.blind(0);
        packet.segment.flags = Flags::ACK;
        packet.segment.ack = Seq(base);
        packet.segment.options.set_sack_blocks(&[SackBlock { left, right }]);
        world.monitor.off = true;
        world.network_packet(&packet);
        world.flush();
    }
    // None of it was true, and all of it has come.
    world.transfer(0, 0, SECONDS(120));
}

/// A transfer whose peer discards all that it has out of order once it has SACKed `most` bytes of it, `times` times.
fn reneging(name: &'static str, most: i64, times: u32, peer_sends: bool, tlp: bool) -> World {
    let mut setup = Setup { name, ..Setup::default() };
    (setup.to_peer.delay, setup.to_guest.delay, setup.guest.tlp) = (MS(5), MS(5), tlp);
    // So much is on its way that it comes out of order before the first repair.
    setup.offload.initial_window = 20;
    let mut world = World::new(setup);
    world.connect();
    world.transfer_some(100_000, 1000);
    world.peer.rx.digest = Some(Digest::of_stream(100_000));
    let bytes = 400_000 * i64::from(times);
    for _ in 0..times {
        world.to_peer.drop_next = vec![3, 4, 20, 40];
        world.guest.write(400_000, world.now);
        world.run_until(SECONDS(10), |w| w.peer.rx.out_of_order_bytes() >= most);
        // What it says of that is on its way.
        world.peer.rx.renege();
        if peer_sends {
            world.peer.write(10_000, world.now);
        }
    }
    let start = world.now;
    while world.peer.rx.bytes() < 100_000 + bytes {
        if peer_sends {
            world.peer.write(100, world.now);
        }
        world.run_for(MS(10));
        assert!(world.now.since(start) < SECONDS(20), "{:?}", world.switch.offload.counters());
    }
    assert_eq!(world.peer.rx.digest, Some(Digest::of_stream(100_000 + bytes)));
    world.transfer(0, 0, SECONDS(10));
    world
}

#[test]
fn what_a_peer_sacked_and_discarded_is_sent_again() {
    for peer_sends in [false, true] {
        for tlp in [false, true] {
            for (most, times) in [(1_448, 1), (10_000, 1), (20_000, 1), (5_000, 5)] {
                let world = reneging("renege", most, times, peer_sends, tlp);
                assert!(world.switch.offload.counters().reneged > 0, "{most} {times}");
            }
        }
    }
}

#[test]
fn a_peer_that_discards_all_the_time_gets_everything_in_the_end() {
    let mut setup = Setup { name: "renege-often", ..Setup::default() };
    setup.to_peer.loss = 30;
    let mut world = World::new(setup);
    world.connect();
    world.peer.rx.digest = Some(Digest::default());
    world.guest.write(500_000, world.now);
    let start = world.now;
    while world.peer.rx.bytes() < 500_000 {
        world.run_for(MS(3));
        world.peer.rx.renege();
        assert!(world.now.since(start) < SECONDS(60));
    }
    assert_eq!(world.peer.rx.digest, Some(Digest::of_stream(500_000)));
}

/// The peer says that it has all that was sent, but acknowledges nothing. Nothing has come to it.
#[test]
fn a_block_that_begins_at_the_left_edge_is_not_believed() {
    for peer_sends in [false, true] {
        let mut world = connected("left-edge");
        let before = world.peer.rx.bytes();
        world.to_peer.config.loss = 1000;
        world.guest.write(30_000, world.now);
        world.run_for(MS(1));
        let in_flight = world.switch.summary(&world.flow).unwrap().in_flight;
        assert!(in_flight > 10_000);
        let mut packet = world.blind(0);
        packet.segment.flags = Flags::ACK;
        let Seq(left) = packet.segment.ack;
        let block = SackBlock { left, right: left.wrapping_add(in_flight) };
        packet.segment.options.set_sack_blocks(&[block]);
        world.monitor.off = true;
        world.network_packet(&packet);
        world.flush();
        world.to_peer.config.loss = 0;
        for _ in 0..200 {
            if peer_sends {
                world.peer.write(100, world.now);
            }
            world.run_for(MS(10));
        }
        assert_eq!(world.peer.rx.bytes(), before + 30_000);
    }
}

#[test]
fn a_late_answer_to_a_tail_probe_is_no_loss() {
    let mut world = connected("probe-late");
    let before = world.switch.summary(&world.flow).unwrap().cwnd;
    world.to_peer.config.delay = MS(100);
    world.transfer_some(20_000, 0);
    let counters = world.switch.offload.counters();
    assert!(counters.tail_loss_probes > 0, "{counters:?}");
    assert!(world.switch.summary(&world.flow).unwrap().cwnd >= before);
}
