//! Bar charts of figures themselves, as the papers draw completion times: a group for each percentile or parameter, a
//! bar for each column, on a logarithmic axis.

use anyhow::{Context, Result};
use maud::{Markup, PreEscaped, html};
use plotters::prelude::*;

use super::{COLOURS, charts_of, series_of};
use crate::report::{Bar, Drawn, Samples};
use crate::stats;

const HEIGHT: u32 = 300;
const LEAST_WIDTH: u32 = 460;
const BAR_WIDTH: u32 = 26;
/// Share of its place that a group of bars fills.
const FILL: f64 = 0.8;

/// The charts of [`Drawn::Values`] that samples name.
pub fn charts(samples: &[Samples]) -> Result<Vec<Markup>> {
    charts_of(samples, Drawn::Values)
        .into_iter()
        .map(|(title, all)| {
            let svg = draw(&all).with_context(|| format!("cannot plot {title}"))?;
            Ok(html! { figure { figcaption { (title) } (PreEscaped(svg)) } })
        })
        .collect()
}

fn draw(all: &[(&Bar, &Samples)]) -> Result<String> {
    let median = |_: &Bar, values: &[f64]| stats::median(values).filter(|&value| value > 0.0);
    let series = series_of(all.iter().copied(), median);
    let mut labels: Vec<&str> = Vec::new();
    for (label, _) in series.iter().flat_map(|(_, own)| own) {
        if !labels.contains(label) {
            labels.push(*label);
        }
    }
    let values = || series.iter().flat_map(|(_, own)| own).map(|(_, value)| *value);
    let (low, high) = (values().fold(f64::INFINITY, f64::min), values().fold(0.0, f64::max));
    let axis = if low.is_finite() { (low / 2.0)..(high * 2.0) } else { 0.1..1.0 };
    let bottom = axis.start;
    let unit = all.first().map_or("", |(_, samples)| samples.unit.as_str());
    let count = |n: usize| f64::from(u32::try_from(n).unwrap_or(u32::MAX));
    let bars = u32::try_from(labels.len() * series.len())?;
    let mut svg = String::new();
    {
        let size = ((bars * BAR_WIDTH).max(LEAST_WIDTH), HEIGHT);
        let area = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        area.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(&area)
            .margin(8)
            .x_label_area_size(40)
            .y_label_area_size(56)
            .build_cartesian_2d(-0.5..count(labels.len()) - 0.5, axis.log_scale())?;
        let name = |x: &f64| super::bars::label_at(&labels, *x).to_owned();
        chart
            .configure_mesh()
            .disable_x_mesh()
            .x_labels(labels.len() * 2 + 1)
            .x_label_formatter(&name)
            .y_desc(unit)
            .label_style(("sans-serif", 12))
            .draw()?;
        let step = FILL / count(series.len());
        for (n, (name, own)) in series.iter().enumerate() {
            let colour = COLOURS[n % COLOURS.len()];
            let rectangles = own.iter().map(|(label, value)| {
                let place = labels.iter().position(|known| known == label).unwrap_or(0);
                let x = count(place) - FILL / 2.0 + count(n) * step;
                Rectangle::new([(x, bottom), (x + step * 0.9, *value)], colour.mix(0.8).filled())
            });
            chart.draw_series(rectangles)?.label(*name).legend(move |(x, y)| {
                Rectangle::new([(x, y - 4), (x + 12, y + 4)], colour.filled())
            });
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperLeft)
            .background_style(WHITE.mix(0.8))
            .draw()?;
        area.present()?;
    }
    Ok(svg)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(series: &str, label: &str, value: f64) -> Samples {
        Samples {
            unit: "ms".into(),
            value: vec![value],
            baseline: vec![1.0],
            variants: Some([series.into(), "off".into()]),
            bar: Some(Bar {
                chart: "small".into(),
                series: series.into(),
                label: label.into(),
                drawn: Drawn::Values,
            }),
            ..Samples::default()
        }
    }

    #[test]
    fn a_bar_for_each_column_and_one_for_the_baseline() {
        let all = [
            samples("on", "p50", 0.5),
            samples("host", "p50", 0.4),
            samples("on", "p99", 0.9),
            samples("host", "p99", 0.8),
        ];
        let charts = charts(&all).unwrap();
        assert_eq!(charts.len(), 1);
        let svg = charts[0].clone().into_string();
        for text in ["off", "on", "host", "p50", "p99"] {
            assert!(svg.contains(&format!("{text}\n")), "{text} is not in the chart");
        }
        let bars = COLOURS[..3].iter().map(|c| format!("#{:02X}{:02X}{:02X}", c.0, c.1, c.2));
        // Two bars of each, and the legend.
        bars.for_each(|colour| assert_eq!(svg.matches(&colour).count(), 3, "{colour}"));
    }
}
