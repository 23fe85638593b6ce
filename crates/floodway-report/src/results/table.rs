//! A block's table, in Markdown.

use anyhow::{Result, ensure};

use super::Run;
use crate::band;
use crate::report::{Row, Verdict};
use crate::stats;
use crate::table::{band as accepted, interval, number, span};

/// Digits of a commit that name it.
const SHORT: usize = 12;

/// The rows of `runs` that the patterns name, one line each, and below them which runs these are.
///
/// # Errors
/// When a pattern meets no row, or a run lacks one that the first has.
pub fn render(runs: &[(&str, &Run)], patterns: &[&str]) -> Result<String> {
    let Some((_, first)) = runs.first() else { return Ok(String::new()) };
    let mut rows = Vec::new();
    for pattern in patterns {
        let before = rows.len();
        rows.extend(first.report.rows.iter().filter(|row| band::matches(pattern, &row.name)));
        ensure!(rows.len() > before, "no row is named {pattern:?}");
    }
    let table = if runs.len() == 1 { one(first, &rows) } else { several(runs, &rows)? };
    let sources: Vec<_> = runs.iter().map(|(name, run)| source(name, run)).collect();
    Ok(format!("{table}\n{}\n", sources.join("<br>\n")))
}

/// With Floodway, without, their ratio, its interval if a row has one, where a further run's is expected if that is known, and what was accepted.
fn one(run: &Run, rows: &[&Row]) -> String {
    let figure = |figure: Option<f64>| figure.map_or_else(String::new, number);
    let ratio =
        |row: &Row| row.ratio.map_or_else(String::new, |ratio| format!("{}x", number(ratio)));
    let are_sure = rows.iter().any(|row| row.interval.is_some());
    let expected = |row: &Row| run.expected(&row.name).map_or_else(String::new, span);
    let are_expected = rows.iter().any(|row| run.expected(&row.name).is_some());
    let lines = rows.iter().map(|row| {
        let mut line = vec![row.name.clone(), row.unit.clone()];
        line.extend([figure(row.value), figure(row.baseline), ratio(row)]);
        line.extend(are_sure.then(|| interval(row)));
        line.extend(are_expected.then(|| expected(row)));
        line.extend([accepted(row), row.verdict.map_or_else(String::new, verdict)]);
        line
    });
    let mut header = vec!["figure", "unit", "Floodway", "without", "ratio"];
    header.extend(are_sure.then_some("95 %"));
    header.extend(are_expected.then_some("further run"));
    header.extend(["accepted", "verdict"]);
    let header: Vec<_> = header.into_iter().map(str::to_owned).collect();
    markdown(&header, lines)
}

/// The headline of each run, and their mean.
fn several(runs: &[(&str, &Run)], rows: &[&Row]) -> Result<String> {
    let mut lines = Vec::new();
    for row in rows {
        let find = |(name, run): &(&str, &Run)| {
            let found = run.report.rows.iter().find(|other| other.name == row.name);
            ensure!(found.is_some(), "{name} has no row {:?}", row.name);
            Ok(found.and_then(Row::headline))
        };
        let headlines = runs.iter().map(find).collect::<Result<Vec<_>>>()?;
        let shown = headlines.iter().map(|one| one.map_or_else(String::new, number));
        let known: Option<Vec<_>> = headlines.iter().copied().collect();
        let mean = known.and_then(|known| stats::mean(&known));
        let mut line = vec![row.name.clone()];
        line.extend(shown);
        line.extend([mean.map_or_else(String::new, number), accepted(row)]);
        lines.push(line);
    }
    let mut header = vec!["figure".to_owned()];
    header.extend((1..=runs.len()).map(|n| format!("trial {n}")));
    header.extend(["mean".to_owned(), "accepted".to_owned()]);
    Ok(markdown(&header, lines))
}

fn verdict(verdict: Verdict) -> String {
    match verdict {
        Verdict::Ok => "ok".into(),
        other => format!("**{}**", other.name()),
    }
}

/// Which run it is.
pub fn origin(name: &str, run: &Run) -> String {
    let commit = run.provenance.commit.as_deref().unwrap_or("unknown");
    let day = run.provenance.started.split('T').next().unwrap_or_default();
    format!("`{name}`: commit {}, {day}", commit.get(..SHORT).unwrap_or(commit))
}

/// Which run it is, and how to make it again.
fn source(name: &str, run: &Run) -> String {
    let fact = |key: &str| {
        run.report
            .host
            .get(key)
            .map(|value| value.as_str().map_or_else(|| value.to_string(), str::to_owned))
    };
    let cpus = fact("cpus").map(|cpus| format!("{cpus} CPUs"));
    // A simulation depends on no machine, and its report names none.
    let repeats = run.repeats.len();
    let repeats = (repeats > 0).then(|| format!("repeated {repeats} times"));
    let facts = [Some(origin(name, run)), cpus, fact("cpu_model"), fact("accelerator"), repeats];
    let facts: Vec<_> = facts.into_iter().flatten().collect();
    format!("{}; `{}`", facts.join(", "), run.provenance.command.join(" "))
}

fn markdown<L: AsRef<[String]>>(header: &[String], lines: impl IntoIterator<Item = L>) -> String {
    let line = |cells: &[String]| {
        let cells: Vec<_> = cells.iter().map(|cell| cell.replace('|', "\\|")).collect();
        format!("| {} |\n", cells.join(" | "))
    };
    let rule = format!("|{}\n", "---|".repeat(header.len()));
    let body: String = lines.into_iter().map(|cells| line(cells.as_ref())).collect();
    line(header) + &rule + &body
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::Repeat;
    use super::super::tests::run;
    use super::*;

    #[test]
    fn one_run_shows_figures_band_and_verdict() {
        let run = run(0.5);
        let text = render(&[("e", &run)], &["a/*"]).unwrap();
        assert_eq!(
            text,
            "| figure | unit | Floodway | without | ratio | accepted | verdict |\n\
             |---|---|---|---|---|---|---|\n\
             | a/b | Mbit/s | 5 | 10 | 0.50x | 0.80x to 1.25x | **below target** |\n\
             | a/c | ms | 2.50 |  |  |  |  |\n\n\
             `e`: commit 0123456789ab, 2026-11-23, x; `floodway-lab real`\n"
        );
    }

    #[test]
    fn a_run_without_a_machine_names_none() {
        let mut run = run(0.5);
        run.report.host.clear();
        let text = render(&[("e", &run)], &["a/*"]).unwrap();
        let end = "`e`: commit 0123456789ab, 2026-11-23; `floodway-lab real`\n";
        assert!(text.ends_with(end), "{text}");
    }

    #[test]
    fn a_run_whose_rows_have_intervals_shows_them() {
        let mut run = run(0.5);
        run.report.rows[0].interval = Some(stats::Interval { low: 0.4, high: 0.6 });
        let text = render(&[("e", &run)], &["a/*"]).unwrap();
        let line = "| a/b | Mbit/s | 5 | 10 | 0.50x | 0.40 to 0.60 | 0.80x to 1.25x |";
        assert!(text.contains("| ratio | 95 % | accepted |") && text.contains(line), "{text}");
    }

    #[test]
    fn a_run_that_was_repeated_shows_where_the_next_is_expected() {
        let mut run = run(0.5);
        let figures = BTreeMap::from([("a/b".to_owned(), 0.5)]);
        let repeat = Repeat { commit: "0".into(), started: String::new(), figures };
        run.repeats = vec![repeat.clone(), repeat];
        let text = render(&[("e", &run)], &["a/*"]).unwrap();
        let line = "| a/b | Mbit/s | 5 | 10 | 0.50x | 0.50 to 0.50 | 0.80x to 1.25x |";
        assert!(text.contains("| ratio | further run | accepted |"), "{text}");
        assert!(text.contains(line) && text.contains("x, repeated 2 times; `"), "{text}");
    }

    #[test]
    fn several_runs_show_each_headline_and_the_mean() {
        let runs = [run(0.5), run(1.0)];
        let text = render(&[("e-1", &runs[0]), ("e-2", &runs[1])], &["a/b"]).unwrap();
        let (header, line) =
            ("| figure | trial 1 | trial 2 | mean | accepted |", "| a/b | 0.50 | 1 | 0.75 |");
        assert!(text.starts_with(header) && text.contains(line), "{text}");
        assert_eq!(text.matches("commit 0123").count(), 2);
    }

    #[test]
    fn what_is_not_there_is_an_error() {
        let (whole, mut part) = (run(1.0), run(1.0));
        part.report.rows.pop();
        assert!(render(&[("e", &whole)], &["b"]).is_err());
        let error = render(&[("e-1", &whole), ("e-2", &part)], &["a/c"]).unwrap_err();
        assert_eq!(error.to_string(), "e-2 has no row \"a/c\"");
    }
}
