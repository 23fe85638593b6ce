//! What is known of a connection that an earlier process acknowledged bytes for; [`adoption`](super::adoption) says what becomes of it.

use floodway_wire::tcp::Flags;

use super::journal::{self, FlowPlace, Retained};
use super::receiver::Receiver;
use super::recording::Recorder;
use crate::seq::Seq;
use crate::tcp::Segment;
use crate::time::Instant;

/// A connection of an earlier process.
#[derive(Debug)]
pub(super) struct Adopted<B> {
    pub rx: Receiver<B>,
    place: FlowPlace,
    /// What the peer expects next of the guest, as far as is known.
    pub expected: Option<Seq>,
    pub broken: Option<Resets>,
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
        let mut rx = Receiver::new(flow.guest_ack, 0, false);
        rx.adopt_numbers(flow.acked);
        let (mut expected, mut broken) = (None, frames.is_none().then_some(Resets::FIRST));
        for retained in frames.unwrap_or_default() {
            match revive(&retained) {
                Some((frame, segment)) if is_of(&retained, &segment) => {
                    expected = Some(segment.ack);
                    rx.keeping.push(frame, &segment, now);
                }
                _ => broken = Some(Resets::FIRST),
            }
        }
        Self { rx, place: flow.place, expected, broken }
    }

    pub fn leave_journal(&self, journal: &mut Recorder) {
        if let Some(journal) = journal {
            journal.close(self.place);
        }
    }

    /// Notes in the journal what the guest has acknowledged.
    pub fn note_in(&self, journal: &mut Recorder) {
        if let Some(journal) = journal
            && self.broken.is_none()
        {
            journal.acknowledged(self.place, self.rx.guest_ack());
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
