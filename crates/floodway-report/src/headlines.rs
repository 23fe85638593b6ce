//! The rows of a report that answer its question.

use crate::band;
use crate::report::{Report, Row};

/// The rows that answer a report's question, the first one first; those with a verdict, and if there are none all, where the experiment names none.
#[must_use]
pub fn headlines(report: &Report) -> Vec<&Row> {
    let named = report.about.headline.iter().flat_map(|pattern| {
        let fits = |row: &&Row| !row.is_swept() && band::matches(pattern, &row.name);
        report.rows.iter().filter(fits)
    });
    let mut rows: Vec<&Row> = Vec::new();
    for row in named {
        if !rows.iter().any(|known| known.name == row.name) {
            rows.push(row);
        }
    }
    if rows.is_empty() {
        rows.extend(report.rows.iter().filter(|row| row.verdict.is_some()));
    }
    if rows.is_empty() {
        rows.extend(&report.rows);
    }
    rows
}
