//! The answer to an experiment's question, and what it is worth.

use maud::{Markup, html};

use super::rows::verdict;
use crate::headlines::headlines;
use crate::report::{Report, Row, Verdict};
use crate::table;

/// The sentence that answers the question, and how the first figure stands to paper and band.
pub fn section(report: &Report) -> Markup {
    let Some(row) = row(report) else { return counts(report) };
    html! {
        p.answer { (sentence(report, row)) }
        p.soft {
            (row.name)
            @if let (Some(value), Some(baseline)) = (row.value, row.baseline) {
                ": " (table::number(value)) " against " (table::number(baseline)) " " (row.unit)
            }
            @if let Some(paper) = row.paper { " · paper: " (figure(row, paper)) }
            @let band = table::band(row);
            @if !band.is_empty() { " · accepted: " (band) }
            @if row.verdict.is_some() { " · " (verdict(row.verdict)) }
        }
        (counts(report))
    }
}

/// The sentence that answers the question; none if the experiment names no figure that does.
pub fn answer(report: &Report) -> Option<String> {
    row(report).map(|row| sentence(report, row))
}

/// The figure that answers the question.
fn row(report: &Report) -> Option<&Row> {
    headlines(report).first().copied().filter(|_| !report.about.headline.is_empty())
}

/// The template of the experiment with the figure in it.
pub fn sentence(report: &Report, row: &Row) -> String {
    let Some(headline) = row.headline() else { return format!("{}: not measured.", row.name) };
    let interval = row.interval.map_or_else(String::new, |interval| {
        format!(" (95 % {} to {})", table::number(interval.low), table::number(interval.high))
    });
    let shown = format!("{}{interval}", figure(row, headline));
    match report.about.answer.as_str() {
        "" => format!("{}: {shown}.", row.name),
        template => template.replacen("{}", &shown, 1),
    }
}

/// A headline with what it counts: a ratio says how many times the baseline it is.
fn figure(row: &Row, figure: f64) -> String {
    let number = table::number(figure);
    match (row.baseline.is_some(), row.unit.as_str()) {
        (true, _) => format!("{number} times"),
        (false, "x" | "") => number,
        (false, unit) => format!("{number} {unit}"),
    }
}

fn counts(report: &Report) -> Markup {
    let count = |wanted| report.rows.iter().filter(|row| row.verdict == Some(wanted)).count();
    let all = [Verdict::Ok, Verdict::BelowTarget, Verdict::Undecided].map(|v| (v, count(v)));
    let all: Vec<_> = all.into_iter().filter(|(_, n)| *n > 0).collect();
    html! {
        @if !all.is_empty() {
            p { "Verdicts: " @for (n, (wanted, count)) in all.iter().enumerate() { @if n > 0 { ", " } (count) " " (verdict(Some(*wanted))) } "." }
        }
    }
}

/// A text in which what stands between two back quotes is code.
pub fn with_code(text: &str) -> Markup {
    html! {
        @for (n, part) in text.split('`').enumerate() { @if n % 2 == 0 { (part) } @else { code { (part) } } }
    }
}

/// What the paper says, and what is judged.
pub fn context(report: &Report) -> Markup {
    let parts = [("The paper", &report.about.paper), ("Judged", &report.about.judged)];
    html! {
        div {
            @for (title, text) in parts.iter().filter(|(_, text)| !text.is_empty()) {
                div { h2 { (title) } p { (with_code(text)) } }
            }
        }
    }
}
