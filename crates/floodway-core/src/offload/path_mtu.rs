//! Path MTU discovery for what the switch holds.
//!
//! # Theory of operation
//! When a route changes to one with a smaller MTU, a router drops what is too large and says so (ICMP
//! "fragmentation needed", RFC 1191; "packet too big", RFC 8201). The guest hears of it, makes its segments
//! smaller and sends what is under way again; but the switch stores those bytes already, and absorbs it.
//! So the switch has to act on the message too: its MSS becomes what fits, whatever was sent in larger
//! segments counts as lost, and is sent again as soon as `cwnd` allows, cut to the new size. It is no sign of
//! congestion, so `cwnd` stays.
//!
//! Anybody can send such messages. One counts only if it names a sequence number that is on its way (RFC 5927
//! section 7.2), and none makes the MTU smaller than what every path is believed to take.
//!
//! Routers that say nothing, and drop: `sender::black_hole`.
//!
//! What a router has said never grows again in the life of a flow: the guest, which probes for that (RFC 8201 section 4),
//! would do it with segments of its own, and the size of those is a limit, not an order.

use super::flow::{Flow, Phase};
use super::mtu::{headers_len, least_mtu};
use super::port::Call;
use super::sender::Sender;
use super::sink::Sink;
use crate::seq::Seq;

impl<B: 'static> Flow<B> {
    /// A router dropped the segment at `seq`: its path takes packets of `mtu` bytes.
    pub fn on_too_big<S: Sink<B>>(&mut self, seq: Seq, mtu: u32, call: &mut Call<'_, S>) {
        let Phase::Established(connection) = &mut self.phase else { return };
        let tx = &mut connection.tx;
        let ipv6 = call.tuple.is_ipv6;
        let payload = mtu.max(least_mtu(ipv6)) - headers_len(ipv6);
        if !tx.is_online() || !tx.lower_mss(seq, payload) {
            call.port.counters.too_big_ignored().add(1);
            return;
        }
        call.port.counters.mss_lowered().add(1);
        let outgoing = connection.rx.outgoing();
        connection.tx.pump(&mut call.env(&self.link, outgoing));
    }
}

impl<B: 'static> Sender<B> {
    /// Segments carry no more than `payload` bytes with their options from now on, if what begins at `seq` is on its
    /// way. Returns whether that is news.
    fn lower_mss(&mut self, seq: Seq, payload: u32) -> bool {
        let mss = payload.saturating_sub(self.options_len());
        let under_way = !seq.before(self.snd_una()) && seq.before(self.store.snd_nxt());
        if !under_way || mss >= self.window.mss {
            return false;
        }
        self.window.mss = mss;
        self.forget_full_size();
        for index in 0..self.store.records() {
            let place = self.store.place(index);
            if place.is_some_and(|place| place.sent.end.since(place.start) > mss) {
                self.store.mark_lost(index);
            }
        }
        true
    }
}
