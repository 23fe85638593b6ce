//! A packet without bytes, for tests.

use floodway_wire::ethernet::MacAddr;

use super::{LinkConfig, LossModel, Packet, QueueConfig};
use floodway_core::time::Duration;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TestPacket {
    pub id: u64,
    pub len: u32,
    pub dscp: Option<u8>,
    pub ect: bool,
    pub congestion: bool,
    pub flipped: u32,
    pub source: u8,
    pub destination: u8,
}

/// The address of test host `n`; 255 is the broadcast address.
pub fn mac(n: u8) -> MacAddr {
    if n == 255 { MacAddr::BROADCAST } else { MacAddr([2, 0, 0, 0, 0, n]) }
}

impl TestPacket {
    pub fn new(id: u64, len: u32) -> Self {
        Self {
            id,
            len,
            dscp: Some(0),
            ect: false,
            congestion: false,
            flipped: 0,
            source: 1,
            destination: 2,
        }
    }

    pub fn dscp(self, dscp: u8) -> Self {
        Self { dscp: Some(dscp), ..self }
    }

    pub fn ect(self) -> Self {
        Self { ect: true, ..self }
    }

    pub fn between(self, source: u8, destination: u8) -> Self {
        Self { source, destination, ..self }
    }
}

impl Packet for TestPacket {
    fn frame_len(&self) -> u32 {
        self.len
    }

    fn dscp(&self) -> Option<u8> {
        self.dscp
    }

    fn destination(&self) -> MacAddr {
        mac(self.destination)
    }

    fn source(&self) -> MacAddr {
        mac(self.source)
    }

    fn mark_congestion(&mut self) -> bool {
        self.congestion |= self.ect;
        self.ect
    }

    fn flip_bit(&mut self, _choice: u64) {
        self.flipped += 1;
    }

    fn duplicate(&self) -> Self {
        self.clone()
    }
}

/// A link that does nothing to packets, with a queue of `queue_bytes` in each class.
pub fn plain(queue_bytes: u64) -> LinkConfig {
    LinkConfig {
        rate: None,
        queue: QueueConfig {
            low_bytes: queue_bytes,
            high_bytes: queue_bytes,
            ecn_bytes: None,
            high_dscp: 1 << 46,
        },
        delay: Duration::ZERO,
        jitter: Duration::ZERO,
        loss: LossModel::None,
        reordering: None,
        duplicate: 0.0,
        corrupt: 0.0,
    }
}
