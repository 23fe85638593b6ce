//! Messages between broker and data plane about [moves](crate::migration).

use std::os::fd::{AsFd, BorrowedFd};

use floodway_process::channel::ChannelError;
use floodway_process::message::{FromDataPlane, ToDataPlane};

use super::{Broker, DataPlane, HearError};

/// Under which [notice](crate::notices) moves are: no port has that number.
const NOTICE: u16 = u16::MAX;

impl Broker<'_> {
    /// Hears of a VM that leaves or has arrived.
    pub(super) fn on_move(&mut self, message: &FromDataPlane) -> Result<(), HearError> {
        match *message {
            FromDataPlane::Leaving { port, leaving } => {
                let messages = self.moves.on_leaving(self.layout.in_force(), port, leaving);
                self.moves.queue(messages);
            }
            FromDataPlane::Exported { port, online, bytes } => {
                self.moves.on_exported(port, online, bytes)?;
            }
            FromDataPlane::Imported { port, taken, carried, online } => {
                self.moves.on_imported(port, taken, carried, online);
            }
            _ => {}
        }
        Ok(())
    }

    /// Does what threads of moves want, and looks after ports that have one. While the data plane hands over, all of that waits for the next one.
    pub(super) fn move_on(&mut self, plane: &DataPlane) -> Result<(), HearError> {
        if plane.is_handing_over() {
            return Ok(());
        }
        let layout = self.layout.in_force();
        let mut messages = self.moves.run_orders(layout);
        messages.extend(self.moves.look(layout));
        self.moves.queue(messages);
        self.tell(plane)?;
        self.note_moves();
        Ok(())
    }

    /// Tells a new data plane which ports wait for VMs, and what the one before has not heard.
    pub(super) fn resume_moves(&mut self, plane: &DataPlane) -> Result<(), ChannelError> {
        self.moves.resume(self.layout.in_force());
        self.tell(plane)
    }

    /// Leaves for data planes how moves stand.
    pub(super) fn note_moves(&self) {
        if let Some(report) = self.moves.report() {
            self.notices.put(NOTICE, ToDataPlane::Moves(report));
        }
    }

    /// Tells the data plane what it is to hear of moves. What cannot be sent stays.
    fn tell(&mut self, plane: &DataPlane) -> Result<(), ChannelError> {
        while let Some((message, file)) = self.moves.next() {
            let files: Vec<BorrowedFd<'_>> = file.iter().map(AsFd::as_fd).collect();
            plane.channel.send(message, &files)?;
            self.moves.on_told();
        }
        Ok(())
    }
}
