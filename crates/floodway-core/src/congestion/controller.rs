//! The congestion control of one flow: an algorithm and the rules that all of them share.

use serde::{Deserialize, Serialize};

use super::algorithm::State;
use super::{Ack, Algorithm, Congestion, PartialAck, Window};
use crate::seq::Seq;
use crate::time::Duration;

/// Why the window was lowered last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Reduction {
    /// Not yet, or it was taken back.
    None,
    Loss,
    Ecn,
}

/// The window before the last reduction; `cwnd` is zero if there is nothing to undo.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Undo {
    cwnd: u32,
    ssthresh: u32,
}

/// Congestion control of one flow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Controller {
    state: State,
    undo: Undo,
    /// `snd_nxt` at the last reduction: until it is acknowledged, ACKs speak of the window before.
    reduced_until: Seq,
    reduction: Reduction,
}

const _: () = assert!(size_of::<Controller>() <= 52);

impl Controller {
    /// Before the first ACK, with HyStart++ in the first slow start of Reno, NewReno and CUBIC.
    #[must_use]
    pub fn new(algorithm: Algorithm) -> Self {
        Self::with_hystart(algorithm, true)
    }

    /// As [`new`](Self::new), but HyStart++ is on or off as told. Vegas and DCTCP never have it.
    #[must_use]
    pub fn with_hystart(algorithm: Algorithm, hystart: bool) -> Self {
        Self {
            state: State::new(algorithm, hystart),
            undo: Undo::default(),
            reduced_until: Seq::default(),
            reduction: Reduction::None,
        }
    }

    /// Returns `false` if no events lead to it: a stranger has written it.
    #[must_use]
    pub(crate) fn is_possible(&self) -> bool {
        self.state.is_possible()
    }

    /// Which algorithm it is.
    #[must_use]
    pub const fn algorithm(&self) -> Algorithm {
        self.state.algorithm()
    }

    /// What a partial ACK does to fast recovery if the peer has no SACK.
    #[must_use]
    pub fn partial_ack(&self) -> PartialAck {
        self.state.partial_ack()
    }

    /// [`CongestionControl::marked_part`](super::CongestionControl::marked_part).
    #[must_use]
    pub fn marked_part(&self) -> Option<u32> {
        self.state.marked_part()
    }

    /// An ACK arrived, in recovery or not. May change `cwnd`, and `ssthresh` when slow start ends by
    /// itself (HyStart++, Vegas).
    #[inline]
    pub fn on_ack(&mut self, ack: &Ack, w: &mut Window) {
        self.state.on_ack(ack, w);
    }

    /// Fast recovery begins. Sets `ssthresh`; `cwnd` is [`Prr`](super::Prr)'s until
    /// [`Window::leave_recovery`]. If a mark has lowered the window in this round trip already, that was
    /// the same congestion, and `ssthresh` stays (RFC 3168 section 6.1.2; not so for DCTCP, whose marks may
    /// lower it by next to nothing).
    pub fn on_loss(&mut self, event: &Congestion, w: &mut Window) {
        let marked = self.reduction == Reduction::Ecn && event.snd_una.before(self.reduced_until);
        if marked && self.state.algorithm_mut().mark_counts_as_loss() {
            self.reduction = Reduction::Loss;
            self.reduced_until = event.snd_nxt;
            return;
        }
        self.note(Reduction::Loss, event, w);
        self.state.algorithm_mut().on_loss(event, w);
    }

    /// The retransmission timer expired: `cwnd` is one MSS, and `ssthresh` is set, except if the first
    /// unacknowledged segment was `resent` by the timer before: then one congestion was already
    /// counted (RFC 5681 section 3.1). [`RttEstimator::backed_off`](crate::rtt::RttEstimator::backed_off)
    /// before the new back-off tells.
    pub fn on_timeout(&mut self, event: &Congestion, resent: bool, w: &mut Window) {
        if resent {
            w.lower_cwnd(w.mss());
            return;
        }
        self.note(Reduction::Loss, event, w);
        self.state.algorithm_mut().on_timeout(event, w);
    }

    /// An ACK has ECE; call it for each, after [`on_ack`](Self::on_ack). Lowers the window once per round
    /// trip, whether marks or losses told first, and says whether it did: then the next new
    /// segment carries CWR.
    pub fn on_ecn(&mut self, event: &Congestion, w: &mut Window) -> bool {
        // Something sent after the reduction has to be acknowledged, for CWR to have reached the peer (RFC 3168 section 6.1.2).
        if self.reduction != Reduction::None && !event.snd_una.after(self.reduced_until) {
            // The reduction answers the mark as well, and a mark is never spurious.
            self.undo = Undo::default();
            return false;
        }
        self.note(Reduction::Ecn, event, w);
        // A mark is never spurious.
        self.undo = Undo::default();
        self.state.algorithm_mut().on_ecn(event, w);
        true
    }

    /// Data is to be sent after nothing was sent for `idle`. If that is longer than `rto`, `cwnd` goes down to
    /// `initial_window` (RFC 5681 section 4.1) and slow start may rebuild it up to three quarters of
    /// what it was (RFC 7661 section 4.4.2; Linux `tcp_cwnd_restart`).
    pub fn on_idle(&mut self, idle: Duration, rto: Duration, initial_window: u32, w: &mut Window) {
        if idle <= rto {
            return;
        }
        w.set_ssthresh(w.ssthresh.max(w.cwnd - w.cwnd / 4));
        w.lower_cwnd(initial_window);
        self.undo = Undo::default();
        self.state.algorithm_mut().on_idle();
    }

    /// The last loss or timeout was none: late ACKs prove that the originals arrived (Eifel, RFC 3522; DSACK,
    /// RFC 3708; F-RTO, RFC 5682). `cwnd` and `ssthresh` are as before, or as they are if that is more. Says
    /// false if there is nothing to undo. The sender leaves recovery, and is to avoid a burst
    /// if little is in flight.
    pub fn on_spurious(&mut self, w: &mut Window) -> bool {
        if self.undo.cwnd == 0 {
            return false;
        }
        w.cwnd = w.cwnd.max(self.undo.cwnd);
        w.ssthresh = w.ssthresh.max(self.undo.ssthresh);
        self.undo = Undo::default();
        self.reduction = Reduction::None;
        self.state.algorithm_mut().on_spurious(w);
        true
    }

    fn note(&mut self, reduction: Reduction, event: &Congestion, w: &Window) {
        self.undo = Undo { cwnd: w.cwnd, ssthresh: w.ssthresh };
        self.reduced_until = event.snd_nxt;
        self.reduction = reduction;
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{ack, congestion, segments};
    use super::*;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    fn at(una: u32, nxt: u32, w: &Window) -> Congestion {
        Congestion { snd_una: Seq(una), snd_nxt: Seq(nxt), ..congestion(w) }
    }

    #[test]
    fn a_loss_sets_ssthresh_and_nothing_else() {
        for (algorithm, threshold) in Algorithm::ALL.into_iter().zip([50, 50, 50, 70, 50]) {
            let (mut cc, mut w) = (Controller::new(algorithm), segments(100, u32::MAX));
            assert_eq!(cc.algorithm(), algorithm);
            cc.on_loss(&congestion(&w), &mut w);
            assert_eq!(w, segments(100, threshold), "{algorithm}");
            // Half the window in flight: half the threshold. More than cwnd (limited transmit): no more.
            let (mut cc, mut w) = (Controller::new(algorithm), segments(100, u32::MAX));
            cc.on_loss(&Congestion { flight: 50_000, ..congestion(&w) }, &mut w);
            assert_eq!(w, segments(100, threshold / 2), "{algorithm}");
            let (mut cc, mut w) = (Controller::new(algorithm), segments(100, u32::MAX));
            cc.on_loss(&Congestion { flight: 102_000, ..congestion(&w) }, &mut w);
            assert_eq!(w, segments(100, threshold), "{algorithm}");
        }
    }

    /// RFC 3168 section 6.1.2: the peer echoes until it sees CWR, which is on the first segment after the reduction.
    #[test]
    fn a_mark_counts_once_until_its_cwr_is_acknowledged() {
        let (mut cc, mut w) = (Controller::new(Algorithm::NewReno), segments(40, u32::MAX));
        assert!(cc.on_ecn(&at(1000, 41_000, &w), &mut w));
        assert!(!cc.on_ecn(&at(41_000, 41_000, &w), &mut w), "all from before it");
        assert!(!cc.on_ecn(&at(41_000, 61_000, &w), &mut w), "and what is out has just left");
        assert_eq!(w.cwnd, 20_000);
        assert!(cc.on_ecn(&at(42_000, 61_000, &w), &mut w));
    }

    /// Linux `tcp_fastretrans_alert`: ECE prohibits undoing.
    #[test]
    fn a_mark_in_the_window_of_a_loss_keeps_the_reduction() {
        let (mut cc, mut w) = (Controller::new(Algorithm::NewReno), segments(40, u32::MAX));
        cc.on_loss(&at(1000, 41_000, &w), &mut w);
        assert!(!cc.on_ecn(&at(2000, 42_000, &w), &mut w), "one reduction for both");
        assert!(!cc.on_spurious(&mut w));
        assert_eq!(w.ssthresh, 20_000);
    }

    #[test]
    fn repeated_timeouts_of_a_segment_count_once() {
        let (mut cc, mut w) = (Controller::new(Algorithm::NewReno), segments(40, u32::MAX));
        cc.on_timeout(&congestion(&w), false, &mut w);
        assert_eq!(w, segments(1, 20));
        cc.on_timeout(&congestion(&w), true, &mut w);
        assert_eq!(w, segments(1, 20));
        assert!(cc.on_spurious(&mut w), "back to before the first");
        assert_eq!(w, segments(40, u32::MAX));
    }

    #[test]
    fn a_timeout_in_recovery_is_a_second_congestion() {
        // RFC 5681 section 4.3: the loss of a retransmission lowers the window again.
        let (mut cc, mut w) = (Controller::new(Algorithm::Reno), segments(40, u32::MAX));
        cc.on_loss(&congestion(&w), &mut w);
        w.leave_recovery();
        cc.on_timeout(&Congestion { flight: 40_000, ..congestion(&w) }, false, &mut w);
        assert_eq!(w, segments(1, 10));
    }

    #[test]
    fn marks_count_once_per_window() {
        let (mut cc, mut w) = (Controller::new(Algorithm::Reno), segments(40, 40));
        assert!(cc.on_ecn(&at(u32::MAX, 39_999, &w), &mut w));
        assert_eq!(w, segments(20, 20));
        assert!(!cc.on_ecn(&at(39_999, 60_000, &w), &mut w));
        assert!(cc.on_ecn(&at(40_000, 60_000, &w), &mut w));
        assert_eq!(w, segments(10, 10));
        assert!(!cc.on_spurious(&mut w), "a mark is never spurious");
    }

    #[test]
    fn a_mark_and_a_loss_of_one_window_count_once() {
        let (mut cc, mut w) = (Controller::new(Algorithm::Reno), segments(40, 40));
        assert!(cc.on_ecn(&at(0, 40_000, &w), &mut w));
        cc.on_loss(&at(1_000, 41_000, &w), &mut w);
        assert_eq!(w, segments(20, 20));
        assert!(!cc.on_ecn(&at(40_500, 60_000, &w), &mut w), "nor a mark after that loss");
        let (mut cc, mut w) = (Controller::new(Algorithm::Reno), segments(40, 40));
        cc.on_loss(&at(0, 40_000, &w), &mut w);
        assert!(!cc.on_ecn(&at(1_000, 41_000, &w), &mut w));
        assert_eq!(w, segments(40, 20));
        // Without SACK, Reno may find a further loss of the same window: that is counted.
        w.leave_recovery();
        cc.on_loss(&at(2_000, 41_000, &w), &mut w);
        assert_eq!(w.ssthresh, 10_000);
    }

    #[test]
    fn dctcp_counts_a_loss_after_a_mark() {
        let (mut cc, mut w) = (Controller::new(Algorithm::Dctcp), segments(40, 40));
        assert!(cc.on_ecn(&at(0, 40_000, &w), &mut w));
        assert_eq!(w, segments(20, 20));
        cc.on_loss(&at(1_000, 41_000, &w), &mut w);
        assert_eq!(w, segments(20, 10));
    }

    #[test]
    fn marks_go_down_to_one_segment() {
        for algorithm in Algorithm::ALL {
            let (mut cc, mut w) = (Controller::new(algorithm), segments(3, 3));
            for n in 0..20 {
                assert!(cc.on_ecn(&at(n, n, &w), &mut w));
            }
            assert_eq!((w.cwnd, w.ssthresh), (1_000, 2_000), "{algorithm}");
        }
    }

    #[test]
    fn an_ack_with_ece_does_not_grow_the_window() {
        for algorithm in Algorithm::ALL {
            for mut w in [segments(10, 10), segments(10, 100)] {
                let mut cc = Controller::new(algorithm);
                let before = w;
                for _ in 0..100 {
                    let ack = Ack { ece: true, ecn_bytes: 1000, ..ack(1000, &w) };
                    cc.on_ack(&ack, &mut w);
                }
                assert_eq!(w, before, "{algorithm}");
            }
        }
    }

    #[test]
    fn idle_time_restarts_at_the_initial_window() {
        let (mut cc, mut w) = (Controller::new(Algorithm::Cubic), segments(100, 30));
        cc.on_idle(MS(200), MS(200), 10_000, &mut w);
        assert_eq!(w, segments(100, 30));
        cc.on_idle(MS(201), MS(200), 10_000, &mut w);
        assert_eq!(w, segments(10, 75));
        w = segments(4, u32::MAX);
        cc.on_idle(MS(201), MS(200), 10_000, &mut w);
        assert_eq!(w, segments(4, u32::MAX), "never raised, and no threshold invented");
    }

    #[test]
    fn a_spurious_loss_is_undone_once() {
        for algorithm in Algorithm::ALL {
            let (mut cc, mut w) = (Controller::new(algorithm), segments(80, 60));
            assert!(!cc.on_spurious(&mut w));
            cc.on_loss(&congestion(&w), &mut w);
            w.leave_recovery();
            assert!(w.cwnd < 80_000);
            assert!(cc.on_spurious(&mut w));
            assert_eq!(w, segments(80, 60), "{algorithm}");
            assert!(!cc.on_spurious(&mut w));
        }
    }

    #[test]
    fn only_reno_leaves_recovery_on_a_partial_ack() {
        for algorithm in Algorithm::ALL {
            let ends = Controller::new(algorithm).partial_ack() == PartialAck::EndsRecovery;
            assert_eq!(ends, algorithm == Algorithm::Reno);
        }
    }
}
