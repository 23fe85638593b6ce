//! Changes of what a data plane serves ([`layout`](crate::layout)).

use std::os::fd::AsFd;
use std::time::Instant;

use floodway_process::message::ToDataPlane;
use floodway_process::store::{Item, Key};

use super::ends::{NewEnd, new_ends};
use super::equip::seal;
use super::left::send_uplink;
use super::{Broker, CHANGE, DataPlane, HearError, OpenChange};
use crate::layout::{NotChanged, Request};
use crate::transaction::NotAsked;

impl Broker<'_> {
    /// Makes the change that is waiting, if there is one: the data plane is not there to be asked.
    pub(super) fn change_without_data_plane(&mut self) {
        let Some(Request { layout, settled, answer }) = self.changes.take() else { return };
        // None is open without a data plane.
        let before = self.layout.replace(layout).ok();
        self.leave_layout(before.as_ref());
        self.forget_settings(&settled);
        // Fails when nobody waits any more.
        let _ = answer.send(Ok(()));
    }

    /// Asks the data plane for the change that is waiting, if there is one, and puts it in force.
    pub(super) fn begin_change(&mut self, plane: &mut DataPlane) -> Result<(), HearError> {
        // A data plane that stands by has been given the layout in force.
        if !plane.is_settled() || self.progress.is_replacing() {
            return Ok(());
        }
        let Some(Request { layout, settled, answer }) = self.changes.take() else { return Ok(()) };
        let prepared = new_ends(self.layout.in_force(), &layout)
            .and_then(|ends| Ok((ends, seal(&layout.configuration)?)));
        let (ends, (file, bytes)) = match prepared {
            Ok(prepared) => prepared,
            Err(error) => {
                drop(layout);
                let _ = answer.send(Err(NotChanged::Refused(error.to_string())));
                return Ok(());
            }
        };
        // None is open: the data plane has none.
        self.store.keep(Item::Change, &[]);
        let uplinks = layout.uplink_numbers();
        let new = layout.new_uplinks(self.layout.in_force());
        let Ok(number) = self.layout.propose(layout) else { return Ok(()) };
        self.leave_layout(None);
        let (ours, theirs): (Vec<_>, Vec<_>) = ends
            .into_iter()
            .map(|NewEnd { instance, ours, theirs, journal, says }| {
                ((instance, ours), (says, theirs, journal))
            })
            .unzip();
        let deadline = Instant::now() + CHANGE;
        plane.change = Some(OpenChange { ends: ours, settled, answer, deadline });
        for (says, theirs, journal) in &theirs {
            plane.channel.send(says, &[theirs.as_fd(), journal.file.as_fd()])?;
        }
        for place in &new {
            send_uplink(&plane.channel, place)?;
        }
        let says = ToDataPlane::Change { number, bytes, uplinks };
        Ok(plane.channel.send(&says, &[file.as_fd()])?)
    }

    /// The data plane has answered a change.
    pub(super) fn on_changed(
        &mut self,
        plane: &mut DataPlane,
        number: u64,
        refusal: Option<String>,
    ) -> Result<(), NotAsked> {
        // Whatever is not in force any more ends where the change came from.
        let before = self.layout.answer(number, refusal.is_none())?;
        self.leave_layout(Some(&before));
        self.store.forget(Key::Change);
        drop(before);
        let Some(OpenChange { ends, settled, answer, .. }) = plane.change.take() else {
            return Ok(());
        };
        let outcome = match refusal {
            Some(refusal) => Err(NotChanged::Refused(refusal)),
            None => {
                self.forget_settings(&settled);
                for (instance, end) in ends {
                    let place =
                        self.layout.in_force().ports.iter().find(|p| p.instance == instance);
                    if let Some(place) = place {
                        place.thread.attach(end, plane.number);
                    }
                }
                Ok(())
            }
        };
        // Fails when nobody waits any more.
        let _ = answer.send(outcome);
        Ok(())
    }

    /// The data plane has ended over a change: the next one starts with it.
    pub(super) fn end_change(&mut self, change: OpenChange) {
        let OpenChange { ends, settled, answer, .. } = change;
        drop(ends);
        let before = self.layout.end();
        self.leave_layout(before.as_ref());
        self.store.forget(Key::Change);
        self.forget_settings(&settled);
        // Fails when nobody waits any more.
        let _ = answer.send(Ok(()));
    }
}
