//! The root of cgroup v2, below which every socket is.
//!
//! Most systems mount it at one of two places or not at all, and a container may see less of it there. So it is mounted anew, and nowhere: it lives as long as
//! its descriptor.

use std::os::fd::OwnedFd;

use anyhow::{Context, Result};
use rustix::fs::{Mode, OFlags, openat};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};

/// Opens it.
///
/// # Errors
/// The kernel has no cgroup v2.
pub fn open_root() -> Result<OwnedFd> {
    let open = || {
        let context = fsopen("cgroup2", FsOpenFlags::FSOPEN_CLOEXEC)?;
        fsconfig_create(&context)?;
        let mount = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        openat(mount, ".", flags, Mode::empty())
    };
    open().context("cannot mount cgroup v2")
}
