//! What is kept of what was acknowledged for a guest, and how it is delivered again (rule R1 of [`super::receiver`]).
//!
//! # Theory of operation
//! A frame is kept from its acknowledgement by the switch until that by the guest. The guest may have lost it in between: the
//! frame was dropped with its rings, or the guest had no memory for it. It is delivered again
//! - when the guest asks for it, by three duplicate ACKs, or by one with SACK blocks. What it acknowledges next then ends where the next
//!   gap begins, as with a NewReno sender (RFC 6582);
//! - when the guest has acknowledged nothing for [`REDELIVERY`], doubled each time;
//! - all at once when a guest that was stopped runs again, or has moved ([`super::stopped`]).
//!
//! Invariants: frames are kept in sequence order without a gap; a timer runs exactly while something is kept and the guest can be
//! delivered to.

use floodway_wire::tcp::Flags;

use super::counters::CounterCells;
use super::guest::GuestState;
use super::keeping::{Keeping, REDELIVERY};
use super::receiver::Receiver;
use super::sink::Sink;
use super::state_pool::{FreeList, Pooled};
use super::summary::RxState;
use crate::tcp::Edit;
use crate::time::Instant;

/// Doublings of it.
const MAX_REDELIVERY_SHIFT: u8 = 6;
/// Duplicate ACKs of the guest that mean a loss on its side.
const DUP_THRESH: u8 = 3;
impl<B: 'static> Receiver<B> {
    /// Forgets what the guest has acknowledged.
    pub(super) fn forget_kept(&mut self, now: Instant) {
        let Some(keeping) = self.keeping.get_mut() else { return };
        keeping.dup_acks = 0;
        keeping.redeliveries = 0;
        keeping.recover = keeping.recover.filter(|&recover| self.guest_ack.before(recover));
        while let Some(first) = keeping.kept.front()
            && !first.end.after(self.guest_ack)
        {
            keeping.kept_bytes -= first.charge;
            keeping.kept.pop_front();
        }
        let any = !keeping.kept.is_empty();
        keeping.redeliver_at = if any { now + REDELIVERY } else { Instant::NEVER };
    }

    /// Makes sure that there is a place for what will be kept or reported.
    #[inline]
    pub fn acquire_state(&mut self, free: &mut FreeList<Keeping<B>>) {
        if matches!(self.state, RxState::Active | RxState::UnexpectedSeq) {
            self.keeping.fill(free);
        }
    }

    /// Gives up what a receiver does not need while it keeps nothing and knows of no hole.
    #[inline]
    pub fn park(&mut self, free: &mut FreeList<Keeping<B>>) {
        let keeping = &*self.keeping;
        if keeping.kept.is_empty() && !keeping.redelivery_due && keeping.reports.is_at_rest() {
            self.keeping.return_state(free);
        }
    }

    /// Gives up all that is kept.
    pub fn return_state(&mut self, free: &mut FreeList<Keeping<B>>) {
        self.keeping.return_state(free);
    }

    /// The first kept frame has to be delivered again.
    #[inline]
    pub fn owes_redelivery(&self) -> bool {
        self.keeping.redelivery_due
    }

    /// The guest asks for kept data again.
    pub(super) fn on_guest_duplicate(&mut self, holes: bool) {
        let keeping = &mut *self.keeping;
        keeping.dup_acks = keeping.dup_acks.saturating_add(1);
        if keeping.dup_acks == DUP_THRESH || (holes && keeping.dup_acks == 1) {
            keeping.redelivery_due = true;
            keeping.recover = keeping.kept.back().map(|last| last.end).or(keeping.recover);
        }
    }

    /// Delivers the first kept frame again. Its header says what one sent now would: `edit` is for an
    /// ACK, without flags.
    pub fn redeliver<S: Sink<B>>(
        &mut self,
        edit: &Edit,
        now: Instant,
        counters: &CounterCells,
        sink: &mut S,
    ) {
        let Some(keeping) = self.keeping.get_mut() else { return };
        keeping.redelivery_due = false;
        let frames = if std::mem::take(&mut keeping.all_due) { keeping.kept.len() } else { 1 };
        for kept in keeping.kept.iter().take(frames) {
            let timestamps = edit.timestamps.filter(|_| kept.has_timestamps);
            // An echo of congestion from back then is no news.
            let flags = kept.flags.without(Flags::ECE);
            let flags = Some(flags).filter(|&flags| flags != kept.flags);
            sink.redeliver(&kept.frame, &Edit { timestamps, flags, ..*edit });
            counters.redelivered().add(1);
        }
        keeping.redeliveries += 1;
        let shift = keeping.redeliveries.min(MAX_REDELIVERY_SHIFT);
        keeping.redeliver_at = now + REDELIVERY * (1 << shift);
    }

    /// Does what is due. Returns `true` if what is kept can no longer be delivered.
    pub fn handle_timeout(&mut self, now: Instant, guest: GuestState) -> bool {
        let Some(keeping) = self.keeping.get_mut() else { return false };
        if keeping.redeliver_at > now {
            return false;
        }
        if let Some(limit) = guest.redeliveries() {
            keeping.redelivery_due = keeping.redeliveries < limit;
            keeping.all_due |= guest == GuestState::Moved;
            !keeping.redelivery_due
        } else {
            keeping.redeliver_at = Instant::NEVER;
            false
        }
    }

    /// The guest can be delivered to again, here or elsewhere: all that is kept is due at `at`.
    pub fn redeliver_all_at(&mut self, at: Instant) {
        let Some(keeping) = self.keeping.get_mut() else { return };
        if !keeping.kept.is_empty() {
            keeping.all_due = true;
            keeping.redeliveries = 0;
            keeping.redeliver_at = at;
            keeping.recover = keeping.kept.back().map(|last| last.end).or(keeping.recover);
        }
    }

    /// Forgets what is kept.
    pub fn abandon(&mut self, counters: &CounterCells) {
        self.keeping = Pooled::EMPTY;
        self.enter(RxState::Offline, counters);
    }
}
