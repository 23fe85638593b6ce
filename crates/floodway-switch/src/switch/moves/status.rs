//! What operators hear of connections that follow VMs from host to host.

use floodway_process::moves::{Move, Moves};

use super::super::Switch;
use crate::api::events::EventKind;
use crate::api::status::{MoveStatus, MovesStatus};
use crate::sync::lock;

impl Switch {
    /// Notes how moves stand. Of one that has ended since the last time operators hear.
    pub fn note_moves(&self, moves: Moves) {
        let last = moves.last.clone();
        let before = lock(&self.shared.moves).replace(status(moves));
        // What was over before this process began is no news.
        let Some(before) = before else { return };
        let known = before.last.map_or(0, |last| last.number);
        if let Some(last) = last.filter(|last| last.number != known) {
            self.shared.events.emit(event(last));
        }
    }
}

fn status(moves: Moves) -> MovesStatus {
    let Moves { left, arrived, failed, leaving, arriving, last } = moves;
    let last = last.map(|last| {
        let Move { number, port, inward, host, online, carried, problem } = last;
        MoveStatus { number, port, inward, host, online, carried, problem }
    });
    MovesStatus { left, arrived, failed, leaving, arriving, last }
}

fn event(last: Move) -> EventKind {
    let Move { port, inward, host, online, carried, problem, .. } = last;
    match problem {
        Some(reason) => EventKind::ConnectionsLeftBehind { port, host, inward, reason },
        None if inward => EventKind::ConnectionsArrived { port, host, online, carried },
        None => EventKind::ConnectionsLeft { port, host, online, carried },
    }
}
