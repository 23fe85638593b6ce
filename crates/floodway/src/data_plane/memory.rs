//! Memory of a data plane that stands by.
//!
//! # Theory of operation
//! **Goal**: taking over waits for no fresh memory. Frames stand still meanwhile, and for 1000 connections it means some two thousand page faults: tables, connections, and what these are read
//! into. On a host that is itself a VM each may wait for the host below.
//!
//! So a data plane that stands by [fetches](fetch) what it is likely to need, which is a heap as large as that of the one that runs, while frames still move: it takes memory from the allocator, touches all of it, and
//! frees it, and the allocator is told to keep it. It takes its time over that, so that workers are not slowed. Once the switch runs it [gives back](Fetched::give_back) what was not used, a little at a time: that
//! takes the allocator's lock.
//!
//! Tables that are large and sparse, as the index of a flow table is, are to stay so: from [`MAPPED`] bytes on the allocator maps each by itself, and none of what was fetched is cleared for them.
//!
//! This is for glibc's allocator; with another one both do nothing.

use std::thread;
use std::time::Duration;

/// Most bytes to be fetched: a data plane can say that it has any number.
const MOST: usize = 256 << 20;
/// Bytes to be taken at once, and to be given back.
const BLOCK: usize = 512 << 10;
/// Blocks that are given back at once.
const BLOCKS_BACK: usize = 16;
/// Allocations of so many bytes have pages of their own while memory is fetched and used.
const MAPPED: usize = 1 << 20;
/// By default of glibc it is so many, until large allocations have been freed; and what is free at the end of its memory is given back from so many on.
const DEFAULT: usize = 128 << 10;
/// The smallest page.
const PAGE: usize = 4096;
/// Between two blocks.
const REST: Duration = Duration::from_micros(500);

/// Makes the heap `heap` bytes large, up to a limit, or less if there is no more memory. Returns what is to be given back of that.
///
/// What a process has besides must not count: else each would fetch what the one before has fetched, and that.
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

/// Lets the allocator map allocations by themselves from `mapped` bytes on, and give back what is free at the end of its memory from `free` bytes on.
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
        let said = String::from_utf8_lossy(&ran.stdout);
        assert!(ran.status.success() && said.contains("1 passed"), "{said}");
    }
}
