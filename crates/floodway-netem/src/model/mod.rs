//! What happens to a packet between two hosts, in virtual time.
//!
//! Nothing here reads a clock or a device: time is an argument, packets are a [`Packet`], and
//! randomness comes from seeded generators. [`Link`] is one direction of a cable behind one output
//! port; [`Fabric`] joins links to a path or to a switch.
//!
//! All calls of one object must be made with times that do not go back.

mod config;
mod counters;
mod fabric;
mod impairments;
mod link;
mod loss;
mod queue;
#[cfg(test)]
mod testing;
mod transmitter;
mod wire;

use floodway_wire::ethernet::MacAddr;

pub use config::{Forwarding, LinkConfig, Reordering};
pub use counters::{ClassCounters, Count, FabricCounters, LinkCounters};
pub use fabric::{Fabric, PortConfig};
pub use impairments::Impairments;
pub use link::Link;
pub use loss::{Loss, LossModel};
pub use queue::{Class, Queue, QueueConfig};
pub use transmitter::{ETHERNET_OVERHEAD, Rate, Transmitter};
pub use wire::Wire;

/// What the model must know of a packet, and may do to it.
pub trait Packet {
    /// Bytes from the Ethernet header to the end of the payload, without the frame check sequence.
    fn frame_len(&self) -> u32;

    /// Differentiated services code point; `None` if this is no IP packet.
    fn dscp(&self) -> Option<u8>;

    /// Where it is sent to.
    fn destination(&self) -> MacAddr;

    /// Who sent it.
    fn source(&self) -> MacAddr;

    /// Sets the codepoint "congestion experienced" (RFC 3168); false, and unchanged, if its
    /// transport does not take part in ECN.
    fn mark_congestion(&mut self) -> bool;

    /// Flips one bit behind the Ethernet header; `choice` says which, any number will do.
    fn flip_bit(&mut self, choice: u64);

    /// A second packet of the same bytes.
    fn duplicate(&self) -> Self;
}
