//! Texts with tables and figures of results.

use std::fs;
use std::iter;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail, ensure};

use super::{Run, Runs, figures, inline, table};
use crate::band;

/// What a block of a table begins with, up to its runs.
const TABLE: &str = "<!-- results:";
/// What a block of figures begins with.
const FIGURES: &str = "<!-- figures of results:";
/// What ends its first line.
const CLOSE: &str = "-->";
/// What a block ends with.
const END: &str = "<!-- end of results -->";

/// Files whose tables and figures are made of published runs.
#[derive(Clone, Debug)]
pub struct Texts {
    root: PathBuf,
    files: Vec<PathBuf>,
}

impl Texts {
    /// The Markdown files of `root` itself and those below its `docs`.
    ///
    /// # Errors
    /// When a directory cannot be listed.
    pub fn below(root: &Path) -> Result<Self> {
        let mut files = Vec::new();
        list(root, false, &mut files)?;
        list(&root.join("docs"), true, &mut files)?;
        files.sort();
        Ok(Self { root: root.to_owned(), files })
    }

    /// Makes the tables of all texts from `runs`, with the places of figures, and writes the files that this changes unless it is a `check`. Returns them.
    ///
    /// # Errors
    /// When a file cannot be read or written, or a block is wrong; the error names file and line. Nothing is written then.
    pub fn render(&self, runs: &Runs, check: bool) -> Result<Vec<PathBuf>> {
        let mut changed = Vec::new();
        for path in &self.files {
            let text = fs::read_to_string(path)
                .with_context(|| format!("cannot read {}", path.display()))?;
            let rendered = render(&text, runs, &self.way_to_figures(path))
                .map_err(|(line, error)| anyhow!("{}:{line}: {error:#}", path.display()))?;
            if rendered != text {
                changed.push((path.clone(), rendered));
            }
        }
        for (path, rendered) in changed.iter().filter(|_| !check) {
            fs::write(path, rendered)
                .with_context(|| format!("cannot write {}", path.display()))?;
        }
        Ok(changed.into_iter().map(|(path, _)| path).collect())
    }

    /// The way from a text's directory to the figures.
    fn way_to_figures(&self, text: &Path) -> String {
        let directory = text.strip_prefix(&self.root).ok().and_then(Path::parent);
        let from: Vec<_> = directory.into_iter().flat_map(Path::components).collect();
        let to: Vec<_> = Path::new(figures::DIRECTORY).components().collect();
        let shared = from.iter().zip(&to).take_while(|(from, to)| from == to).count();
        let down = to[shared..].iter().map(|part| part.as_os_str().to_string_lossy());
        let up = iter::repeat_n("..".into(), from.len() - shared);
        up.chain(down).collect::<Vec<_>>().join("/")
    }
}

/// Adds the Markdown files in `directory`, with those below it if they are `deep`.
fn list(directory: &Path, deep: bool, files: &mut Vec<PathBuf>) -> Result<()> {
    let context = || format!("cannot list {}", directory.display());
    for entry in fs::read_dir(directory).with_context(context)? {
        let path = entry.with_context(context)?.path();
        if path.is_dir() && deep {
            list(&path, deep, files)?;
        } else if path.is_file() && path.extension().is_some_and(|extension| extension == "md") {
            files.push(path);
        }
    }
    Ok(())
}

/// Returns `text` with the tables that `runs` make, and with their figures, to which `way` leads; with an error the number of its line.
fn render(text: &str, runs: &Runs, way: &str) -> Result<String, (usize, anyhow::Error)> {
    let mut rendered = String::with_capacity(text.len());
    let mut lines = text.split_inclusive('\n').enumerate();
    // In a fenced code block it is an example.
    let mut is_code = false;
    while let Some((n, line)) = lines.next() {
        is_code ^= line.starts_with("```");
        if is_code {
            rendered.push_str(line);
            continue;
        }
        let in_line = |error| (n + 1, error);
        let Some(content) = content(line.trim_end(), runs, way) else {
            rendered.push_str(&inline::render(line, runs).map_err(in_line)?);
            continue;
        };
        rendered.push_str(line);
        let content = content.map_err(in_line)?;
        let end = lines.find(|(_, line)| line.trim_end() == END);
        let Some((_, end)) = end else { return Err(in_line(anyhow!("no {END:?} follows"))) };
        rendered.push_str(&format!("\n{content}\n{end}"));
    }
    Ok(rendered)
}

/// What is in the block that `line` begins; none if it begins no block.
fn content(line: &str, runs: &Runs, way: &str) -> Option<Result<String>> {
    let block = |begin: &str| Some(line.strip_prefix(begin)?.strip_suffix(CLOSE));
    let open = || anyhow!("no {CLOSE:?} at the end of the line");
    if let Some(block) = block(FIGURES) {
        return Some(block.ok_or_else(open).and_then(|block| block_figures(block, runs, way)));
    }
    block(TABLE).map(|block| block.ok_or_else(open).and_then(|block| block_table(block, runs)))
}

/// The table of a block that begins with `RUNS | ROWS -->`.
fn block_table(block: &str, runs: &Runs) -> Result<String> {
    let Some((names, patterns)) = block.split_once('|') else { bail!("no `|` before the rows") };
    let chosen = split(names).map(|name| {
        let run = runs.get_key_value(name);
        run.map(|(name, run)| (name.as_str(), run))
            .with_context(|| format!("no run {name:?} is published"))
    });
    let chosen = chosen.collect::<Result<Vec<_>>>()?;
    let patterns: Vec<_> = split(patterns).collect();
    ensure!(!chosen.is_empty() && !patterns.is_empty(), "give runs and rows: `RUNS | ROWS`");
    table::render(&chosen, &patterns)
}

/// The figures of a block that begins with `RUNS -->`.
fn block_figures(block: &str, runs: &Runs, way: &str) -> Result<String> {
    let mut chosen: Vec<(&str, &Run)> = Vec::new();
    for pattern in split(block) {
        let before = chosen.len();
        let all = runs.iter().map(|(name, run)| (name.as_str(), run));
        chosen.extend(all.filter(|(name, _)| band::matches(pattern, name)));
        ensure!(chosen.len() > before, "no run {pattern:?} is published");
    }
    ensure!(!chosen.is_empty(), "give runs");
    Ok(figures::markdown(&chosen, way))
}

fn split(list: &str) -> impl Iterator<Item = &str> {
    list.split(',').map(str::trim).filter(|part| !part.is_empty())
}

#[cfg(test)]
mod tests {
    use super::super::tests::run;
    use super::*;
    use crate::about::Figure;
    use proptest::prelude::*;

    fn runs() -> Runs {
        Runs::from([("e".to_owned(), run(1.0))])
    }

    const TEXT: &str = "before\r\n<!-- results: e | a/b -->\nold\n<!-- end of results -->\nafter";

    #[test]
    fn a_block_has_the_table_of_its_rows() {
        let rendered = render(TEXT, &runs(), "").unwrap();
        assert!(rendered.starts_with("before\r\n<!-- results: e | a/b -->\n\n| figure |"));
        assert!(rendered.contains("| a/b | Mbit/s | 10 | 10 | 1x |") && !rendered.contains("old"));
        assert!(rendered.ends_with("\n\n<!-- end of results -->\nafter"), "{rendered}");
        assert_eq!(render(&rendered, &runs(), "").unwrap(), rendered, "and the same again");
    }

    #[test]
    fn a_wrong_block_is_an_error_with_its_line() {
        for (block, expected) in [
            ("<!-- results: e | a/b -->\nno end", "no \"<!-- end of results -->\" follows"),
            ("<!-- results: f | a/b -->\n<!-- end of results -->", "no run \"f\" is published"),
            ("<!-- results: e | z -->\n<!-- end of results -->", "no row is named \"z\""),
            ("<!-- results: e -->\n<!-- end of results -->", "no `|` before the rows"),
            (
                "<!-- results: | a/b -->\n<!-- end of results -->",
                "give runs and rows: `RUNS | ROWS`",
            ),
            ("<!-- results: e | a/b\n<!-- end of results -->", "no \"-->\" at the end of the line"),
            (
                "<!-- figures of results: e\n<!-- end of results -->",
                "no \"-->\" at the end of the line",
            ),
            (
                "<!-- figures of results: f* -->\n<!-- end of results -->",
                "no run \"f*\" is published",
            ),
            ("<!-- figures of results: -->\n<!-- end of results -->", "give runs"),
            ("<!-- figures of results: e -->\nno end", "no \"<!-- end of results -->\" follows"),
        ] {
            let (line, error) = render(&format!("\n{block}"), &runs(), "").unwrap_err();
            assert_eq!((line, error.to_string().as_str()), (2, expected));
        }
    }

    #[test]
    fn a_sentence_has_its_figures() {
        let text = "one\nit is <!-- figure: e; a/b --><!-- end -->.\n";
        let rendered = render(text, &runs(), "").unwrap();
        assert_eq!(rendered, "one\nit is <!-- figure: e; a/b -->1x<!-- end -->.\n");
        let (line, _) = render(&text.replace("a/b", "z"), &runs(), "").unwrap_err();
        assert_eq!(line, 2);
    }

    #[test]
    fn an_example_in_a_code_block_is_none() {
        let text = "```text\n<!-- results: f | z -->\n<!-- figure: f; z -->\n```\n";
        assert_eq!(render(text, &runs(), "").unwrap(), text);
        assert!(render(&format!("{text}<!-- results: f | z -->"), &runs(), "").is_err());
    }

    #[test]
    fn files_change_only_if_nobody_just_looks() {
        let dir = tempfile::tempdir().unwrap();
        let deep = dir.path().join("docs/src");
        fs::create_dir_all(&deep).unwrap();
        let (readme, page) = (dir.path().join("README.md"), deep.join("page.md"));
        fs::write(&readme, "none here").unwrap();
        fs::write(&page, TEXT).unwrap();
        let texts = Texts::below(dir.path()).unwrap();
        assert_eq!(texts.render(&runs(), true).unwrap(), std::slice::from_ref(&page));
        assert_eq!(fs::read_to_string(&page).unwrap(), TEXT);
        assert_eq!(texts.render(&runs(), false).unwrap(), [page]);
        assert!(texts.render(&runs(), true).unwrap().is_empty());
    }

    #[test]
    fn figures_are_found_from_each_text() {
        let texts = Texts { root: "/a".into(), files: Vec::new() };
        for (text, way) in [
            ("README.md", "docs/src/results"),
            ("docs/src/results.md", "results"),
            ("docs/src/lab/reports.md", "../results"),
            ("docs/adr/0001.md", "../src/results"),
        ] {
            assert_eq!(texts.way_to_figures(&Path::new("/a").join(text)), way);
        }
    }

    #[test]
    fn a_block_of_figures_has_those_of_the_runs_that_it_names() {
        let text = "<!-- figures of results: * -->\nold\n<!-- end of results -->";
        let mut runs = runs();
        let of = |runs: &Runs| render(text, runs, "results").unwrap();
        assert!(of(&runs).contains("No figure yet"), "{}", of(&runs));
        let figure = Figure { title: "Gain".into(), rows: "a/{x}".into(), ..Figure::default() };
        runs.get_mut("e").unwrap().report.about.figure.push(figure);
        let expected = "-->\n\n[![Gain.](results/e.svg)](results/e.svg)\n\n`e`: commit 0123";
        assert!(of(&runs).contains(expected), "{}", of(&runs));
        assert_eq!(render(&of(&runs), &runs, "results").unwrap(), of(&runs), "and the same again");
    }

    proptest! {
        #[test]
        fn what_is_no_block_stays_to_the_byte(text in "[a-z|<>!\\-\r\n ]{0,80}") {
            prop_assert_eq!(render(&text, &runs(), "").unwrap(), text);
        }
    }
}
