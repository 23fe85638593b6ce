//! Memory of a data plane that stands by.
//!
//! # Theory of operation
//! **Goal**: a data plane takes over without waiting for page faults. Frames stand still meanwhile, and 1000 connections cause some two thousand faults: tables, connections, and the buffers
//! that they are read into. On a host that is a VM itself, each fault may wait for the hypervisor below.
//!
//! A data plane that stands by [grows its heap](fetch) to the size of its predecessor's, while that still forwards frames: it allocates blocks, touches every page and frees them, with the
//! allocator set to keep free memory. It sleeps between blocks so that workers are not slowed. After the hand-over it [returns](Fetched::give_back) unused memory in steps, because each step holds the allocator's lock.
//!
//! Large sparse tables, such as the index of a flow table, stay sparse: allocations of [`MAPPED`] bytes and more are mapped separately, so no fetched page is cleared for them.
//!
//! **Invariant**: fetching never makes the heap larger than the predecessor's, so repeated upgrades do not grow it.
//!
//! Only with glibc's allocator; with another one, [`fetch`] does nothing.

use std::thread;
use std::time::Duration;

/// Most bytes to be fetched: the predecessor may have been taken over, and have any heap.
const MOST: usize = 256 << 20;
/// Bytes to be taken at once, and to be given back.
const BLOCK: usize = 512 << 10;
/// Blocks that are given back at once.
const BLOCKS_BACK: usize = 16;
/// `M_MMAP_THRESHOLD` while fetched memory is in use, in bytes.
const MAPPED: usize = 1 << 20;
/// glibc's initial `M_MMAP_THRESHOLD` and `M_TRIM_THRESHOLD`, in bytes.
const DEFAULT: usize = 128 << 10;
/// The smallest page.
const PAGE: usize = 4096;
/// Between two blocks.
const REST: Duration = Duration::from_micros(500);

/// Grows the heap to `heap` bytes, [`MOST`] at most, or as far as there is memory. Returns what is to be given back later.
pub fn fetch(heap: u64) -> Fetched {
    let bytes = usize::try_from(heap).unwrap_or(MOST).min(MOST).saturating_sub(own_heap());
    if !cfg!(target_env = "gnu") {
        return Fetched { kept: 0 };
    }
    set_thresholds(MAPPED, i32::MAX as usize);
    let mut blocks: Vec<Vec<u8>> = Vec::new();
    for _ in 0..bytes / BLOCK {
        let mut block = Vec::new();
        if block.try_reserve_exact(BLOCK).is_err() {
            break;
        }
        block.resize(BLOCK, 0);
        block.iter_mut().step_by(PAGE).for_each(|byte| *byte = 1);
        blocks.push(std::hint::black_box(block));
        thread::sleep(REST);
    }
    Fetched { kept: blocks.len() * BLOCK }
}

/// Bytes of this process's heap.
fn own_heap() -> usize {
    #[cfg(target_env = "gnu")]
    // SAFETY: it reads what the allocator counts, under its lock.
    let bytes = unsafe { libc::mallinfo() }.arena;
    #[cfg(not(target_env = "gnu"))]
    let bytes = 0;
    usize::try_from(bytes).unwrap_or(0)
}

/// What is left to be given back.
#[derive(Debug)]
pub struct Fetched {
    /// Bytes that may stay for now.
    kept: usize,
}

impl Fetched {
    /// Gives some of it back. Returns `false` if there is nothing left.
    pub fn give_back(&mut self) -> bool {
        self.kept = self.kept.saturating_sub(BLOCKS_BACK * BLOCK);
        trim(self.kept);
        if self.kept == 0 {
            set_thresholds(DEFAULT, DEFAULT);
        }
        self.kept > 0
    }
}

/// Gives back what is free, but for `kept` bytes at the end of the allocator's memory.
fn trim(kept: usize) {
    #[cfg(target_env = "gnu")]
    // SAFETY: it gives back what the allocator itself holds free, whatever other threads do meanwhile.
    unsafe {
        libc::malloc_trim(kept);
    }
    #[cfg(not(target_env = "gnu"))]
    let _ = kept;
}

/// Sets `M_MMAP_THRESHOLD` and `M_TRIM_THRESHOLD`, in bytes.
fn set_thresholds(mapped: usize, free: usize) {
    #[cfg(target_env = "gnu")]
    // SAFETY: both are numbers that the allocator reads, under its own lock.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, mapped as i32);
        libc::mallopt(libc::M_TRIM_THRESHOLD, free as i32);
    }
    #[cfg(not(target_env = "gnu"))]
    let _ = (mapped, free);
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// Bytes of memory that are the process's own.
    fn own() -> u64 {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
        line.split_whitespace().next().unwrap().parse::<u64>().unwrap() << 10
    }

    #[test]
    #[ignore = "the test below runs it, by itself"]
    fn alone() {
        const BYTES: u64 = 48 << 20;
        let before = own();
        let mut left = fetch(BYTES);
        let fetched = own();
        assert!(fetched >= before + BYTES / 8 * 7, "{before} -> {fetched}");
        while left.give_back() {}
        assert!(own() < before + BYTES / 8, "{before} -> {}", own());
    }

    #[test]
    #[cfg(target_env = "gnu")]
    fn what_is_fetched_is_there_until_it_is_given_back() {
        let mut test = Command::new(std::env::current_exe().unwrap());
        test.args(["--exact", "data_plane::memory::tests::alone", "--ignored"]);
        // As in the main thread: others have memory of their own, which is given back in another way.
        let ran = test.env("MALLOC_ARENA_MAX", "1").output().unwrap();
        let output = String::from_utf8_lossy(&ran.stdout);
        assert!(ran.status.success() && output.contains("1 passed"), "{output}");
    }
}
