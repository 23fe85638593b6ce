//! What holds in every state.

use stateright::Property;

use crate::scenario::Scenario;
use crate::world::{Item, Message, World};

/// A frame that was given back to its sender was delivered.
pub const NOT_SKIPPED: &str = "no frame is skipped";
/// Of each death of a data plane, at most.
pub const ONE_BATCH: &str = "at most one batch is delivered again";
/// Of either ring.
pub const FORWARD: &str = "a used index never goes back";
/// Of the receive ring.
pub const FILLED: &str = "a used buffer has a frame in it";
/// Rule R1.
pub const KEPT: &str = "what was acknowledged is with the guest or in the journal";
/// Invariant J1 of the journal.
pub const NO_HOLE: &str = "the journal has all that it says is owed";
/// Of all data planes.
pub const ONE_WRITER: &str = "one data plane at most has rings that run";
/// Of all messages.
pub const ONE_REPLY: &str = "no message is answered twice";
/// Connections are closed by the death of a broker that was about something, and by no other.
pub const CONNECTED: &str = "no death of a data plane ends a connection";
/// Whoever waits for something gets it.
pub const ALL_DONE: &str = "nothing is forgotten";

/// All of them.
pub fn all() -> Vec<Property<Scenario>> {
    vec![
        Property::always(NOT_SKIPPED, |_, world: &World| {
            world.history.delivered.iter().take(world.guest.tx_used.into()).all(|&times| times > 0)
        }),
        Property::always(ONE_BATCH, |scenario: &Scenario, world: &World| {
            world.history.again <= scenario.batch
        }),
        Property::always(FORWARD, |_, world: &World| !world.history.went_back),
        Property::always(FILLED, |_, world: &World| {
            !world
                .guest
                .rx_entries
                .iter()
                .take(world.guest.rx_used.into())
                .any(|entry| *entry == Item::Garbage)
        }),
        Property::always(KEPT, |_, world: &World| {
            world.history.all_lost
                || (world.guest.acked()..world.peer.acked)
                    .all(|segment| world.journal.owes(segment))
        }),
        Property::always(NO_HOLE, |_, world: &World| {
            (0..8).all(|segment| !world.journal.is_owed(segment) || world.journal.owes(segment))
        }),
        Property::always(ONE_WRITER, |_, world: &World| {
            world.living().filter(|plane| plane.runs).count() <= 1
        }),
        Property::always(ONE_REPLY, |_, world: &World| {
            world.front_end.replies.iter().all(|&replies| replies <= 1)
        }),
        Property::always(CONNECTED, |_, world: &World| {
            world.history.cut <= world.history.broker_deaths
        }),
        Property::always(ALL_DONE, |scenario: &Scenario, world: &World| {
            !scenario.is_quiet(world) || is_done(scenario, world)
        }),
        Property::sometimes("all is done", |scenario: &Scenario, world: &World| {
            is_done(scenario, world)
        }),
    ]
}

/// Everything that guest, peer and front-end wanted has come about, and the data plane is as the front-end has set it.
fn is_done(scenario: &Scenario, world: &World) -> bool {
    let guest = &world.guest;
    let frames = guest.tx_used == scenario.frames && guest.rx_seen == guest.rx_used;
    let all = scenario.segments;
    let segments = world.history.all_lost || (guest.acked() == all && world.peer.acked == all);
    let answered = |(message, &replies): (&Message, &u8)| replies == u8::from(message.has_reply());
    let front_end = &world.front_end;
    let messages = usize::from(front_end.sent) == scenario.script.len()
        && front_end.unread.is_empty()
        && scenario.script.iter().zip(&front_end.replies).all(answered);
    let runs = world.living().any(|plane| plane.runs && plane.session == front_end.session);
    frames && segments && messages && runs && world.broker.is_some()
}
