//! Cumulative distributions of several columns in one plot, on a logarithmic axis of time.

use anyhow::{Context, Result};
use maud::{Markup, PreEscaped, html};
use plotters::prelude::*;

use super::{COLOURS, PLOT, charts_of, series_of};
use crate::report::{Bar, Drawn, Samples};

/// The charts of [`Drawn::Distribution`] that samples name.
pub fn charts(samples: &[Samples]) -> Result<Vec<Markup>> {
    charts_of(samples, Drawn::Distribution)
        .into_iter()
        .map(|(title, all)| {
            let svg = draw(&all).with_context(|| format!("cannot plot {title}"))?;
            Ok(html! { figure { figcaption { (title) } (PreEscaped(svg)) } })
        })
        .collect()
}

fn draw(all: &[(&Bar, &Samples)]) -> Result<String> {
    let values = |_: &Bar, values: &[f64]| (!values.is_empty()).then_some(());
    let names = series_of(all.iter().copied(), values);
    let from: f64 = all.first().and_then(|(bar, _)| bar.label.parse().ok()).unwrap_or(0.0);
    let every = || all.iter().flat_map(|(_, s)| s.value.iter().chain(&s.baseline)).copied();
    let positive = || every().filter(|&value| value > 0.0);
    let (low, high) = (positive().fold(f64::INFINITY, f64::min), positive().fold(0.0, f64::max));
    let axis = if low.is_finite() { (low / 1.2)..(high * 1.2) } else { 0.1..1.0 };
    let unit = all.first().map_or("", |(_, samples)| samples.unit.as_str());
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, PLOT).into_drawing_area();
        area.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(&area)
            .margin(8)
            .x_label_area_size(32)
            .y_label_area_size(48)
            .build_cartesian_2d(axis.log_scale(), from..1.0)?;
        let style = ("sans-serif", 12);
        chart.configure_mesh().x_desc(unit).y_desc("share").label_style(style).draw()?;
        for (n, (name, _)) in names.iter().enumerate() {
            let colour = COLOURS[n % COLOURS.len()];
            let mut sorted = column(all, name).to_vec();
            sorted.sort_by(f64::total_cmp);
            let count = f64::from(u32::try_from(sorted.len())?);
            let share = |rank: u32| f64::from(rank).mul_add((1.0 - from) / count, from);
            let points = sorted.into_iter().zip((1_u32..).map(share));
            chart
                .draw_series(LineSeries::new(points, colour.stroke_width(2)))?
                .label(*name)
                .legend(move |(x, y)| {
                    PathElement::new([(x, y), (x + 16, y)], colour.stroke_width(2))
                });
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

/// The samples of a column, or of the baseline that has that name.
fn column<'a>(all: &[(&'a Bar, &'a Samples)], name: &str) -> &'a [f64] {
    let own = all.iter().find(|(bar, _)| bar.series == name).map(|(_, samples)| &samples.value[..]);
    own.or_else(|| all.first().map(|(_, samples)| &samples.baseline[..])).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_columns_are_in_one_plot() {
        let samples = |series: &str, factor: f64| Samples {
            value: (1..100).map(|n| f64::from(n) * factor).collect(),
            baseline: (1..100).map(f64::from).collect(),
            variants: Some([series.into(), "unpatched".into()]),
            bar: Some(Bar {
                chart: "2 KB".into(),
                series: series.into(),
                label: "0.99".into(),
                drawn: Drawn::Distribution,
            }),
            ..Samples::default()
        };
        let charts = charts(&[samples("patched", 0.5), samples("ideal", 0.1)]).unwrap();
        assert_eq!(charts.len(), 1);
        let svg = charts[0].clone().into_string();
        for text in ["unpatched", "patched", "ideal"] {
            assert!(svg.contains(&format!("{text}\n")), "{text}");
        }
        for RGBColor(r, g, b) in &COLOURS[..3] {
            let colour = format!("stroke=\"#{r:02X}{g:02X}{b:02X}\"");
            assert_eq!(svg.matches(&colour).count(), 2, "a curve and its legend in {colour}");
        }
    }
}
