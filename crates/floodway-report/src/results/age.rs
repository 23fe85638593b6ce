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
const SIM: [&str; 2] = ["crates/floodway-sim", "crates/floodway-simlab"];

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
    use super::*;

    /// A name that is wrong would make every run young.
    #[test]
    fn what_decides_figures_is_there() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        for path in BOTH.iter().chain(&REAL).chain(&SIM) {
            assert!(root.join(path).exists(), "{path}");
        }
    }
}
