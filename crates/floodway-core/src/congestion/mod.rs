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
pub use controller::{Controller, PartialAck};
pub use cubic::Cubic;
pub use dctcp::Dctcp;
pub use prr::Prr;
pub use reno::Reno;
pub use vegas::Vegas;
use window::Round;
pub use window::{Ack, Congestion, MAX_CWND, Window, initial_window, initial_window_rfc3390};

/// What differs between congestion control algorithms.
///
/// The hooks with a body are Reno's (RFC 5681). Callers go through [`Controller`], which
/// decides when a hook is due.
pub trait CongestionControl {
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

    /// The last reduction was wrong, and the window has been restored to `w`: brings back what
    /// belongs to it.
    fn on_spurious(&mut self, w: &Window) {
        let _ = w;
    }
}
