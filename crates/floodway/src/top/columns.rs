//! The columns of the table: what they are called, how wide they are, and which are left out where there is no room.

use super::model::Row;
use super::order::Key;
use super::units::{binary, decimal, delay, percent};

/// A column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Column {
    /// What it shows, and what sorting by it sorts by.
    pub key: Key,
    /// What it is called.
    pub title: &'static str,
    /// Characters.
    pub width: usize,
    /// The larger, the earlier it is left out.
    rank: u8,
    /// What it means, for the page of help.
    pub help: &'static str,
}

/// Least and most characters of a name.
const NAME: (usize, usize) = (14, 24);
/// Least and most characters of a minute.
const MINUTE: (usize, usize) = (7, 30);

const fn column(
    key: Key,
    title: &'static str,
    width: usize,
    rank: u8,
    help: &'static str,
) -> Column {
    Column { key, title, width, rank, help }
}

/// All columns.
pub const COLUMNS: [Column; 14] = [
    column(Key::Name, "PORT", NAME.0, 0, "- down, ~ connected, ! quarantined"),
    column(Key::Tx, "TX", 5, 1, "bit/s from the guest"),
    column(Key::Rx, "RX", 5, 1, "bit/s to the guest"),
    column(Key::TxFrames, "TX F/S", 6, 12, "frames/s from the guest"),
    column(Key::RxFrames, "RX F/S", 6, 12, "frames/s to the guest"),
    column(Key::Stored, "STORED", 6, 7, "bytes of frames held, retained, kept by the offload"),
    column(Key::Kept, "KEPT", 4, 10, "bytes acknowledged for the guest, not yet by it"),
    column(Key::Repairs, "REPAIRS", 7, 5, "ranges/s sent again in the guest's place"),
    column(Key::Delay, "DELAY", 5, 3, "wait for the guest's buffers"),
    column(Key::Drops, "DROPS", 5, 2, "frames/s dropped, both ways"),
    column(Key::Work, "WORK", 5, 4, "share of its worker's work"),
    column(Key::Wait, "WAIT", 5, 6, "vCPUs that wait for a CPU; 100% is one all the time"),
    column(Key::Saved, "SAVED", 5, 8, "frames/s that the offload spares the guest"),
    column(
        Key::Rate,
        "MINUTE",
        MINUTE.0,
        9,
        "bit/s, both ways; the highest bar is the port's peak",
    ),
];

/// The columns that fit into `width` characters, with one between each two, widened to fill it.
#[must_use]
pub fn fit(width: usize) -> Vec<Column> {
    let mut columns = COLUMNS.to_vec();
    while taken(&columns) > width && columns.len() > 1 {
        let last = columns.iter().map(|column| column.rank).max();
        let place = columns.iter().rposition(|column| Some(column.rank) == last).unwrap_or(0);
        columns.remove(place);
    }
    let mut free = width.saturating_sub(taken(&columns));
    for (key, most) in [(Key::Name, NAME.1), (Key::Rate, MINUTE.1)] {
        if let Some(column) = columns.iter_mut().find(|column| column.key == key) {
            let more = (most - column.width).min(free);
            column.width += more;
            free -= more;
        }
    }
    columns
}

fn taken(columns: &[Column]) -> usize {
    columns.iter().map(|column| column.width + 1).sum::<usize>() - 1
}

/// The number of `row` that column `key` shows; "-" where there is none. Names and the minute are no numbers.
#[must_use]
pub fn number(key: Key, row: &Row) -> String {
    let format = match key {
        Key::Stored | Key::Kept => binary,
        Key::Delay => delay,
        Key::Work | Key::Wait => percent,
        _ => decimal,
    };
    key.value(row).map_or_else(|| "-".to_owned(), format)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::top::app::KEYS;

    fn titles(width: usize) -> Vec<&'static str> {
        fit(width).iter().map(|column| column.title).collect()
    }

    #[test]
    fn all_figures_but_frames_and_a_part_of_what_is_stored_fit_into_eighty_characters() {
        let missing = |width| {
            let titles = titles(width);
            let all = COLUMNS.iter().map(|column| column.title);
            all.filter(|title| !titles.contains(title)).collect::<Vec<_>>()
        };
        assert_eq!(missing(80), ["TX F/S", "RX F/S", "KEPT"]);
        assert_eq!(missing(120), [""; 0]);
    }

    #[test]
    fn no_width_is_exceeded_and_the_name_and_rates_go_last() {
        for width in NAME.0..300 {
            assert!(taken(&fit(width)) <= width, "{width}: {:?}", titles(width));
        }
        assert_eq!(titles(26), ["PORT", "TX", "RX"]);
        assert_eq!(titles(1), ["PORT"]);
    }

    #[test]
    fn sorting_knows_all_columns_in_their_order() {
        assert_eq!(COLUMNS.map(|column| column.key), KEYS);
        assert!(COLUMNS.iter().all(|column| column.title.len() <= column.width));
    }
}
