//! Hand-made traces: for each rule, one that keeps to it and one that does not.
//!
//! Segments have 1000 bytes and are counted from 0; a round trip takes 40 ms.

mod probes;
mod without_sack;

use floodway_core::congestion::Algorithm;
use floodway_core::time::{Duration, Instant};

use super::{Ack, Reference, Terms};
use crate::harness::packet::Position;

const MSS: i64 = 1000;
const RTT: Duration = Duration::from_millis(40);
const MS: fn(u64) -> Duration = Duration::from_millis;

struct Trace {
    reference: Reference,
    now: Instant,
    /// Segments acknowledged, and sent.
    acked: i64,
    sent: i64,
}

fn place(segment: i64) -> Position {
    1 + segment * MSS
}

impl Trace {
    fn with(algorithm: Algorithm, sack: bool) -> Self {
        let terms =
            Terms { algorithm, mss: MSS, initial_window: 10, sack, ecn: true, handshake: RTT };
        Self { reference: Reference::new(terms), now: Instant::from_millis(100), acked: 0, sent: 0 }
    }

    fn reno() -> Self {
        Self::with(Algorithm::NewReno, true)
    }

    /// A sender that has come to `segments` in flight by slow start.
    fn grown(algorithm: Algorithm, sack: bool, segments: i64) -> Self {
        let mut trace = Self::with(algorithm, sack);
        trace.send(10).unwrap();
        while trace.sent - trace.acked < segments {
            let flight = trace.sent - trace.acked;
            trace.wait(RTT);
            trace.ack(flight);
            trace.send((2 * flight).min(segments)).unwrap();
        }
        trace
    }

    fn wait(&mut self, time: Duration) {
        self.now += time;
    }

    fn send(&mut self, segments: i64) -> Result<(), String> {
        for _ in 0..segments {
            self.reference.sent(self.now, place(self.sent), place(self.sent + 1));
            self.sent += 1;
        }
        self.reference.settle(self.now)
    }

    /// Sends segments of `lens` bytes from `next` on.
    fn send_lens(&mut self, next: &mut Position, lens: &[i64]) -> Result<(), String> {
        for len in lens {
            self.reference.sent(self.now, *next, *next + len);
            *next += len;
        }
        self.reference.settle(self.now)
    }

    fn repeat(&mut self, segments: &[i64]) -> Result<(), String> {
        for &segment in segments {
            self.reference.sent(self.now, place(segment), place(segment + 1));
        }
        self.reference.settle(self.now)
    }

    fn take(&mut self, segments: i64, sacks: &[(i64, i64)], ece: bool) {
        self.acked += segments;
        let ack = Ack { pure: segments == 0, ece, ..Ack::default() };
        self.take_as(&ack, sacks);
    }

    /// Takes an ACK of everything acknowledged so far.
    fn take_as(&mut self, ack: &Ack<'_>, sacks: &[(i64, i64)]) {
        let sacks: Vec<_> = sacks.iter().map(|&(l, r)| (place(l), place(r))).collect();
        self.reference.ack(self.now, &Ack { ack: place(self.acked), sacks: &sacks, ..*ack });
    }

    fn ack(&mut self, segments: i64) {
        self.take(segments, &[], false);
    }

    /// Acknowledges everything in flight with ACKs for two segments each, behind each of which as much as possible
    /// is sent, up to `most` segments in flight.
    fn round(&mut self, most: i64) -> Result<(), String> {
        self.wait(RTT);
        let end = self.sent;
        while self.acked < end {
            self.ack((end - self.acked).min(2));
            self.send(most - (self.sent - self.acked))?;
        }
        Ok(())
    }

    /// A recovery of the first segment in flight that ends with `left` segments in flight, the sender doing
    /// exactly what RFC 6937 allows.
    fn recover(&mut self, left: i64) {
        let (first, end) = (self.acked, self.sent);
        let flight = end - first;
        self.wait(RTT);
        let mut out = 0;
        for n in 1..flight {
            self.take(0, &[(first + 1, first + 1 + n)], false);
            if n < 3 {
                self.reference.settle(self.now).unwrap();
            } else if n == 3 {
                self.repeat(&[first]).unwrap();
                out += 1;
            } else {
                let due = ((n - 2) * left / flight - out).max(0);
                out += due;
                self.send(due).unwrap();
            }
        }
        self.wait(RTT);
        self.ack(flight);
        self.reference.settle(self.now).unwrap();
    }
}

#[track_caller]
fn violates(outcome: Result<(), String>) {
    outcome.expect_err("more was sent than any compliant sender may");
}

#[test]
fn the_first_window_is_ten_segments() {
    assert_eq!(Trace::reno().send(10), Ok(()));
    violates(Trace::reno().send(11));
}

#[test]
fn slow_start_grows_by_what_is_acknowledged() {
    for (extra, fits) in [(0, true), (1, false)] {
        let mut trace = Trace::reno();
        trace.send(10).unwrap();
        trace.wait(RTT);
        trace.ack(2);
        assert_eq!(trace.send(4 + extra).is_ok(), fits, "two acknowledged, two more");
    }
}

#[test]
fn a_window_that_doubles_with_each_ack_is_noticed() {
    let mut trace = Trace::reno();
    trace.send(10).unwrap();
    trace.wait(RTT);
    trace.ack(2);
    violates(trace.send(12));
}

#[test]
fn a_window_that_was_not_used_does_not_grow() {
    for (sent, fits) in [(22, true), (23, false)] {
        let mut trace = Trace::grown(Algorithm::NewReno, true, 10);
        trace.wait(RTT);
        trace.ack(10);
        // The application has little to send for a while.
        for _ in 0..20 {
            trace.send(2).unwrap();
            trace.wait(RTT);
            trace.ack(2);
        }
        assert_eq!(trace.send(sent).is_ok(), fits, "{sent}");
    }
}

#[test]
fn a_loss_halves_the_window() {
    let mut trace = Trace::grown(Algorithm::NewReno, true, 40);
    trace.recover(20);
    assert_eq!(trace.send(20 - (trace.sent - trace.acked)), Ok(()));
    violates(trace.send(3));
}

#[test]
fn cubic_keeps_seven_tenths_after_a_loss() {
    let mut trace = Trace::grown(Algorithm::Cubic, true, 40);
    trace.recover(28);
    assert_eq!(trace.send(28 - (trace.sent - trace.acked)), Ok(()));
    violates(trace.send(3));
}

#[test]
fn a_loss_without_a_cut_is_noticed() {
    for algorithm in Algorithm::ALL {
        let mut trace = Trace::grown(algorithm, true, 40);
        trace.wait(RTT);
        trace.take(0, &[(trace.acked + 1, trace.acked + 4)], false);
        trace.repeat(&[trace.acked]).unwrap();
        let mut outcome = Ok(());
        for n in 5..20 {
            trace.take(0, &[(trace.acked + 1, trace.acked + n)], false);
            // A segment for each that has arrived: conservation of packets, but no reduction.
            outcome = outcome.and(trace.send(1));
        }
        violates(outcome);
    }
}

#[test]
fn recovery_may_begin_with_one_segment_only() {
    let mut trace = Trace::grown(Algorithm::NewReno, true, 40);
    trace.wait(RTT);
    let first = trace.acked;
    trace.take(0, &[(first + 4, first + 7)], false);
    violates(trace.repeat(&[first, first + 1, first + 2, first + 3]));
}

/// RFC 7323 section 5.3: an ACK that came late may be refused, and the next one reports what it did.
#[test]
fn what_a_late_ack_reports_may_count_with_the_next() {
    for (stale, fits) in [(true, true), (false, false)] {
        let mut trace = Trace::grown(Algorithm::NewReno, true, 40);
        trace.wait(RTT);
        let first = trace.acked;
        let late = Ack { pure: true, stale, ..Ack::default() };
        trace.take_as(&late, &[(first + 1, first + 9)]);
        trace.take(0, &[(first + 1, first + 10)], false);
        trace.repeat(&[first]).unwrap();
        // Nine segments of forty were delivered, or one.
        assert_eq!(trace.send(3).is_ok(), fits, "{stale}");
        violates(trace.send(1));
    }
}

/// A mark on an ACK that is refused reduces nothing.
#[test]
fn a_late_mark_need_not_be_heard() {
    for (stale, fits) in [(true, true), (false, false)] {
        let mut trace = Trace::grown(Algorithm::NewReno, true, 40);
        trace.wait(RTT);
        trace.take_as(&Ack { pure: true, ece: true, stale, ..Ack::default() }, &[]);
        trace.ack(40);
        assert_eq!(trace.send(40).is_ok(), fits, "{stale}");
    }
}

#[test]
fn congestion_avoidance_adds_a_segment_per_round_trip() {
    let mut trace = Trace::grown(Algorithm::NewReno, true, 40);
    trace.recover(20);
    for window in 20..40 {
        assert_eq!(trace.round(window), Ok(()), "{window}");
    }
    let mut outcome = Ok(());
    for window in 1..4 {
        outcome = outcome.and(trace.round(40 + 3 * window));
    }
    violates(outcome);
}

#[test]
fn a_timeout_leaves_one_segment() {
    let mut trace = Trace::grown(Algorithm::NewReno, true, 40);
    trace.wait(MS(500));
    assert_eq!(trace.repeat(&[trace.acked]), Ok(()));
    let mut trace = Trace::grown(Algorithm::NewReno, true, 40);
    trace.wait(MS(500));
    violates(trace.repeat(&[trace.acked, trace.acked + 1]));
}

#[test]
fn after_a_timeout_slow_start_ends_at_half_the_window() {
    let mut trace = Trace::grown(Algorithm::NewReno, true, 40);
    let first = trace.acked;
    trace.wait(MS(500));
    trace.repeat(&[first]).unwrap();
    let mut next = first + 1;
    let mut window = 1;
    while next < first + 31 {
        trace.wait(RTT);
        trace.ack(window);
        window *= 2;
        let burst: Vec<_> = (next..next + window).collect();
        next += window;
        let outcome = trace.repeat(&burst);
        assert_eq!(outcome.is_ok(), window <= 16, "{window}: {outcome:?}");
    }
    // 1, 2, 4, 8, 16 are within 20; 32 is not.
    trace.wait(RTT);
    trace.ack(16);
    let burst: Vec<_> = (next..first + 40).collect();
    trace.repeat(&burst).unwrap();
    violates(trace.send(32 - burst.len() as i64));
}

#[test]
fn a_mark_halves_the_window_once_per_round_trip() {
    for (kept, fits) in [(20, true), (24, false)] {
        let mut trace = Trace::grown(Algorithm::NewReno, true, 40);
        trace.wait(RTT);
        for _ in 0..10 {
            trace.take(2, &[], true);
        }
        trace.ack(20);
        assert_eq!(trace.send(kept).is_ok(), fits);
    }
}

#[test]
fn marks_that_are_ignored_are_noticed() {
    for algorithm in [Algorithm::Reno, Algorithm::NewReno, Algorithm::Vegas, Algorithm::Cubic] {
        let mut trace = Trace::grown(algorithm, true, 40);
        trace.wait(RTT);
        trace.take(40, &[], true);
        violates(trace.send(40));
    }
}

#[test]
fn after_idle_time_the_first_window_holds_again() {
    let idle = |time: Duration, segments: i64| {
        let mut trace = Trace::grown(Algorithm::NewReno, true, 40);
        trace.wait(RTT);
        trace.ack(40);
        trace.wait(time);
        trace.send(segments)
    };
    assert_eq!(idle(MS(100), 40), Ok(()));
    assert_eq!(idle(MS(3000), 10), Ok(()));
    violates(idle(MS(3000), 40));
}

#[test]
fn a_needless_recovery_is_undone() {
    let mut trace = Trace::grown(Algorithm::NewReno, true, 40);
    let first = trace.acked;
    trace.recover(20);
    trace.take(0, &[(first, first + 1)], false);
    assert_eq!(trace.send(40 - (trace.sent - trace.acked)), Ok(()));
}

#[test]
fn a_recovery_without_a_dsack_is_not_undone() {
    let mut trace = Trace::grown(Algorithm::NewReno, true, 40);
    trace.recover(20);
    violates(trace.send(40 - (trace.sent - trace.acked)));
}

/// RFC 3168 section 6.1.2: the receiver echoes until it sees the CWR of the first segment after the reduction.
#[test]
fn an_echo_from_before_the_reduction_counts_once() {
    let mut trace = Trace::grown(Algorithm::NewReno, true, 40);
    trace.wait(RTT);
    trace.take(40, &[], true);
    trace.take(0, &[], true);
    assert_eq!(trace.send(20), Ok(()));
    trace.wait(RTT);
    trace.take(1, &[], true);
    violates(trace.send(1));
}

#[test]
fn a_recovery_with_a_mark_is_not_undone() {
    for mark in [false, true] {
        let mut trace = Trace::grown(Algorithm::NewReno, true, 40);
        let first = trace.acked;
        trace.wait(RTT);
        trace.take(0, &[(first + 1, first + 4)], false);
        trace.repeat(&[first]).unwrap();
        trace.take(0, &[(first + 1, first + 5)], mark);
        trace.reference.settle(trace.now).unwrap();
        trace.wait(RTT);
        trace.ack(40);
        trace.take(0, &[(first, first + 1)], false);
        assert_eq!(trace.send(40).is_ok(), !mark);
    }
}

/// `W(t)` of RFC 9438 in segments, after a reduction from 40 to 28.
fn cubic(t: f64) -> i64 {
    let k = (12.0_f64 / 0.4).cbrt();
    (0.4 * (t - k).powi(3) + 40.0) as i64
}

#[test]
fn cubic_follows_its_curve() {
    let mut trace = Trace::grown(Algorithm::Cubic, true, 40);
    trace.recover(28);
    let start = trace.now;
    for _ in 0..175 {
        let window = cubic(trace.now.since(start).as_secs_f64()).max(28);
        assert_eq!(trace.round(window), Ok(()), "{window}");
    }
    assert!(cubic(trace.now.since(start).as_secs_f64()) > 50, "it came beyond the plateau");
}

#[test]
fn cubic_that_is_ahead_of_its_curve_is_noticed() {
    let mut trace = Trace::grown(Algorithm::Cubic, true, 40);
    trace.recover(28);
    let start = trace.now;
    let mut outcome = Ok(());
    for _ in 0..100 {
        // Four times as fast.
        let t = 4.0 * trace.now.since(start).as_secs_f64();
        outcome = outcome.and(trace.round(cubic(t).max(28)));
    }
    violates(outcome);
}

#[test]
fn what_a_router_dropped_is_repeated_without_a_reduction() {
    let mut trace = Trace::grown(Algorithm::NewReno, true, 40);
    trace.reference.too_large(600);
    let (first, last) = (trace.acked, trace.sent);
    assert_eq!(trace.repeat(&(first..last).collect::<Vec<_>>()), Ok(()));
}

#[test]
fn what_somebody_else_sends_is_not_judged() {
    let mut trace = Trace::reno();
    trace.reference.pause();
    trace.send(100).unwrap();
    trace.reference.resume();
    violates(trace.send(11));
}

/// The guest has sent a CWR with its last window, and the receiver echoes until it comes.
#[test]
fn a_mark_of_what_somebody_else_sent_reduces_nothing() {
    for (acked, fits) in [(0, true), (1, false)] {
        let mut trace = Trace::reno();
        trace.reference.pause();
        trace.send(5).unwrap();
        trace.acked = 5;
        trace.reference.resume();
        trace.send(10).unwrap();
        trace.wait(RTT);
        trace.take(acked, &[], true);
        trace.take(5 - acked, &[], false);
        assert_eq!(trace.send(5).is_ok(), fits);
    }
}
