//! The page of help: keys, and what columns mean.

use ratatui::style::Style;

use super::canvas::Canvas;
use super::columns::COLUMNS;

const KEYS: [(&str, &str); 7] = [
    ("arrows, PgUp, PgDn, Home, End", "select a port"),
    ("< >", "sort by the column to the left, to the right"),
    ("n b d l c w", "sort by name, bit/s, drops, delay, work, vCPU wait"),
    ("r", "the other way round"),
    ("/", "show ports whose name or state has these words; Esc shows all"),
    ("Enter", "show or hide the selected port"),
    ("p + - q", "pause, look more often, less often, quit"),
];

/// Draws it.
pub fn draw(canvas: &mut Canvas<'_>) {
    let strong = canvas.look.strong();
    for (key, meaning) in KEYS {
        row(canvas, key, meaning, strong);
    }
    canvas.next_line();
    for column in COLUMNS {
        row(canvas, column.title, column.help, strong);
    }
}

fn row(canvas: &mut Canvas<'_>, name: &str, meaning: &str, strong: Style) {
    let indent = if name.len() > 12 { name.len() + 2 } else { 13 };
    canvas.put(0, name, strong);
    canvas.put(indent, meaning, Style::new());
    canvas.next_line();
}
