//! How long functions and files are.

use std::path::{Path, PathBuf};

use proc_macro2::{Delimiter, TokenStream, TokenTree};

use crate::source::attempt;

/// Most lines of a function, and of a file.
const MAX_FUNCTION: usize = 60;
const MAX_FILE: usize = 600;
/// Most lines of half of all functions, and of nine in ten.
const MAX_MEDIAN: usize = 8;
const MAX_P90: usize = 20;

/// Functions and files of a tree.
#[derive(Debug, Default)]
pub struct Sizes {
    /// Lines of each function, from `fn` to its closing brace without empty ones and comments; sorted.
    functions: Vec<usize>,
    /// Lines of the longest file.
    longest: usize,
    /// What is too long, a sentence each.
    pub problems: Vec<String>,
}

/// Returns the sizes of all that is in `.rs` files below a folder.
pub fn read(folder: &Path) -> Result<Sizes, String> {
    let mut sizes = Sizes::default();
    for file in files(folder)? {
        let text = attempt(std::fs::read_to_string(&file), &file)?;
        sizes.add(&file, &text)?;
    }
    sizes.functions.sort_unstable();
    for (percent, limit) in [(50, MAX_MEDIAN), (90, MAX_P90)] {
        let lines = sizes.percentile(percent);
        if lines > limit {
            let problem = format!("{percent} % of functions have up to {lines} lines, not {limit}");
            sizes.problems.push(problem);
        }
    }
    Ok(sizes)
}

/// A file, and which of its lines have more than a comment.
struct Source<'a> {
    file: &'a Path,
    code: Vec<bool>,
}

fn is_code(line: &str) -> bool {
    let line = line.trim_start();
    !line.is_empty() && !line.starts_with("//")
}

impl Sizes {
    fn add(&mut self, file: &Path, text: &str) -> Result<(), String> {
        let lines = text.lines().count();
        self.longest = self.longest.max(lines);
        if lines > MAX_FILE {
            self.problems
                .push(format!("{} has {lines} lines, more than {MAX_FILE}", file.display()));
        }
        let source = Source { file, code: text.lines().map(is_code).collect() };
        self.functions(&source, attempt(text.parse(), file)?);
        Ok(())
    }

    /// Measures the functions in some tokens, and those in them.
    fn functions(&mut self, source: &Source<'_>, tokens: TokenStream) {
        let mut open: Option<(String, usize)> = None;
        let mut tokens = tokens.into_iter().peekable();
        while let Some(token) = tokens.next() {
            match token {
                TokenTree::Ident(word) if word == "fn" => {
                    // No name follows in the type of a pointer.
                    if let Some(TokenTree::Ident(name)) = tokens.peek() {
                        open = Some((name.to_string(), word.span().start().line));
                    }
                }
                TokenTree::Punct(punct) if punct.as_char() == ';' => open = None,
                TokenTree::Group(group) => {
                    if group.delimiter() == Delimiter::Brace
                        && let Some((name, first)) = open.take()
                    {
                        self.function(source, &name, first, group.span_close().start().line);
                    }
                    self.functions(source, group.stream());
                }
                _ => {}
            }
        }
    }

    fn function(&mut self, source: &Source<'_>, name: &str, first: usize, last: usize) {
        let lines = source.code[first - 1..last].iter().filter(|&&code| code).count();
        self.functions.push(lines);
        if lines > MAX_FUNCTION {
            let place = format!("{}:{first}", source.file.display());
            self.problems
                .push(format!("{place}: {name} has {lines} lines, more than {MAX_FUNCTION}"));
        }
    }

    /// Returns how many lines so many percent of the functions have at most.
    fn percentile(&self, percent: usize) -> usize {
        let rank = (self.functions.len() * percent).div_ceil(100);
        self.functions.get(rank.saturating_sub(1)).copied().unwrap_or(0)
    }
}

impl std::fmt::Display for Sizes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (median, p90, most) = (self.percentile(50), self.percentile(90), self.percentile(100));
        write!(f, "{} functions: median {median} lines, ", self.functions.len())?;
        write!(f, "90 % at most {p90}, longest {most}; longest file {}", self.longest)
    }
}

/// Returns the `.rs` files below a folder, in order, without what is built.
fn files(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let (mut found, mut folders) = (Vec::new(), vec![folder.to_owned()]);
    while let Some(folder) = folders.pop() {
        for entry in attempt(std::fs::read_dir(&folder), &folder)? {
            let entry = attempt(entry, &folder)?;
            let (path, name) = (entry.path(), entry.file_name());
            if attempt(entry.file_type(), &path)?.is_dir() {
                if name != "target" && name != "out" && !name.to_string_lossy().starts_with('.') {
                    folders.push(path);
                }
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a function of so many lines.
    fn body(lines: usize) -> String {
        format!("fn f() {{{}}}\n", "\n;".repeat(lines - 1))
    }

    /// Returns the sizes of a tree with this text in a file, and in one that was built.
    fn sizes(text: &str) -> Sizes {
        let folder = tempfile::tempdir().unwrap();
        for name in ["a/src", "target"] {
            std::fs::create_dir_all(folder.path().join(name)).unwrap();
            std::fs::write(folder.path().join(name).join("lib.rs"), text).unwrap();
        }
        read(folder.path()).unwrap()
    }

    #[test]
    fn a_function_counts_from_its_name_to_its_brace() {
        let text = "/// Comment.\npub fn f<T>(a: T,\n  f: fn() -> u32)\nwhere T: Copy {\n\n // Why.\n}\n\
                    trait T { fn declared(&self); fn g() {\n fn inner() {}\n} }\n";
        assert_eq!(sizes(text).functions, [1, 3, 4]);
        assert_eq!(sizes("macro_rules! m { () => { fn f() {\n} } }").functions, [2]);
        assert_eq!(sizes("const F: fn() = { g };").functions, [0; 0]);
    }

    #[test]
    fn what_is_too_long_is_named() {
        let short = "fn g() {}\n".repeat(100);
        assert_eq!(sizes(&(short.clone() + &body(MAX_FUNCTION))).problems, [""; 0]);
        let found = sizes(&(short.clone() + &body(MAX_FUNCTION + 1))).problems;
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains("lib.rs:101: f has 61 lines"), "{found:?}");
        assert_eq!(sizes(&"\n".repeat(MAX_FILE)).problems, [""; 0]);
        assert_eq!(sizes(&"\n".repeat(MAX_FILE + 1)).problems.len(), 1);
    }

    #[test]
    fn most_functions_are_short() {
        let of = |nine: usize, one: usize| sizes(&(body(nine).repeat(9) + &body(one))).problems;
        assert_eq!(of(MAX_MEDIAN, MAX_FUNCTION), [""; 0]);
        assert_eq!(of(MAX_MEDIAN + 1, 1).len(), 1);
        assert_eq!(of(MAX_P90 + 1, 1).len(), 2);
    }
}
