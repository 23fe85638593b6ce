//! Lines over time, and points beside a function.

use anyhow::{Context, Result};
use maud::{Markup, PreEscaped, html};
use plotters::prelude::*;

use super::{COLOURS, PLOT, charts_of, series_of, top, variants};
use crate::report::{Bar, Drawn, Samples};

const STYLE: (&str, u32) = ("sans-serif", 12);

/// Draws what is in a chart.
type Draw = fn(&[(&Bar, &Samples)]) -> Result<String>;

/// The charts of [`Drawn::OverTime`] and [`Drawn::Points`] that samples name.
pub fn charts(samples: &[Samples]) -> Result<Vec<Markup>> {
    let mut charts = Vec::new();
    for (drawn, draw) in [(Drawn::OverTime, over_time as Draw), (Drawn::Points, points)] {
        for (title, all) in charts_of(samples, drawn) {
            let svg = draw(&all).with_context(|| format!("cannot plot {title}"))?;
            charts.push(html! { figure { figcaption { (title) } (PreEscaped(svg)) } });
        }
    }
    Ok(charts)
}

/// Value and baseline of the first samples, a second a point.
fn over_time(all: &[(&Bar, &Samples)]) -> Result<String> {
    let Some((_, samples)) = all.first() else { return Ok(String::new()) };
    let seconds = u32::try_from(samples.value.len().max(samples.baseline.len()))?.max(1);
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, PLOT).into_drawing_area();
        area.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(&area)
            .margin(8)
            .x_label_area_size(32)
            .y_label_area_size(48)
            .build_cartesian_2d(0.0..f64::from(seconds), 0.0..top(samples))?;
        chart.configure_mesh().x_desc("s").y_desc(&samples.unit).label_style(STYLE).draw()?;
        for (name, colour, values) in variants(samples) {
            let points = (1_u32..).map(f64::from).zip(values.iter().copied());
            chart.draw_series(LineSeries::new(points, colour.stroke_width(2)))?.label(name).legend(
                move |(x, y)| PathElement::new([(x, y), (x + 16, y)], colour.stroke_width(2)),
            );
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::LowerRight)
            .background_style(WHITE.mix(0.8))
            .draw()?;
        area.present()?;
    }
    Ok(svg)
}

/// The medians of all samples by their labels; the baselines as a line.
fn points(all: &[(&Bar, &Samples)]) -> Result<String> {
    let median = |_: &Bar, values: &[f64]| crate::stats::median(values);
    let mut series = Vec::new();
    for (name, labelled) in series_of(all.iter().copied(), median) {
        let mut points = Vec::new();
        for (label, y) in labelled {
            points.push((label.parse::<f64>().context("a label is no number")?, y));
        }
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        series.push((name, points));
    }
    let baseline =
        all.first().and_then(|(_, samples)| samples.variants.as_ref()).map(|variants| &variants[1]);
    let every = || series.iter().flat_map(|(_, points)| points.iter().copied());
    let (x, y) = (axis(every().map(|point| point.0)), axis(every().map(|point| point.1)));
    let unit = all.first().map_or("", |(_, samples)| samples.unit.as_str());
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, PLOT).into_drawing_area();
        area.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(&area)
            .margin(8)
            .x_label_area_size(32)
            .y_label_area_size(48)
            .build_cartesian_2d(x.log_scale(), y.log_scale())?;
        chart.configure_mesh().x_desc("loss, %").y_desc(unit).label_style(STYLE).draw()?;
        for (n, (name, points)) in series.iter().enumerate() {
            let colour = COLOURS[n % COLOURS.len()];
            let drawn = if Some(*name) == baseline.map(String::as_str) {
                chart
                    .draw_series(LineSeries::new(points.iter().copied(), colour.stroke_width(2)))?
            } else {
                let circle = |&point: &(f64, f64)| Circle::new(point, 4, colour.filled());
                chart.draw_series(points.iter().map(circle))?
            };
            drawn.label(*name).legend(move |(x, y)| Circle::new((x + 8, y), 4, colour.filled()));
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::LowerLeft)
            .background_style(WHITE.mix(0.8))
            .draw()?;
        area.present()?;
    }
    Ok(svg)
}

/// A range around values that is not empty and fits a logarithmic axis.
fn axis(values: impl Iterator<Item = f64>) -> std::ops::Range<f64> {
    let (low, high) = values
        .filter(|&value| value > 0.0)
        .fold((f64::INFINITY, 0.0_f64), |(low, high), value| (low.min(value), high.max(value)));
    if low.is_finite() { (low / 2.0)..(high * 2.0) } else { 0.1..1.0 }
}

#[cfg(test)]
mod tests {
    use super::super::{WITH, WITHOUT};
    use super::*;

    fn samples(drawn: Drawn, series: &str, label: &str, value: Vec<f64>) -> Samples {
        Samples {
            baseline: value.iter().map(|value| value * 1.1).collect(),
            value,
            variants: Some([series.into(), "function".into()]),
            bar: Some(Bar {
                chart: "a chart".into(),
                series: series.into(),
                label: label.into(),
                drawn,
            }),
            ..Samples::default()
        }
    }

    #[test]
    fn a_line_is_drawn_for_each_arm() {
        let charts = charts(&[samples(Drawn::OverTime, "offloaded", "", vec![1.0, 2.0])]).unwrap();
        let svg = charts[0].clone().into_string();
        for RGBColor(r, g, b) in [WITH, WITHOUT] {
            let colour = format!("stroke=\"#{r:02X}{g:02X}{b:02X}\"");
            assert_eq!(svg.matches(&colour).count(), 2, "a line and its legend in {colour}");
        }
    }

    #[test]
    fn points_of_all_series_stand_beside_one_line() {
        let all = [
            samples(Drawn::Points, "offloaded", "1", vec![12.0]),
            samples(Drawn::Points, "Linux", "1", vec![11.0]),
            samples(Drawn::Points, "offloaded", "0.1", vec![38.0]),
        ];
        let charts = charts(&all).unwrap();
        assert_eq!(charts.len(), 1);
        let svg = charts[0].clone().into_string();
        assert_eq!(svg.matches("<circle").count(), 3 + 3, "three points and three legends");
        assert_eq!(svg.matches("<polyline").count() - svg_mesh(&svg), 1);
        let wrong = [samples(Drawn::Points, "offloaded", "one", vec![12.0])];
        assert!(super::charts(&wrong).is_err());
    }

    /// Lines of one point in width are the mesh.
    fn svg_mesh(svg: &str) -> usize {
        svg.matches("<polyline").count() - svg.matches("stroke-width=\"2\"").count()
    }
}
