//! What a sender believes of the bytes that it has sent and that are not acknowledged.

use std::collections::BTreeMap;

/// Belief about a range of bytes. What the receiver is known to have is in no range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// On its way; `resent` when not for the first time.
    InFlight { resent: bool },
    /// Lost, and not sent again so far.
    Lost,
    /// The sender has sent it, and the card never had it; `lost` when the sender knows that it is lost.
    NeverLeft { lost: bool },
}

impl State {
    fn lost(self) -> Self {
        match self {
            Self::InFlight { .. } | Self::Lost => Self::Lost,
            Self::NeverLeft { .. } => Self::NeverLeft { lost: true },
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Range {
    end: u32,
    state: State,
    /// When it was sent last.
    at_ns: i64,
}

/// What became of bytes that the receiver has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Delivered {
    /// When the latest of them was sent, if that is known.
    pub sent_ns: Option<i64>,
    /// Bytes that never came to the card, so that the receiver cannot have them.
    pub impossible: u64,
}

/// Disjoint ranges of sequence numbers by their first.
#[derive(Clone, Debug, Default)]
pub struct Scoreboard {
    ranges: BTreeMap<u32, Range>,
}

impl Scoreboard {
    /// Bytes from `start` to before `end` were sent at `at_ns`, `resent` when not for the first time.
    pub fn sent(&mut self, start: u32, end: u32, at_ns: i64, resent: bool) {
        self.set(start, end, at_ns, State::InFlight { resent });
    }

    /// At `at_ns` the sender went on at `end`, and the bytes from `start` on had not come to the card.
    pub fn never_left(&mut self, start: u32, end: u32, at_ns: i64) {
        self.set(start, end, at_ns, State::NeverLeft { lost: false });
    }

    /// The receiver has acknowledged these bytes at `now_ns`, by number or SACK. Where they were sent again less than `least_ns` ago, the ACK is for the first transmission (RFC 8985, section 6.2).
    pub fn delivered(&mut self, start: u32, end: u32, now_ns: i64, least_ns: i64) -> Delivered {
        let mut delivered = Delivered::default();
        for (from, range) in self.take(start, end) {
            match range.state {
                State::InFlight { resent: true } if now_ns - range.at_ns < least_ns => {}
                State::InFlight { .. } => {
                    delivered.sent_ns = delivered.sent_ns.max(Some(range.at_ns));
                }
                State::NeverLeft { .. } => delivered.impossible += u64::from(range.end - from),
                State::Lost => {}
            }
        }
        delivered
    }

    /// Returns the bytes of a range that never came to the card.
    pub fn unseen(&self, start: u32, end: u32) -> u64 {
        let before = self.ranges.range(..start).next_back().into_iter();
        let unseen = before.chain(self.ranges.range(start..end)).filter_map(|(from, range)| {
            let len = range.end.min(end).saturating_sub(start.max(*from));
            matches!(range.state, State::NeverLeft { .. }).then_some(u64::from(len))
        });
        unseen.sum()
    }

    /// Everything is believed to be lost, as at a timeout.
    pub fn lose_all(&mut self) {
        self.ranges.values_mut().for_each(|range| range.state = range.state.lost());
    }

    /// What was sent only once, or was believed to be, and lies below `end` is believed to be lost.
    pub fn lose_below(&mut self, end: u32) {
        self.split(end);
        for (_, range) in self.ranges.range_mut(..end) {
            if range.state != (State::InFlight { resent: true }) {
                range.state = range.state.lost();
            }
        }
    }

    /// What was sent before `at_ns` is believed to be lost.
    pub fn lose_sent_before(&mut self, at_ns: i64) {
        for range in self.ranges.values_mut().filter(|range| range.at_ns < at_ns) {
            range.state = range.state.lost();
        }
    }

    /// Returns `true` if the sender believes that the byte at `number` is on its way.
    pub fn is_believed_in_flight(&self, number: u32) -> bool {
        let range = self.ranges.range(..=number).next_back();
        range.is_some_and(|(_, range)| number < range.end && range.state != range.state.lost())
    }

    /// Returns the bytes that have left and are believed to be on their way.
    pub fn in_flight(&self) -> u64 {
        let flying = |range: &Range| matches!(range.state, State::InFlight { .. });
        let flying = self.ranges.iter().filter(|(_, range)| flying(range));
        flying.map(|(start, range)| u64::from(range.end - start)).sum()
    }

    fn set(&mut self, start: u32, end: u32, at_ns: i64, state: State) {
        if start < end {
            self.take(start, end);
            self.ranges.insert(start, Range { end, state, at_ns });
        }
    }

    fn take(&mut self, start: u32, end: u32) -> Vec<(u32, Range)> {
        self.split(start);
        self.split(end);
        let inside: Vec<u32> = self.ranges.range(start..end).map(|(start, _)| *start).collect();
        inside.into_iter().filter_map(|start| self.ranges.remove_entry(&start)).collect()
    }

    /// Makes `number` the border between two ranges, if it is inside one.
    fn split(&mut self, number: u32) {
        let Some((_, range)) = self.ranges.range_mut(..number).next_back() else { return };
        if range.end > number {
            let above = *range;
            range.end = number;
            self.ranges.insert(number, above);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of bytes that left.
    fn known(sent_ns: i64) -> Delivered {
        Delivered { sent_ns: Some(sent_ns), impossible: 0 }
    }

    #[test]
    fn what_the_receiver_has_is_not_in_flight() {
        let mut board = Scoreboard::default();
        board.sent(0, 100, 1, false);
        board.sent(100, 200, 2, false);
        assert_eq!(board.in_flight(), 200);
        assert_eq!(board.delivered(0, 50, 9, 1), known(1));
        assert_eq!(board.delivered(120, 150, 9, 1), known(2));
        assert_eq!(board.in_flight(), 120);
        for number in [50, 119, 150] {
            assert!(board.is_believed_in_flight(number), "{number}");
        }
        for number in [49, 120, 200] {
            assert!(!board.is_believed_in_flight(number), "{number}");
        }
        assert_eq!(board.delivered(0, 1000, 9, 1), known(2));
        assert_eq!(board.in_flight(), 0);
    }

    #[test]
    fn what_is_lost_flies_again_when_it_is_sent_again() {
        let mut board = Scoreboard::default();
        board.sent(0, 300, 1, false);
        board.delivered(250, 300, 9, 1);
        board.lose_below(200);
        assert_eq!(board.in_flight(), 50);
        assert!(!board.is_believed_in_flight(0) && board.is_believed_in_flight(200));
        board.sent(0, 100, 2, true);
        assert_eq!(board.in_flight(), 150);
        board.lose_below(200);
        assert_eq!(board.in_flight(), 150, "what was sent again is not lost for the same reason");
        board.lose_all();
        assert_eq!(board.in_flight(), 0);
        board.sent(0, 10, 3, true);
        assert_eq!(board.in_flight(), 10);
    }

    #[test]
    fn what_was_sent_before_something_delivered_is_lost() {
        let mut board = Scoreboard::default();
        board.sent(0, 100, 10, false);
        board.sent(100, 200, 20, false);
        board.sent(0, 50, 30, true);
        board.lose_sent_before(20);
        assert_eq!(board.in_flight(), 150, "50 of the first");
        // Too early to be of the repetition.
        assert_eq!(board.delivered(0, 50, 35, 10), Delivered::default());
        board.sent(100, 200, 40, true);
        assert_eq!(board.delivered(100, 200, 50, 10), known(40));
    }

    #[test]
    fn what_never_left_is_believed_in_flight_and_is_not() {
        let mut board = Scoreboard::default();
        board.sent(0, 100, 1, false);
        board.never_left(100, 300, 2);
        board.sent(300, 400, 3, false);
        assert!(board.is_believed_in_flight(100) && board.is_believed_in_flight(299));
        assert_eq!(
            (board.in_flight(), board.unseen(50, 250), board.unseen(0, 900)),
            (200, 150, 200)
        );
        board.lose_below(200);
        assert!(!board.is_believed_in_flight(150) && board.is_believed_in_flight(200));
        assert_eq!(board.unseen(0, 900), 200, "it has not left by being lost");
        board.sent(200, 250, 4, true);
        assert_eq!((board.in_flight(), board.unseen(0, 900)), (150, 150));
        board.lose_all();
        assert!(!board.is_believed_in_flight(260));
        let delivered = board.delivered(0, 400, 9, 1);
        assert_eq!(delivered, Delivered { sent_ns: None, impossible: 150 });
        assert_eq!(board.in_flight(), 0);
    }
}
