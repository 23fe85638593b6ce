//! Connections of a switch of which nothing is left, not even its journal.

use floodway_core::offload::{EarlyAck, Offload};
use floodway_core::time::Duration;
use proptest::prelude::*;

use crate::harness::cases::check;
use crate::harness::tcp::State;
use crate::harness::{Setup, World};
use crate::invariants::setup;

const MS: fn(u64) -> Duration = Duration::from_millis;
const SECONDS: fn(u64) -> Duration = Duration::from_secs;
const LONG: Duration = Duration::from_secs(20_000);

/// All processes of the switch end, and it is started again.
fn forget(world: &mut World) {
    let config = world.switch.offload.config().clone();
    world.monitor.off = true;
    world.guest.tx.managed = false;
    (world.guest.tolerant, world.peer.tolerant) = (true, true);
    world.switch.offload = Offload::new(config, 0x5eed);
    world.switch.offload.watch_forgotten(world.switch.time(world.now));
}

fn states(world: &World) -> (State, State) {
    (world.guest.state, world.peer.state)
}

fn owing(name: &'static str, sack: bool) -> World {
    let mut setup = Setup { name, module: false, ..Setup::default() };
    setup.offload.early_ack = EarlyAck::Always;
    setup.peer.sack = sack;
    let mut world = World::new(setup);
    world.record();
    world.connect();
    world.run_for(MS(50));
    world.transfer_some(20_000, 5_000);
    world.to_peer.config.loss = 1000;
    world.guest.write(30_000, world.now);
    world.run_for(MS(5));
    assert!(world.switch.summary(&world.flow).is_some_and(|flow| flow.owed > 0));
    world.to_peer.config.loss = 0;
    world
}

#[test]
fn both_ends_of_a_connection_that_was_owed_bytes_are_reset() {
    for (name, sack) in [("owed-forgotten", true), ("owed-forgotten-no-sack", false)] {
        let mut world = owing(name, sack);
        forget(&mut world);
        // The guest's third timeout, and what is on its way.
        world.run_for(SECONDS(4));
        assert_eq!(states(&world), (State::Reset, State::Reset), "{name}");
        assert_eq!(world.switch.offload.counters().adopted_broken, 1);
    }
}

/// The other direction: the guest has not got what was acknowledged for it.
#[test]
fn both_ends_of_a_connection_whose_guest_was_owed_bytes_are_reset() {
    let mut world = World::new(Setup { name: "kept-forgotten", ..Setup::default() });
    world.record();
    world.connect();
    world.run_for(MS(50));
    world.transfer_some(5_000, 20_000);
    world.deschedule_guest();
    world.guest_drops = 1000;
    world.peer.write(30_000, world.now);
    world.run_for(MS(5));
    assert!(world.switch.offload.used().1 > 0, "bytes are kept");
    world.lose_queue();
    world.guest_drops = 0;
    forget(&mut world);
    world.reschedule_guest();
    world.peer.write(1_000, world.now);
    world.run_for(SECONDS(120));
    assert_eq!(states(&world), (State::Reset, State::Reset));
}

/// I2: without anything acknowledged in another's name nobody is reset, however often switches are forgotten under loss, reordering and slow guests.
#[test]
fn connections_that_lack_nothing_go_on() {
    let bytes = (0..100_000_i64, 0..50_000_i64);
    let starts = prop::collection::vec((0..60_u64, bytes), 1..6);
    check((setup(30), starts), |(setup, starts)| {
        let mut setup = Setup { name: "forgotten", ..setup };
        (setup.offload.transmit, setup.offload.receive) = (false, false);
        let mut world = World::new(setup);
        world.connect();
        for (wait, (up, down)) in starts {
            world.guest.write(up, world.now);
            world.peer.write(down, world.now);
            world.run_for(MS(wait));
            forget(&mut world);
            let mut config = world.switch.offload.config().clone();
            (config.transmit, config.receive) = (true, true);
            let now = world.switch.time(world.now);
            world.switch.offload.configure(config, now, &mut world.switch.actions);
        }
        world.transfer(0, 0, LONG);
        let counters = world.switch.offload.counters();
        assert_eq!((counters.adopted_broken, counters.aborted), (0, 0));
    });
}
