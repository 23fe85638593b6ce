//! What this machine leaves of a stream that has half of a core, without any switch.
//!
//! # Theory of operation
//! A stream that shares a core pays more for a frame than one that has it alone, though nobody takes any of its time: what others do in between takes caches, TLB and
//! prefetchers from it. So half of the time is less than half of the frames, on any switch. A loop on the switch's CPU shows how much less: it copies frames of 1500 bytes
//! through as much memory as the victims' stream does, first by itself, then in turns with copies of 64 bytes elsewhere that take as long. Only the time of the large copies counts.

use std::hint::black_box;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};

use crate::vcpu;

/// Bytes between two buffers.
const STRIDE: usize = 2048;
/// Frames of the stream before a byte is touched again.
const FRAMES: usize = 16 * 1024;
/// Bytes of a large frame.
const LARGE: usize = 1500;
/// Bytes of a small frame.
const SMALL: usize = 64;
/// Small frames before a byte is touched again.
const OTHERS: usize = 2 * 1024;
/// Frames of a turn.
const TURN: usize = 32;
/// Turns of a slice.
const TURNS: usize = 4096;
/// Slices of each kind.
const SLICES: usize = 9;

/// Copies from one half of its memory to the other.
struct Copies {
    memory: Vec<u8>,
    frames: usize,
    at: usize,
}

impl Copies {
    fn new(frames: usize) -> Self {
        Self { memory: vec![1; 2 * frames * STRIDE], frames, at: 0 }
    }

    /// Copies the next frame of `LEN` bytes.
    fn copy<const LEN: usize>(&mut self) {
        let (from, to) = self.memory.split_at_mut(self.frames * STRIDE);
        let range = self.at * STRIDE..self.at * STRIDE + LEN;
        to[range.clone()].copy_from_slice(&from[range]);
        self.at = (self.at + 1) % self.frames;
        black_box(&mut self.memory);
    }
}

/// Returns how much longer a large frame takes in turns with other work than alone: the median of slices in turns.
///
/// # Errors
/// The thread cannot be pinned.
pub fn dearer(core: usize) -> Result<f64> {
    thread::scope(|scope| {
        let measure = scope.spawn(|| -> Result<f64> {
            vcpu::pin(0, &[core])?;
            let (mut stream, mut others) = (Copies::new(FRAMES), Copies::new(OTHERS));
            let mut slice = |shared| slice(&mut stream, &mut others, shared).as_secs_f64();
            let ratios = (0..SLICES).map(|_| 1.0 / slice(false) * slice(true));
            Ok(floodway_report::stats::median(&ratios.collect::<Vec<_>>()).unwrap_or(f64::NAN))
        });
        measure.join().map_err(|_| anyhow!("a thread panicked"))?
    })
}

/// Time of the large copies of a slice.
fn slice(stream: &mut Copies, others: &mut Copies, shared: bool) -> Duration {
    let mut spent = Duration::ZERO;
    for _ in 0..TURNS {
        let start = Instant::now();
        (0..TURN).for_each(|_| stream.copy::<LARGE>());
        let turn = start.elapsed();
        spent += turn;
        while shared && start.elapsed() < 2 * turn {
            (0..TURN).for_each(|_| others.copy::<SMALL>());
        }
    }
    spent
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_go_round_and_reach_each_frame() {
        let mut copies = Copies::new(4);
        copies.memory[..4 * STRIDE].fill(7);
        (0..5).for_each(|_| copies.copy::<LARGE>());
        assert_eq!(copies.at, 1);
        let to = &copies.memory[4 * STRIDE..];
        assert!((0..4).all(|n| to[n * STRIDE..][..LARGE].iter().all(|&byte| byte == 7)));
        assert!((0..4).all(|n| to[n * STRIDE + LARGE..][..STRIDE - LARGE].iter().all(|&b| b == 1)));
    }
}
