//! What random search has found, each as the smallest case that shows it.

use floodway_core::offload::{Reason, TxState};
use floodway_core::time::Duration;

use crate::harness::switch::Action;
use crate::harness::{Setup, World};

const MS: fn(u64) -> Duration = Duration::from_millis;
const SECONDS: fn(u64) -> Duration = Duration::from_secs;
const MSS: i64 = 1448;

/// A connection of one round trip of 4 ms, that has carried something.
fn warm(setup: Setup) -> World {
    let mut world = cold(setup);
    world.transfer_some(100_000, 0);
    world
}

/// One that has carried nothing.
fn cold(mut setup: Setup) -> World {
    (setup.to_peer.delay, setup.to_guest.delay) = (MS(2), MS(2));
    let mut world = World::new(setup);
    world.connect();
    world.run_for(MS(100));
    world
}

/// The guest writes `segments`, of which those in `lost` are lost: all that leaves is counted, repairs too.
fn lose(world: &mut World, segments: i64, lost: &[u64]) {
    let bytes = world.peer.rx.bytes() + segments * MSS;
    world.to_peer.drop_next = lost.to_vec();
    world.guest.write(segments * MSS, world.now);
    world.run_until(SECONDS(30), |w| w.peer.rx.bytes() == bytes);
    world.run_for(SECONDS(1));
    assert!(world.to_peer.drop_next.is_empty(), "all that was to be lost was lost");
    world.check_i7();
}

#[test]
fn the_first_segment_of_a_connection_is_lost() {
    // Without the handshake's round trip both ends waited for a second.
    let mut setup = Setup { name: "first", ..Setup::default() };
    setup.offload.initial_window = 1;
    let mut world = cold(setup);
    lose(&mut world, 20, &[0]);
}

#[test]
fn a_lone_tail_and_its_probe_are_lost() {
    let mut world = warm(Setup { name: "lone", ..Setup::default() });
    lose(&mut world, 1, &[0, 1]);
    assert_eq!(world.switch.offload.counters().tail_loss_probes, 1);
}

#[test]
fn a_tail_is_lost_in_a_recovery_with_its_repair() {
    // 0 to 19 are sent, 20 repairs the tenth, 21 the last.
    let mut world = warm(Setup { name: "recovery-tail", ..Setup::default() });
    lose(&mut world, 20, &[10, 19, 21]);
}

#[test]
fn a_delayed_ack_comes_between_a_lost_probe_and_a_lost_repair() {
    // The first is acknowledged late, after the probe of the second.
    let mut setup = Setup { name: "late-ack", ..Setup::default() };
    (setup.peer.ack_every, setup.peer.delayed_ack) = (2, MS(45));
    let mut world = warm(setup);
    lose(&mut world, 2, &[1, 2, 3]);
}

#[test]
fn two_timers_run_out_at_once() {
    // The reordering timer and the retransmission timer sent the same segment twice (I1, by the monitor).
    for min_rto in (20..60).map(|n| Duration::from_micros(n * 250)) {
        let mut setup = Setup { name: "timers", ..Setup::default() };
        setup.offload.min_rto = min_rto;
        setup.to_peer.reorder_by = MS(1);
        let mut world = warm(setup);
        world.to_peer.config.reorder = 300;
        world.to_peer.config.loss = 100;
        world.guest.write(300_000, world.now);
        world.run_until(SECONDS(100), |w| w.peer.rx.bytes() == 400_000);
    }
}

#[test]
fn what_a_repair_frees_is_no_round_trip() {
    // It is as old as the repair is late: the timeouts grew to a minute, and progress came to a halt.
    let mut setup = Setup { name: "freed", ..Setup::default() };
    setup.peer.sack = false;
    let mut world = warm(setup);
    world.to_peer.drop_next = vec![1, 3, 5, 7, 9, 20, 21];
    world.guest.write(30 * MSS, world.now);
    world.run_until(SECONDS(30), |w| w.peer.rx.bytes() == 100_000 + 30 * MSS);
    let srtt = world.switch.summary(&world.flow).unwrap().srtt.unwrap();
    assert!(srtt < MS(10), "{srtt:?}");
}

#[test]
fn an_acknowledgement_rides_on_what_the_guest_has() {
    // The guest drops an old segment with all that is in its header, and would wait for what is acknowledged there.
    let mut world = warm(Setup { name: "old-data", ..Setup::default() });
    world.peer.write(1000, world.now);
    world.run_for(MS(100));
    world.to_guest.config.loss = 1000;
    world.guest.write(10 * MSS, world.now);
    world.run_for(MS(4));
    let mut packet = world.peer_segment(0);
    assert_eq!(world.peer.rx.bytes(), 100_000 + 10 * MSS, "it has arrived");
    packet.segment.seq = packet.segment.seq - 1000;
    packet.segment.len = 1000;
    packet.at -= 1000;
    world.network_packet(&packet);
    world.flush();
    world.run_for(MS(1));
    assert_eq!(world.guest.tx.una, 1 + 100_000 + 10 * MSS);
    world.check_i7();
}

#[test]
fn frames_of_the_smallest_mss_fill_the_budget() {
    let mut setup = Setup { name: "small-frames", ..Setup::default() };
    setup.guest.mss = 100;
    setup.guest.gso = 100;
    setup.offload.budget = 64 << 10;
    setup.to_peer.rate = Some(1_000);
    let mut world = warm(setup);
    world.guest.write(200_000, world.now);
    world.run_until(SECONDS(30), |w| w.peer.rx.bytes() == 300_000);
    assert_eq!(world.refused, 0);
    world.check_i7();
}

/// For a while the peer lives on this host: what the two say to each other does not come by.
fn visit(name: &'static str, stored: bool) -> World {
    let mut world = warm(Setup { name, ..Setup::default() });
    world.monitor.off = true;
    (world.guest.tolerant, world.peer.tolerant) = (true, true);
    if stored {
        world.to_peer.config.loss = 1000;
        world.guest.write(300_000, world.now);
        world.run_for(MS(1));
        world.to_peer.config.loss = 0;
    }
    world.bypass = 1000;
    world.guest.write(300_000, world.now);
    world.peer.write(300_000, world.now);
    world.run_for(SECONDS(2));
    world.bypass = 0;
    world
}

#[test]
fn a_peer_lives_on_this_host_for_a_while() {
    for (name, stored) in [("visit", false), ("visit-stored", true)] {
        let mut world = visit(name, stored);
        world.transfer(300_000, 300_000, SECONDS(30));
        assert_eq!(world.switch.offload.used(), (0, 0));
    }
}

#[test]
fn bytes_that_went_past_the_switch_end_the_offload_of_a_flow() {
    let mut world = visit("gap", false);
    // The guest is far ahead of what came by here.
    world.to_peer.config.loss = 1000;
    world.guest.write(10_000, world.now);
    world.run_for(MS(500));
    assert_ne!(world.switch.summary(&world.flow).unwrap().tx, TxState::Offline);
    world.run_for(MS(1000));
    let summary = world.switch.summary(&world.flow).unwrap();
    assert_eq!((summary.tx, summary.reason), (TxState::Offline, Reason::Gap));
    assert!(!world.guest.tx.managed, "the guest was told");
    world.to_peer.config.loss = 0;
    world.transfer(0, 0, SECONDS(30));
}

#[test]
fn a_flow_goes_offline_while_the_guest_is_ahead_of_it() {
    // The patience with it ran out when there was nothing left to give up, again and again.
    let mut world = warm(Setup { name: "gap-leaving", ..Setup::default() });
    let packet = world.guest_segment(1000, 0);
    world.guest_packet(&packet);
    world.drain(true);
    world.run_for(SECONDS(5));
    assert!(world.switch.offload.is_drained());
    let summary = world.switch.summary(&world.flow).unwrap();
    assert_eq!((summary.tx, summary.reason), (TxState::Offline, Reason::Draining));
}

#[test]
fn a_gap_that_the_guest_has_filled_ends_nothing() {
    // A segment came late, and those behind it waited for `cwnd` for longer than the guest is given to send what is missing: the flow was given up.
    let mut world = cold(Setup { name: "gap-filled", ..Setup::default() });
    world.to_peer.config.rate = Some(20);
    world.guest.write(100_000, world.now);
    world.reorder_guest();
    world.run_until(SECONDS(30), |w| w.peer.rx.bytes() == 100_000);
    assert_eq!(world.switch.offload.counters().went_offline, 0);
    world.check_i7();
}

#[test]
fn an_urgent_segment_is_not_cut_into_several() {
    use floodway_wire::tcp::Flags;
    let mut world = warm(Setup { name: "urgent-cut", ..Setup::default() });
    let mut packet = world.guest_segment(0, 5 * MSS as u32);
    packet.segment.gso_size = MSS as u16;
    packet.segment.flags = packet.segment.flags.with(Flags::URG);
    let (now, flow) = (world.now, world.flow);
    world.switch.guest_sends(now, &flow, &packet);
    let actions = world.switch.take_actions();
    let released: Vec<_> = actions
        .iter()
        .filter_map(|action| match action {
            Action::ToNetwork(packet) => Some((packet.at, packet.segment.len)),
            _ => None,
        })
        .collect();
    let expected: Vec<_> = (0..5).map(|n| (packet.at + n * MSS, MSS as u32)).collect();
    assert_eq!(released, expected);
}

#[test]
fn what_is_lost_beyond_the_recovery_point_is_another_congestion() {
    // A recovery ended while segments that were sent in it were lost and waited for the window: they were repeated without a
    // second reduction (I1, by the wire).
    for (seed, timestamps, loss) in [(91, false, 20), (127, false, 20), (364, true, 50)] {
        let mut setup = Setup { name: "beyond", seed, ..Setup::default() };
        (setup.to_peer.delay, setup.to_guest.delay) = (MS(2), MS(2));
        (setup.peer.mss, setup.peer.timestamps) = (500, timestamps);
        (setup.to_peer.reorder, setup.to_peer.reorder_by) = (20, MS(1));
        (setup.to_peer.rate, setup.to_peer.loss) = (Some(2_000), loss);
        let mut world = World::new(setup);
        world.connect();
        world.transfer(100_000, 0, SECONDS(100));
    }
}

#[test]
fn what_is_expected_of_a_segment_changes_nothing() {
    use floodway_core::offload::Expectation;
    use floodway_wire::tcp::Flags;
    let world = warm(Setup { name: "expectation", ..Setup::default() });
    let counters = world.switch.offload.counters();
    let mut segment = world.guest_segment(0, 100).segment;
    let expect = |segment: &_, flow: &_| world.switch.offload.expectation(flow, segment);
    assert_eq!(expect(&segment, &world.flow), Expectation::Online);
    let other = world.flow.reversed();
    assert_eq!(expect(&segment, &other), Expectation::Unknown);
    segment.flags = Flags::SYN;
    assert_eq!(expect(&segment, &other), Expectation::Opens);
    segment.flags = Flags::SYN.with(Flags::ACK);
    assert_eq!(expect(&segment, &other), Expectation::Unknown);
    assert_eq!(world.switch.offload.counters(), counters);
    assert_eq!(world.switch.offload.len(), 1);
}
