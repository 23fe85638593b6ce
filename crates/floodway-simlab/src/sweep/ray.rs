//! The engine for clusters is a Python package: this starts it.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::Args;

/// The package's module.
const MODULE: &str = "floodway_sweep";

/// Runs the sweep on the cluster that Ray finds, or on a Ray of this machine.
///
/// # Errors
/// When the package is not installed, or the sweep fails; it has said why.
pub fn run(args: &Args, out: &Path) -> Result<()> {
    let python = std::env::var_os("PYTHON").unwrap_or_else(|| "python3".into());
    let installed = Command::new(&python)
        .args(["-c", &format!("import {MODULE}")])
        .output()
        .with_context(|| format!("cannot start {}", python.display()))?;
    ensure!(
        installed.status.success(),
        "the Python package is not installed: pip install ./python (or set PYTHON to an interpreter that has it)"
    );
    let own = std::env::current_exe().context("cannot tell where this program is")?;
    let mut command = Command::new(&python);
    command.args(["-m", MODULE]).arg(&args.file).arg("--out").arg(out).arg("--binary").arg(own);
    command.args(["--seeds", &args.seeds.to_string(), "--seed", &args.seed.to_string()]);
    if args.quick {
        command.arg("--quick");
    }
    let status = command.status().context("cannot start Python")?;
    ensure!(status.success(), "the sweep on Ray failed ({status})");
    Ok(())
}
