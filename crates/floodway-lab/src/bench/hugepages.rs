//! Huge pages for the time of the benchmark.
//!
//! DPDK runs with `--in-memory`: it takes anonymous huge pages, so no hugetlbfs need be mounted and
//! a killed process leaves no file. Only the kernel's pool has to be large enough; it is
//! grown here and put back by the guard, however the lab ends.

use std::fs;

use anyhow::{Context, Result, ensure};

use crate::cleanup::{self, Guard};

const POOL: &str = "/proc/sys/vm/nr_hugepages";
const COMPACT: &str = "/proc/sys/vm/compact_memory";
/// The pool is large enough as long as this lives.
#[derive(Debug)]
pub struct Reservation {
    _restore: Option<Guard>,
}

impl Reservation {
    /// Grows the pool when less than `mib` MiB are free.
    ///
    /// # Errors
    /// When the kernel has no huge pages, or not enough contiguous memory for them.
    pub fn acquire(mib: u64) -> Result<Self> {
        let page_kib = meminfo("Hugepagesize").context("the kernel has no huge pages")?;
        let needed = (mib * 1024).div_ceil(page_kib);
        let free = free_pages()?;
        if free >= needed {
            return Ok(Self { _restore: None });
        }
        let before = read_pool()?;
        let restore = cleanup::register("the huge page reservation", move || write_pool(before))?;
        // Pages in use beyond the pool's size (it was shrunk under its users) count first.
        let total = meminfo("HugePages_Total").context("/proc/meminfo has no HugePages_Total")?;
        let target = total + needed - free;
        write_pool(target)?;
        if read_pool()? < target {
            // Memory in use is scattered: let the kernel move it together, and ask once more.
            fs::write(COMPACT, "1").with_context(|| format!("cannot write {COMPACT}"))?;
            write_pool(target)?;
        }
        let free = free_pages()?;
        ensure!(
            free >= needed,
            "only {free} of {needed} huge pages of {page_kib} KiB could be had; free memory, or boot with hugepages={needed}"
        );
        Ok(Self { _restore: Some(restore) })
    }
}

fn free_pages() -> Result<u64> {
    let free = meminfo("HugePages_Free").context("/proc/meminfo has no HugePages_Free")?;
    Ok(free - meminfo("HugePages_Rsvd").unwrap_or(0).min(free))
}

fn meminfo(key: &str) -> Option<u64> {
    parse_meminfo(&fs::read_to_string("/proc/meminfo").ok()?, key)
}

fn parse_meminfo(text: &str, key: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
    line.split_whitespace().next()?.parse().ok()
}

fn read_pool() -> Result<u64> {
    let text = fs::read_to_string(POOL).with_context(|| format!("cannot read {POOL}"))?;
    text.trim().parse().with_context(|| format!("{POOL} holds `{}`", text.trim()))
}

fn write_pool(pages: u64) -> Result<()> {
    fs::write(POOL, pages.to_string())
        .with_context(|| format!("cannot write {pages} to {POOL}; the benchmark must run as root"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meminfo_lines_are_found_by_their_whole_key() {
        let text = "HugePages_Total:     7\nHugePages_Free:      5\nHugepagesize:       2048 kB\n";
        assert_eq!(parse_meminfo(text, "HugePages_Free"), Some(5));
        assert_eq!(parse_meminfo(text, "Hugepagesize"), Some(2048));
        assert_eq!(parse_meminfo(text, "HugePages"), None);
    }
}
