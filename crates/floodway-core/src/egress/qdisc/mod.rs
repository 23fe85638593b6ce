//! Queue disciplines: which packet leaves next, and which ones do not leave at all.
//!
//! # Theory of operation
//! **Goal**: a small flow does not wait behind a large one on its way to the wire, and no VM behind
//! another one's packets.
//!
//! Three layers, each one decision:
//!
//! | layer | module | decides |
//! |---|---|---|
//! | class | [`scheduler`] | the high class is served first, always |
//! | VM | [`scheduler`] | within a class, VMs take turns by bytes |
//! | flow | a [`Discipline`]: [`fifo`], [`codel`], [`fq_codel`] | order, drops and marks among one VM's packets |
//!
//! A discipline holds packets as opaque handles with the three facts that decisions need ([`Packet`]).
//! Whatever it drops it hands back with the [`Cause`]; what it marks it hands out with the request to set CE
//! ([`Departure::mark`]). So the same code runs on buffers and on packets that have no bytes.
//!
//! A scheduler above a long device queue schedules nothing: what the device has taken is out of reach. [`limit`]
//! says how many bytes the device may hold (fixed, or learned as Linux's byte queue limits do), and [`shaper`] paces what
//! leaves where the device does not say what it holds.
//!
//! How large a packet is decides how finely all this can choose. A GSO packet is one packet here; to segment it
//! first is the caller's decision and the point of the paper's section 4.2.
//!
//! **Invariants**: every packet that was taken is handed out, handed back as dropped, or in a queue; a queue never
//! holds more than its limits between two calls; packets of one flow (same class, VM and flow hash) leave in
//! the order in which they came. Memory grows to the largest backlog seen and is used again.
//!
//! Sources: RFC 8289 (CoDel), RFC 8290 (FQ-CoDel), RFC 3168 (ECN); Xu et al., "Small is Better" (`SoCC` 2013).

mod arena;
pub mod codel;
pub mod fifo;
pub mod fq_codel;
pub mod limit;
pub mod scheduler;
pub mod shaper;

use crate::time::{Duration, Instant};

pub use codel::{Codel, CodelConfig};
pub use fifo::Fifo;
pub use fq_codel::{FqCodel, FqConfig};
pub use limit::{ByteLimit, DynamicLimit};
pub use scheduler::{Class, Counters, HIGH_BURST, Scheduler, Served};
pub use shaper::Shaper;

/// What a discipline knows of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet<H> {
    /// The caller's name for it, or the packet itself.
    pub handle: H,
    /// Bytes that it takes on the wire, at least as the caller counts them.
    pub len: u32,
    /// Hash of its flow. Should be seeded with something that guests do not know.
    pub flow: u64,
    /// It is ECN-capable (ECT(0), ECT(1) or CE): it can be marked instead of dropped.
    pub ecn_capable: bool,
}

/// Why a discipline dropped a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The queue's limit in packets or bytes.
    Full,
    /// The queue has been too long for too long (RFC 8289).
    Aqm,
}

/// A packet that leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Departure<H> {
    /// The packet.
    pub packet: Packet<H>,
    /// It is to carry CE from here on. Only ever true for an ECN-capable packet.
    pub mark: bool,
    /// How long it was in the queue.
    pub sojourn: Duration,
}

/// Who gets dropped packets back.
pub type Dropped<'a, H> = dyn FnMut(Packet<H>, Cause) + 'a;

/// What waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backlog {
    /// Packets.
    pub packets: u32,
    /// Their bytes.
    pub bytes: u64,
}

/// A queue discipline over packets of one VM and class.
pub trait Discipline<H> {
    /// Takes a packet. It, or others in its place, may come back through `dropped`.
    fn enqueue(&mut self, packet: Packet<H>, now: Instant, dropped: &mut Dropped<'_, H>);

    /// Gives the packet that leaves next; `None` when nothing is left. Packets may come back through `dropped`.
    fn dequeue(&mut self, now: Instant, dropped: &mut Dropped<'_, H>) -> Option<Departure<H>>;

    /// What waits.
    fn backlog(&self) -> Backlog;
}

/// Which discipline.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    /// First in, first out, drop at the tail.
    Fifo,
    /// One queue under `CoDel`.
    Codel,
    /// A queue for each flow, each under `CoDel`.
    #[default]
    FqCodel,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Fifo, Self::Codel, Self::FqCodel];

    /// The name in configurations and status.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fifo => "fifo",
            Self::Codel => "codel",
            Self::FqCodel => "fq_codel",
        }
    }
}

/// Settings of a discipline, whichever it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Which one.
    pub kind: Kind,
    /// Most packets of one VM and class that wait. Default 10 240 (RFC 8290, section 5.2.1).
    pub limit_packets: u32,
    /// Most bytes of one VM and class that wait. Default 4 MiB.
    pub limit_bytes: u64,
    /// `CoDel`'s settings; a fifo has no use for them.
    pub codel: CodelConfig,
    /// Settings of the flow queues; only `fq_codel` has them.
    pub fq: FqConfig,
    /// Percent of the bytes that the high class may have while the low one has packets, 1 to 100. Default 75.
    pub high_percent: u8,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            kind: Kind::default(),
            limit_packets: 10_240,
            limit_bytes: 4 << 20,
            codel: CodelConfig::default(),
            fq: FqConfig::default(),
            high_percent: 75,
        }
    }
}

impl Config {
    /// An empty discipline with these settings.
    #[must_use]
    pub fn build<H: Send + 'static>(&self) -> Box<dyn Discipline<H> + Send> {
        match self.kind {
            Kind::Fifo => Box::new(Fifo::new(self.limits())),
            Kind::Codel => Box::new(Codel::new(self.limits(), self.codel)),
            Kind::FqCodel => Box::new(FqCodel::new(self.limits(), self.codel, self.fq)),
        }
    }

    fn limits(&self) -> Limits {
        Limits { packets: self.limit_packets, bytes: self.limit_bytes }
    }
}

/// Bounds of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Most packets.
    pub packets: u32,
    /// Most bytes.
    pub bytes: u64,
}

impl Limits {
    /// There is room for another packet of `len` bytes beside `backlog`.
    #[must_use]
    pub const fn admit(&self, backlog: Backlog, len: u32) -> bool {
        backlog.packets < self.packets && backlog.bytes + len as u64 <= self.bytes
    }

    /// `backlog` is within the bounds.
    #[must_use]
    pub const fn hold(&self, backlog: Backlog) -> bool {
        backlog.packets <= self.packets && backlog.bytes <= self.bytes
    }
}
