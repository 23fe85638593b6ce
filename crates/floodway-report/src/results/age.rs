//! How old a run is: commits since its own that changed what decides its figures.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::Run;
use crate::report::World;

/// What decides figures of both worlds, below the root of the sources.
const BOTH: [&str; 5] = [
    "Cargo.lock",
    "crates/floodway-core",
    "crates/floodway-experiment",
    "crates/floodway-report/src/stats.rs",
    "crates/floodway-wire",
];
/// What decides figures of real VMs.
const REAL: [&str; 9] = [
    "crates/floodway",
    "crates/floodway-api",
    "crates/floodway-broker",
    "crates/floodway-lab",
    "crates/floodway-netem",
    "crates/floodway-process",
    "crates/floodway-switch",
    "bench",
    "guest",
];
/// What decides those of virtual time.
const SIM: [&str; 3] = ["crates/floodway-sim", "crates/floodway-simlab", "experiments/hosts"];

/// Below it, what only some kinds of experiments run.
const EXPERIMENTS: &str = "crates/floodway-lab/src/experiment";
/// Modules of [`EXPERIMENTS`] that no other one uses, and the kinds that run them.
const OF_KINDS: [(&str, &[&str]); 9] = [
    ("friendliness", &["friendliness"]),
    ("idle", &["idle"]),
    ("migration", &["migration", "moves"]),
    ("residency", &["residency"]),
    ("small_flows", &["small-flows"]),
    ("switch_killed", &["switch-killed"]),
    ("throughput", &["throughput"]),
    ("vm_restart", &["vm-restart"]),
    ("web", &["web-application"]),
];
/// Kinds that run none of these.
const OTHER_KINDS: [&str; 6] =
    ["all-pairs", "inbound", "integrity", "simulated", "switch-restart", "transfer"];

/// What `floodway-lab bench` calls its runs, which use no experiment's module.
const BENCH: &str = "bench";

/// What is there and decides no figures: integration tests, what says which programs a machine lacks, and what publishes figures.
const NEITHER: [&str; 3] = [
    ":(exclude,glob)crates/*/tests/**",
    ":(exclude)crates/floodway-lab/src/doctor.rs",
    ":(exclude)crates/floodway-lab/src/results.rs",
];

/// A line that decides something: neither blank nor a comment of its own. A comment behind code counts.
const CODE: &str = "-G^[[:space:]]*([^/[:space:]]|/[^/])";

/// Returns how many commits since the run's have changed what decides it, in the checkout at `root`. Those that change lines of comments only do not count.
///
/// # Errors
/// When git is missing, or does not know the commit.
pub fn commits_since(root: &Path, run: &Run) -> Result<u64> {
    commits(root, run, "..", "HEAD")
}

/// Returns how many commits have changed what decides the run either since it was made or since `other`, but not before both.
///
/// # Errors
/// As [`commits_since`].
pub fn commits_between(root: &Path, run: &Run, other: &str) -> Result<u64> {
    commits(root, run, "...", other)
}

fn commits(root: &Path, run: &Run, range: &str, other: &str) -> Result<u64> {
    let commit = run.provenance.commit.as_deref().context("built from no commit")?;
    let experiment = format!("experiments/{}.toml", run.report.experiment);
    let own: &[&str] = if run.report.world == World::Real { &REAL } else { &SIM };
    let output = Command::new("git")
        .arg("-C")
        .arg(root)
        .args(["log", "--format=%h", CODE, &format!("{commit}{range}{other}"), "--", &experiment])
        .args(BOTH.iter().chain(own))
        .args(NEITHER)
        .args(unused_modules(root, &run.report.experiment))
        .output()
        .context("cannot run git")?;
    ensure!(
        output.status.success(),
        "git: {}",
        String::from_utf8_lossy(&output.stderr).lines().next().unwrap_or_default()
    );
    Ok(String::from_utf8_lossy(&output.stdout).lines().count() as u64)
}

/// Returns the `kind` in an experiment's file; `None` if there is no such file, or the kind is unknown here.
fn kind(file: &Path) -> Option<&'static str> {
    let text = std::fs::read_to_string(file).ok()?;
    let value = text.lines().find_map(|line| line.strip_prefix("kind = \""))?;
    let named = |kind: &&str| value.strip_prefix(*kind).is_some_and(|rest| rest.starts_with('"'));
    let known = OF_KINDS.iter().flat_map(|(_, kinds)| *kinds).chain(&OTHER_KINDS);
    known.copied().find(named)
}

/// Returns pathspecs that exclude the modules of [`EXPERIMENTS`] which the run of this name does not use.
fn unused_modules(root: &Path, name: &str) -> Vec<String> {
    if name == BENCH {
        return vec![format!(":(exclude){EXPERIMENTS}")];
    }
    not_of(kind(&root.join(format!("experiments/{name}.toml"))))
}

/// Returns pathspecs that exclude the modules which an experiment of this kind does not run; none if the kind is unknown.
fn not_of(kind: Option<&str>) -> Vec<String> {
    let Some(kind) = kind else { return Vec::new() };
    let others = OF_KINDS.iter().filter(|(_, kinds)| !kinds.contains(&kind));
    let paths = others.flat_map(|(module, _)| [module.to_string(), format!("{module}.rs")]);
    paths.map(|path| format!(":(exclude){EXPERIMENTS}/{path}")).collect()
}

#[cfg(test)]
pub(super) mod tests {
    use std::path::PathBuf;

    use super::super::tests::run;
    use super::*;

    fn git(root: &Path, words: &[&str]) -> String {
        let who = ["-c", "user.name=a", "-c", "user.email=a@example.org"];
        let output = Command::new("git").arg("-C").arg(root).args(who).args(words).output();
        let output = output.unwrap();
        assert!(output.status.success(), "{words:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    pub fn commit(root: &Path, path: &str, text: &str) {
        let file = root.join(path);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, text).unwrap();
        git(root, &["add", "-A"]);
        git(root, &["commit", "-qm", path]);
    }

    /// Returns a repository with one file, and a run of its commit.
    pub fn published(path: &str, text: &str) -> (tempfile::TempDir, Run) {
        let dir = tempfile::tempdir().unwrap();
        git(dir.path(), &["init", "-q"]);
        commit(dir.path(), path, text);
        let mut run = run(1.0);
        run.provenance.commit = Some(git(dir.path(), &["rev-parse", "HEAD"]));
        (dir, run)
    }

    #[test]
    fn a_run_ages_by_what_decides_it_and_not_by_tests() {
        let (dir, mut run) = published("README.md", "");
        let root = dir.path();
        let commit = |path: &str| commit(root, path, "[scenario]\nkind = \"idle\"\n");
        for (path, age) in [
            ("crates/floodway-core/tests/a.rs", 0),
            ("crates/floodway-lab/src/doctor.rs", 0),
            ("crates/floodway-lab/src/results.rs", 0),
            ("crates/floodway-core/src/a.rs", 1),
            ("docs/a.md", 1),
            ("experiments/e.toml", 2),
            ("experiments/hosts/a.toml", 2),
            ("crates/floodway-lab/src/experiment/migration/mod.rs", 2),
            ("crates/floodway-lab/src/experiment/throughput.rs", 2),
            ("crates/floodway-lab/src/experiment/idle.rs", 3),
            ("crates/floodway-lab/src/experiment/transfer/mod.rs", 4),
        ] {
            commit(path);
            assert_eq!(commits_since(root, &run).unwrap(), age, "{path}");
        }
        run.report.world = World::Sim;
        assert_eq!(
            commits_since(root, &run).unwrap(),
            3,
            "the host's file decides what is simulated"
        );
    }

    #[test]
    fn what_changed_between_two_runs_counts_whichever_was_first() {
        let (dir, early) = published("README.md", "");
        let root = dir.path();
        commit(root, "docs/a.md", "");
        let head = || git(root, &["rev-parse", "HEAD"]);
        let same = head();
        commit(root, "crates/floodway-core/src/a.rs", "1");
        let changed = head();
        assert_eq!(commits_between(root, &early, &same).unwrap(), 0);
        assert_eq!(commits_between(root, &early, &changed).unwrap(), 1);
        let mut late = early.clone();
        let first = late.provenance.commit.replace(changed).unwrap();
        assert_eq!(commits_between(root, &late, &first).unwrap(), 1);
    }

    #[test]
    fn the_bench_ages_by_no_experiment() {
        let (dir, mut run) = published("README.md", "");
        let root = dir.path();
        run.report.experiment = BENCH.into();
        commit(root, "crates/floodway-lab/src/experiment/transfer/mod.rs", "fn a() {}\n");
        assert_eq!(commits_since(root, &run).unwrap(), 0);
        commit(root, "crates/floodway-lab/src/bench/mod.rs", "fn a() {}\n");
        assert_eq!(commits_since(root, &run).unwrap(), 1);
    }

    #[test]
    fn a_run_does_not_age_by_comments() {
        let path = "crates/floodway-core/src/a.rs";
        let (dir, run) = published(path, "//! A\nfn a() {}\n");
        let root = dir.path();
        let commit = |text: &str| commit(root, path, text);
        for (text, age) in [
            ("//! B\nfn a() {}\n", 0),
            ("//! B\n\n  /// C\nfn a() {}\n", 0),
            ("fn a() {}\n", 0),
            ("fn a() { 1 / 2 }\n", 1),
            ("fn a() { 1\n/ 2 }\n", 2),
            ("fn a() { 1\n}\n", 3),
        ] {
            commit(text);
            assert_eq!(commits_since(root, &run).unwrap(), age, "{text}");
        }
    }

    /// A name that is wrong would make every run young.
    #[test]
    fn what_decides_figures_is_there() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        for path in BOTH.iter().chain(&REAL).chain(&SIM) {
            assert!(root.join(path).exists(), "{path}");
        }
    }

    /// Reads how the lab's experiments fit together, out of its source.
    #[test]
    fn what_only_some_kinds_run_is_used_by_nothing_else() {
        let experiments = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(EXPERIMENTS);
        let lab = experiments.parent().unwrap();
        let parent = std::fs::read_to_string(experiments.join("mod.rs")).unwrap();
        let mut kinds_seen: Vec<String> = OTHER_KINDS.map(str::to_owned).to_vec();
        for (module, kinds) in OF_KINDS {
            let of_it = [experiments.join(module), experiments.join(format!("{module}.rs"))];
            let types = exported(&parent, module);
            let kinds_of_it: Vec<String> = variants(&parent)
                .into_iter()
                .filter(|(_, of)| types.contains(of))
                .map(|(variant, _)| kebab(&variant))
                .collect();
            assert_eq!(kinds_of_it, *kinds, "{module}");
            kinds_seen.extend(kinds_of_it);
            let users = sources(lab).into_iter().filter(|file| {
                let own = of_it.iter().any(|path| file.starts_with(path));
                let text = std::fs::read_to_string(file).unwrap();
                let named = types.iter().any(|of| uses(&text, &format!("super::{of}")));
                // The parent declares it, and calls it for its kinds.
                !own && *file != experiments.join("mod.rs")
                    && (named || uses(&text, &format!("{module}::")))
            });
            assert_eq!(users.collect::<Vec<_>>(), Vec::<PathBuf>::new(), "{module}");
        }
        let mut all: Vec<String> =
            variants(&parent).iter().map(|(variant, _)| kebab(variant)).collect();
        all.sort();
        kinds_seen.sort();
        assert_eq!(all, kinds_seen);
    }

    /// Types that `pub use module::...;` names.
    fn exported(source: &str, module: &str) -> Vec<String> {
        let line = format!("pub use {module}::");
        let names = source.lines().find_map(|it| it.strip_prefix(&line)).unwrap();
        let names = names.trim_matches(|c| "{};".contains(c)).split(", ");
        names.map(str::to_owned).collect()
    }

    /// Variants of `enum Scenario`, and what is in each.
    fn variants(source: &str) -> Vec<(String, String)> {
        let (_, body) = source.split_once("pub enum Scenario {").unwrap();
        let (body, _) = body.split_once("\n}").unwrap();
        let lines =
            body.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with("//"));
        let parts = lines.map(|line| {
            line.trim_end_matches(',').split_once('(').unwrap_or((line.trim_end_matches(','), ""))
        });
        let inner = |of: &str| of.trim_end_matches(')').replace("Box<", "").replace('>', "");
        parts.map(|(variant, of)| (variant.to_owned(), inner(of))).collect()
    }

    fn kebab(name: &str) -> String {
        let mut kebab = String::new();
        for c in name.chars() {
            if c.is_uppercase() && !kebab.is_empty() {
                kebab.push('-');
            }
            kebab.extend(c.to_lowercase());
        }
        kebab
    }

    fn uses(source: &str, path: &str) -> bool {
        let word = |c: char| c.is_alphanumeric() || c == '_';
        source.match_indices(path).any(|(at, _)| !source[..at].ends_with(word))
    }

    fn sources(dir: &Path) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
        let below = |path: PathBuf| if path.is_dir() { sources(&path) } else { vec![path] };
        entries
            .flat_map(below)
            .filter(|path| path.extension().is_some_and(|it| it == "rs"))
            .collect()
    }
}
