//! What there is: rings, journal, sockets, and what each process knows. Whatever a process alone knows goes with it.

use std::collections::VecDeque;

pub use crate::step::Number;
use crate::step::Step;

/// What a front-end says. The rings of a model's guest are set up and stopped together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Message {
    /// `SET_VRING_KICK`: rings run. No reply.
    Start,
    /// `GET_FEATURES`: nothing changes, and there is a reply.
    Ask,
    /// `GET_VRING_BASE`: rings stop, and there is a reply.
    Stop,
}

impl Message {
    /// The front-end waits for an answer.
    pub fn has_reply(self) -> bool {
        self != Self::Start
    }
}

/// Deaths that may still come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Deaths {
    /// Of data planes.
    pub planes: u8,
    /// Of brokers.
    pub brokers: u8,
    /// Of descriptor stores.
    pub stores: u8,
}

/// What lies in a receive buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Item {
    /// A frame of the sending guest.
    Frame(Number),
    /// A segment of the peer.
    Segment(Number),
    /// What was there before.
    Garbage,
}

/// The guest's memory, and what the guest has made of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Guest {
    /// `used.idx` of the transmit ring. All frames of the scenario are available.
    pub tx_used: Number,
    /// Used entries of the receive ring, published or not.
    pub rx_entries: Vec<Item>,
    /// `used.idx` of the receive ring.
    pub rx_used: Number,
    /// An interrupt has come that the guest has not looked into.
    pub interrupted: bool,
    /// Entries that it has looked at.
    pub rx_seen: Number,
    /// Segments that it has, a bit each.
    pub segments: u8,
}

impl Guest {
    /// Segments that it acknowledges: those before the first that it lacks.
    pub fn acked(&self) -> Number {
        self.segments.trailing_ones() as Number
    }

    /// Returns `true` if a used buffer has the segment, whether the guest has looked or not.
    pub fn has_got(&self, segment: Number) -> bool {
        let mut used = self.rx_entries.iter().take(self.rx_used.into());
        used.any(|entry| *entry == Item::Segment(segment))
    }
}

/// The peer's end of a connection, and the device that leads there.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Peer {
    /// Segments that it has heard an acknowledgement of.
    pub acked: Number,
    /// Segments that wait in the uplink's queue, in order of their arrival.
    pub queue: VecDeque<Number>,
    /// Segments that it has sent.
    pub sent: Number,
}

/// A slot of the journal: the segment whose bytes it has, and the one that its state publishes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Slot {
    /// Whose bytes.
    pub bytes: Option<Number>,
    /// Whose record.
    pub published: Option<Number>,
}

/// The journal of acknowledged bytes (`floodway_core::offload::journal`), of one flow.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Journal {
    /// The flow is published.
    pub open: bool,
    /// What was acknowledged for the guest.
    pub acked: Number,
    /// What the guest has acknowledged.
    pub guest: Number,
    /// Places for frames.
    pub slots: Vec<Slot>,
}

impl Journal {
    /// Returns `true` if whoever adopts the journal finds the segment as one that the guest is owed.
    pub fn owes(&self, segment: Number) -> bool {
        self.is_owed(segment)
            && self.slots.contains(&Slot { bytes: Some(segment), published: Some(segment) })
    }

    /// Returns `true` if its numbers say that the guest is owed the segment.
    pub fn is_owed(&self, segment: Number) -> bool {
        self.open && (self.guest..self.acked).contains(&segment)
    }
}

/// To a data plane, on the port's channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Down {
    /// A front-end is there.
    Connected(Number),
    /// A message of its record.
    Replayed(Message),
    /// That was the record.
    EndOfReplay(Number),
    /// A message, by session and number.
    Message(Number, Number),
    /// The front-end has gone.
    Disconnected(Number),
}

/// From a data plane, on the port's channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Up {
    /// The message of this session and number was handled.
    Handled(Number, Number),
    /// The record was taken over.
    Resumed(Number),
}

/// A data plane with its end of the port's channel.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Plane {
    /// The process is there.
    pub alive: bool,
    /// It was killed, and may still do something.
    pub doomed: bool,
    /// It has all that it starts with.
    pub supplied: bool,
    /// It has adopted the journal, and serves.
    pub serves: bool,
    /// It has said so.
    pub said_ready: bool,
    /// What its main thread does next.
    pub main: Vec<Step>,
    /// What its worker does next.
    pub worker: Vec<Step>,
    /// What its port thread does next.
    pub relay: Vec<Step>,
    /// The front-end that it knows.
    pub session: Option<Number>,
    /// What it acts on: session and number.
    pub message: Option<(Number, Number)>,
    /// Its rings run.
    pub runs: bool,
    /// The next frame that it takes from the transmit ring.
    pub tx_next: Number,
    /// The next used entry that it writes into the receive ring.
    pub rx_next: Number,
    /// The next frame of the batch that is to be placed.
    pub placing: Number,
    /// The segment that the worker has.
    pub hand: Option<Number>,
    /// Segments that earlier data planes have acknowledged, and that are to be delivered.
    pub owed: Vec<Number>,
    /// It passes segments through: an earlier data plane owed the guest something.
    pub offline: bool,
    /// Slots that it knows to be in use.
    pub slots: Vec<bool>,
    /// What it has heard the guest acknowledge, once it has.
    pub heard: Option<Number>,
    /// To it.
    pub down: VecDeque<Down>,
    /// From it. What is here outlives it.
    pub up: VecDeque<Up>,
}

/// A message whose outcome is not known.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Outstanding {
    /// Which.
    pub message: Number,
    /// The data plane has it.
    pub delivered: bool,
    /// Data planes that died while they had it.
    pub deaths: u8,
}

/// Where a session is (`floodway_broker::session`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stage {
    /// There is no data plane.
    Unattended,
    /// A data plane is given the record.
    Replaying,
    /// A data plane has it.
    Serving,
}

/// A front-end's session in the broker.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Session {
    /// Which connection.
    pub id: Number,
    /// Where it is.
    pub stage: Stage,
    /// The message whose outcome is not known.
    pub outstanding: Option<Outstanding>,
    /// Number of that message, or of the next one.
    pub number: Number,
    /// What is replayed.
    pub record: Option<Message>,
    /// Data planes in a row that died during the replay.
    pub deaths: u8,
}

/// The broker's thread of the port.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Port {
    /// The data plane whose channel it has.
    pub channel: Option<Number>,
    /// The front-end.
    pub session: Option<Session>,
    /// Connections so far.
    pub sessions: Number,
    /// The mark is set, as far as it knows.
    pub mark: bool,
    /// What it does next.
    pub todo: Vec<Step>,
    /// The message that it has taken from the socket or heard of.
    pub message: Option<Number>,
}

/// The broker.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Broker {
    /// The data plane that it watches.
    pub plane: Option<Number>,
    /// That one has said that it serves, and the broker has noted it.
    pub ready: bool,
    /// What its main thread does next.
    pub main: Vec<Step>,
    /// A channel for the port's thread.
    pub mailbox: Option<Number>,
    /// The port's thread.
    pub port: Port,
}

/// What the descriptor store has.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Kept {
    /// The data plane, and whether it serves.
    pub plane: Option<(Number, bool)>,
    /// The data plane whose port channel it has.
    pub channel: Option<Number>,
    /// The front-end's connection and the number of its next message.
    pub session: Option<(Number, Number)>,
    /// Number of the last connection.
    pub sessions: Number,
    /// The record.
    pub record: Option<Message>,
    /// The mark.
    pub busy: bool,
}

/// The front-end: QEMU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct FrontEnd {
    /// The connection, once the broker has accepted it; `None` while it tries to connect.
    pub session: Option<Number>,
    /// Messages of the script that it has sent.
    pub sent: Number,
    /// Those of them that nobody has taken from the socket.
    pub unread: VecDeque<Number>,
    /// Replies to each message.
    pub replies: Vec<u8>,
}

/// What has happened, for the properties.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct History {
    /// How often each frame was delivered.
    pub delivered: Vec<u8>,
    /// Frames that were delivered again since the last death of a data plane.
    pub again: u8,
    /// A used index went back.
    pub went_back: bool,
    /// Connections of the front-end that ended and were not under suspicion.
    pub cut: u8,
    /// Deaths of brokers.
    pub broker_deaths: u8,
    /// Broker and store have died together, and with them the journal.
    pub all_lost: bool,
    /// A data plane has served.
    pub has_served: bool,
}

/// All of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct World {
    /// The guest.
    pub guest: Guest,
    /// The peer of its connection.
    pub peer: Peer,
    /// What was acknowledged for it.
    pub journal: Journal,
    /// Its front-end.
    pub front_end: FrontEnd,
    /// Data planes, the dead ones, too.
    pub planes: Vec<Plane>,
    /// The broker, if there is one.
    pub broker: Option<Broker>,
    /// What the store has, if there is one.
    pub store: Option<Kept>,
    /// Deaths to come.
    pub deaths: Deaths,
    /// What has happened.
    pub history: History,
}

impl World {
    /// Changes what the store has, if there is a store.
    pub fn keep(&mut self, change: impl FnOnce(&mut Kept)) {
        if let Some(kept) = &mut self.store {
            change(kept);
        }
    }

    /// Returns `true` if somebody has the front-end's connection.
    pub fn has_connection(&self, session: Number) -> bool {
        let broker = self.broker.as_ref().and_then(|broker| broker.port.session.as_ref());
        let kept = self.store.as_ref().and_then(|kept| kept.session);
        broker.is_some_and(|broker| broker.id == session)
            || kept.is_some_and(|(id, _)| id == session)
    }

    /// Data planes that are there.
    pub fn living(&self) -> impl Iterator<Item = &Plane> {
        self.planes.iter().filter(|plane| plane.alive)
    }
}
