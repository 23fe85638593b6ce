//! What a sender believes of the bytes that it has sent and that are not acknowledged.

use std::collections::BTreeMap;

/// Belief about a range of bytes. What the receiver is known to have is in no range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// On its way; `resent` when not for the first time.
    InFlight { resent: bool },
    /// The sender believes that it is on its way, but the card never had it.
    NeverLeft,
    /// Lost, and not sent again so far.
    Lost,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Range {
    end: u32,
    state: State,
}

/// Disjoint ranges of sequence numbers by their first.
#[derive(Clone, Debug, Default)]
pub struct Scoreboard {
    ranges: BTreeMap<u32, Range>,
}

impl Scoreboard {
    /// Bytes from `start` to before `end` were sent, `resent` when not for the first time.
    pub fn sent(&mut self, start: u32, end: u32, resent: bool) {
        if start < end {
            self.set(start, end, State::InFlight { resent });
        }
    }

    /// The sender went on at `end`, and the bytes from `start` on never came to the card.
    pub fn never_left(&mut self, start: u32, end: u32) {
        if start < end {
            self.set(start, end, State::NeverLeft);
        }
    }

    /// The receiver has these bytes.
    pub fn remove(&mut self, start: u32, end: u32) {
        self.split(start);
        self.split(end);
        let inside: Vec<u32> = self.ranges.range(start..end).map(|(start, _)| *start).collect();
        for start in inside {
            self.ranges.remove(&start);
        }
    }

    /// Everything is believed to be lost, as at a timeout.
    pub fn lose_all(&mut self) {
        self.ranges.values_mut().for_each(|range| range.state = State::Lost);
    }

    /// What was sent only once, or was believed to be, and lies below `end` is believed to be lost.
    pub fn lose_below(&mut self, end: u32) {
        self.split(end);
        for (_, range) in self.ranges.range_mut(..end) {
            if matches!(range.state, State::InFlight { resent: false } | State::NeverLeft) {
                range.state = State::Lost;
            }
        }
    }

    /// Returns `true` if the sender believes that the byte at `number` is on its way.
    pub fn is_believed_in_flight(&self, number: u32) -> bool {
        let range = self.ranges.range(..=number).next_back();
        range.is_some_and(|(_, range)| number < range.end && range.state != State::Lost)
    }

    /// Returns the bytes that left and are believed to be on their way.
    pub fn in_flight(&self) -> u64 {
        let flying = |range: &Range| matches!(range.state, State::InFlight { .. });
        let flying = self.ranges.iter().filter(|(_, range)| flying(range));
        flying.map(|(start, range)| u64::from(range.end - start)).sum()
    }

    fn set(&mut self, start: u32, end: u32, state: State) {
        self.remove(start, end);
        self.ranges.insert(start, Range { end, state });
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

    #[test]
    fn what_the_receiver_has_is_not_in_flight() {
        let mut board = Scoreboard::default();
        board.sent(0, 100, false);
        board.sent(100, 200, false);
        assert_eq!(board.in_flight(), 200);
        board.remove(0, 50);
        board.remove(120, 150);
        assert_eq!(board.in_flight(), 120);
        assert!(
            board.is_believed_in_flight(50)
                && board.is_believed_in_flight(119)
                && board.is_believed_in_flight(150)
        );
        assert!(
            !board.is_believed_in_flight(49)
                && !board.is_believed_in_flight(120)
                && !board.is_believed_in_flight(200)
        );
        board.remove(0, 1000);
        assert_eq!(board.in_flight(), 0);
    }

    #[test]
    fn what_is_lost_flies_again_when_it_is_sent_again() {
        let mut board = Scoreboard::default();
        board.sent(0, 300, false);
        board.remove(250, 300);
        board.lose_below(200);
        assert_eq!(board.in_flight(), 50);
        assert!(!board.is_believed_in_flight(0) && board.is_believed_in_flight(200));
        board.sent(0, 100, true);
        assert_eq!(board.in_flight(), 150);
        board.lose_below(200);
        assert_eq!(board.in_flight(), 150, "what was sent again is not lost for the same reason");
        board.lose_all();
        assert_eq!(board.in_flight(), 0);
        board.sent(0, 10, true);
        assert_eq!(board.in_flight(), 10);
    }

    #[test]
    fn what_never_left_is_believed_in_flight_and_is_not() {
        let mut board = Scoreboard::default();
        board.sent(0, 100, false);
        board.never_left(100, 300);
        board.sent(300, 400, false);
        assert!(board.is_believed_in_flight(100) && board.is_believed_in_flight(299));
        assert_eq!(board.in_flight(), 200);
        board.lose_below(200);
        assert!(!board.is_believed_in_flight(150) && board.is_believed_in_flight(200));
        board.sent(200, 250, true);
        assert_eq!(board.in_flight(), 150, "it has left now");
        board.lose_all();
        assert!(!board.is_believed_in_flight(260));
        board.remove(0, 400);
        assert_eq!(board.in_flight(), 0);
    }
}
