//! Packet memory that the ports of a switch share.
//!
//! # Theory of operation
//! Dynamic threshold (Choudhury and Hahne, "Dynamic queue length thresholds for shared-memory packet
//! switches", 1998): a queue may grow while it is shorter than `alpha` times what is free in the whole
//! buffer. One busy queue gets `alpha / (1 + alpha)` of the memory; the more queues are busy, the less each
//! gets, and a part always stays free for the next. Invariant: never more than the capacity is in use.

/// Memory of one switch, in bytes.
#[derive(Clone, Debug)]
pub struct SharedBuffer {
    capacity: u64,
    used: u64,
    alpha: f64,
}

impl SharedBuffer {
    /// An empty buffer.
    #[must_use]
    pub const fn new(capacity: u64, alpha: f64) -> Self {
        Self { capacity, used: 0, alpha }
    }

    /// Bytes in use.
    #[must_use]
    pub const fn used(&self) -> u64 {
        self.used
    }

    /// Takes `bytes` for a queue that holds `queued` now, or says no.
    pub fn take(&mut self, queued: u64, bytes: u64) -> bool {
        let free = self.capacity - self.used;
        let allowed = bytes <= free && (queued as f64) < self.alpha * free as f64;
        if allowed {
            self.used += bytes;
        }
        allowed
    }

    /// Gives `bytes` back.
    pub fn give(&mut self, bytes: u64) {
        self.used -= bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busy_queues_share_and_leave_room() {
        for (alpha, queues, expected) in
            [(1.0, 1, 500), (1.0, 3, 250), (2.0, 1, 666), (0.5, 2, 250)]
        {
            let mut buffer = SharedBuffer::new(1000, alpha);
            let mut lengths = vec![0_u64; queues];
            for _ in 0..2000 {
                for length in &mut lengths {
                    *length += u64::from(buffer.take(*length, 1));
                }
            }
            for length in &lengths {
                assert!(length.abs_diff(expected) <= 2, "{alpha} {queues}: {lengths:?}");
            }
            assert_eq!(buffer.used(), lengths.iter().sum::<u64>());
            buffer.give(lengths[0]);
            assert_eq!(buffer.used(), lengths[1..].iter().sum::<u64>());
        }
    }
}
