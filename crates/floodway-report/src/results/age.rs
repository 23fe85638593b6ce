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

/// What is there and decides no figures.
const TESTS: &str = ":(exclude,glob)crates/*/tests/**";

/// Returns how many commits since the run's have changed what decides it, in the checkout at `root`.
///
/// # Errors
/// When git is missing, or does not know the commit.
pub fn commits_since(root: &Path, run: &Run) -> Result<u64> {
    let commit = run.provenance.commit.as_deref().context("built from no commit")?;
    let experiment = format!("experiments/{}.toml", run.report.experiment);
    let own: &[&str] = if run.report.world == World::Real { &REAL } else { &SIM };
    let output = Command::new("git")
        .arg("-C")
        .arg(root)
        .args(["rev-list", "--count", &format!("{commit}..HEAD"), "--", &experiment])
        .args(BOTH.iter().chain(own))
        .arg(TESTS)
        .output()
        .context("cannot run git")?;
    ensure!(
        output.status.success(),
        "git: {}",
        String::from_utf8_lossy(&output.stderr).lines().next().unwrap_or_default()
    );
    String::from_utf8_lossy(&output.stdout).trim().parse().context("git printed no number")
}

#[cfg(test)]
mod tests {
    use super::super::tests::run;
    use super::*;

    fn git(root: &Path, words: &[&str]) -> String {
        let who = ["-c", "user.name=a", "-c", "user.email=a@example.org"];
        let output = Command::new("git").arg("-C").arg(root).args(who).args(words).output();
        let output = output.unwrap();
        assert!(output.status.success(), "{words:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    #[test]
    fn a_run_ages_by_what_decides_it_and_not_by_tests() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        git(root, &["init", "-q"]);
        let commit = |path: &str| {
            let file = root.join(path);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, "").unwrap();
            git(root, &["add", "-A"]);
            git(root, &["commit", "-qm", path]);
        };
        commit("README.md");
        let mut run = run(1.0);
        run.provenance.commit = Some(git(root, &["rev-parse", "HEAD"]));
        for (path, age) in [
            ("crates/floodway-core/tests/a.rs", 0),
            ("crates/floodway-core/src/a.rs", 1),
            ("docs/a.md", 1),
            ("experiments/e.toml", 2),
            ("experiments/hosts/a.toml", 2),
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

    /// A name that is wrong would make every run young.
    #[test]
    fn what_decides_figures_is_there() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        for path in BOTH.iter().chain(&REAL).chain(&SIM) {
            assert!(root.join(path).exists(), "{path}");
        }
    }
}
