//! What a connection was granted and has not used.
//!
//! # Theory of operation
//! The pacer forgets: a grant that is not used within the round trip has given its time on the link to others. But an edge is
//! never taken back, so the sender may use it whenever it likes: two segments at least, of each idle connection. There are two
//! occasions to have it paid once more:
//! - **A request.** On most connections the two sides take turns: when the VM sends data after its peer did, or for the first
//!   time, an answer is what comes next. How much of it fits what is left of the grant is known before it is sent. The
//!   answer is taken to be as long as the last ones were (the largest, which loses an eighth at each request), and the first
//!   one to be as long as it may.
//! - **An arrival.** What was neither used in time nor asked for is paid when it arrives.

use crate::seq::Seq;
use crate::time::{Duration, Instant};

/// The unused part of a connection's grants.
#[derive(Clone, Debug)]
pub(super) struct UnusedCredit {
    /// When the edge advanced last, or else when what is left was paid for again.
    paid_at: Instant,
    /// When data arrived last.
    arrived_at: Instant,
    /// What has to be paid when it arrives.
    uncharged: [Seq; 2],
    /// The VM has asked, and no answer has come.
    asked: bool,
    /// Where the last answer began; `None` before the first request.
    answer_from: Option<Seq>,
    /// How long an answer is expected to be.
    answer: u32,
}

/// The VM asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Request {
    /// Bytes of the answer that have been granted already.
    pub granted: u32,
    /// They have to be paid for again.
    pub uncharged: bool,
}

impl UnusedCredit {
    pub fn new(next: Seq, now: Instant) -> Self {
        Self {
            paid_at: now,
            arrived_at: now,
            uncharged: [next; 2],
            asked: false,
            answer_from: None,
            answer: 0,
        }
    }

    /// The edge has advanced.
    pub fn advanced(&mut self, now: Instant) {
        self.paid_at = now;
    }

    /// Granted data from `begin` to `end` arrives, while the edge is at `edge`. A grant is used within `in_time`, or late.
    /// Answers how many of the bytes have to be paid for now.
    pub fn arrived(
        &mut self,
        begin: Seq,
        end: Seq,
        edge: Seq,
        in_time: Duration,
        now: Instant,
    ) -> u32 {
        self.arrived_at = now;
        if std::mem::take(&mut self.asked) {
            // However long the peer thought.
            self.paid_at = now;
        } else if now.since(self.paid_at) > in_time {
            self.uncharged = [begin, edge];
        }
        let [from, to] = self.uncharged;
        let late = to.min(end).since(from.max(begin));
        // Never far behind, where a comparison would take it for the future.
        self.uncharged = [from.max(end), to.max(end)];
        late
    }

    /// The VM sends new data, having got all up to `highest`. Tells if that is a request after a pause of more than `pause`, or the
    /// first.
    pub fn detect_request(
        &mut self,
        highest: Seq,
        edge: Seq,
        pause: Duration,
        now: Instant,
    ) -> Option<Request> {
        let is_first = self.answer_from.is_none();
        if let Some(from) = self.answer_from.replace(highest) {
            let last = highest.since(from);
            if last == 0 {
                // It goes on talking.
                return None;
            }
            self.answer = last.max(self.answer - self.answer / 8);
        }
        let is_late = now.since(self.paid_at.max(self.arrived_at)) > pause;
        if !is_first && !is_late {
            return None;
        }
        let left = edge.since(highest);
        let granted = if is_first { left } else { left.min(self.answer) };
        if is_late {
            self.uncharged = [highest + granted, edge];
        }
        Some(Request { granted, uncharged: is_late })
    }

    /// The request leaves.
    pub fn on_request_sent(&mut self, now: Instant) {
        self.asked = true;
        self.paid_at = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(u64) -> Duration = Duration::from_millis;
    const AT: fn(u64) -> Instant = Instant::from_millis;
    /// Across the wrap of sequence numbers.
    const START: Seq = Seq(u32::MAX - 1000);

    #[test]
    fn what_is_used_in_time_is_not_paid_twice() {
        let mut unused_credit = UnusedCredit::new(START, AT(0));
        for round in 0..10 {
            let from = START + 1000 * round;
            let now = AT(u64::from(round));
            unused_credit.advanced(now);
            assert_eq!(
                unused_credit.arrived(from, from + 1000, from + 3000, MS(2), now + MS(1)),
                0
            );
        }
    }

    #[test]
    fn what_comes_late_is_paid_once() {
        let mut unused_credit = UnusedCredit::new(START, AT(0));
        let edge = START + 3000;
        assert_eq!(unused_credit.arrived(START, START + 1000, edge, MS(2), AT(10)), 1000);
        unused_credit.advanced(AT(10));
        // The rest of the old grant is as old as it was; what is new is not.
        let edge = edge + 1000;
        assert_eq!(unused_credit.arrived(START + 1000, START + 3500, edge, MS(2), AT(11)), 2000);
        assert_eq!(unused_credit.arrived(START + 3500, edge, edge, MS(2), AT(11)), 0);
    }

    #[test]
    fn a_question_tells_what_its_answer_may_use() {
        let mut unused_credit = UnusedCredit::new(START, AT(0));
        let mut asks = |highest: u32, edge: u32, at| {
            let found = unused_credit.detect_request(START + highest, START + edge, MS(2), AT(at));
            found.map(|request| (request.granted, request.uncharged))
        };
        // The first may be answered with all there is; it was paid in the handshake.
        assert_eq!(asks(0, 3000, 1), Some((3000, false)));
        // More of the same request.
        assert_eq!(asks(0, 3000, 50), None);
        // A short answer, and another request soon or late.
        assert_eq!(asks(100, 3000, 1), None);
        assert_eq!(asks(200, 3000, 60), Some((100, true)));
        // An answer that was longer counts for some time.
        assert_eq!(asks(10_000, 50_000, 70), Some((9800, true)));
        assert_eq!(asks(10_100, 50_000, 80), Some((9800 - 1225, true)));
        assert_eq!(asks(10_200, 12_000, 90), Some((1800, true)));
    }

    #[test]
    fn an_answer_that_was_paid_may_take_its_time() {
        let mut unused_credit = UnusedCredit::new(START, AT(0));
        let edge = START + 3000;
        assert!(unused_credit.detect_request(START, edge, MS(2), AT(1)).is_some());
        unused_credit.on_request_sent(AT(1));
        assert_eq!(unused_credit.arrived(START, START + 500, edge, MS(2), AT(90)), 0);
        assert_eq!(unused_credit.arrived(START + 500, START + 1000, edge, MS(2), AT(91)), 0);
        // What was expected was 1000, and not paid was the rest.
        let asked = unused_credit.detect_request(START + 1000, edge, MS(2), AT(200));
        assert_eq!(asked, Some(Request { granted: 1000, uncharged: true }));
        unused_credit.on_request_sent(AT(200));
        assert_eq!(unused_credit.arrived(START + 1000, START + 3000, edge, MS(2), AT(201)), 1000);
    }
}
