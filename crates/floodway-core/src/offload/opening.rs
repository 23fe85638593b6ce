//! How a flow opens: what each SYN and the first ACK make of it. [`handshake`](super::handshake) has the rules.

use floodway_wire::tcp::Flags;

use super::age::Age;
use super::connection::Connection;
use super::counters::CounterCells;
use super::flow::{Flow, OVER, Outcome, Phase};
use super::grant::LEAST_GRANT;
use super::port::{Call, OffloadShared};
use super::sink::{Sink, Verdict};
use super::summary::{Reason, TxState};
use crate::tcp::{Edit, Segment, Side};
use crate::time::Instant;

impl<B: 'static> Flow<B> {
    /// A SYN of the guest, or one of the peer that begins a connection.
    pub fn on_syn<S>(&mut self, side: Side, segment: &Segment, call: &mut Call<'_, S>) -> Outcome {
        let Phase::Established(connection) = &mut self.phase else {
            let accepted = self.accept_syn(side, segment, call.now, call.port);
            return if accepted { Verdict::PASS.into() } else { OVER };
        };
        if connection.tx.snd_max != segment.end() {
            return OVER;
        }
        // The guest's SYN-ACK once more: it has not seen what ends its handshake. Its SYN once more, which the answer has
        // overtaken: the connection is the same, and the guest has been told that it is held back.
        connection.tx.asked |= segment.has(Flags::ACK);
        Verdict::PASS.into()
    }

    /// A SYN of an established connection. A blind one is answered by the guest's challenge ACK (RFC 5961 section 4). A
    /// SYN-ACK may come again, and the guest may have lost the first, so its window is no larger than the grant, and it bears the flow's name.
    pub fn on_late_syn(&self, segment: &Segment, port: &OffloadShared) -> Verdict {
        let Some(Connection { tx, rx }) = self.connection() else { return Verdict::PASS };
        if !tx.is_online() || !segment.has(Flags::ACK) || segment.ack != tx.snd_una() {
            return Verdict::PASS;
        }
        let granted = tx.granted(tx.snd_una());
        let window = u16::try_from(granted).ok().filter(|&granted| granted < segment.window);
        // With other numbers its name would be good for another connection.
        let is_the_same = segment.seq + 1 == rx.peer.nxt;
        let append_name = is_the_same && tx.state != TxState::Leaving && port.may_name_in(segment);
        port.counters.named_in_syn_ack().add(append_name.into());
        Verdict::Pass(Edit { window, append_name, ..Edit::default() })
    }

    /// Takes in a SYN before the connection is established. Returns `false` if it belongs to another connection.
    pub fn accept_syn(
        &mut self,
        side: Side,
        segment: &Segment,
        now: Instant,
        port: &mut OffloadShared,
    ) -> bool {
        let accepted = match &mut self.phase {
            Phase::Opening(handshake) => handshake.on_syn(side, segment, now),
            Phase::Established(_) => true,
            Phase::Excluded(exclusion) => exclusion.on_syn(side, segment),
            // One of the peer may be blind (RFC 5961 section 4): the guest answers.
            Phase::Adopted(_) => side == Side::Peer,
        };
        if let Phase::Opening(handshake) = &self.phase
            && accepted
            && let Some(reason) = handshake.exclusion(port.config.local)
        {
            self.exclude(reason, &port.counters);
        }
        accepted
    }

    /// The connection is passed through from here on. Nothing of it is stored or kept yet.
    fn exclude(&mut self, reason: Reason, counters: &CounterCells) {
        let Phase::Opening(handshake) = &self.phase else { return };
        self.phase = Phase::Excluded(handshake.exclude(reason));
        counters.exclude(reason);
    }

    /// The handshake ends with the ACK of the guest's SYN.
    pub fn complete<S>(&mut self, segment: &Segment, call: &mut Call<'_, S>) {
        let Phase::Opening(handshake) = &self.phase else { return };
        if !segment.has(Flags::ACK) || segment.has(Flags::RST) {
            return;
        }
        match handshake.complete(segment, call.now, &call.port.config) {
            Some(mut connection) => {
                if call.port.wants_receive() {
                    connection.rx.start(&call.port.counters);
                }
                self.phase = Phase::Established(connection);
                self.clock_noted = Age::at(call.now);
            }
            None if handshake.is_over(segment.ack) => {
                self.exclude(Reason::PartialHandshake, &call.port.counters);
            }
            None => {}
        }
    }

    /// The answer to the guest's SYN. Its window is not scaled, so it grants a portion at most, and a
    /// window update behind it grants what the flow may have. A guest that sends by its own congestion window cannot use more at first than a SYN-ACK can grant, and
    /// is spared that update, which interrupts it when it is about to send.
    pub fn on_syn_ack<S: Sink<B>>(&mut self, segment: &Segment, call: &mut Call<'_, S>) -> Verdict {
        let Phase::Established(connection) = &mut self.phase else { return Verdict::PASS };
        let tx = &mut connection.tx;
        let (una, whole) = (tx.snd_una(), tx.advertised_edge);
        let window = whole.since(una).min(LEAST_GRANT);
        tx.advertised_edge = una + window;
        if !self.enter_online(call) {
            if let Phase::Established(connection) = &mut self.phase {
                connection.tx.advertised_edge = whole;
            }
            return Verdict::PASS;
        }
        let append_name = self.name_with(segment, call);
        let window = if call.port.acks_early {
            self.grant_unscaled(call.port)
        } else {
            self.update_due = true;
            self.flag(call.id, call.port);
            window
        };
        let window = window.min(u32::from(u16::MAX)) as u16;
        let window = (window != segment.window).then_some(window);
        Verdict::Pass(Edit { window, append_name, ..Edit::default() })
    }

    /// Limits the grant, of which the guest has seen nothing yet, to what an unscaled window can express. Returns that window in bytes.
    fn grant_unscaled(&mut self, port: &mut OffloadShared) -> u32 {
        let Phase::Established(connection) = &mut self.phase else { return 0 };
        let tx = &mut connection.tx;
        let window = tx.granted(tx.snd_una()).min(u32::from(u16::MAX));
        tx.advertised_edge = tx.snd_una() + window;
        tx.charge(&mut self.charged, &mut port.pool);
        window
    }
}
