//! Connections that go on in another process: what it does is what the first one would have done.

use floodway_core::congestion::Algorithm;
use floodway_core::offload::{EarlyAck, Resumption, TxState};
use floodway_core::time::Duration;
use proptest::prelude::*;

use crate::harness::cases::check_at_least;
use crate::harness::handing_over::encode;
use crate::harness::tcp::TcpConfig;
use crate::harness::{Setup, World};
use crate::invariants::setup;

const MS: fn(u64) -> Duration = Duration::from_millis;
const LONG: Duration = Duration::from_secs(20_000);

/// Hand-overs: when each is, and after how many bytes either way more.
fn moments() -> impl Strategy<Value = Vec<(u64, i64, i64)>> {
    prop::collection::vec((0..60_u64, 0..200_000_i64, 0..100_000_i64), 1..8)
}

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

/// All rules, over every kind of path, peer, guest and congestion control, with early acknowledgement and without: each packet and its time are the same as
/// without a hand-over.
#[test]
fn connections_go_on_in_the_next_process_as_if_nothing_had_happened() {
    check_at_least(200, (setup(30), moments(), any::<bool>()), |(setup, moments, early)| {
        let run = |hands_over: bool| {
            let mut world = start("carried", setup.clone(), early);
            world.connect();
            for &(wait, up, down) in &moments {
                write(&mut world, up, down);
                world.run_for(MS(wait));
                if hands_over {
                    world.hand_over_whole();
                }
            }
            world.transfer(0, 0, LONG);
            world.run_for(Duration::from_secs(400));
            assert_eq!((world.switch.offload.used(), world.switch.offload.owed()), ((0, 0), 0));
            world
        };
        let (carried, stayed) = (run(true), run(false));
        assert!(carried.captures() == stayed.captures(), "it does something else");
    });
}

/// R1, T1, I2: with a journal, and guests whose rings stop for a while and lose what waited in them.
#[test]
fn what_is_owed_goes_on_being_owed_in_the_next_process() {
    let moment = (0..60_u64, 0..100_000_i64, 0..200_000_i64, any::<bool>(), 0..300_u64);
    let moments = prop::collection::vec(moment, 1..6);
    check_at_least(200, (setup(30), moments, any::<bool>()), |(setup, moments, early)| {
        let mut world = start("carried-owing", setup, early);
        let memory = world.record();
        world.connect();
        for (wait, up, down, loses, pause) in moments {
            write(&mut world, up, down);
            world.run_for(MS(wait));
            let (online, owed) = (world.switch.offload.online(), world.switch.offload.owed());
            let kept = world.switch.offload.used().1;
            if loses {
                world.lose_queue();
            }
            world.stop_guest();
            let found = world.hand_over(Some(memory));
            assert_eq!((found.online, found.refused), (online, 0));
            assert_eq!((world.switch.offload.owed(), world.switch.offload.used().1), (owed, kept));
            world.run_for(MS(pause));
            world.resume_guest();
        }
        world.transfer(0, 0, LONG);
        let counters = world.switch.offload.counters();
        assert_eq!((counters.aborted, counters.early_acks_aborted, counters.adopted), (0, 0, 0));
        world.run_for(Duration::from_secs(400));
        assert_eq!((world.switch.offload.used(), world.switch.offload.owed()), ((0, 0), 0));
    });
}

/// What is not believed, or is not whole, changes nothing for others, and never ends the process: neither when it is read nor when it is worked with.
#[test]
fn damaged_records_are_refused_or_harmless() {
    let damage = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4);
    let cut = prop::option::weighted(0.2, any::<prop::sample::Index>());
    let case = (setup(30), 0..60_u64, 0..300_000_i64, any::<bool>(), damage, cut);
    check_at_least(2_000, case, |(setup, wait, bytes, early, damage, cut)| {
        let mut world = start("damaged", setup, early);
        world.monitor.off = true;
        world.connect();
        write(&mut world, bytes, bytes);
        world.run_for(MS(wait));
        let mut records = world.export();
        let record = records.last_mut().unwrap();
        for (at, with) in damage {
            // Behind the fields are frames, and bytes of these are not what tests look at.
            let at = at.index(record.len().min(700));
            record[at] ^= with;
        }
        if let Some(cut) = cut {
            record.truncate(cut.index(record.len()));
        }
        let found = world.import(&records, None);
        assert!(found.carried + found.refused <= 1);
        world.use_switch_at_random(60);
        let config = world.switch.offload.config();
        let (used, kept) = world.switch.offload.used();
        assert!(used <= config.budget && kept <= config.receive_budget, "{used} {kept}");
        // It is worked off, and ends.
        world.switch.offload.reset();
        assert_eq!((world.switch.offload.used(), world.switch.offload.owed()), ((0, 0), 0));
    });
}

/// A record that names a connection twice is believed once, and a port's that has more than its fields not at all.
#[test]
fn records_that_contradict_each_other_are_refused() {
    let mut world = start("twice", Setup::default(), false);
    world.connect();
    world.transfer_some(10_000, 10_000);
    let mut records = world.export();
    records.push(records[1].clone());
    assert_eq!(
        world.import(&records, None),
        Resumption { carried: 1, online: 1, refused: 1, broken: 0 }
    );
    records[0].push(0);
    assert!(floodway_core::offload::Carried::of_port(&records[0]).is_err());
}

/// The journal rules: with a state that knows nothing of what it has, the connection is taken over as after a death.
#[test]
fn a_state_that_the_journal_contradicts_is_not_believed() {
    let mut world = start("contradicted", Setup::default(), false);
    let memory = world.record();
    world.connect();
    write(&mut world, 1_000, 20_000);
    world.run_for(MS(500));
    let records = world.export();
    world.deschedule_guest();
    write(&mut world, 0, 20_000);
    world.run_for(MS(500));
    let found = world.import(&records, Some(memory));
    assert_eq!((found.carried, found.refused), (0, 1));
    assert_eq!(world.switch.offload.counters().adopted, 1);
}

/// A connection with a hole in what is kept for its guest.
fn kept_and_reported() -> World {
    let mut world = World::new(Setup { name: "format-hole", ..Setup::default() });
    world.connect();
    world.run_for(MS(50));
    world.deschedule_guest();
    world.to_guest.drop_next = vec![2];
    write(&mut world, 0, 10_000);
    world.run_for(MS(20));
    assert!(world.switch.offload.counters().early_sacks > 0 && world.switch.offload.used().1 > 0);
    world
}

/// A connection in the midst of a repair, of each congestion control, and one with a hole: the next version of the format is another one if this record is.
#[test]
fn the_format_is_what_it_was() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/offload/carried-3");
    let mut written = Vec::new();
    for congestion in Algorithm::ALL {
        let mut setup = Setup { name: "format", ..Setup::default() };
        setup.offload.congestion = congestion;
        setup.peer = TcpConfig { timestamps: false, ..setup.peer };
        setup.to_peer.loss = 30;
        let mut world = World::new(setup);
        world.connect();
        world.run_for(MS(50));
        write(&mut world, 200_000, 5_000);
        world.run_until(LONG, |world| {
            world.switch.summary(&world.flow).is_some_and(|flow| flow.tx == TxState::PacketLoss)
        });
        written.extend(world.export_without_frames());
    }
    written.extend(kept_and_reported().export_without_frames());
    let text = encode(&written);
    if std::env::var_os("FLOODWAY_WRITE_FORMAT").is_some() {
        std::fs::write(path, &text).unwrap();
    }
    let known = std::fs::read_to_string(path).unwrap();
    assert!(text == known, "a change of the format is another FORMAT, and another file");
}
