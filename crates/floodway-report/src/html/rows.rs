//! Rows of a report as tables: those that answer the question and those with a verdict, and the rest folded away.

use maud::{Markup, html};

use crate::headlines::headlines;
use crate::report::{Report, Row, Verdict};
use crate::table;

/// All rows, in the order of how much they say.
pub fn sections(report: &Report) -> Markup {
    let first = headlines(report);
    let is_first = |row: &Row| first.iter().any(|known| known.name == row.name);
    let rest = || report.rows.iter().filter(|row| !is_first(row));
    let judged = rest().filter(|row| row.verdict.is_some() && !row.is_swept());
    let first: Vec<_> = first.iter().copied().chain(judged).collect();
    let rest = || rest().filter(|row| row.verdict.is_none() || row.is_swept());
    let others: Vec<_> = rest().filter(|row| !row.is_swept() && !row.is_zero()).collect();
    let swept: Vec<_> = rest().filter(|row| row.is_swept() && !row.is_zero()).collect();
    let zero: Vec<_> = rest().filter(|row| row.is_zero()).collect();
    html! {
        h2 { "Figures and verdicts" }
        (table(&first))
        (folded("Other figures", &others))
        (folded("With one parameter changed", &swept))
        @if !zero.is_empty() {
            details {
                summary { "Counters that are zero (" (zero.len()) ")" }
                p { @for (n, row) in zero.iter().enumerate() { @if n > 0 { ", " } (row.name) } }
            }
        }
    }
}

fn folded(title: &str, rows: &[&Row]) -> Markup {
    html! { @if !rows.is_empty() { details { summary { (title) " (" (rows.len()) ")" } (table(rows)) } } }
}

fn table(rows: &[&Row]) -> Markup {
    let number = |figure: Option<f64>| figure.map_or_else(String::new, table::number);
    html! {
        div.scroll {
            table {
                thead { tr {
                    th { "figure" }
                    th { "verdict" }
                    @for title in ["Floodway", "without"] { th.n { (title) } }
                    th { "unit" }
                    @for title in ["ratio", "95 %", "paper"] { th.n { (title) } }
                    th { "accepted" }
                } }
                tbody { @for row in rows { tr {
                    td { (row.name) }
                    td { (verdict(row.verdict)) }
                    @for figure in [row.value, row.baseline] { td.n { (number(figure)) } }
                    td { (row.unit) }
                    td.n { (number(row.ratio)) }
                    td.n { (table::interval(row)) }
                    td.n { (number(row.paper)) }
                    td { (table::band(row)) }
                } } }
            }
        }
    }
}

/// A verdict in its colour.
pub fn verdict(verdict: Option<Verdict>) -> Markup {
    let class = match verdict {
        Some(Verdict::Ok) => "tag ok",
        Some(Verdict::BelowTarget) => "tag below",
        Some(Verdict::Undecided) => "tag undecided",
        None => return html! {},
    };
    html! { span class=(class) { (verdict.map_or("", Verdict::name)) } }
}
