//! Loss detection and recovery, one test for each rule: what counts as reordering, what undoes a reduction, what a
//! timeout means, and what the peer hears of what came twice.

use floodway_core::seq::Seq;
use floodway_core::time::{Duration, Instant};

use crate::harness::{Setup, World};

const MS: fn(u64) -> Duration = Duration::from_millis;
const SECONDS: fn(u64) -> Duration = Duration::from_secs;
const MSS: i64 = 1448;

/// A connection with this round trip that has carried something.
fn warm(mut setup: Setup, round_trip: Duration) -> World {
    (setup.to_peer.delay, setup.to_guest.delay) = (round_trip / 2, round_trip / 2);
    setup.offload.initial_window = 45;
    let mut world = World::new(setup);
    world.connect();
    world.transfer_some(10_000, 0);
    world
}

fn write(world: &mut World, segments: i64) {
    world.guest.write(segments * MSS, world.now);
}

/// Writes 20 segments of which those in `lost` are lost; returns how long after the first duplicate ACK recovery begins.
fn patience(world: &mut World, lost: &[u64]) -> Duration {
    let before = world.switch.offload.counters();
    world.to_peer.drop_next = lost.to_vec();
    write(world, 20);
    world.run_until(SECONDS(5), |w| {
        w.switch.offload.counters().absorbed_dup_acks > before.absorbed_dup_acks
    });
    let duplicate: Instant = world.now;
    world.run_until(SECONDS(5), |w| {
        w.switch.offload.counters().fast_recoveries > before.fast_recoveries
    });
    let patience = world.now.since(duplicate);
    world.transfer_some(0, 0);
    assert_eq!(world.switch.offload.counters().undone, before.undone);
    patience
}

#[test]
fn an_ack_that_advances_and_sacks_is_no_reordering() {
    // With the delayed ACK of the segment before the first gap come the SACK blocks of the one behind it.
    for lost in [[4, 6], [5, 7], [3, 5]] {
        let mut world = warm(Setup { name: "ack-and-sack", ..Setup::default() }, MS(40));
        let patience = patience(&mut world, &lost);
        assert!(patience < MS(1), "{lost:?}: recovery begins after {patience:?}");
    }
}

#[test]
fn sack_blocks_whose_acks_were_lost_are_no_reordering() {
    // The first ACK that comes names the segment before the second gap and the one behind it.
    let mut world = warm(Setup { name: "late-blocks", ..Setup::default() }, MS(40));
    world.to_guest.drop_next = vec![2, 3];
    let patience = patience(&mut world, &[4, 6]);
    assert!(patience < MS(1), "recovery begins after {patience:?}");
}

#[test]
fn reordering_is_forgotten_after_sixteen_recoveries() {
    let mut world = warm(Setup { name: "forgotten", ..Setup::default() }, MS(40));
    world.to_peer.config.reorder_by = Duration::from_micros(20);
    world.to_peer.late_next = vec![5];
    write(&mut world, 20);
    world.run_for(SECONDS(1));
    // Between two losses the window grows again.
    let lose = |world: &mut World| {
        world.transfer_some(400 * MSS, 0);
        patience(world, &[2])
    };
    let waits: Vec<_> = (0..16).map(|_| lose(&mut world)).collect();
    let patient = waits.iter().all(|&wait| wait > MS(5));
    assert!(patient, "a path that reorders gets a quarter of a round trip: {waits:?}");
    assert!(lose(&mut world) < MS(1), "it has not reordered for long");
}

#[test]
fn a_duplicate_made_by_the_path_undoes_nothing() {
    // 35 segments are in flight: CUBIC goes to 0.7 of that, and not back to the 45 that it had.
    let mut world = warm(Setup { name: "path-duplicate", ..Setup::default() }, MS(4));
    let before = world.switch.summary(&world.flow).unwrap();
    assert_eq!((before.cwnd, before.ssthresh), (65_160, u32::MAX));
    world.to_peer.drop_next = vec![0];
    world.to_peer.duplicate_next = vec![14];
    write(&mut world, 35);
    world.run_for(SECONDS(1));
    let after = world.switch.summary(&world.flow).unwrap();
    assert_eq!((after.ssthresh, after.cwnd), (35_476, 35_476), "{after:?}");
    assert_eq!(world.switch.offload.counters().undone, 0);
}

#[test]
fn a_duplicate_made_by_the_path_keeps_no_loss_waiting() {
    let mut world = warm(Setup { name: "two-lost", ..Setup::default() }, MS(4));
    let before = world.switch.offload.counters();
    world.to_peer.drop_next = vec![10, 25];
    world.to_peer.duplicate_next = vec![14];
    write(&mut world, 35);
    world.run_for(SECONDS(1));
    let after = world.switch.offload.counters();
    assert_eq!((after.fast_recoveries, after.undone), (1, 0));
    assert_eq!(after.retransmitted - before.retransmitted, 2);
}

#[test]
fn a_recovery_from_mere_reordering_is_undone() {
    let mut world = warm(Setup { name: "undone", ..Setup::default() }, MS(4));
    let before = world.switch.summary(&world.flow).unwrap();
    world.to_peer.config.reorder_by = MS(3);
    world.to_peer.late_next = vec![10];
    write(&mut world, 200);
    world.run_for(SECONDS(1));
    let counters = world.switch.offload.counters();
    assert_eq!((counters.fast_recoveries, counters.undone), (1, 1));
    let after = world.switch.summary(&world.flow).unwrap();
    assert!(after.cwnd >= before.cwnd && after.ssthresh == u32::MAX, "{after:?}");
}

#[test]
fn what_comes_twice_is_answered_with_a_dsack() {
    // Our ACK is lost, and the guest does not run: the peer repeats what is kept for the guest.
    for sack in [true, false] {
        let mut setup = Setup { name: "dsack-down", ..Setup::default() };
        setup.guest.sack = sack;
        let mut world = warm(setup, MS(4));
        world.guest_drops = 1000;
        world.to_peer.drop_next = vec![0];
        world.peer.write(1000, world.now);
        world.run_for(MS(800));
        assert!(world.peer.tx.is_done(), "it was acknowledged in the end");
        let dsacks = world.count_on_wire(|packet| {
            let (ack, blocks) = (packet.segment.ack, packet.segment.options.sack_blocks());
            blocks.first().is_some_and(|block| !Seq(block.right).after(ack))
        });
        assert_eq!(dsacks, u64::from(sack));
        world.guest_drops = 0;
        world.transfer(0, 0, SECONDS(30));
    }
}

#[test]
fn a_slow_delayed_ack_is_learnt_without_sack() {
    // One segment at a time, to a peer that delays its ACKs for longer than the smallest timeout.
    let mut setup = Setup { name: "slow-ack", ..Setup::default() };
    setup.peer.sack = false;
    (setup.peer.ack_every, setup.peer.delayed_ack) = (2, MS(180));
    let mut world = warm(setup, MS(4));
    for _ in 0..50 {
        write(&mut world, 1);
        world.run_for(MS(500));
    }
    let timeouts = world.switch.offload.counters().timeouts;
    assert!(timeouts <= 3, "{timeouts} timeouts");
}

/// The delay of the path jumps while a window is under way.
fn spike(sack: bool) -> World {
    let mut setup = Setup { name: "spike", ..Setup::default() };
    setup.peer.sack = sack;
    let mut world = warm(setup, MS(4));
    world.to_peer.config.delay = MS(250);
    world
}

#[test]
fn a_needless_timeout_is_undone() {
    for sack in [true, false] {
        let mut world = spike(sack);
        let (before, counters) =
            (world.switch.summary(&world.flow).unwrap(), world.switch.offload.counters());
        write(&mut world, 100);
        world.run_for(SECONDS(2));
        let after = world.switch.summary(&world.flow).unwrap();
        let now = world.switch.offload.counters();
        assert!(now.timeouts > counters.timeouts, "sack {sack}: the delay is beyond the timeout");
        assert_eq!(now.undone - counters.undone, 1, "sack {sack}");
        assert!(after.cwnd >= before.cwnd && after.ssthresh >= before.ssthresh, "{after:?}");
        // The first segment by each timeout, and the tail loss probe.
        let again = now.retransmitted - counters.retransmitted;
        assert!(again <= 3, "sack {sack}: {again} sent again");
        world.transfer(0, 0, SECONDS(30));
    }
}

#[test]
fn a_timeout_of_something_lost_is_not_undone() {
    // All ACKs of the first window are lost, or segments at its start.
    for sack in [true, false] {
        for lost in [vec![0], vec![0, 5], vec![0, 1, 2, 20], (0..40).collect()] {
            let mut setup = Setup { name: "true-timeout", ..Setup::default() };
            setup.peer.sack = sack;
            let mut world = warm(setup, MS(4));
            let before = world.switch.offload.counters();
            world.to_peer.drop_next = lost.clone();
            world.to_guest.config.loss = 1000;
            write(&mut world, 40);
            world.run_for(MS(50));
            world.to_guest.config.loss = 0;
            world.run_for(SECONDS(5));
            let now = world.switch.offload.counters();
            assert!(now.timeouts > before.timeouts, "sack {sack}, {lost:?}");
            assert_eq!(now.undone, before.undone, "sack {sack}, {lost:?}");
            assert!(world.switch.summary(&world.flow).unwrap().ssthresh < u32::MAX);
            world.transfer(0, 0, SECONDS(30));
        }
    }
}

#[test]
fn the_edge_that_the_peer_is_told_goes_back_by_no_whole_unit() {
    // The guest tells it of an edge that is no whole number of units behind our next ACK. Both rules cannot be kept: not
    // to go back, and not to go beyond what the guest allows (R3). RFC 7323 section 2.4 allows the former by
    // less than a unit, since the guest takes all that it has ever allowed.
    for (scale, unit) in [(None, 1), (Some(0), 1), (Some(7), 128), (Some(10), 1024)] {
        let mut setup = Setup { name: "edge", ..Setup::default() };
        (setup.guest.scale, setup.guest.buffer) = (scale, 60_001);
        setup.cpu.runs = (MS(1), MS(2));
        setup.cpu.away = (MS(1), MS(20));
        let mut world = warm(setup, MS(4));
        world.transfer(0, 1_000_001, SECONDS(30));
        assert!(world.switch.offload.counters().acks_sent > 50);
        let back = world.monitor.most_edge_back;
        assert!(back < unit, "scale {scale:?}: {back} bytes");
    }
}
