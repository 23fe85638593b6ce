//! What an ACK grants, and when.
//!
//! # Theory of operation
//! An ACK asks for the edge that gives its sender the fair window. While nobody waits and there is credit, it gets that, as
//! far as the credit goes, and leaves. Otherwise it leaves only if its sender keeps at least two segments of
//! what it was told before, or if it must: data, FIN, SACK blocks, duplicates and ECN echoes do not wait, and advance the edge to the
//! two segments at once. All others wait in the VM's queue, which is served in turn as the pacer allows, a portion each. Who
//! left with less than the fair window is in the queue, too, for a window update made from a copy of its ACK.
//!
//! The edge follows what has arrived, and not what the guest has acknowledged: a guest that waits for its CPU neither slows its
//! senders down nor lets them save up a burst. When a sender is about to run out, and the guest's ACK has not come, a
//! window update goes without it, as far as the guest's own window reaches.
//!
//! A sender whose ACK waits for longer than twice its round trip sends its last segment again to learn what became of it (tail loss
//! probe, RFC 8985), and the guest says that it had that already. That is no reason to let the ACK go: it would
//! teach the sender a round trip that is too short to wait for the next one, and each connection would get its grants
//! by probes instead of in turn. It hears of it from the ACK that waits, well within its retransmission time-out.
//!
//! Portions are equal, so all connections that always want more get the same rate, whatever their RTTs.

use super::port::{PASS, Sink, Verdict, WindowClamp};
use crate::seq::Seq;
use crate::steps;
use crate::tables::flow_table::FlowId;
use crate::tables::timer::TICK;
use crate::tcp::Segment;
use crate::time::Instant;
use floodway_wire::tcp::Flags;

/// Flags that cannot wait.
const SPECIAL: Flags = Flags::ECE.with(Flags::CWR).with(Flags::URG);
/// Grants that one call makes at most.
const GRANTS_PER_CALL: usize = 256;
/// Connections that are gone and still in the queue, beyond as many as are known.
const MOST_REMOVED: usize = 64;

impl<B> WindowClamp<B> {
    /// The window of an ordinary segment with an ACK.
    pub(super) fn clamp(
        &mut self,
        id: FlowId,
        segment: &Segment,
        keep: impl FnOnce() -> Option<B>,
        now: Instant,
        sink: &mut impl Sink<B>,
    ) -> Verdict {
        let window = self.fair_window(id);
        let Some(connection) = self.flows.get_mut(id) else { return PASS };
        let plain = is_coalescable_ack(segment);
        if plain && segment.ack.before(connection.window.advertised_ack) {
            self.counters.superseded().add(1);
            return Verdict::Absorb;
        }
        let advances = segment.ack.after(connection.window.guest_ack);
        connection.window.note(segment.ack, segment.window);
        if connection.is_holding() {
            if !advances && tells_only_of_repetitions(segment) {
                self.counters.superseded().add(1);
                return Verdict::Absorb;
            }
            if segment.is_pure_ack() && !advances {
                // It repeats the one that waits, which has to be heard first.
                self.grant(id, true, now, sink);
            } else if !plain {
                // What waited remains the pattern of window updates.
                connection.held_since = Instant::NEVER;
                self.counters.superseded().add(1);
            }
        }
        self.tell(id, segment, window, keep, now)
    }

    /// Decides whether an ACK leaves now, and what it grants.
    fn tell(
        &mut self,
        id: FlowId,
        segment: &Segment,
        window: u32,
        keep: impl FnOnce() -> Option<B>,
        now: Instant,
    ) -> Verdict {
        let busy = self.pacer.is_in_debt(now) || !self.queue.is_empty();
        let portion = self.portion();
        let Some(connection) = self.flows.get_mut(id) else { return PASS };
        let plain = is_coalescable_ack(segment);
        let missing = connection.window.missing(connection.highest, window);
        let urgent = connection.window.urgent(connection.floor());
        let credit = connection.payload_of(self.pacer.credit(now));
        let most = credit.max(portion).max(connection.floor());
        let advance = if busy { urgent } else { missing.min(most) };
        let rest = missing.saturating_sub(advance);
        // Rounding must not become a way around the rate.
        let rounding = connection.window.rounding(segment.ack);
        let waits = busy
            && plain
            && segment.ack.after(connection.window.advertised_ack)
            && (urgent > 0 || rounding >= connection.mss / 2);
        if plain {
            // The pattern of window updates, even if it leaves.
            let kept = keep();
            // Without memory it leaves.
            let waits = waits && kept.is_some();
            connection.held = kept.or(connection.held.take());
            if waits {
                return self.hold(id, now);
            }
        }
        connection.held_since = Instant::NEVER;
        let wants_more = rest >= connection.mss && connection.held.is_some();
        let old = connection.window.advertised_edge;
        let (field, advanced) = connection.window.tell(segment.ack, segment.window, advance);
        if advanced > 0 {
            connection.advanced(old, now);
            let cost = connection.cost(advanced);
            self.pacer.charge(cost, now);
        }
        if wants_more {
            self.limited = true;
            self.enqueue(id);
        }
        self.counters.clamped().add(u64::from(field != segment.window));
        Verdict::with_window(segment.window, field)
    }

    /// An ACK has to wait. If one does already, this one takes its place.
    fn hold(&mut self, id: FlowId, now: Instant) -> Verdict {
        let Some(connection) = self.flows.get_mut(id) else { return PASS };
        if connection.is_holding() {
            self.counters.superseded().add(1);
        } else {
            connection.held_since = now;
        }
        self.counters.held().add(1);
        self.limited = true;
        self.enqueue(id);
        Verdict::Absorb
    }

    /// Data has arrived. A sender that is about to run out of edge need not wait for the guest's ACK.
    pub(super) fn follow(&mut self, id: FlowId) {
        let window = self.fair_window(id);
        let Some(connection) = self.flows.get_mut(id) else { return };
        let ahead = connection.window.advertised_edge.since(connection.highest);
        let missing = connection.window.missing(connection.highest, window);
        if connection.held.is_some() && ahead <= window / 2 && missing >= connection.mss {
            self.enqueue(id);
        }
    }

    /// Payload that a connection may be granted at a time: what the rate gives in a tick of the timers.
    fn portion(&self) -> u32 {
        let bytes = u128::from(self.pacer.rate()) * TICK.as_nanos() / 1_000_000_000;
        u32::try_from(bytes).unwrap_or(u32::MAX).min(1 << 20)
    }

    fn fair_window(&self, id: FlowId) -> u32 {
        let Some(connection) = self.flows.get(id) else { return 0 };
        let among = self.active + u32::from(!connection.active);
        let rate = self.pacer.rate() / u64::from(among.max(1));
        connection.fair_window(rate, self.config.tolerance())
    }

    fn enqueue(&mut self, id: FlowId) {
        if let Some(connection) = self.flows.get_mut(id)
            && !connection.queued
        {
            connection.queued = true;
            self.queue.push_back(id);
            self.forget_removed();
        }
    }

    /// Takes connections that are gone out of the queue before they are more than those that are known: a peer may reset any number of
    /// connections that wait while nobody's turn comes. Costs a constant number of steps for each that joins, on average.
    fn forget_removed(&mut self) {
        let known = self.flows.len() as usize;
        if self.queue.len() > 2 * known + MOST_REMOVED {
            steps::count(self.queue.len());
            let flows = &self.flows;
            self.queue.retain(|&id| flows.get(id).is_some());
        }
    }

    /// Sends what is held of a connection, with a portion more if there is anything to grant. `late` says that it
    /// cannot wait for its turn, and gets the least.
    pub(super) fn grant(&mut self, id: FlowId, late: bool, now: Instant, sink: &mut impl Sink<B>) {
        let window = self.fair_window(id);
        let portion = self.portion();
        let Some(connection) = self.flows.get_mut(id) else { return };
        let Some(frame) = connection.held.take() else { return };
        // What no field can tell is not missing: it would be asked for again and again.
        let missing = connection.window.missing(connection.highest, window);
        let missing = missing.min(connection.window.tellable());
        let urgent = connection.window.urgent(connection.floor());
        let portion = portion.max(connection.floor());
        let credit = connection.payload_of(self.pacer.credit(now)).max(portion);
        let advance = if late { urgent } else { missing.min(credit).max(urgent) };
        let holding = connection.is_holding();
        if !holding && advance < connection.mss {
            connection.held = Some(frame);
            return;
        }
        let old = connection.window.advertised_edge;
        let (ack, own) = (connection.window.guest_ack, connection.window.own_field());
        let (field, advanced) = connection.window.tell(ack, own, advance);
        connection.held_since = Instant::NEVER;
        if holding {
            self.counters.released().add(1);
            self.counters.released_late().add(u64::from(late));
        } else {
            self.counters.updates().add(1);
        }
        sink.send(&frame, &connection.refreshed(field));
        if advanced > 0 {
            connection.advanced(old, now);
            let cost = connection.cost(advanced);
            self.pacer.charge(cost, now);
        }
        let wants_more = missing.saturating_sub(advance) >= connection.mss;
        connection.held = Some(frame);
        if wants_more {
            self.enqueue(id);
        }
        self.settle(id);
    }

    /// Makes the grants that are due.
    pub(super) fn serve(&mut self, now: Instant, sink: &mut impl Sink<B>) {
        for _ in 0..GRANTS_PER_CALL {
            if self.pacer.is_in_debt(now) {
                return;
            }
            let Some(id) = self.queue.pop_front() else { return };
            steps::count(1);
            let Some(connection) = self.flows.get_mut(id) else { continue };
            connection.queued = false;
            self.grant(id, false, now, sink);
        }
    }
}

/// It says nothing but that data came twice (DSACK, RFC 2883): all of its SACK blocks are below its ACK number.
fn tells_only_of_repetitions(segment: &Segment) -> bool {
    let blocks = segment.options.sack_blocks();
    segment.is_pure_ack()
        && !segment.flags.intersects(SPECIAL)
        && !segment.options.unknown
        && !blocks.is_empty()
        && blocks.iter().all(|block| !Seq(block.right).after(segment.ack))
}

/// It acknowledges and says nothing else, so that a newer one can take its place.
fn is_coalescable_ack(segment: &Segment) -> bool {
    segment.is_pure_ack()
        && !segment.flags.intersects(SPECIAL)
        && !segment.options.unknown
        && segment.options.sack_blocks().is_empty()
}
