//! What the model counts. Every packet that entered a link is accounted for:
//! `received + duplicated = delivered + dropped + lost + overflowed + held`.

use serde::{Deserialize, Serialize};

/// Packets, and the bytes of their frames (Ethernet header to payload).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Count {
    /// Packets.
    pub packets: u64,
    /// Bytes.
    pub bytes: u64,
}

impl Count {
    /// One packet more.
    pub fn add(&mut self, frame_len: u32) {
        self.packets += 1;
        self.bytes += u64::from(frame_len);
    }
}

/// One class of a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClassCounters {
    /// Left the transmitter.
    pub sent: Count,
    /// Did not fit into the queue.
    pub dropped: Count,
    /// Were marked "congestion experienced". They are in `sent`, too.
    pub marked: Count,
    /// Bytes that wait now.
    pub queue_bytes: u64,
    /// Most bytes that ever waited, or since the counters were last reset.
    pub queue_high_water_bytes: u64,
}

/// One direction of a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkCounters {
    /// Offered to the link.
    pub received: Count,
    /// The class that is served first.
    pub high: ClassCounters,
    /// The other class; the only one where no DSCP is high.
    pub low: ClassCounters,
    /// Vanished on the wire by the loss model.
    pub lost: Count,
    /// Dropped because more was on the wire than memory is kept for.
    pub overflowed: Count,
    /// Had a bit flipped.
    pub corrupted: Count,
    /// Copies that were made.
    pub duplicated: Count,
    /// Were held back, so that others could overtake.
    pub reordered: Count,
    /// Reached the other end.
    pub delivered: Count,
    /// Packets that wait, are being sent, or are on the wire now.
    pub held_packets: u64,
}

/// The joint between links.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FabricCounters {
    /// Packets that came in from a port and were handed to at least one other.
    pub forwarded: u64,
    /// Copies for further ports: unknown and group addresses of a switch.
    pub flood_copies: u64,
    /// Packets that went nowhere: the destination is behind the port that they came from, or the
    /// source address is none.
    pub filtered: u64,
}
