//! What the running kernel must have, and how to get it there.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use rustix::fs::statfs;
use rustix::mount::{MountFlags, mount};

const BTF: &str = "/sys/kernel/btf/vmlinux";
const BPF_MOUNT: &str = "/sys/fs/bpf";
/// `BPF_FS_MAGIC`
const BPF_MAGIC: u64 = 0xcafe_4a11;
/// Modules behind the `clsact` queueing discipline and its BPF classifier.
const MODULES: [&str; 2] = ["sch_ingress", "cls_bpf"];

/// Checks what cannot be helped.
pub fn check() -> Result<()> {
    ensure!(rustix::process::geteuid().is_root(), "not root: loading BPF programs needs it");
    ensure!(
        Path::new(BTF).exists(),
        "the kernel does not describe its types ({BTF} is missing): it must be built with \
         CONFIG_DEBUG_INFO_BTF, as Debian's, Ubuntu's and Fedora's are"
    );
    Ok(())
}

/// Mounts the file system for pins where nobody has done so.
pub fn mount_bpf() -> Result<()> {
    let is_mounted = || statfs(BPF_MOUNT).is_ok_and(|stat| stat.f_type as u64 == BPF_MAGIC);
    if is_mounted() {
        return Ok(());
    }
    mount("bpf", BPF_MOUNT, "bpf", MountFlags::empty(), None)
        .with_context(|| format!("cannot mount the BPF file system on {BPF_MOUNT}"))
}

/// Loads the modules that the kernel does not have yet, as far as there are any: they may be built in, which only
/// their use shows. Returns what went wrong, for the error of that use.
pub fn load_modules() -> Vec<String> {
    let loaded = fs::read_to_string("/proc/modules").unwrap_or_default();
    let is_loaded = |name: &str| loaded.lines().any(|line| line.split(' ').next() == Some(name));
    let missing = MODULES.into_iter().filter(|name| !is_loaded(name));
    missing.filter_map(|name| modprobe(name).err().map(|error| format!("{error:#}"))).collect()
}

fn modprobe(name: &str) -> Result<()> {
    let mut command = Command::new("modprobe");
    // A service or a minimal shell may lack the directories of root's programs.
    command.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").arg(name).stdin(Stdio::null());
    let output = command.output().context("cannot run modprobe")?;
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    ensure!(output.status.success(), "modprobe {name}: {said}");
    Ok(())
}
