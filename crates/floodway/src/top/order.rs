//! Which rows are shown, and in which order.

use std::cmp::Ordering;

use floodway_switch::api::status::PortState;

use super::model::Row;
pub use crate::cli::Key;

impl Key {
    /// The number of `row` that it is about; the name has none.
    #[must_use]
    pub fn value(self, row: &Row) -> Option<f64> {
        match self {
            Self::Name => None,
            Self::Rate => row.bps(),
            Self::Tx => row.tx_bps,
            Self::Rx => row.rx_bps,
            Self::TxFrames => row.tx_pps,
            Self::RxFrames => row.rx_pps,
            Self::Stored => Some(row.stored_bytes as f64),
            Self::Kept => Some(row.kept_bytes as f64),
            Self::Repairs => row.repairs_per_s,
            Self::Delay => row.delay_s,
            Self::Drops => row.drops_per_s,
            Self::Work => Some(row.work_share),
            Self::Wait => row.vcpu_wait,
            Self::Saved => row.saved_per_s,
        }
    }
}

/// How rows are sorted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Order {
    /// By what.
    pub key: Key,
    /// The smallest first; for names, the last first.
    pub reversed: bool,
}

impl Order {
    /// Which of two rows comes first. Rows without a value come last either way.
    fn compare(self, a: &Row, b: &Row) -> Ordering {
        let turn = |order: Ordering| if self.reversed { order.reverse() } else { order };
        if self.key == Key::Name {
            return turn(by_number(&a.name, &b.name));
        }
        match (self.key.value(a), self.key.value(b)) {
            (Some(a), Some(b)) => turn(b.total_cmp(&a)),
            (a, b) => b.is_some().cmp(&a.is_some()),
        }
    }

    /// The rows that `filter` lets through. Rows that are equal stay in the order of the configuration.
    #[must_use]
    pub fn of<'a>(self, rows: &'a [Row], filter: &str) -> Vec<&'a Row> {
        let words: Vec<String> = filter.split_whitespace().map(str::to_lowercase).collect();
        let mut rows: Vec<&Row> = rows.iter().filter(|row| is_let_through(row, &words)).collect();
        rows.sort_by(|a, b| self.compare(a, b));
        rows
    }
}

/// Every word is part of the port's name, or the start of its state.
fn is_let_through(row: &Row, words: &[String]) -> bool {
    if words.is_empty() {
        return true;
    }
    let name = row.name.to_lowercase();
    words.iter().all(|word| name.contains(&**word) || state(row).starts_with(&**word))
}

/// Where a port is in its life, in one word.
#[must_use]
pub fn state(row: &Row) -> &'static str {
    match row.state {
        PortState::Down if row.quarantined => "quarantined",
        state => state.name(),
    }
}

/// Compares names so that vm2 comes before vm10.
fn by_number(a: &str, b: &str) -> Ordering {
    let (mut a, mut b) = (a, b);
    while !a.is_empty() && !b.is_empty() {
        let (first, second) = (part(&mut a), part(&mut b));
        let numbers = first.parse::<u64>().ok().zip(second.parse::<u64>().ok());
        let order = numbers.map_or(Ordering::Equal, |(a, b)| a.cmp(&b));
        // The same number written otherwise, a text, or a number beyond 64 bits.
        let order =
            order.then_with(|| if numbers.is_some() { Ordering::Equal } else { first.cmp(second) });
        if order.is_ne() {
            return order;
        }
    }
    a.len().cmp(&b.len())
}

/// Takes the digits, or what is before the next digit, off the start of a text.
fn part<'a>(text: &mut &'a str) -> &'a str {
    let is_number = text.starts_with(|c: char| c.is_ascii_digit());
    let end = text.find(|c: char| c.is_ascii_digit() != is_number).unwrap_or(text.len());
    let (part, rest) = text.split_at(end);
    *text = rest;
    part
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(name: &str, tx_bps: Option<f64>) -> Row {
        Row { name: name.to_owned(), tx_bps, ..Row::default() }
    }

    fn names(rows: &[&Row]) -> Vec<String> {
        rows.iter().map(|row| row.name.clone()).collect()
    }

    #[test]
    fn rows_without_a_value_are_last_and_equal_ones_stay_as_configured() {
        let rows = [row("b", None), row("c", Some(1.0)), row("a", Some(1.0)), row("d", Some(2.0))];
        let order = Order { key: Key::Tx, reversed: false };
        assert_eq!(names(&order.of(&rows, "")), ["d", "c", "a", "b"]);
        let order = Order { key: Key::Tx, reversed: true };
        assert_eq!(names(&order.of(&rows, "")), ["c", "a", "d", "b"]);
    }

    #[test]
    fn numbers_in_names_count_as_numbers() {
        let rows = ["vm10", "vm2", "vm2b", "web", "vm02", "9"].map(|name| row(name, None));
        let order = Order { key: Key::Name, reversed: false };
        assert_eq!(names(&order.of(&rows, "")), ["9", "vm2", "vm02", "vm2b", "vm10", "web"]);
        let order = Order { key: Key::Name, reversed: true };
        assert_eq!(names(&order.of(&rows, ""))[0], "web");
    }

    #[test]
    fn all_words_of_a_filter_have_to_fit() {
        let mut rows = [row("Web-1", None), row("web-2", None), row("db-1", None)];
        rows[1].state = PortState::Running;
        rows[2].quarantined = true;
        let shown = |filter: &str| names(&Order::default().of(&rows, filter));
        assert_eq!(shown("web"), ["Web-1", "web-2"]);
        assert_eq!(shown("WEB run"), ["web-2"]);
        assert_eq!(shown("quar"), ["db-1"]);
        assert_eq!(shown("-1 web"), ["Web-1"]);
        assert_eq!(shown("  ").len(), 3);
    }
}
