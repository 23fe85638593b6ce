//! Connections that follow their guest to another host.
//!
//! # Theory of operation
//! **Goal.** A guest moves to another host while the switches of both know of each other. What its connections were at the first one ([`carried`](super::carried)) they go on being at the
//! second, and at each time at least one of the two has every byte that was acknowledged in another's name.
//!
//! **Source.** When the guest's last ring has stopped, everything is written ([`Offload::export`]) and then [set aside](Offload::set_aside): nothing of it moves any more, no timer fires, no segment
//! changes it, and its records stay in the journal. Segments that come meanwhile are those of connections that nobody knows, and pass. Then
//! either the other host has it, and all is [forgotten](Offload::forget_aside) without a word to either end; or it has not, or the guest goes on here, and it is [brought
//! back](Offload::bring_back), as if time had stood still for it. A port whose debts cannot all be written (of a connection that an earlier process has left, or for want of room) must not
//! be set aside.
//!
//! **Destination.** An engine that knows no connection [takes over](Offload::import) what came. There is no journal to rule, so what is owed is written into that of the port first, in the order of its stores, before
//! anything is delivered, sent or acknowledged: if this process ends at any of them, the next one finds a connection that is owed something or nothing, and until it says that it has taken all, the source has it.
//! A connection that owes bytes and cannot go on (its record contradicts itself, or table, budget or journal have no room) is reset at both ends, as a broken one of an
//! [earlier process](super::adoption).
//!
//! **Time.** Records are of the source's clock, and the other host's has nothing to do with it. So the engine that takes over must be called with times that go on from the time of the export: its caller adds an offset. How
//! long the state was on its way is not known; for the connection no time has passed, and a round trip that is measured over it is too short by that, once.
//!
//! **Journal.** It belongs to the port and not to what is set aside: whatever comes meanwhile may be recorded beside.

use super::carried::{Carried, Resumed, Resumption};
use super::engine::Offload;
use super::journal::{Creditor, Owed, Retained};
use super::port::CERTAIN;
use super::sink::Sink;
use crate::tcp::Segment;
use crate::time::Instant;
use floodway_wire::FiveTuple;

impl<B: 'static> Offload<B> {
    /// Takes all connections out of it, and returns an engine that has them and is not to be used but for [`bring_back`](Self::bring_back) and [`forget_aside`](Self::forget_aside). What is left
    /// knows none, and is otherwise as before, but for its clock, which may begin anew. `seed` is as in [`new`](Self::new).
    #[must_use]
    pub fn set_aside(&mut self, seed: u64) -> Self {
        let mut fresh = Self::new(self.port.config.clone(), seed);
        fresh.take_port_of(self);
        std::mem::replace(self, fresh)
    }

    /// What belongs to the port and not to its connections goes over.
    fn take_port_of(&mut self, other: &mut Self) {
        let (own, others) = (&mut self.port, &mut other.port);
        std::mem::swap(&mut own.counters, &mut others.counters);
        std::mem::swap(&mut own.rtts, &mut others.rtts);
        std::mem::swap(&mut own.journal, &mut others.journal);
        (own.guest, own.draining) = (others.guest, others.draining);
        own.module_heard = others.module_heard;
        own.choose_early_acks();
    }

    /// Goes on with what was [set aside](Self::set_aside), and forgets what has come since. The configuration is that of now; [`configure`](Self::configure) or [`drain`](Self::drain) has to
    /// follow.
    pub fn bring_back(&mut self, mut aside: Self) {
        self.reset();
        aside.port.pool.resize(self.port.config.budget);
        aside.port.config = self.port.config.clone();
        aside.take_port_of(self);
        *self = aside;
    }

    /// Forgets what was [set aside](Self::set_aside), with what is owed, and without a word to anybody: another host has it. Nobody was doubted.
    pub fn forget_aside(&mut self, mut aside: Self) {
        aside.take_port_of(self);
        aside.reset();
        self.take_port_of(&mut aside);
    }

    /// No connection is known, and none is doubted: it can go on with those of another host.
    #[must_use]
    pub fn is_free(&self) -> bool {
        self.is_empty() && self.port.doubtful_until == CERTAIN
    }

    /// Goes on with the connections of another host, whose guest counts as stopped until [`resume`](Self::resume); returns what has become of them. It has to be [free](Self::is_free), `now` has to go on from the time of
    /// the [`export`](Self::export), and [`drain`](Self::drain) or [`configure`](Self::configure) has to follow, since this port may want other connections. `sink` makes bytes of frames,
    /// `revive` makes a frame, and what its headers say, of what was written.
    pub fn import(
        &mut self,
        mut carried: Carried,
        now: Instant,
        sink: &impl Sink<B>,
        mut revive: impl FnMut(Creditor, &Retained) -> Option<(B, Segment)>,
    ) -> Resumption {
        self.suspend();
        for tuple in carried.names() {
            let owing = carried.owing(&tuple);
            let resumed = carried.resume(&tuple, Owed::default(), &mut revive);
            let is_read = resumed.is_some();
            if resumed.is_some_and(|it| self.insert_moved(&tuple, it, &mut carried, now, sink)) {
                continue;
            }
            carried.note_refused(is_read, owing.is_some());
            if let Some(owing) = owing {
                self.insert_lost(&tuple, &owing, now);
            }
        }
        self.take_rest_over(carried, now)
    }

    /// Writes down what a flow owes, and takes it in. Returns `false`, with nothing changed, if there is no room.
    fn insert_moved(
        &mut self,
        tuple: &FiveTuple,
        mut resumed: Resumed<B>,
        carried: &mut Carried,
        now: Instant,
        sink: &impl Sink<B>,
    ) -> bool {
        // The place first: a record in the journal without a flow would be owed for ever.
        let Some(id) = self.reserve(tuple, &resumed, now) else { return false };
        if !resumed.flow.write_debts(tuple, resumed.kept_from, &mut self.port, sink) {
            self.flows.remove(id);
            return false;
        }
        self.start_resumed(id, resumed, carried, now);
        true
    }
}
