//! What an ACK of the peer changes.
//!
//! # Theory of operation
//! The cumulative part of an ACK is taken in before its SACK blocks, as it arrived before them; both are compared with the highest
//! sequence number that had arrived *before* the ACK (`fack`). Otherwise the ACK of a segment that was delayed until the next
//! one came out of order would look like reordering (RFC 8985 section 6.2 step 3).
//!
//! A DSACK (RFC 2883) counts for [undoing](super::undo) only where it names what was sent again.

use super::{AckKind, Env, Phase, Sender};
use crate::congestion::Ack;
use crate::offload::counters::CounterCells;
use crate::offload::sink::Sink;
use crate::offload::state_pool::FreeList;
use crate::offload::store::Freed;
use crate::seq::Seq;
use crate::tcp::Segment;
use crate::time::{Duration, Instant};
use floodway_wire::tcp::Flags;
use floodway_wire::tcp::options::SackBlock;

/// What the SACK blocks of an ACK told.
#[derive(Clone, Copy, Debug, Default)]
struct Sacked {
    bytes: u32,
    dsack: bool,
    /// They name what was sent once, before the latest recovery began.
    original: bool,
    /// Latest transmission of a range that was sent once.
    sent_once_at: Option<Instant>,
}

impl<B: 'static> Sender<B> {
    /// Takes in an ACK of what was sent, while online, and releases what it makes room for.
    #[inline]
    pub fn on_ack<S: Sink<B>>(&mut self, segment: &Segment, env: &mut Env<'_, S>) -> AckKind {
        debug_assert!(!segment.ack.after(self.store.snd_nxt()), "an ACK of what was not sent");
        if self.is_coalescable_ack(segment) {
            self.on_plain_ack(segment, env);
            return AckKind::Advanced;
        }
        self.on_ack_in_full(segment, env)
    }

    /// Returns `true` if an ACK says nothing but that bytes have arrived, of which nothing was known before, and what the
    /// window is. [`on_ack_in_full`](Self::on_ack_in_full) would do the same, only later.
    #[inline]
    fn is_coalescable_ack(&self, segment: &Segment) -> bool {
        segment.ack.after(self.snd_una())
            && segment.options.sack_blocks().is_empty()
            && self.store.is_quiet()
            && self.recovery.is_calm()
            && !self.hears_congestion(segment)
    }

    fn on_plain_ack<S: Sink<B>>(&mut self, segment: &Segment, env: &mut Env<'_, S>) {
        let una = self.snd_una();
        let flight = self.store.snd_nxt().since(una);
        self.move_window(segment);
        let freed = self.store.acknowledge(segment.ack);
        let fack = self.recovery.fack;
        self.note_arrivals(&freed, fack, env.now);
        self.note_progress(env.now);
        self.recovery.clocked += freed.delivered;
        let rtt = self.measure(&freed, &Sacked::default(), env);
        let ack = self.ack_event(segment, una, flight, rtt, env.now);
        self.controller.on_ack(&ack, &mut self.window);
        self.pump(env);
    }

    #[inline(never)]
    fn on_ack_in_full<S: Sink<B>>(&mut self, segment: &Segment, env: &mut Env<'_, S>) -> AckKind {
        let (una, nxt) = (self.snd_una(), self.store.snd_nxt());
        if segment.ack.before(una) {
            return AckKind::Old;
        }
        let flight = self.pipe();
        self.unanswered = 0;
        let window_moved = self.move_window(segment);
        if window_moved && nxt == una {
            // The probes are over; their back-off says nothing of the path.
            self.rtt.reset_back_off();
        }
        let freed = self.store.acknowledge(segment.ack);
        let fack = self.recovery.fack;
        self.note_arrivals(&freed, fack, env.now);
        let reneged = self.check_reneging(env.counters);
        let sacked = self.take_sack_blocks(segment, una, fack, env.now);
        let kind = self.kind(segment, una, window_moved);
        let delivered = self.count_duplicates(kind, segment.ack.since(una), &freed, &sacked);
        self.recovery.clocked += delivered;
        if kind == AckKind::Advanced {
            self.note_progress(env.now);
            self.check_raise(env);
        }
        let rtt = self.measure(&freed, &sacked, env);
        self.check_probe(kind, sacked.dsack, env);
        let lost = self.find_losses(kind, env.now) || reneged;
        // What is outstanding when the loss is found (RFC 5681 section 3.1), so without what this ACK has freed.
        let out = nxt.since(segment.ack);
        if lost {
            self.enter_fast(out, env);
        }
        let recovering = self.recovery.phase != Phase::Open;
        let original = freed.first_once.is_some_and(|end| !end.after(self.recovery.recover));
        self.judge_timeout(kind, original || sacked.original, env);
        self.leave_recovery(kind, env);
        let left = recovering && self.recovery.phase == Phase::Open;
        if left && self.store.has_waiting() {
            // Sent after the recovery point and lost: another congestion (RFC 6675 section 5).
            self.enter_fast(out, env);
        }
        let ack = self.ack_event(segment, una, flight, rtt, env.now);
        self.grow(&ack, delivered, lost, env);
        self.pump(env);
        kind
    }

    /// What congestion control has to know of an ACK, before anything is sent for it. `una` was `snd_una` and `flight` the
    /// bytes in flight until then.
    #[inline]
    fn ack_event(
        &self,
        segment: &Segment,
        una: Seq,
        flight: u32,
        rtt: Option<Duration>,
        now: Instant,
    ) -> Ack {
        let ece = self.hears_congestion(segment);
        let bytes_acked = segment.ack.since(una);
        Ack {
            now,
            bytes_acked,
            rtt,
            min_rtt: self.rtt.min_rtt(),
            flight,
            snd_una: self.snd_una(),
            snd_nxt: self.store.snd_nxt(),
            ecn_bytes: if ece { bytes_acked } else { 0 },
            ece,
            cwnd_limited: self.recovery.phase != Phase::Fast && self.was_limited(flight),
        }
    }

    /// The peer echoes congestion.
    #[inline]
    fn hears_congestion(&self, segment: &Segment) -> bool {
        self.agreed.ecn() && segment.has(Flags::ECE)
    }

    /// The cumulative acknowledgement has advanced.
    #[inline]
    fn note_progress(&mut self, now: Instant) {
        self.unanswered = 0;
        if !self.rtt.is_delay_suspected() {
            self.rtt.reset_back_off();
        }
        self.recovery.dup_acks = 0;
        self.recovery.release_at = Instant::ZERO;
        self.recovery.rto_base = now;
        self.recovery.probed = false;
    }

    /// The window that the ACK advertises; returns whether its right edge is elsewhere now.
    fn move_window(&mut self, segment: &Segment) -> bool {
        let edge = segment.ack + (u32::from(segment.window) << self.agreed.peer_scale());
        // An ACK that was overtaken by a later one with the same number has the smaller window.
        let current = segment.ack.after(self.snd_una()) || edge.after(self.rwnd_edge);
        let moved = current && edge != self.rwnd_edge;
        if current {
            self.rwnd_edge = edge;
        }
        moved
    }

    fn kind(&self, segment: &Segment, una: Seq, window_moved: bool) -> AckKind {
        let sacks = !segment.options.sack_blocks().is_empty();
        // To a guest that waits for nothing it is an answer, to a keepalive for one.
        let waits = self.snd_max.after(una);
        match segment.is_pure_ack() {
            _ if segment.ack.after(una) => AckKind::Advanced,
            true if waits && (sacks || !window_moved) => AckKind::Duplicate,
            _ => AckKind::Same,
        }
    }

    /// Marks what the SACK blocks name (RFC 2018), and notices DSACKs (RFC 2883).
    /// `fack` is up to where anything had arrived before.
    fn take_sack_blocks(&mut self, segment: &Segment, una: Seq, fack: Seq, now: Instant) -> Sacked {
        let mut told = Sacked::default();
        if !self.agreed.sack() {
            return told;
        }
        let blocks = segment.options.sack_blocks();
        for (i, block) in blocks.iter().enumerate() {
            let (left, right) = (Seq(block.left), Seq(block.right));
            if !left.before(right) {
                continue;
            }
            if i == 0 && is_dsack(blocks, segment.ack) {
                told.dsack = true;
                // What lies far back was never repaired by us.
                if !right.before(una - (1 << 30)) {
                    self.acquire_state(&mut FreeList::default());
                    self.recovery.on_dsack(left, right);
                }
                continue;
            }
            // A peer that had the first byte would have acknowledged it.
            if left.after(self.snd_una()) && !right.after(self.store.snd_nxt()) {
                self.mark((left, right), fack, now, &mut told);
            }
        }
        told
    }

    /// A cumulative acknowledgement that ends at what was SACKed says that the peer has it no more (RFC 2018 section 8).
    /// Returns `true` if it does. What remains SACKed is then not believed either, until it is SACKed again.
    pub(super) fn check_reneging(&mut self, counters: &CounterCells) -> bool {
        let reneged = self.store.is_first_sacked();
        if reneged {
            counters.reneged().add(1);
            self.store.renege();
        }
        reneged
    }

    /// Marks the segments that lie within `left..right`. What is only partly named stays as it is.
    fn mark(&mut self, block: (Seq, Seq), fack: Seq, now: Instant, told: &mut Sacked) {
        let (left, right) = block;
        let Some(first) = self.store.first_from(left) else { return };
        let mut index = first.index + usize::from(first.start.before(left));
        while let Some(place) = self.store.next_unsacked(index)
            && !place.sent.end.after(right)
        {
            told.bytes += self.store.mark_sacked(place.index);
            let sent = place.sent;
            if !sent.repeated {
                told.sent_once_at = told.sent_once_at.max(Some(sent.at));
                told.original |= !sent.end.after(self.recovery.recover);
                self.recovery.note_reordering(sent.end, fack);
            }
            self.recovery.note_delivered(sent.end);
            self.arrival(sent.at, sent.end, sent.repeated, now);
            index = place.index + 1;
        }
    }

    /// What is acknowledged has arrived; before `fack`, behind something that was sent later.
    #[inline(always)]
    fn note_arrivals(&mut self, freed: &Freed, fack: Seq, now: Instant) {
        if let Some(end) = freed.first_once {
            self.recovery.note_reordering(end, fack);
        }
        if let Some((at, end, repeated)) = freed.latest {
            self.recovery.note_delivered(end);
            self.arrival(at, end, repeated, now);
        }
    }

    /// RFC 8985 section 6.2 step 2: what was repeated counts only if its answer cannot be that to the
    /// original.
    #[inline(always)]
    fn arrival(&mut self, at: Instant, end: Seq, repeated: bool, now: Instant) {
        let rtt = now.since(at);
        if repeated && self.rtt.min_rtt().is_some_and(|min| rtt < min) {
            return;
        }
        self.recovery.arrived(at, end, rtt, repeated);
    }

    /// Counts duplicate ACKs; answers the bytes that this ACK says have arrived.
    fn count_duplicates(
        &mut self,
        kind: AckKind,
        advanced: u32,
        freed: &Freed,
        sacked: &Sacked,
    ) -> u32 {
        match kind {
            AckKind::Advanced => {
                let known = self.recovery.dup_bytes.min(advanced);
                self.recovery.dup_bytes -= known;
                (freed.delivered + sacked.bytes).saturating_sub(known)
            }
            // Nothing is out: it answers a probe of the window.
            AckKind::Duplicate if self.store.records() == 0 => 0,
            AckKind::Duplicate => {
                self.recovery.dup_acks = self.recovery.dup_acks.saturating_add(1);
                if self.agreed.sack() {
                    return sacked.bytes;
                }
                let mss = self.window.mss;
                // All but the segment that is missing, which may be longer than the MSS is now.
                let missing = self.store.place(0).map_or(mss, |first| first.len().max(mss));
                let possible = self.store.pipe().saturating_sub(missing + self.recovery.dup_bytes);
                let arrived = mss.min(possible);
                self.recovery.dup_bytes += arrived;
                arrived
            }
            AckKind::Same | AckKind::Old => sacked.bytes,
        }
    }

    /// Round trips are measured on what was sent once (Karn's algorithm). What a repair has freed along with
    /// itself had arrived long before.
    ///
    /// Each is counted in the port's histogram as well: that costs a few instructions for an ACK, which has just walked the store, so none is left out.
    fn measure<S>(&mut self, freed: &Freed, sacked: &Sacked, env: &Env<'_, S>) -> Option<Duration> {
        let in_order = freed.sent_once_at.filter(|_| !freed.any_repeated);
        let at = in_order.max(sacked.sent_once_at)?;
        let nanos = env.now.nanos_since(at);
        self.rtt.sample_nanos(nanos, env.now);
        env.rtts.observe_nanos(nanos, 1);
        self.data_measured = true;
        Some(Duration::from_nanos(nanos))
    }

    /// More would have been in flight with a larger `cwnd` (Linux `tcp_is_cwnd_limited`). In slow start also if more than half of it was, at this ACK
    /// with `flight` bytes or some time in the round trip: a guest that sends as ACKs reach it has less in flight when the next one comes.
    fn was_limited(&self, flight: u32) -> bool {
        let most = flight.max(self.recovery.usage.most);
        self.cwnd_limited || (self.window.in_slow_start() && self.window.cwnd / 2 < most)
    }

    fn grow<S>(&mut self, ack: &Ack, delivered: u32, lost: bool, env: &mut Env<'_, S>) {
        if self.recovery.phase == Phase::Fast {
            let pipe = self.pipe();
            let safe = ack.bytes_acked > 0 && !lost;
            self.recovery.prr.on_ack(delivered, pipe, safe, &mut self.window);
        }
        self.controller.on_ack(ack, &mut self.window);
        if ack.ece {
            let event = self.congestion(env.now, ack.flight);
            if self.controller.on_ecn(&event, &mut self.window) {
                env.counters.ecn_reductions().add(1);
                self.cwr_due = true;
            }
        }
    }
}

/// The first block tells of something that came twice: it lies before the ACK, or within the second block.
pub(in crate::offload) fn is_dsack(blocks: &[SackBlock], ack: Seq) -> bool {
    match blocks {
        [first, ..] if !Seq(first.right).after(ack) => true,
        [first, second, ..] => {
            !Seq(first.left).before(Seq(second.left)) && !Seq(first.right).after(Seq(second.right))
        }
        _ => false,
    }
}
