//! Channels of ports that a change brings.

use std::sync::Arc;

use floodway_process::channel::{Channel, ChannelError};
use floodway_process::message::{FromPort, ToDataPlane, ToPort};

use crate::journal::Journal;
use crate::layout::{Layout, Place};
use crate::port::PortChannel;

/// A channel of a port that is new.
pub(super) struct NewEnd {
    pub(super) instance: u64,
    pub(super) ours: PortChannel,
    pub(super) theirs: Channel<FromPort, ToPort>,
    pub(super) journal: Arc<Journal>,
    pub(super) says: ToDataPlane,
}

/// Channels for the ports of `next` that `last` does not have.
pub(super) fn new_ends(last: &Layout, next: &Layout) -> Result<Vec<NewEnd>, ChannelError> {
    let places = (0..).zip(&next.ports).filter(|(_, place)| !last.has(place.instance));
    let end = |(index, place): (u16, &Place)| {
        let (ours, theirs) = PortChannel::pair()?;
        let says = announcement(index, place);
        let (instance, journal) = (place.instance, Arc::clone(&place.journal));
        Ok(NewEnd { instance, ours, theirs, journal, says })
    };
    places.map(end).collect()
}

/// The message that announces the port at position `index` of the configuration.
pub(super) fn announcement(index: u16, place: &Place) -> ToDataPlane {
    let Place { number, instance, ref journal, .. } = *place;
    ToDataPlane::Port { index, number, instance, journal: journal.budget }
}
