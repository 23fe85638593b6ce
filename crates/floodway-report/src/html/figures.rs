//! The figures that an experiment's file asks for, in the form of the paper's.

use crate::about::{Figure, Form, PaperValue, Show};
use crate::chart::{Across, Chart, Mark, Paper, Point, Series};
use crate::pattern;
use crate::report::{Report, Row, Samples};
use crate::stats;

/// Probability outside the band around a distribution.
const ALPHA: f64 = 0.05;

/// A value on its way into a chart.
struct Drawn<'a> {
    panel: &'a str,
    x: &'a str,
    series: String,
    point: Point,
    paper: Option<f64>,
}

/// The charts of all figures; a figure has one for each panel.
pub fn all(report: &Report, samples: &[Samples]) -> Vec<Chart> {
    let charts = report.about.figure.iter().flat_map(|figure| match figure.form {
        Form::Bars | Form::Lines => of_rows(figure, report, samples),
        Form::Distribution => of_samples(figure, samples, distribution),
        Form::Time => of_samples(figure, samples, over_time),
    });
    charts.collect()
}

fn of_rows(figure: &Figure, report: &Report, samples: &[Samples]) -> Vec<Chart> {
    let with_sweep = figure.rows.contains(" = ");
    let fits = |row: &&Row| {
        (with_sweep || !row.is_swept()) && (figure.unit.is_empty() || figure.unit == row.unit)
    };
    let rows = report.rows.iter().filter(fits);
    let drawn: Vec<_> = rows.flat_map(|row| values(figure, row, samples)).collect();
    distinct(drawn.iter().map(|one| one.panel))
        .into_iter()
        .map(|panel| {
            let own: Vec<_> = drawn.iter().filter(|one| one.panel == panel).collect();
            chart(figure, panel, &own)
        })
        .collect()
}

/// What a row adds to a figure: nothing, its headline, or value and baseline.
fn values<'a>(figure: &'a Figure, row: &'a Row, samples: &[Samples]) -> Vec<Drawn<'a>> {
    let Some(parts) = pattern::fit(&figure.rows, &row.name) else { return Vec::new() };
    let part = |name: &str| parts.get(name).copied().unwrap_or_default();
    let one = |series: String, y: f64, interval, paper| Drawn {
        panel: part("panel"),
        x: part("x"),
        series,
        point: Point { x: 0.0, y, interval },
        paper,
    };
    let series = part("series").to_owned();
    match (figure.show, row.baseline, row.value) {
        (Show::Headline, ..) => {
            let headline = row.headline().map(|y| one(series, y, row.interval, row.paper));
            headline.into_iter().collect()
        }
        (Show::Values, baseline, value) => {
            let [name, without] = names_of_variants(row, samples, series);
            let baseline = baseline.map(|y| one(without, y, None, None));
            baseline.into_iter().chain(value.map(|y| one(name, y, None, None))).collect()
        }
    }
}

/// What the two sides of a comparison are called.
fn names_of_variants(row: &Row, samples: &[Samples], series: String) -> [String; 2] {
    let are_own = |samples: &&Samples| {
        row.name
            .strip_prefix(&*samples.name)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
    };
    let own = samples.iter().filter(are_own).max_by_key(|samples| samples.name.len());
    let variants = own.and_then(|samples| samples.variants.clone());
    let [value, baseline] = variants.unwrap_or(["Floodway".into(), "without".into()]);
    [if series.is_empty() { value } else { series }, baseline]
}

fn chart(figure: &Figure, panel: &str, drawn: &[&Drawn<'_>]) -> Chart {
    let labels = distinct(drawn.iter().map(|one| one.x));
    let names = distinct(drawn.iter().map(|one| one.series.as_str()));
    let place = |x: &str| labels.iter().position(|label| *label == x).unwrap_or(0) as f64;
    let series: Vec<_> = names.iter().map(|name| one_series(figure, name, drawn, place)).collect();
    let mut paper: Vec<_> = drawn
        .iter()
        .filter_map(|one| {
            let series = names.iter().position(|name| *name == one.series);
            one.paper.map(|value| Paper { x: place(one.x), series, low: value, high: value })
        })
        .collect();
    let own = figure.paper.iter().filter(|value| value.panel.is_empty() || value.panel == panel);
    paper.extend(own.flat_map(|value| of_paper(value, &labels, &names)));
    let is_ratio = figure.show == Show::Headline && figure.y.contains("without");
    Chart {
        title: titled(&figure.title, panel),
        across: Across::Labels(labels.into_iter().map(str::to_owned).collect()),
        x_label: figure.x.clone(),
        y_label: figure.y.clone(),
        log: figure.log,
        reference: is_ratio.then_some(1.0),
        series,
        paper,
    }
}

fn one_series(
    figure: &Figure,
    name: &str,
    drawn: &[&Drawn<'_>],
    place: impl Fn(&str) -> f64,
) -> Series {
    let mut points: Vec<Point> = Vec::new();
    for one in drawn.iter().filter(|one| one.series == name) {
        let x = place(one.x);
        // The baseline of several comparisons is drawn once.
        if !points.iter().any(|point| point.x == x) {
            points.push(Point { x, ..one.point });
        }
    }
    let mark = if figure.form == Form::Lines { Mark::Line } else { Mark::Bars };
    Series { name: name.to_owned(), mark, points }
}

fn of_paper(value: &PaperValue, labels: &[&str], names: &[&str]) -> Vec<Paper> {
    let series = names.iter().position(|name| *name == value.series);
    let ends = (value.value.first().copied(), value.value.last().copied());
    let (Some(low), Some(high)) = ends else { return Vec::new() };
    let at =
        labels.iter().enumerate().filter(|(_, label)| value.x.is_empty() || **label == value.x);
    at.map(|(n, _)| Paper { x: n as f64, series, low, high }).collect()
}

/// The charts of samples, by panel.
fn of_samples(
    figure: &Figure,
    samples: &[Samples],
    draw: fn(&Figure, &mut Chart, (&str, &Samples)),
) -> Vec<Chart> {
    let mut charts: Vec<Chart> = Vec::new();
    for one in samples {
        let Some(parts) = parts_of(figure, one) else { continue };
        // Labels have no place across samples: each has a panel.
        let panel = ["panel", "x"].into_iter().filter_map(|part| parts.get(part).copied());
        let panel: Vec<_> = panel.filter(|part| !part.is_empty()).collect();
        let title = titled(&figure.title, &panel.join(", "));
        if charts.last().is_none_or(|chart| chart.title != title) {
            charts.push(Chart {
                title,
                x_label: figure.x.clone(),
                y_label: figure.y.clone(),
                ..Chart::default()
            });
        }
        if let Some(chart) = charts.last_mut() {
            let series = parts.get("series").copied().unwrap_or_default();
            draw(figure, chart, (series, one));
        }
    }
    charts
}

/// What the name of samples says of their place in a figure of samples; none if they are not in it.
fn parts_of<'a>(figure: &'a Figure, samples: &'a Samples) -> Option<pattern::Parts<'a>> {
    let is_shown = !samples.name.contains(" = ") || figure.rows.contains(" = ");
    is_shown.then(|| pattern::fit(&figure.rows, &samples.name)).flatten()
}

/// What the figures of a report need of its samples: the values of those that they draw, and what both sides of the others are called.
pub fn needed(report: &Report, samples: &[Samples]) -> Vec<Samples> {
    let figures = &report.about.figure;
    let draws = |figure: &Figure, one: &Samples| {
        matches!(figure.form, Form::Distribution | Form::Time) && parts_of(figure, one).is_some()
    };
    let named = figures.iter().any(|figure| figure.show == Show::Values);
    let needed = samples.iter().filter_map(|one| {
        if figures.iter().any(|figure| draws(figure, one)) {
            return Some(one.clone());
        }
        let (name, variants) = (one.name.clone(), one.variants.clone());
        named.then(|| Samples { name, variants, ..Samples::default() })
    });
    needed.collect()
}

fn distribution(figure: &Figure, chart: &mut Chart, (_, samples): (&str, &Samples)) {
    chart.across = Across::Numbers { log: figure.log };
    for (name, values) in sides(samples) {
        if !chart.series.iter().any(|known| known.name == name) {
            chart.series.push(steps(name, values));
        }
    }
}

/// A cumulative distribution with the 95 % band that Dvoretzky, Kiefer and Wolfowitz (1956) put around all of it, with Massart's constant.
pub(super) fn steps(name: &str, values: &[f64]) -> Series {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let count = sorted.len().max(1) as f64;
    let ranked = (1_u32..).map(|rank| f64::from(rank) / count);
    let points = sorted.iter().zip(ranked).map(|(&x, y)| Point { x, y, interval: None }).collect();
    let around = ((2.0 / ALPHA).ln() / (2.0 * count)).sqrt();
    Series { name: name.to_owned(), mark: Mark::Steps(around), points }
}

/// Lines by the names of series, if names of rows have such, or of both sides.
fn over_time(_: &Figure, chart: &mut Chart, (series, samples): (&str, &Samples)) {
    chart.across = Across::Numbers { log: false };
    for (side, values) in sides(samples) {
        let name = if series.is_empty() { side } else { series };
        if !chart.series.iter().any(|known| known.name == name) {
            chart.series.push(curve(name, values));
        }
    }
}

/// Values one after the other, the first one at 1.
pub(super) fn curve(name: &str, values: &[f64]) -> Series {
    let points = (1_u32..).zip(values).map(|(n, &y)| Point { x: n.into(), y, interval: None });
    Series { name: name.to_owned(), mark: Mark::Curve, points: points.collect() }
}

/// Value and baseline with their names, as far as they are there.
pub(super) fn sides(samples: &Samples) -> Vec<(&str, &[f64])> {
    let [with, without] = match &samples.variants {
        Some([value, baseline]) => [&value[..], &baseline[..]],
        None => ["Floodway", "without"],
    };
    let sides = [(with, &samples.value[..]), (without, &samples.baseline[..])];
    sides.into_iter().filter(|(_, values)| stats::median(values).is_some()).collect()
}

fn titled(title: &str, panel: &str) -> String {
    let parts = [title, panel].into_iter().filter(|part| !part.is_empty());
    parts.collect::<Vec<_>>().join(": ")
}

pub(super) fn distinct<'a>(names: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut seen = Vec::new();
    for name in names {
        if !seen.contains(&name) {
            seen.push(name);
        }
    }
    seen
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::about::About;
    use crate::report::World;

    fn report(figure: Figure) -> Report {
        let row = |name: &str, ratio: f64| {
            Row::comparison(name, "Mbit/s", Some(ratio * 10.0), Some(10.0))
        };
        Report {
            experiment: "t".into(),
            world: World::Real,
            seed: 1,
            host: [].into(),
            rows: vec![
                row("2 VMs, 10 KB/rate 2011 median", 2.0),
                row("2 VMs, 1 MB/rate 2011 median", 3.0),
                row("3 VMs, 10 KB/rate 2011 median", 4.0),
                row("3 VMs, 10 KB/rate today median", 5.0),
                row("a = b/3 VMs, 10 KB/rate today median", 6.0),
            ],
            notes: Vec::new(),
            about: About { figure: vec![figure], ..About::default() },
        }
    }

    fn figure() -> Figure {
        let paper =
            PaperValue { panel: "3 VMs".into(), value: vec![3.0, 12.0], ..PaperValue::default() };
        Figure {
            rows: "{panel}, {x}/rate {series} median".into(),
            paper: vec![paper],
            ..Figure::default()
        }
    }

    #[test]
    fn a_figure_has_a_chart_for_each_panel() {
        let charts = all(&report(figure()), &[]);
        let titles: Vec<_> = charts.iter().map(|chart| &chart.title[..]).collect();
        assert_eq!(titles, ["2 VMs", "3 VMs"]);
        let heights = |chart: &Chart| -> Vec<Vec<f64>> {
            chart.series.iter().map(|s| s.points.iter().map(|point| point.y).collect()).collect()
        };
        assert_eq!(heights(&charts[0]), [[2.0, 3.0]]);
        assert_eq!(heights(&charts[1]), [[4.0], [5.0]], "sweeps are left out");
        let paper: Vec<_> = charts.iter().map(|chart| chart.paper.len()).collect();
        assert_eq!(paper, [0, 1]);
    }

    #[test]
    fn values_have_their_baseline_beside_them() {
        let charts = all(&report(Figure { show: Show::Values, ..figure() }), &[]);
        let names: Vec<_> = charts[1].series.iter().map(|series| &series.name[..]).collect();
        assert_eq!(names, ["without", "2011", "today"]);
    }

    #[test]
    fn lines_over_time_are_named_by_their_series() {
        let samples = ["vm1 over time", "vm2 over time"].map(|name| Samples {
            name: name.into(),
            value: vec![1.0, 2.0],
            ..Samples::default()
        });
        let rows = "{series} over time".into();
        let charts = all(&report(Figure { form: Form::Time, rows, ..Figure::default() }), &samples);
        let names: Vec<_> = charts[0].series.iter().map(|series| &series.name[..]).collect();
        assert_eq!((charts.len(), names), (1, vec!["vm1", "vm2"]));
    }

    #[test]
    fn what_figures_need_of_samples_draws_the_same() {
        let one = |name: &str| Samples {
            name: name.into(),
            value: vec![1.0, 2.0],
            baseline: vec![3.0],
            variants: Some(["on".into(), "off".into()]),
            ..Samples::default()
        };
        let samples = ["2 VMs, 10 KB/rate 2011", "time vm1", "a = b/time vm1"].map(one);
        let values = Figure { show: Show::Values, ..figure() };
        let time = Figure { form: Form::Time, rows: "time {series}".into(), ..Figure::default() };
        let mut report = report(values);
        report.about.figure.push(time);
        let needed = needed(&report, &samples);
        let counts: Vec<_> = needed.iter().map(|one| one.value.len()).collect();
        assert_eq!(counts, [0, 2, 0]);
        let text = |samples: &[Samples]| {
            all(&report, samples)
                .iter()
                .map(|chart| chart.render().into_string())
                .collect::<String>()
        };
        assert_eq!(text(&needed), text(&samples));
        assert!(text(&needed).contains("off"));
        report.about.figure.clear();
        assert!(super::needed(&report, &samples).is_empty());
    }

    #[test]
    fn distributions_with_labels_have_a_panel_each() {
        let samples = ["1 MB/rate 2011", "1 MB/rate today"].map(|name| Samples {
            name: name.into(),
            value: vec![1.0, 2.0],
            ..Samples::default()
        });
        let rows = "{panel}/rate {x}".into();
        let form = Figure { form: Form::Distribution, rows, ..Figure::default() };
        let charts = all(&report(form), &samples);
        let titles: Vec<_> = charts.iter().map(|chart| &chart.title[..]).collect();
        assert_eq!(titles, ["1 MB, 2011", "1 MB, today"]);
    }

    #[test]
    fn a_distribution_has_a_band() {
        let samples =
            Samples { name: "rate 2011".into(), value: vec![3.0, 1.0, 2.0], ..Samples::default() };
        let form =
            Figure { form: Form::Distribution, rows: "rate {panel}".into(), ..Figure::default() };
        let charts = all(&report(form), &[samples]);
        let Mark::Steps(around) = charts[0].series[0].mark else { panic!("no distribution") };
        // R: sqrt(log(2 / 0.05) / (2 * 3))
        assert!((around - 0.784_1).abs() < 1e-4, "{around}");
        assert_eq!(charts[0].series[0].points[2].x, 3.0);
    }

    #[test]
    fn variants_are_those_of_the_samples_with_the_longest_name() {
        let samples =
            [("p50 both", "off"), ("p50 both among long", "long")].map(|(name, other)| Samples {
                name: name.into(),
                variants: Some(["both".into(), other.into()]),
                ..Samples::default()
            });
        let names =
            |row: &str| names_of_variants(&Row::value(row, "ms", None), &samples, String::new());
        assert_eq!(names("p50 both among long")[1], "long");
        assert_eq!(names("p50 both median")[1], "off");
        assert_eq!(names("p50 other"), ["Floodway", "without"]);
    }
}
