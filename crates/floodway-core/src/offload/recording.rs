//! How receive offload uses a [journal](super::journal), if the port has one. `sender::owed` has the other direction.
//!
//! # Theory of operation
//! A flow has a place in the journal exactly while something is kept for it: the place is opened for the first frame, before that is acknowledged, and
//! closed when the guest has acknowledged all. So there are no more places in use than frames fit into the budget, and a flow that is owed nothing costs nothing.
//! Where the journal has no room a frame is not acknowledged, as when the budget is used up.
//!
//! What the guest acknowledges is noted at the end of the call in which it is heard. A process that dies in between has the next one deliver what the guest
//! has already.
//!
//! Beside the addresses of a flow it has its Ethernet header ([`Link`]): whoever resets a connection needs that.

use floodway_wire::FiveTuple;

use super::journal::{Creditor, Debtor, FlowPlace, Image, Keeper, Recorder};
use super::packed_link::pack;
use super::receiver::Receiver;
use super::sink::{Link, Sink};
use crate::seq::Seq;
use crate::tcp::Segment;

/// Records the frame of `segment`, the next in order, for the flow that has `place` or gets it. Returns `true` if it may be acknowledged.
pub(super) fn record(
    journal: &mut dyn Keeper,
    place: &mut Option<FlowPlace>,
    (tuple, link): (&FiveTuple, &Link),
    segment: &Segment,
    image: Image<'_>,
) -> bool {
    let known = *place;
    let [guest, peer] = pack(link);
    let debtor = || Debtor { tuple, creditor: Creditor::Guest, about: [guest, peer, 0] };
    let Some(at) = known.or_else(|| journal.open(&debtor(), segment.seq)) else { return false };
    let kept = journal.keep(at, segment.seq_len(), image);
    if kept {
        *place = Some(at);
    } else if known.is_none() {
        journal.close(at);
    }
    kept
}

impl<B: 'static> Receiver<B> {
    /// Records all frames that are kept, the first of which begins at `from` and of which no journal has any. Returns `false` if there is no room.
    pub fn write_kept(
        &mut self,
        from: Option<Seq>,
        (tuple, link): (&FiveTuple, &Link),
        journal: &mut Recorder,
        sink: &impl Sink<B>,
    ) -> bool {
        let (Some(mut from), Some(journal)) = (from, journal) else { return true };
        let [guest, peer] = pack(link);
        let debtor = Debtor { tuple, creditor: Creditor::Guest, about: [guest, peer, 0] };
        let Some(place) = journal.open(&debtor, from) else { return false };
        self.keeping.place = Some(place);
        for kept in &self.keeping.kept {
            if !journal.keep(place, kept.end.since(from), sink.image(&kept.frame)) {
                return false;
            }
            from = kept.end;
        }
        journal.acknowledged(place, self.guest_ack());
        true
    }

    /// Notes in the journal what the guest has acknowledged.
    #[inline]
    pub fn note_in(&mut self, journal: &mut Recorder) {
        if let Some(place) = self.keeping.place {
            self.note_at(place, journal);
        }
    }

    fn note_at(&mut self, place: FlowPlace, journal: &mut Recorder) {
        let Some(journal) = journal else { return };
        if self.is_settled() {
            journal.close(place);
            self.keeping.place = None;
        } else {
            journal.acknowledged(place, self.guest_ack());
        }
    }

    /// Gives its place up.
    pub fn leave_journal(&mut self, journal: &mut Recorder) {
        let place = self.keeping.get_mut().and_then(|keeping| keeping.place.take());
        if let Some((place, journal)) = place.zip(journal.as_mut()) {
            journal.close(place);
        }
    }
}
