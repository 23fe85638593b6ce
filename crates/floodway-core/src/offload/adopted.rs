//! What is known of a connection that an earlier process acknowledged bytes for; [`adoption`](super::adoption) says what becomes of it.

use floodway_wire::FiveTuple;
use floodway_wire::tcp::Flags;
use floodway_wire::tcp::options::{SackList, Timestamps};

use super::journal::Recorder;
use super::journal::{self, FlowPlace, Owed, Retained};
use super::receiver::Receiver;
use super::sender::owed::Left;
use super::sink::{Link, SynthesizedSegment};
use crate::seq::Seq;
use crate::tcp::{Edit, Segment};
use crate::time::Instant;

/// A connection of an earlier process.
#[derive(Debug)]
pub(super) struct Adopted<B> {
    pub rx: Receiver<B>,
    /// Where the journal has what is owed to the guest and to the peer.
    places: [Option<FlowPlace>; 2],
    /// The latest word of the peer on what it expects next of the guest, and on its window.
    peer: Option<(Seq, u16)>,
    /// The latest clock of the peer, if the connection has timestamps.
    clock: Option<Timestamps>,
    /// Behind what the guest has sent, since it was adopted, and its clock.
    guest: Option<(Seq, Option<Timestamps>)>,
    pub broken: Option<Resets>,
}

/// Where a connection is that owes bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Owing {
    pub link: Link,
    /// Acknowledged by the guest, and for it.
    pub to_guest: [Seq; 2],
    /// What the peer expects next of the guest.
    pub una: Seq,
}

/// Resets of a broken connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Resets {
    /// When the next ones are due.
    pub at: Instant,
    /// Those that have been sent.
    pub tries: u8,
}

impl Resets {
    /// At once, when somebody looks.
    pub const FIRST: Self = Self { at: Instant::ZERO, tries: 0 };
}

impl<B: 'static> Adopted<B> {
    /// The connection that `flow` says, with `frames` if all of them are there.
    pub fn new(
        flow: &journal::Adopted,
        frames: Option<Vec<Retained>>,
        now: Instant,
        revive: &mut impl FnMut(&Retained) -> Option<(B, Segment)>,
    ) -> Self {
        let mut rx = Receiver::new(flow.creditor_ack, 0, false);
        rx.adopt_numbers(flow.acked);
        let broken = frames.is_none().then_some(Resets::FIRST);
        let (peer, clock, guest) = (None, None, None);
        let places = [Some(flow.place), None];
        let mut adopted = Self { rx, places, peer, clock, guest, broken };
        for retained in frames.unwrap_or_default() {
            match revive(&retained) {
                Some((frame, segment)) if is_of(&retained, &segment) => {
                    adopted.peer = Some((segment.ack, segment.window));
                    adopted.clock = segment.options.timestamps;
                    adopted.rx.keeping.push(frame, &segment, now);
                }
                _ => adopted.broken = Some(Resets::FIRST),
            }
        }
        adopted
    }

    /// Where the journal has what it owes to its guest.
    pub fn debts(&self) -> Owed {
        let [place, _] = self.places;
        let debt = |place| (place, self.rx.guest_ack, self.rx.acked);
        Owed { to_guest: place.map(debt), to_peer: None }
    }

    /// The receive side, if it lacks nothing, with its place in the journal.
    pub fn into_receiver(self) -> Option<Receiver<B>> {
        let Self { mut rx, places: [place, None], broken: None, .. } = self else { return None };
        rx.keeping.place = place;
        Some(rx)
    }

    /// The connection that owes to its peer by `peer`, which lacks bytes, and perhaps to its guest by `guest`.
    pub fn broken(peer: &journal::Adopted, guest: Option<&journal::Adopted>) -> Self {
        let (by_peer, by_guest) = (peer.creditor_ack, Left::of(peer).ack);
        let mut rx = Receiver::new(guest.map_or(by_guest, |flow| flow.creditor_ack), 0, false);
        rx.adopt_numbers(guest.map_or(by_guest, |flow| flow.acked));
        let places = [guest.map(|flow| flow.place), Some(peer.place)];
        let (clock, said, broken) = (None, None, Some(Resets::FIRST));
        Self { rx, places, peer: Some((by_peer, 0)), clock, guest: said, broken }
    }

    /// A connection of another host that owes bytes which are not here.
    pub fn lost(owing: &Owing) -> Self {
        let [by_guest, acked] = owing.to_guest;
        let mut rx = Receiver::new(by_guest, 0, false);
        rx.adopt_numbers(acked);
        let (clock, guest, broken) = (None, None, Some(Resets::FIRST));
        Self { rx, places: [None; 2], peer: Some((owing.una, 0)), clock, guest, broken }
    }

    /// What the peer expects next of the guest, as far as is known.
    pub fn expected(&self) -> Option<Seq> {
        self.peer.map(|(ack, _)| ack)
    }

    /// Takes in what a segment of the guest says of its own side.
    pub fn note_guest(&mut self, segment: &Segment) {
        let nxt = self.guest.map_or(segment.end(), |(nxt, _)| nxt.max(segment.end()));
        self.guest = Some((nxt, segment.options.timestamps));
    }

    /// Takes in what a segment of the peer says of the guest's side, if it can be the peer's: it acknowledges what the guest has sent, and nothing else.
    pub fn note_peer(&mut self, segment: &Segment) {
        let Some((nxt, _)) = self.guest else { return };
        let is_old = self.expected().is_some_and(|known| segment.ack.before(known))
            || segment.end().before(self.rx.guest_ack());
        if !segment.has(Flags::ACK) || segment.ack.after(nxt) || is_old {
            return;
        }
        self.peer = Some((segment.ack, segment.window));
        if let Some(new) = segment.options.timestamps
            && self.clock.is_some_and(|known| !Seq(new.value).before(Seq(known.value)))
        {
            self.clock = Some(new);
        }
    }

    /// What the header of a kept frame is to say: a guest drops one that acknowledges too little, or is too old by its clock.
    pub fn edit(&self) -> Edit {
        let (ack, window) = self.peer.unzip();
        Edit { ack, window, timestamps: self.clock, ..Edit::default() }
    }

    /// A keepalive in the guest's name: the peer answers with what [`Adopted::edit`] needs to know. `None` while too little is known of the guest.
    pub fn keepalive(&self, flow: &FiveTuple, link: Link) -> Option<SynthesizedSegment> {
        let (nxt, clock) = self.guest?;
        let echo = self.clock.map_or(0, |clock| clock.value);
        Some(SynthesizedSegment {
            flow: *flow,
            link,
            seq: Seq(nxt.0.wrapping_sub(1)),
            ack: self.rx.outgoing().ack,
            window: u16::MAX,
            flags: Flags::ACK,
            timestamps: clock.map(|Timestamps { value, .. }| Timestamps { value, echo }),
            sack: SackList::default(),
        })
    }

    pub fn leave_journal(&self, journal: &mut Recorder) {
        if let Some(journal) = journal {
            self.places.into_iter().flatten().for_each(|place| journal.close(place));
        }
    }

    /// Notes in the journal what the guest has acknowledged.
    pub fn note_in(&self, journal: &mut Recorder) {
        if let Some(journal) = journal
            && self.broken.is_none()
            && let [Some(place), _] = self.places
        {
            journal.acknowledged(place, self.rx.guest_ack());
        }
    }

    pub fn next_timeout(&self) -> Instant {
        self.broken.map_or_else(|| self.rx.next_timeout(), |resets| resets.at)
    }

    /// The guest can be delivered to.
    pub fn resume(&mut self, at: Instant) {
        match &mut self.broken {
            Some(_) => self.broken = Some(Resets { at, tries: 0 }),
            None => self.rx.redeliver_all_at(at),
        }
    }
}

/// Headers say what the record says.
fn is_of(retained: &Retained, segment: &Segment) -> bool {
    segment.seq == retained.seq && segment.seq_len() == retained.len && segment.has(Flags::ACK)
}
