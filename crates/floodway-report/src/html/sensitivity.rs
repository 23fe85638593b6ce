//! Which of the parameters that were varied decide the answer.
//!
//! # Theory of operation
//! A report with a sweep has each figure once more for each value of each parameter, in rows named `parameter = value/figure`. The section has a
//! [picture](crate::chart::Sensitivity) of each figure that answers the question. The range of the same conclusion is the band that judges the figure; a comparison that nobody judges
//! is to stay on its side of 1.

use maud::{Markup, html};

use crate::chart::{Changed, Sensitivity};
use crate::headlines::headlines;
use crate::report::{Report, Row};

/// Figures with a picture, at most: a headline may stand for a whole grid.
const MOST: usize = 4;

/// The pictures of the figures that answer the question.
pub fn section(report: &Report) -> Markup {
    let pictures: Vec<_> =
        headlines(report).into_iter().filter_map(|row| of(report, row)).take(MOST).collect();
    html! {
        @if !pictures.is_empty() {
            h2 { "What it depends on" }
            p.soft { "Each line has one parameter changed, the dashed line none. What is accepted is shaded." }
            div.panels { @for picture in &pictures { (picture.render()) } }
        }
    }
}

/// What the swept parameters do to a figure; `None` if none was swept.
fn of(report: &Report, row: &Row) -> Option<Sensitivity> {
    let figure = row.headline()?;
    let changed: Vec<_> = report
        .rows
        .iter()
        .filter_map(|swept| {
            let label = swept.name.strip_suffix(&row.name)?.strip_suffix('/')?;
            let figure = swept.headline().filter(|_| label.contains(" = "))?;
            Some(Changed { label: label.to_owned(), figure, interval: swept.interval })
        })
        .collect();
    (!changed.is_empty()).then(|| Sensitivity {
        title: row.name.clone(),
        figure,
        unit: if row.baseline.is_some() { "x".into() } else { row.unit.clone() },
        accepted: accepted(row, figure),
        changed,
    })
}

fn accepted(row: &Row, figure: f64) -> [Option<f64>; 2] {
    match (row.low, row.high, row.baseline) {
        (None, None, Some(_)) if figure >= 1.0 => [Some(1.0), None],
        (None, None, Some(_)) => [None, Some(1.0)],
        (low, high, _) => [low, high],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::about::About;
    use crate::report::World;

    fn report() -> Report {
        let row = |name: &str, value: f64| Row::comparison(name, "ms", Some(value), Some(1.0));
        Report {
            experiment: "t".into(),
            world: World::Sim,
            seed: 1,
            host: [].into(),
            rows: vec![
                row("whole", 2.0),
                row("data", 3.0),
                row("load.busy = wall/whole", 0.5),
                row("slots = 3/whole", 2.5),
                row("slots = 3/not the whole", 9.0),
            ],
            notes: Vec::new(),
            about: About { headline: vec!["whole".into()], ..About::default() },
        }
    }

    #[test]
    fn a_figure_is_shown_with_its_own_sweep() {
        let report = report();
        let one = of(&report, &report.rows[0]).unwrap();
        let labels: Vec<_> = one.changed.iter().map(|one| one.label.as_str()).collect();
        assert_eq!(labels, ["load.busy = wall", "slots = 3"]);
        assert_eq!((one.figure, one.accepted), (2.0, [Some(1.0), None]));
        assert!(of(&report, &report.rows[1]).is_none(), "it was not swept");
    }

    #[test]
    fn a_band_says_where_the_conclusion_ends() {
        let mut report = report();
        report.rows[0].judge(Some(1.9), Some(2.4), None);
        let one = of(&report, &report.rows[0]).unwrap();
        assert_eq!(
            one.changed.iter().map(|c| one.agrees(c.figure)).collect::<Vec<_>>(),
            [false; 2]
        );
        let page = section(&report).into_string();
        assert!(page.contains("What it depends on") && page.contains("another conclusion"));
    }
}
