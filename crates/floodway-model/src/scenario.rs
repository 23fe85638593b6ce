//! What is tried, and what can be wrong with the order of steps.

use crate::world::{Deaths, FrontEnd, Guest, History, Journal, Message, Number, Peer, Slot, World};

/// Deaths of data planes after which what they had in common is not tried again (`floodway_broker::session::DEATHS`).
pub const DEATHS: u8 = 2;

/// What guest, peer and front-end do, and how many processes may die over it.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Frames that the guest has made available in its transmit ring, for its own receive ring.
    pub frames: Number,
    /// Most frames of a batch.
    pub batch: Number,
    /// Segments that the peer sends, at most 8.
    pub segments: Number,
    /// Slots of the journal.
    pub slots: usize,
    /// What the front-end says. It ends with rings that run.
    pub script: &'static [Message],
    /// Deaths.
    pub deaths: Deaths,
    /// What is wrong, if something is.
    pub variant: Option<Variant>,
}

/// A step left out, or two in the wrong order. Each is found by the checker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    /// The receive ring's used index is published before frames are copied.
    PublishedBeforeCopied,
    /// A batch is completed before the receiver sees its frames.
    CompletedBeforePublished,
    /// Batches are completed together, in the end.
    CompletedInTheEnd,
    /// A ring goes on where the record says that it began, and not at its used index.
    PositionsFromRecord,
    /// A ring that starts does not interrupt its guest.
    NoInterruptAtStart,
    /// An acknowledgement leaves before the journal's numbers are stored.
    AckBeforeJournal,
    /// The journal's numbers are stored before the frame's state.
    NumbersBeforeFrame,
    /// A frame's bytes are stored last.
    BytesAfterNumbers,
    /// Frames are let go before the guest's acknowledgement is noted.
    ReleasedBeforeNoted,
    /// The data plane replies to the front-end, and not by `Handled`.
    RepliedDirectly,
    /// What was outstanding is not delivered to the next data plane.
    OutstandingForgotten,
    /// The mark is removed when the reply is written, before the record's changes are in the store.
    ReplyBeforeRecord,
    /// The mark is removed before the reply is written.
    MarkRemovedBeforeReply,
    /// The mark is set when the message was taken from the socket.
    TakenBeforeMark,
    /// A new data plane's channel is in the store before the mark that it is given the record.
    ChannelKeptBeforeMark,
    /// A new front-end's connection is in the store before that mark.
    ConnectionKeptBeforeMark,
    /// The next broker goes on with a data plane whose channel to the port is not in the store.
    AdoptedWithoutPort,
    /// A data plane is started before the last one is gone.
    SuccessorBeforeEnd,
    /// A broker without a store starts although somebody answers at the control socket.
    ControlSocketIgnored,
}

impl Scenario {
    /// The beginning: nothing runs.
    #[must_use]
    pub fn world(&self) -> World {
        World {
            guest: Guest::default(),
            peer: Peer::default(),
            journal: Journal { slots: vec![Slot::default(); self.slots], ..Journal::default() },
            front_end: FrontEnd { replies: vec![0; self.script.len()], ..FrontEnd::default() },
            planes: Vec::new(),
            broker: Some(Default::default()),
            store: Some(Default::default()),
            deaths: self.deaths,
            history: History { delivered: vec![0; self.frames.into()], ..History::default() },
        }
    }

    /// The same with something wrong.
    #[must_use]
    pub fn with(&self, variant: Variant) -> Self {
        Self { variant: Some(variant), ..self.clone() }
    }
}
