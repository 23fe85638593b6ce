//! The agent's static binary.
//!
//! `$FLOODWAY_GUEST` names it; else it is `floodway-guest` beside the running program, if that is
//! static; else cargo builds it from this workspace, with the C library linked in, in a target directory of its own: other flags would throw away the artefacts of the
//! main one, and a directory that checkouts share would give one the agent of another (cargo tells sources by their place in the workspace and their times).

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::program;
use crate::process;

/// Names the agent's binary.
pub const VARIABLE: &str = "FLOODWAY_GUEST";
const NAME: &str = "floodway-guest";
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// Finds or builds the binary.
pub fn locate() -> Result<PathBuf> {
    if let Some(path) = env::var_os(VARIABLE).map(PathBuf::from) {
        ensure!(
            program::is_static(&path)?,
            "{VARIABLE}={}: not a static program; build it with `-C target-feature=+crt-static`",
            path.display()
        );
        return Ok(path);
    }
    let beside = env::current_exe()?.with_file_name(NAME);
    if program::is_static(&beside).unwrap_or(false) {
        return Ok(beside);
    }
    build()
}

fn build() -> Result<PathBuf> {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    ensure!(
        workspace.join("Cargo.toml").is_file(),
        "the guest agent is missing: put a static {NAME} beside this program, or set {VARIABLE}"
    );
    let target_dir = workspace.join("target/agent");
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo
        .current_dir(&workspace)
        .args(["build", "--quiet", "--release", "--package", NAME, "--bin", NAME])
        // An explicit target keeps these flags away from build scripts and procedural macros.
        .args(["--target", TARGET, "--target-dir"])
        .arg(&target_dir)
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .env("RUSTFLAGS", "-C target-feature=+crt-static")
        // Small and quick to build; nothing in it is a hot path.
        .env("CARGO_PROFILE_RELEASE_LTO", "off")
        .env("CARGO_PROFILE_RELEASE_DEBUG", "none")
        .env("CARGO_PROFILE_RELEASE_STRIP", "symbols");
    process::run_command(cargo).context("cannot build the guest agent")?;
    let binary = target_dir.join(TARGET).join("release").join(NAME);
    ensure!(program::is_static(&binary)?, "{} is not static", binary.display());
    Ok(binary)
}
