//! Tells the program which commit it is built from: reports say so. Without git, or outside a checkout, they leave it out.

use std::path::Path;
use std::process::Command;

/// What is built into the program, or decides what it does, from the workspace's root.
const SOURCES: [&str; 5] = ["Cargo.lock", "Cargo.toml", "crates", "experiments", "guest"];

fn main() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    for source in SOURCES {
        println!("cargo::rerun-if-changed={}", root.join(source).display());
    }
    // A commit changes the log of HEAD, whatever else it changes.
    if let Some(log) = git(&root, &["rev-parse", "--git-path", "logs/HEAD"]) {
        println!("cargo::rerun-if-changed={}", root.join(log.trim()).display());
    }
    let Some(commit) = git(&root, &["rev-parse", "HEAD"]) else { return };
    println!("cargo::rustc-env=FLOODWAY_COMMIT={}", commit.trim());
    let changes = [&["status", "--porcelain", "--"][..], &SOURCES].concat();
    if git(&root, &changes).is_none_or(|changes| !changes.is_empty()) {
        println!("cargo::rustc-env=FLOODWAY_DIRTY=1");
    }
}

/// What git prints; none if it fails.
fn git(root: &Path, arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").arg("-C").arg(root).args(arguments).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}
