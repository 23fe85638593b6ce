//! What the broker leaves in the descriptor store as a whole; ports leave what is theirs.

use std::os::fd::AsFd;

use floodway_process::channel::ChannelError;
use floodway_process::message::{ToDataPlane, VERSION};
use floodway_process::store::{Item, KeptLayout, Key};
use floodway_process::upgrade::Programs;

use super::{Broker, DataPlane, MainChannel, State};
use crate::layout::Layout;
use crate::store::Store;
use crate::uplink::UplinkPlace;

impl Broker<'_> {
    /// Leaves what there is before the first data plane.
    pub(super) fn leave_everything(&self) {
        self.store.keep(Item::Control, &[self.control]);
        for State { part, file, bytes } in &self.state {
            let (part, bytes) = (*part, *bytes);
            self.store.keep(Item::State { part, bytes }, &[file.as_fd()]);
        }
        for setting in self.settings.all() {
            self.store.keep(Item::Setting(setting), &[]);
        }
        self.leave_programs(&self.upgrades.state().programs, false);
        self.leave_layout(None);
        // Of the last broker, whose data plane has ended over it.
        self.store.forget(Key::Change);
    }

    /// Leaves which programs run; with `replacing`, the next broker is part of an upgrade.
    pub(super) fn leave_programs(&self, programs: &Programs, replacing: bool) {
        let programs = programs.clone();
        self.store.keep(Item::Programs { programs, replacing }, &[]);
    }

    pub(super) fn leave_data_plane(&self, plane: &DataPlane) {
        let DataPlane { restarts, number, .. } = *plane;
        let ready = plane.pulse.is_ready();
        let item = Item::DataPlane { version: VERSION, ready, restarts, number };
        self.store.keep(item, &[plane.channel.as_fd(), plane.process.as_fd()]);
    }

    /// Leaves the layout in force. With the one before, lets go of ports and uplinks that only that one has.
    pub(super) fn leave_layout(&self, before: Option<&Layout>) {
        let layout = self.layout.in_force();
        for place in &layout.ports {
            if before.is_none_or(|before| !before.has(place.instance)) {
                let (port, budget) = (place.instance, place.journal.budget);
                self.store.keep(Item::Port { port, budget }, &[place.journal.file.as_fd()]);
            }
        }
        for place in &layout.uplinks {
            if before.is_none_or(|before| before.uplink(place.number).is_none()) {
                leave_uplink(&self.store, place);
            }
        }
        let kept = KeptLayout {
            configuration: layout.configuration.as_ref().to_owned(),
            numbers: self.numbers,
            uplink_numbers: self.uplink_numbers,
            uplinks: layout.uplink_numbers(),
            ports: layout.ports.iter().map(|place| (place.instance, place.number)).collect(),
        };
        match kept.seal() {
            Ok((file, bytes)) => self.store.keep(Item::Layout { bytes }, &[file.as_fd()]),
            Err(error) => {
                tracing::error!(%error, "the switch will not outlive its broker");
                self.store.close();
            }
        }
        for place in before.iter().flat_map(|before| &before.ports) {
            if !layout.has(place.instance) {
                self.store.forget(Key::Port(place.instance));
            }
        }
        for place in before.iter().flat_map(|before| &before.uplinks) {
            if layout.uplink(place.number).is_none() {
                self.store.forget(Key::Uplink(place.number));
            }
        }
    }

    /// Forgets settings with these keys.
    pub(super) fn forget_settings(&self, keys: &[String]) {
        self.settings.forget(keys);
        for key in keys {
            self.store.forget(Key::Setting(key.clone()));
        }
    }
}

/// Leaves the device of an uplink, if it has one.
pub(super) fn leave_uplink(store: &Store, place: &UplinkPlace) {
    place.with(|uplink| {
        if let Some((ToDataPlane::Uplink { number, kind, link_rate }, descriptors)) =
            uplink.message(place.number)
        {
            store.keep(Item::Uplink { number, kind, link_rate }, &descriptors);
        }
    });
}

/// Hands the device of an uplink over, if it has one.
pub(super) fn send_uplink(channel: &MainChannel, place: &UplinkPlace) -> Result<(), ChannelError> {
    place.with(|uplink| match uplink.message(place.number) {
        Some((message, descriptors)) => channel.send(&message, &descriptors),
        None => Ok(()),
    })
}
