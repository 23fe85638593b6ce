//! Where the lab keeps what is slow to make: kernels, guest images, the agent's build.
//!
//! `$FLOODWAY_LAB_CACHE`, else `$XDG_CACHE_HOME/floodway-lab`, else `/var/cache/floodway-lab`. Everything in it can be
//! deleted at any time when no lab runs.

use std::env;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// Overrides the place of the cache.
pub const VARIABLE: &str = "FLOODWAY_LAB_CACHE";

/// The cache's directory, which need not exist.
#[must_use]
pub fn dir() -> PathBuf {
    let set = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    set(VARIABLE)
        .or_else(|| set("XDG_CACHE_HOME").map(|dir| dir.join("floodway-lab")))
        .unwrap_or_else(|| PathBuf::from("/var/cache/floodway-lab"))
}

/// Makes a directory in the cache.
///
/// # Errors
/// When it cannot be made; the error names it, and the variable that moves the cache.
pub fn make(name: &str) -> Result<PathBuf> {
    let dir = dir().join(name);
    fs::create_dir_all(&dir).with_context(|| {
        format!("cannot create {}; set {VARIABLE} to use another place", dir.display())
    })?;
    Ok(dir)
}

/// Waits for the lock of a directory in the cache, which is held until the file is dropped: two labs
/// that start at once make each thing once.
///
/// # Errors
/// When the lock file cannot be made.
pub fn lock(dir: &Path) -> Result<File> {
    let path = dir.join("lock");
    let open = || -> std::io::Result<File> {
        let file = File::create(&path)?;
        file.lock()?;
        Ok(file)
    };
    open().with_context(|| format!("cannot lock {}", path.display()))
}
