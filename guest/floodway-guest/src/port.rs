//! The virtio-serial port to the lab.

use std::fs::{self, File, OpenOptions};
use std::path::PathBuf;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result};
use floodway_guest::protocol::PORT_NAME;

const PORTS: &str = "/sys/class/virtio-ports";
/// How often to look for a port that has not appeared yet.
const POLL: Duration = Duration::from_millis(50);

/// Opens the port, as soon as the kernel has found it.
///
/// # Errors
/// When the port exists and cannot be opened.
pub fn open() -> Result<File> {
    let path = loop {
        if let Some(path) = find() {
            break path;
        }
        sleep(POLL);
    };
    let mut options = OpenOptions::new();
    options
        .read(true)
        .write(true)
        .open(&path)
        .with_context(|| format!("cannot open {}", path.display()))
}

fn find() -> Option<PathBuf> {
    fs::read_dir(PORTS).ok()?.flatten().find_map(|port| {
        let name = fs::read_to_string(port.path().join("name")).ok()?;
        (name.trim_end() == PORT_NAME).then(|| PathBuf::from("/dev").join(port.file_name()))
    })
}
