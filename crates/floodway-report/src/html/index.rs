//! The list of all runs below a directory, as a page: filters, and two runs side by side.
//!
//! # Theory of operation
//! The list is plain HTML with a link to each run's page. A small script ([`SCRIPT`]) filters it, and compares two runs by the figures that are in the
//! page as data: all rows but those of sweeps. Two runs are independent of each other, so the interval of their ratio follows from their own
//! intervals: distances on a logarithmic axis add up as squares. It is an approximation, and the page says so.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use maud::{Markup, PreEscaped, html};
use serde::Serialize;

use super::answer::sentence;
use super::rows::verdict;
use super::{HTML_FILE, document, rewrite, world};
use crate::headlines::headlines;
use crate::provenance::Provenance;
use crate::report::{REPORT_FILE, Report, Row, Verdict, World};

/// File name of the list.
pub const INDEX_FILE: &str = "index.html";
/// Runs may be so deep below the directory of the list.
const DEPTH: usize = 3;
const SCRIPT: &str = include_str!("index.js");

/// A run in the list.
#[derive(Debug)]
struct Entry {
    /// Where it is, below the directory of the list.
    place: String,
    report: Report,
    run: Provenance,
}

/// What the script knows of a run.
#[derive(Serialize)]
struct Data<'a> {
    place: &'a str,
    world: World,
    rows: Vec<Figure<'a>>,
}

/// Name, unit, headline, both ends of its interval, verdict.
type Figure<'a> = (&'a str, &'a str, Option<f64>, Option<f64>, Option<f64>, &'a str);

/// Writes the page of every report below `dir` again, and the list of all. Returns how many there are.
///
/// # Errors
/// When a directory cannot be listed, a report is wrong, or a file cannot be written; the error names it.
pub fn write_all(dir: &Path) -> Result<usize> {
    for place in places(dir)? {
        rewrite(&dir.join(&place))?;
    }
    write(dir)
}

/// Writes the list of all runs below `dir`. Returns how many there are.
///
/// # Errors
/// As [`write_all`].
pub fn write(dir: &Path) -> Result<usize> {
    let entries =
        places(dir)?.into_iter().map(|place| read(dir, &place)).collect::<Result<Vec<_>>>()?;
    let path = dir.join(INDEX_FILE);
    let text = page(&entries)?.into_string();
    fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(entries.len())
}

/// Directories with a report, relative to `dir`, in the order of their names.
fn places(dir: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    find(dir, Path::new(""), DEPTH, &mut found)?;
    found.sort();
    Ok(found)
}

fn find(dir: &Path, place: &Path, depth: usize, found: &mut Vec<PathBuf>) -> Result<()> {
    let here = dir.join(place);
    if depth < DEPTH && here.join(REPORT_FILE).is_file() {
        found.push(place.to_owned());
    }
    if depth == 0 {
        return Ok(());
    }
    let list = || format!("cannot list {}", here.display());
    for entry in fs::read_dir(&here).with_context(list)? {
        let entry = entry.with_context(list)?;
        if entry.file_type().with_context(list)?.is_dir() {
            find(dir, &place.join(entry.file_name()), depth - 1, found)?;
        }
    }
    Ok(())
}

fn read(dir: &Path, place: &Path) -> Result<Entry> {
    let here = dir.join(place);
    if !here.join(HTML_FILE).exists() {
        rewrite(&here)?;
    }
    let report = Report::read(&here.join(REPORT_FILE))?;
    // Reports of old programs have none.
    let run = Provenance::read(&here).unwrap_or_default();
    Ok(Entry { place: place.to_string_lossy().into_owned(), report, run })
}

fn page(entries: &[Entry]) -> Result<Markup> {
    let data: Vec<_> = entries.iter().map(Entry::data).collect();
    // In a script, `<` could end it.
    let data = serde_json::to_string(&data)?.replace('<', "\\u003c");
    let body = html! {
        h1 { "Runs" }
        (controls(entries))
        section id="comparison" hidden { h2 { "Side by side" } div.scroll { table id="compared" {} }
            p.soft { "B / A is the ratio of the headlines. Its interval follows from those of the two runs, which are independent of each other; it is approximate." }
        }
        div.scroll { table id="list" {
            thead { tr { @for title in ["run", "answer", "verdicts", "commit", "time"] { th { (title) } } } }
            tbody { @for entry in entries { (entry.line()) } }
        } }
        p.soft id="none" hidden { "No run fits." }
        script type="application/json" id="runs" { (PreEscaped(data)) }
        script { (PreEscaped(SCRIPT)) }
    };
    Ok(document("Runs – Floodway", &body))
}

fn controls(entries: &[Entry]) -> Markup {
    let choice = |id: &str, title: &str| {
        html! {
            label { (title) select id=(id) { option value="" { "–" } @for entry in entries { option { (entry.place) } } } }
        }
    };
    html! {
        div.controls {
            label { "Filter by name, question or commit" input type="search" id="text"; }
            label { "World" select id="world" { option value="" { "all" } option value="real" { "real VMs" } option value="sim" { "virtual time" } } }
            label { "Verdicts" select id="verdict" { option value="" { "all" } option value="open" { "not all ok" } option value="ok" { "all ok" } } }
            (choice("a", "Compare A"))
            (choice("b", "with B"))
        }
    }
}

impl Entry {
    fn data(&self) -> Data<'_> {
        let rows = self.report.rows.iter().filter(|row| !row.is_swept()).map(figure);
        Data { place: &self.place, world: self.report.world, rows: rows.collect() }
    }

    fn line(&self) -> Markup {
        let report = &self.report;
        let count = |wanted| report.rows.iter().filter(|row| row.verdict == Some(wanted)).count();
        let open = report.below_target().count();
        let question = &report.about.question;
        let words = format!("{} {question} {}", self.place, self.run.version());
        let kind = if report.world == World::Real { "real" } else { "sim" };
        html! {
            tr data-words=(words.to_lowercase()) data-world=(kind) data-verdict=(if open > 0 { "open" } else { "ok" }) {
                td { a href={ (self.place) "/" (HTML_FILE) } { (self.place) } br; small { (world(report.world)) } }
                td { @if !question.is_empty() { (question) " " } @if let Some(row) = self.first() { strong { (sentence(report, row)) } } }
                td.n { @for kind in [Verdict::Ok, Verdict::BelowTarget, Verdict::Undecided] {
                    @if count(kind) > 0 { (count(kind)) " " (verdict(Some(kind))) br; }
                } }
                td { code { (self.short_commit()) } @if self.run.dirty { br; small { "with changes" } } }
                td { small { (self.run.started.replace('T', " ")) } }
            }
        }
    }

    fn first(&self) -> Option<&Row> {
        headlines(&self.report)
            .into_iter()
            .next()
            .filter(|_| !self.report.about.headline.is_empty())
    }

    fn short_commit(&self) -> &str {
        self.run.commit.as_deref().map_or("", |commit| commit.get(..12).unwrap_or(commit))
    }
}

fn figure(row: &Row) -> Figure<'_> {
    let (low, high) = (row.interval.map(|one| one.low), row.interval.map(|one| one.high));
    let unit = if row.baseline.is_some() { "x" } else { &row.unit };
    (&row.name, unit, row.headline(), low, high, row.verdict.map_or("", Verdict::name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leave(dir: &Path, place: &str, name: &str) {
        let report = Report {
            experiment: name.into(),
            world: World::Sim,
            seed: 1,
            host: [].into(),
            rows: vec![Row::value("</script>", "ms", Some(2.0)), Row::value("a = b/c", "ms", None)],
            notes: Vec::new(),
            about: crate::About::default(),
        };
        crate::write(&report, &[], &Provenance::default(), &dir.join(place)).unwrap();
    }

    #[test]
    fn all_runs_are_listed_wherever_they_are() {
        let dir = tempfile::tempdir().unwrap();
        for (place, name) in [("b", "b"), ("sim/a", "a"), ("sim/deep/c", "c")] {
            leave(dir.path(), place, name);
        }
        fs::write(dir.path().join("b").join(HTML_FILE), "old").unwrap();
        assert_eq!(write_all(dir.path()).unwrap(), 3);
        let text = fs::read_to_string(dir.path().join(INDEX_FILE)).unwrap();
        let at = |place: &str| text.find(&format!("href=\"{place}/report.html\"")).unwrap();
        assert!(at("b") < at("sim/a") && at("sim/a") < at("sim/deep/c"));
        assert_ne!(fs::read_to_string(dir.path().join("b").join(HTML_FILE)).unwrap(), "old");
        assert_eq!(text.matches("</script>").count(), 2, "no name ends the script");
        assert!(!text.contains("a = b"), "sweeps are in the pages only");
    }

    #[test]
    fn a_wrong_report_is_named() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("x")).unwrap();
        fs::write(dir.path().join("x").join(REPORT_FILE), "{}").unwrap();
        let error = format!("{:#}", write(dir.path()).unwrap_err());
        assert!(error.contains("x/report.json"), "{error}");
    }
}
