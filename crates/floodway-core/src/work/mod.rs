//! The work of a packet-moving thread, counted and divided among those that it works for.
//!
//! # Theory of operation
//! **Goal**: a port gets its share of a worker whatever another port offers: 16 queue pairs of GSO packets that have to be
//! cut into 1365 segments each cost their sender turns, not the others.
//!
//! **Counting.** What is done for a port is counted as [`Work`]: chains and descriptors taken from its rings, copies
//! made of its frames, bytes of these, segments made of GSO packets, frames that a device was handed, and interrupts that are sent by themselves. A [`CostModel`] makes one number of it: nanoseconds of the
//! machine that the weights were measured on. Frames as guests send them are charged what they cost when they are in the cache. What no
//! ordinary guest does is charged what it costs at worst: a layout of many short pieces can have each of them miss the TLB, the cache and the look-up of
//! memory regions, ten times and more of what a neighbouring piece costs.
//!
//! **Time.** Counting needs no clock, is the same in each run of a test, and knows beforehand what a batch will cost. But weights are right for one state of the
//! caches only. Measured on one worker: a stream of 1500-byte frames took 0.6 of what it was charged, 64-byte frames 0.9, broadcasts beyond their limit 1.4
//! and forged neighbour advertisements 1.7 times. With equal charges the stream then had 0.31 to 0.42 of the worker beside one sender of these, instead of half. So a thread that has
//! less time than is asked for charges a turn for the time that it took ([`Pace`]); it reads the clock once after each turn of at most a quantum, which other
//! threads' use of the core spoils within bounds.
//!
//! **Sharing.** [`Turns`] is deficit round robin: in each round each port may spend a quantum, is charged for what it turned out to
//! cost, and sits out rounds while it is in debt. How many queues a port has is not in it.
//!
//! **Who pays**: the sender of a frame, also for copies to many receivers and for segments that a receiver or an uplink needs, and also if
//! another thread does the work (a stored segment that an acknowledgement releases).
//!
//! The weights ([`CostModel::MEASURED`]) are those of `benches/work.rs` and `benches/egress.rs` of the switch: medians of batches of different
//! shapes in turns, rounded. Only their ratios matter for shares.
//!
//! Sources: Shreedhar and Varghese, "Efficient Fair Queuing using Deficit Round Robin" (SIGCOMM 1995); Marty et al.,
//! "Snap" (SOSP 2019) and Kumar et al., "`PicNIC`" (SIGCOMM 2019) for charging packet processing to its user.

mod pace;
mod turns;

pub use pace::Pace;
pub use turns::Turns;

use std::ops::{Add, AddAssign};

/// What was done for somebody.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Chains taken from rings.
    pub chains: u64,
    /// Descriptors of them, and pieces that frames are copied from, each time that they are.
    pub descriptors: u64,
    /// Short descriptors beyond the second of a chain: each may lie anywhere.
    pub scattered: u64,
    /// Frames delivered: one for each receiver.
    pub copies: u64,
    /// Receive chains that frames fill beyond their first.
    pub buffers: u64,
    /// Bytes of these frames; twice those that a receiver needs finished or cut, since they are copied and summed first.
    pub bytes: u64,
    /// Frames made by segmentation.
    pub segments: u64,
    /// Frames handed to a device of the host's or taken from it.
    pub device: u64,
    /// Interrupts that waited, and were sent outside of any turn.
    pub interrupts: u64,
}

impl Add for Work {
    type Output = Self;

    #[inline]
    fn add(self, other: Self) -> Self {
        Self {
            chains: self.chains + other.chains,
            descriptors: self.descriptors + other.descriptors,
            scattered: self.scattered + other.scattered,
            copies: self.copies + other.copies,
            buffers: self.buffers + other.buffers,
            bytes: self.bytes + other.bytes,
            segments: self.segments + other.segments,
            device: self.device + other.device,
            interrupts: self.interrupts + other.interrupts,
        }
    }
}

impl AddAssign for Work {
    #[inline]
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

/// Weights of [`Work`] in picoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CostModel {
    /// Of a chain, with the headers of its frame and the look-ups.
    pub chain: u64,
    /// Of a descriptor.
    pub descriptor: u64,
    /// Of a scattered descriptor, besides.
    pub scattered: u64,
    /// Of a delivered frame.
    pub copy: u64,
    /// Of a further receive chain.
    pub buffer: u64,
    /// Of a byte of it.
    pub byte: u64,
    /// Of a segment.
    pub segment: u64,
    /// Of a frame to or from a device: a system call.
    pub device: u64,
    /// Of an interrupt that waited: a system call.
    pub interrupt: u64,
}

impl CostModel {
    /// Measured on two cores of 2.6 GHz (AMD, virtual) with `cargo bench -p floodway-switch --bench work`, and `device` with `--bench
    /// egress`: 1.2 µs for a tap and 2.1 µs for a packet socket on a veth pair.
    /// `interrupt`: 45 000 to 80 000 a second were 5 % of a core (`bench --isolation --only blocked-call`).
    pub const MEASURED: Self = Self {
        chain: 45_000,
        descriptor: 9_000,
        scattered: 34_000,
        copy: 69_000,
        buffer: 50_000,
        byte: 99,
        segment: 46_000,
        device: 1_500_000,
        interrupt: 800_000,
    };

    /// The cost of `work` in nanoseconds.
    #[inline]
    #[must_use]
    pub const fn cost(&self, work: &Work) -> u64 {
        let ps = self.chain * work.chains
            + self.descriptor * work.descriptors
            + self.scattered * work.scattered
            + self.copy * work.copies
            + self.buffer * work.buffers
            + self.byte * work.bytes
            + self.segment * work.segments
            + self.device * work.device
            + self.interrupt * work.interrupts;
        ps / 1000
    }
}
