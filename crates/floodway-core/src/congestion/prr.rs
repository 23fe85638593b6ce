//! Proportional rate reduction: how much a sender may send during fast recovery (RFC 6937).
//!
//! # Theory of operation
//! **Goal.** Go from the window before the loss to `ssthresh` within one round trip, evenly, instead of
//! being silent for half of it and then sending a burst.
//!
//! *Above* `ssthresh` (by `pipe`, the estimate of RFC 6675 of what is in flight), each delivered byte lets
//! `ssthresh / RecoverFS` bytes out, where `RecoverFS` is what was in flight when recovery began.
//! *Below*, when losses or an application's pause took more out than intended, the sender catches up as in
//! slow start (the variant SSRB) while ACKs advance and reveal no further loss, and otherwise sends what was
//! delivered. That choice is Linux's and that of the RFC's successor (RFC 9937, "SafeACK").
//!
//! The segment found lost first goes out whatever the arithmetic says: without it nothing moves.
//!
//! Use: [`Prr::new`] after `on_loss` has set `ssthresh`; for every ACK in recovery [`Prr::on_ack`], which sets
//! `cwnd`, then send while `pipe` is below it and report that by [`Prr::on_sent`]; at the end
//! [`Window::leave_recovery`].
//!
//! Invariants: `cwnd` never exceeds `max(pipe + 1 MSS, ssthresh)` while `pipe` is not above `ssthresh`; above it,
//! what is sent in total is in proportion to what was delivered, rounded up.

use serde::{Deserialize, Serialize};

use super::Window;

/// State of one fast recovery, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Prr {
    delivered: u32,
    out: u32,
    recover_flight: u32,
}

impl Prr {
    /// Recovery begins with `flight` bytes sent and not acknowledged (`snd_nxt - snd_una`).
    #[must_use]
    pub const fn new(flight: u32) -> Self {
        let recover_flight = if flight == 0 { 1 } else { flight };
        Self { delivered: 0, out: 0, recover_flight }
    }

    /// Sets `cwnd` for an ACK.
    ///
    /// `delivered` are the bytes that it newly acknowledged or selectively acknowledged (without
    /// SACK: one MSS for a duplicate; for a partial ACK what it acknowledged less the duplicates that
    /// were counted for it), `pipe` the bytes in flight after it. It is `safe` if it
    /// advanced `snd_una` and marked nothing as lost.
    pub fn on_ack(&mut self, delivered: u32, pipe: u32, safe: bool, w: &mut Window) {
        self.delivered = self.delivered.saturating_add(delivered);
        let mut allowed = if pipe > w.ssthresh {
            self.proportional(w.ssthresh)
        } else {
            let conserved = self.delivered.saturating_sub(self.out).max(delivered);
            let extra = if safe { w.mss() } else { 0 };
            conserved.saturating_add(extra).min(w.ssthresh - pipe)
        };
        if self.out == 0 {
            allowed = allowed.max(w.mss());
        }
        w.cwnd = pipe.saturating_add(allowed).max(w.mss());
    }

    /// Bytes were sent, new ones or again.
    pub fn on_sent(&mut self, bytes: u32) {
        self.out = self.out.saturating_add(bytes);
    }

    fn proportional(&self, ssthresh: u32) -> u32 {
        let product = u64::from(self.delivered) * u64::from(ssthresh);
        let total = product.div_ceil(u64::from(self.recover_flight));
        u32::try_from(total).unwrap_or(u32::MAX).saturating_sub(self.out)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::segments;
    use super::*;
    use proptest::prelude::*;

    /// RFC 6937 section 3.1, first example: 20 segments, one lost, Reno. `pipe` starts at 19 less
    /// the ACKs; every second ACK lets one segment out, until `pipe` is at `ssthresh`.
    #[test]
    fn one_loss_of_twenty_sends_on_every_second_ack() {
        let mut w = segments(20, 10);
        let mut prr = Prr::new(20_000);
        let mut pipe = 17_000_u32; // Three duplicates arrived, one segment is lost; the third is handled here.
        let mut sent = vec![];
        for ack in 0..16 {
            let delivered = if ack == 0 { 3_000 } else { 1_000 };
            pipe -= if ack == 0 { 1_000 } else { delivered };
            prr.on_ack(delivered, pipe, false, &mut w);
            let n = (w.cwnd - pipe) / 1000;
            prr.on_sent(n * 1000);
            pipe += n * 1000;
            sent.push(n);
        }
        assert_eq!(sent[..9], [1, 1, 0, 1, 0, 1, 0, 1, 0]);
        assert!((9_000..=10_000).contains(&pipe), "{pipe} {sent:?}");
        w.leave_recovery();
        assert_eq!(w.cwnd, 10_000);
    }

    #[test]
    fn far_below_it_catches_up_only_on_safe_acks() {
        // 15 of 20 were lost: pipe is 4 when the first ACK has been counted.
        let mut w = segments(20, 10);
        let mut prr = Prr::new(20_000);
        prr.on_ack(1_000, 4_000, false, &mut w);
        assert_eq!(w.cwnd, 5_000, "what was delivered");
        prr.on_sent(1_000);
        prr.on_ack(1_000, 4_000, true, &mut w);
        assert_eq!(w.cwnd, 6_000, "and one more");
        prr.on_sent(2_000);
        prr.on_ack(9_000, 4_000, true, &mut w);
        assert_eq!(w.cwnd, 10_000, "not above ssthresh");
    }

    #[test]
    fn the_proportion_is_rounded_up() {
        let mut w = segments(30, 10);
        let mut prr = Prr::new(30_000);
        prr.on_sent(1);
        // 1000 * 10 / 30 = 333.3, less the one byte.
        prr.on_ack(1_000, 29_000, true, &mut w);
        assert_eq!(w.cwnd, 29_333);
    }

    #[test]
    fn the_first_segment_always_goes_out() {
        let mut w = segments(20, 2);
        let mut prr = Prr::new(20_000);
        prr.on_ack(0, 19_000, false, &mut w);
        assert_eq!(w.cwnd, 20_000);
        prr.on_sent(1_000);
        prr.on_ack(1_000, 18_000, false, &mut w);
        assert_eq!(w.cwnd, 18_000);
    }

    proptest! {
        /// A sender that obeys `cwnd` keeps to the proportion above `ssthresh` and to it below.
        #[test]
        fn bounds_hold(
            flight in 2_u32..1000, threshold in 2_u32..500,
            acks in proptest::collection::vec((0_u32..20, 0_u32..20, any::<bool>()), 1..100),
        ) {
            let mut w = segments(flight, threshold);
            let mut prr = Prr::new(flight * 1000);
            let mut pipe = flight * 1000;
            let (mut delivered, mut out) = (0_u64, 0_u64);
            for (arrived, lost, safe) in acks {
                let arrived = (arrived * 1000).min(pipe);
                pipe -= arrived;
                pipe -= (lost * 1000).min(pipe);
                delivered += u64::from(arrived);
                prr.on_ack(arrived, pipe, safe, &mut w);
                prop_assert!(w.cwnd >= w.mss);
                let n = w.cwnd.saturating_sub(pipe);
                if pipe > w.ssthresh && out > 0 {
                    let share = (delivered * u64::from(w.ssthresh)).div_ceil(u64::from(flight) * 1000);
                    prop_assert!(n == 0 || out + u64::from(n) <= share);
                } else if pipe <= w.ssthresh {
                    prop_assert!(w.cwnd <= w.ssthresh.max(pipe + 1000));
                }
                prr.on_sent(n);
                out += u64::from(n);
                pipe += n;
            }
        }

        #[test]
        fn nothing_overflows(
            flight: u32, acks in proptest::collection::vec(any::<(u32, u32, bool, u32)>(), 1..30),
            ssthresh: u32, mss: u32,
        ) {
            let mut w = Window { cwnd: 1, ssthresh, mss };
            let mut prr = Prr::new(flight);
            for (delivered, pipe, safe, sent) in acks {
                prr.on_ack(delivered, pipe, safe, &mut w);
                prr.on_sent(sent);
                prop_assert!(w.cwnd >= mss && w.cwnd >= pipe);
            }
        }
    }
}
