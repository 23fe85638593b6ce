//! Congestion control of a TCP sender.
//!
//! # Theory of operation
//! **Goal.** Say how many bytes a sender may have in flight. The sender (the transmit offload, or a
//! simulated guest) finds losses and keeps the timers; here is what a loss, a mark or an ACK
//! means for its [`Window`].
//!
//! **Who does what.** A [`Controller`] is the state of one flow. It keeps the rules that all algorithms
//! share (one reduction per window, undo, restart after idle time) and dispatches to one
//! [`CongestionControl`], which only knows its own arithmetic.
//!
//! | event | call | effect |
//! |---|---|---|
//! | every ACK | [`on_ack`](Controller::on_ack) | growth, if limited by `cwnd`; measurements always |
//! | fast recovery begins | [`on_loss`](Controller::on_loss) | `ssthresh` only: [`Prr`] takes `cwnd` there |
//! | fast recovery ends | [`Window::leave_recovery`] | `cwnd = ssthresh` |
//! | timer expires | [`on_timeout`](Controller::on_timeout) | `ssthresh`, `cwnd` = 1 MSS |
//! | ECE | [`on_ecn`](Controller::on_ecn), after `on_ack` | both, once per window |
//! | first data after idle time | [`on_idle`](Controller::on_idle) | restart window |
//! | loss was none | [`on_spurious`](Controller::on_spurious) | both as they were |
//!
//! **Growth** is by bytes acknowledged without a limit per ACK: a peer with receive coalescing acknowledges
//! 64 KB at a time, and two segments per ACK (RFC 3465) would crawl. Bursts are bounded by what was
//! in flight instead. A window that the sender did not use does not grow (RFC 7661).
//!
//! **Without SACK**, Reno and NewReno differ in what a partial ACK does to fast recovery:
//! [`Controller::partial_ack`]. With SACK there is no difference between them.
//!
//! **Another algorithm** is a file with an implementation of [`CongestionControl`], with its `mod` below, and a line in
//! the list in `algorithm.rs`. Names in configuration, output and error messages come from there, and the property tests take it along.
//!
//! **Invariants**: `cwnd >= mss` and, once set, `ssthresh >= 2 * mss`; no growth unless limited by `cwnd`, none by
//! an ACK with ECE; nothing overflows on any input; the same calls give the same numbers on every machine.

mod algorithm;
mod controller;
mod cubic;
mod dctcp;
mod hystart;
mod prr;
mod reno;
#[cfg(test)]
mod tests;
mod vegas;
mod window;

pub use algorithm::{Algorithm, UnknownAlgorithm};
pub use controller::Controller;
pub use cubic::Cubic;
pub use dctcp::Dctcp;
pub use prr::Prr;
pub use reno::{NewReno, Reno};
pub use vegas::Vegas;
use window::Round;
pub use window::{Ack, Congestion, MAX_CWND, Window, initial_window, initial_window_rfc3390};

/// What an ACK does that arrives in fast recovery and acknowledges some, but not all, of what was
/// outstanding when recovery began. It matters for peers without SACK only; with SACK, recovery
/// lasts until its recovery point (RFC 6675).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartialAck {
    /// Recovery ends, `cwnd = ssthresh`, as with any ACK of new data (RFC 5681 section 3.2 step 6). A further
    /// loss of the same window needs three duplicates again, or the timer, and lowers the
    /// window again.
    EndsRecovery,
    /// The next segment is lost too: it is sent again at once and recovery goes on until
    /// all that was outstanding is acknowledged (RFC 6582 section 3.2 step 3).
    RetransmitsNext,
}

/// What differs between congestion control algorithms.
///
/// The hooks with a body are Reno's (RFC 5681). Callers go through [`Controller`], which
/// decides when a hook is due.
pub trait CongestionControl {
    /// The state before the first ACK. `hystart` switches HyStart++ on, for those that have it.
    fn start(hystart: bool) -> Self
    where
        Self: Sized;

    /// Returns `true` if the peer has to echo exactly which bytes were marked (RFC 8257 section 3.2), and a mark on a
    /// retransmission counts, too.
    fn counts_marks() -> bool
    where
        Self: Sized,
    {
        false
    }

    /// What a partial ACK does to fast recovery if the peer has no SACK.
    fn partial_ack(&self) -> PartialAck {
        PartialAck::RetransmitsNext
    }

    /// The estimate of the part of bytes that are marked, in parts of 2^20; `None` if there is none.
    fn marked_part(&self) -> Option<u32> {
        None
    }

    /// An ACK arrived: may raise `cwnd` (or lower it, as Vegas does), must take its measurements
    /// even if the ACK allows no growth.
    fn on_ack(&mut self, ack: &Ack, w: &mut Window);

    /// Fast recovery begins: sets `ssthresh` and leaves `cwnd` to [`Prr`].
    fn on_loss(&mut self, event: &Congestion, w: &mut Window) {
        w.set_ssthresh(event.used(w) / 2);
    }

    /// The retransmission timer expired: sets `ssthresh`, and `cwnd` to one MSS.
    fn on_timeout(&mut self, event: &Congestion, w: &mut Window) {
        self.on_loss(event, w);
        w.lower_cwnd(w.mss());
    }

    /// The peer echoed a mark: lowers `cwnd`, not below one MSS, and sets `ssthresh` (RFC 3168
    /// section 6.1.2).
    fn on_ecn(&mut self, event: &Congestion, w: &mut Window) {
        let _ = event;
        let half = w.cwnd / 2;
        w.set_ssthresh(half);
        w.lower_cwnd(half);
    }

    /// A mark lowers the window as much as a loss does, so that a loss in the same round trip is not
    /// counted again.
    fn mark_counts_as_loss(&self) -> bool {
        true
    }

    /// The flow starts again after idle time.
    fn on_idle(&mut self) {}

    /// Returns `false` if no ACKs lead to this state, which a stranger has written: what is done with it must not fail.
    fn is_possible(&self) -> bool {
        true
    }

    /// The last reduction was wrong, and the window has been restored to `w`: brings back what
    /// belongs to it.
    fn on_spurious(&mut self, w: &Window) {
        let _ = w;
    }
}
