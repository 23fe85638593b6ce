//! The messages between broker and data plane.
//!
//! # Theory of operation
//! **Goal**: one closed set of messages, in which a data plane that a guest has taken over can say nothing that gives it more than its ports have. So messages from the
//! data plane name ports and uplinks by the numbers that the broker gave them, carry no descriptor, no path and no process, and whatever they make the broker keep is
//! bounded here or by the record of the port.
//!
//! **Encoding**: `postcard`. A datagram is one message and nothing else. The bounds are checked on both sides: the sender's are a fault of ours and tested, the
//! receiver's are the protection.
//!
//! **Changes** go one way: the broker says what is to be, the data plane whether it is. There is no message by which a data plane could ask for one.
//!
//! **Versions**: the first message each way carries [`VERSION`]. Broker and data plane of different versions meet only in an upgrade, which asks a program for its
//! version before it starts it; a difference ends the start with an error that names both.
//!
//! **Hand-over**: in an [upgrade](crate::upgrade) two data planes run for a short time, and only one of them moves frames. `StandBy` in the place of `Start` makes the new one
//! confine itself and wait. `PrepareHandOver` gives the old one memory for the state of its connections, or makes it take them off its offload; `HandOver` makes it let go of everything.
//!
//! **Moves** to another host: the broker speaks with the broker over there, and each data plane with its own broker. The source says [`Leaving`](FromDataPlane::Leaving), and is told
//! [`Export`](ToDataPlane::Export) or [`StayBehind`](ToDataPlane::StayBehind); when its rings have stopped it says [`Exported`](FromDataPlane::Exported), and keeps all of it, untouched, until
//! it hears [`Released`](ToDataPlane::Released), which ends what it owes, or [`StayBehind`](ToDataPlane::StayBehind), which makes it owe it again. The destination is told
//! [`Arriving`](ToDataPlane::Arriving), then [`Import`](ToDataPlane::Import), and says [`Imported`](FromDataPlane::Imported) when the guest's rings run there and all that is owed
//! is in its journal. So at each time at least one of the two owes what was acknowledged. A broker that begins anew (`Broker`) ends all moves: what was not released is taken back.
//!
//! **Invariant**: [`Message::check`] accepts every message that a peer of this version sends.

mod port;

use std::ops::RangeInclusive;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::moves::Moves;
use crate::upgrade::Programs;
pub use port::{Change, FromPort, Handled, ToPort};

/// Version of the message set, and of the layout of journals.
pub const VERSION: u32 = 11;
/// Longest datagram in bytes.
pub const MAX_DATAGRAM: usize = 16 << 10;
/// Most descriptors beside a message: as many as a vhost-user message may have.
pub const MAX_DESCRIPTORS: usize = 32;
/// Longest vhost-user message in bytes, header included.
pub const MAX_VHOST_MESSAGE: usize = 12 + 4096;
/// Longest vhost-user message of the data plane's own making that a record keeps.
pub const MAX_OWN_ENTRY: usize = 64;
/// Most changes of a record by one message.
pub const MAX_CHANGES: usize = 40;
/// Longest name of a setting in bytes.
pub const MAX_KEY: usize = 128;
/// Longest value of a setting in bytes.
pub const MAX_VALUE: usize = 4096;
/// Longest text about a socket that cannot be connected to in bytes: it names the path twice.
pub const MAX_PROBLEM: usize = 1024;
/// Longest reason in bytes.
pub const MAX_REASON: usize = 256;
/// Milliseconds for which a data plane waits for connections to go off its offload before it hands over.
pub const PREPARATION_MS: u64 = 1000;
/// Milliseconds for which a port whose guest is about to move to another host waits to hear what becomes of its connections, before it drains by itself.
pub const ANSWER_MS: u64 = 500;
/// Milliseconds for which rings of a guest that arrives from another host wait for its connections, from their start.
pub const ARRIVAL_MS: u64 = 1000;
/// Milliseconds for which connections that were exported stand still, before they are taken back without a word from the broker.
pub const RELEASE_MS: u64 = 60_000;
/// Most uplinks of a configuration.
pub const MAX_UPLINKS: usize = 4096;

/// Why a datagram is not a message of this protocol.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// Not one message, or more than one.
    #[error("a datagram of {bytes} bytes is no message of version {VERSION}")]
    Undecodable {
        /// Its length.
        bytes: usize,
    },
    /// Longer than any message.
    #[error("a datagram is longer than {MAX_DATAGRAM} bytes")]
    TooLong,
    /// Something in a message exceeds its bound.
    #[error("{field} = {value}: at most {max}")]
    TooLarge {
        /// Which field.
        field: &'static str,
        /// What it holds.
        value: usize,
        /// What it may hold.
        max: usize,
    },
    /// Another number of descriptors than the message has.
    #[error("a message came with {found} descriptors instead of {} to {}", expected.start(), expected.end())]
    Descriptors {
        /// How many came.
        found: usize,
        /// How many it may have.
        expected: RangeInclusive<usize>,
    },
    /// The peer speaks another version.
    #[error("the peer speaks version {0}, and this is version {VERSION}")]
    Version(u32),
    /// More descriptors than any message may have, or one where there may be none.
    #[error("a message came with descriptors that it may not have")]
    Forbidden,
}

/// A message of the protocol.
pub trait Message: Serialize + DeserializeOwned {
    /// Messages of this type may have descriptors.
    const CARRIES: bool;

    /// How many descriptors come with it.
    fn descriptors(&self) -> RangeInclusive<usize> {
        0..=0
    }

    /// Checks all bounds.
    ///
    /// # Errors
    /// The first field that exceeds its bound.
    fn check(&self) -> Result<(), Violation>;
}

/// The start of `reason`, as long as a message can have it.
#[must_use]
pub fn shorten(reason: &str) -> String {
    reason[..reason.floor_char_boundary(MAX_REASON)].to_owned()
}

fn at_most(field: &'static str, value: usize, max: usize) -> Result<(), Violation> {
    if value > max { Err(Violation::TooLarge { field, value, max }) } else { Ok(()) }
}

/// Checks the bounds of `programs`.
pub(crate) fn check_programs(programs: &Programs) -> Result<(), Violation> {
    programs.lengths().try_for_each(|(field, len, max)| at_most(field, len, max))?;
    at_most("problem", programs.upgrades.problem.as_ref().map_or(0, String::len), MAX_REASON)
}

/// Encodes `message`.
///
/// # Errors
/// It exceeds a bound: a fault of the caller.
pub fn encode<M: Message>(message: &M) -> Result<Vec<u8>, Violation> {
    message.check()?;
    let bytes = postcard::to_allocvec(message).map_err(|_| Violation::TooLong)?;
    if bytes.len() > MAX_DATAGRAM { Err(Violation::TooLong) } else { Ok(bytes) }
}

/// Decodes a whole datagram, which came with `descriptors`.
///
/// # Errors
/// It is not exactly one message, or one that exceeds a bound.
pub fn decode<M: Message>(datagram: &[u8], descriptors: usize) -> Result<M, Violation> {
    let undecodable = Violation::Undecodable { bytes: datagram.len() };
    if datagram.len() > MAX_DATAGRAM {
        return Err(Violation::TooLong);
    }
    let (message, rest) =
        postcard::take_from_bytes::<M>(datagram).map_err(|_| undecodable.clone())?;
    if !rest.is_empty() {
        return Err(undecodable);
    }
    message.check()?;
    let expected = message.descriptors();
    if expected.contains(&descriptors) {
        Ok(message)
    } else {
        Err(Violation::Descriptors { found: descriptors, expected })
    }
}

/// A setting that an operator has made at run time. The broker keeps it for the next data plane and does not understand it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Setting {
    /// Which; a later value replaces an earlier one.
    pub key: String,
    /// Its value.
    pub value: Vec<u8>,
}

impl Setting {
    pub(crate) fn check(&self) -> Result<(), Violation> {
        at_most("setting.key", self.key.len(), MAX_KEY)?;
        at_most("setting.value", self.value.len(), MAX_VALUE)
    }
}

/// How an uplink's descriptors are to be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum UplinkKind {
    /// One descriptor: a TAP device, both ways.
    Tap,
    /// Two: a packet socket that receives, and one that sends.
    Packet,
}

/// Bytes that each worker has in [`StatePart::Turns`]: a cache line.
pub const TURN_BYTES: usize = 64;

/// A part of the state that outlives a data plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StatePart {
    /// Counters of ports and uplinks.
    Counters,
    /// Who has sent how much to whom.
    Pairs,
    /// The forwarding table.
    MacTable,
    /// Connections, as the data plane of before has left them: of an upgrade only.
    Flows,
    /// Whose turn it is: in the first word of each worker's [`TURN_BYTES`] the instance of the port that it serves, or zero.
    Turns,
}

/// What the broker says on the main channel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToDataPlane {
    /// The first message.
    Hello {
        /// [`VERSION`] of the broker.
        version: u32,
        /// Data planes that ended before this one.
        restarts: u32,
        /// Why the last one did.
        last_end: Option<String>,
    },
    /// A sealed memfd with the text of the configuration.
    Configuration {
        /// Length of the text.
        bytes: u32,
        /// Numbers that ports can have.
        numbers: u16,
        /// Numbers that uplinks can have.
        uplink_numbers: u16,
        /// Numbers of its uplinks, in its order.
        uplinks: Vec<u16>,
    },
    /// The listening control socket.
    Control,
    /// An uplink's device, or the one that takes its place. After the start, with a number that is not in use, one of the next [`Change`](Self::Change).
    Uplink {
        /// The uplink's number.
        number: u16,
        /// What its descriptors are.
        kind: UplinkKind,
        /// Bits per second, if the device says so.
        link_rate: Option<u64>,
    },
    /// The channel of a port, and a memfd with what earlier data planes acknowledged for its guest, or zeros. After the start it is a port of the next
    /// [`Change`](Self::Change).
    Port {
        /// Position in the configuration.
        index: u16,
        /// Its number, which nobody else has at the same time.
        number: u16,
        /// What tells it from others that have had the number: never the same again.
        instance: u64,
        /// Bytes of acknowledged data that the memfd was made for.
        journal: u32,
    },
    /// Another configuration, in a sealed memfd. Ports that came since the last change are new, and uplinks with other numbers; others stay if it has them.
    Change {
        /// Number of the change.
        number: u64,
        /// Length of the text.
        bytes: u32,
        /// Numbers of its uplinks, in its order.
        uplinks: Vec<u16>,
    },
    /// A sealed memfd with state of an earlier data plane, or zeros.
    State {
        /// What is in it.
        part: StatePart,
        /// Its length.
        bytes: u64,
    },
    /// A setting that an operator made while an earlier data plane ran.
    Setting(Setting),
    /// How the broker fares with the vCPU threads of a port's VM.
    Vcpus {
        /// Number of the port.
        port: u16,
        /// Threads that have the policy's slice.
        threads: u32,
        /// Why others do not.
        problem: Option<String>,
    },
    /// Which process the broker is from now on, or zero: it has gone, and the next one is waited for.
    Broker {
        /// Its number.
        pid: u32,
    },
    /// The data plane has everything that it starts with.
    Start,
    /// The switch is to stop.
    Stop,
    /// Which programs run, for the status; also when one of them has been replaced.
    Programs(Programs),
    /// How connections fare that follow VMs to other hosts, for the status; also when that changes.
    Moves(Moves),
    /// The data plane is to go into its sandbox and wait: the rest comes when the one that runs has let go of it.
    StandBy {
        /// Bytes of heap that the one that runs has: it is likely to need as much.
        heap: u64,
    },
    /// Another data plane is about to take this one's place. The state of connections goes into the memfd, at its [`HandOver`](Self::HandOver), if this one writes the format
    /// that the other one reads; otherwise they are to go off the offload, as far as they can within [`PREPARATION_MS`].
    PrepareHandOver {
        /// Version of the format.
        flows: u32,
        /// Length of the memfd, which is all zeros.
        bytes: u64,
    },
    /// Nothing came of it: the offload takes connections again.
    CancelHandOver,
    /// The data plane is to touch no ring, device or kept memory any more, say so, and end.
    HandOver,
    /// The connections of a port that is [`Leaving`](FromDataPlane::Leaving) are to follow its guest: they go on, and are written into the memfd when the guest's last ring has stopped.
    /// A port that is not leaving any more ignores it.
    Export {
        /// Number of the port.
        port: u16,
        /// Version of the format that the other host reads. A data plane that writes another one drains the port.
        flows: u32,
        /// Length of the memfd, which is all zeros.
        bytes: u64,
    },
    /// Nobody takes the connections of a port that is [`Leaving`](FromDataPlane::Leaving): it drains. If they were [`Exported`](FromDataPlane::Exported) it owes again what was
    /// owed, and sends it after the guest.
    StayBehind {
        /// Number of the port.
        port: u16,
    },
    /// The other host has what was [`Exported`](FromDataPlane::Exported): connections and what is owed for them are forgotten here, without a word to either end.
    Released {
        /// Number of the port.
        port: u16,
    },
    /// The guest of a port may arrive from another host. Rings that start from now on wait for an [`Import`](Self::Import), for at most [`ARRIVAL_MS`]. Ignored if rings run already.
    Arriving {
        /// Number of the port.
        port: u16,
        /// Or it does not any more: rings wait for nothing, and what has come is thrown away.
        arriving: bool,
    },
    /// Connections of a port whose guest is [`Arriving`](Self::Arriving), in a sealed memfd. They are taken up when its rings start, and answered then: see
    /// [`Imported`](FromDataPlane::Imported).
    Import {
        /// Number of the port.
        port: u16,
        /// Length of what the other host has written.
        bytes: u64,
    },
}

impl Message for ToDataPlane {
    const CARRIES: bool = true;

    fn descriptors(&self) -> RangeInclusive<usize> {
        match self {
            Self::Configuration { .. }
            | Self::Control
            | Self::Change { .. }
            | Self::PrepareHandOver { .. }
            | Self::Export { .. }
            | Self::Import { .. }
            | Self::State { .. } => 1..=1,
            Self::Uplink { kind: UplinkKind::Tap, .. } => 1..=1,
            Self::Uplink { kind: UplinkKind::Packet, .. } | Self::Port { .. } => 2..=2,
            Self::Hello { .. }
            | Self::Setting(_)
            | Self::Vcpus { .. }
            | Self::Broker { .. }
            | Self::Programs(_)
            | Self::Moves(_)
            | Self::StandBy { .. }
            | Self::CancelHandOver
            | Self::HandOver
            | Self::StayBehind { .. }
            | Self::Released { .. }
            | Self::Arriving { .. }
            | Self::Start
            | Self::Stop => 0..=0,
        }
    }

    fn check(&self) -> Result<(), Violation> {
        match self {
            Self::Setting(setting) => setting.check(),
            Self::Configuration { uplinks, .. } | Self::Change { uplinks, .. } => {
                at_most("uplinks", uplinks.len(), MAX_UPLINKS)
            }
            Self::Hello { last_end, .. } => {
                at_most("last_end", last_end.as_ref().map_or(0, String::len), MAX_REASON)
            }
            Self::Vcpus { problem, .. } => {
                at_most("problem", problem.as_ref().map_or(0, String::len), MAX_REASON)
            }
            Self::Programs(programs) => check_programs(programs),
            Self::Moves(moves) => {
                moves.lengths().try_for_each(|(field, len)| at_most(field, len, MAX_REASON))
            }
            _ => Ok(()),
        }
    }
}

/// How far a data plane is confined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Confinement {
    /// In all ways.
    Full,
    /// In all ways that this kernel knows.
    Partial,
    /// Not at all, as the operator wants it.
    Off,
}

/// What the data plane says on the main channel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromDataPlane {
    /// The first message: it is in its sandbox and serves.
    Ready {
        /// [`VERSION`] of the data plane.
        version: u32,
        /// How far it is confined.
        confinement: Confinement,
        /// Connections that another data plane had online, and that are online.
        carried: u32,
    },
    /// A sign of life.
    Alive {
        /// One more than in the last one.
        count: u64,
    },
    /// An operator has made a setting.
    Remember(Setting),
    /// An uplink's device has failed.
    Reopen {
        /// Its number.
        number: u16,
    },
    /// A change has been made, or nothing of it.
    Changed {
        /// Number of the change.
        number: u64,
        /// Why nothing was changed.
        refusal: Option<String>,
    },
    /// The first message of one that was to stand by: it is in its sandbox and waits.
    StandsBy {
        /// [`VERSION`] of the data plane.
        version: u32,
    },
    /// Connections will be handed over, or are off the offload, as far as they could go within [`PREPARATION_MS`].
    HandOverPrepared,
    /// It touches nothing any more, and ends.
    HandedOver {
        /// Connections that were online when it was told that another one would take its place.
        online: u32,
    },
    /// The guest of a port is about to move: its front-end wants writes to its memory to be noted.
    Leaving {
        /// Number of the port.
        port: u16,
        /// Or it stays: the front-end has thought better of it or has gone, or rings run again. The other host has to forget what it was sent.
        leaving: bool,
    },
    /// The guest's last ring has stopped, and its connections lie in the memfd that came with [`Export`](ToDataPlane::Export), as the answer to that. They stand still here from now on, until the broker
    /// says [`Released`](ToDataPlane::Released) or [`StayBehind`](ToDataPlane::StayBehind), for at most [`RELEASE_MS`].
    Exported {
        /// Number of the port.
        port: u16,
        /// Those that were online.
        online: u32,
        /// Bytes at the start of the memfd that are to go to the other host; zero if they cannot be written, and then the port is as if it had been told to
        /// [`StayBehind`](ToDataPlane::StayBehind).
        bytes: u64,
    },
    /// What has become of an [`Import`](ToDataPlane::Import): the answer to each, unless `Arriving` was taken back before. It may take as long as the guest takes to start.
    Imported {
        /// Number of the port.
        port: u16,
        /// What is owed is owed here now: the other host may be told [`Released`](ToDataPlane::Released). Otherwise nothing of it was used: it came too late, or cannot be read.
        taken: bool,
        /// Connections that go on.
        carried: u32,
        /// Those of them that are online.
        online: u32,
    },
}

impl Message for FromDataPlane {
    const CARRIES: bool = false;

    fn check(&self) -> Result<(), Violation> {
        match self {
            Self::Remember(setting) => setting.check(),
            Self::Changed { refusal, .. } => {
                at_most("refusal", refusal.as_ref().map_or(0, String::len), MAX_REASON)
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
