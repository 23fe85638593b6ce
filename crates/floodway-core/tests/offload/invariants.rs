//! The invariants, over random paths, peers and guests.
//!
//! I1, I3, I4, I5 and R2 to R7 are checked by the [monitor](crate::harness::monitor) at every packet of
//! every run; what is here drives it, and checks I2, I7, R1 and progress.

use floodway_core::congestion::Algorithm;
use floodway_core::offload::{BufferPolicy, Config, TxState};
use floodway_core::time::Duration;
use proptest::prelude::*;

use crate::harness::cases::check;
use crate::harness::network::PathConfig;
use crate::harness::tcp::{State, TcpConfig};
use crate::harness::{CpuConfig, Setup, World};

const MS: fn(u64) -> Duration = Duration::from_millis;
const US: fn(u64) -> Duration = Duration::from_micros;

fn path(most_loss: u32) -> impl Strategy<Value = PathConfig> {
    let bad = || prop_oneof![3 => Just(0), 1 => 1..50_u32];
    let loss = prop_oneof![1 => Just(0), 2 => 0..=most_loss];
    (
        50..5_000_u64,
        2_000..125_000_u64,
        60_000..1_000_000_u64,
        loss,
        bad(),
        100..3_000_u64,
        bad(),
        bad(),
    )
        .prop_map(|(delay, rate, queue, loss, reorder, reorder_by, duplicate, mark)| {
            PathConfig {
                delay: US(delay),
                rate: Some(rate),
                queue,
                loss,
                reorder,
                reorder_by: US(reorder_by),
                duplicate,
                mark,
            }
        })
}

fn tcp() -> impl Strategy<Value = TcpConfig> {
    let mostly = || prop::bool::weighted(0.8);
    let numbers = (any::<u32>(), any::<u32>());
    let options = (
        mostly(),
        mostly(),
        prop_oneof![4 => (0..15_u8).prop_map(Some), 1 => Just(None)],
        any::<bool>(),
    );
    let sizes = (
        prop_oneof![3 => Just(1448_u16), 1 => 100..1448_u16],
        prop_oneof![2 => 60_000..2_000_000_u32, 1 => 4_000..60_000_u32],
        prop_oneof![3 => Just(65_160_u32), 1 => 1448..65_160_u32],
    );
    (numbers, options, sizes, 1..5_u32, 0..60_u64).prop_map(
        |((isn, clock), (sack, timestamps, scale, ecn), (mss, buffer, gso), ack_every, delay)| {
            TcpConfig {
                isn,
                clock,
                sack,
                timestamps,
                scale,
                ecn,
                mss,
                // No stack has a buffer that its scale cannot tell of: its window would never open.
                buffer: buffer.max(2 << scale.unwrap_or(0)),
                gso,
                ack_every,
                delayed_ack: MS(delay),
                ..TcpConfig::default()
            }
        },
    )
}

fn cpu() -> impl Strategy<Value = CpuConfig> {
    let contended = (1..40_u64, 1..100_u64).prop_map(|(runs, away)| CpuConfig {
        runs: (US(100), MS(runs)),
        away: (US(100), MS(away)),
    });
    prop_oneof![1 => Just(CpuConfig::ALWAYS), 3 => contended]
}

fn offload() -> impl Strategy<Value = Config> {
    let algorithm = prop::sample::select(&Algorithm::ALL[..]);
    let policy = prop::sample::select(&BufferPolicy::ALL[..]);
    let budget = prop_oneof![2 => Just(4_u32 << 20), 1 => 64 << 10..512_u32 << 10];
    (algorithm, policy, budget, 0..300_000_u32, 1..20_u8, 10..300_u64).prop_map(
        |(congestion, buffer, budget, receive_budget, initial_window, min_rto)| Config {
            transmit: true,
            receive: true,
            congestion,
            buffer,
            budget,
            receive_budget,
            initial_window,
            min_rto: MS(min_rto),
            early_ack_min_rtt: Duration::ZERO,
            ..Config::default()
        },
    )
}

pub fn setup(most_loss: u32) -> impl Strategy<Value = Setup> {
    let paths = (path(most_loss), path(most_loss));
    (any::<u64>(), offload(), tcp(), tcp(), paths, cpu()).prop_map(
        |(seed, offload, guest, peer, (to_peer, to_guest), cpu)| Setup {
            seed,
            offload,
            guest,
            peer,
            to_peer,
            to_guest,
            cpu,
            ..Setup::default()
        },
    )
}

fn start(name: &'static str, setup: Setup, passive: bool) -> World {
    let mut world = World::new(Setup { name, ..setup });
    if passive {
        world.accept();
    } else {
        world.connect();
    }
    world
}

/// What an end may need that repairs many short segments one timeout at a time.
const LONG: Duration = Duration::from_secs(10_000);

/// I1 to I5, R1 to R7.
#[test]
fn every_byte_arrives_and_every_rule_holds() {
    let case = (setup(50), any::<bool>(), 0..300_000_i64, 0..300_000_i64);
    check(case, |(setup, passive, up, down)| {
        let mut world = start("rules", setup, passive);
        world.transfer(up, down, LONG);
        world.run_for(Duration::from_secs(400));
        assert_eq!(world.switch.offload.used(), (0, 0));
    });
}

/// I7: the guest has nothing to repair, as long as
/// - the handshake loses nothing: both ends' first timeout is one second then;
/// - the path is alive: between two ACKs that say something new it loses no more than one repair or answer to one
///   (what is sent for the first time is lost as it comes); none without SACK, where only timeouts repair a tail;
/// - its round trip, queues included, is well under the guest's smallest timeout of 200 ms;
/// - the peer delays its ACKs by no more than Linux usually does, and does not close its window for that long.
#[test]
fn the_guest_never_repairs() {
    let case = (setup(50), 1..500_000_i64, 0..200_000_i64, any::<bool>());
    check(case, |(mut setup, up, down, tlp)| {
        setup.guest.tlp = tlp;
        setup.peer.buffer = setup.peer.buffer.max(60_000);
        setup.peer.delayed_ack = setup.peer.delayed_ack.min(MS(40));
        setup.offload.min_rto = Config::default().min_rto;
        setup.mercy = Some(u32::from(setup.guest.sack && setup.peer.sack));
        for path in [&mut setup.to_peer, &mut setup.to_guest] {
            path.queue = path.queue.min(path.rate.unwrap_or(u64::MAX) * 20);
        }
        let mut world = start("i7", setup, false);
        world.transfer(up, down, LONG);
        world.check_i7();
    });
}

/// Packets that come past the switch's offload (flooded, or of a peer that lives on this host for a while) take
/// nothing from the connection but speed.
#[test]
fn what_passes_by_does_no_harm() {
    let case = (setup(20), 1..500_u32, 0..300_000_i64, 0..300_000_i64, 1..300_u64, 1..300_u64);
    check(case, |(mut setup, bypass, up, down, before, during)| {
        setup.module = bypass % 2 == 0;
        let mut world = start("bypass", setup, false);
        world.monitor.off = true;
        // A grant is more than the receiver's window, and what is sent on it may pass by.
        (world.guest.tolerant, world.peer.tolerant) = (true, true);
        let now = world.now;
        world.guest.write(up, now);
        world.peer.write(down, now);
        world.run_for(MS(before));
        world.bypass = if bypass > 400 { 1000 } else { bypass };
        world.run_for(MS(during));
        if bypass % 3 > 0 {
            world.bypass = 0;
        }
        world.transfer(up, down, LONG * 2);
    });
}

/// R1: what was acknowledged reaches a guest that loses frames.
#[test]
fn what_was_acknowledged_is_delivered() {
    let drops = (0..100_u32, 1..100_u32);
    let bytes = (1..100_000_i64, 1..300_000_i64);
    check((setup(30), drops, bytes), |(mut setup, drops, (up, down))| {
        (setup.queue_drops, setup.guest_drops) = drops;
        let mut world = start("r1", setup, true);
        world.transfer(up, down, LONG);
    });
}

/// What happens to a guest in the middle of its transfers.
#[derive(Clone, Copy, Debug)]
enum Stop {
    /// It has no CPU, and frames wait in its queue.
    Descheduled,
    /// Its rings stop, and what waits there is lost.
    Paused,
    /// The port is drained meanwhile.
    Drained,
}

fn stops() -> impl Strategy<Value = Vec<(u64, Stop, u64, i64, i64)>> {
    let what = prop::sample::select(&[Stop::Descheduled, Stop::Paused, Stop::Drained][..]);
    let length = prop_oneof![2 => 0..100_u64, 1 => 100..5_000_u64];
    let stop = (0..60_u64, what, length, 0..200_000_i64, 0..200_000_i64);
    prop::collection::vec(stop, 1..8)
}

fn stop(world: &mut World, what: Stop, length: u64) {
    match what {
        Stop::Descheduled => world.deschedule_guest(),
        Stop::Paused => world.stop_guest(),
        Stop::Drained => world.drain(true),
    }
    world.run_for(MS(length));
    match what {
        Stop::Descheduled => world.reschedule_guest(),
        Stop::Paused => world.resume_guest(),
        Stop::Drained => world.drain(false),
    }
}

/// A connection whose guest stops again and again while both sides send.
fn stopped_world(name: &'static str, setup: Setup, stops: &[(u64, Stop, u64, i64, i64)]) -> World {
    let mut world = start(name, setup, false);
    // A drained flow takes back what was granted beyond the receiver's window.
    world.peer.tolerant = true;
    for &(wait, what, length, up, down) in stops {
        let now = world.now;
        world.guest.write(up, now);
        world.peer.write(down, now);
        world.run_for(MS(wait));
        stop(&mut world, what, length);
    }
    world
}

/// R1 and I2: what was acknowledged for a guest arrives, however often the guest is paused, drained, or without a CPU for
/// seconds.
#[test]
fn pauses_of_the_guest_lose_nothing() {
    check((setup(30), stops()), |(setup, stops)| {
        let mut world = stopped_world("stops", setup, &stops);
        world.transfer(0, 0, LONG);
        assert_eq!(world.switch.offload.counters().aborted, 0);
    });
}

/// R1: what was acknowledged for a guest that moves is sent after it.
#[test]
fn what_was_acknowledged_follows_the_guest() {
    check((setup(30), stops(), 0..2_000_u64), |(setup, stops, pause)| {
        let mut world = stopped_world("moves", setup, &stops);
        (world.guest.tolerant, world.peer.tolerant) = (true, true);
        world.stop_guest();
        world.run_for(MS(pause));
        world.monitor.off = true;
        world.move_guest();
        world.transfer(0, 0, LONG);
    });
}

/// R1: a guest that dies with bytes owed to it leaves no peer that believes in the connection.
#[test]
fn the_peer_of_a_dead_guest_is_not_left_hanging() {
    check((setup(30), stops()), |(setup, stops)| {
        let mut world = stopped_world("dies", setup, &stops);
        // No network delivers an RST for sure.
        for path in [&mut world.to_peer, &mut world.to_guest] {
            (path.config.loss, path.config.queue) = (0, u64::MAX >> 20);
        }
        world.run_for(MS(100));
        // The switch waits for a second or two, in which the peer's ACKs tell what it expects of a flow that is offline.
        world.stop_guest();
        world.run_for(Duration::from_secs(1));
        let owed = world.switch.summary(&world.flow).is_some_and(|s| s.kept > 0);
        world.kill_guest();
        world.run_for(Duration::from_secs(1));
        assert!(!owed || world.peer.state == State::Reset, "{:?}", world.peer.state);
        assert!(world.switch.offload.is_empty());
    });
}

/// I2 and progress while the configuration changes at random.
#[test]
fn changes_in_mid_transfer_lose_nothing() {
    let change = (0..80_u64, any::<(bool, bool, bool)>(), 0..100_000_i64);
    check((setup(30), prop::collection::vec(change, 1..25)), |(setup, changes)| {
        let mut world = start("changes", setup, false);
        for (wait, (transmit, receive, drain), bytes) in changes {
            let now = world.now;
            world.guest.write(bytes, now);
            world.peer.write(bytes, now);
            world.run_for(MS(wait));
            world.configure(|c| (c.transmit, c.receive) = (transmit, receive));
            world.drain(drain && transmit);
        }
        let tx = world.switch.summary(&world.flow).map_or(TxState::Offline, |summary| summary.tx);
        if matches!(tx, TxState::Offline | TxState::Leaving) {
            // Repairs that are lost again may take this guest hours: without timestamps its smallest round trip may be one of the switch's store.
            (world.to_peer.config.loss, world.to_guest.config.loss) = (0, 0);
        }
        world.transfer(0, 0, LONG);
    });
}

/// I2 and progress while a flow leaves because it is not used, and is used again in any moment of that.
#[test]
fn pauses_lose_nothing() {
    let step = (0..2_500_u64, 0..100_000_i64, 0..50_000_i64);
    let case = (setup(30), 100..1_500_u64, prop::collection::vec(step, 1..15));
    check(case, |(mut setup, idle, steps)| {
        setup.offload.idle = MS(idle);
        let mut world = start("pauses", setup, false);
        // A window that shrinks between two ACKs of the same numbers is not believed, by Linux either.
        world.peer.tolerant = true;
        for (pause, up, down) in steps {
            let now = world.now;
            world.guest.write(up, now);
            world.peer.write(down, now);
            world.run_for(MS(pause));
        }
        world.transfer(0, 0, LONG);
    });
}

/// A receiver whose application stops to read, for any time and in any moment, loses nothing and no connection.
#[test]
fn stalls_lose_nothing() {
    let step = (0..60_000_u64, any::<bool>(), 0..200_000_i64, 0..2_000_i64);
    let case = (setup(20), any::<bool>(), prop::collection::vec(step, 1..15));
    check(case, |(mut setup, tlp, steps)| {
        (setup.guest.tlp, setup.guest.retries2, setup.peer.silly) = (tlp, 8, tlp);
        setup.peer.buffer = setup.peer.buffer.min(100_000);
        let mut world = start("stalls", setup, false);
        for (pause, stalls, up, down) in steps {
            let now = world.now;
            world.peer.rx.paused = stalls;
            if !stalls {
                world.peer.resume(now);
            }
            world.guest.write(up, now);
            world.peer.write(down, now);
            world.run_for(MS(pause));
        }
        world.peer.resume(world.now);
        world.transfer(0, 0, LONG);
    });
}

/// A path that begins to drop large segments, silently, and perhaps takes them again, loses nothing.
#[test]
fn black_holes_lose_nothing() {
    let case = (setup(20), 512..1448_u32, 0..300_u64, 0..20_000_u64, 1..600_000_i64);
    check(case, |(mut setup, largest, before, after, up)| {
        // Below 1280 bytes it is the guest that finds out.
        setup.guest.mtu_probing = up % 2 == 0 || largest < 1240;
        let mut world = start("black-holes", setup, false);
        world.guest.write(up, world.now);
        world.run_for(MS(before));
        (world.to_peer.largest, world.to_peer.silent) = (Some(largest), true);
        world.guest.write(up / 2, world.now);
        world.run_for(MS(after));
        if after % 3 == 0 {
            world.to_peer.largest = None;
        }
        world.transfer(up, 0, LONG);
    });
}

/// I5: what is off changes nothing.
#[test]
fn offline_flows_pass_byte_for_byte() {
    let case = (setup(30), any::<bool>(), 0..200_000_i64, 0..200_000_i64);
    check(case, |(mut setup, known, up, down)| {
        setup.offload.transmit = false;
        setup.offload.receive = false;
        if known {
            // A flow that is known, and offline for lack of room.
            setup.offload.transmit = true;
            setup.offload.budget = 1000;
        }
        setup.module = false;
        let mut world = start("i5", setup, false);
        world.transfer(up, down, LONG);
        assert_eq!((world.absorbed, world.refused, world.monitor.passed_edited), (0, 0, 0));
        assert_eq!(world.switch.offload.counters().went_online, 0);
    });
}

/// A guest without the module is slower, and as right.
#[test]
fn a_guest_without_the_module_works() {
    check((setup(30), 0..200_000_i64, 0..200_000_i64), |(mut setup, up, down)| {
        setup.module = false;
        setup.guest.tlp = true;
        let mut world = start("no-module", setup, false);
        world.transfer(up, down, LONG);
    });
}
