//! T1 across the end of a switch: what was acknowledged to the guest early is in a journal.

use floodway_core::offload::{Adoption, EarlyAck, TxState};
use floodway_core::time::Duration;
use floodway_wire::tcp::Flags;
use proptest::prelude::*;

use crate::harness::cases::check;
use crate::harness::dying::Memory;
use crate::harness::tcp::State;
use crate::harness::{Setup, World};
use crate::invariants::setup;

const MS: fn(u64) -> Duration = Duration::from_millis;
const SECONDS: fn(u64) -> Duration = Duration::from_secs;
const LONG: Duration = Duration::from_secs(20_000);

/// A guest without the module, in a switch with a journal.
fn start(name: &'static str, setup: Setup) -> (World, Memory) {
    let mut setup = Setup { name, module: false, ..setup };
    setup.offload.early_ack = EarlyAck::Always;
    let mut world = World::new(setup);
    let memory = world.record();
    world.connect();
    (world, memory)
}

/// The path to the peer is dead, and the guest has been told of some of `bytes` that have not arrived.
fn owing(name: &'static str, bytes: i64) -> (World, Memory) {
    let (mut world, memory) = start(name, Setup::default());
    world.run_for(MS(50));
    world.transfer_some(20_000, 5_000);
    world.to_peer.config.loss = 1000;
    world.guest.write(bytes, world.now);
    world.run_for(MS(5));
    assert!(owed(&world) > 0, "{:?}", world.switch.summary(&world.flow));
    (world, memory)
}

fn owed(world: &World) -> u32 {
    world.switch.summary(&world.flow).map_or(0, |summary| summary.owed)
}

fn states(world: &World) -> (State, State) {
    (world.guest.state, world.peer.state)
}

/// The next switch finds all that is owed.
fn die(world: &mut World, memory: Memory) {
    let found = world.replace_switch(memory, |_| true);
    assert_eq!((found.broken, found.unknown), (0, 0));
}

/// T1, I2: all bytes arrive, however often the switch dies under loss, reordering and slow guests, and neither end is reset. What was acknowledged for the guest is
/// delivered as well.
#[test]
fn what_was_acknowledged_early_is_sent_by_the_next_switch() {
    let bytes = (0..100_000_i64, 0..50_000_i64);
    let death = (0..60_u64, bytes, any::<bool>(), 0..300_u64, 0..3_u32);
    let deaths = prop::collection::vec(death, 1..5);
    check((setup(30), deaths), |(setup, deaths)| {
        let (mut world, memory) = start("owing-dies", setup);
        for (wait, (up, down), loses, pause, again) in deaths {
            world.guest.write(up, world.now);
            world.peer.write(down, world.now);
            world.run_for(MS(wait));
            if loses {
                world.lose_queue();
            }
            (0..=again).for_each(|_| die(&mut world, memory));
            world.run_for(MS(pause));
            world.serve_guest();
        }
        world.transfer(0, 0, LONG);
        let counters = world.switch.offload.counters();
        assert_eq!((counters.aborted, counters.early_acks_aborted), (0, 0));
        world.run_for(SECONDS(400));
        assert_eq!((world.switch.offload.used(), world.switch.offload.owed()), ((0, 0), 0));
    });
}

/// T1: the guest has no copy any more, and says nothing.
#[test]
fn bytes_of_a_guest_that_has_forgotten_them_arrive() {
    let (mut world, memory) = owing("owing-forgotten", 200_000);
    world.deschedule_guest();
    for _ in 0..3 {
        let owed_before = owed(&world);
        let found = world.replace_switch(memory, |_| true);
        assert_eq!(found, Adoption { whole: 1, ..Adoption::default() });
        assert_eq!(owed(&world), owed_before);
        assert_eq!(world.switch.offload.owed(), owed_before.into());
        world.serve_guest();
        world.run_for(MS(700));
    }
    let told = world.guest.tx.una - 1;
    world.to_peer.config.loss = 0;
    world.run_until(SECONDS(120), |world| world.peer.rx.bytes() >= told && owed(world) == 0);
    world.reschedule_guest();
    world.transfer(0, 1_000, LONG);
    world.run_for(SECONDS(5));
    assert_eq!(world.replace_switch(memory, |_| true), Adoption::default());
}

/// A flow that is taken over is offloaded again when it has paid.
#[test]
fn a_flow_goes_on_as_before_when_its_debts_are_paid() {
    let (mut world, memory) = owing("owing-goes-on", 100_000);
    world.replace_switch(memory, |_| true);
    world.serve_guest();
    world.to_peer.config.loss = 0;
    world.run_until(SECONDS(60), |world| world.peer.rx.bytes() == 120_000);
    world.run_for(SECONDS(3));
    let early = world.switch.offload.counters().early_acks;
    world.transfer_some(500_000, 0);
    let summary = world.switch.summary(&world.flow).unwrap();
    assert_eq!(summary.tx, TxState::Active, "{summary:?}");
    assert!(world.switch.offload.counters().early_acks > early);
    world.transfer(0, 0, LONG);
}

/// T1: neither end goes on with a hole, whoever speaks first.
#[test]
fn a_connection_whose_owed_bytes_are_missing_is_reset_at_both_ends() {
    check((setup(30), 1..60_u64, 0..4_u64, any::<bool>()), |(setup, wait, lost, down)| {
        let (mut world, memory) = start("owing-lacks", setup);
        world.guest.write(300_000, world.now);
        world.peer.write(if down { 100_000 } else { 0 }, world.now);
        world.run_for(MS(wait));
        for path in [&mut world.to_peer, &mut world.to_guest] {
            (path.config.loss, path.config.queue) = (0, u64::MAX >> 20);
        }
        let found = world.replace_switch(memory, |frame| frame % 4 != lost);
        world.lose_queue();
        world.serve_guest();
        world.run_for(SECONDS(200));
        assert!(found.broken == 0 || states(&world) == (State::Reset, State::Reset));
        assert!(found.broken == 0 || world.switch.offload.is_empty());
    });
}

#[test]
fn silent_ends_of_a_connection_whose_owed_bytes_are_missing_are_reset() {
    let (mut world, memory) = owing("owing-silent", 100_000);
    world.run_for(SECONDS(3));
    world.to_peer.config.loss = 0;
    let found = world.replace_switch(memory, |_| false);
    assert_eq!(found, Adoption { broken: 1, ..Adoption::default() });
    world.serve_guest();
    world.run_for(SECONDS(2));
    assert_eq!(states(&world), (State::Reset, State::Reset));
}

/// The peer has got bytes from the last switch that the guest sends again: it has all that it was owed.
#[test]
fn a_peer_that_has_more_than_it_is_owed_ends_the_debt() {
    let (mut world, memory) = start("owing-more", Setup::default());
    world.run_for(MS(50));
    world.transfer_some(20_000, 0);
    // ACKs do not come back.
    world.to_guest.config.loss = 1000;
    world.guest.write(50_000, world.now);
    world.run_for(MS(5));
    assert!(owed(&world) > 0 && world.peer.rx.bytes() > 20_000);
    world.replace_switch(memory, |_| true);
    world.to_guest.config.loss = 0;
    world.serve_guest();
    world.run_until(SECONDS(60), |world| owed(world) == 0);
    world.transfer(100_000, 1_000, LONG);
    assert_eq!(world.count_on_wire(|packet| packet.segment.has(Flags::RST)), 0);
}

/// A journal without room: what the switch cannot answer for it does not acknowledge.
#[test]
fn without_room_in_the_journal_nothing_is_acknowledged_early() {
    let setup = Setup { name: "owing-full", module: false, ..Setup::default() };
    let mut world = World::new(setup);
    world.configure(|config| config.early_ack = EarlyAck::Always);
    let memory = world.record_with(4);
    world.connect();
    world.transfer_some(1_000_000, 0);
    assert!(world.switch.offload.counters().early_acks > 0, "some frames fit");
    world.to_peer.config.loss = 1000;
    world.guest.write(500_000, world.now);
    world.run_for(MS(50));
    assert!(owed(&world) <= 4 * 65_536, "{}", owed(&world));
    die(&mut world, memory);
    world.to_peer.config.loss = 0;
    world.serve_guest();
    world.transfer(0, 0, LONG);
}
