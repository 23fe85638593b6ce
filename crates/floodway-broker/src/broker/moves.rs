//! What the data plane is told of [moves](crate::migration), and what it says of them.

use std::os::fd::{AsFd, BorrowedFd};

use floodway_process::channel::ChannelError;
use floodway_process::message::{FromDataPlane, ToDataPlane};

use super::{Broker, DataPlane, HearError};
use crate::migration::Said;

/// Under which [notice](crate::notices) moves are: no port has that number.
const NOTICE: u16 = u16::MAX;

impl Broker<'_> {
    /// Hears of a VM that leaves or has arrived.
    pub(super) fn on_move(
        &mut self,
        plane: &DataPlane,
        message: &FromDataPlane,
    ) -> Result<(), HearError> {
        match *message {
            FromDataPlane::Leaving { port, leaving } => {
                let said = self.moves.on_leaving(self.layout.in_force(), port, leaving);
                tell(plane, said)?;
            }
            FromDataPlane::Exported { port, online, bytes } => {
                self.moves.on_exported(port, online, bytes)?;
            }
            FromDataPlane::Imported { port, taken, carried, online } => {
                self.moves.on_imported(port, taken, carried, online);
            }
            _ => {}
        }
        self.note_moves();
        Ok(())
    }

    /// Does what threads of moves want, and looks after ports that have one.
    pub(super) fn move_on(&mut self, plane: &DataPlane) -> Result<(), HearError> {
        let layout = self.layout.in_force();
        let mut said = self.moves.run_orders(layout);
        said.extend(self.moves.look(layout));
        self.note_moves();
        Ok(tell(plane, said)?)
    }

    /// Tells a new data plane which ports wait for VMs.
    pub(super) fn resume_moves(&self, plane: &DataPlane) -> Result<(), ChannelError> {
        tell(plane, self.moves.resume())
    }

    /// Leaves for data planes how moves stand.
    pub(super) fn note_moves(&self) {
        if let Some(report) = self.moves.report() {
            self.notices.put(NOTICE, ToDataPlane::Moves(report));
        }
    }
}

fn tell(plane: &DataPlane, said: Said) -> Result<(), ChannelError> {
    for (message, file) in said {
        let files: Vec<BorrowedFd<'_>> = file.iter().map(AsFd::as_fd).collect();
        plane.channel.send(&message, &files)?;
    }
    Ok(())
}
