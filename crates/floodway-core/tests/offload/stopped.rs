//! A guest that is stopped while bytes are acknowledged for it: paused, moved, dead (R1).

use floodway_core::offload::TxState;
use floodway_core::time::Duration;
use floodway_wire::tcp::Flags;

use crate::harness::tcp::State;
use crate::harness::{Setup, World};

const MS: fn(u64) -> Duration = Duration::from_millis;
const SECONDS: fn(u64) -> Duration = Duration::from_secs;

/// A world in which the switch has acknowledged bytes that wait in the guest's queue, while the guest has bytes on their way.
fn owing(name: &'static str, bytes: i64) -> World {
    let mut world = World::new(Setup { name, ..Setup::default() });
    world.connect();
    world.run_for(MS(50));
    world.transfer_some(200_000, 200_000);
    world.deschedule_guest();
    world.peer.write(bytes, world.now);
    world.run_for(MS(200));
    let kept = world.switch.summary(&world.flow).unwrap().kept;
    assert!(i64::from(kept) >= bytes.min(500_000), "{kept} bytes are acknowledged for the guest");
    world
}

#[test]
fn what_was_acknowledged_survives_a_pause() {
    for pause in [MS(10), SECONDS(1), SECONDS(40)] {
        let mut world = owing("pause", 300_000);
        world.stop_guest();
        world.run_for(pause);
        world.resume_guest();
        world.transfer(100_000, 100_000, SECONDS(100));
        assert_eq!(world.switch.offload.counters().aborted, 0);
    }
}

#[test]
fn a_pause_that_outlasts_every_redelivery_loses_nothing() {
    // The peer is done: nothing of its own ends the connection meanwhile.
    let mut world = owing("long-pause", 300_000);
    world.stop_guest();
    world.run_for(SECONDS(10_000));
    assert_eq!(world.switch.offload.counters().redelivered, 0, "nobody is there");
    world.resume_guest();
    world.transfer(0, 0, SECONDS(100));
}

#[test]
fn many_pauses_in_mid_transfer_lose_nothing() {
    let mut world = World::new(Setup { name: "pauses", ..Setup::default() });
    (world.to_guest.config.loss, world.to_peer.config.loss) = (10, 10);
    world.connect();
    world.guest.write(3_000_000, world.now);
    world.peer.write(3_000_000, world.now);
    for round in 0..12 {
        world.run_for(MS(3 + round));
        world.deschedule_guest();
        world.run_for(MS(2));
        world.stop_guest();
        world.run_for(MS(400));
        world.resume_guest();
    }
    world.transfer(1000, 1000, SECONDS(300));
}

#[test]
fn nothing_new_is_acknowledged_for_a_stopped_guest() {
    let mut world = owing("stopped", 100_000);
    world.stop_guest();
    let before = world.switch.offload.counters().acknowledged_bytes;
    world.peer.write(100_000, world.now);
    world.run_for(SECONDS(1));
    assert_eq!(world.switch.offload.counters().acknowledged_bytes, before);
    world.resume_guest();
    world.run_until(SECONDS(100), |w| w.guest.rx.bytes() == 400_000);
    world.transfer_some(0, 100_000);
    assert!(world.switch.offload.counters().rx_to_active > 1, "it goes on acknowledging");
}

#[test]
fn a_resumed_guest_hears_which_flows_are_managed() {
    // Its notices carry another epoch now; without them it keeps to its own congestion window.
    let mut world = owing("named", 1000);
    world.stop_guest();
    world.run_for(SECONDS(2));
    let (heartbeats, named) = (world.heartbeats, world.named.len());
    world.run_for(SECONDS(2));
    assert_eq!(
        (world.heartbeats, world.named.len()),
        (heartbeats, named),
        "a stopped guest hears nothing"
    );
    world.resume_guest();
    world.run_for(SECONDS(1));
    assert!(world.named.len() > named && world.heartbeats > heartbeats);
    assert_eq!(world.switch.summary(&world.flow).unwrap().tx, TxState::Active);
    world.transfer(0, 0, SECONDS(10));
}

#[test]
fn what_was_acknowledged_follows_a_guest_that_has_moved() {
    for loss in [0, 100] {
        let mut world = owing("moved", 300_000);
        world.guest.write(50_000, world.now);
        world.stop_guest();
        world.run_for(SECONDS(1));
        // What is sent after it may get lost, too.
        world.queue_drops = loss;
        world.move_guest();
        world.run_for(SECONDS(65));
        world.queue_drops = 0;
        assert!(world.switch.offload.is_empty(), "its flows are another host's now");
        assert_eq!(world.switch.offload.used(), (0, 0));
        world.transfer(10_000, 10_000, SECONDS(100));
        assert_eq!(world.switch.offload.counters().aborted, 0);
    }
}

#[test]
fn a_connection_whose_guest_died_with_bytes_owed_is_reset() {
    for (name, in_flight) in [("died", false), ("died-in-flight", true)] {
        let mut world = owing(name, 100_000);
        if in_flight {
            // Of what the guest has sent, the last was lost: what the peer expects is older than what was released.
            world.to_peer.config.loss = 1000;
            let packet = world.guest_segment(0, 1000);
            world.guest_packet(&packet);
            world.to_peer.config.loss = 0;
        }
        world.kill_guest();
        world.run_for(SECONDS(1));
        assert_eq!(world.peer.state, State::Reset, "{name}");
        assert!(world.switch.offload.is_empty());
        assert_eq!(world.switch.offload.counters().aborted, 1);
    }
}

#[test]
fn a_dead_guests_connection_is_reset_whichever_of_its_segments_is_missing() {
    for lost in 0..4 {
        let mut world = owing("died-with-a-hole", 100_000);
        for n in 0..4 {
            world.to_peer.config.loss = if n == lost { 1000 } else { 0 };
            let packet = world.guest_segment(n * 1000, 1000);
            world.guest_packet(&packet);
        }
        world.to_peer.config.loss = 0;
        world.kill_guest();
        world.run_for(SECONDS(1));
        assert_eq!(world.peer.state, State::Reset, "without segment {lost}");
        assert_eq!(world.switch.offload.counters().aborted, 1);
    }
}

/// A guest chooses how many segments it has under way when it dies.
#[test]
fn the_resets_for_a_dead_guest_are_bounded() {
    let mut world = owing("died-with-tiny-segments", 100_000);
    world.to_peer.config.loss = 1000;
    for n in 0..7_000 {
        let packet = world.guest_segment(n * 2, 2);
        world.guest_packet(&packet);
    }
    let in_flight = world.switch.summary(&world.flow).unwrap().in_flight / 2;
    assert!(in_flight > 4_100, "{in_flight} segments");
    world.kill_guest();
    let resets = world.count_on_wire(|packet| packet.segment.has(Flags::RST));
    assert_eq!(resets, 2 + 4096);
}

#[test]
fn a_connection_that_is_owed_nothing_is_not_reset() {
    let mut world = World::new(Setup { name: "settled", ..Setup::default() });
    world.connect();
    world.transfer_some(100_000, 100_000);
    world.kill_guest();
    world.run_for(SECONDS(1));
    assert_eq!(world.peer.state, State::Established);
    assert_eq!((world.switch.offload.counters().aborted, world.switch.offload.len()), (0, 0));
}

#[test]
fn a_guest_that_takes_no_notice_ends_the_connection_for_both() {
    let mut world = owing("deaf", 100_000);
    world.guest_drops = 1000;
    world.run_for(SECONDS(1500));
    world.guest_drops = 0;
    assert_eq!(world.switch.offload.counters().aborted, 1);
    assert_eq!(world.peer.state, State::Reset);
    assert!(world.switch.offload.is_empty());
}
