//! The messages between broker and descriptor store.
//!
//! # Theory of operation
//! **Goal**: whatever a broker holds is there when it has died: each descriptor, and what has to be known to use it. So the broker leaves a copy of it with a process that does
//! nothing else, item by item as things change, and the next broker is given all items.
//!
//! An item has a [`Key`]; one that is kept under a key replaces the last one, and becomes the newest. Items are returned from the oldest to the newest, which is the
//! order in which entries of a record are replayed. The store understands keys as far as it takes to forget a port, and it says in the data plane's channel
//! that the broker has gone.
//!
//! Data planes have no part in this: they can neither leave an item nor get one.
//!
//! **Versions**: the first message of a store to a broker carries [`STORE_VERSION`].

use std::io;
use std::ops::RangeInclusive;
use std::os::fd::OwnedFd;

use serde::{Deserialize, Serialize};

use crate::message::{
    MAX_DESCRIPTORS, MAX_VHOST_MESSAGE, Message, Setting, StatePart, UplinkKind, Violation,
    check_programs,
};
use crate::peer::Peer;
use crate::sealed;
use crate::upgrade::Programs;

/// Version of these messages.
pub const STORE_VERSION: u32 = 4;

/// Under which an item is kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Key {
    /// The store's own process.
    Store,
    /// The data plane that runs.
    DataPlane,
    /// That a change is not answered.
    Change,
    /// The control socket.
    Control,
    /// Configuration and ports.
    Layout,
    /// An uplink.
    Uplink(u16),
    /// State of data planes.
    State(StatePart),
    /// A setting.
    Setting(String),
    /// A port; whatever else is kept of it goes with it.
    Port(u64),
    /// A port's channel.
    Channel(u64),
    /// A port's front-end.
    Session(u64),
    /// That a port's front-end is owed something.
    Busy(u64),
    /// An entry of the record of a port's front-end.
    Entry(u64, u64),
    /// Which programs run.
    Programs,
}

impl Key {
    /// The instance of the port that it belongs to.
    #[must_use]
    pub fn port(&self) -> Option<u64> {
        match self {
            Self::Port(port)
            | Self::Channel(port)
            | Self::Session(port)
            | Self::Busy(port)
            | Self::Entry(port, _) => Some(*port),
            _ => None,
        }
    }
}

/// What a broker holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Item {
    /// A `pidfd` of the store itself.
    Store,
    /// The main channel and a `pidfd`.
    DataPlane {
        /// The version of its messages.
        version: u32,
        /// It has said that it serves.
        ready: bool,
        /// Data planes that ended before it.
        restarts: u32,
        /// What tells it from all others of this switch: one that takes over in an upgrade follows one that has not ended by itself.
        number: u32,
    },
    /// The data plane owes an answer to a change of the layout.
    Change,
    /// The listening control socket.
    Control,
    /// A sealed memfd with a [`KeptLayout`].
    Layout {
        /// Its length.
        bytes: u32,
    },
    /// An uplink's device.
    Uplink {
        /// Its number.
        number: u16,
        /// What its descriptors are.
        kind: UplinkKind,
        /// Bits per second, if the device says so.
        link_rate: Option<u64>,
    },
    /// A memfd with state of data planes.
    State {
        /// What is in it.
        part: StatePart,
        /// Its length.
        bytes: u64,
    },
    /// A setting that was made at run time.
    Setting(Setting),
    /// The journal of a port.
    Port {
        /// The port's instance.
        port: u64,
        /// What the journal was made for.
        budget: u32,
    },
    /// The broker's end of a port's channel.
    Channel {
        /// The port's instance.
        port: u64,
        /// The number of the data plane.
        data_plane: u32,
    },
    /// The connection of a port's front-end, without a descriptor if it has gone.
    Session {
        /// The port's instance.
        port: u64,
        /// Its number.
        id: u32,
        /// Number of its next message.
        number: u64,
        /// The front-end's process.
        peer: Option<Peer>,
    },
    /// A front-end's message was taken and has not had all its effect, or a data plane is being given the record.
    Busy {
        /// The port's instance.
        port: u64,
    },
    /// An entry of a front-end's record, with the descriptors of its message.
    Entry {
        /// The port's instance.
        port: u64,
        /// What it sets, in the data plane's own numbering.
        key: u64,
        /// The message with its header.
        bytes: Vec<u8>,
    },
    /// Which programs run.
    Programs {
        /// Those that run, by what the broker knows.
        programs: Programs,
        /// The broker is replacing itself: the next one comes at once, and is of the same switch in all that an operator has said.
        replacing: bool,
    },
}

impl Item {
    /// Where it is kept.
    #[must_use]
    pub fn key(&self) -> Key {
        match self {
            Self::Store => Key::Store,
            Self::DataPlane { .. } => Key::DataPlane,
            Self::Change => Key::Change,
            Self::Programs { .. } => Key::Programs,
            Self::Control => Key::Control,
            Self::Layout { .. } => Key::Layout,
            Self::Uplink { number, .. } => Key::Uplink(*number),
            Self::State { part, .. } => Key::State(*part),
            Self::Setting(setting) => Key::Setting(setting.key.clone()),
            Self::Port { port, .. } => Key::Port(*port),
            Self::Channel { port, .. } => Key::Channel(*port),
            Self::Session { port, .. } => Key::Session(*port),
            Self::Busy { port } => Key::Busy(*port),
            Self::Entry { port, key, .. } => Key::Entry(*port, *key),
        }
    }

    fn descriptors(&self) -> RangeInclusive<usize> {
        match self {
            Self::Change | Self::Programs { .. } | Self::Setting(_) | Self::Busy { .. } => 0..=0,
            Self::DataPlane { .. } => 2..=2,
            Self::Uplink { kind: UplinkKind::Packet, .. } => 2..=2,
            Self::Session { .. } => 0..=1,
            Self::Entry { .. } => 0..=MAX_DESCRIPTORS,
            _ => 1..=1,
        }
    }

    fn check(&self) -> Result<(), Violation> {
        match self {
            Self::Setting(setting) => setting.check(),
            Self::Programs { programs, .. } => check_programs(programs),
            Self::Entry { bytes, .. } if bytes.len() > MAX_VHOST_MESSAGE => {
                let (value, max) = (bytes.len(), MAX_VHOST_MESSAGE);
                Err(Violation::TooLarge { field: "bytes", value, max })
            }
            _ => Ok(()),
        }
    }
}

/// What a broker says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToStore {
    /// To be kept.
    Keep(Item),
    /// To be closed; with a port all that belongs to it.
    Forget(Key),
    /// All entries of a port's record with keys from the first to the last are to be closed.
    ForgetEntries(u64, RangeInclusive<u64>),
    /// The switch stops: nothing is to be kept any more.
    Close,
}

/// What a store says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromStore {
    /// The first message.
    Version(u32),
    /// An item.
    Item(Item),
    /// That were all of them.
    All,
}

impl Message for ToStore {
    const CARRIES: bool = true;

    fn descriptors(&self) -> RangeInclusive<usize> {
        match self {
            Self::Keep(item) => item.descriptors(),
            _ => 0..=0,
        }
    }

    fn check(&self) -> Result<(), Violation> {
        match self {
            Self::Keep(item) => item.check(),
            _ => Ok(()),
        }
    }
}

impl Message for FromStore {
    const CARRIES: bool = true;

    fn descriptors(&self) -> RangeInclusive<usize> {
        match self {
            Self::Item(item) => item.descriptors(),
            _ => 0..=0,
        }
    }

    fn check(&self) -> Result<(), Violation> {
        match self {
            Self::Item(item) => item.check(),
            _ => Ok(()),
        }
    }
}

/// A configuration with its ports and uplinks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptLayout {
    /// The text of the configuration.
    pub configuration: String,
    /// Numbers that ports can have.
    pub numbers: u16,
    /// Numbers that uplinks can have.
    pub uplink_numbers: u16,
    /// Instance and number of each port, in the order of the configuration.
    pub ports: Vec<(u64, u16)>,
    /// Number of each uplink, in the order of the configuration.
    pub uplinks: Vec<u16>,
}

impl KeptLayout {
    /// Writes it to sealed memory; returns that and its length.
    ///
    /// # Errors
    /// Memory or descriptors have run out.
    pub fn seal(&self) -> io::Result<(OwnedFd, u32)> {
        let bytes = postcard::to_allocvec(self).map_err(io::Error::other)?;
        let len = u32::try_from(bytes.len()).map_err(io::Error::other)?;
        Ok((sealed::seal("floodway-layout", &bytes)?, len))
    }

    /// Reads it from the first `bytes` of `file`.
    ///
    /// # Errors
    /// It is not there, or cannot be read.
    pub fn read(file: OwnedFd, bytes: u32) -> io::Result<Self> {
        let bytes = sealed::read(file, usize::try_from(bytes).map_err(io::Error::other)?)?;
        postcard::from_bytes(&bytes).map_err(io::Error::other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layout_is_read_as_it_was_written() {
        let layout = KeptLayout {
            configuration: "control = \"/x\"\n".repeat(5000),
            numbers: 7,
            uplink_numbers: 4,
            ports: vec![(3, 0), (9, 5)],
            uplinks: vec![2, 0],
        };
        let (file, bytes) = layout.seal().unwrap();
        assert_eq!(KeptLayout::read(file.try_clone().unwrap(), bytes).unwrap(), layout);
        assert!(KeptLayout::read(file, bytes - 1).is_err());
    }

    #[test]
    fn what_belongs_to_a_port_says_so() {
        let items = [
            Item::Port { port: 4, budget: 1 },
            Item::Channel { port: 4, data_plane: 2 },
            Item::Session { port: 4, id: 1, number: 0, peer: None },
            Item::Busy { port: 4 },
            Item::Entry { port: 4, key: 2, bytes: Vec::new() },
        ];
        assert!(items.iter().all(|item| item.key().port() == Some(4)));
        assert_eq!(Item::Control.key().port(), None);
    }
}
