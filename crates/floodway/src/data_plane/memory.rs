//! Memory of a data plane that stands by.
//!
//! # Theory of operation
//! **Goal**: taking over waits for no fresh memory. Frames stand still meanwhile, and for 1000 connections it means some two thousand page faults: tables, connections, and what these are read
//! into. On a host that is itself a VM each may wait for the host below.
//!
//! So a data plane that stands by [fetches](fetch) what it is likely to need, which is what the one that runs has, while frames still move: it takes memory from the allocator, touches all of it, and
//! frees it, and the allocator is told to keep it. Once the switch runs it [gives back](give_back) what was not used.
//!
//! This is glibc's allocator; with another one both do nothing.

/// Most bytes to be fetched: a data plane can say that it has any number.
const MOST: usize = 256 << 20;
/// Bytes to be taken at once.
const BLOCK: usize = 16 << 20;
/// The allocator maps no smaller allocations of their own while memory is fetched and used: the most that it can be told.
const MAPPED: i32 = 32 << 20;
/// What the allocator is told by default, both for that and for what is free.
const DEFAULT: i32 = 128 << 10;
/// The smallest page.
const PAGE: usize = 4096;

/// Fetches so many `bytes`, up to a limit.
pub fn fetch(bytes: u64) {
    let bytes = usize::try_from(bytes).unwrap_or(MOST).min(MOST);
    set_thresholds(MAPPED, i32::MAX);
    let blocks: Vec<_> = (0..bytes.div_ceil(BLOCK)).map(|_| vec![0_u8; BLOCK]).collect();
    let mut left = bytes;
    for mut block in blocks {
        block.iter_mut().take(left).step_by(PAGE).for_each(|byte| *byte = 1);
        left = left.saturating_sub(BLOCK);
        std::hint::black_box(&block);
    }
}

/// Gives back what was fetched and is not used.
pub fn give_back() {
    set_thresholds(DEFAULT, DEFAULT);
    #[cfg(target_env = "gnu")]
    // SAFETY: it gives back what the allocator itself holds free, whatever other threads do meanwhile.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Lets the allocator map allocations of their own from `mapped` bytes on, and give back what is free at the end of its memory from `free` bytes on.
fn set_thresholds(mapped: i32, free: i32) {
    #[cfg(target_env = "gnu")]
    // SAFETY: both are numbers that the allocator reads, under its own lock.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, mapped);
        libc::mallopt(libc::M_TRIM_THRESHOLD, free);
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
        fetch(BYTES);
        let fetched = own();
        assert!(fetched >= before + BYTES / 8 * 7, "{before} -> {fetched}");
        give_back();
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
