//! Figures of published runs: an SVG for each run that has any, beside the book's pages, and their place in a text.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::table::origin;
use super::{Run, Runs};
use crate::html;

/// Where figures are, below the root of the sources.
pub const DIRECTORY: &str = "docs/src/results";
/// What a text has where no run has a figure.
const NONE: &str = "No figure yet: no such run was published with what its figure is drawn from.\n";

/// Draws the figures of `runs`. Writes those below `root` that this changes and removes those of no run, unless it is a `check`. Returns these files.
///
/// # Errors
/// When the directory cannot be listed, or a file cannot be written or removed.
pub fn render(root: &Path, runs: &Runs, check: bool) -> Result<Vec<PathBuf>> {
    let directory = root.join(DIRECTORY);
    let drawn = runs
        .iter()
        .filter_map(|(name, run)| Some((directory.join(file(name)), run.picture()?.svg)));
    let drawn: BTreeMap<PathBuf, String> = drawn.collect();
    let mut paths = list(&directory)?;
    paths.extend(drawn.keys().cloned());
    paths.retain(|path| fs::read_to_string(path).ok().as_ref() != drawn.get(path));
    for path in paths.iter().filter(|_| !check) {
        put(path, drawn.get(path))?;
    }
    Ok(paths.into_iter().collect())
}

/// The figures in `directory`; none if it is not there.
fn list(directory: &Path) -> Result<BTreeSet<PathBuf>> {
    let context = || format!("cannot list {}", directory.display());
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(BTreeSet::new()),
        entries => entries.with_context(context)?,
    };
    let mut paths = BTreeSet::new();
    for entry in entries {
        let path = entry.with_context(context)?.path();
        if path.extension().is_some_and(|extension| extension == "svg") {
            paths.insert(path);
        }
    }
    Ok(paths)
}

/// Writes a file; removes it if it has no content.
fn put(path: &Path, content: Option<&String>) -> Result<()> {
    let Some(content) = content else {
        return fs::remove_file(path).with_context(|| format!("cannot remove {}", path.display()));
    };
    let directory = path.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(directory)
        .and_then(|()| fs::write(path, content))
        .with_context(|| format!("cannot write {}", path.display()))
}

fn file(run: &str) -> String {
    format!("{run}.svg")
}

/// The figures of `runs` in Markdown, each with the answer that it gives and the run that it is of. `way` leads from the text's directory to them.
pub fn markdown(runs: &[(&str, &Run)], way: &str) -> String {
    let shown = runs.iter().filter_map(|(name, run)| one(name, run, way)).collect::<Vec<_>>();
    if shown.is_empty() { NONE.to_owned() } else { shown.join("\n") }
}

fn one(name: &str, run: &Run, way: &str) -> Option<String> {
    let alt = escaped(&run.picture()?.alt);
    let answer = html::answer(&run.report).map_or_else(String::new, |answer| answer + " ");
    let (file, origin) = (format!("{way}/{}", file(name)), origin(name, run));
    Some(format!("[![{alt}]({file})]({file})\n\n{answer}{origin}\n"))
}

/// A text between brackets.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('[', "\\[").replace(']', "\\]")
}

#[cfg(test)]
mod tests {
    use super::super::tests::run;
    use super::*;
    use crate::about::{Figure, Form};
    use crate::report::Samples;

    /// A run with a figure of a distribution and one of bars.
    fn drawn() -> Run {
        let mut run = run(0.5);
        let figure = |title: &str, form, rows: &str| Figure {
            title: title.into(),
            form,
            rows: rows.into(),
            x: "size".into(),
            y: "rate, Mbit/s".into(),
            ..Figure::default()
        };
        run.report.about.figure = vec![
            figure("Rates [1]", Form::Distribution, "{panel}/rate"),
            figure("Gain", Form::Bars, "{panel}/{x}"),
        ];
        (run.report.about.headline, run.report.about.answer) =
            (vec!["a/b".into()], "It is {} as fast.".into());
        run.samples = vec![Samples {
            name: "a/rate".into(),
            value: vec![3.0, 1.0, 2.0],
            baseline: vec![1.0, 0.5, 2.0],
            variants: Some(["on".into(), "off".into()]),
            ..Samples::default()
        }];
        run
    }

    #[test]
    fn a_run_is_drawn_from_what_was_published() {
        insta::assert_snapshot!(drawn().picture().unwrap().svg);
        assert!(run(0.5).picture().is_none(), "its experiment has no figure");
    }

    #[test]
    fn a_text_shows_the_figure_its_answer_and_its_run() {
        let (drawn, none) = (drawn(), run(0.5));
        let text = markdown(&[("e", &drawn), ("f", &none)], "../results");
        assert_eq!(
            text,
            "[![Rates \\[1\\]: a; Gain: a. It is 0.50 times as fast.](../results/e.svg)](../results/e.svg)\n\n\
             It is 0.50 times as fast. `e`: commit 0123456789ab, 2026-11-23\n"
        );
        assert_eq!(markdown(&[("f", &none)], ""), NONE);
    }

    #[test]
    fn files_are_those_of_the_runs() {
        let root = tempfile::tempdir().unwrap();
        let path = |name: &str| root.path().join(DIRECTORY).join(name);
        let runs = Runs::from([("e".to_owned(), drawn()), ("none".to_owned(), run(1.0))]);
        assert_eq!(render(root.path(), &runs, true).unwrap(), [path("e.svg")]);
        assert!(!path("e.svg").exists(), "whoever only looks writes nothing");
        assert_eq!(render(root.path(), &runs, false).unwrap(), [path("e.svg")]);
        assert!(render(root.path(), &runs, true).unwrap().is_empty());
        fs::write(path("old.svg"), "a run that is gone").unwrap();
        fs::write(path("page.md"), "no figure").unwrap();
        assert_eq!(render(root.path(), &runs, false).unwrap(), [path("old.svg")]);
        assert!(!path("old.svg").exists() && path("page.md").exists());
        assert!(render(root.path(), &runs, true).unwrap().is_empty());
    }
}
