//! A report as one HTML page that needs nothing else: styles and plots are inside.

mod bars;
mod distributions;
mod lines;
mod values;

use anyhow::{Context, Result};
use maud::{DOCTYPE, Markup, PreEscaped, html};
use plotters::coord::Shift;
use plotters::prelude::*;
use std::path::Path;

use crate::provenance::Provenance;
use crate::report::{Bar, Drawn, Report, Row, Samples, Verdict};
use crate::stats::{self, Interval};
use crate::table;

/// File name of the page inside an experiment's output directory.
pub const HTML_FILE: &str = "report.html";

const WITH: RGBColor = RGBColor(0x1f, 0x5f, 0xa8);
const WITHOUT: RGBColor = RGBColor(0xb8, 0x5c, 0x1e);
/// Size of one plot in CSS pixels.
const PLOT: (u32, u32) = (460, 260);
/// From this many samples on, the distribution is drawn as a curve.
const CURVE_FROM: usize = 20;

const STYLE: &str = "
body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:62rem;padding:0 1rem;color:#1b1f24}
table{border-collapse:collapse;width:100%}
th,td{padding:.3rem .7rem;border-bottom:1px solid #d5d9de;text-align:left}
td.n{text-align:right;font-variant-numeric:tabular-nums}
.ok{color:#14713a}.below{color:#b3261e;font-weight:600}
figure{display:inline-block;margin:1rem 1rem 0 0}figcaption{font-weight:600}
small{color:#59636e}
";

/// Writes `report.html` into `dir`, which must exist.
///
/// # Errors
/// When a plot cannot be drawn or the file cannot be written.
pub fn write(
    report: &Report,
    samples: &[Samples],
    run: Option<&Provenance>,
    dir: &Path,
) -> Result<()> {
    let path = dir.join(HTML_FILE);
    let page = page(report, samples, run)?.into_string();
    std::fs::write(&path, page).with_context(|| format!("cannot write {}", path.display()))
}

fn page(report: &Report, samples: &[Samples], run: Option<&Provenance>) -> Result<Markup> {
    let figures = samples
        .iter()
        .filter(|samples| samples.value.len() > 1 && has_own_figure(samples))
        .map(|samples| figure(samples, report.seed))
        .collect::<Result<Vec<_>>>()?;
    let mut charts = bars::charts(samples, report.seed)?;
    charts.extend(values::charts(samples)?);
    charts.extend(distributions::charts(samples)?);
    charts.extend(lines::charts(samples)?);
    Ok(html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                title { (report.experiment) " – Floodway" }
                style { (PreEscaped(STYLE)) }
            }
            body {
                h1 { (report.experiment) }
                (rows_table(&report.rows))
                @if !report.notes.is_empty() { ul { @for note in &report.notes { li { (note) } } } }
                @for chart in charts { (chart) }
                @for figure in figures { (figure) }
                h2 { "Where" }
                p { (format!("{:?}", report.world).to_lowercase()) " world, seed " (report.seed) }
                ul { @for (key, value) in &report.host { li { (key) ": " (value) } } }
                @if let Some(run) = run { (provenance(run)) }
            }
        }
    })
}

/// How the report came about.
fn provenance(run: &Provenance) -> Markup {
    html! {
        h2 { "How" }
        p { code { (run.command.join(" ")) } }
        ul {
            li { "commit: " (run.version()) }
            li { (run.started) ", " (format!("{:.0}", run.seconds)) " s" }
            @if let Some(steal) = run.steal { li { "stolen by the hypervisor: " (format!("{:.2}", 100.0 * steal)) " % of the processors' time" } }
            @for (what, digest) in [("program", &run.program), ("file", &run.file)] {
                @if let Some(digest) = digest { li { "SHA-256 of the " (what) ": " code { (digest) } } }
            }
        }
    }
}

/// What a chart shows whole needs no plot of its own.
fn has_own_figure(samples: &Samples) -> bool {
    samples.bar.as_ref().is_none_or(|bar| bar.drawn == Drawn::Ratio)
}

/// The titles of the charts that show something in one way, in the order of their first mention, and what is in each.
fn charts_of(samples: &[Samples], drawn: Drawn) -> Vec<(&str, Vec<(&Bar, &Samples)>)> {
    let mut charts: Vec<(&str, Vec<(&Bar, &Samples)>)> = Vec::new();
    for one in samples {
        let Some(bar) = one.bar.as_ref().filter(|bar| bar.drawn == drawn) else { continue };
        match charts.iter_mut().find(|(title, _)| *title == bar.chart) {
            Some((_, own)) => own.push((bar, one)),
            None => charts.push((&bar.chart, vec![(bar, one)])),
        }
    }
    charts
}

/// Series by name, in the order of their first mention, the baseline first.
fn series_of<'a, T: Copy>(
    all: impl Iterator<Item = (&'a Bar, &'a Samples)>,
    pick: impl Fn(&'a Bar, &'a [f64]) -> Option<T>,
) -> Vec<(&'a str, Vec<(&'a str, T)>)> {
    let mut series: Vec<(&str, Vec<(&str, T)>)> = Vec::new();
    let mut add = |name: &'a str, label: &'a str, value: T| match series
        .iter_mut()
        .find(|(known, _)| *known == name)
    {
        Some((_, own)) if own.iter().any(|(known, _)| *known == label) => {}
        Some((_, own)) => own.push((label, value)),
        None => series.push((name, vec![(label, value)])),
    };
    for (bar, samples) in all {
        let baseline =
            samples.variants.as_ref().map_or("without", |[_, baseline]| baseline.as_str());
        if let Some(value) = pick(bar, &samples.baseline) {
            add(baseline, &bar.label, value);
        }
        if let Some(value) = pick(bar, &samples.value) {
            add(&bar.series, &bar.label, value);
        }
    }
    series
}

/// Colours of series, over and over.
const COLOURS: [RGBColor; 5] = [
    WITHOUT,
    WITH,
    RGBColor(0x2e, 0x8b, 0x57),
    RGBColor(0x8a, 0x4f, 0x9e),
    RGBColor(0x59, 0x63, 0x6e),
];

fn rows_table(rows: &[Row]) -> Markup {
    let number = |figure: Option<f64>| figure.map_or_else(|| "–".into(), table::number);
    html! {
        table {
            tr {
                @for title in ["figure", "unit", "Floodway", "without", "ratio", "paper", "accepted", "verdict"] {
                    th { (title) }
                }
            }
            @for row in rows {
                tr {
                    td { (row.name) }
                    td { (row.unit) }
                    @for figure in [row.value, row.baseline, row.ratio, row.paper] {
                        td.n { (number(figure)) }
                    }
                    td { (table::band(row)) }
                    @match row.verdict {
                        Some(Verdict::Ok) => td.ok { "ok" },
                        Some(Verdict::BelowTarget) => td.below { "below target" },
                        None => td {},
                    }
                }
            }
        }
    }
}

/// One plot with its caption, which gives the 95 % interval behind the row.
fn figure(samples: &Samples, seed: u64) -> Result<Markup> {
    let (what, interval) = if samples.baseline.is_empty() {
        ("median", stats::median_interval(&samples.value, seed))
    } else {
        ("ratio", stats::ratio_interval(&samples.value, &samples.baseline, seed))
    };
    let svg = plot(samples).with_context(|| format!("cannot plot {}", samples.name))?;
    Ok(html! {
        figure {
            figcaption { (samples.name) }
            (PreEscaped(svg))
            br;
            small {
                (samples.value.len()) " samples"
                @if let Some(Interval { low, high }) = interval {
                    ", " (what) " " (table::number(low)) " to " (table::number(high)) " (95 %)"
                    @if what == "ratio" && low <= 1.0 && 1.0 <= high {
                        ", which includes 1: no difference shown"
                    }
                }
            }
        }
    })
}

fn plot(samples: &Samples) -> Result<String> {
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, PLOT).into_drawing_area();
        area.fill(&WHITE)?;
        if samples.value.len() >= CURVE_FROM {
            curve(&area, samples)?;
        } else {
            strip(&area, samples)?;
        }
        area.present()?;
    }
    Ok(svg)
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Each sample in the order of measuring, so that drift over a run shows.
fn strip(area: &Area<'_>, samples: &Samples) -> Result<()> {
    let rounds = f64::from(u32::try_from(samples.value.len())?);
    let mut chart = ChartBuilder::on(area)
        .margin(8)
        .x_label_area_size(32)
        .y_label_area_size(56)
        .build_cartesian_2d(0.5..rounds + 0.5, 0.0..top(samples))?;
    let mesh_style = ("sans-serif", 12);
    chart
        .configure_mesh()
        .x_desc("round")
        .x_label_formatter(&|round| format!("{round:.0}"))
        .y_desc(samples.unit.as_str())
        .label_style(mesh_style)
        .draw()?;
    for (name, colour, values) in variants(samples) {
        let points = (1_u32..).map(f64::from).zip(values.iter().copied());
        chart
            .draw_series(points.map(|point| Circle::new(point, 4, colour.filled())))?
            .label(name)
            .legend(move |(x, y)| Circle::new((x + 8, y), 4, colour.filled()));
        if let Some(median) = stats::median(values) {
            let line = [(0.5, median), (rounds + 0.5, median)];
            chart.draw_series(LineSeries::new(line, colour.mix(0.6)))?;
        }
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::LowerRight)
        .background_style(WHITE.mix(0.8))
        .draw()?;
    Ok(())
}

/// Cumulative distribution, which hides neither tails nor a second mode.
fn curve(area: &Area<'_>, samples: &Samples) -> Result<()> {
    let mut chart = ChartBuilder::on(area)
        .margin(8)
        .x_label_area_size(32)
        .y_label_area_size(48)
        .build_cartesian_2d(0.0..top(samples), 0.0..1.0)?;
    chart
        .configure_mesh()
        .x_desc(samples.unit.as_str())
        .y_desc("share")
        .label_style(("sans-serif", 12))
        .draw()?;
    for (name, colour, values) in variants(samples) {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let count = f64::from(u32::try_from(sorted.len())?);
        let steps = (1_u32..).map(|rank| f64::from(rank) / count);
        chart
            .draw_series(LineSeries::new(sorted.into_iter().zip(steps), colour.stroke_width(2)))?
            .label(name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], colour.stroke_width(2)));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::LowerRight)
        .background_style(WHITE.mix(0.8))
        .draw()?;
    Ok(())
}

fn variants(samples: &Samples) -> impl Iterator<Item = (&str, RGBColor, &[f64])> {
    let [with, without] = match &samples.variants {
        Some([value, baseline]) => [&value[..], &baseline[..]],
        None => ["Floodway", "without"],
    };
    [(with, WITH, &samples.value[..]), (without, WITHOUT, &samples.baseline[..])]
        .into_iter()
        .filter(|(_, _, values)| !values.is_empty())
}

/// Upper end of the axis of values: a little above the largest sample, never an empty range.
fn top(samples: &Samples) -> f64 {
    let all = samples.value.iter().chain(&samples.baseline).copied();
    let largest = all.filter(|sample| sample.is_finite()).fold(0.0, f64::max);
    if largest > 0.0 { largest * 1.1 } else { 1.0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::World;

    fn samples(count: u32) -> Samples {
        let value: Vec<f64> = (0..count).map(|i| 900.0 + f64::from(i)).collect();
        Samples {
            name: "vm-to-vm".into(),
            unit: "Mbit/s".into(),
            baseline: value.iter().map(|sample| sample / 2.0).collect(),
            value,
            ..Samples::default()
        }
    }

    #[test]
    fn the_page_holds_every_row_and_plot_and_escapes_text() {
        let (few, many) = (samples(5), samples(50));
        let mut row = few.median_row();
        row.name = "<b>".into();
        row.judge(Some(3.0), None, Some(2.0));
        let report = Report {
            experiment: "t".into(),
            world: World::Real,
            seed: 3,
            host: [("cpus".to_owned(), 2.into())].into(),
            rows: vec![row],
            notes: vec!["a note".into()],
        };
        let run = Provenance {
            command: vec!["floodway-lab".to_owned(), "demo".to_owned()],
            ..Provenance::default()
        };
        let html = page(&report, &[few, many], Some(&run)).unwrap().into_string();
        assert!(html.contains("&lt;b&gt;") && !html.contains("<b>"));
        assert_eq!(html.matches("<svg").count(), 2);
        assert!(html.contains("class=\"below\"") && html.contains("cpus"));
        assert!(html.contains("a note"));
        assert!(!html.contains("http-equiv") && !html.contains("src="), "self-contained");
    }

    #[test]
    fn samples_that_are_all_zero_are_drawn_too() {
        let zeros = Samples { value: vec![0.0; 4], ..Samples::default() };
        assert!(plot(&zeros).unwrap().contains("<svg"));
    }
}
