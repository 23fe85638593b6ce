//! Writer of cpio archives in the "new ASCII" format, the one that Linux unpacks as initramfs
//! (Documentation/driver-api/early-userspace/buffer-format.rst).

use std::collections::BTreeSet;

const DIRECTORY: u32 = 0o040_000;
const REGULAR: u32 = 0o100_000;
const SYMLINK: u32 = 0o120_000;
const CHARACTER: u32 = 0o020_000;
/// Name of the entry that ends the archive.
const TRAILER: &str = "TRAILER!!!";

/// An archive in memory. The same calls give the same bytes: owner is root, times are 0.
#[derive(Debug, Default)]
pub struct Archive {
    bytes: Vec<u8>,
    inode: u32,
    paths: BTreeSet<String>,
}

struct Entry<'a> {
    path: &'a str,
    mode: u32,
    device: (u32, u32),
    data: &'a [u8],
}

impl Archive {
    /// Adds a regular file with permission bits `mode`, and the directories above it. `false`
    /// when there is something at that path already, which then stays.
    pub fn file(&mut self, path: &str, mode: u32, data: &[u8]) -> bool {
        self.add(&Entry { path, mode: REGULAR | mode, device: (0, 0), data })
    }

    /// Adds a symbolic link, and the directories above it. `false` when the path is taken.
    pub fn symlink(&mut self, path: &str, target: &str) -> bool {
        let data = target.as_bytes();
        self.add(&Entry { path, mode: SYMLINK | 0o777, device: (0, 0), data })
    }

    /// Adds a directory, and those above it. `false` when it is there.
    pub fn directory(&mut self, path: &str) -> bool {
        self.add(&Entry { path, mode: DIRECTORY | 0o755, device: (0, 0), data: &[] })
    }

    /// Adds a character device, and the directories above it. `false` when the path is taken.
    pub fn character_device(&mut self, path: &str, major: u32, minor: u32) -> bool {
        self.add(&Entry { path, mode: CHARACTER | 0o600, device: (major, minor), data: &[] })
    }

    /// Ends the archive.
    #[must_use]
    pub fn finish(mut self) -> Vec<u8> {
        self.write(&Entry { path: TRAILER, mode: 0, device: (0, 0), data: &[] });
        self.bytes
    }

    fn add(&mut self, entry: &Entry<'_>) -> bool {
        let path = entry.path.trim_matches('/');
        if path.is_empty() || self.paths.contains(path) {
            return false;
        }
        if let Some((parent, _)) = path.rsplit_once('/') {
            self.directory(parent);
        }
        self.paths.insert(path.to_owned());
        self.write(&Entry { path, ..*entry });
        true
    }

    fn write(&mut self, entry: &Entry<'_>) {
        self.inode += 1;
        let links = if entry.mode & DIRECTORY == DIRECTORY { 2 } else { 1 };
        let (major, minor) = entry.device;
        // Sizes fit: an archive of 4 GiB would not boot, nor fit into memory here.
        let (size, name_size) = (entry.data.len() as u32, entry.path.len() as u32 + 1);
        let fields =
            [self.inode, entry.mode, 0, 0, links, 0, size, 0, 0, major, minor, name_size, 0];
        self.bytes.extend_from_slice(b"070701");
        for field in fields {
            self.bytes.extend_from_slice(format!("{field:08X}").as_bytes());
        }
        self.bytes.extend_from_slice(entry.path.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(entry.data);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::process::{Command, Stdio};

    /// What the system's own cpio makes of an archive.
    fn listing(archive: &[u8]) -> String {
        let mut cpio = Command::new("cpio")
            .args(["--list", "--verbose", "--numeric-uid-gid", "--quiet"])
            .env("TZ", "UTC")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        cpio.stdin.take().unwrap().write_all(archive).unwrap();
        let output = cpio.wait_with_output().unwrap();
        assert!(output.status.success());
        String::from_utf8(output.stdout).unwrap()
    }

    #[test]
    fn cpio_reads_it() {
        let mut archive = Archive::default();
        assert!(archive.file("/usr/bin/tool", 0o755, b"hello"));
        assert!(archive.symlink("bin/sh", "busybox"));
        assert!(archive.character_device("dev/console", 5, 1));
        assert!(!archive.file("usr/bin/tool", 0o644, b"again"));
        assert!(!archive.directory("usr/bin"));
        let listing = listing(&archive.finish());
        let lines: Vec<_> = listing.lines().collect();
        let has = |start: &str, end: &str| {
            lines.iter().any(|line| line.starts_with(start) && line.ends_with(end))
        };
        assert_eq!(lines.len(), 7, "{listing}");
        assert!(has("drwxr-xr-x", " usr") && has("drwxr-xr-x", " usr/bin"), "{listing}");
        assert!(has("-rwxr-xr-x", " usr/bin/tool") && listing.contains(" 5 Jan "), "{listing}");
        assert!(has("lrwxrwxrwx", " bin/sh -> busybox"), "{listing}");
        assert!(has("crw-------", " dev/console") && listing.contains("5,   1"), "{listing}");
    }

    #[test]
    fn the_same_calls_give_the_same_bytes() {
        let archive = || {
            let mut archive = Archive::default();
            archive.file("a/b", 0o600, b"x");
            archive.finish()
        };
        assert_eq!(archive(), archive());
        assert_eq!(archive().len() % 4, 0);
    }
}
