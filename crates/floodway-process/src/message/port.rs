//! The messages of a port's channel.

use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

use super::{
    MAX_CHANGES, MAX_DESCRIPTORS, MAX_OWN_ENTRY, MAX_PROBLEM, MAX_REASON, MAX_VHOST_MESSAGE,
    Message, Violation, at_most,
};
use crate::peer::Peer;

/// What the broker says on the channel of a port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToPort {
    /// A front-end is there. What was known of the last one is void.
    Connected {
        /// Number of the connection.
        session: u32,
        /// Its process.
        peer: Option<Peer>,
    },
    /// No front-end is there, and the broker looks for one: what it has tried, for the diagnosis.
    Attempts {
        /// How often it has tried to connect.
        count: u64,
        /// Why it cannot, other than that nobody listens.
        problem: Option<String>,
    },
    /// The last front-end was cut off, since data planes had died of it, and no other has come yet.
    Quarantined {
        /// Why, for the status.
        reason: String,
    },
    /// A vhost-user message, with its descriptors.
    Message {
        /// Number of the connection.
        session: u32,
        /// Number of the message; in replays that of the entry, from 0.
        number: u64,
        /// It is part of the record: nobody wants a reply or a [`Handled`].
        replayed: bool,
        /// The message with its header.
        bytes: Vec<u8>,
    },
    /// The record is complete: rings that run interrupt their guest once, and are polled once.
    Replayed {
        /// Number of the connection.
        session: u32,
    },
    /// The front-end has gone.
    Disconnected {
        /// Number of the connection.
        session: u32,
    },
}

impl Message for ToPort {
    const CARRIES: bool = true;

    fn descriptors(&self) -> RangeInclusive<usize> {
        match self {
            Self::Message { .. } => 0..=MAX_DESCRIPTORS,
            _ => 0..=0,
        }
    }

    fn check(&self) -> Result<(), Violation> {
        match self {
            Self::Message { bytes, .. } => at_most("bytes", bytes.len(), MAX_VHOST_MESSAGE),
            Self::Attempts { problem, .. } => {
                at_most("problem", problem.as_ref().map_or(0, String::len), MAX_PROBLEM)
            }
            Self::Quarantined { reason } => at_most("reason", reason.len(), MAX_REASON),
            _ => Ok(()),
        }
    }
}

/// A change of a port's record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Change {
    /// The message that was handled becomes the last entry, with its descriptors; one of the same key goes.
    Keep {
        /// What it sets, in the data plane's own numbering.
        key: u64,
    },
    /// A message of the data plane's own making, without descriptors, becomes the last entry; one of the same key goes.
    KeepOwn {
        /// As above.
        key: u64,
        /// The message with its header.
        bytes: Vec<u8>,
    },
    /// Entries with keys from `first` to `last` go.
    Forget {
        /// The first key.
        first: u64,
        /// The last one, which goes, too.
        last: u64,
    },
}

/// Everything that a message has led to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Handled {
    /// Number of the connection.
    pub session: u32,
    /// Number of the message.
    pub number: u64,
    /// What changes in the record, in this order.
    pub changes: Vec<Change>,
    /// What the front-end is answered; empty for nothing.
    pub reply: Vec<u8>,
    /// The connection is to end.
    pub hang_up: bool,
}

/// What the data plane says on the channel of a port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromPort {
    /// The outstanding message has been handled.
    Handled(Handled),
    /// The record has been taken over.
    Resumed {
        /// Number of the connection.
        session: u32,
    },
    /// The connection is to end: memory that the front-end shares has gone.
    HangUp {
        /// Number of the connection.
        session: u32,
        /// Why, for the log and the status.
        reason: String,
    },
}

impl Message for FromPort {
    const CARRIES: bool = false;

    fn check(&self) -> Result<(), Violation> {
        let handled = match self {
            Self::HangUp { reason, .. } => return at_most("reason", reason.len(), MAX_REASON),
            Self::Resumed { .. } => return Ok(()),
            Self::Handled(handled) => handled,
        };
        at_most("changes", handled.changes.len(), MAX_CHANGES)?;
        at_most("reply", handled.reply.len(), MAX_VHOST_MESSAGE)?;
        handled.changes.iter().try_for_each(|change| match change {
            Change::KeepOwn { bytes, .. } => at_most("changes.bytes", bytes.len(), MAX_OWN_ENTRY),
            _ => Ok(()),
        })
    }
}
