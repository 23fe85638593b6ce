//! What a path counts, as JSON.
//!
//! Counters never go back, except the high-water marks and the timing, which a reset starts anew.
//! An experiment that interleaves cells takes differences.

use serde::{Deserialize, Serialize};

use super::model::{FabricCounters, LinkCounters};
use super::timing::Distribution;

/// Counters of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceCounters {
    /// Frames from the host; a GSO packet is one.
    pub received_frames: u64,
    /// Their bytes.
    pub received_bytes: u64,
    /// Frames from the host that make no sense or are of a kind that is not cut (UDP GSO packets).
    pub unusable: u64,
    /// Frames from the host that were lost before they could be read: the process was away for too
    /// long. An experiment in which this is not 0 is not worth much. A tap keeps this count itself
    /// (`ip -s link`).
    pub missed: u64,
    /// Packets to the host.
    pub sent: u64,
    /// Packets that the host's side had no room for.
    pub refused_full: u64,
    /// Packets that the host's side refused: it is down, or its MTU is smaller.
    pub refused_failed: u64,
}

/// Counters of a port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortCounters {
    /// As in the description.
    pub name: String,
    /// The device.
    pub device: DeviceCounters,
    /// From the host, if there is such a link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ingress: Option<LinkCounters>,
    /// To the host.
    pub egress: LinkCounters,
}

/// Counters of a path or switch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Counters {
    /// Seconds since the start.
    pub uptime_s: f64,
    /// What joins the links.
    pub fabric: FabricCounters,
    /// Every port, in the order of the description.
    pub ports: Vec<PortCounters>,
    /// From the time at which a packet was due to the time at which it was handed over.
    pub lateness: Distribution,
    /// Time between two looks at the devices, less the time asleep.
    pub absence: Distribution,
}

impl Counters {
    /// The port of that name.
    #[must_use]
    pub fn port(&self, name: &str) -> Option<&PortCounters> {
        self.ports.iter().find(|port| port.name == name)
    }

    /// The longest time, in microseconds, by which the process was late: a queue may have taken in at once what should have arrived over that time.
    #[must_use]
    pub fn longest_delay_us(&self) -> f64 {
        self.lateness.max_us.max(self.absence.max_us)
    }
}
