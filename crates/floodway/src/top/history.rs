//! The last minute of a figure, second by second.

use std::collections::VecDeque;

/// Seconds that are remembered.
pub const SECONDS: usize = 60;

/// A figure over the last [`SECONDS`]. Time is the switch's, in seconds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct History {
    /// The last second that has a value.
    last: u64,
    /// Values up to `last`, the oldest first; none for seconds of which nothing is known.
    values: VecDeque<Option<f64>>,
}

impl History {
    /// The figure was `value` from `from` to `to`. Of two values for one second the larger stays.
    pub fn note(&mut self, from: f64, to: f64, value: f64) {
        let (first, last) = (from as u64, to as u64);
        if self.values.is_empty() {
            self.last = first;
            self.values.push_back(None);
        }
        self.advance_to(last);
        // The second in which the time before ended belongs to both.
        let oldest = self.last + 1 - self.values.len() as u64;
        for second in first.max(oldest)..=last.min(self.last) {
            let place = &mut self.values[(second - oldest) as usize];
            *place = Some(place.map_or(value, |before| before.max(value)));
        }
    }

    /// The time is `now`; there is no value since the last one.
    pub fn skip_to(&mut self, now: f64) {
        if !self.values.is_empty() {
            self.advance_to(now as u64);
        }
    }

    fn advance_to(&mut self, last: u64) {
        let more = last.saturating_sub(self.last);
        for _ in 0..more.min(SECONDS as u64) {
            self.values.push_back(None);
        }
        self.last = self.last.max(last);
        self.values.drain(..self.values.len().saturating_sub(SECONDS));
    }

    /// The last minute in `cells` equal parts, the oldest first: of each the largest value, none if nothing is known of it.
    #[must_use]
    pub fn cells(&self, cells: usize) -> Vec<Option<f64>> {
        let missing = SECONDS - self.values.len();
        let at = |second: usize| self.values.get(second.checked_sub(missing)?).copied().flatten();
        let cell = |cell: usize| {
            let (from, to) = (cell * SECONDS / cells, (cell + 1) * SECONDS / cells);
            (from..to.max(from + 1)).filter_map(at).reduce(f64::max)
        };
        (0..cells).map(cell).collect()
    }

    /// The largest value of the last minute; none if nothing is known.
    #[must_use]
    pub fn peak(&self) -> Option<f64> {
        self.values.iter().copied().flatten().reduce(f64::max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The last values of a history that was told `notes`, newest last.
    fn last(notes: &[(f64, f64, f64)], n: usize) -> Vec<Option<f64>> {
        let mut history = History::default();
        notes.iter().for_each(|&(from, to, value)| history.note(from, to, value));
        history.cells(SECONDS).split_off(SECONDS - n)
    }

    #[test]
    fn a_value_stands_for_each_second_that_it_is_of() {
        let notes = [(10.5, 11.5, 1.0), (11.5, 14.5, 2.0)];
        let expected = [Some(1.0), Some(2.0), Some(2.0), Some(2.0), Some(2.0)];
        assert_eq!(last(&notes, 5), expected);
    }

    #[test]
    fn of_several_in_a_second_the_largest_stays() {
        let notes = [(3.1, 3.3, 5.0), (3.3, 3.5, 9.0), (3.5, 3.7, 1.0)];
        assert_eq!(last(&notes, 2), [None, Some(9.0)]);
    }

    #[test]
    fn a_minute_is_remembered_and_no_more() {
        let mut history = History::default();
        history.note(0.0, 1.0, 7.0);
        history.skip_to(59.0);
        assert_eq!(history.peak(), Some(7.0));
        history.skip_to(61.0);
        assert_eq!(history.peak(), None);
        history.note(1e9, 1e9 + 1.0, 3.0);
        assert_eq!(history.cells(SECONDS).iter().flatten().count(), 2);
    }

    #[test]
    fn narrow_lines_show_the_peaks() {
        let mut history = History::default();
        (0..60).for_each(|n| history.note(f64::from(n), f64::from(n) + 0.5, f64::from(n)));
        let expected = [9.0, 19.0, 29.0, 39.0, 49.0, 59.0].map(Some);
        assert_eq!(history.cells(6), expected);
        assert_eq!(history.cells(120).iter().flatten().count(), 120);
        assert_eq!(history.cells(0), []);
    }
}
