//! Bars, lines, points and what a paper says, each with its value for whoever points at it.

use maud::{Markup, html};

use super::layout::Layout;
use super::{COLOURS, Chart, Mark, Paper, Point, Series, px};
use crate::table::number;

/// Half the width of an error bar's end, and of a paper's diamond.
const CAP: f64 = 4.0;
/// Points of a distribution at most.
const MOST_STEPS: usize = 400;

/// What is in a chart.
pub fn all(chart: &Chart, layout: &Layout) -> Markup {
    let drawn = chart.series.iter().enumerate();
    html! {
        @for (n, series) in drawn { (one(chart, layout, series, n)) }
        @for paper in &chart.paper { (value_of_paper(chart, layout, paper)) }
    }
}

fn one(chart: &Chart, layout: &Layout, series: &Series, n: usize) -> Markup {
    let class = format!("s{}", n % COLOURS);
    match series.mark {
        Mark::Bars => {
            html! { @for point in &series.points { (bar(chart, layout, series, point, n)) } }
        }
        Mark::Line => html! {
            (line(layout, &series.points, &class))
            @for point in &series.points { (dot(chart, layout, series, point, &class)) }
        },
        Mark::Curve => html! {
            g { title { (series.name) } (line(layout, &series.points, &class)) }
        },
        Mark::Dots => {
            html! { @for point in &series.points { (dot(chart, layout, series, point, &class)) } }
        }
        Mark::Steps(around) => steps(layout, series, around, &class),
    }
}

fn bar(chart: &Chart, layout: &Layout, series: &Series, point: &Point, n: usize) -> Markup {
    let (left, width) = layout.bar(point.x, place_among_bars(chart, n));
    let (end, base) = (layout.y(point.y), layout.base(chart));
    let (top, height) = (end.min(base), (end - base).abs().max(0.5));
    html! {
        g {
            title { (tip(chart, series, point)) }
            rect class={ "bar s" (n % COLOURS) } x=(px(left)) y=(px(top)) width=(px(width)) height=(px(height)) {}
            (error_bar(layout, point, left + width / 2.0))
        }
    }
}

fn place_among_bars(chart: &Chart, n: usize) -> usize {
    chart.series[..n].iter().filter(|series| series.mark == Mark::Bars).count()
}

fn error_bar(layout: &Layout, point: &Point, x: f64) -> Markup {
    let Some(interval) = point.interval else { return html! {} };
    let (low, high) = (layout.y(interval.low), layout.y(interval.high));
    let d = format!(
        "M{} {}H{}M{} {}V{}M{} {}H{}",
        px(x - CAP),
        px(low),
        px(x + CAP),
        px(x),
        px(low),
        px(high),
        px(x - CAP),
        px(high),
        px(x + CAP),
    );
    html! { path.error d=(d) {} }
}

fn line(layout: &Layout, points: &[Point], class: &str) -> Markup {
    let at = |point: &Point| format!("{} {}", px(layout.x(point.x)), px(layout.y(point.y)));
    let d = points.iter().map(at).collect::<Vec<_>>().join("L");
    html! { @if !points.is_empty() { path class={ "line " (class) } d={ "M" (d) } {} } }
}

fn dot(chart: &Chart, layout: &Layout, series: &Series, point: &Point, class: &str) -> Markup {
    let (x, y) = (layout.x(point.x), layout.y(point.y));
    html! {
        g {
            title { (tip(chart, series, point)) }
            (error_bar(layout, point, x))
            circle class={ "dot " (class) } cx=(px(x)) cy=(px(y)) r="3.5" {}
        }
    }
}

/// A cumulative distribution from its sorted samples, and the band around it.
fn steps(layout: &Layout, series: &Series, around: f64, class: &str) -> Markup {
    let points = thinned(&series.points);
    let at = |x: f64, y: f64| format!("{} {}", px(layout.x(x)), px(layout.y(y)));
    let edge = |by: f64| points.iter().map(move |p| at(p.x, (p.y + by).clamp(0.0, 1.0)));
    let back = edge(-around).collect::<Vec<_>>().into_iter().rev();
    let band: Vec<_> = edge(around).chain(back).collect();
    let rise = |point: &Point| format!("H{}V{}", px(layout.x(point.x)), px(layout.y(point.y)));
    let stairs: String = points.iter().map(rise).collect();
    html! {
        @if around > 0.0 && !points.is_empty() { path class={ "band " (class) } d={ "M" (band.join("L")) "Z" } {} }
        @if let Some(first) = points.first() {
            path class={ "line " (class) } d={ "M" (px(layout.x(first.x))) " " (px(layout.floor())) (stairs) } {}
        }
        @for decile in 1..10 {
            @if let Some(point) = at_share(&series.points, f64::from(decile) / 10.0) {
                g {
                    title { (series.name) ", " (10 * decile) " % at most " (number(point.x)) }
                    circle.hover cx=(px(layout.x(point.x))) cy=(px(layout.y(point.y))) r="7" {}
                }
            }
        }
    }
}

fn thinned(points: &[Point]) -> Vec<Point> {
    let step = points.len().div_ceil(MOST_STEPS).max(1);
    let last = points.len().saturating_sub(1);
    points
        .iter()
        .enumerate()
        .filter(|(n, _)| n % step == 0 || *n == last)
        .map(|(_, p)| *p)
        .collect()
}

fn at_share(points: &[Point], share: f64) -> Option<&Point> {
    points.iter().find(|point| point.y >= share - 1e-9)
}

fn value_of_paper(chart: &Chart, layout: &Layout, paper: &Paper) -> Markup {
    let x =
        match paper.series.filter(|&n| chart.series.get(n).is_some_and(|s| s.mark == Mark::Bars)) {
            Some(n) => {
                let (left, width) = layout.bar(paper.x, place_among_bars(chart, n));
                left + width / 2.0
            }
            None => layout.x(paper.x),
        };
    let (low, high) = (layout.y(paper.low), layout.y(paper.high));
    let value = match paper.low == paper.high {
        true => number(paper.low),
        false => format!("{} to {}", number(paper.low), number(paper.high)),
    };
    let range = format!("M{} {}V{}", px(x), px(low), px(high));
    html! {
        g {
            title { "paper, " (chart.place(paper.x)) ": " (value) }
            @if paper.low != paper.high { path.paper d=(range) {} path.paper d=(diamond(x, high)) {} }
            path.paper d=(diamond(x, low)) {}
        }
    }
}

/// The outline of the mark of a paper's value.
pub fn diamond(x: f64, y: f64) -> String {
    format!("M{} {}l{CAP} {CAP}l-{CAP} {CAP}l-{CAP} -{CAP}z", px(x), px(y - CAP))
}

fn tip(chart: &Chart, series: &Series, point: &Point) -> String {
    let sure = point.interval.map_or_else(String::new, |interval| {
        format!(" (95 % {} to {})", number(interval.low), number(interval.high))
    });
    let names = [series.name.clone(), chart.place(point.x)];
    let name = names.into_iter().filter(|name| !name.is_empty()).collect::<Vec<_>>().join(", ");
    format!("{name}: {}{sure}", number(point.y))
}
