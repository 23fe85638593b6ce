//! Bytes that the broker hands over and that nobody can change any more: a sealed memfd.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};

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
    fn what_is_sealed_is_read_and_not_changed() {
        let sealed = seal("test", b"text").unwrap();
        let file = File::from(sealed.try_clone().unwrap());
        assert_eq!(file.write_at(b"x", 0).unwrap_err().raw_os_error(), Some(libc::EPERM));
        assert!(file.set_len(0).is_err());
        assert!(file.set_len(9).is_err());
        assert_eq!(read(sealed.try_clone().unwrap(), 4).unwrap(), b"text");
        assert!(read(sealed, 5).is_err());
    }
}
