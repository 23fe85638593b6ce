//! The guest's queue has no room for a segment. Its acknowledgement is withdrawn before it leaves.

use floodway_core::offload::RxState;
use floodway_core::time::Duration;

use crate::harness::{Setup, World};

const MS: fn(u64) -> Duration = Duration::from_millis;
const SECONDS: fn(u64) -> Duration = Duration::from_secs;
/// Segments of the tests.
const LEN: u32 = 1000;

/// A connection whose guest has no CPU from now on.
fn waiting(name: &'static str) -> World {
    let mut world = World::new(Setup { name, ..Setup::default() });
    world.connect();
    world.transfer_some(1000, 200_000);
    world.deschedule_guest();
    world
}

/// The peer's segment that begins so many segments behind its next byte comes, and its frame gets into the guest's queue, or does not.
fn segment(world: &mut World, ahead: u32, queued: bool) {
    let mut packet = world.peer_segment(LEN);
    packet.segment.seq += ahead * LEN;
    packet.at += i64::from(ahead * LEN);
    world.queue_drops = if queued { 0 } else { 1000 };
    world.network_packet(&packet);
    world.queue_drops = 0;
}

/// How far the latest segment that left for the network acknowledges, in bytes from the peer's next one on.
fn acknowledged(world: &World) -> u32 {
    let latest = world.captures().0.latest(true).unwrap().segment;
    latest.ack.since(world.peer_segment(0).segment.seq)
}

#[test]
fn what_the_queue_drops_is_not_acknowledged_and_what_was_before_it_is() {
    let mut world = waiting("full-queue-batch");
    let before = world.switch.offload.counters();
    segment(&mut world, 0, true);
    segment(&mut world, 1, true);
    segment(&mut world, 2, false);
    world.flush();
    assert_eq!(acknowledged(&world), 2 * LEN);
    assert_eq!(world.switch.offload.used().1, 2 * LEN, "what is not acknowledged is not kept");
    let after = world.switch.offload.counters();
    assert_eq!(
        (after.acks_sent - before.acks_sent, after.rx_withdrawn - before.rx_withdrawn),
        (1, 1)
    );
    assert_eq!(world.switch.summary(&world.flow).unwrap().rx, RxState::NoBuffer);
}

#[test]
fn nothing_is_said_if_the_queue_drops_all_of_a_batch() {
    let mut world = waiting("full-queue-all");
    let before = world.switch.offload.counters();
    (0..3).for_each(|ahead| segment(&mut world, ahead, false));
    world.flush();
    let after = world.switch.offload.counters();
    assert_eq!((after.acks_sent, after.early_sacks), (before.acks_sent, before.early_sacks));
    assert_eq!(world.switch.offload.used().1, 0);
}

#[test]
fn what_lies_behind_a_dropped_segment_is_reported_at_once() {
    let mut world = waiting("full-queue-report");
    segment(&mut world, 0, false);
    segment(&mut world, 1, true);
    world.flush();
    let next = world.peer_segment(0).segment.seq;
    let latest = world.captures().0.latest(true).unwrap().segment;
    let blocks: Vec<_> =
        latest.options.sack_blocks().iter().map(|block| (block.left, block.right)).collect();
    assert_eq!((latest.ack, blocks), (next, vec![((next + LEN).0, (next + 2 * LEN).0)]));
    // It is repeated, and the guest finds both.
    segment(&mut world, 0, true);
    world.reschedule_guest();
    world.run_for(MS(50));
    assert_eq!(acknowledged(&world), 2 * LEN);
    assert_eq!(world.switch.summary(&world.flow).unwrap().rx, RxState::Active);
}

#[test]
fn the_peer_repairs_what_a_full_queue_has_dropped() {
    let mut world = waiting("full-queue-peer");
    let redelivered = world.switch.offload.counters().redelivered;
    world.queue_drops = 1000;
    world.peer.write(3_000, world.now);
    world.run_for(MS(5));
    assert!(!world.peer.tx.is_done());
    world.queue_drops = 0;
    world.reschedule_guest();
    // The peer's own timeout, which it would have had without the switch. Kept data come again after a second.
    world.run_for(MS(500));
    assert!(world.peer.tx.is_done());
    world.check_received(1000, 203_000);
    assert_eq!(world.switch.offload.counters().redelivered, redelivered);
    world.transfer(0, 100_000, SECONDS(10));
}

/// Data of the guest that a segment releases leaves before it is known whether the queue takes the segment.
#[test]
fn what_a_segment_releases_does_not_acknowledge_it_yet() {
    let mut setup = Setup { name: "full-queue-released", ..Setup::default() };
    (setup.to_peer.delay, setup.to_guest.delay) = (MS(4), MS(4));
    // What the peer writes carries an acknowledgement that is news.
    (setup.peer.ack_every, setup.peer.delayed_ack) = (50, MS(40));
    let mut world = World::new(setup);
    world.connect();
    // More than the switch's window lets out.
    world.guest.write(1_000_000, world.now);
    world.run_for(MS(20));
    let counters = |world: &World| world.switch.offload.counters();
    let before = counters(&world);
    world.queue_drops = 1000;
    world.peer.write(1_000, world.now);
    world.run_for(MS(15));
    world.queue_drops = 0;
    let after = counters(&world);
    assert!(after.released > before.released);
    assert_eq!((after.rx_withdrawn, world.switch.offload.used().1), (1, 0));
    assert!(!world.peer.tx.is_done(), "it is not acknowledged");
    world.transfer(0, 0, SECONDS(5));
    assert_eq!(counters(&world).redelivered, 0);
    world.check_received(1_000_000, 1_000);
}

/// A segment that has the switch repair a loss, and is dropped, is not acknowledged by the repair.
#[test]
fn what_is_repaired_does_not_acknowledge_what_the_queue_drops() {
    for loss in [20, 50, 100] {
        let mut setup = Setup { name: "full-queue-repair", queue_drops: 100, ..Setup::default() };
        (setup.to_peer.delay, setup.to_guest.delay) = (MS(4), MS(4));
        setup.to_peer.loss = loss;
        let mut world = World::new(setup);
        world.connect();
        world.transfer(300_000, 300_000, SECONDS(600));
        let counters = world.switch.offload.counters();
        assert!(counters.retransmitted > 0 && counters.rx_withdrawn > 0, "{counters:?}");
    }
}

#[test]
fn the_journal_has_nothing_of_what_was_withdrawn() {
    for dies in [false, true] {
        let mut world = World::new(Setup { name: "full-queue-journal", ..Setup::default() });
        let memory = world.record();
        world.connect();
        world.transfer_some(1000, 200_000);
        world.deschedule_guest();
        (0..3).for_each(|ahead| segment(&mut world, ahead, ahead < 2));
        world.flush();
        assert_eq!(world.switch.offload.used().1, 2 * LEN);
        if dies {
            world.replace_switch(memory, |_| true);
        } else {
            assert_eq!(world.hand_over(Some(memory)).refused, 0);
            assert_eq!(world.switch.summary(&world.flow).unwrap().rx, RxState::NoBuffer);
        }
        assert_eq!(world.switch.offload.used().1, 2 * LEN);
    }
}
