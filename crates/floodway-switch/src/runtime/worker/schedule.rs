//! Whose frames a worker moves next.
//!
//! # Theory of operation
//! The members of core's [`Turns`] are the worker's ports and its uplinks. In its turn a port is served batch after batch, from its queue pairs in rotation, until
//! its credit is spent or no pair has anything: more pairs bring it no more. A batch ends with the chain that takes it over the
//! credit that is left, so one frame at most is beyond it, and what that costs by being copied to many.
//!
//! Costs are read from the [`Ledger`], to which whoever does the work adds it. What other workers do for a
//! port (segments of its that an uplink's worker releases) is so charged to its next turn.
//!
//! **Invariant**: [`Turns`]' bound on what two ports that always have frames may differ by. One batch costs at most
//! [`QUANTUM`] and the most expensive frame.

use std::collections::BTreeMap;
use std::sync::Arc;

use floodway_core::l2::PortId;
use floodway_core::work::Turns;

use crate::state::port::Port;
use crate::state::uplink::UplinkReceiver;
use crate::stats::ledger::Ledger;

/// Nanoseconds, by the cost model, that a member may spend in a round. A few super-frames, so that bulk comes in batches still; and
/// short enough for a hundred ports to have their turns within 3 ms when all have work.
pub const QUANTUM: u32 = 32_000;

/// Turns of a worker's ports and uplinks.
pub struct Schedule {
    turns: Turns,
    members: Box<[Member]>,
}

struct Member {
    id: PortId,
    /// Queue pairs, and the one that is next.
    pairs: usize,
    next_pair: usize,
    /// What the ledger said when it was last charged, and when shares were last noted.
    charged: u64,
    noted: u64,
}

impl Schedule {
    /// Turns of ports and uplinks with these numbers and numbers of queue pairs, in this order.
    #[must_use]
    pub fn new(members: impl Iterator<Item = (PortId, usize)>) -> Self {
        let member = |(id, pairs)| Member { id, pairs, next_pair: 0, charged: 0, noted: 0 };
        let members: Box<[_]> = members.map(member).collect();
        Self { turns: Turns::new(members.len(), QUANTUM), members }
    }

    /// Turns of a worker's ports and then its uplinks.
    #[must_use]
    pub fn of(ports: &[Arc<Port>], uplinks: &[UplinkReceiver]) -> Self {
        let ports = ports.iter().map(|port| (port.id, port.pairs.len()));
        Self::new(ports.chain(uplinks.iter().map(|uplink| (uplink.slot().id, 1))))
    }

    /// Takes over other ports. Those that stay keep their credit; what others have cost before is not charged.
    pub(super) fn take_ports(
        &mut self,
        ports: &[Arc<Port>],
        uplinks: &[UplinkReceiver],
        ledger: &Ledger,
    ) {
        let before = std::mem::replace(self, Self::of(ports, uplinks));
        let places: BTreeMap<_, _> =
            before.members.iter().enumerate().map(|(place, member)| (member.id, place)).collect();
        for (place, member) in self.members.iter_mut().enumerate() {
            if let Some(&known) = places.get(&member.id) {
                let Member { charged, noted, .. } = before.members[known];
                (member.charged, member.noted) = (charged, noted);
                self.turns.carry_over(place, &before.turns, known);
            } else {
                let spent = ledger.spent(member.id);
                (member.charged, member.noted) = (spent, spent);
            }
        }
    }

    /// Begins the turn of a member. Returns what it may spend, if anything.
    #[inline]
    pub(super) fn begin(&mut self, member: usize, ledger: &Ledger) -> Option<u64> {
        self.charge(member, ledger);
        self.turns.begin(member)
    }

    /// Charges what was done in the turn so far. Returns what is left.
    #[inline]
    pub(super) fn settle(&mut self, member: usize, ledger: &Ledger) -> Option<u64> {
        self.charge(member, ledger);
        self.turns.left(member)
    }

    /// Ends the turn of a member.
    #[inline]
    pub(super) fn end(&mut self, member: usize) {
        self.turns.end(member);
    }

    /// The queue pair that is next.
    #[inline]
    pub(super) fn next_pair(&mut self, member: usize) -> usize {
        let member = &mut self.members[member];
        let pair = member.next_pair;
        member.next_pair = if pair + 1 < member.pairs { pair + 1 } else { 0 };
        pair
    }

    /// See [`Turns::skip_rounds`].
    #[inline]
    pub(super) fn skip_rounds(&mut self) -> bool {
        self.turns.skip_rounds()
    }

    /// Notes each member's share of what was done since this was last called.
    pub(super) fn note_shares(&mut self, ledger: &Ledger) {
        let cost = |member: &mut Member| {
            let spent = ledger.spent(member.id);
            let before = std::mem::replace(&mut member.noted, spent);
            (member.id, spent.wrapping_sub(before))
        };
        let costs: Vec<_> = self.members.iter_mut().map(cost).collect();
        ledger.note_shares(&costs);
    }

    #[inline]
    fn charge(&mut self, member: usize, ledger: &Ledger) {
        let Some(place) = self.members.get_mut(member) else { return };
        let spent = ledger.spent(place.id);
        let cost = spent.wrapping_sub(std::mem::replace(&mut place.charged, spent));
        self.turns.charge(member, cost);
    }
}
