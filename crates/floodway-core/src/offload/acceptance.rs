//! Which segments of the network may change a flow.
//!
//! # Theory of operation
//! Goal: a host that cannot see a connection and guesses its numbers changes nothing of its flow (RFC 5961), and no
//! edit of the switch makes the guest accept what it would have refused.
//!
//! A segment from the network is checked before anything of its flow changes, in the order of RFC 9293 section 3.10.7.4:
//! SYN and RST (RFC 5961 sections 3 and 4), sequence number, clock (PAWS, RFC 7323 section 5), acknowledgement (RFC 5961
//! section 5). A segment without an ACK is not acceptable.
//!
//! | check | the switch accepts | the guest, when it reads the segment |
//! |---|---|---|
//! | sequence number | `guest_ack <= end`, `seq <= max(guest_edge, rcv_nxt)` | the same on the left, or less; more on the right if its window has opened |
//! | clock | not before the latest in-order `TSval` that came by here | more: it may not have seen that `TSval`, if the ACK with it was absorbed |
//! | acknowledgement | `snd_una - max_window <= ack`, up to what the guest has sent | more: it has heard of less (`advertised_una`), and of windows larger than the peer's |
//! | RST | `seq == peer.nxt`, where the guest is once it has read what waits; the latest ACK number on the wire, which is that of an answer (RFC 9293 section 3.5.2) | another one if it has lost frames |
//!
//! The left edge is the guest's own latest ACK number, not the one that the switch has sent for it: it is the test of
//! Linux (`tcp_sequence`, `rcv_wup`), so that an ACK that arrives after the data behind it is of use to both, and nothing on
//! the left is acceptable to the guest alone. Keepalives and window probes (`seq == rcv_nxt - 1`) lie outside, as they are
//! meant to: the guest answers them.
//!
//! What is not acceptable goes on to the guest, whose challenge ACKs and answers to keepalives are its own. An offline flow's
//! segment is not edited. An online flow's is, so that it does no harm where the table's columns differ:
//! - an ACK number in range becomes the one that the guest was told last, and so does the window; SACK blocks and ECE go;
//! - an ACK number that is too old is moved back so far that it is too old for the guest as well;
//! - one that is beyond what was sent cannot be mended: the segment is dropped ([`Refusal::AcksUnsent`]), unless nothing but
//!   the acknowledgement is wrong: then bytes may have gone past the switch, and the guest knows;
//! - a pure ACK that is stale by its clock and says nothing new is absorbed, as any other: paths that reorder make them.
//!
//! Clocks are not judged when the last one was noted more than 24 days ago (RFC 7323 section 5.5), for then the peer's has
//! gone half a turn.
//!
//! A guest is not checked so: with its own numbers it can harm its own connection only.
//!
//! States and timers: none. Invariant: a flow is the same after a segment for which [`Flow::screen`] has an answer, and is not
//! even noted as used.

use floodway_wire::tcp::Flags;

use super::connection::Connection;
use super::counters::CounterCells;
use super::engine::Offload;
use super::flow::{Flow, Outcome, Phase};
use super::packet::Packet;
use super::port::OffloadShared;
use super::sender::Sender;
use super::sink::{Refusal, Sink, Verdict};
use crate::seq::Seq;
use crate::tables::flow_table::FlowId;
use crate::tcp::{Edit, Segment, Side};
use crate::time::Instant;

/// An ACK number so far behind `snd_una` is too old for every guest: no window is larger than 2^30.
const TOO_OLD: u32 = 3 << 29;
/// Why a segment is not acceptable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Sequence,
    Clock,
    Ack,
}

const PASS: Option<Outcome> = Some(Outcome { verdict: Verdict::PASS, over: false });

impl<B: 'static> Offload<B> {
    /// Returns what becomes of a segment from the network that must not change its flow, or `None` if it may. A reset ends
    /// the flow.
    #[inline]
    pub(super) fn screen(
        &mut self,
        id: FlowId,
        packet: &Packet<'_>,
        now: Instant,
        sink: &mut impl Sink<B>,
    ) -> Option<Verdict> {
        let flow = self.flows.get(id)?;
        let outcome = flow.screen(packet.segment, now, &self.port)?;
        if outcome.over {
            self.end(id, packet, Side::Peer, now, sink);
        }
        Some(outcome.verdict)
    }
}

impl<B: 'static> Flow<B> {
    /// Returns what becomes of a segment from the network that must not change the flow, or `None` if it may.
    #[inline]
    pub fn screen(&self, segment: &Segment, now: Instant, port: &OffloadShared) -> Option<Outcome> {
        match &self.phase {
            Phase::Established(connection) => {
                const OTHERS: Flags = Flags::SYN.with(Flags::RST);
                let fault = self.fault(connection, segment, now);
                let is_ack = segment.has(Flags::ACK) && !segment.flags.intersects(OTHERS);
                if is_ack && fault.is_none() {
                    return None;
                }
                self.screen_in_full(connection, segment, fault, port)
            }
            Phase::Opening(handshake) if handshake.is_acceptable(segment) => None,
            Phase::Opening(_) => PASS,
            Phase::Excluded(_) | Phase::Adopted(_) => None,
        }
    }

    #[cold]
    fn screen_in_full(
        &self,
        connection: &Connection<B>,
        segment: &Segment,
        fault: Option<Fault>,
        port: &OffloadShared,
    ) -> Option<Outcome> {
        let Connection { tx, rx } = connection;
        if segment.has(Flags::SYN) {
            return Some(self.on_late_syn(segment, port).into());
        }
        if segment.has(Flags::RST) {
            // One that the guest might not accept must not end what we do for it.
            let answers = segment.seq == rx.outgoing().ack;
            let over = answers || segment.seq == rx.peer.nxt;
            return Some(Outcome { over, ..Verdict::PASS.into() });
        }
        let counters = &port.counters;
        counters.unacceptable().add(1);
        match fault {
            Some(fault) if segment.has(Flags::ACK) && tx.is_online() => {
                Some(self.neutralise(tx, segment, fault, counters).into())
            }
            _ => PASS,
        }
    }

    /// The first check that a segment fails.
    #[inline]
    fn fault(&self, connection: &Connection<B>, segment: &Segment, now: Instant) -> Option<Fault> {
        let Connection { tx, rx } = connection;
        if !rx.is_in_window(segment) {
            Some(Fault::Sequence)
        } else if self.is_stale(connection, segment, now) {
            Some(Fault::Clock)
        } else if self.is_too_old(tx, segment) || tx.is_behind(segment.ack) {
            Some(Fault::Ack)
        } else {
            None
        }
    }

    /// The guest will drop it by PAWS.
    #[inline]
    fn is_stale(&self, connection: &Connection<B>, segment: &Segment, now: Instant) -> bool {
        let Connection { tx, rx } = connection;
        tx.agreed.timestamps()
            && segment.options.timestamps.is_some_and(|t| Seq(t.value).before(Seq(rx.peer.tsval)))
            && !self.clock_noted.is_over(now)
    }

    /// Its acknowledgement lies more than the peer's largest window before the latest one (RFC 5961 section 5.2).
    #[inline]
    fn is_too_old(&self, tx: &Sender<B>, segment: &Segment) -> bool {
        let largest = u32::from(self.peer_window) << tx.agreed.peer_scale();
        segment.ack.before(tx.snd_una() - largest)
    }

    /// Makes a segment that is not acceptable to the switch harmless to a guest that may accept it.
    fn neutralise(
        &self,
        tx: &Sender<B>,
        segment: &Segment,
        fault: Fault,
        counters: &CounterCells,
    ) -> Verdict {
        if self.is_too_old(tx, segment) {
            let too_old = tx.snd_una() - TOO_OLD;
            let ack = segment.ack.after(too_old).then_some(too_old);
            return Verdict::Pass(Edit { ack, ..Edit::default() });
        }
        if segment.ack.after(tx.next_seq()) {
            if fault == Fault::Ack {
                counters.acks_unseen().add(1);
                return Verdict::PASS;
            }
            counters.acks_unsent().add(1);
            return Verdict::Drop(Refusal::AcksUnsent);
        }
        let absorbable = segment.is_pure_ack() && !segment.options.unknown;
        if fault == Fault::Clock && absorbable && !segment.ack.after(tx.snd_una()) {
            counters.absorbed_dup_acks().add(1);
            return Verdict::Absorb;
        }
        Verdict::Pass(edit_to_advertised(tx, segment, tx.advertised_window()))
    }

    /// Notes the window of an acceptable segment.
    #[inline]
    pub fn note_peer_window(&mut self, segment: &Segment) {
        let Phase::Established(Connection { tx, .. }) = &self.phase else { return };
        // That of a SYN is not scaled.
        let scale = if segment.has(Flags::SYN) { tx.agreed.peer_scale() } else { 0 };
        let units = u32::from(segment.window).div_ceil(1 << scale) as u16;
        self.peer_window = self.peer_window.max(units);
    }
}

/// The header that a guest sees of a segment of its peer while the flow is online: it acknowledges what the guest was told last,
/// with `window` as its window field.
pub(super) fn edit_to_advertised<B: 'static>(
    tx: &Sender<B>,
    segment: &Segment,
    window: u16,
) -> Edit {
    let ece = tx.agreed.ecn() && segment.has(Flags::ECE);
    Edit {
        ack: (segment.ack != tx.advertised_una).then_some(tx.advertised_una),
        window: (segment.window != window).then_some(window),
        flags: ece.then(|| segment.flags.without(Flags::ECE)),
        strip_sack: !segment.options.sack_blocks().is_empty(),
        ..Edit::default()
    }
}
