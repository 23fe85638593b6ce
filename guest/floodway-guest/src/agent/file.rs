//! Files in pieces.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use anyhow::{Context, Result, ensure};
use floodway_guest::frame::MAX_PAYLOAD;
use floodway_guest::stream;

/// Writes one piece; offset 0 replaces the file.
pub fn write(path: &str, offset: u64, mode: u32, bytes: &[u8]) -> Result<()> {
    ensure!(path.starts_with('/'), "path `{path}`: must be absolute");
    write_at(Path::new(path), offset, mode, bytes).with_context(|| format!("cannot write {path}"))
}

fn write_at(path: &Path, offset: u64, mode: u32, bytes: &[u8]) -> Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).mode(mode);
    if offset == 0 {
        fs::create_dir_all(path.parent().context("it is the root")?)?;
        // A new file, not the old one emptied: that one may be a running program.
        match fs::remove_file(path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error.into()),
            _ => {}
        }
        options.create_new(true);
    }
    let file = options.open(path)?;
    if offset == 0 {
        // Whatever the umask is.
        file.set_permissions(fs::Permissions::from_mode(mode))?;
    }
    Ok(file.write_all_at(bytes, offset)?)
}

/// Reads one piece, which is shorter than `len` only at the end of the file.
pub fn read(path: &str, offset: u64, len: usize) -> Result<Vec<u8>> {
    ensure!(len <= MAX_PAYLOAD, "len {len}: at most {MAX_PAYLOAD} bytes at once");
    read_at(path, offset, len).with_context(|| format!("cannot read {path}"))
}

fn read_at(path: &str, offset: u64, len: usize) -> std::io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    if offset > 0 {
        // Not for offset 0: files without positions (pipes, some of /proc) can then be read too.
        file.seek(SeekFrom::Start(offset))?;
    }
    let mut piece = Vec::with_capacity(len);
    file.take(len as u64).read_to_end(&mut piece)?;
    Ok(piece)
}

/// Hashes a file.
pub fn sha256(path: &str) -> Result<String> {
    File::open(path)
        .and_then(|mut file| stream::sha256(&mut file))
        .with_context(|| format!("cannot read {path}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_make_a_file() {
        let directory = std::env::temp_dir().join(format!("floodway-guest-{}", std::process::id()));
        let path = directory.join("a/b").to_str().unwrap().to_owned();
        write(&path, 0, 0o644, b"old contents, longer").unwrap();
        write(&path, 0, 0o750, b"hello ").unwrap();
        write(&path, 6, 0o600, b"world").unwrap();
        assert_eq!(read(&path, 0, 100).unwrap(), b"hello world");
        assert_eq!(read(&path, 6, 3).unwrap(), b"wor");
        assert!(read(&path, 11, 100).unwrap().is_empty());
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o750);
        assert_eq!(sha256(&path).unwrap(), stream::sha256(&mut &b"hello world"[..]).unwrap());
        fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn errors_name_the_path() {
        assert!(write("relative", 0, 0o644, b"").unwrap_err().to_string().contains("relative"));
        assert!(read("/no/such", 0, 1).unwrap_err().to_string().contains("/no/such"));
        assert!(read("/etc/passwd", 0, MAX_PAYLOAD + 1).is_err());
    }
}
