//! The grant: how far the guest may send, told by the receive window of the ACKs that it gets.
//!
//! # Theory of operation
//! The paper's eq. 2 and 3 let the VM send what can leave at once (`theta`: what `cwnd` and the receive
//! window have left) and what the buffer has room for (`phi`). We grant a right edge in sequence
//! space: `snd_una` plus the flow's share of the budget ([`super::budget`]), which counts both. It is limited
//! further by
//! - *drain time*: no more is stored than leaves within [`DRAIN_TIME`] at the flow's rate, for the time
//!   that bytes are held becomes part of the guest's round trip;
//! - *unsent grants*: what a flow may send is reserved for it, whether it sends or not. So it is granted
//!   in portions, the smaller the more flows there are, and gets the next when half of one is used;
//! - the *receiver*: while its window is under one MSS nothing is granted beyond it.
//!
//! In `PACKET_LOSS` and `LEAVING` the edge stands still.
//!
//! A window is written in units of the peer's window scale. An edge that stands is rounded up, since
//! rounding down would take it back (I3); an edge that moves is rounded down. Rounding up can add to an edge that did not
//! come from here: that of a SYN-ACK, whose window has no scale. So a flow is charged for whole units from the
//! number on that the guest is told is acknowledged (`una_for_guest`, which is `snd_una` but at a closed window): what it may
//! have to be told already counts, and I4 holds exactly. What is [acknowledged early](super::sender) stays charged: it counts from
//! `snd_una`, and windows beyond it are whole units already, so that none is rounded.
//!
//! A FIN may lie one beyond the edge: senders look whether the bytes of a GSO packet fit (Linux, `tcp_mss_split_point`), and
//! what takes no room needs no grant.

use super::budget::Budget;
use super::config::Config;
use super::counters::CounterCells;
use super::sender::Sender;
use super::summary::{Reason, TxState};
use crate::seq::Seq;
use crate::time::Duration;

/// What is stored leaves within this at the flow's rate.
const DRAIN_TIME: Duration = Duration::from_millis(100);
/// Bytes that a flow may always store whatever its rate: a young flow's rate is not known.
const MIN_DRAIN: u32 = 64 << 10;
/// Bounds of a portion.
const PORTION: std::ops::RangeInclusive<u32> = (16 << 10)..=(512 << 10);
/// What every flow that comes online is granted at least.
pub(super) const LEAST_GRANT: u32 = *PORTION.start();
/// Largest window that can be written, in units.
const MAX_UNITS: u32 = u16::MAX as u32;

/// A stored frame counts as this many bytes at least, in a limit of its own: a guest that sends bytes one by
/// one must not make us keep millions of frames. No guest that fills its segments, of the smallest MSS that is
/// believed, comes near the limit.
const LEAST_FRAME: u32 = 64;

/// What the flows of a port share.
#[derive(Debug)]
pub(super) struct Pool {
    pub budget: Budget,
    /// Frames stored.
    pub frames: u32,
    /// Flows online.
    pub online: u32,
    /// What a flow is granted beyond what it has sent.
    portion: u32,
}

impl Pool {
    /// A pool of `budget` bytes.
    pub fn new(budget: u32) -> Self {
        let mut pool = Self { budget: Budget::new(budget), frames: 0, online: 0, portion: 0 };
        pool.divide();
        pool
    }

    /// Changes the size of the budget.
    pub fn resize(&mut self, budget: u32) {
        self.budget.resize(budget);
        self.divide();
    }

    /// A flow has come online.
    pub fn enter(&mut self) {
        self.online += 1;
        self.divide();
    }

    /// A flow has gone offline.
    pub fn leave(&mut self) {
        self.online -= 1;
        self.divide();
    }

    fn divide(&mut self) {
        let portion = self.budget.total() / 8 / self.online.max(1);
        self.portion = portion.clamp(*PORTION.start(), *PORTION.end());
    }

    /// One more frame may be stored.
    #[inline]
    pub fn has_frame(&self) -> bool {
        self.frames < self.budget.total() / LEAST_FRAME
    }

    /// A flow uses `now` bytes instead of `before`.
    #[inline]
    pub fn change(&mut self, before: &mut u32, now: u32) {
        self.budget.change(*before, now);
        *before = now;
    }
}

impl<B: 'static> Sender<B> {
    /// Bytes of the budget that the flow uses.
    #[inline]
    pub fn usage(&self) -> u32 {
        match self.state {
            TxState::Offline => 0,
            _ => self.units_granted(self.charged_from()) << self.agreed.peer_scale(),
        }
    }

    /// What is granted from `from` on, in units of the window field, rounded up.
    fn units_granted(&self, from: Seq) -> u32 {
        self.granted(from).div_ceil(1 << self.agreed.peer_scale())
    }

    /// Bytes that are granted from `from` on.
    #[inline]
    pub fn granted(&self, from: Seq) -> u32 {
        if from.after(self.advertised_edge) { 0 } else { self.advertised_edge.since(from) }
    }

    /// The guest waits for a window, and has been told of none beyond the receiver's.
    pub fn is_used_up(&self) -> bool {
        self.granted(self.snd_max) < self.window.mss && !self.advertised_edge.after(self.rwnd_edge)
    }

    /// The budget has room for a flow that comes online now.
    pub fn fits(&self, pool: &Pool) -> bool {
        let granted = self.units_granted(self.charged_from()) << self.agreed.peer_scale();
        granted.max(LEAST_GRANT) <= pool.budget.free()
    }

    /// Grants more, if it may; answers by how many bytes. `charged` is what the pool has counted for the
    /// flow.
    pub fn extend(
        &mut self,
        charged: &mut u32,
        pool: &mut Pool,
        config: &Config,
        counters: &CounterCells,
    ) -> u32 {
        let granted = self.extend_uncharged(*charged, pool, config, counters);
        self.charge(charged, pool);
        granted
    }

    /// [`extend`](Self::extend), for a call at whose end the flow is [charged](Self::charge).
    #[inline]
    pub fn extend_uncharged(
        &mut self,
        charged: u32,
        pool: &Pool,
        config: &Config,
        counters: &CounterCells,
    ) -> u32 {
        let before = self.advertised_edge;
        if matches!(self.state, TxState::Active | TxState::NoBuffer) {
            let room = if pool.has_frame() { pool.budget.free() } else { 0 };
            let available = room + charged;
            self.move_edge(available, pool.portion, config, counters);
        }
        self.advertised_edge.since(before)
    }

    fn move_edge(
        &mut self,
        available: u32,
        portion: u32,
        config: &Config,
        counters: &CounterCells,
    ) {
        let in_window = self.window.cwnd.min(self.rwnd());
        let share = config.buffer.share(available, in_window, self.data_rtt());
        let by_budget = share.max(in_window.min(available));
        let una = self.snd_una();
        if self.rwnd() >= self.window.mss {
            self.disclose();
            let by_portion = self.snd_max.since(una).saturating_add(portion.max(in_window));
            let bytes = self.limit_by_drain(by_budget.min(by_portion), in_window);
            self.advertised_edge = self.advertised_edge.max(self.edge_within(bytes));
        } else {
            // The receiver may never have room for a whole segment.
            let edge = self.edge_within(self.rwnd().min(available));
            self.advertised_edge = self.advertised_edge.max(edge);
        }
        let stuck = self.granted(self.snd_max) < self.window.mss;
        if stuck && !(una + by_budget).after(self.advertised_edge) {
            self.enter(TxState::NoBuffer, Reason::BudgetUsed, counters);
        } else {
            self.enter(TxState::Active, Reason::RoomAgain, counters);
        }
    }

    /// The right edge that a window field can name, and that lies no more than `bytes`, rounded down to units, behind
    /// `snd_una`. It is whole units from what the guest knows to be acknowledged, if that is ahead.
    fn edge_within(&self, bytes: u32) -> Seq {
        let (scale, from) = (self.agreed.peer_scale(), self.una_for_guest().max(self.snd_una()));
        let whole = bytes >> scale << scale;
        let units = whole.saturating_sub(from.since(self.snd_una())) >> scale;
        from + (units.min(MAX_UNITS) << scale)
    }

    /// The round trip, once one was measured on data: before, nothing is known of the flow's rate.
    fn data_rtt(&self) -> Option<Duration> {
        self.rtt.srtt().filter(|_| self.data_measured)
    }

    /// Returns `bytes`, less what would not leave within [`DRAIN_TIME`] after `in_window`.
    fn limit_by_drain(&self, bytes: u32, in_window: u32) -> u32 {
        let behind = bytes.saturating_sub(in_window);
        if behind <= MIN_DRAIN || !self.data_measured {
            return bytes;
        }
        let Some(srtt) = self.rtt.srtt_micros() else { return bytes };
        // No sample is longer than 256 s, so neither is cut.
        let (time, srtt) = (DRAIN_TIME.as_micros() as u64, u64::from(srtt.max(1)));
        let in_time = u64::from(self.window.cwnd) * time;
        if u64::from(behind) * srtt <= in_time {
            return bytes;
        }
        in_window.saturating_add(((in_time / srtt) as u32).max(MIN_DRAIN))
    }

    /// Counts in the pool what the flow uses now.
    #[inline]
    pub fn charge(&self, charged: &mut u32, pool: &mut Pool) {
        pool.change(charged, self.usage());
    }

    /// The window field of an ACK to the guest that acknowledges up to `una_for_guest`.
    pub fn window_field(&mut self) -> u16 {
        let units = self.units_granted(self.una_for_guest()).min(MAX_UNITS);
        let edge = self.una_for_guest() + (units << self.agreed.peer_scale());
        self.advertised_edge = self.advertised_edge.max(edge);
        units as u16
    }

    /// The window field of an ACK that repeats the latest that the guest was shown. Never more than was granted, nor
    /// less than the guest knows.
    pub fn advertised_window(&self) -> u16 {
        let units = self.granted(self.advertised_una) >> self.agreed.peer_scale();
        units.min(MAX_UNITS) as u16
    }

    /// Half of the flow's portion is used: it is time for the next.
    #[inline]
    pub fn wants_more(&self, pool: &Pool) -> bool {
        let left = self.granted(self.snd_max);
        left < pool.portion / 2
    }

    /// The right edge of a window as the peer wrote it.
    pub fn edge_of(&self, ack: Seq, window: u16) -> Seq {
        ack + (u32::from(window) << self.agreed.peer_scale())
    }
}
