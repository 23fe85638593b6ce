//! What this machine lacks to run the lab, and how to get it.
//!
//! # Theory of operation
//!
//! Each check looks at the thing itself: a program is searched in `PATH`, and the network
//! features are probed by building a throw-away namespace with a bridge, a tap and a shaped link,
//! as experiments do. What is missing comes with the way to get it. Programs come from Debian
//! packages, which [`install`] fetches with `apt-get`; the rest (rights, memory, kernel features) is for the
//! operator. What only the benchmark against other switches needs is reported, and installed only
//! when asked for.

use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use serde::Serialize;

use crate::kernel::{Kernel, Series};
use crate::net::{self, Namespace, Rate};
use crate::switch_process;

/// What something is needed for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Need {
    /// Every experiment.
    Lab,
    /// Only `floodway-lab bench`.
    Bench,
}

/// Result of one check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What was looked for.
    pub what: String,
    /// What needs it.
    pub need: Need,
    /// What is wrong; `None` when it is there.
    pub problem: Option<String>,
    /// How to get it.
    pub fix: String,
    /// Debian package that brings it, when one does.
    pub package: Option<&'static str>,
}

impl Finding {
    /// Missing, and no experiment runs without it.
    #[must_use]
    pub fn blocks(&self) -> bool {
        self.need == Need::Lab && self.problem.is_some()
    }
}

/// A program, the package that brings it, and what needs it.
const PROGRAMS: [(&str, &str, Need); 17] = [
    ("qemu-system-x86_64", "qemu-system-x86", Need::Lab),
    ("iperf3", "iperf3", Need::Lab),
    ("busybox", "busybox-static", Need::Lab),
    ("ip", "iproute2", Need::Lab),
    ("tc", "iproute2", Need::Lab),
    ("ss", "iproute2", Need::Lab),
    ("ethtool", "ethtool", Need::Lab),
    ("tcpdump", "tcpdump", Need::Lab),
    ("xz", "xz-utils", Need::Lab),
    // For a test of `floodway top`.
    ("tmux", "tmux", Need::Lab),
    // For a test of `floodway capture`.
    ("tshark", "tshark", Need::Lab),
    ("cpio", "cpio", Need::Lab),
    // The lab builds the guests' program, if it is not there, with libbpf and BPF programs in it.
    ("clang", "clang", Need::Lab),
    ("make", "make", Need::Lab),
    ("pkg-config", "pkg-config", Need::Lab),
    ("dpdk-testpmd", "dpdk-dev", Need::Bench),
    ("ovs-vsctl", "openvswitch-switch-dpdk", Need::Bench),
];

/// Files that builds need: what they are, where they are, the package that brings them, and what needs them.
const FILES: [(&str, &str, &str, Need); 3] = [
    ("libelf", "/usr/lib/x86_64-linux-gnu/libelf.a", "libelf-dev", Need::Lab),
    ("zlib", "/usr/lib/x86_64-linux-gnu/libz.a", "zlib1g-dev", Need::Lab),
    ("DPDK headers", "/usr/include/dpdk/rte_eal.h", "libdpdk-dev", Need::Bench),
];

/// Directories that root's `PATH` may lack in a plain shell.
const SYSTEM_DIRS: [&str; 3] = ["/usr/sbin", "/sbin", "/usr/local/sbin"];
/// Eight guests of 300 MB, the lab, and the page cache for their images.
const MEMORY_MIB: u64 = 3072;
/// Memory of the packet generators and of the other switches, all of which the benchmark has at once.
const HUGE_PAGES_MIB: u64 = 4096;

/// Looks at everything.
#[must_use]
pub fn examine() -> Vec<Finding> {
    let mut findings: Vec<Finding> = PROGRAMS.iter().map(|entry| program(*entry)).collect();
    findings.push(rights());
    findings.push(network());
    findings.push(shared_memory());
    findings.push(memory());
    findings.push(huge_pages());
    findings.extend(FILES.map(file));
    findings.push(switch());
    findings.extend(Series::ALL.map(guest_kernel));
    findings
}

/// Gets what can be got, up to what `need` asks for: Debian packages with apt's own progress, and the
/// guests' kernels. Does nothing when nothing is missing.
///
/// # Errors
/// When not root, not on Debian, or `apt-get` fails.
pub fn install(findings: &[Finding], need: Need) -> Result<()> {
    let packages: BTreeSet<&str> = findings
        .iter()
        .filter(|finding| finding.problem.is_some() && finding.need <= need)
        .filter_map(|finding| finding.package)
        .collect();
    if !packages.is_empty() {
        ensure!(is_root(), "cannot install {}: not root", join(&packages));
        eprintln!("installing {}", join(&packages));
        apt_get(&["update", "-q"])?;
        let options = ["install", "-q", "-y", "--no-install-recommends"];
        apt_get(&options.into_iter().chain(packages).collect::<Vec<_>>())?;
    }
    for series in Series::ALL {
        if Kernel::cached(series).is_none() {
            eprintln!("fetching the guests' kernel {series}");
            Kernel::fetch(series)?;
        }
    }
    Ok(())
}

/// Prints the findings for people; those that are fine in one line.
#[must_use]
pub fn render(findings: &[Finding]) -> String {
    let fine: Vec<&str> = findings
        .iter()
        .filter(|finding| finding.problem.is_none())
        .map(|finding| finding.what.as_str())
        .collect();
    let mut lines = vec![format!("ok: {}", fine.join(", "))];
    for finding in findings {
        let Some(problem) = &finding.problem else { continue };
        let grade = if finding.need == Need::Lab { "MISSING" } else { "missing for the benchmark" };
        lines.push(format!("{grade}: {}: {problem}\n    fix: {}", finding.what, finding.fix));
    }
    lines.join("\n")
}

fn join(packages: &BTreeSet<&str>) -> String {
    packages.iter().copied().collect::<Vec<_>>().join(" ")
}

fn apt_get(args: &[&str]) -> Result<()> {
    let status = Command::new("apt-get")
        .args(args)
        .env("DEBIAN_FRONTEND", "noninteractive")
        .stdin(std::process::Stdio::null())
        .status()
        .context("cannot start apt-get; the lab installs from Debian only")?;
    if !status.success() {
        bail!("apt-get {} failed ({status})", args.join(" "));
    }
    Ok(())
}

fn program((name, package, need): (&str, &'static str, Need)) -> Finding {
    Finding {
        what: name.into(),
        need,
        problem: (!in_path(name)).then(|| "not in PATH".into()),
        fix: format!("apt-get install {package}"),
        package: Some(package),
    }
}

fn in_path(name: &str) -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path)
        .chain(SYSTEM_DIRS.iter().map(Into::into))
        .any(|dir| dir.join(name).is_file())
}

fn is_root() -> bool {
    // SAFETY: geteuid takes nothing and cannot fail.
    unsafe { libc::geteuid() == 0 }
}

fn other(what: &str, need: Need, problem: Option<String>, fix: &str) -> Finding {
    Finding { what: what.into(), need, problem, fix: fix.into(), package: None }
}

fn rights() -> Finding {
    let problem = (!is_root()).then(|| "taps and namespaces need it".into());
    other("root", Need::Lab, problem, "run as root, for example with sudo")
}

/// Builds in small what experiments build.
fn network() -> Finding {
    let problem = if in_path("ip") && in_path("tc") && is_root() {
        probe_network().err().map(|error| format!("{error:#}"))
    } else {
        Some("cannot be probed without ip, tc and root".into())
    };
    let fix = "a kernel with TUN, BRIDGE, VETH, NET_NS, NET_SCH_TBF (any Debian kernel)";
    other("kernel networking", Need::Lab, problem, fix)
}

fn probe_network() -> Result<()> {
    let missing = net::missing_kernel_features();
    ensure!(missing.is_empty(), "no {}", missing.join(", "));
    let [left, right] = [Namespace::create("probe-a")?, Namespace::create("probe-b")?];
    left.bridge("br0")?;
    left.tap("tap0")?;
    net::join(&left, &right, "link0", Rate { mbit: 100, queue_bytes: 1 << 20 })
}

fn shared_memory() -> Finding {
    // SAFETY: the name is a C string; the descriptor is closed at once.
    let works = unsafe {
        let descriptor = libc::memfd_create(c"floodway-lab".as_ptr(), libc::MFD_CLOEXEC);
        descriptor >= 0 && libc::close(descriptor) == 0
    };
    let problem = (!works).then(|| std::io::Error::last_os_error().to_string());
    other("memfd", Need::Lab, problem, "a kernel with MEMFD_CREATE (any Debian kernel)")
}

fn memory() -> Finding {
    let available = meminfo_kib("MemAvailable").unwrap_or(0) / 1024;
    let problem = (available < MEMORY_MIB)
        .then(|| format!("{available} MiB available, eight guests need {MEMORY_MIB}"));
    other("memory", Need::Lab, problem, "end other programs, or use a larger machine")
}

fn huge_pages() -> Finding {
    let size_kib = meminfo_kib("Hugepagesize");
    let free = meminfo_kib("HugePages_Free").unwrap_or(0);
    let problem =
        lack_of_huge_pages(size_kib, free, meminfo_kib("MemAvailable").unwrap_or(0) / 1024);
    let fix = match size_kib {
        Some(_) => "end other programs, or use a larger machine",
        None => "a kernel with CONFIG_HUGETLBFS (any Debian kernel)",
    };
    other("huge pages", Need::Bench, problem, fix)
}

/// Returns what the benchmark would lack; `None` if it can have its huge pages. It takes free ones, adds to the kernel's pool what is missing, and mounts nothing.
fn lack_of_huge_pages(size_kib: Option<u64>, free: u64, available_mib: u64) -> Option<String> {
    let Some(size_kib) = size_kib else { return Some("the kernel has no huge pages".into()) };
    let mib = free * size_kib / 1024 + available_mib;
    (mib < HUGE_PAGES_MIB)
        .then(|| format!("{mib} MiB are available, {HUGE_PAGES_MIB} MiB are needed"))
}

fn meminfo_kib(key: &str) -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
    line.split_whitespace().next()?.parse().ok()
}

fn file((what, path, package, need): (&str, &str, &'static str, Need)) -> Finding {
    let problem = (!Path::new(path).is_file()).then(|| format!("no {path}"));
    let fix = format!("apt-get install {package}");
    Finding { package: Some(package), ..other(what, need, problem, &fix) }
}

fn guest_kernel(series: Series) -> Finding {
    let problem = Kernel::cached(series).is_none().then(|| "not fetched yet".into());
    let fix = "floodway-lab doctor --install fetches it from Debian";
    other(&format!("guest kernel {series}"), Need::Lab, problem, fix)
}

fn switch() -> Finding {
    let problem = switch_process::binary().err().map(|error| format!("{error:#}"));
    other("floodway", Need::Lab, problem, "cargo build --release -p floodway")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_nobody_has_is_missing_with_its_package() {
        let finding = program(("no-such-program", "some-package", Need::Lab));
        assert!(finding.blocks());
        assert_eq!(finding.fix, "apt-get install some-package");
        assert!(!program(("sh", "dash", Need::Lab)).blocks());
    }

    #[test]
    fn only_what_the_lab_needs_blocks() {
        assert!(!program(("no-such-program", "some-package", Need::Bench)).blocks());
    }

    #[test]
    fn huge_pages_are_free_ones_or_available_memory() {
        assert_eq!(lack_of_huge_pages(Some(2048), 2048, 0), None);
        assert_eq!(lack_of_huge_pages(Some(2048), 0, 4096), None);
        let lack = lack_of_huge_pages(Some(2048), 1, 4000).unwrap();
        assert_eq!(lack, "4002 MiB are available, 4096 MiB are needed");
        assert!(lack_of_huge_pages(None, 0, 8192).is_some());
    }

    #[test]
    fn problems_are_printed_with_their_fix() {
        let findings =
            [program(("sh", "dash", Need::Lab)), program(("no-such", "some-package", Need::Lab))];
        let text = render(&findings);
        assert!(text.starts_with("ok: sh\n"), "{text}");
        assert!(text.contains("MISSING: no-such") && text.contains("apt-get install some-package"));
    }
}
