//! A switch: which port a packet takes.
//!
//! # Theory of operation
//! Store and forward. A packet that has arrived is looked up by destination host; among equally short ways
//! the hash of its 5-tuple chooses (ECMP), mixed with a number of the switch's own, so that switches
//! in a row do not choose alike. All packets of one direction of a flow take one way and stay in order.
//! The latency of the switch is part of each link that leads to it.

use super::PortId;
use super::queue::QueueConfig;
use crate::Duration;
use crate::packet::Packet;

/// Settings of a switch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SwitchConfig {
    /// From the arrival of a packet to its place in the output queue.
    pub latency: Duration,
    /// Output queues of each port.
    pub queue: QueueConfig,
    /// Bytes of memory that all ports share, and the `alpha` of its dynamic threshold. Without it,
    /// only the limits of the port count.
    pub shared: Option<(u64, f64)>,
}

impl SwitchConfig {
    /// No latency, the given queue at each port, no shared memory.
    #[must_use]
    pub const fn new(queue: QueueConfig) -> Self {
        Self { latency: Duration::ZERO, queue, shared: None }
    }
}

/// A switch with its routes.
#[derive(Clone, Debug)]
pub struct Switch {
    /// Mixed into flow hashes.
    pub(super) salt: u32,
    /// For each host, its group of ports: first in `members`, and how many.
    pub(super) groups: Vec<(u32, u32)>,
    pub(super) members: Vec<PortId>,
}

impl Switch {
    #[inline]
    pub(super) fn route(&self, host: u32, packet: &Packet) -> Option<PortId> {
        let &(first, count) = self.groups.get(host as usize)?;
        let chosen = match count {
            0 => return None,
            1 => 0,
            _ => {
                let mixed = (packet.hash ^ self.salt).wrapping_mul(0x9e37_79b1);
                // The high bits, scaled to the number of ports.
                ((u64::from(mixed) * u64::from(count)) >> 32) as u32
            }
        };
        self.members.get((first + chosen) as usize).copied()
    }
}
