//! Counters: what went through each queue, and why what did not was dropped.
//!
//! Every counter has one writer at a time (the holder of the queue's lock, or the worker that
//! owns the uplink), so an increment is a relaxed load and store, not a locked instruction.
//! Readers (the control socket) see each counter whole, but not all of them at one moment.

pub mod ledger;
pub mod traffic_matrix;
#[cfg(any(test, fuzzing))]
pub mod work;
#[cfg(not(any(test, fuzzing)))]
pub(crate) mod work;

use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use floodway_core::l2::Spoof;

/// A counter with a single writer.
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `n`. Only the counter's one writer may call this.
    #[inline]
    pub fn add(&self, n: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_add(n), Relaxed);
    }

    /// The value now.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

macro_rules! drop_reasons {
    ($($(#[doc = $doc:literal])+ $variant:ident = $name:literal,)+) => {
        /// Why a frame was dropped. No frame is ever dropped without one of these being counted.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(usize)]
        pub enum DropReason { $($(#[doc = $doc])+ $variant,)+ }

        impl DropReason {
            /// All reasons, in the order in which they are reported.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+];

            /// The name in `floodway status` and in metrics.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)+ }
            }
        }
    };
}

drop_reasons! {
    /// The descriptor chain was malformed: a bad index, a loop, an address outside memory, a
    /// writable buffer where a readable one belongs, or longer than a frame can be.
    BadDescriptor = "bad_descriptor",
    /// The virtio-net header asked for something that was not negotiated or makes no sense.
    BadOffload = "bad_offload",
    /// Shorter than an Ethernet header.
    Runt = "runt",
    /// Larger than the port's MTU allows and not a GSO packet, or larger than the network's MTU allows.
    Oversize = "oversize",
    /// The source MAC address is not the port's.
    SpoofedMac = "spoofed_mac",
    /// The source MAC address is a group address or all zeros.
    InvalidSource = "invalid_source",
    /// A frame of one of our own guests came back from the network.
    Reflected = "reflected",
    /// The source IP address is not one of the port's.
    SpoofedIp = "spoofed_ip",
    /// The source MAC address is in use behind another port.
    MacInUse = "mac_in_use",
    /// A router advertisement or a redirect from a port that may send none.
    RouterGuard = "router_guard",
    /// A DHCP server's message from a port that may send none.
    DhcpGuard = "dhcp_guard",
    /// A VLAN tag, or the lack of one, that means no network of the port or uplink that the frame has come by.
    VlanFiltered = "vlan_filtered",
    /// The storm limit of the port or uplink that the frame came from.
    Storm = "storm",
    /// The rate limit of the guest's port, in the direction in which it is counted.
    RateLimit = "rate_limit",
    /// The destination is another port, and one of both is isolated.
    Isolated = "isolated",
    /// The destination's bounded queue was full: its guest gives no buffers back.
    QueueFull = "queue_full",
    /// A group or unknown address, and no other port or uplink that could take the frame.
    NoDestination = "no_destination",
    /// The destination port has no running guest; or the frame waited for one that stopped and did not come back, or came back taking frames otherwise.
    PortDown = "port_down",
    /// The frame fits no receive buffer of the guest (which did not negotiate mergeable ones).
    NoLargeBuffer = "no_large_buffer",
    /// The destination is the port that the frame came from.
    Hairpin = "hairpin",
    /// UDP beyond the guest's inbound rate, which is policed.
    InboundRate = "inbound_rate",
    /// The frame in which a guest's module says its nonce to the switch: it is meant for nobody else.
    GuestNonce = "guest_nonce",
    /// A notice to a guest that did not come from this switch.
    ForgedNotice = "forged_notice",
    /// TCP offload: the guest sent beyond what it was granted.
    BeyondGrant = "beyond_grant",
    /// TCP offload: the peer acknowledged what was never sent to it.
    AcksUnsent = "acks_unsent",
    /// The uplink's queue of that VM and class was at its limit.
    UplinkQueueFull = "uplink_queue_full",
    /// The uplink's queue was too long for too long (`CoDel`).
    UplinkAqm = "uplink_aqm",
    /// The uplink's device did not take the frame.
    UplinkFull = "uplink_full",
    /// The uplink's device refused the frame again and again: its own queue was full, or a filter of the host drops it.
    UplinkRefused = "uplink_refused",
    /// The uplink's device failed.
    UplinkError = "uplink_error",
}

impl From<Spoof> for DropReason {
    fn from(spoof: Spoof) -> Self {
        match spoof {
            Spoof::Mac => Self::SpoofedMac,
            Spoof::Ip => Self::SpoofedIp,
            Spoof::Router => Self::RouterGuard,
            Spoof::DhcpServer => Self::DhcpGuard,
        }
    }
}

/// Words of a block of counters: whole cache lines.
pub const WORDS: usize = 40;

const _: () = assert!(size_of::<Block>() == WORDS * size_of::<u64>());

/// Traffic of one direction of one queue, port or uplink: a block of counters of its own, or one in memory that outlives the process.
#[derive(Debug)]
pub struct Traffic {
    block: NonNull<Block>,
    /// `block` is a box that belongs to this.
    is_own: bool,
}

// SAFETY: a block is made of atomic words, and is there as long as this.
unsafe impl Send for Traffic {}
// SAFETY: as above.
unsafe impl Sync for Traffic {}

impl Traffic {
    /// Counts in `words`, on top of what is there.
    #[must_use]
    pub fn kept(words: &'static [AtomicU64; WORDS]) -> Self {
        Self { block: NonNull::from(words).cast(), is_own: false }
    }
}

impl Default for Traffic {
    fn default() -> Self {
        Self { block: NonNull::from(Box::leak(Box::default())), is_own: true }
    }
}

impl Drop for Traffic {
    fn drop(&mut self) {
        if self.is_own {
            // SAFETY: the box that `default` has leaked, and that nobody else frees.
            drop(unsafe { Box::from_raw(self.block.as_ptr()) });
        }
    }
}

impl Deref for Traffic {
    type Target = Block;

    #[inline]
    fn deref(&self) -> &Block {
        // SAFETY: either the box, which this owns, or words that are never unmapped: of them a block is made, and any value is valid.
        unsafe { self.block.as_ref() }
    }
}

/// What ports have counted that are gone.
#[derive(Debug, Default)]
pub struct Removed {
    /// How many there were, as packets.
    pub ports: Traffic,
    /// Frames to their guests.
    pub rx: Traffic,
    /// Frames from their guests.
    pub tx: Traffic,
    /// Frames that were to go to a port that was just removed.
    pub late: Traffic,
}

/// The counters of a [`Traffic`].
#[derive(Debug, Default)]
#[repr(C)]
pub struct Block {
    /// Frames; a GSO packet is one.
    pub packets: Counter,
    /// Bytes of the frames, without virtio-net headers.
    pub bytes: Counter,
    /// GSO packets among the packets.
    pub gso_packets: Counter,
    drops: [Counter; DropReason::ALL.len()],
    /// Up to whole cache lines.
    _padding: [Counter; WORDS - 3 - DropReason::ALL.len()],
}

impl Block {
    /// Counts one frame of `bytes` that went through.
    #[inline]
    pub fn count(&self, bytes: u64) {
        self.packets.add(1);
        self.bytes.add(bytes);
    }

    /// Counts `n` dropped frames.
    #[cold]
    pub fn count_drop(&self, reason: DropReason, n: u64) {
        self.drops[reason as usize].add(n);
    }

    /// Adds what another block has counted.
    pub fn add(&self, other: &Self) {
        self.packets.add(other.packets.get());
        self.bytes.add(other.bytes.get());
        self.gso_packets.add(other.gso_packets.get());
        self.drops.iter().zip(&other.drops).for_each(|(counter, more)| counter.add(more.get()));
    }

    /// Frames dropped.
    #[must_use]
    pub fn all_drops(&self) -> u64 {
        self.drops.iter().map(Counter::get).fold(0, u64::wrapping_add)
    }

    /// Frames dropped for `reason`.
    #[must_use]
    pub fn drops(&self, reason: DropReason) -> u64 {
        self.drops[reason as usize].get()
    }
}
