//! Guest kernels: Debian's stock cloud kernels, fetched without installing them on the host.
//!
//! The meta package (`linux-image-cloud-amd64`) names the package of the newest kernel of its series; that one is
//! downloaded with apt, unpacked into the cache ([`crate::cache`]), and used from there ever after, also
//! without a network. To get a newer one, delete `kernels/` in the cache.

mod modules;

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, anyhow};

use crate::{cache, process};

pub use floodway_experiment::Series;
pub use modules::{Module, Modules};

/// A kernel that is ready to boot.
#[derive(Debug, Clone)]
pub struct Kernel {
    /// Its series.
    pub series: Series,
    /// What `uname -r` says in the guest.
    pub release: String,
    /// The bootable image.
    pub vmlinuz: PathBuf,
    /// Directory of the release's modules.
    modules: PathBuf,
}

impl Kernel {
    /// Finds the newest kernel of a series in the cache, without network.
    #[must_use]
    pub fn cached(series: Series) -> Option<Self> {
        let mut packages = entries(&series_dir(series));
        packages.sort();
        packages.iter().rev().find_map(|package| Self::unpacked(series, package))
    }

    /// Finds the kernel in the cache, or fetches it from Debian.
    ///
    /// # Errors
    /// When it is not in the cache and apt cannot fetch it, for example without a network.
    pub fn fetch(series: Series) -> Result<Self> {
        let dir = cache::make(&format!("kernels/{series}"))?;
        let _lock = cache::lock(&dir)?;
        if let Some(kernel) = Self::cached(series) {
            return Ok(kernel);
        }
        let package = download(series, &dir).with_context(|| {
            format!(
                "kernel {series} is not in {} and apt cannot fetch {}; \
                 connect to a Debian mirror (for 6.12 with the security suite) and run `apt-get update`",
                dir.display(),
                meta_package(series)
            )
        })?;
        Self::unpacked(series, &package)
            .ok_or_else(|| anyhow!("{} has no kernel and modules in it", package.display()))
    }

    /// The modules that come with it.
    ///
    /// # Errors
    /// When their directory cannot be read.
    pub fn modules(&self) -> Result<Modules> {
        Modules::index(&self.modules)
    }

    fn unpacked(series: Series, package: &Path) -> Option<Self> {
        let vmlinuz = entries(&package.join("boot"))
            .into_iter()
            .find(|path| file_name(path).starts_with("vmlinuz-"))?;
        let release = file_name(&vmlinuz).strip_prefix("vmlinuz-")?.to_owned();
        let modules = package.join("lib/modules").join(&release);
        modules.is_dir().then_some(Self { series, release, vmlinuz, modules })
    }
}

/// The package that depends on the newest kernel of the series.
fn meta_package(series: Series) -> &'static str {
    match series {
        Series::V6_1 => "linux-image-cloud-amd64",
        Series::V6_12 => "linux-image-6.12-cloud-amd64",
    }
}

fn series_dir(series: Series) -> PathBuf {
    cache::dir().join("kernels").join(series.number())
}

/// Downloads and unpacks; returns the directory that is then complete.
fn download(series: Series, dir: &Path) -> Result<PathBuf> {
    let package = match newest_package(series) {
        Ok(package) => package,
        Err(_) => {
            // A fresh machine has no package lists.
            process::run(&["apt-get", "update", "-q"])?;
            newest_package(series)?
        }
    };
    let scratch = dir.join("download");
    discard(&scratch)?;
    fs::create_dir_all(&scratch)?;
    if fetch_package(&package, &scratch).is_err() {
        // Old lists name packages that the mirror has replaced.
        process::run(&["apt-get", "update", "-q"])?;
        fetch_package(&newest_package(series)?, &scratch)?;
    }
    let archive = entries(&scratch)
        .into_iter()
        .find(|path| path.extension() == Some(OsStr::new("deb")))
        .ok_or_else(|| anyhow!("apt-get download left no package in {}", scratch.display()))?;
    let unpacked = scratch.join("unpacked");
    process::run(&[OsStr::new("dpkg-deb"), OsStr::new("-x"), archive.as_ref(), unpacked.as_ref()])?;
    // A rename is all or nothing: a directory under its final name is complete.
    let complete = dir.join(archive.file_stem().unwrap_or(OsStr::new("kernel")));
    discard(&complete)?;
    fs::rename(&unpacked, &complete)?;
    discard(&scratch)?;
    Ok(complete)
}

/// The package that the series' meta package depends on.
fn newest_package(series: Series) -> Result<String> {
    let depends = process::run(&["apt-cache", "depends", meta_package(series)])?;
    depends
        .lines()
        .filter_map(|line| line.trim().strip_prefix("Depends: "))
        .find(|package| package.starts_with("linux-image-"))
        .map(str::to_owned)
        .ok_or_else(|| anyhow!("apt knows no package behind {}", meta_package(series)))
}

fn fetch_package(package: &str, dir: &Path) -> Result<()> {
    let mut command = Command::new("apt-get");
    // Only root can write to the cache, so apt's own user must not do the download.
    command.args(["-q", "-o", "APT::Sandbox::User=root", "download", package]).current_dir(dir);
    process::run_command(command).map(drop)
}

fn discard(dir: &Path) -> Result<()> {
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", dir.display()))
        }
        _ => Ok(()),
    }
}

fn entries(dir: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    entries.flatten().map(|entry| entry.path()).collect()
}

fn file_name(path: &Path) -> &str {
    path.file_name().and_then(OsStr::to_str).unwrap_or_default()
}
