//! Guest images: an initramfs around a stock kernel.
//!
//! # Theory of operation
//!
//! The image is the guest's whole user space, in memory: the agent as `/init` and busybox's applets; host
//! programs such as iperf3 with their shared libraries, copied to the same paths, so that guests run the
//! stock Debian binaries; the modules that the agent needs to reach the lab, in loading order in
//! `/etc/floodway/modules`; and further modules that the kernel or `modprobe` load on demand. It is not compressed, as
//! emulated CPUs unpack slowly.
//!
//! An image is a function of its contents: it is stored in the cache ([`crate::cache`]) under their SHA-256,
//! and written only when that file is not there yet.

mod agent_binary;
mod cpio;
mod packages;
mod program;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use floodway_guest::stream;

use crate::kernel::{Kernel, Module, Series};
use crate::{cache, process};
use cpio::Archive;

pub use agent_binary::VARIABLE as AGENT_VARIABLE;
pub use packages::Packages;

/// Modules that process 1 loads: the way to the lab, and to the network.
const BOOT_MODULES: [&str; 3] = ["virtio_pci", "virtio_console", "virtio_net"];
/// Modules that experiments use, loaded on demand. Those that a kernel does not have are left out.
const DEMAND_MODULES: [&str; 15] = [
    "af_packet",
    "tcp_bbr",
    "tcp_dctcp",
    "tcp_vegas",
    "tcp_westwood",
    "sch_fq",
    "sch_fq_codel",
    "sch_htb",
    "sch_ingress",
    "sch_netem",
    "cls_bpf",
    "cls_u32",
    "act_mirred",
    "inet_diag",
    "tcp_diag",
];
/// Programs of the host that every image has, and their Debian packages.
const PROGRAMS: [(&str, &str); 7] = [
    ("iperf3", "iperf3"),
    ("ip", "iproute2"),
    ("ss", "iproute2"),
    ("tc", "iproute2"),
    ("nstat", "iproute2"),
    ("ethtool", "ethtool"),
    ("tcpdump", "tcpdump"),
];
/// Oldest images are deleted when there are more than this many.
const KEEP_IMAGES: usize = 16;

/// What to put into an image beyond what every image has.
#[derive(Debug, Clone, Default)]
pub struct Contents {
    /// Host programs: name in `PATH`, and the Debian package to name when it is missing. They
    /// come to `/usr/bin` in the guest, with their libraries.
    pub programs: Vec<(String, String)>,
    /// Host files and their absolute paths in the guest. Permission bits are kept.
    pub files: Vec<(PathBuf, String)>,
    /// Kernel modules to load at boot.
    pub modules: Vec<String>,
}

/// A kernel and the initramfs that fits it. Any number of VMs can boot it at once.
#[derive(Debug, Clone)]
pub struct GuestImage {
    /// The kernel.
    pub kernel: Kernel,
    /// The initramfs.
    pub initramfs: PathBuf,
}

impl GuestImage {
    /// The plain image of a kernel series. Fetches the kernel and builds the agent if need be.
    ///
    /// # Errors
    /// When the kernel cannot be fetched, or something to put into the image is missing on the host; the
    /// error says which package to install.
    pub fn debian(series: Series) -> Result<Self> {
        Self::build(&Kernel::fetch(series)?, &Contents::default())
    }

    /// An image with more in it.
    ///
    /// # Errors
    /// As [`GuestImage::debian`].
    pub fn build(kernel: &Kernel, contents: &Contents) -> Result<Self> {
        let dir = cache::make("images")?;
        let _lock = cache::lock(&dir)?;
        let bytes = assemble(kernel, contents)
            .with_context(|| format!("cannot build a guest image for kernel {}", kernel.release))?;
        let hash = stream::sha256(&mut &bytes[..])?;
        let initramfs = dir.join(format!("{}-{}.cpio", kernel.release, &hash[..16]));
        if !initramfs.exists() {
            let part = dir.join("part");
            fs::write(&part, &bytes).with_context(|| format!("cannot write {}", part.display()))?;
            fs::rename(&part, &initramfs)?;
            expire(&dir)?;
        }
        Ok(Self { kernel: kernel.clone(), initramfs })
    }
}

fn assemble(kernel: &Kernel, contents: &Contents) -> Result<Vec<u8>> {
    let mut archive = Archive::default();
    // The kernel opens it for process 1 before that mounts /dev.
    archive.character_device("/dev/console", 5, 1);
    add_file(&mut archive, &agent_binary::locate()?, "/init")?;
    archive.symlink("/usr/bin/floodway-guest", "/init");
    for (source, target) in &contents.files {
        add_file(&mut archive, source, target)?;
    }
    add_busybox(&mut archive)?;
    let own = contents.programs.iter().map(|(name, package)| (&name[..], &package[..]));
    for (name, package) in PROGRAMS.into_iter().chain(own) {
        add_program(&mut archive, name, package)?;
    }
    add_modules(&mut archive, kernel, contents)?;
    archive.file("/etc/passwd", 0o644, b"root:x:0:0:root:/:/bin/sh\n");
    archive.file("/etc/group", 0o644, b"root:x:0:\n");
    archive.file("/etc/hosts", 0o644, b"127.0.0.1 localhost\n::1 localhost\n");
    Ok(archive.finish())
}

fn add_file(archive: &mut Archive, source: &Path, target: &str) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    ensure!(target.starts_with('/'), "guest path `{target}`: must be absolute");
    let read = || -> std::io::Result<(Vec<u8>, u32)> {
        Ok((fs::read(source)?, fs::metadata(source)?.permissions().mode() & 0o7777))
    };
    let (bytes, mode) = read().with_context(|| format!("cannot read {}", source.display()))?;
    // Libraries that several programs share are there already.
    archive.file(target, mode, &bytes);
    Ok(())
}

fn add_busybox(archive: &mut Archive) -> Result<()> {
    let busybox = program::find("busybox", "busybox-static")?;
    ensure!(
        program::is_static(&busybox)?,
        "{} is not static; `apt-get install busybox-static` replaces it",
        busybox.display()
    );
    add_file(archive, &busybox, "/bin/busybox")?;
    let applets = process::run(&[busybox.as_os_str(), "--list".as_ref()])?;
    for applet in applets.lines().filter(|applet| *applet != "busybox") {
        archive.symlink(&format!("/bin/{applet}"), "busybox");
    }
    // The kernel's own calls use this path.
    archive.symlink("/sbin/modprobe", "/bin/busybox");
    Ok(())
}

fn add_program(archive: &mut Archive, name: &str, package: &str) -> Result<()> {
    let path = program::find(name, package)?;
    let libraries = program::libraries(&path)?;
    add_file(archive, &path, &format!("/usr/bin/{name}"))?;
    if !program::is_static(&path)? {
        add_file(archive, Path::new(program::LOADER), program::LOADER)?;
    }
    for library in libraries {
        let target =
            library.to_str().with_context(|| format!("{} is not UTF-8", library.display()))?;
        add_file(archive, &library, target)?;
    }
    Ok(())
}

fn add_modules(archive: &mut Archive, kernel: &Kernel, contents: &Contents) -> Result<()> {
    let modules = kernel.modules()?;
    let boot: Vec<&str> =
        BOOT_MODULES.into_iter().chain(contents.modules.iter().map(String::as_str)).collect();
    let demand = DEMAND_MODULES.into_iter().filter(|name| modules.has(name));
    let at_boot = modules.resolve(&boot)?;
    let all = modules.resolve(&boot.into_iter().chain(demand).collect::<Vec<_>>())?;
    let dir = format!("/lib/modules/{}", kernel.release);
    for module in &all {
        archive.file(&format!("{dir}/{}.ko", module.name), 0o644, &module.object);
    }
    archive.file(&format!("{dir}/modules.dep"), 0o644, dependency_file(&all).as_bytes());
    archive.file(&format!("{dir}/modules.alias"), 0o644, alias_file(&all).as_bytes());
    let list: String = at_boot.iter().map(|module| format!("{dir}/{}.ko\n", module.name)).collect();
    archive.file("/etc/floodway/modules", 0o644, list.as_bytes());
    Ok(())
}

/// `modules.dep` as modprobe reads it: each module, then all that it needs, the nearest first.
fn dependency_file(modules: &[Module]) -> String {
    let mut text = String::new();
    for (index, module) in modules.iter().enumerate() {
        let mut needed = module.depends.clone();
        // Each comes after what it needs, so one pass backwards finds all.
        for other in modules[..index].iter().rev().filter(|other| module.name != other.name) {
            if needed.contains(&other.name) {
                let new = other.depends.iter().filter(|name| !needed.contains(name));
                let new: Vec<_> = new.cloned().collect();
                needed.extend(new);
            }
        }
        // What is built in has no file.
        needed.retain(|name| modules.iter().any(|module| &module.name == name));
        let needed: String = needed.iter().map(|name| format!(" {name}.ko")).collect();
        text.push_str(&format!("{}.ko:{needed}\n", module.name));
    }
    text
}

/// `modules.alias` as modprobe reads it.
fn alias_file(modules: &[Module]) -> String {
    let lines = modules.iter().flat_map(|module| {
        module.aliases.iter().map(|alias| format!("alias {alias} {}\n", module.name))
    });
    lines.collect()
}

/// Deletes the oldest images. QEMU reads an image only while it starts.
fn expire(dir: &Path) -> Result<()> {
    let mut images: Vec<_> = fs::read_dir(dir)?
        .flatten()
        .filter(|entry| entry.path().extension().is_some_and(|extension| extension == "cpio"))
        .filter_map(|entry| Some((entry.metadata().ok()?.modified().ok()?, entry.path())))
        .collect();
    images.sort();
    let surplus = images.len().saturating_sub(KEEP_IMAGES);
    for (_, path) in &images[..surplus] {
        fs::remove_file(path).with_context(|| format!("cannot delete {}", path.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn module(name: &str, depends: &[&str]) -> Module {
        let depends = depends.iter().map(ToString::to_string).collect();
        let aliases = vec![format!("net-{name}"), "b:v1*".into()];
        Module { name: name.into(), object: Vec::new(), depends, aliases }
    }

    #[test]
    fn modules_alias_lists_all_names() {
        let text = alias_file(&[module("a", &[]), module("b", &[])]);
        assert_eq!(text, "alias net-a a\nalias b:v1* a\nalias net-b b\nalias b:v1* b\n");
    }

    #[test]
    fn modules_dep_lists_all_that_is_needed() {
        let modules = [
            module("c", &["in_kernel"]),
            module("b", &["c"]),
            module("a", &["b"]),
            module("d", &["a", "c"]),
        ];
        let expected = "c.ko:\nb.ko: c.ko\na.ko: b.ko c.ko\nd.ko: a.ko c.ko b.ko\n";
        assert_eq!(dependency_file(&modules), expected);
    }
}
