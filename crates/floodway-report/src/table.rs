//! A report as a table for people.

use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{Cell, CellAlignment, Color, ContentArrangement, Table};

use crate::headlines::headlines;
use crate::report::{Report, Row, Verdict};
use crate::stats::Interval;

const HEADER: [&str; 8] =
    ["figure", "unit", "Floodway", "without", "ratio", "95 %", "accepted", "verdict"];

/// The rows of a report, one line each: all, or those that answer its question and those that did not reach their band, with a line that says what is left out.
/// Colours only when standard output is a terminal.
#[must_use]
pub fn render(report: &Report, all: bool) -> String {
    let rows = if all { report.rows.iter().collect() } else { chosen(report) };
    let mut table = Table::new();
    table.load_style(UTF8_FULL_CONDENSED);
    table.set_content_arrangement(ContentArrangement::Dynamic);
    table.set_header(HEADER);
    for row in &rows {
        table.add_row(cells(row));
    }
    for column in table.column_iter_mut().skip(2).take(4) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    let left_out = report.rows.len() - rows.len();
    match left_out {
        0 => table.to_string(),
        _ => format!("{table}\n{left_out} other figures, none of them outside of its band: --all"),
    }
}

fn chosen(report: &Report) -> Vec<&Row> {
    let mut rows = headlines(report);
    for row in report.below_target() {
        if !rows.iter().any(|known| known.name == row.name) {
            rows.push(row);
        }
    }
    rows
}

fn cells(row: &Row) -> [Cell; 8] {
    [
        Cell::new(&row.name),
        Cell::new(&row.unit),
        Cell::new(optional(row.value)),
        Cell::new(optional(row.baseline)),
        Cell::new(optional(row.ratio)),
        Cell::new(interval(row)),
        Cell::new(band(row)),
        match row.verdict {
            Some(verdict @ Verdict::Ok) => Cell::new(verdict.name()).fg(Color::Green),
            Some(verdict @ Verdict::BelowTarget) => Cell::new(verdict.name()).fg(Color::Red),
            Some(verdict @ Verdict::Undecided) => Cell::new(verdict.name()).fg(Color::Yellow),
            None => Cell::new(""),
        },
    ]
}

/// The 95 % interval of the headline; empty if there is none.
#[must_use]
pub fn interval(row: &Row) -> String {
    row.interval.map_or_else(String::new, span)
}

/// From where to where.
#[must_use]
pub fn span(interval: Interval) -> String {
    format!("{} to {}", number(interval.low), number(interval.high))
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
    use crate::about::About;
    use crate::band::Band;

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
        row.judge_by(&Band { low: Some(1.0), ..Band::default() });
        assert_eq!(band(&row), "≥ 1x");
        let report = Report {
            experiment: "t".into(),
            world: crate::report::World::Real,
            seed: 1,
            host: Default::default(),
            rows: vec![row, Row::value("cpu", "%", None)],
            notes: Vec::new(),
            about: About::default(),
        };
        let text = render(&report, true);
        assert!(text.contains("below target") && text.contains("0.90"), "{text}");
        let cpu = text.lines().find(|line| line.contains("cpu")).unwrap();
        assert_eq!(cpu.matches('-').count(), 3, "{cpu}");
    }

    #[test]
    fn a_short_table_has_headlines_and_what_is_below_target() {
        let judged = |name: &str, value: f64| {
            let mut row = Row::value(name, "x", Some(value));
            row.judge_by(&Band { low: Some(1.0), ..Band::default() });
            row
        };
        let report = Report {
            experiment: "t".into(),
            world: crate::report::World::Real,
            seed: 1,
            host: Default::default(),
            rows: vec![judged("fine", 2.0), judged("bad", 0.5), judged("asked", 2.0)],
            notes: Vec::new(),
            about: About { headline: vec!["asked".into()], ..About::default() },
        };
        let text = render(&report, false);
        assert!(text.contains("asked") && text.contains("bad") && !text.contains("fine"), "{text}");
        assert!(
            text.ends_with("1 other figures, none of them outside of its band: --all"),
            "{text}"
        );
        assert!(render(&report, true).contains("fine"));
    }
}
