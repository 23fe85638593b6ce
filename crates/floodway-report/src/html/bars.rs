//! Bar charts of ratios over a sweep, with their 95 % intervals.

use anyhow::{Context, Result};
use maud::{Markup, PreEscaped, html};
use plotters::prelude::*;

use crate::report::{Bar, Drawn, Samples};
use crate::stats::{self, Interval};

/// Size of a chart in CSS pixels, and the least width of one bar.
const HEIGHT: u32 = 320;
const LEAST_WIDTH: u32 = 460;
const BAR_WIDTH: u32 = 34;
/// Share of its place that a group of bars fills.
const FILL: f64 = 0.8;

/// One bar: a ratio of medians and its interval.
#[derive(Debug, PartialEq)]
struct Ratio<'a> {
    bar: &'a Bar,
    ratio: f64,
    interval: Option<Interval>,
}

/// The charts that samples name, in order of their first mention. A chart of one bar says no
/// more than its row, and is left out.
pub fn charts(samples: &[Samples], seed: u64) -> Result<Vec<Markup>> {
    let ratios: Vec<_> = samples.iter().filter_map(|samples| ratio(samples, seed)).collect();
    let titles = distinct(ratios.iter().map(|ratio| &ratio.bar.chart[..]));
    titles
        .into_iter()
        .map(|title| (title, ratios.iter().filter(|ratio| ratio.bar.chart == title).collect()))
        .filter(|(_, bars): &(_, Vec<_>)| bars.len() > 1)
        .map(|(title, bars)| {
            let svg = draw(&bars).with_context(|| format!("cannot plot {title}"))?;
            Ok(html! { figure { figcaption { (title) } (PreEscaped(svg)) } })
        })
        .collect()
}

fn ratio(samples: &Samples, seed: u64) -> Option<Ratio<'_>> {
    let bar = samples.bar.as_ref().filter(|bar| bar.drawn == Drawn::Ratio)?;
    let ratio = stats::median(&samples.value)? / stats::median(&samples.baseline)?;
    let interval = stats::ratio_interval(&samples.value, &samples.baseline, seed);
    ratio.is_finite().then_some(Ratio { bar, ratio, interval })
}

fn distinct<'a>(names: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut seen = Vec::new();
    for name in names {
        if !seen.contains(&name) {
            seen.push(name);
        }
    }
    seen
}

fn position<'a>(names: &[&'a str], name: &'a str) -> f64 {
    let index = names.iter().position(|other| *other == name).unwrap_or(0);
    u32::try_from(index).map_or(0.0, f64::from)
}

/// The highest of bars, their intervals and 1.
fn highest(bars: &[&Ratio<'_>]) -> f64 {
    let tops = bars.iter().map(|bar| bar.interval.map_or(bar.ratio, |it| it.high.max(bar.ratio)));
    tops.fold(1.0, f64::max)
}

fn draw(bars: &[&Ratio<'_>]) -> Result<String> {
    let labels = distinct(bars.iter().map(|bar| &bar.bar.label[..]));
    let series = distinct(bars.iter().map(|bar| &bar.bar.series[..]));
    let (places, colours) =
        (f64::from(u32::try_from(labels.len())?), f64::from(u32::try_from(series.len())?));
    let top = highest(bars);
    let width = (u32::try_from(bars.len())? * BAR_WIDTH).max(LEAST_WIDTH);
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, (width, HEIGHT)).into_drawing_area();
        area.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(&area)
            .margin(8)
            .x_label_area_size(40)
            .y_label_area_size(48)
            .build_cartesian_2d(-0.5..places - 0.5, 0.0..top * 1.1)?;
        let name = |x: &f64| label_at(&labels, *x).to_owned();
        chart
            .configure_mesh()
            .disable_x_mesh()
            .x_labels(labels.len() * 2 + 1)
            .x_label_formatter(&name)
            .y_desc("ratio of medians")
            .label_style(("sans-serif", 12))
            .draw()?;
        chart.draw_series(LineSeries::new([(-0.5, 1.0), (places - 0.5, 1.0)], BLACK.mix(0.5)))?;
        let step = FILL / colours;
        for name in &series {
            let colour = [super::WITH, super::WITHOUT][position(&series, name) as usize % 2];
            let left = position(&series, name).mul_add(step, -FILL / 2.0);
            let own = || bars.iter().filter(|bar| bar.bar.series == *name);
            let place = |bar: &Ratio<'_>| position(&labels, &bar.bar.label) + left;
            chart
                .draw_series(own().map(|bar| {
                    let x = place(bar);
                    Rectangle::new(
                        [(x, 0.0), (x + step * 0.9, bar.ratio)],
                        colour.mix(0.7).filled(),
                    )
                }))?
                .label(*name)
                .legend(move |(x, y)| {
                    Rectangle::new([(x, y - 4), (x + 12, y + 4)], colour.filled())
                });
            chart.draw_series(own().filter_map(|bar| {
                let Interval { low, high } = bar.interval?;
                let x = place(bar) + step * 0.45;
                Some(ErrorBar::new_vertical(x, low, bar.ratio, high, BLACK.filled(), 6))
            }))?;
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperRight)
            .background_style(WHITE.mix(0.8))
            .draw()?;
        area.present()?;
    }
    Ok(svg)
}

/// The label whose place is at `x`; none between places.
pub(super) fn label_at<'a>(labels: &[&'a str], x: f64) -> &'a str {
    let nearest = x.round();
    if (x - nearest).abs() > 0.01 || nearest < 0.0 {
        return "";
    }
    labels.get(nearest as usize).copied().unwrap_or("")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(label: &str, series: &str, factor: f64) -> Samples {
        let baseline = vec![1.0, 2.0, 3.0];
        Samples {
            value: baseline.iter().map(|sample| sample * factor).collect(),
            baseline,
            bar: Some(Bar {
                chart: "gain".into(),
                series: series.into(),
                label: label.into(),
                ..Bar::default()
            }),
            ..Samples::default()
        }
    }

    #[test]
    fn a_chart_has_all_labels_and_series_and_one_bar_alone_is_none() {
        let sweep = [
            samples("2 VMs", "2011", 2.0),
            samples("3 VMs", "2011", 3.0),
            samples("2 VMs", "today", 1.5),
            samples("3 VMs", "today", 1.0),
            Samples { bar: None, ..samples("4 VMs", "today", 1.0) },
        ];
        let charts = charts(&sweep, 1).unwrap();
        assert_eq!(charts.len(), 1);
        let text = charts[0].clone().into_string();
        for word in ["gain", "2 VMs", "3 VMs", "2011", "today"] {
            assert!(text.contains(word), "{word} is missing");
        }
        assert!(!text.contains("4 VMs"));
        assert!(super::charts(&sweep[..1], 1).unwrap().is_empty());
    }
}
