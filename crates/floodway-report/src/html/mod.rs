//! A report as one HTML page that needs nothing else: styles and plots are inside.
//!
//! # Theory of operation
//! A page goes from the question to its proof: the question, one sentence that answers it, the figure in the form of the paper's one, what is judged
//! and the verdicts; then everything else that was measured, folded away, and how it was measured. It is a function of the report, its samples and its
//! provenance, so that the same files give the same bytes.
//!
//! Plots are inline SVG of our own ([`crate::chart`]): a page has to be readable for years from a file, without a script or a server, and the
//! papers' figures are bars, lines and distributions, for which a few hundred lines do.

mod answer;
mod charts;
mod figures;
pub mod index;
mod picture;
mod rows;
mod sensitivity;
mod strips;

use std::path::Path;

use anyhow::{Context, Result};
use maud::{DOCTYPE, Markup, PreEscaped, html};

use crate::chart::{self, Chart};
use crate::provenance::{PROVENANCE_FILE, Provenance};
use crate::report::{REPORT_FILE, Report, Samples, World, read_samples};

pub use answer::answer;
pub use figures::needed as samples_of_figures;
pub use picture::Picture;

/// File name of the page inside an experiment's output directory.
pub const HTML_FILE: &str = "report.html";
const STYLE: &str = include_str!("style.css");

/// Writes `report.html` into `dir`, which must exist.
///
/// # Errors
/// When the file cannot be written.
pub fn write(
    report: &Report,
    samples: &[Samples],
    run: Option<&Provenance>,
    dir: &Path,
) -> Result<()> {
    let path = dir.join(HTML_FILE);
    let page = page(report, samples, run).into_string();
    std::fs::write(&path, page).with_context(|| format!("cannot write {}", path.display()))
}

/// Writes the page of the report in `dir` again, from its files.
///
/// # Errors
/// When the report cannot be read or the page cannot be written.
pub fn rewrite(dir: &Path) -> Result<()> {
    let report = Report::read(&dir.join(REPORT_FILE))?;
    let run = match dir.join(PROVENANCE_FILE).exists() {
        true => Some(Provenance::read(dir)?),
        false => None,
    };
    write(&report, &read_samples(dir)?, run.as_ref(), dir)
}

fn page(report: &Report, samples: &[Samples], run: Option<&Provenance>) -> Markup {
    let figures = figures::all(report, samples);
    let charts = charts::all(samples, report.seed);
    let title = format!("{} – Floodway", report.experiment);
    let body = html! {
        (head(report, run))
        (answer::section(report))
        (first(report, &figures))
        @if figures.is_empty() && !charts.is_empty() { div.panels { @for chart in &charts { (chart.render()) } } }
        (sensitivity::section(report))
        (rows::sections(report))
        @if !figures.is_empty() && !charts.is_empty() {
            details { summary { "More plots" } div.panels { @for chart in &charts { (chart.render()) } } }
        }
        (strips::section(report, samples))
        (notes(report))
        (method(report, run))
    };
    document(&title, &body)
}

/// The figures, and beside or below them what labels stand for, what the paper says and what is judged.
fn first(report: &Report, figures: &[Chart]) -> Markup {
    let context = html! { div { (terms(report)) (answer::context(report)) } };
    match figures {
        [one] => html! { div.first { (one.render()) (context) } },
        _ => html! {
            @if !figures.is_empty() { div.panels { @for chart in figures { (chart.render()) } } }
            div.beside { (context) }
        },
    }
}

/// A document with the style sheet.
fn document(title: &str, body: &Markup) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { (title) }
                style { (PreEscaped(chart::STYLE)) (PreEscaped(STYLE)) }
            }
            body { (body) }
        }
    }
}

/// Name, question, and what a reader must know before anything else.
fn head(report: &Report, run: Option<&Provenance>) -> Markup {
    let about = &report.about;
    let question = [&about.question, &about.title, &report.experiment];
    let question = question.into_iter().find(|text| !text.is_empty());
    html! {
        p.name { (report.experiment) " · " (world(report.world)) @if !about.question.is_empty() { " · " (about.title) } }
        h1 { @if let Some(question) = question { (question) } }
        @for note in report.notes.iter().filter(|note| is_warning(note)) { p.warn { (note) } }
        @if run.is_some_and(|run| run.dirty) { p.warn { "The program was built from sources with changes that are in no commit." } }
    }
}

fn is_warning(note: &str) -> bool {
    note.starts_with("quick run") || note.starts_with("disturbed")
}

const fn world(world: World) -> &'static str {
    match world {
        World::Real => "real VMs",
        World::Sim => "virtual time",
    }
}

/// What labels in the figure stand for.
fn terms(report: &Report) -> Markup {
    let terms = &report.about.terms;
    html! { @if !terms.is_empty() { dl { @for (label, text) in terms { dt { (label) } dd { (text) } } } } }
}

fn notes(report: &Report) -> Markup {
    let notes: Vec<_> = report.notes.iter().filter(|note| !is_warning(note)).collect();
    html! {
        @if !notes.is_empty() { h2 { "Notes" } ul { @for note in notes { li { (answer::with_code(note)) } } } }
    }
}

/// On what it ran, by which build and command, and when.
fn method(report: &Report, run: Option<&Provenance>) -> Markup {
    let plain = |value: &serde_json::Value| !value.is_object() && !value.is_array();
    let (short, long): (Vec<_>, Vec<_>) = report.host.iter().partition(|(_, value)| plain(value));
    html! {
        h2 { "How it was measured" }
        @if let Some(run) = run { p { code { (run.command.join(" ")) } } }
        dl {
            @if let Some(run) = run { (provenance(run)) }
            dt { "world" } dd { (world(report.world)) ", seed " (report.seed) }
            @for (key, value) in short { dt { (key.replace('_', " ")) } dd { (text_of(value)) } }
        }
        @for (key, value) in long {
            details { summary { (key.replace('_', " ")) } div.scroll { pre { (serde_json::to_string_pretty(value).unwrap_or_default()) } } }
        }
    }
}

fn text_of(value: &serde_json::Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn provenance(run: &Provenance) -> Markup {
    html! {
        dt { "commit" } dd { (run.version()) }
        dt { "time" } dd { (run.started) ", " (format!("{:.0}", run.seconds)) " s" }
        @if let Some(steal) = run.steal {
            dt { "steal" } dd { (format!("{:.2}", 100.0 * steal)) " % of the processors' time went to other guests of the hypervisor" }
        }
        @for (what, digest) in [("program", &run.program), ("experiment", &run.file)] {
            @if let Some(digest) = digest { dt { "SHA-256, " (what) } dd { code { (digest) } } }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::about::{About, Figure};
    use crate::band::Band;
    use crate::report::{Row, add_intervals};

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

    fn report(samples: &[Samples]) -> Report {
        let mut row = samples[0].median_row();
        add_intervals(std::slice::from_mut(&mut row), samples, 3);
        row.judge_by(&Band { low: Some(3.0), paper: Some(2.0), ..Band::default() });
        let figure = Figure { title: "The figure".into(), rows: "{x}".into(), ..Figure::default() };
        Report {
            experiment: "t".into(),
            world: World::Real,
            seed: 3,
            host: [("cpus".to_owned(), 2.into())].into(),
            rows: vec![
                row,
                Row::value("<b> drops", "frames", Some(0.0)),
                Row::value("c", "s", Some(4.0)),
            ],
            notes: vec!["a note".into(), "quick run: 1 of 5".into()],
            about: About {
                question: "Is it faster?".into(),
                answer: "It is {} as fast.".into(),
                headline: vec!["vm-to-vm".into()],
                figure: vec![figure],
                ..About::default()
            },
        }
    }

    fn text() -> String {
        let samples = [samples(5)];
        let run = Provenance {
            command: vec!["floodway-lab".into(), "demo".into()],
            dirty: true,
            ..Provenance::default()
        };
        page(&report(&samples), &samples, Some(&run)).into_string()
    }

    #[test]
    fn a_page_goes_from_the_question_to_its_proof() {
        let html = text();
        let order = [
            "<h1>Is it faster?</h1>",
            "quick run: 1 of 5",
            "It is 2 times (95 % 2 to 2) as fast.",
            "The figure",
            "below target",
            "Other figures",
            "Counters that are zero",
            "a note",
            "floodway-lab demo",
        ];
        let mut from = 0;
        for part in order {
            let at = html[from..].find(part);
            from += at.unwrap_or_else(|| panic!("{part:?} is not behind the others: {html}"));
        }
        assert!(html.contains("&lt;b&gt; drops") && !html.contains("<b>"), "text is escaped");
        assert!(html.contains("no commit"), "a dirty build is told");
    }

    #[test]
    fn a_page_needs_nothing_else_and_no_script() {
        let html = text();
        for outside in ["http-equiv", "src=", "<script", "<link", "url("] {
            assert!(!html.contains(outside), "{outside}");
        }
    }

    #[test]
    fn the_same_files_give_the_same_bytes() {
        let dir = tempfile::tempdir().unwrap();
        let samples = [samples(5)];
        let report = report(&samples);
        crate::write(&report, &samples, &Provenance::default(), dir.path()).unwrap();
        let first = std::fs::read(dir.path().join(HTML_FILE)).unwrap();
        rewrite(dir.path()).unwrap();
        assert_eq!(std::fs::read(dir.path().join(HTML_FILE)).unwrap(), first);
    }
}
