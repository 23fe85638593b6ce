//! What comes out of order is reported before the guest has run. Byte by byte: rows `early_sack` of the scripts. That every block lies within what was delivered is
//! checked by the [monitor](crate::harness::monitor) in every run.

use std::cell::Cell;

use floodway_core::offload::{Counters, RxState};
use floodway_core::seq::Seq;
use floodway_core::time::Duration;
use floodway_wire::tcp::Flags;
use proptest::prelude::*;

use crate::harness::cases::check_at_least;
use crate::harness::packet::Packet;
use crate::harness::{Setup, World};
use crate::invariants::setup;
use crate::transfers::contended;

const MS: fn(u64) -> Duration = Duration::from_millis;
/// Segments of the tests.
const LEN: u32 = 1000;

/// A connection over a path of 8 ms whose guest has no CPU from now on.
fn waiting(name: &'static str, change: impl FnOnce(&mut Setup)) -> World {
    let mut setup = Setup { name, ..Setup::default() };
    setup.to_peer.delay = MS(4);
    setup.to_guest.delay = MS(4);
    setup.peer.reo_timer = true;
    change(&mut setup);
    let mut world = World::new(setup);
    world.connect();
    world.transfer_some(1000, 200_000);
    world.deschedule_guest();
    world
}

fn counters(world: &World) -> Counters {
    world.switch.offload.counters()
}

/// The peer's segment that begins so many segments behind its next byte.
fn peer_segment(world: &World, ahead: u32) -> Packet {
    let mut packet = world.peer_segment(LEN);
    packet.segment.seq += ahead * LEN;
    packet.at += i64::from(ahead * LEN);
    packet
}

/// Segments of the peer come in one batch.
fn batch(world: &mut World, segments: &[u32]) {
    for &ahead in segments {
        let packet = peer_segment(world, ahead);
        world.network_packet(&packet);
    }
    world.flush();
}

/// The blocks of the latest segment that left for the network, in segments from the peer's next byte on.
fn latest_blocks(world: &World) -> Vec<(u32, u32)> {
    let latest = world.captures().0.latest(true).unwrap();
    let next = world.peer_segment(0).segment.seq;
    let place = |seq| (Seq(seq).since(next) / LEN, Seq(seq).since(next) % LEN);
    let blocks = latest.segment.options.sack_blocks().iter();
    blocks
        .map(|block| {
            let ((left, 0), (right, 0)) = (place(block.left), place(block.right)) else {
                panic!("{block:?}")
            };
            (left, right)
        })
        .collect()
}

/// The peer writes, and one segment of it is lost.
fn lose_one(world: &mut World) {
    world.to_guest.drop_next = vec![5];
    world.peer.write(40_000, world.now);
}

/// How long after it was lost a segment is sent again to a guest that gets a CPU after 30 ms, and after how many timeouts.
fn time_to_repair(name: &'static str, change: impl FnOnce(&mut Setup)) -> (Duration, u64) {
    let mut world = waiting(name, change);
    let start = world.now;
    lose_one(&mut world);
    while world.peer.tx.counts.segments == 0 && world.now < start + MS(30) {
        world.run_for(MS(1) / 10);
    }
    world.reschedule_guest();
    world.run_until(MS(200), |world| world.peer.tx.counts.segments > 0);
    let taken = world.now.since(start);
    world.transfer(0, 0, Duration::from_secs(30));
    (taken, world.peer.tx.counts.timeouts)
}

#[test]
fn a_hole_is_repaired_in_a_round_trip_while_the_guest_waits_for_its_cpu() {
    let (early, timeouts) = time_to_repair("hole", |_| {});
    let (off, _) = time_to_repair("hole-off", |setup| setup.offload.receive = false);
    let (no_sack, _) = time_to_repair("hole-no-sack", |setup| setup.guest.sack = false);
    // The way there and back, and a quarter of it for reordering (RFC 8985).
    assert!(early >= MS(8) && early < MS(12) && timeouts == 0, "{early:?} {timeouts}");
    // Without reports it waits until the guest has run.
    assert!(off >= MS(34) && no_sack >= MS(34), "{off:?} {no_sack:?}");
}

/// The price of reports where the path merely reorders.
#[test]
fn what_only_comes_late_is_repeated_once_at_most_and_the_peer_is_told() {
    let mut world = waiting("late", |setup| setup.to_guest.reorder_by = MS(1));
    world.to_guest.late_next = vec![5];
    world.peer.write(40_000, world.now);
    world.run_for(MS(30));
    world.reschedule_guest();
    world.run_for(MS(500));
    let counts = world.peer.tx.counts;
    assert!(world.peer.tx.is_done() && counts.timeouts == 0 && counts.segments <= 1, "{counts:?}");
    let dsacks = world.count_on_wire(|packet| {
        let (ack, blocks) = (packet.segment.ack, packet.segment.options.sack_blocks());
        blocks.first().is_some_and(|block| !Seq(block.right).after(ack))
    });
    assert_eq!(dsacks, counts.segments);
}

#[test]
fn a_batch_is_one_report_whatever_came_in_it() {
    let mut world = waiting("batch", |_| {});
    let before = counters(&world);
    batch(&mut world, &[5, 1, 3, 2]);
    assert_eq!(latest_blocks(&world), [(1, 4), (5, 6)]);
    // What fills the hole in the same batch leaves nothing to be reported.
    batch(&mut world, &[7, 0]);
    let after = counters(&world);
    assert_eq!(
        (after.early_sacks, after.acks_sent),
        (before.early_sacks + 1, before.acks_sent + 1)
    );
    assert_eq!(after.acknowledged_bytes, before.acknowledged_bytes, "no promise is made");
}

#[test]
fn what_the_guests_queue_has_no_room_for_is_not_reported() {
    let mut world = waiting("undelivered", |_| {});
    let before = counters(&world).early_sacks;
    world.queue_drops = 1000;
    batch(&mut world, &[1, 2]);
    assert_eq!(counters(&world).early_sacks, before);
    world.queue_drops = 0;
    batch(&mut world, &[3]);
    assert_eq!(latest_blocks(&world), [(3, 4)]);
    world.queue_drops = 1000;
    batch(&mut world, &[4]);
    world.queue_drops = 0;
    // It comes again, and with it what was not delivered.
    batch(&mut world, &[1, 4]);
    assert_eq!(latest_blocks(&world), [(3, 5), (1, 2)]);
}

/// Nothing is reported by a flow in the state in which `change` leaves it.
fn is_silent(name: &'static str, change: impl FnOnce(&mut World)) -> World {
    let mut world = waiting(name, |_| {});
    batch(&mut world, &[1]);
    change(&mut world);
    let before = counters(&world);
    batch(&mut world, &[3]);
    let after = counters(&world);
    assert_eq!((after.early_sacks, after.acks_sent), (before.early_sacks, before.acks_sent));
    world
}

#[test]
fn flows_that_are_paused_drained_or_offline_report_nothing() {
    let mut paused = is_silent("paused", World::stop_guest);
    paused.resume_guest();
    paused.deschedule_guest();
    batch(&mut paused, &[5]);
    assert_eq!(latest_blocks(&paused), [(5, 6)], "what had waited may be lost");

    // Urgent data that has waited may still be there: what lies behind it is the guest's to report.
    let mut urgent = waiting("paused-urgent", |_| {});
    let mut packet = peer_segment(&urgent, 1);
    packet.segment.flags = packet.segment.flags.with(Flags::URG);
    urgent.network_packet(&packet);
    urgent.stop_guest();
    urgent.resume_guest();
    urgent.deschedule_guest();
    let before = counters(&urgent).early_sacks;
    batch(&mut urgent, &[3]);
    assert_eq!(counters(&urgent).early_sacks, before);

    is_silent("drained", |world| world.drain(true));
    is_silent("off", |world| world.configure(|config| config.receive = false));
    // A report that is due when the rings stop is dropped.
    let mut world = waiting("due", |_| {});
    let (packet, before) = (peer_segment(&world, 1), counters(&world).acks_sent);
    world.network_packet(&packet);
    world.stop_guest();
    world.flush();
    assert_eq!(counters(&world).acks_sent, before);
}

#[test]
fn the_next_process_knows_what_was_reported_and_after_a_death_nothing_is() {
    let mut world = waiting("handed-over", |_| {});
    batch(&mut world, &[1]);
    world.hand_over_whole();
    batch(&mut world, &[3]);
    assert_eq!(latest_blocks(&world), [(3, 4), (1, 2)]);

    let mut world = waiting("died", |_| {});
    let memory = world.record();
    batch(&mut world, &[0, 2]);
    world.replace_switch(memory, |_| true);
    let before = counters(&world);
    batch(&mut world, &[4]);
    assert_eq!(counters(&world).acks_sent, before.acks_sent);
}

/// The guest says to each segment that came what a TCP says, and the peer hears of each once.
#[test]
fn a_peer_hears_of_no_more_duplicates_than_the_guest_sends() {
    let duplicates = |receive| {
        let mut world = waiting("duplicates", |setup| setup.offload.receive = receive);
        let number = world.peer_segment(0).segment.seq + 5 * 1448;
        lose_one(&mut world);
        world.run_for(MS(30));
        world.reschedule_guest();
        world.run_for(MS(500));
        assert!(world.peer.tx.is_done());
        let blocks = |packet: &Packet| packet.segment.options.sack_blocks().len();
        let counted = world.count_on_wire(|packet| {
            packet.segment.ack == number && packet.segment.is_pure_ack() && blocks(packet) > 0
        });
        (counted, counters(&world).early_sacks)
    };
    let ((off, none), (on, early)) = (duplicates(false), duplicates(true));
    assert!((none, early) == (0, 22) && off >= early, "{early} reports, {off} without");
    assert_eq!(on, off);
}

/// A peer that sends single bytes far apart costs bounded work: one ACK for each batch, with a bounded number of blocks, and no byte of any budget.
#[test]
fn single_bytes_out_of_order_cost_one_ack_for_a_batch() {
    let mut world = waiting("bytes", |_| {});
    let before = counters(&world);
    for round in 0..100 {
        for n in 0..3 {
            let mut packet = world.peer_segment(1);
            let ahead = 2 + 2 * ((round * 3 + n) * 7919 % 10_000);
            packet.segment.seq += ahead;
            packet.at += i64::from(ahead);
            world.network_packet(&packet);
        }
        world.flush();
        let latest = world.captures().0.latest(true).unwrap();
        assert!((1..=3).contains(&latest.segment.options.sack_blocks().len()));
    }
    assert_eq!(counters(&world).acks_sent - before.acks_sent, 100);
    assert_eq!(world.switch.offload.used().1, 0);
    // The guest takes it all, and the flow is as before.
    world.reschedule_guest();
    world.transfer(0, 50_000, Duration::from_secs(30));
    assert!(world.switch.summary(&world.flow).is_none_or(|flow| flow.rx != RxState::UnexpectedSeq));
}

/// I2, R5: over paths that lose and reorder, to guests that wait for a CPU and lose frames. The monitor checks each block.
#[test]
fn every_byte_arrives_over_holes_that_are_reported() {
    let reports = Cell::new(0);
    let path = (1..100_u32, 0..200_u32, 100..5_000_u64, prop_oneof![2 => Just(0), 1 => 1..50_u32]);
    check_at_least(100, (setup(30), path, 1..400_000_i64), |(mut setup, path, down)| {
        let (loss, reorder, by, queue_drops) = path;
        (setup.guest.sack, setup.peer.sack, setup.queue_drops) = (true, true, queue_drops);
        setup.offload.receive_budget = 1 << 20;
        let path = &mut setup.to_guest;
        (path.loss, path.reorder, path.reorder_by) = (loss, reorder, Duration::from_micros(by));
        setup.peer.reo_timer = true;
        if loss % 2 == 0 {
            setup.cpu = contended();
        }
        let mut world = World::new(Setup { name: "reported", ..setup });
        world.connect();
        world.transfer(1000, down, Duration::from_secs(10_000));
        reports.set(reports.get() + counters(&world).early_sacks);
        world.run_for(Duration::from_secs(400));
        assert_eq!(world.switch.offload.used(), (0, 0));
    });
    assert!(reports.get() > 0, "nothing was reported");
}
