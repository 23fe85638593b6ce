//! Layer 2: which port a frame goes to, and what a port may send.
//!
//! # Theory of operation
//! A network is one broadcast domain: a
//! unicast frame goes to the one port of its network behind which its destination MAC address was last seen, and
//! to all ports of the network while that is unknown. Co-residency of two guests is the same single look-up,
//! whatever the number of guests: the address is behind a local port, or it is not.
//!
//! - [`MacTable`] is the forwarding database: address to [`PortId`], learned from source addresses,
//!   aged, bounded per port, and with rules for moves that keep the network from stealing the
//!   address of a guest.
//! - [`MacTables`] has one for each network.
//! - [`SourcePolicy`] says which source addresses a port may use, and keeps guests from posing as routers and DHCP servers.
//! - [`origin`] tells a guest's own addresses from those that it forwards for.
//! - [`StormLimit`] bounds the frames of a port that are copied to many, [`RateLimit`] all frames of a port in one direction.
//!
//! Everything here runs on a hostile input: guests choose their source addresses, and so does
//! whoever is on the network. A guest can fill, confuse or slow down its own entries only.
//!
//! Sources: IEEE 802.1Q clause 8.7 and 8.8 (learning, filtering database); the rule for reflected
//! broadcasts is that of Open vSwitch for bonded uplinks.

#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod journal;
mod mac_table;
mod networks;
pub mod origin;
mod policy;
mod rate;
mod slots;
mod storm;

pub use mac_table::{Entry, EntryKind, Learned, MacTable, Observed, PortKind, Refusal};
pub use networks::{MacTables, NetworkId, Origin};
pub use policy::{SourcePolicy, Spoof};
pub use rate::{MIN_BURST_BYTES, Rate, RateLimit};
pub use storm::StormLimit;

/// Names a port of the switch: a VM's port or an uplink. Small integers, so that state per port
/// can be kept in arrays.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortId(pub u16);

impl PortId {
    /// The highest usable number; 65 535 is taken for "no port".
    pub const MAX: Self = Self(u16::MAX - 1);

    /// The number as an index.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}
