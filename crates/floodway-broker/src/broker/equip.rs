//! What data planes are given.

use std::os::fd::{AsFd, OwnedFd};

use floodway_process::channel::ChannelError;
use floodway_process::fault::{self, Point};
use floodway_process::message::{ToDataPlane, VERSION, shorten};
use floodway_process::sealed;
use rustix::io::Errno;

use super::ends::announcement;
use super::left::{leave_uplink, send_uplink};
use super::{Broker, DataPlane, MainChannel, State};
use crate::port::PortChannel;
use crate::uplink::Uplink;

impl Broker<'_> {
    /// Tells a data plane what it is to serve. That does not change until it is given the rest.
    pub(super) fn introduce(
        &self,
        channel: &MainChannel,
        restarts: u32,
        last_end: Option<&str>,
    ) -> Result<(), ChannelError> {
        let last_end = last_end.map(shorten);
        channel.send(&ToDataPlane::Hello { version: VERSION, restarts, last_end }, &[])?;
        let layout = self.layout.in_force();
        let (file, bytes) = seal(&layout.configuration)?;
        let (numbers, uplink_numbers) = (self.numbers, self.uplink_numbers);
        let uplinks = layout.uplink_numbers();
        let says = ToDataPlane::Configuration { bytes, numbers, uplink_numbers, uplinks };
        channel.send(&says, &[file.as_fd()])?;
        channel.send(&ToDataPlane::Control, &[self.control])
    }

    /// Gives a data plane everything that only one can have, and lets it start. `flows` is what another one has handed over to it.
    pub(super) fn equip(
        &mut self,
        plane: &DataPlane,
        flows: Option<&State>,
    ) -> Result<(), ChannelError> {
        let channel = &plane.channel;
        let layout = self.layout.in_force();
        for place in &layout.uplinks {
            place.with(Uplink::refresh);
            send_uplink(channel, place)?;
            leave_uplink(&self.store, place);
        }
        for (index, place) in (0..).zip(&layout.ports) {
            let (ours, theirs) = PortChannel::pair()?;
            let descriptors = [theirs.as_fd(), place.journal.file.as_fd()];
            channel.send(&announcement(index, place), &descriptors)?;
            place.thread.attach(ours, plane.number);
            fault::pass(Point::PlaneAttached);
        }
        for State { part, file, bytes } in self.state.iter().chain(flows) {
            channel.send(&ToDataPlane::State { part: *part, bytes: *bytes }, &[file.as_fd()])?;
        }
        for setting in self.settings.all() {
            channel.send(&ToDataPlane::Setting(setting), &[])?;
        }
        for notice in self.notices.all() {
            channel.send(&notice, &[])?;
        }
        channel.send(&ToDataPlane::Programs(self.upgrades.state().programs), &[])?;
        channel.send(&ToDataPlane::Start, &[])?;
        fault::pass(Point::PlaneSupplied);
        Ok(())
    }
}

/// The text of a configuration as memory that nobody changes, and its length.
pub(super) fn seal(configuration: &str) -> Result<(OwnedFd, u32), ChannelError> {
    let text = configuration.as_bytes();
    let file = sealed::seal("configuration", text)
        .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    let bytes = u32::try_from(text.len()).map_err(|_| Errno::FBIG)?;
    Ok((file, bytes))
}
