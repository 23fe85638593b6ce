//! Checks that the modules of a crate are layers: no module imports, directly or through others, one that imports it; and
//! that functions and files are small.
//!
//! # Theory of operation
//! **Rule.** Below every module, the children are the nodes of a graph, each with all that is in its folder. An edge leads from
//! one child to another if a path in the first names something in the second. Each of these graphs must be free of circles.
//! A child may name what its parent defines, and a parent what its children do: they are one thing in several files.
//!
//! **How.** [`source`] reads the crate's files into a tree of modules with the paths in them, as the lexer of
//! `proc-macro2` sees them, so neither comments nor strings count. [`graph`] follows each path through re-exports to the module
//! that defines the thing, and looks for circles. Code for tests only (`#[cfg(test)]`) does not count.
//!
//! **Limits.** Only paths that start with `crate`, `self` or `super`, and `use` of names in scope, are seen. A method call needs no
//! path, so an `impl` of another module's type may call on what is above it. What a macro of another crate expands to is not
//! seen. Glob imports of the crate's own modules would hide edges and are refused, as are `#[path]` attributes.
//!
//! **Sizes.** [`size`] counts the lines of each function, tests among them, from `fn` to its closing brace without empty ones and comments, and of each file. What is longer than the
//! limits there is named; the figures of the tree are printed.
//!
//! `cargo modules dependencies --acyclic` was considered: to install it compiles rust-analyzer, minutes of processor time on each machine
//! that runs `make lint`. This compiles in seconds and takes less than one to run.

mod graph;
mod size;
mod source;

use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    match run(Path::new(".")) {
        Ok(problems) if problems.is_empty() => ExitCode::SUCCESS,
        Ok(problems) => {
            for problem in problems {
                eprintln!("{problem}");
            }
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Returns what is wrong with the tree in a folder, a paragraph each. Prints its sizes.
fn run(tree: &Path) -> Result<Vec<String>, String> {
    let crates = tree.join("crates");
    let sizes = size::read(tree)?;
    println!("{sizes}");
    let mut problems = sizes.problems;
    for name in names(&crates)? {
        problems.extend(check(&crates.join(&name))?);
    }
    Ok(problems)
}

/// Returns the names of the crates in a folder, in order.
fn names(crates: &Path) -> Result<Vec<String>, String> {
    let mut names = Vec::new();
    for entry in source::attempt(std::fs::read_dir(crates), crates)? {
        let name = source::attempt(entry, crates)?.file_name().to_string_lossy().into_owned();
        if crates.join(&name).join("Cargo.toml").exists() {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

/// Returns the circles of a crate, and what cannot be checked in it.
fn check(folder: &Path) -> Result<Vec<String>, String> {
    let src = folder.join("src");
    let root = ["lib.rs", "main.rs"].map(|name| src.join(name));
    let Some(root) = root.iter().find(|file| file.exists()) else {
        return Err(format!("{}: neither lib.rs nor main.rs", src.display()));
    };
    let modules = source::read(root)?;
    let mut problems: Vec<_> =
        modules.iter().flat_map(|module| module.refused.iter().cloned()).collect();
    problems.extend(graph::circles(&modules));
    let name = folder.file_name().unwrap_or_default().to_string_lossy();
    Ok(problems.into_iter().map(|problem| format!("{name}: {problem}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns what is wrong with a crate of the given files.
    fn problems(files: &[(&str, &str)]) -> Vec<String> {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let file = folder.path().join("src").join(name);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, text).unwrap();
        }
        check(folder.path()).unwrap()
    }

    #[test]
    fn siblings_that_import_each_other_are_a_circle() {
        let found = problems(&[
            ("lib.rs", "mod a; mod b; mod c;"),
            ("a.rs", "use super::b::B; pub struct A(B);"),
            ("b.rs", "pub struct B; fn f() { crate::c::g() }"),
            ("c.rs", "use crate::{a::A as X}; pub fn g() {}"),
        ]);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains("circle of a, b, c"), "{found:?}");
    }

    #[test]
    fn a_re_export_leads_to_where_the_thing_is_defined() {
        let through_parent = [
            ("lib.rs", "mod a; mod b; pub use a::A;"),
            ("a.rs", "pub struct A(crate::b::B);"),
            ("b.rs", "pub struct B; use crate::A;"),
        ];
        assert_eq!(problems(&through_parent).len(), 1);
        let of_an_outsider = [
            ("lib.rs", "mod a; mod b; pub use std::fmt as A;"),
            ("a.rs", "pub struct A(crate::b::B);"),
            ("b.rs", "pub struct B; use crate::A;"),
        ];
        assert_eq!(problems(&of_an_outsider), [""; 0]);
    }

    #[test]
    fn folders_count_as_one_module_seen_from_outside() {
        let found = problems(&[
            ("lib.rs", "mod a; mod b;"),
            ("a/mod.rs", "mod x; mod y;"),
            ("a/x.rs", "use crate::b::B;"),
            ("a/y.rs", "pub struct Y;"),
            ("b.rs", "pub struct B; use crate::a::y::Y;"),
        ]);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains("circle of a, b"), "{found:?}");
    }

    #[test]
    fn parents_and_children_may_name_each_other() {
        let found = problems(&[
            ("lib.rs", "mod a; struct S(a::A);"),
            ("a.rs", "mod x; pub struct A(x::X); pub(in crate::a) struct T;"),
            ("a/x.rs", "use super::T; use crate::S; pub struct X(T, S);"),
        ]);
        assert_eq!(found, [""; 0]);
    }

    #[test]
    fn comments_strings_and_tests_do_not_count() {
        let found = problems(&[
            ("lib.rs", "mod a; mod b; #[cfg(test)] mod c;"),
            ("a.rs", "pub struct A(crate::b::B); // \" it's"),
            (
                "b.rs",
                "//! [`crate::a::A`]\n pub struct B; /* crate::a */ const S: &str = r\"crate::a::A\"; \
              #[cfg(test)] mod tests { use crate::a::A; } #[cfg(test)] use crate::a::A;",
            ),
            ("c.rs", "use crate::a::A;"),
        ]);
        assert_eq!(found, [""; 0]);
    }

    #[test]
    fn paths_in_macros_count() {
        let found = problems(&[
            ("lib.rs", "mod a; mod b;"),
            ("a.rs", "pub struct A(crate::b::B);"),
            ("b.rs", "pub struct B; fn f() { assert!(crate::a::A == 1) }"),
        ]);
        assert_eq!(found.len(), 1, "{found:?}");
    }

    #[test]
    fn globs_of_own_modules_are_refused() {
        let found = problems(&[("lib.rs", "mod a; use a::*; use std::io::*;"), ("a.rs", "")]);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains("a::*"), "{found:?}");
    }
}
