//! Early acknowledgement, T1 to T5. The harness's monitor checks the rules at every segment that the guest gets.

use floodway_core::offload::{Counters, EarlyAck, TxState};
use floodway_core::time::Duration;
use floodway_wire::tcp::Flags;
use proptest::prelude::*;

use crate::harness::cases::check;
use crate::harness::tcp::State;
use crate::harness::{Setup, World};
use crate::invariants::setup;

const MS: fn(u64) -> Duration = Duration::from_millis;
const SECONDS: fn(u64) -> Duration = Duration::from_secs;
const LONG: Duration = Duration::from_secs(20_000);

/// A guest without the module whose bytes are acknowledged early.
fn agentless(name: &'static str, change: impl FnOnce(&mut Setup)) -> World {
    let mut setup = Setup { name, module: false, ..Setup::default() };
    setup.offload.early_ack = EarlyAck::Always;
    change(&mut setup);
    World::new(setup)
}

fn connected(name: &'static str, change: impl FnOnce(&mut Setup)) -> World {
    let mut world = agentless(name, change);
    world.connect();
    world.run_for(MS(50));
    world.transfer_some(20_000, 0);
    world
}

/// The path to the peer is dead, and the guest has been told of some of `bytes` that will not arrive.
fn owing(name: &'static str, bytes: i64, change: impl FnOnce(&mut Setup)) -> World {
    let mut world = connected(name, change);
    world.to_peer.config.loss = 1000;
    world.guest.write(bytes, world.now);
    world.run_for(MS(5));
    assert!(owed(&world) > 0, "{:?}", world.switch.summary(&world.flow));
    world
}

fn owed(world: &World) -> u32 {
    world.switch.summary(&world.flow).map_or(0, |summary| summary.owed)
}

/// On a path of 0.4 ms the peer's ACKs come soon enough, unless bytes are lost; on one of 2 ms they do not.
#[test]
fn on_a_short_path_only_losses_are_hidden() {
    let early_acks = |delay: u64, loss: u32| {
        let mut world = agentless("early-near", |setup| {
            setup.offload.early_ack_min_rtt = MS(1);
            (setup.to_peer.delay, setup.to_guest.delay) =
                (Duration::from_micros(delay), Duration::from_micros(delay));
            setup.to_peer.loss = loss;
        });
        world.connect();
        world.transfer_some(500_000, 0);
        counters(&world).early_acks
    };
    assert_eq!(early_acks(200, 0), 0);
    assert!(early_acks(200, 30) > 0);
    assert!(early_acks(1_000, 0) > 0);
}

/// A guest that sends by its own congestion window is granted its first flight, and more, in the SYN-ACK: nothing else comes to it before it sends. One with the module can use more at once.
#[test]
fn nothing_comes_between_a_syn_ack_and_the_first_flight() {
    for (early, updates) in [(EarlyAck::Always, 0), (EarlyAck::Never, 1)] {
        let mut world = agentless("early-opens", |setup| setup.offload.early_ack = early);
        world.connect();
        world.run_for(MS(50));
        assert_eq!(counters(&world).window_updates, updates, "{early:?}");
        let granted = world.switch.summary(&world.flow).map_or(0, |summary| summary.granted);
        assert!(granted > 40_000, "{early:?}: {granted}");
        world.transfer(500_000, 1_000, LONG);
    }
}

/// The window of a SYN-ACK has no scale, so it may be less than one unit of those that follow. Less than a segment is all that is granted.
#[test]
fn a_first_window_of_less_than_a_unit_stays_open() {
    let mut world = agentless("early-unit", |setup| {
        (setup.peer.scale, setup.peer.buffer) = (Some(10), 1_000);
    });
    world.connect();
    let granted = world.switch.summary(&world.flow).map_or(0, |summary| summary.granted);
    assert_eq!(granted, 1_000);
}

/// Where a module is heard nothing is acknowledged early, and it is told of the flows.
#[test]
fn where_a_module_is_heard_it_gets_grants() {
    let mut world = agentless("early-auto", |setup| {
        setup.offload.early_ack = EarlyAck::WithoutModule;
        setup.module = true;
    });
    world.connect();
    world.transfer_some(200_000, 0);
    let early = counters(&world).early_acks;
    assert!(early > 0 && (world.heartbeats, world.named.len()) == (1, 0), "it is asked once");
    world.hear_module(true);
    assert_eq!(world.named.len(), 1);
    world.transfer_some(200_000, 0);
    assert_eq!(counters(&world).early_acks, early);
    world.run_for(SECONDS(1));
    assert!(world.heartbeats >= 10);
    world.hear_module(false);
    world.transfer_some(200_000, 0);
    assert!(counters(&world).early_acks > early);
    world.transfer(1_000, 1_000, LONG);
}

/// A guest without the module is asked for it now and then, and not for each connection.
#[test]
fn a_module_is_looked_for_every_ten_seconds_at_most() {
    let mut world = agentless("early-search", |setup| {
        setup.offload.early_ack = EarlyAck::WithoutModule;
    });
    for round in 1..=4 {
        world.connect();
        world.transfer(10_000, 1_000, LONG);
        world.restart(round);
    }
    assert_eq!((world.heartbeats, world.named.len()), (1, 0));
    world.connect();
    world.run_for(SECONDS(25));
    assert_eq!(world.heartbeats, 3);
}

/// T1: what the guest believes to have arrived, nobody sends any more once the switch has stopped.
#[test]
fn a_switch_that_stops_resets_the_connections_that_it_owes_bytes() {
    let mut world = owing("early-stops", 300_000, |_| ());
    world.monitor.off = true;
    world.to_peer.config.loss = 0;
    world.reset_owing();
    assert_eq!((counters(&world).early_acks_aborted, world.switch.offload.owed()), (1, 0));
    world.run_for(MS(500));
    assert_eq!((world.guest.state, world.peer.state), (State::Reset, State::Reset));
}

/// A connection that owes nothing goes on without the switch.
#[test]
fn a_switch_that_stops_leaves_others_alone() {
    let mut world = connected("early-stops-paid", |_| ());
    world.run_for(SECONDS(1));
    assert_eq!(owed(&world), 0);
    world.reset_owing();
    assert_eq!((resets(&world), counters(&world).early_acks_aborted), (0, 0));
}

fn early_acks(on: bool) -> EarlyAck {
    if on { EarlyAck::Always } else { EarlyAck::Never }
}

fn counters(world: &World) -> Counters {
    world.switch.offload.counters()
}

fn resets(world: &World) -> u64 {
    world.count_on_wire(|packet| packet.segment.has(Flags::RST))
}

#[test]
fn a_guest_without_the_module_does_not_wait_for_the_network() {
    let take = |early| {
        let mut world = agentless("agentless", |setup| {
            setup.offload.early_ack = early_acks(early);
            (setup.to_peer.delay, setup.to_guest.delay) = (MS(10), MS(10));
        });
        world.connect();
        let from = world.now;
        world.guest.write(1_000_000, from);
        world.run_until(LONG, |world| world.guest.tx.una > 900_000);
        let time = world.now.since(from);
        world.transfer(0, 10_000, LONG);
        world.check_i7();
        let is_told = world.named.len() as u64 + world.heartbeats > 0;
        assert_ne!(is_told, early, "there is no module to tell");
        (time, counters(&world).early_acks)
    };
    let ((waits, never), (goes_on, early)) = (take(false), take(true));
    assert_eq!(never, 0);
    assert!(early > 10 && goes_on < waits, "{early} early ACKs, {goes_on:?} and {waits:?}");
}

/// T1: what is owed outlives the time after which another flow is given up, and arrives.
#[test]
fn a_peer_that_comes_back_after_ten_minutes_gets_what_it_is_owed() {
    let mut world = owing("early-outage", 300_000, |_| ());
    world.run_for(SECONDS(600));
    assert!(owed(&world) > 0 && world.guest.is_established());
    assert_ne!(world.switch.summary(&world.flow).unwrap().tx, TxState::Offline);
    world.to_peer.config.loss = 0;
    world.transfer(0, 0, LONG);
    world.check_received(320_000, 0);
    assert_eq!(counters(&world).early_acks_aborted, 0);
}

/// T1: neither end goes on with a hole.
#[test]
fn when_the_peer_is_dead_both_ends_are_reset() {
    let mut world = owing("early-dead", 300_000, |setup| {
        setup.offload.peer_timeout = SECONDS(60);
    });
    world.run_for(SECONDS(59));
    assert_eq!((resets(&world), counters(&world).early_acks_aborted), (0, 0));
    assert!(world.guest.is_established());
    world.run_for(SECONDS(5));
    assert_eq!(counters(&world).early_acks_aborted, 1);
    assert!(resets(&world) > 0);
    assert_eq!(world.guest.state, State::Reset);
    assert_eq!((world.switch.offload.used(), world.switch.offload.len()), ((0, 0), 0));
}

/// T1: a peer that is alive, if its window is closed, is not dead.
#[test]
fn a_peer_that_does_not_read_is_not_reset() {
    let mut world = agentless("early-stall", |setup| {
        (setup.peer.buffer, setup.guest.retries2) = (50_000, 5);
        setup.offload.peer_timeout = SECONDS(30);
    });
    world.connect();
    world.peer.rx.paused = true;
    world.guest.write(400_000, world.now);
    world.run_for(SECONDS(600));
    assert!(counters(&world).early_acks > 0);
    assert!(world.guest.is_established(), "{:?}", world.guest.state);
    world.peer.resume(world.now);
    world.transfer(0, 0, LONG);
    world.check_received(400_000, 0);
}

/// T1: what is forgotten here, nobody would send.
#[test]
fn a_guest_that_moves_while_bytes_are_owed_loses_its_connection() {
    let mut world = owing("early-move", 300_000, |_| ());
    world.monitor.off = true;
    world.stop_guest();
    world.move_guest();
    assert_eq!(counters(&world).early_acks_aborted, 1);
    world.to_peer.config.loss = 0;
    world.run_for(SECONDS(60));
    assert_eq!(world.guest.state, State::Reset);
    assert_eq!(world.switch.offload.len(), 0);
}

/// T1: bytes are missing that the guest does not send again, and the flow is given up only when all before them has arrived.
#[test]
fn a_flow_with_a_gap_pays_what_it_owes_first() {
    let mut world = owing("early-gap", 100_000, |_| ());
    let packet = world.guest_segment(10_000, 1_000);
    world.guest_packet(&packet);
    world.run_for(SECONDS(30));
    assert!(owed(&world) > 0);
    world.to_peer.config.loss = 0;
    world.run_until(SECONDS(300), |world| owed(world) == 0);
    world.run_until(SECONDS(300), |world| world.peer.rx.bytes() == 120_000);
}

/// T1: a window that is taken back is probed, also after a segment of the guest has come late. A peer that does not answer is dead.
#[test]
fn a_peer_that_closes_its_window_and_falls_silent_is_dead_although_there_was_a_gap() {
    let mut world = connected("early-gap-filled", |setup| {
        (setup.offload.peer_timeout, setup.guest.gso) = (SECONDS(60), 1448);
    });
    (world.to_peer.config.loss, world.monitor.off) = (1000, true);
    world.guest.write(300_000, world.now);
    world.reorder_guest();
    let mut ack = world.peer_segment(0);
    let sent = world.switch.summary(&world.flow).unwrap().in_flight;
    (ack.segment.ack, ack.segment.window) = (world.wire_una() + sent, 0);
    world.network_packet(&ack);
    assert!(owed(&world) > 0, "{:?}", world.switch.summary(&world.flow));
    world.run_for(SECONDS(70));
    assert_eq!(counters(&world).early_acks_aborted, 1);
    assert!(world.switch.offload.is_empty());
}

/// T1: a peer may have got bytes past the switch. What it is owed behind them it gets.
#[test]
fn bytes_that_passed_by_do_not_end_what_is_owed() {
    let mut world = owing("early-past", 300_000, |_| ());
    world.monitor.off = true;
    let mut ack = world.peer_segment(0);
    let una = world.guest.seq(world.guest.tx.una);
    let sent = world.switch.summary(&world.flow).unwrap().in_flight;
    ack.segment.ack = world.wire_una() + sent + 100;
    assert!(ack.segment.ack.before(una), "more is owed than that");
    world.network_packet(&ack);
    assert!(owed(&world) > 0, "it goes on: {:?}", world.switch.summary(&world.flow));
    assert_eq!(counters(&world).acks_unseen, 1);
}

/// T2: out of order, it is stored, and the guest hears nothing of it.
#[test]
fn what_lies_behind_a_gap_is_not_acknowledged() {
    let mut world = connected("early-hole", |_| ());
    let una = world.guest.tx.una;
    let early = counters(&world).early_acks;
    for ahead in [1_448, 2_896, 4_344] {
        let packet = world.guest_segment(ahead, 1_448);
        world.guest_packet(&packet);
    }
    world.flush();
    world.run_for(Duration::from_micros(50));
    assert_eq!((world.guest.tx.una, counters(&world).early_acks), (una, early));
    let packet = world.guest_segment(0, 1_448);
    world.guest_packet(&packet);
    world.flush();
    assert_eq!(counters(&world).early_acks, early + 1);
}

/// T3: the FIN and the last byte wait for the peer.
#[test]
fn the_end_of_the_stream_is_the_peers_to_acknowledge() {
    for scale in [0, 7] {
        let mut world = connected("early-close", |setup| setup.peer.scale = Some(scale));
        world.to_peer.config.loss = 1000;
        world.guest.write(5_000, world.now);
        world.guest.close(world.now);
        world.run_for(MS(100));
        let left = world.guest.tx.written - world.guest.tx.una;
        assert!((1..=1 << scale).contains(&left), "scale {scale}: {left} bytes are left");
        world.to_peer.config.loss = 0;
        world.transfer(0, 1_000, LONG);
    }
}

/// T4: what is acknowledged makes no room: the window closes while the peer is silent.
#[test]
fn a_silent_peer_is_owed_no_more_than_the_budget() {
    let mut world = owing("early-budget", 3_000_000, |setup| setup.offload.budget = 256 << 10);
    world.run_for(MS(500));
    let (used, _) = world.switch.offload.used();
    assert!(used <= 256 << 10);
    assert!(world.monitor.promises.most_owed <= 256 << 10);
    world.to_peer.config.loss = 0;
    world.transfer(0, 0, LONG);
}

/// T5: on a path that is longer than the guest's patience nothing runs ahead.
#[test]
fn on_a_long_path_acks_are_the_peers() {
    let mut world = agentless("early-long", |setup| {
        (setup.to_peer.delay, setup.to_guest.delay) = (MS(80), MS(80));
    });
    world.connect();
    world.transfer(500_000, 0, LONG);
    assert_eq!(counters(&world).early_acks, 0);
}

/// T5: when the path becomes long, the peer's ACKs come up to what was said, and nothing jumps back.
#[test]
fn acks_are_paced_again_when_the_path_becomes_long() {
    let mut world = agentless("early-longer", |setup| {
        (setup.to_peer.delay, setup.to_guest.delay) = (MS(5), MS(5));
        setup.to_peer.rate = Some(2_000);
    });
    world.connect();
    world.guest.write(2_000_000, world.now);
    world.run_for(MS(300));
    let before = counters(&world).early_acks;
    assert!(before > 0);
    (world.to_peer.config.delay, world.to_guest.config.delay) = (MS(100), MS(100));
    // Until the switch has measured it.
    world.run_for(SECONDS(2));
    let measured = counters(&world).early_acks;
    world.transfer(1_000_000, 0, LONG);
    assert_eq!(counters(&world).early_acks, measured);
}

/// An early ACK echoes a clock of the guest, never one to come, and of now: a guest that measures by clocks is not misled by its own silence.
#[test]
fn early_acks_echo_the_guests_own_clock() {
    let mut world = connected("early-clock", |_| ());
    world.run_for(SECONDS(20));
    world.guest.write(200_000, world.now);
    let clock = world.guest.packet(1, world.now).segment.options.timestamps.unwrap().value;
    world.send_from_guest();
    world.flush();
    let (_, to_guest) = world.captures();
    let una = world.wire_una();
    let echoes = |echo: u32| {
        to_guest.count(|from_guest, packet| {
            let segment = &packet.segment;
            let echoed = segment.options.timestamps.is_some_and(|t| t.echo == echo);
            !from_guest && segment.ack.after(una) && echoed
        })
    };
    assert!(echoes(clock) > 0);
}

/// I7: where the path is short and alive, the guest has nothing to repair. ACKs below what it has heard would be duplicates, which a guest
/// without SACK counts.
#[test]
fn the_guest_repairs_nothing_on_a_short_path() {
    for (loss, sack) in [(0, true), (10, true), (30, true), (0, false), (20, false)] {
        let mut world = agentless("early-i7", |setup| {
            (setup.to_peer.loss, setup.to_guest.loss) = (loss, loss);
            (setup.guest.sack, setup.peer.sack) = (sack, sack);
            setup.mercy = Some(u32::from(sack));
        });
        world.connect();
        world.transfer(3_000_000, 100_000, LONG);
        world.check_i7();
        assert!(counters(&world).early_acks > 0);
    }
}

/// I1 to I5, R1 to R7 and T1 to T5.
#[test]
fn every_byte_arrives_and_every_promise_is_kept() {
    let case = (setup(50), any::<bool>(), 0..300_000_i64, 0..300_000_i64, 1..200_u64);
    check(case, |(mut setup, module, up, down, delay)| {
        (setup.name, setup.module) = ("promises", module);
        setup.offload.early_ack = EarlyAck::Always;
        setup.offload.early_ack_delay = MS(delay);
        let mut world = World::new(setup);
        world.connect();
        world.transfer(up, down, LONG);
        world.run_for(SECONDS(400));
        assert_eq!((world.switch.offload.used(), world.switch.offload.owed()), ((0, 0), 0));
        assert_eq!(counters(&world).early_acks_aborted, 0);
    });
}

/// T1, while frames for the guest get lost, and the port is drained and taken into use again.
#[test]
fn promises_outlast_drains_and_lost_frames() {
    let steps = prop::collection::vec((0..100_u64, 0..100_000_i64, any::<bool>()), 1..10);
    check((setup(30), 0..50_u32, steps), |(mut setup, drops, steps)| {
        (setup.name, setup.module, setup.queue_drops) = ("promises-drained", false, drops);
        setup.offload.early_ack = EarlyAck::Always;
        let mut world = World::new(setup);
        world.connect();
        for (wait, bytes, drain) in steps {
            world.guest.write(bytes, world.now);
            world.run_for(MS(wait));
            if drain {
                world.drain(true);
                world.run_for(MS(wait));
                world.drain(false);
            } else {
                world.configure(|config| {
                    let on = config.early_ack == EarlyAck::Always;
                    config.early_ack = if on { EarlyAck::Never } else { EarlyAck::Always };
                });
            }
        }
        world.transfer(1_000, 1_000, LONG);
    });
}
