//! Packets that wait, in first-in-first-out chains through one array.
//!
//! A discipline has one arena and any number of chains, so that a thousand flow queues cost the memory of
//! the packets in them and not that of their longest lengths. Places are used again, last freed first.

use super::{Backlog, Packet};
use crate::time::Instant;

/// No place.
const NIL: u32 = u32::MAX;

/// A packet and when it came.
#[derive(Debug)]
pub(super) struct Queued<H> {
    pub(super) packet: Packet<H>,
    pub(super) arrived: Instant,
}

#[derive(Debug)]
struct Place<H> {
    queued: Option<Queued<H>>,
    /// The packet behind this one; of a free place, another free place.
    next: u32,
}

/// Places for packets.
#[derive(Debug)]
pub(super) struct Arena<H> {
    places: Vec<Place<H>>,
    free: u32,
}

impl<H> Arena<H> {
    pub(super) const fn new() -> Self {
        Self { places: Vec::new(), free: NIL }
    }

    /// Appends a packet to `chain`.
    pub(super) fn push(&mut self, chain: &mut Chain, packet: Packet<H>, arrived: Instant) {
        chain.backlog.packets += 1;
        chain.backlog.bytes += u64::from(packet.len);
        let index = self.place(Queued { packet, arrived });
        match self.at(chain.last) {
            Some(last) => last.next = index,
            None => chain.first = index,
        }
        chain.last = index;
    }

    /// Takes the first packet of `chain`.
    pub(super) fn pop(&mut self, chain: &mut Chain) -> Option<Queued<H>> {
        let (index, free) = (chain.first, self.free);
        let place = self.at(index)?;
        let queued = place.queued.take()?;
        let next = std::mem::replace(&mut place.next, free);
        self.free = index;
        chain.first = next;
        if next == NIL {
            chain.last = NIL;
        }
        chain.backlog.packets -= 1;
        chain.backlog.bytes -= u64::from(queued.packet.len);
        Some(queued)
    }

    fn place(&mut self, queued: Queued<H>) -> u32 {
        let index = self.free;
        if let Some(place) = self.at(index) {
            let next_free = std::mem::replace(&mut place.next, NIL);
            place.queued = Some(queued);
            self.free = next_free;
            return index;
        }
        self.places.push(Place { queued: Some(queued), next: NIL });
        // A chain's count is 32 bits, and so is the limit of every discipline.
        (self.places.len() - 1) as u32
    }

    fn at(&mut self, index: u32) -> Option<&mut Place<H>> {
        self.places.get_mut(index as usize)
    }
}

/// One queue in an [`Arena`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Chain {
    first: u32,
    last: u32,
    backlog: Backlog,
}

impl Chain {
    pub(super) const EMPTY: Self =
        Self { first: NIL, last: NIL, backlog: Backlog { packets: 0, bytes: 0 } };

    pub(super) const fn backlog(&self) -> Backlog {
        self.backlog
    }

    #[cfg(test)]
    pub(super) const fn is_empty(&self) -> bool {
        self.backlog.packets == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chains_share_places_and_keep_their_order() {
        let mut arena = Arena::new();
        let (mut a, mut b) = (Chain::EMPTY, Chain::EMPTY);
        let packet = |handle| Packet { handle, len: 10, flow: 0, ecn_capable: false };
        for round in 0..4 {
            for i in 0..8 {
                let chain = if i % 2 == 0 { &mut a } else { &mut b };
                arena.push(chain, packet(10 * round + i), Instant::ZERO);
            }
            assert_eq!((a.backlog().packets, a.backlog().bytes), (4, 40));
            let mut drain = |chain: &mut Chain| {
                std::iter::from_fn(|| arena.pop(chain).map(|q| q.packet.handle)).collect::<Vec<_>>()
            };
            assert_eq!(drain(&mut a), [0, 2, 4, 6].map(|i| 10 * round + i));
            assert_eq!(drain(&mut b), [1, 3, 5, 7].map(|i| 10 * round + i));
            assert!(a.is_empty() && b.is_empty());
        }
        assert_eq!(arena.places.len(), 8);
    }
}
