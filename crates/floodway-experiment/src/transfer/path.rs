//! What lies between a VM and the other end of its connections.

use serde::Deserialize;

/// What lies between the switch's uplink and the other end. Without any impairment the other end is on
/// the uplink itself.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Path {
    /// For the names of rows.
    pub name: String,
    /// Round trip that the path adds, in ms, half of it each way.
    #[serde(default)]
    pub rtt_ms: f64,
    /// Packets that get lost at random, each way.
    #[serde(default)]
    pub loss_percent: f64,
    /// Packets that are held back by `reorder_ms`, so that others overtake them, each way.
    #[serde(default)]
    pub reorder_percent: f64,
    /// See `reorder_percent`.
    #[serde(default)]
    pub reorder_ms: f64,
    /// Each packet's delay varies by up to so much, each way, without reordering.
    #[serde(default)]
    pub jitter_ms: f64,
    /// Packets that arrive twice, each way.
    #[serde(default)]
    pub duplicate_percent: f64,
    /// Rate of the bottleneck on the wire, each way.
    pub mbit: Option<u32>,
    /// Bytes that the bottleneck queues, in thousands; the emulator's default without it.
    pub queue_kb: Option<u32>,
}

impl Path {
    /// The uplink itself.
    #[must_use]
    pub fn direct() -> Self {
        Self { name: "direct".into(), ..Self::default() }
    }

    /// Returns `true` if there is nothing to emulate.
    #[must_use]
    pub fn is_direct(&self) -> bool {
        let untouched = self.loss_percent + self.reorder_percent + self.duplicate_percent == 0.0;
        self.rtt_ms == 0.0 && untouched && self.mbit.is_none()
    }
}
