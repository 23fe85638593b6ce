//! Figures of published runs within a sentence or a cell of a table, which a `|` would end: fields are apart by `;`.

use anyhow::{Context, Result, anyhow, bail, ensure};

use super::{Run, Runs};
use crate::report::Row;
use crate::table::{interval, number, span};

/// What a figure begins with, up to its run and row.
const BEGIN: &str = "<!-- figure:";
/// What ends that.
const CLOSE: &str = "-->";
/// What ends the figure.
const END: &str = "<!-- end -->";

/// Returns `line` with the figures that `runs` have.
///
/// # Errors
/// When a figure has no end, names something that is not there, or begins a line: Markdown takes that line for HTML.
pub fn render(line: &str, runs: &Runs) -> Result<String> {
    let mut rendered = String::with_capacity(line.len());
    let mut rest = line;
    while let Some((before, after)) = rest.split_once(BEGIN) {
        let is_first = rendered.is_empty() && before.trim().is_empty();
        ensure!(!is_first, "{BEGIN:?} begins the line: put a word before it");
        let open = || anyhow!("no {CLOSE:?} after {BEGIN:?}");
        let (what, after) = after.split_once(CLOSE).ok_or_else(open)?;
        let endless = || anyhow!("no {END:?} in the line of {BEGIN:?}");
        let (old, after) = after.split_once(END).ok_or_else(endless)?;
        ensure!(!old.contains("<!--"), "no {END:?} before the next comment in the line");
        let figure = figure(what, runs)?;
        rendered.push_str(&format!("{before}{BEGIN}{what}{CLOSE}{figure}{END}"));
        rest = after;
    }
    rendered.push_str(rest);
    Ok(rendered)
}

/// Returns the figure of `RUN; ROW` or `RUN; ROW; FORM`.
fn figure(what: &str, runs: &Runs) -> Result<String> {
    let parts: Vec<_> = what.split(';').map(str::trim).collect();
    let (run, row, form) = match parts[..] {
        [run, row] => (run, row, None),
        [run, row, form] => (run, row, Some(form)),
        _ => bail!("give run and row: `RUN; ROW`"),
    };
    let run_of = runs.get(run).with_context(|| format!("no run {run:?} is published"))?;
    let found = run_of.report.rows.iter().find(|one| one.name == row);
    let found = found.with_context(|| format!("{run} has no row {row:?}"))?;
    if form == Some("further") {
        let expected = run_of.expected(row);
        ensure!(expected.is_some(), "{run} has too few repeats to expect anything of {row:?}");
    }
    shown(run_of, found, form).with_context(|| format!("{run} has not measured that of {row:?}"))?
}

/// None if it was not measured.
fn shown(run: &Run, row: &Row, form: Option<&str>) -> Option<Result<String>> {
    let with_unit = |figure: f64| match row.unit.as_str() {
        "1" => number(figure),
        unit => format!("{} {unit}", number(figure)),
    };
    let ratio = |figure: f64| format!("{}x", number(figure));
    let headline = || {
        let headline = row.headline()?;
        Some(if row.baseline.is_some() { ratio(headline) } else { with_unit(headline) })
    };
    let figure = match form {
        None if row.interval.is_some() => format!("{} ({})", headline()?, interval(row)),
        None => headline()?,
        Some("further") => format!("{} ({})", headline()?, span(run.expected(&row.name)?)),
        Some("ratio") => ratio(row.ratio?),
        Some("value") => with_unit(row.value?),
        Some("without") => with_unit(row.baseline?),
        Some(form) => {
            let forms = "`ratio`, `value`, `without` or `further`";
            return Some(Err(anyhow!("{form:?} is no form of a figure: give {forms}, or none")));
        }
    };
    Some(Ok(figure))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::Repeat;
    use super::super::tests::run;
    use super::*;
    use crate::stats::Interval;

    fn runs() -> Runs {
        let mut run = run(0.5);
        run.report.rows[0].interval = Some(Interval { low: 0.4, high: 0.6 });
        run.report.rows.push(Row::value("a/index", "1", Some(0.98)));
        let figures = BTreeMap::from([("a/b".to_owned(), 0.5)]);
        let repeat = Repeat { commit: "0".into(), started: String::new(), figures };
        run.repeats = vec![repeat.clone(), repeat];
        Runs::from([("e".to_owned(), run)])
    }

    fn rendered(what: &str) -> Result<String> {
        let line = render(&format!("so <!-- figure: {what} -->old<!-- end --> it is\n"), &runs())?;
        let figure = line.strip_prefix(&format!("so <!-- figure: {what} -->")).unwrap();
        Ok(figure.strip_suffix("<!-- end --> it is\n").unwrap().to_owned())
    }

    #[test]
    fn a_figure_is_that_of_its_row() {
        for (what, expected) in [
            ("e; a/b", "0.50x (0.40 to 0.60)"),
            ("e; a/b; ratio", "0.50x"),
            ("e; a/b; value", "5 Mbit/s"),
            ("e; a/b; without", "10 Mbit/s"),
            ("e; a/b; further", "0.50x (0.50 to 0.50)"),
            ("e; a/c", "2.50 ms"),
            ("e; a/c; value", "2.50 ms"),
            ("e; a/index", "0.98"),
        ] {
            assert_eq!(rendered(what).unwrap(), expected, "{what}");
        }
    }

    #[test]
    fn a_line_may_have_several_and_is_the_same_again() {
        let two =
            "| <!-- figure: e; a/b; ratio --><!-- end -->, <!-- figure: e; a/c -->1<!-- end --> |";
        let once = render(two, &runs()).unwrap();
        assert!(once.contains("-->0.50x<!--") && once.ends_with("-->2.50 ms<!-- end --> |"));
        assert_eq!(render(&once, &runs()).unwrap(), once);
        assert_eq!(once.matches('|').count(), 2, "a `|` would end the cell: {once}");
    }

    #[test]
    fn a_wrong_figure_is_an_error() {
        for (line, expected) in [
            ("so <!-- figure: e; a/b", "no \"-->\" after"),
            ("so <!-- figure: e; a/b --> 1", "no \"<!-- end -->\" in the line"),
            ("so <!-- figure: e --> <!-- end -->", "give run and row"),
            (
                "so <!-- figure: e; a/b --> 1 and <!-- figure: e; a/c --> 2<!-- end -->",
                "before the next comment",
            ),
            (" <!-- figure: e; a/b --><!-- end --> of it", "begins the line"),
            ("so <!-- figure: f; a/b --> <!-- end -->", "no run \"f\" is published"),
            ("so <!-- figure: e; a/z --> <!-- end -->", "e has no row \"a/z\""),
            ("so <!-- figure: e; a/b; mean --> <!-- end -->", "\"mean\" is no form of a figure"),
            ("so <!-- figure: e; a/c; further --> <!-- end -->", "e has too few repeats"),
            (
                "so <!-- figure: e; a/c; ratio --> <!-- end -->",
                "e has not measured that of \"a/c\"",
            ),
        ] {
            let error = render(line, &runs()).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
