//! Debian packages as guests use them: fetched and unpacked, never installed on the host, where they would start daemons.
//!
//! A set of packages is downloaded once with apt into the cache ([`crate::cache`]), unpacked into one tree, and
//! used from there ever after, also without a network. To get newer ones, delete `packages/` in the cache. What a program
//! of the tree needs of shared libraries comes from the tree, and from the host what the tree does not have.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use floodway_guest::stream;

use super::program;
use crate::{cache, process};

/// Where packages put libraries, below the root of the tree.
const LIBRARY_DIRS: [&str; 2] = ["usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu"];

/// Unpacked packages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packages {
    root: PathBuf,
}

impl Packages {
    /// Finds the packages in the cache, or fetches them. Dependencies must be named, too, unless the host has what
    /// is needed of them.
    ///
    /// # Errors
    /// When they are not in the cache and apt cannot fetch them, for example without a network.
    pub fn fetch(names: &[&str]) -> Result<Self> {
        let dir = cache::make("packages")?;
        let _lock = cache::lock(&dir)?;
        let names: BTreeSet<&str> = names.iter().copied().collect();
        let list = names.into_iter().collect::<Vec<_>>().join("\n");
        let root = dir.join(&stream::sha256(&mut list.as_bytes())?[..16]);
        if !root.is_dir() {
            let packages: Vec<&str> = list.lines().collect();
            unpack(&packages, &dir.join("part"), &root).with_context(|| {
                format!(
                    "packages are not in {} and apt cannot fetch them; connect to a Debian mirror: {}",
                    dir.display(),
                    packages.join(", ")
                )
            })?;
        }
        Ok(Self { root })
    }

    /// The place of a file of the packages on the host; `path` is absolute, as where they are installed.
    ///
    /// # Errors
    /// When there is no such file.
    pub fn file(&self, path: &str) -> Result<PathBuf> {
        let file = self.root.join(path.trim_start_matches('/'));
        ensure!(file.is_file(), "{path} is in none of the packages in {}", self.root.display());
        Ok(file)
    }

    /// Programs or modules of the packages with all libraries that they need: files on the host, and their
    /// paths in a guest.
    ///
    /// # Errors
    /// When one is missing; the error names it.
    pub fn with_libraries(&self, paths: &[&str]) -> Result<Vec<(PathBuf, String)>> {
        let mut files = Vec::new();
        for path in paths {
            let program = self.file(path)?;
            for library in program::libraries_within(&program, &self.library_path())? {
                let target = self.guest_path(&library)?;
                files.push((library, target));
            }
            files.push((program, (*path).to_owned()));
        }
        Ok(files)
    }

    /// A command that runs a program of the packages on the host.
    ///
    /// # Errors
    /// When there is no such program.
    pub fn command(&self, path: &str) -> Result<Command> {
        let mut command = Command::new(program::LOADER);
        command.arg("--library-path").arg(self.library_path()).arg(self.file(path)?);
        Ok(command)
    }

    fn library_path(&self) -> String {
        LIBRARY_DIRS.map(|dir| self.root.join(dir).display().to_string()).join(":")
    }

    fn guest_path(&self, file: &Path) -> Result<String> {
        let path = match file.strip_prefix(&self.root) {
            Ok(inside) => Path::new("/").join(inside),
            Err(_) => file.to_owned(),
        };
        Ok(path.to_str().with_context(|| format!("{} is not UTF-8", path.display()))?.to_owned())
    }
}

/// Fills `root`, which comes to exist only when it is complete. `part` is scratch space.
fn unpack(packages: &[&str], part: &Path, root: &Path) -> Result<()> {
    if part.exists() {
        fs::remove_dir_all(part).with_context(|| format!("cannot remove {}", part.display()))?;
    }
    fs::create_dir_all(part)?;
    if download(packages, part).is_err() {
        // A fresh machine has no package lists, and old ones name what the mirror has replaced.
        process::run(&["apt-get", "update", "-q"])?;
        download(packages, part)?;
    }
    let tree = part.join("tree");
    for entry in fs::read_dir(part)? {
        let path = entry?.path();
        if path.extension() == Some(OsStr::new("deb")) {
            process::run(&[OsStr::new("dpkg-deb"), "-x".as_ref(), path.as_ref(), tree.as_ref()])?;
        }
    }
    fs::rename(&tree, root)?;
    fs::remove_dir_all(part).with_context(|| format!("cannot remove {}", part.display()))
}

fn download(packages: &[&str], dir: &Path) -> Result<()> {
    let mut command = Command::new("apt-get");
    // Only root can write to the cache, so apt's own user must not do the download.
    command.args(["-q", "-o", "APT::Sandbox::User=root", "download"]).args(packages);
    command.current_dir(dir);
    process::run_command(command).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree() -> (tempfile::TempDir, Packages) {
        let dir = tempfile::tempdir().unwrap();
        let packages = Packages { root: dir.path().to_owned() };
        (dir, packages)
    }

    #[test]
    fn a_program_comes_with_its_libraries_at_their_usual_paths() {
        let (dir, packages) = tree();
        let bin = dir.path().join("usr/bin");
        fs::create_dir_all(&bin).unwrap();
        fs::copy(std::env::current_exe().unwrap(), bin.join("this")).unwrap();
        let files = packages.with_libraries(&["/usr/bin/this"]).unwrap();
        let targets: Vec<&str> = files.iter().map(|(_, target)| &target[..]).collect();
        assert_eq!(targets.last(), Some(&"/usr/bin/this"));
        let libc = targets.iter().find(|target| target.ends_with("/libc.so.6")).unwrap();
        assert!(libc.starts_with("/lib/") || libc.starts_with("/usr/lib/"), "{libc}");
        assert!(files.iter().all(|(file, _)| file.is_file()), "{files:?}");
    }

    #[test]
    fn files_of_the_tree_have_the_paths_of_an_installation() {
        let (dir, packages) = tree();
        let library = dir.path().join("usr/lib/x86_64-linux-gnu/libx.so.1");
        assert_eq!(packages.guest_path(&library).unwrap(), "/usr/lib/x86_64-linux-gnu/libx.so.1");
        assert_eq!(packages.guest_path(Path::new("/lib/libc.so.6")).unwrap(), "/lib/libc.so.6");
    }

    #[test]
    fn a_missing_file_is_named() {
        let (_dir, packages) = tree();
        let error = packages.with_libraries(&["/usr/sbin/nothing"]).unwrap_err().to_string();
        assert!(error.starts_with("/usr/sbin/nothing"), "{error}");
    }
}
