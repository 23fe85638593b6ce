//! A service manager that keeps descriptors for the next process, as systemd does with `FileDescriptorStoreMax=`.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::fstat;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

use crate::scene::{NOTIFY, prepare, run};

/// Of the longest message.
const MAX_BYTES: usize = 512;

pub struct Manager {
    directory: PathBuf,
    socket: UnixDatagram,
    /// By name.
    pub kept: BTreeMap<String, OwnedFd>,
}

impl Manager {
    /// The manager of a switch in this directory, which has not been started yet.
    pub fn of(directory: &Path) -> Self {
        let socket = UnixDatagram::bind(directory.join(NOTIFY)).unwrap();
        socket.set_nonblocking(true).unwrap();
        Self { directory: directory.to_owned(), socket, kept: BTreeMap::new() }
    }

    /// Does what the switch has asked for.
    pub fn hear(&mut self) {
        while let Some((text, file)) = self.receive() {
            let Some(name) = text.lines().find_map(|line| line.strip_prefix("FDNAME=")) else {
                continue;
            };
            if text.lines().any(|line| line == "FDSTOREREMOVE=1") {
                self.kept.remove(name);
                continue;
            }
            let file = file.expect("a descriptor");
            let is_same = |kept: &OwnedFd| inode(kept) == inode(&file);
            assert!(self.kept.get(name).is_none_or(is_same), "two files with one name");
            self.kept.entry(name.to_owned()).or_insert(file);
        }
    }

    fn receive(&self) -> Option<(String, Option<OwnedFd>)> {
        let mut bytes = [0; MAX_BYTES];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut buffers = [IoSliceMut::new(&mut bytes)];
        let flags = RecvFlags::CMSG_CLOEXEC;
        let len = recvmsg(&self.socket, &mut buffers, &mut ancillary, flags).ok()?.bytes;
        let mut files = ancillary.drain().filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(files) => Some(files),
            _ => None,
        });
        let file = files.next().and_then(|mut files| files.next());
        Some((String::from_utf8_lossy(&bytes[..len]).into_owned(), file))
    }

    /// What starts the switch with all that is kept.
    pub fn start(&self) -> Command {
        let mut script = String::new();
        for (number, file) in (3..).zip(self.kept.values()) {
            let path = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
            writeln!(script, "exec {number}<>{path}").unwrap();
        }
        let names: Vec<_> = self.kept.keys().map(String::as_str).collect();
        let (count, names) = (names.len(), names.join(":"));
        writeln!(script, "export LISTEN_PID=$$ LISTEN_FDS={count} LISTEN_FDNAMES={names}").unwrap();
        script.push_str("exec \"$0\" \"$@\"");
        let switch = run(&self.directory);
        let mut command = Command::new("sh");
        command.arg("-c").arg(script).arg(switch.get_program()).args(switch.get_args());
        prepare(command, &self.directory)
    }
}

fn inode(file: &OwnedFd) -> u64 {
    fstat(file).unwrap().st_ino
}
