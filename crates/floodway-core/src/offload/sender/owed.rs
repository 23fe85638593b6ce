//! Bytes that were acknowledged to the guest early, in the port's [journal](crate::offload::journal) (T1 of
//! [`early_ack`](super::early_ack) across the end of the process).
//!
//! # Theory of operation
//! **Recording.** A flow has a place in the journal exactly while it owes its peer bytes. Before an early ACK leaves, the frames with the bytes that it acknowledges are copied
//! there, and then the number. Where the journal has no room the number moves no further. What the peer acknowledges ends that, at the end of the call in
//! which it is heard. Until then the journal also has at the end of each call what is needed to go on with the connection: what the SYNs agreed on, the size of segments, both
//! clocks, the edges of both windows, the acknowledgement for the peer, how far the guest has sent, and the round trip.
//!
//! | word | what |
//! |---|---|
//! | about | the two of [`Link`] · options and shift of the peer (8 bits), shift of the guest (8), MSS (16) |
//! | note 0 | latest clock of the guest on the wire · of the peer |
//! | note 1 | acknowledgement for the peer · right edge of the peer's window |
//! | note 2 | right edge that the guest was told · where the guest is |
//! | note 3 | window field for the peer (16 bits) · round trip in microseconds (32) |
//!
//! **The next process** takes the flow over as if its retransmission timer had just run out ([`Sender::adopt`]): all that is recorded counts as sent and
//! lost, so that it leaves again in slow start from one segment, and what the peer has of it its first ACK says. No round trip is measured on it (Karn's algorithm).
//! When it has arrived the flow is online as before. Bytes that the guest sent and that were not acknowledged to it are not recorded: the guest sends them again. A peer
//! may have them already, and acknowledge them: then it has all that it was owed, and the flow is given up like any [other](super) with bytes
//! that went past the switch.
//!
//! **Strangers.** As for the other direction: numbers that are out of range are replaced by the least that is possible. They can do no more harm than a guest with them, to its own
//! connection.
//!
//! **Cost.** Without early acknowledgement a load and a branch for a call in which something of the flow was looked up, none for a predicted segment.

use floodway_wire::FiveTuple;

use super::ahead::Ahead;
use super::{Agreed, MIN_MSS, Outgoing, Phase, Sender, Timer, initial_window};
use crate::congestion::Window;
use crate::offload::config::Config;
use crate::offload::journal::{
    self, Creditor, Debtor, FlowPlace, Keeper, NOTE_WORDS, Notes, Recorder, Retained,
};
use crate::offload::packed_link::pack;
use crate::offload::sink::{Link, Sink};
use crate::offload::state_pool::FreeList;
use crate::seq::Seq;
use crate::tcp::Segment;
use crate::time::{Duration, Instant};

/// Most bytes that a number may lie ahead of another to be believed: no window is larger.
const MAX_AHEAD: u32 = 1 << 30;
/// Largest shift of a window (RFC 7323 section 2.3).
pub(in crate::offload) const MAX_SCALE: u8 = 14;

/// Where bytes are recorded that a flow owes to its peer, and what is said there of its other side.
pub(in crate::offload) struct Ledger<'a, S> {
    pub journal: &'a mut Recorder,
    /// In the guest's direction.
    pub flow: &'a FiveTuple,
    pub link: &'a Link,
    pub sink: &'a S,
    pub guest: GuestSide,
}

/// What the receive side knows that a successor needs.
#[derive(Clone, Copy, Debug)]
pub(in crate::offload) struct GuestSide {
    /// What segments to the peer say.
    pub outgoing: Outgoing,
    /// Shift of the guest's windows.
    pub scale: u8,
    /// Latest clock of the peer.
    pub peer_tsval: u32,
}

impl<B: 'static> Sender<B> {
    /// Something was acknowledged early, and the port has not heard yet that it is settled.
    #[inline]
    pub fn has_open_debt(&self) -> bool {
        self.recovery.diverged && self.recovery.early.open
    }

    /// Records all that is stored before `una`, which is to be acknowledged. Returns how far it may be: `una`, less if there is no room.
    pub(super) fn record_owed<S: Sink<B>>(&mut self, una: Seq, ledger: &mut Ledger<'_, S>) -> Seq {
        let Ledger { journal: Some(journal), flow, link, sink, guest } = ledger else { return una };
        let guest = *guest;
        let known = self.recovery.early.place;
        let debtor = self.debtor(flow, link, guest.scale);
        let Some(place) = known.or_else(|| journal.open(&debtor, self.snd_una())) else {
            return self.snd_una();
        };
        if known.is_none() {
            self.recovery.early.recorded = self.snd_una();
        }
        self.recovery.early.place = Some(place);
        let recorded = self.record_frames(una, place, &mut **journal, *sink);
        let una = if recorded.before(una) { self.whole_units_from_edge(recorded) } else { una };
        if una.after(self.snd_una()) {
            journal.promise(place, una, &self.notes(guest));
        }
        una
    }

    /// Records all that was acknowledged early, which no journal has yet. Returns `false` if there is no room.
    pub fn write_owed<S: Sink<B>>(&mut self, ledger: &mut Ledger<'_, S>) -> bool {
        let Ahead { una, .. } = self.recovery.early;
        una.is_none_or(|una| self.record_owed(una, ledger) == una)
    }

    /// Records the frames that are stored up to `una`. Returns up to where there are frames, `una` at most.
    fn record_frames<S: Sink<B>>(
        &mut self,
        una: Seq,
        place: FlowPlace,
        journal: &mut dyn Keeper,
        sink: &S,
    ) -> Seq {
        let mut recorded = self.recovery.early.recorded.max(self.snd_una());
        while recorded.before(una)
            && let Some(chunk) = self.store.chunk_at(recorded)
        {
            let len = chunk.end().since(chunk.seq);
            if !journal.store(place, chunk.seq, len, sink.image(&chunk.frame)) {
                break;
            }
            recorded = chunk.end();
        }
        self.recovery.early.recorded = recorded;
        recorded.min(una)
    }

    fn debtor<'a>(&self, tuple: &'a FiveTuple, link: &Link, guest_scale: u8) -> Debtor<'a> {
        let [guest, peer] = pack(link);
        let mss = self.window.mss.min(u32::from(u16::MAX));
        let agreed = u64::from(self.agreed.0) | u64::from(guest_scale) << 8 | u64::from(mss) << 16;
        Debtor { tuple, creditor: Creditor::Peer, about: [guest, peer, agreed] }
    }

    /// How the flow is now.
    pub fn notes(&self, guest: GuestSide) -> Notes {
        let pair = |a: u32, b: u32| u64::from(a) << 32 | u64::from(b);
        let GuestSide { outgoing, peer_tsval, .. } = guest;
        let srtt = self.rtt.srtt_micros().unwrap_or(0);
        [
            pair(Seq(self.last_tsval).max(Seq(outgoing.timestamps.value)).0, peer_tsval),
            pair(outgoing.ack.0, self.rwnd_edge.0),
            pair(self.advertised_edge.0, self.guest_nxt.0),
            u64::from(outgoing.window) << 48 | u64::from(srtt),
        ]
    }

    /// Nothing is owed any more, as far as the port and its journal are concerned. Returns the bytes that the port has counted, and the place in the journal.
    pub fn take_debt(&mut self) -> (u32, Option<FlowPlace>) {
        let Some(recovery) = self.recovery.get_mut() else { return (0, None) };
        let Ahead { counted, place, .. } = recovery.early;
        recovery.early = Ahead { open: false, counted: 0, place: None, ..recovery.early };
        recovery.note_divergence();
        (counted, place)
    }

    /// Counts what is owed now. Returns the bytes that were counted before and that are now, and the place in the journal.
    pub fn recount_debt(&mut self) -> (u32, u32, Option<FlowPlace>) {
        let owed = self.owed();
        let early = &mut self.recovery.early;
        (std::mem::replace(&mut early.counted, owed), owed, early.place)
    }

    /// Returns `true` if an earlier process may have had bytes of the guest before `ack`.
    #[cold]
    pub(super) fn may_have_been_sent_before(&self, ack: Seq) -> bool {
        self.recovery.early.sent_before.is_some_and(|end| !ack.after(end))
    }

    /// The sender of a flow that an earlier process has left, with the `frames` that hold what is owed. `None` if they do not, or its record contradicts itself.
    pub fn adopt(
        flow: &journal::Adopted,
        frames: &[Retained],
        now: Instant,
        config: &Config,
        revive: &mut impl FnMut(&Retained) -> Option<(B, Segment)>,
    ) -> Option<Self> {
        let left = Left::of(flow);
        let (una, told) = (flow.creditor_ack, flow.acked);
        let mut tx = Self::new(una, left.agreed, u16::MAX, config);
        tx.window = Window::new(left.mss, initial_window(left.mss, config));
        if told.since(una) > MAX_AHEAD {
            return None;
        }
        for retained in frames {
            let (frame, segment) = revive(retained)?;
            tx.adopt_frame(frame, &segment, retained, now)?;
        }
        if tx.stored_up_to(told, una) != told {
            return None;
        }
        tx.adopt_numbers(&left);
        tx.acquire_state(&mut FreeList::default());
        // A frame is there as a whole, also if some of it was another one's when it was recorded: the rest of it is not owed by the journal yet.
        let recorded =
            frames.iter().map(|retained| retained.seq + retained.len).fold(una, Seq::max);
        let sent_before = Some(tx.advertised_edge + 1);
        let early = Ahead { recorded, sent_before, ..Ahead::NONE };
        let early = Ahead { una: Some(told), place: Some(flow.place), open: true, ..early };
        tx.recovery.early = early;
        tx.recovery.diverged = true;
        let flight = tx.snd_max.since(una);
        tx.recovery.begin(Phase::Loss, tx.snd_max, flight);
        tx.recovery.timer = Some((Timer::Retransmission, now));
        tx.recovery.rto_base = now;
        tx.advertised_una = told;
        Some(tx)
    }

    /// Takes in a frame of an earlier process, which may have been sent. `None` if it is not what was recorded.
    fn adopt_frame(
        &mut self,
        frame: B,
        segment: &Segment,
        retained: &Retained,
        now: Instant,
    ) -> Option<()> {
        let end = retained.seq + retained.len;
        let holds = !retained.seq.before(segment.seq) && !end.after(segment.end());
        if !holds || !retained.seq.before(end) {
            return None;
        }
        let from = self.store.snd_nxt();
        if self.store.insert(segment, from, || Some(frame)) == 0 {
            return Some(());
        }
        let first = self.store.records();
        let end = self.store.last()?.end();
        self.store.released(end, now, self.window.mss);
        for index in first..self.store.records() {
            // Sent once by an earlier process, and now lost: not to be measured.
            self.store.mark_lost(index);
            self.store.repaired(index, now);
            self.store.mark_lost(index);
        }
        self.snd_max = end;
        Some(())
    }

    /// Goes on from the numbers that were noted, as far as they are possible.
    fn adopt_numbers(&mut self, left: &Left) {
        let not_before = |seq: Seq, least: Seq| {
            if seq.after(least) && seq.since(least) < MAX_AHEAD { seq } else { least }
        };
        self.rwnd_edge = not_before(left.rwnd_edge, self.snd_una());
        self.advertised_edge = not_before(left.advertised_edge, self.snd_max);
        self.guest_nxt = not_before(left.guest_nxt, self.snd_max).min(self.advertised_edge + 1);
        self.last_tsval = left.guest_tsval;
        if let Some(srtt) = left.srtt {
            self.rtt.sample(srtt, Instant::ZERO);
        }
    }
}

/// What a flow has left beside its bytes.
pub(in crate::offload) struct Left {
    pub agreed: Agreed,
    pub guest_scale: u8,
    mss: u32,
    pub guest_tsval: u32,
    pub peer_tsval: u32,
    /// What the guest expects of its peer.
    pub ack: Seq,
    pub window: u16,
    rwnd_edge: Seq,
    advertised_edge: Seq,
    guest_nxt: Seq,
    srtt: Option<Duration>,
}

impl Agreed {
    /// What a record says, without what cannot be.
    fn of_bits(bits: u8) -> Self {
        let known = Self::SACK | Self::TIMESTAMPS | Self::ECN;
        Self(bits & known | (bits & Self::SCALE).min(MAX_SCALE))
    }
}

impl Left {
    pub fn of(flow: &journal::Adopted) -> Self {
        let [_, _, about] = flow.about;
        let [clocks, peer, guest, rest]: [u64; NOTE_WORDS] = flow.notes;
        let (high, low) = (|word: u64| (word >> 32) as u32, |word: u64| word as u32);
        let srtt = low(rest);
        Self {
            agreed: Agreed::of_bits(about as u8),
            guest_scale: ((about >> 8) as u8).min(MAX_SCALE),
            mss: u32::from((about >> 16) as u16).max(MIN_MSS),
            guest_tsval: high(clocks),
            peer_tsval: low(clocks),
            ack: Seq(high(peer)),
            window: (rest >> 48) as u16,
            rwnd_edge: Seq(low(peer)),
            advertised_edge: Seq(high(guest)),
            guest_nxt: Seq(low(guest)),
            srtt: (srtt > 0).then(|| Duration::from_micros(srtt.into())),
        }
    }
}
