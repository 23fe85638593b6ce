//! Host programs and the shared libraries that they need.

use std::env;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, ensure};

use crate::process;

/// The dynamic loader of Debian amd64; it also lists what a program needs.
pub const LOADER: &str = "/lib64/ld-linux-x86-64.so.2";
/// Type of the ELF program header that names a loader.
const PT_INTERP: u32 = 3;

/// Finds a program in `PATH` and the directories of system programs.
///
/// # Errors
/// When there is none; the error names the Debian package that has it.
pub fn find(name: &str, package: &str) -> Result<PathBuf> {
    let path = env::var("PATH").unwrap_or_default();
    env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin", "/usr/bin", "/bin"].map(PathBuf::from))
        .map(|dir| dir.join(name))
        .find(|path| path.is_file())
        .ok_or_else(|| {
            anyhow!("program `{name}` is missing; `apt-get install {package}` brings it")
        })
}

/// The shared libraries that a program loads, all the way down, without the loader.
///
/// # Errors
/// When the loader cannot find one of them.
pub fn libraries(program: &Path) -> Result<Vec<PathBuf>> {
    if is_static(program)? {
        return Ok(Vec::new());
    }
    list(&[Path::new(LOADER), Path::new("--list"), program])
}

/// The same for a program or module, with directories that come before the host's own, as in `LD_LIBRARY_PATH`.
///
/// # Errors
/// As [`libraries`].
pub fn libraries_within(object: &Path, directories: &str) -> Result<Vec<PathBuf>> {
    let [path, list_only] = ["--library-path", "--list"].map(Path::new);
    list(&[Path::new(LOADER), path, Path::new(directories), list_only, object])
}

fn list(command: &[&Path]) -> Result<Vec<PathBuf>> {
    let list = process::run(command)
        .with_context(|| format!("libraries of {}", command[command.len() - 1].display()))?;
    list.lines().filter_map(|line| library(line).transpose()).collect()
}

/// A line of the loader's list: `libm.so.6 => /lib/x86_64-linux-gnu/libm.so.6 (0x00007f...)`.
fn library(line: &str) -> Result<Option<PathBuf>> {
    let Some((name, place)) = line.trim().split_once(" => ") else { return Ok(None) };
    let path = place.split(" (0x").next().unwrap_or_default();
    ensure!(path.starts_with('/'), "library {name}: {place}");
    Ok((path != LOADER).then(|| PathBuf::from(path)))
}

/// Whether an ELF program runs without a loader.
///
/// # Errors
/// When the file cannot be read or is no 64-bit little-endian ELF file.
pub fn is_static(program: &Path) -> Result<bool> {
    let headers = || -> Result<Vec<u32>> {
        let mut file = File::open(program)?;
        let mut header = [0; 64];
        file.read_exact(&mut header)?;
        ensure!(header.starts_with(b"\x7fELF\x02\x01"), "not a 64-bit little-endian ELF file");
        let half = |at: usize| u16::from_le_bytes([header[at], header[at + 1]]);
        let table = u64::from_le_bytes(header[32..40].try_into()?);
        (0..half(56)).map(|index| program_header_type(&file, table, half(54), index)).collect()
    };
    let types = headers().with_context(|| format!("cannot read {}", program.display()))?;
    Ok(!types.contains(&PT_INTERP))
}

fn program_header_type(file: &File, table: u64, size: u16, index: u16) -> Result<u32> {
    let mut kind = [0; 4];
    file.read_exact_at(&mut kind, table + u64::from(size) * u64::from(index))?;
    Ok(u32::from_le_bytes(kind))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dynamic_program_needs_libc_and_a_loader() {
        let this = env::current_exe().unwrap();
        assert!(!is_static(&this).unwrap());
        let libraries = libraries(&this).unwrap();
        assert!(libraries.iter().any(|path| path.ends_with("libc.so.6")), "{libraries:?}");
        assert!(libraries.iter().all(|path| path.is_file()), "{libraries:?}");
    }

    #[test]
    fn a_static_program_needs_nothing() {
        let busybox = find("busybox", "busybox-static").unwrap();
        assert!(is_static(&busybox).unwrap());
        assert!(libraries(&busybox).unwrap().is_empty());
    }

    #[test]
    fn a_missing_library_or_program_is_named() {
        let error = library("\tlibx.so.1 => not found").unwrap_err().to_string();
        assert_eq!(error, "library libx.so.1: not found");
        assert_eq!(library("\tlinux-vdso.so.1 (0x00007ffc)").unwrap(), None);
        let error = find("no-such-program", "some-package").unwrap_err().to_string();
        assert!(error.contains("no-such-program") && error.contains("some-package"), "{error}");
        assert!(is_static(Path::new("/etc/passwd")).is_err());
    }
}
