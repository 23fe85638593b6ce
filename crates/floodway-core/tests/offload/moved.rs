//! Connections that follow their guest to another host: they go on there as they would have here.

use std::sync::atomic::Ordering::Relaxed;

use floodway_core::offload::{Config, EarlyAck, Offload};
use floodway_core::time::Duration;
use proptest::prelude::*;

use crate::harness::cases::check_at_least;
use crate::harness::tcp::State;
use crate::harness::{Setup, World};
use crate::invariants::setup;

const MS: fn(u64) -> Duration = Duration::from_millis;
const LONG: Duration = Duration::from_secs(20_000);

fn start(name: &'static str, setup: Setup, early: bool) -> World {
    let mut setup = Setup { name, module: !early, ..setup };
    setup.offload.early_ack = if early { EarlyAck::Always } else { EarlyAck::Never };
    World::new(setup)
}

fn write(world: &mut World, up: i64, down: i64) {
    let now = world.now;
    world.guest.write(up, now);
    world.peer.write(down, now);
}

/// All that was begun comes to its end, and nothing is left.
fn finish(world: &mut World) {
    world.transfer(0, 0, LONG);
    let counters = world.switch.offload.counters();
    assert_eq!((counters.aborted, counters.early_acks_aborted, counters.adopted_broken), (0, 0, 0));
    world.run_for(Duration::from_secs(400));
    assert_eq!((world.switch.offload.used(), world.switch.offload.owed()), ((0, 0), 0));
}

/// All rules, over every kind of path, peer, guest and congestion control, with early acknowledgement and without: each packet and its time are those of a guest that stops and goes on
/// at once where it is.
#[test]
fn connections_go_on_at_the_other_host_as_they_would_have_here() {
    let moments = prop::collection::vec((0..60_u64, 0..200_000_i64, 0..100_000_i64), 1..8);
    check_at_least(200, (setup(30), moments, any::<bool>()), |(setup, moments, early)| {
        let run = |moves: bool| {
            let mut world = start("moved", setup.clone(), early);
            let mut memory = world.record();
            world.connect();
            for &(wait, up, down) in &moments {
                write(&mut world, up, down);
                world.run_for(MS(wait));
                if moves {
                    let offload = &world.switch.offload;
                    let before = (offload.online(), offload.used(), offload.owed());
                    let aside = world.set_aside(memory).unwrap();
                    let found;
                    (found, memory) = world.arrive(aside, Duration::ZERO);
                    assert_eq!((found.online, found.refused, found.broken), (before.0, 0, 0));
                    let offload = &world.switch.offload;
                    assert_eq!((offload.online(), offload.used(), offload.owed()), before);
                } else {
                    world.stop_guest();
                }
                world.resume_guest();
            }
            finish(&mut world);
            world
        };
        let (moved, stayed) = (run(true), run(false));
        assert!(moved.captures() == stayed.captures(), "it does something else");
    });
}

/// R1, T1, I2, wherever a move ends: the guest goes on here, or there, or there and the switch over there dies before it has delivered anything. The state is under way for a while, for which the clock of the other
/// one's engine is behind.
#[test]
fn what_is_owed_is_owed_by_one_of_the_two_wherever_a_move_ends() {
    let moment = (0..60_u64, 0..100_000_i64, 0..200_000_i64, 0..3_u8, 0..400_u64, 0..50_u64);
    let moments = prop::collection::vec(moment, 1..6);
    check_at_least(200, (setup(30), moments, any::<bool>()), |(setup, moments, early)| {
        let mut world = start("moved-owing", setup, early);
        let mut died = false;
        let mut memory = world.record();
        world.connect();
        for (wait, up, down, end, transit, pause) in moments {
            write(&mut world, up, down);
            world.run_for(MS(wait));
            let offload = &world.switch.offload;
            let (owed, kept) = (offload.owed(), offload.used().1);
            let Some(aside) = world.set_aside(memory) else {
                // What an earlier process has left for the guest stays where it is.
                assert!(died);
                world.resume_guest();
                continue;
            };
            world.run_for(MS(transit));
            if end == 0 {
                memory = world.bring_back(aside);
                continue;
            }
            (_, memory) = world.arrive(aside, MS(transit));
            let offload = &world.switch.offload;
            assert_eq!((offload.owed(), offload.used().1), (owed, kept));
            world.run_for(MS(pause));
            if end == 2 {
                let found = world.replace_switch(memory, |_| true);
                assert_eq!((found.broken, found.unknown), (0, 0), "all of it is in the journal");
                died = true;
            }
            world.resume_guest();
        }
        finish(&mut world);
    });
}

/// Records that were damaged on their way are refused, or harmless. A connection that owed bytes and does not go on is reset.
#[test]
fn damaged_records_are_refused_or_reset_or_harmless() {
    let damage = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4);
    let cut = prop::option::weighted(0.2, any::<prop::sample::Index>());
    let case = (setup(30), 0..60_u64, 0..300_000_i64, any::<bool>(), damage, cut);
    check_at_least(2_000, case, |(setup, wait, bytes, early, damage, cut)| {
        let mut world = start("moved-damaged", setup, early);
        world.monitor.off = true;
        world.connect();
        write(&mut world, bytes, bytes);
        world.run_for(MS(wait));
        let mut records = world.export();
        let record = records.last_mut().unwrap();
        for (at, with) in damage {
            let at = at.index(record.len().min(700));
            record[at] ^= with;
        }
        if let Some(cut) = cut {
            record.truncate(cut.index(record.len()));
        }
        let config = world.switch.offload.config().clone();
        world.switch.offload = Offload::new(config, 0x5eed);
        world.record();
        let found = world.import_moved(&records);
        assert!(found.carried + found.refused <= 1 && found.broken <= found.refused);
        world.resume_guest();
        world.use_switch_at_random(60);
        let config = world.switch.offload.config();
        let (used, kept) = world.switch.offload.used();
        assert!(used <= config.budget && kept <= config.receive_budget, "{used} {kept}");
        world.switch.offload.reset();
        assert_eq!((world.switch.offload.used(), world.switch.offload.owed()), ((0, 0), 0));
    });
}

/// A connection whose guest is owed bytes, on its way to a switch that is configured as `change` says.
fn moved_to(change: impl Fn(&mut Config)) -> World {
    let mut world = start("moved-to", Setup::default(), false);
    let memory = world.record();
    world.connect();
    world.transfer_some(20_000, 20_000);
    world.deschedule_guest();
    write(&mut world, 0, 40_000);
    world.run_for(MS(500));
    assert!(world.switch.offload.used().1 >= 40_000);
    let aside = world.set_aside(memory).unwrap();
    world.configure(change);
    let (found, _) = world.arrive(aside, Duration::ZERO);
    (world.guest.tolerant, world.monitor.off) = (true, true);
    assert_eq!((found.carried, found.refused, found.broken), (0, 1, 1));
    world
}

/// What is owed to somebody who cannot be named stays where the journal is that may still say it.
#[test]
fn a_port_that_doubts_connections_does_not_let_them_go() {
    let mut world = start("moved-doubtful", Setup::default(), false);
    let memory = world.record();
    world.connect();
    world.transfer_some(20_000, 20_000);
    world.deschedule_guest();
    write(&mut world, 0, 40_000);
    world.run_for(MS(500));
    world.lose_queue();
    (world.guest.tolerant, world.monitor.off) = (true, true);
    // The first word of an address.
    memory.words[1].fetch_xor(1, Relaxed);
    assert_eq!(world.replace_switch(memory, |_| true).unknown, 1);
    assert!(world.switch.offload.is_empty());
    assert!(world.set_aside(memory).is_none());
}

/// A hole would be the worst: neither end believes in the connection any more.
#[test]
fn a_connection_that_owes_bytes_and_has_no_room_is_reset() {
    let mut world = moved_to(|config| config.receive_budget = 10_000);
    assert_eq!(world.switch.offload.counters().adopted_broken, 1);
    world.resume_guest();
    world.run_until(Duration::from_secs(60), |world| {
        (world.guest.state, world.peer.state) == (State::Reset, State::Reset)
    });
}
