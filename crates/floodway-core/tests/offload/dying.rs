//! R1 across the end of a switch: what was acknowledged is in a journal.

use std::sync::atomic::Ordering::Relaxed;

use floodway_core::offload::Adoption;
use floodway_core::time::Duration;
use proptest::prelude::*;

use crate::harness::cases::{check, check_at_least};
use crate::harness::dying::Memory;
use crate::harness::tcp::State;
use crate::harness::{Setup, World};
use crate::invariants::setup;

const MS: fn(u64) -> Duration = Duration::from_millis;
const LONG: Duration = Duration::from_secs(20_000);

/// Deaths: when each is, after how many bytes either way more, whether the guest's queue was the switch's, how long the guest is not served then, and how often the
/// switch dies in that time.
fn deaths() -> impl Strategy<Value = Vec<(u64, i64, i64, bool, u64, u32)>> {
    let bytes = (0..100_000_i64, 0..200_000_i64);
    let death = (0..60_u64, bytes, any::<bool>(), 0..300_u64, 0..3_u32)
        .prop_map(|(wait, (up, down), loses, pause, again)| (wait, up, down, loses, pause, again));
    prop::collection::vec(death, 1..5)
}

fn start(name: &'static str, setup: Setup) -> (World, Memory) {
    let mut world = World::new(Setup { name, ..setup });
    let memory = world.record();
    world.accept();
    (world, memory)
}

fn write(world: &mut World, up: i64, down: i64) {
    let now = world.now;
    world.guest.write(up, now);
    world.peer.write(down, now);
}

/// Nothing on the way is lost.
fn mend(world: &mut World) {
    for path in [&mut world.to_peer, &mut world.to_guest] {
        (path.config.loss, path.config.queue) = (0, u64::MAX >> 20);
    }
}

/// A guest without a CPU, and a switch that has acknowledged for it.
fn owing(name: &'static str) -> (World, Memory) {
    let (mut world, memory) = start(name, Setup::default());
    write(&mut world, 1_000, 20_000);
    world.run_for(MS(500));
    world.deschedule_guest();
    write(&mut world, 0, 20_000);
    world.run_for(MS(500));
    assert!(world.switch.summary(&world.flow).unwrap().kept > 10_000);
    (world, memory)
}

/// R1, I2: all bytes arrive, however often the switch dies, and whether the next one lives until the guest's rings run or not.
#[test]
fn what_was_acknowledged_is_delivered_by_the_next_switch() {
    // One in 200 needs what a new switch has to ask the peer for.
    check_at_least(500, (setup(30), deaths()), |(setup, deaths)| {
        let (mut world, memory) = start("dies", setup);
        for (wait, up, down, loses, pause, again) in deaths {
            write(&mut world, up, down);
            world.run_for(MS(wait));
            if loses {
                world.lose_queue();
            }
            for _ in 0..=again {
                let found = world.replace_switch(memory, |_| true);
                assert_eq!((found.broken, found.unknown), (0, 0));
            }
            world.run_for(MS(pause));
            world.serve_guest();
        }
        world.transfer(0, 0, LONG);
        assert_eq!(world.switch.offload.counters().aborted, 0);
        world.run_for(Duration::from_secs(400));
        assert_eq!(world.switch.offload.used(), (0, 0));
    });
}

/// R1: what the queue of the guest has lost is delivered by the next switch.
#[test]
fn a_guest_that_lost_what_was_acknowledged_gets_it() {
    let (mut world, memory) = owing("lost");
    world.lose_queue();
    for _ in 0..3 {
        let found = world.replace_switch(memory, |_| true);
        assert_eq!(found, Adoption { whole: 1, ..Adoption::default() });
        world.serve_guest();
        world.run_for(MS(500));
        world.lose_queue();
    }
    world.reschedule_guest();
    world.transfer(0, 0, LONG);
    assert!(world.switch.offload.counters().redelivered > 0 && world.switch.offload.is_empty());
}

/// R1: a connection that lacks bytes ends, at both ends, whoever speaks first.
#[test]
fn a_connection_that_lacks_bytes_is_reset_at_both_ends() {
    check((setup(30), 1..60_u64, 0..30_000_i64, 0..4_u64), |(setup, wait, up, lost)| {
        let (mut world, memory) = start("lacks", setup);
        write(&mut world, up, 300_000);
        world.run_for(MS(wait));
        mend(&mut world);
        let found = world.replace_switch(memory, |frame| frame % 4 != lost);
        world.lose_queue();
        world.serve_guest();
        world.run_for(Duration::from_secs(200));
        let states = (world.guest.state, world.peer.state);
        assert!(found.broken == 0 || states == (State::Reset, State::Reset), "{states:?}");
        assert!(found.broken == 0 || world.switch.offload.is_empty());
    });
}

/// Neither end says anything by itself.
#[test]
fn silent_ends_of_a_broken_connection_are_reset() {
    let (mut world, memory) = owing("silent");
    world.run_for(Duration::from_secs(5));
    world.lose_queue();
    let found = world.replace_switch(memory, |_| false);
    assert_eq!(found, Adoption { broken: 1, ..Adoption::default() });
    world.serve_guest();
    world.reschedule_guest();
    world.run_for(Duration::from_secs(2));
    assert_eq!((world.guest.state, world.peer.state), (State::Reset, State::Reset));
}

/// A damaged record of a flow: all connections in mid-stream are reset, and new ones are not.
#[test]
fn connections_that_cannot_be_named_are_reset() {
    let (mut world, memory) = owing("unnamed");
    world.lose_queue();
    // The first word of an address.
    memory.words[1].fetch_xor(1, Relaxed);
    let found = world.replace_switch(memory, |_| true);
    assert_eq!(found, Adoption { unknown: 1, ..Adoption::default() });
    world.serve_guest();
    world.reschedule_guest();
    write(&mut world, 1, 0);
    world.run_for(Duration::from_secs(2));
    assert_eq!((world.guest.state, world.peer.state), (State::Reset, State::Reset));
    world.restart(1);
    world.accept();
    world.transfer(10_000, 10_000, LONG);
    // The next switch takes nothing for damaged any more once that time is over.
    world.run_for(Duration::from_secs(700));
    assert_eq!(world.replace_switch(memory, |_| true), Adoption::default());
}
