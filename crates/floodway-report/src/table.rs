//! A report as a table for people.

use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{Cell, CellAlignment, Color, ContentArrangement, Table};

use crate::report::{Report, Row, Verdict};

const HEADER: [&str; 7] = ["figure", "unit", "Floodway", "without", "ratio", "accepted", "verdict"];

/// The rows of a report, one line each. Colours only when standard output is a terminal.
#[must_use]
pub fn render(report: &Report) -> String {
    let mut table = Table::new();
    table.load_style(UTF8_FULL_CONDENSED);
    table.set_content_arrangement(ContentArrangement::Dynamic);
    table.set_header(HEADER);
    for row in &report.rows {
        table.add_row(cells(row));
    }
    for column in table.column_iter_mut().skip(2).take(3) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.to_string()
}

fn cells(row: &Row) -> [Cell; 7] {
    [
        Cell::new(&row.name),
        Cell::new(&row.unit),
        Cell::new(optional(row.value)),
        Cell::new(optional(row.baseline)),
        Cell::new(optional(row.ratio)),
        Cell::new(band(row)),
        match row.verdict {
            Some(Verdict::Ok) => Cell::new("ok").fg(Color::Green),
            Some(Verdict::BelowTarget) => Cell::new("SHORT").fg(Color::Red),
            None => Cell::new(""),
        },
    ]
}

/// The accepted band, and what it speaks of: `x` marks a ratio.
#[must_use]
pub fn band(row: &Row) -> String {
    let mark = if row.baseline.is_some() { "x" } else { "" };
    let show = |figure| format!("{}{mark}", number(figure));
    match (row.low, row.high) {
        (None, None) => String::new(),
        (Some(low), None) => format!("≥ {}", show(low)),
        (None, Some(high)) => format!("≤ {}", show(high)),
        (Some(low), Some(high)) => format!("{} to {}", show(low), show(high)),
    }
}

fn optional(figure: Option<f64>) -> String {
    figure.map_or_else(|| "-".into(), number)
}

/// Three significant digits or more, and no exponent in the range that people read.
#[must_use]
pub fn number(figure: f64) -> String {
    let size = figure.abs();
    if size >= 100.0 || figure.fract() == 0.0 {
        format!("{figure:.0}")
    } else if size >= 10.0 {
        format!("{figure:.1}")
    } else if size >= 0.01 {
        format!("{figure:.2}")
    } else {
        format!("{figure:.1e}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        for (figure, text) in [
            (0.0, "0"),
            (3.0, "3"),
            (1234.56, "1235"),
            (12.34, "12.3"),
            (0.987, "0.99"),
            (-2.5, "-2.50"),
            (0.00012, "1.2e-4"),
        ] {
            assert_eq!(number(figure), text);
        }
    }

    #[test]
    fn a_row_shows_its_band_and_verdict() {
        let mut row = Row::comparison("vm-to-vm", "Mbit/s", Some(900.0), Some(1000.0));
        row.judge(Some(1.0), None, None);
        assert_eq!(band(&row), "≥ 1x");
        let report = Report {
            experiment: "t".into(),
            world: crate::report::World::Real,
            seed: 1,
            host: Default::default(),
            rows: vec![row, Row::value("cpu", "%", None)],
            notes: Vec::new(),
        };
        let text = render(&report);
        assert!(text.contains("SHORT") && text.contains("0.90"), "{text}");
        let cpu = text.lines().find(|line| line.contains("cpu")).unwrap();
        assert_eq!(cpu.matches('-').count(), 3, "{cpu}");
    }
}
