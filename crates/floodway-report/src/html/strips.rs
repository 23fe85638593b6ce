//! Samples one by one: a strip for value and baseline, in the order of measuring from top to bottom, so that drift over a run shows.

use maud::{Markup, html};

use super::figures::sides;
use crate::headlines::headlines;
use crate::report::{Drawn, Report, Row, Samples};
use crate::stats;
use crate::table::number;

const WIDTH: f64 = 340.0;
const STRIP: f64 = 30.0;
const EDGE: f64 = 8.0;
/// Strips of a page, at most; the rest is in `samples.json`.
const MOST: usize = 60;
/// Points of a strip, at most.
const MOST_POINTS: usize = 200;

/// The strips of rows that answer the question or are judged, folded away.
pub fn section(report: &Report, samples: &[Samples]) -> Markup {
    let named = headlines(report);
    let is_named =
        |row: &&Row| row.verdict.is_some() || named.iter().any(|one| one.name == row.name);
    let judged: Vec<_> = report.rows.iter().filter(is_named).collect();
    let counts = |samples: &&Samples| {
        let plain = samples
            .bar
            .as_ref()
            .is_none_or(|bar| !matches!(bar.drawn, Drawn::OverTime | Drawn::Distribution));
        plain
            && samples.value.len() > 2
            && judged.iter().any(|row| row.name.starts_with(&samples.name))
    };
    let shown: Vec<_> = samples.iter().filter(counts).collect();
    html! {
        @if !shown.is_empty() {
            details {
                summary { "Samples (" (shown.len()) ")" }
                p.soft { "Each dot is one round, the first at the top of its strip; the line is the median." }
                div.strips { @for samples in shown.iter().take(MOST) { (strip(samples)) } }
                @if shown.len() > MOST { p.soft { (shown.len() - MOST) " more are in samples.json." } }
            }
        }
    }
}

fn strip(samples: &Samples) -> Markup {
    let sides = sides(samples);
    let all = || sides.iter().flat_map(|(_, values)| values.iter().copied());
    let (low, high) =
        (all().fold(f64::INFINITY, f64::min), all().fold(f64::NEG_INFINITY, f64::max));
    let x = |value: f64| match high > low {
        true => EDGE + (value - low) / (high - low) * (WIDTH - 2.0 * EDGE),
        false => WIDTH / 2.0,
    };
    let height = STRIP * sides.len() as f64;
    html! {
        figure {
            figcaption { (samples.name) }
            svg.plot viewBox=(format!("0 0 {WIDTH:.0} {:.0}", height + 16.0)) width=(WIDTH) role="img" aria-label=(samples.name) {
                @for (n, (name, values)) in sides.iter().enumerate() {
                    @let top = STRIP * n as f64;
                    g {
                        title { (tip(name, values, &samples.unit)) }
                        path class={ "samples s" (n) } d=(dots(values, top, x)) {}
                        @if let Some(median) = stats::median(values) {
                            line class={ "median s" (n) } x1=(px(x(median))) x2=(px(x(median))) y1=(px(top)) y2=(px(top + STRIP)) {}
                        }
                    }
                }
                text x="0" y=(px(height + 13.0)) { (number(low)) }
                text x=(WIDTH) y=(px(height + 13.0)) text-anchor="end" { (number(high)) " " (samples.unit) }
            }
        }
    }
}

/// Lines of no length with round ends: one element for all dots.
fn dots(values: &[f64], top: f64, x: impl Fn(f64) -> f64) -> String {
    let step = values.len().div_ceil(MOST_POINTS).max(1);
    let last = values.len().max(2) as f64 - 1.0;
    let at = |(n, value): (usize, &f64)| {
        let y = top + 3.0 + n as f64 / last * (STRIP - 6.0);
        format!("M{} {}h0", px(x(*value)), px(y))
    };
    values.iter().enumerate().step_by(step).map(at).collect()
}

fn tip(name: &str, values: &[f64], unit: &str) -> String {
    let at = |q: f64| stats::quantile(values, q).map_or_else(String::new, number);
    let (low, median, high) = (at(0.1), at(0.5), at(0.9));
    format!("{name}: {} samples, median {median}, p10 {low}, p90 {high} {unit}", values.len())
}

fn px(length: f64) -> String {
    format!("{length:.1}")
}
