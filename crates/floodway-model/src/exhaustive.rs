//! The checker goes through all states of some scenarios, and finds what is wrong with each variant.

use std::collections::HashSet;
use std::thread::available_parallelism;
use std::time::Instant;

use floodway_process::fault::{Point, Process};
use stateright::{Checker, HasDiscoveries, Model};

use crate::properties::*;
use crate::scenario::{Scenario, Variant};
use crate::step::steps_at;
use crate::world::{Deaths, Message};

const START: &[Message] = &[Message::Start];

fn deaths(planes: u8, brokers: u8, stores: u8) -> Deaths {
    Deaths { planes, brokers, stores }
}

/// Frames between guests, over deaths of data planes.
fn frames() -> Scenario {
    Scenario {
        frames: 3,
        batch: 2,
        segments: 0,
        slots: 0,
        script: START,
        deaths: deaths(2, 0, 0),
        variant: None,
    }
}

/// Segments of a peer, acknowledged for the guest, over deaths of data planes.
fn segments() -> Scenario {
    Scenario { frames: 0, segments: 2, slots: 1, ..frames() }
}

/// Messages of a front-end, over deaths of data planes and brokers.
fn messages() -> Scenario {
    let script = &[Message::Start, Message::Ask, Message::Stop, Message::Start];
    Scenario { frames: 0, script, deaths: deaths(2, 1, 0), ..frames() }
}

/// The store dies, too.
fn stores() -> Scenario {
    let script = &[Message::Start, Message::Ask];
    Scenario { frames: 1, batch: 1, script, deaths: deaths(1, 1, 1), ..frames() }
}

/// A little of all.
fn everything() -> Scenario {
    let script = START;
    Scenario {
        frames: 1,
        batch: 1,
        segments: 1,
        slots: 1,
        script,
        deaths: deaths(1, 1, 0),
        variant: None,
    }
}

/// Every point at which tests end data planes and brokers is a step of the model, and one only.
#[test]
fn points_of_the_code_are_steps_of_the_model() {
    let mut steps = HashSet::new();
    for &point in Point::ALL.iter().filter(|point| point.process() != Process::Store) {
        assert!(!steps_at(point).is_empty(), "{point:?}");
        steps_at(point).iter().for_each(|step| assert!(steps.insert(step), "{step:?}"));
    }
}

/// Goes through all states.
fn explore(name: &str, scenario: Scenario) {
    let threads = available_parallelism().map_or(1, usize::from);
    let start = Instant::now();
    let checker = scenario.checker().threads(threads).spawn_bfs().join();
    println!(
        "{name}: {} states, {} of them different, {:?}",
        checker.state_count(),
        checker.unique_state_count(),
        start.elapsed()
    );
    checker.assert_properties();
}

/// The checker finds that `property` does not hold if the order of steps is that of `variant`.
fn finds(scenario: &Scenario, variant: Variant, property: &'static str) {
    let wanted = HasDiscoveries::AllOf([property].into());
    let checker = scenario.with(variant).checker().finish_when(wanted).spawn_bfs().join();
    let path = checker.discovery(property);
    let path = path.unwrap_or_else(|| panic!("{variant:?} is not found: {property}"));
    println!("{variant:?}: \"{property}\" fails after {} steps", path.into_actions().len());
}

#[test]
fn exhaustive_frames() {
    explore("frames", frames());
}

#[test]
fn exhaustive_segments() {
    explore("segments", segments());
}

#[test]
fn exhaustive_messages() {
    explore("messages", messages());
}

#[test]
fn exhaustive_stores() {
    explore("stores", stores());
}

#[test]
fn exhaustive_everything() {
    explore("everything", everything());
}

#[test]
fn exhaustive_wrong_orders_of_frames_are_found() {
    for (variant, property) in [
        (Variant::PublishedBeforeCopied, FILLED),
        (Variant::CompletedBeforePublished, NOT_SKIPPED),
        (Variant::CompletedInTheEnd, ONE_BATCH),
        (Variant::PositionsFromRecord, FORWARD),
        (Variant::NoInterruptAtStart, ALL_DONE),
        (Variant::SuccessorBeforeEnd, ONE_WRITER),
    ] {
        finds(&frames(), variant, property);
    }
}

#[test]
fn exhaustive_wrong_orders_of_the_journal_are_found() {
    for (variant, property) in [
        (Variant::AckBeforeJournal, KEPT),
        (Variant::NumbersBeforeFrame, NO_HOLE),
        (Variant::BytesAfterNumbers, NO_HOLE),
        (Variant::ReleasedBeforeNoted, NO_HOLE),
    ] {
        finds(&segments(), variant, property);
    }
}

#[test]
fn exhaustive_wrong_orders_of_messages_are_found() {
    for (variant, property) in [
        (Variant::RepliedDirectly, ONE_REPLY),
        (Variant::OutstandingForgotten, ALL_DONE),
        (Variant::ReplyBeforeRecord, ALL_DONE),
        (Variant::MarkRemovedBeforeReply, ALL_DONE),
        (Variant::TakenBeforeMark, ALL_DONE),
        (Variant::ChannelKeptBeforeMark, ALL_DONE),
        (Variant::ConnectionKeptBeforeMark, ALL_DONE),
        (Variant::AdoptedWithoutPort, ALL_DONE),
    ] {
        finds(&messages(), variant, property);
    }
}

#[test]
fn exhaustive_a_second_switch_beside_an_orphan_is_found() {
    finds(&stores(), Variant::ControlSocketIgnored, ONE_WRITER);
}
