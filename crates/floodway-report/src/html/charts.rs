//! The charts that samples themselves name ([`crate::report::Bar`]), where no figure of the experiment's file asks for another form.

use super::figures::{curve, distinct, sides, steps};
use crate::chart::{Across, Chart, Mark, Point, Series};
use crate::report::{Bar, Drawn, Samples};
use crate::stats;

/// What is in a chart.
type Own<'a> = Vec<(&'a Bar, &'a Samples)>;

/// All charts, in the order of their first mention. Bars of a single ratio say no more than its row, and are left out.
pub fn all(samples: &[Samples], seed: u64) -> Vec<Chart> {
    let is_base = |samples: &&Samples| !samples.name.contains(" = ");
    let placed: Own<'_> =
        samples.iter().filter(is_base).filter_map(|one| Some((one.bar.as_ref()?, one))).collect();
    let mut charts = Vec::new();
    for title in distinct(placed.iter().map(|(bar, _)| bar.chart.as_str())) {
        let own = |drawn: Drawn| -> Own<'_> {
            placed
                .iter()
                .filter(|(bar, _)| bar.chart == title && bar.drawn == drawn)
                .copied()
                .collect()
        };
        let ratios = own(Drawn::Ratio);
        if ratios.len() > 1 {
            charts.push(of_ratios(title, &ratios, seed));
        }
        for (drawn, draw) in DRAWN {
            let own = own(drawn);
            if !own.is_empty() {
                charts.push(draw(title, &own));
            }
        }
    }
    charts
}

type Draw = fn(&str, &Own<'_>) -> Chart;
const DRAWN: [(Drawn, Draw); 4] = [
    (Drawn::Values, of_values),
    (Drawn::Distribution, of_distributions),
    (Drawn::OverTime, over_time),
    (Drawn::Points, of_points),
];

/// Medians by ratio, in groups by label.
fn of_ratios(title: &str, own: &Own<'_>, seed: u64) -> Chart {
    let ratio = |samples: &Samples| {
        let ratio = stats::median(&samples.value)? / stats::median(&samples.baseline)?;
        let interval = stats::ratio_interval(&samples.value, &samples.baseline, seed);
        ratio.is_finite().then_some(Point { x: 0.0, y: ratio, interval })
    };
    let values =
        own.iter().filter_map(|(bar, one)| Some((&bar.series[..], &bar.label[..], ratio(one)?)));
    let mut chart = in_groups(title, &values.collect::<Vec<_>>());
    (chart.y_label, chart.reference) = ("ratio of medians".into(), Some(1.0));
    chart
}

/// Medians themselves, the baseline's, too.
fn of_values(title: &str, own: &Own<'_>) -> Chart {
    let mut chart = in_groups(title, &medians(own));
    chart.log = true;
    chart.y_label = unit(own);
    chart
}

/// The median of the baseline of each label, and behind that those of the values.
fn medians<'a>(own: &Own<'a>) -> Vec<(&'a str, &'a str, Point)> {
    let mut values = Vec::new();
    for (bar, one) in own {
        let names = [baseline_name(one), &bar.series];
        for (name, side) in names.into_iter().zip([&one.baseline, &one.value]) {
            if let Some(y) = stats::median(side).filter(|&y| y > 0.0) {
                values.push((name, &bar.label[..], Point { y, ..Point::default() }));
            }
        }
    }
    values
}

fn baseline_name(samples: &Samples) -> &str {
    samples.variants.as_ref().map_or("without", |[_, baseline]| baseline)
}

fn unit(own: &Own<'_>) -> String {
    own.first().map_or_else(String::new, |(_, samples)| samples.unit.clone())
}

/// Series, labels and values as bars. Of several values of one bar the first counts.
fn in_groups(title: &str, values: &[(&str, &str, Point)]) -> Chart {
    let labels = distinct(values.iter().map(|(_, label, _)| *label));
    let place = |label: &str| labels.iter().position(|known| *known == label).unwrap_or(0) as f64;
    let series = distinct(values.iter().map(|(name, ..)| *name)).into_iter().map(|name| {
        let mut points: Vec<Point> = Vec::new();
        for (_, label, point) in values.iter().filter(|(own, ..)| *own == name) {
            let x = place(label);
            if !points.iter().any(|known| known.x == x) {
                points.push(Point { x, ..*point });
            }
        }
        Series { name: name.to_owned(), mark: Mark::Bars, points }
    });
    Chart {
        title: title.to_owned(),
        series: series.collect(),
        across: Across::Labels(labels.into_iter().map(str::to_owned).collect()),
        ..Chart::default()
    }
}

/// Cumulative distributions on a logarithmic axis. A label is the share from which on the samples are given.
fn of_distributions(title: &str, own: &Own<'_>) -> Chart {
    let mut chart = Chart {
        title: title.to_owned(),
        across: Across::Numbers { log: true },
        x_label: unit(own),
        y_label: "share".into(),
        ..Chart::default()
    };
    for (bar, one) in own {
        let from: f64 = bar.label.parse().unwrap_or(0.0);
        for (name, values) in [(baseline_name(one), &one.baseline), (&bar.series, &one.value)] {
            if !values.is_empty() && !chart.series.iter().any(|known| known.name == *name) {
                chart.series.push(upper_part(name, values, from));
            }
        }
    }
    chart
}

/// A distribution of which only the samples above a share are known: without a band, since nobody knows how many there are in all.
fn upper_part(name: &str, values: &[f64], from: f64) -> Series {
    let mut series = steps(name, values);
    if from > 0.0 {
        series.mark = Mark::Steps(0.0);
        series.points.iter_mut().for_each(|point| point.y = from + (1.0 - from) * point.y);
    }
    series
}

/// Value and baseline of the first samples, a second a point.
fn over_time(title: &str, own: &Own<'_>) -> Chart {
    let series = own.first().map(|(_, one)| sides(one)).unwrap_or_default();
    Chart {
        title: title.to_owned(),
        x_label: "s".into(),
        y_label: unit(own),
        series: series.into_iter().map(|(name, values)| curve(name, values)).collect(),
        ..Chart::default()
    }
}

/// Medians by labels that are numbers, and the baseline as a line through its own.
fn of_points(title: &str, own: &Own<'_>) -> Chart {
    let values = medians(own);
    let baseline = own.first().map_or("", |(_, one)| baseline_name(one));
    let series = distinct(values.iter().map(|(name, ..)| *name)).into_iter().map(|name| {
        let mut points: Vec<Point> = Vec::new();
        for (_, label, point) in values.iter().filter(|(own, ..)| *own == name) {
            let x: f64 = label.parse().unwrap_or_default();
            if !points.iter().any(|known| known.x == x) {
                points.push(Point { x, ..*point });
            }
        }
        points.sort_by(|a, b| a.x.total_cmp(&b.x));
        let mark = if name == baseline { Mark::Curve } else { Mark::Dots };
        Series { name: name.to_owned(), mark, points }
    });
    Chart {
        title: title.to_owned(),
        across: Across::Numbers { log: true },
        x_label: "loss, %".into(),
        y_label: unit(own),
        log: true,
        series: series.collect(),
        ..Chart::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(drawn: Drawn, series: &str, label: &str, value: Vec<f64>) -> Samples {
        let (chart, label) = ("a chart".into(), label.into());
        Samples {
            baseline: value.iter().map(|value| value * 2.0).collect(),
            value,
            variants: Some([series.into(), "off".into()]),
            bar: Some(Bar { chart, series: series.into(), label, drawn }),
            ..Samples::default()
        }
    }

    fn names(chart: &Chart) -> Vec<&str> {
        chart.series.iter().map(|series| &series.name[..]).collect()
    }

    #[test]
    fn values_have_one_bar_for_the_baseline() {
        let given = [
            samples(Drawn::Values, "on", "p50", vec![0.5]),
            samples(Drawn::Values, "host", "p50", vec![0.4]),
            samples(Drawn::Values, "on", "p99", vec![0.9]),
        ];
        let charts = all(&given, 1);
        assert_eq!(names(&charts[0]), ["off", "on", "host"]);
        let counts: Vec<_> = charts[0].series.iter().map(|series| series.points.len()).collect();
        assert_eq!(counts, [2, 2, 1]);
    }

    #[test]
    fn points_of_all_series_stand_beside_one_line() {
        let given = [
            samples(Drawn::Points, "offloaded", "1", vec![12.0]),
            samples(Drawn::Points, "Linux", "1", vec![11.0]),
            samples(Drawn::Points, "offloaded", "0.1", vec![38.0]),
        ];
        let charts = all(&given, 1);
        let marks: Vec<_> = charts[0].series.iter().map(|series| series.mark).collect();
        assert_eq!(marks, [Mark::Curve, Mark::Dots, Mark::Dots]);
        assert_eq!(charts[0].series[0].points[0].x, 0.1, "in the order of the axis");
    }

    #[test]
    fn a_single_ratio_is_no_chart_and_two_are_one() {
        let one = samples(Drawn::Ratio, "2011", "10 KB", vec![1.0, 2.0, 3.0]);
        let other = samples(Drawn::Ratio, "2011", "1 MB", vec![1.0, 2.0, 3.0]);
        assert!(all(std::slice::from_ref(&one), 1).is_empty());
        let charts = all(&[one, other], 1);
        assert_eq!((charts.len(), charts[0].series[0].points.len()), (1, 2));
        assert_eq!(charts[0].reference, Some(1.0));
    }

    #[test]
    fn a_tail_is_drawn_from_its_share_on() {
        let charts = all(&[samples(Drawn::Distribution, "on", "0.9", vec![1.0, 2.0])], 1);
        let shares: Vec<_> = charts[0].series[1].points.iter().map(|point| point.y).collect();
        assert_eq!(shares, [0.95, 1.0]);
        assert_eq!(charts[0].series[1].mark, Mark::Steps(0.0));
    }
}
