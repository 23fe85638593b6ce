//! What a connection owes to its peer, as its port and the port's journal know it. `sender::owed` has the theory.

use floodway_wire::tcp::options::Timestamps;

use super::connection::Connection;
use super::journal;
use super::port::OffloadShared;
use super::receiver::Receiver;
use super::sender::Sender;
use super::sender::owed::{GuestSide, Left};

impl<B: 'static> Connection<B> {
    /// What the record of a flow that owes to its peer needs to say of the other side.
    pub fn guest_side(&self) -> GuestSide {
        let Self { rx, .. } = self;
        GuestSide { outgoing: rx.outgoing(), scale: rx.guest_scale(), peer_tsval: rx.peer.tsval }
    }

    /// Notes in port and journal what the peer has acknowledged of what it is owed, and how the connection is now.
    #[inline]
    pub fn note_owed(&mut self, port: &mut OffloadShared) {
        if self.tx.has_open_debt() {
            self.note_open_debt(port);
        }
    }

    fn note_open_debt(&mut self, port: &mut OffloadShared) {
        if !self.tx.is_ahead() {
            return self.tx.close_debt(port);
        }
        let (before, now, place) = self.tx.recount_debt();
        port.owed = port.owed - u64::from(before) + u64::from(now);
        if let Some((place, journal)) = place.zip(port.journal.as_mut()) {
            journal.acknowledged(place, self.tx.snd_una());
            journal.note(place, &self.tx.notes(self.guest_side()));
        }
    }
}

impl<B: 'static> Sender<B> {
    /// Nothing is owed any more, as far as the port and its journal are concerned.
    pub fn close_debt(&mut self, port: &mut OffloadShared) {
        let (counted, place) = self.take_debt();
        port.owed -= u64::from(counted);
        if let Some((place, journal)) = place.zip(port.journal.as_mut()) {
            journal.close(place);
        }
    }
}

/// The receive side of a flow that an earlier process has left, whose guest is owed nothing.
pub(super) fn receiver_of<B: 'static>(flow: &journal::Adopted) -> Receiver<B> {
    let left = Left::of(flow);
    let mut rx = Receiver::new(left.ack, left.guest_scale, left.agreed.ecn());
    rx.adopt_window(left.ack + (u32::from(left.window) << left.guest_scale));
    let clock = |value, echo| left.agreed.timestamps().then_some(Timestamps { value, echo });
    let (guest, peer) = (left.guest_tsval, left.peer_tsval);
    rx.first_timestamps(clock(guest, peer), clock(peer, guest));
    rx
}
