//! Memory that the broker hands over: sealed memfds, of bytes that nobody can change any more, or of a size that nobody can.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, memfd_create};

/// Seals of memory that can be written and keeps its size.
const FIXED: SealFlags = SealFlags::GROW.union(SealFlags::SHRINK).union(SealFlags::SEAL);

/// Makes a sealed file of `bytes`.
///
/// # Errors
/// Memory or descriptors have run out.
pub fn seal(name: &str, bytes: &[u8]) -> io::Result<OwnedFd> {
    let mut file = File::from(memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?);
    file.write_all(bytes)?;
    let seals = SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL;
    fcntl_add_seals(&file, seals)?;
    Ok(file.into())
}

/// Makes a file of `bytes` zero bytes that can be written and never changes its size.
///
/// # Errors
/// Memory or descriptors have run out.
pub fn fixed(name: &str, bytes: u64) -> io::Result<OwnedFd> {
    let file = File::from(memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?);
    file.set_len(bytes)?;
    fcntl_add_seals(&file, FIXED)?;
    Ok(file.into())
}

/// Returns `true` if `file` has `bytes` bytes, can be written, and never changes its size, as one that [`fixed`] has made.
#[must_use]
pub fn is_fixed(file: &OwnedFd, bytes: u64) -> bool {
    let is_fixed = |seals: SealFlags| {
        seals.contains(FIXED) && !seals.intersects(SealFlags::WRITE | SealFlags::FUTURE_WRITE)
    };
    fcntl_get_seals(file).is_ok_and(is_fixed)
        && fstat(file).is_ok_and(|status| u64::try_from(status.st_size) == Ok(bytes))
}

/// The first `len` bytes of a file, wherever its position is.
///
/// # Errors
/// It is shorter, or cannot be read.
pub fn read(file: OwnedFd, len: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; len];
    File::from(file).read_exact_at(&mut bytes, 0)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_fixed_is_written_and_keeps_its_size() {
        let file = File::from(fixed("test", 8).unwrap());
        file.write_at(b"12345678", 0).unwrap();
        assert!(file.write_at(b"9", 8).is_err());
        assert!(file.set_len(7).is_err() && file.set_len(9).is_err());
        assert!(fcntl_add_seals(&file, SealFlags::WRITE).is_err(), "for good");
        let file = OwnedFd::from(file);
        assert!(is_fixed(&file, 8) && !is_fixed(&file, 7));
        assert_eq!(read(file, 8).unwrap(), b"12345678");
    }

    #[test]
    fn what_is_sealed_is_read_and_not_changed() {
        let sealed = seal("test", b"text").unwrap();
        let file = File::from(sealed.try_clone().unwrap());
        assert_eq!(file.write_at(b"x", 0).unwrap_err().raw_os_error(), Some(libc::EPERM));
        assert!(file.set_len(0).is_err());
        assert!(file.set_len(9).is_err());
        let open =
            OwnedFd::from(memfd_create("test", MemfdFlags::CLOEXEC).map(File::from).unwrap());
        assert!(!is_fixed(&open, 0), "nothing is sealed");
        assert_eq!(read(sealed.try_clone().unwrap(), 4).unwrap(), b"text");
        assert!(read(sealed, 5).is_err());
    }
}
