//! Points of a sweep: what is measured where.

use serde::{Deserialize, Serialize};

/// Bytes on the wire of a full packet.
const PACKET: u32 = 1514;

/// A drop-tail queue.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Queue {
    /// For the names of rows.
    pub name: String,
    /// Its size, in bandwidth-delay products of the bottleneck's rate and the path's round trip.
    pub bdp: f64,
}

/// A congestion control on a path.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cell {
    /// By its kernel name.
    pub congestion: String,
    /// In ms.
    pub rtt_ms: f64,
    /// Of packets of the data.
    pub loss_percent: f64,
    /// Rate of the bottleneck and its queue.
    pub bottleneck: Option<(u32, Queue)>,
}

impl Cell {
    /// Name for rows.
    pub fn name(&self) -> String {
        let path = match &self.bottleneck {
            Some((mbit, queue)) => format!("{mbit} Mbit/s {}", queue.name),
            None => format!("{} % {} ms", self.loss_percent, self.rtt_ms),
        };
        format!("{} {path}", self.congestion)
    }

    /// Size of the bottleneck's queue in bytes.
    pub fn queue_bytes(&self) -> Option<u32> {
        let (mbit, queue) = self.bottleneck.as_ref()?;
        // Mbit/s times ms are 125 bytes.
        Some((f64::from(*mbit) * self.rtt_ms * 125.0 * queue.bdp) as u32)
    }

    /// Variation of the delay, each way, that spreads each arrival over one packet time of the bottleneck, in ms; 0 without a bottleneck.
    ///
    /// Without it each arrival has a fixed phase between two departures from the drop-tail queue. Whose phase is later
    /// loses more, by a factor that depends on the round trip's remainder by the packet time (Floyd and Jacobson, "On Traffic Phase Effects in
    /// Packet-Switched Gateways"; the remedy is theirs).
    pub fn jitter_ms(&self) -> f64 {
        let packet_ms = |mbit: u32| f64::from(PACKET * 8) / (f64::from(mbit) * 1e3);
        self.bottleneck.as_ref().map_or(0.0, |(mbit, _)| packet_ms(*mbit) / 2.0)
    }
}
