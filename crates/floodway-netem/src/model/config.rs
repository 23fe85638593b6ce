//! Parameters of the model, checked and in the model's units. [`crate::spec`] makes them.

use floodway_core::time::Duration;

use super::loss::LossModel;
use super::queue::QueueConfig;
use super::transmitter::Rate;

/// How packets find their way from port to port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forwarding {
    /// Two ports: what enters by one leaves by the other.
    Path,
    /// Any number of ports: MAC addresses are learned, what is unknown is flooded.
    Switch,
}

/// Packets that are overtaken.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reordering {
    /// Probability that a packet is held back, 0 to 1.
    pub probability: f64,
    /// How much later it arrives.
    pub extra: Duration,
}

/// One direction of a link.
#[derive(Clone, Debug, PartialEq)]
pub struct LinkConfig {
    /// How fast the transmitter is; `None` takes no time at all.
    pub rate: Option<Rate>,
    /// The buffer in front of the transmitter.
    pub queue: QueueConfig,
    /// Time from the last bit sent to the last bit received.
    pub delay: Duration,
    /// The delay varies by at most this much in both directions, uniformly.
    pub jitter: Duration,
    /// Packets that vanish.
    pub loss: LossModel,
    /// Packets that are overtaken.
    pub reordering: Option<Reordering>,
    /// Probability that a packet arrives twice.
    pub duplicate: f64,
    /// Probability that a bit of a packet is flipped.
    pub corrupt: f64,
}
