//! The receiving half of a connection.
//!
//! # Theory of operation
//! **Order.** Data at `rcv_nxt` is the application's; what comes early is kept as sorted ranges that do not touch.
//! SACK blocks are those ranges, the most recently changed first (RFC 2018 section 4), three with
//! timestamps and four without.
//!
//! **When to acknowledge** (RFC 5681 section 4.2). Every second full segment; at once what is out of order, fills a
//! hole, or ends with FIN; at once the first few segments of a connection (quick ACKs), so that slow
//! start is not held back; else when the delay has passed. Whatever segment leaves carries the ACK.
//!
//! **Window.** The application reads what is in order when it is told, so the whole buffer is free. The right edge is never
//! taken back, also not by rounding to the window scale (RFC 7323 section 2.4).
//!
//! **ECN.** With classic ECN a mark is echoed until CWR comes (RFC 3168 section 6.1.3). With DCTCP each
//! ACK tells the mark of the segments that it covers; when that changes while an ACK is being delayed, the
//! delayed one is sent first (RFC 8257 section 3.2).

use floodway_wire::tcp::options::MAX_SACK_BLOCKS;

use super::autotune::ReceiveTuning;
use super::config::TcpConfig;
use crate::{Duration, Instant};

/// Full segments per ACK.
const ACK_EVERY: u32 = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Early {
    start: u64,
    end: u64,
    /// Counts changes: the latest has the largest number.
    touched: u64,
}

/// What a data segment was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Arrival {
    pub start: u64,
    pub len: u32,
    pub fin: bool,
    /// Congestion experienced.
    pub ce: bool,
    /// The sender has reduced its window.
    pub cwr: bool,
}

/// The receiving half.
#[derive(Clone, Debug)]
pub struct Receiver {
    pub(super) nxt: u64,
    early: Vec<Early>,
    changes: u64,
    fin_at: Option<u64>,
    edge: u64,
    pub(super) scale: u8,
    tuning: ReceiveTuning,
    mss: u32,
    quick_acks: u32,
    delay: Duration,
    unacknowledged: u32,
    ack_now: bool,
    delayed: Instant,
    exact_echo: bool,
    echo: bool,
    /// An ACK that must go out as it would have been before the mark changed.
    before_change: Option<(u64, bool)>,
}

impl Receiver {
    pub(super) fn new(config: &TcpConfig) -> Self {
        Self {
            nxt: 0,
            early: Vec::new(),
            changes: 0,
            fin_at: None,
            edge: 0,
            scale: 0,
            tuning: ReceiveTuning::new(config.receive),
            mss: u32::from(config.mss),
            quick_acks: config.quick_acks,
            delay: config.delayed_ack,
            unacknowledged: 0,
            ack_now: false,
            delayed: Instant::NEVER,
            exact_echo: config.algorithm.counts_marks(),
            echo: false,
            before_change: None,
        }
    }

    /// Bytes in order, as the application sees them.
    #[must_use]
    pub fn delivered(&self) -> u64 {
        let data_end = self.fin_at.unwrap_or(u64::MAX).min(self.nxt);
        data_end.saturating_sub(1)
    }

    /// The peer's FIN is in order.
    #[must_use]
    pub fn finished(&self) -> bool {
        self.fin_at.is_some_and(|fin| self.nxt > fin)
    }

    pub(super) const fn delayed(&self) -> Instant {
        if self.ack_now || self.before_change.is_some() { Instant::ZERO } else { self.delayed }
    }

    pub(super) fn syn(&mut self, mss: u32) {
        self.nxt = self.nxt.max(1);
        self.mss = mss.max(1);
    }

    /// Takes a segment with payload or FIN.
    pub(super) fn on_data(&mut self, data: &Arrival, srtt: Option<Duration>, now: Instant) {
        self.note_mark(data);
        let end = data.start + u64::from(data.len) + u64::from(data.fin);
        if data.fin {
            self.fin_at = Some(data.start + u64::from(data.len));
        }
        let limit = self.edge.max(self.nxt) + u64::from(data.fin);
        if end <= self.nxt || data.start >= limit {
            // Old, or beyond the window: say where we are.
            self.ack_now = true;
            return;
        }
        let in_order = data.start <= self.nxt;
        let had_early = !self.early.is_empty();
        if in_order {
            self.advance(end);
        } else {
            self.keep(data.start, end);
        }
        self.tuning.on_data(self.nxt, self.mss, srtt, now);
        self.schedule(data, in_order && !had_early, now);
    }

    fn note_mark(&mut self, data: &Arrival) {
        if self.exact_echo {
            if data.ce != self.echo && self.unacknowledged > 0 {
                self.before_change = Some((self.nxt, self.echo));
                self.unacknowledged = 0;
            }
            if data.ce != self.echo {
                self.ack_now = true;
            }
            self.echo = data.ce;
        } else {
            if data.cwr {
                self.echo = false;
            }
            self.echo |= data.ce;
        }
    }

    fn advance(&mut self, end: u64) {
        self.nxt = self.nxt.max(end);
        let reached = self.early.partition_point(|range| range.start <= self.nxt);
        if let Some(last) = self.early[..reached].last() {
            self.nxt = self.nxt.max(last.end);
        }
        self.early.drain(..reached);
    }

    fn keep(&mut self, start: u64, end: u64) {
        self.changes += 1;
        let first = self.early.partition_point(|range| range.end < start);
        let behind = self.early.partition_point(|range| range.start <= end);
        let mut merged = Early { start, end, touched: self.changes };
        for range in &self.early[first..behind] {
            merged.start = merged.start.min(range.start);
            merged.end = merged.end.max(range.end);
        }
        self.early.splice(first..behind, [merged]);
    }

    fn schedule(&mut self, data: &Arrival, smooth: bool, now: Instant) {
        self.unacknowledged += data.len;
        let quick = self.quick_acks > 0;
        self.quick_acks = self.quick_acks.saturating_sub(1);
        let enough = self.unacknowledged >= ACK_EVERY * self.mss;
        if !smooth || quick || enough || data.fin || self.delay.is_zero() {
            self.ack_now = true;
        } else if self.delayed == Instant::NEVER {
            self.delayed = now + self.delay;
        }
    }

    /// The next ACK that has to leave by itself: its number and its echo of marks.
    pub(super) fn take_ack(&mut self, now: Instant) -> Option<(u64, bool)> {
        if let Some(earlier) = self.before_change.take() {
            return Some(earlier);
        }
        (self.ack_now || self.delayed <= now).then(|| self.acknowledge())
    }

    /// What an ACK says that leaves now: its number and its echo of marks. Nothing is owed after that.
    pub(super) fn acknowledge(&mut self) -> (u64, bool) {
        self.unacknowledged = 0;
        self.ack_now = false;
        self.delayed = Instant::NEVER;
        (self.nxt, self.echo)
    }

    /// An ACK is owed at once.
    pub(super) fn owe_ack(&mut self) {
        self.ack_now = true;
    }

    /// The window field of a segment that acknowledges `ack`.
    pub(super) fn window(&mut self, ack: u64, scaled: bool) -> u16 {
        let scale = if scaled { self.scale } else { 0 };
        let buffer = u64::from(self.tuning.window());
        let wanted = (self.nxt + buffer).max(self.edge);
        let field = (wanted - ack) >> scale;
        // Rounding down may have taken back what was given before.
        let least = self.edge.saturating_sub(ack).div_ceil(1 << scale);
        let field = field.max(least).min(u64::from(u16::MAX));
        self.edge = self.edge.max(ack + (field << scale));
        field as u16
    }

    /// SACK blocks as offsets, at most `most`; the number of blocks comes with them.
    pub(super) fn blocks(&self, most: usize) -> ([(u64, u64); MAX_SACK_BLOCKS], usize) {
        let mut blocks = [(0, 0); MAX_SACK_BLOCKS];
        let mut before = u64::MAX;
        let count = most.min(MAX_SACK_BLOCKS).min(self.early.len());
        for block in &mut blocks[..count] {
            let older = self.early.iter().filter(|range| range.touched < before);
            if let Some(range) = older.max_by_key(|range| range.touched) {
                *block = (range.start, range.end);
                before = range.touched;
            }
        }
        (blocks, count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use floodway_core::congestion::Algorithm;
    use proptest::prelude::*;

    const MS: fn(u64) -> Instant = Instant::from_millis;

    fn receiver(config: &TcpConfig) -> Receiver {
        let mut receiver = Receiver::new(config);
        receiver.syn(1000);
        receiver.window(1, false);
        receiver
    }

    fn data(start: u64, len: u32) -> Arrival {
        Arrival { start, len, fin: false, ce: false, cwr: false }
    }

    #[test]
    fn every_second_segment_or_after_the_delay() {
        let mut r = receiver(&TcpConfig::plain(Algorithm::Reno));
        r.on_data(&data(1, 1000), None, MS(0));
        assert_eq!((r.take_ack(MS(39)), r.delayed()), (None, MS(40)));
        r.on_data(&data(1001, 1000), None, MS(1));
        assert_eq!(r.take_ack(MS(1)), Some((2001, false)));
        assert_eq!((r.take_ack(MS(99)), r.delayed()), (None, Instant::NEVER));
        r.on_data(&data(2001, 1000), None, MS(100));
        assert_eq!(r.take_ack(MS(140)), Some((3001, false)));
    }

    #[test]
    fn holes_are_told_at_once_latest_block_first() {
        let mut r = receiver(&TcpConfig::plain(Algorithm::Reno));
        for start in [2001, 6001, 4001, 2501] {
            r.on_data(&data(start, 1000), None, MS(0));
            assert_eq!(r.take_ack(MS(0)), Some((1, false)));
        }
        let (blocks, n) = r.blocks(3);
        assert_eq!(blocks[..n], [(2001, 3501), (4001, 5001), (6001, 7001)]);
        r.on_data(&data(1, 2000), None, MS(0));
        assert_eq!(r.take_ack(MS(0)), Some((3501, false)));
        let (blocks, n) = r.blocks(1);
        assert_eq!(blocks[..n], [(4001, 5001)]);
        assert_eq!(r.delivered(), 3500);
    }

    #[test]
    fn a_fin_counts_only_in_order() {
        let mut r = receiver(&TcpConfig::plain(Algorithm::Reno));
        r.on_data(&Arrival { fin: true, ..data(1001, 500) }, None, MS(0));
        assert!(!r.finished());
        r.on_data(&data(1, 1000), None, MS(0));
        assert_eq!(
            (r.finished(), r.delivered(), r.take_ack(MS(0))),
            (true, 1500, Some((1502, false)))
        );
    }

    #[test]
    fn classic_echo_lasts_until_cwr() {
        let mut r = receiver(&TcpConfig::plain(Algorithm::Reno));
        r.on_data(&Arrival { ce: true, ..data(1, 1000) }, None, MS(0));
        r.on_data(&data(1001, 1000), None, MS(0));
        assert_eq!(r.take_ack(MS(0)), Some((2001, true)));
        r.on_data(&Arrival { cwr: true, ..data(2001, 2000) }, None, MS(0));
        assert_eq!(r.take_ack(MS(0)), Some((4001, false)));
    }

    #[test]
    fn dctcp_tells_marks_apart() {
        let mut r = receiver(&TcpConfig::plain(Algorithm::Dctcp));
        r.on_data(&data(1, 1000), None, MS(0));
        r.on_data(&Arrival { ce: true, ..data(1001, 1000) }, None, MS(0));
        assert_eq!(r.take_ack(MS(0)), Some((1001, false)));
        assert_eq!(r.take_ack(MS(0)), Some((2001, true)));
        r.on_data(&data(2001, 1000), None, MS(0));
        assert_eq!(r.take_ack(MS(0)), Some((3001, false)));
        assert_eq!(r.take_ack(MS(0)), None);
    }

    proptest! {
        /// Any order of arrival gives all bytes, and the right edge never moves back.
        #[test]
        fn any_order_delivers_everything(
            order in Just((0_u64..40).collect::<Vec<_>>()).prop_shuffle(),
            repeats in proptest::collection::vec(0_u64..40, 0..20), scale in 0_u8..10,
        ) {
            let mut r = receiver(&TcpConfig::plain(Algorithm::Reno));
            r.scale = scale;
            let (mut edge, mut seen) = (0, [false; 40]);
            let window = r.window(1, true);
            prop_assert!(window > 0);
            for n in repeats.into_iter().chain(order) {
                r.on_data(&data(1 + n * 100, 100), None, MS(0));
                seen[n as usize] |= 1 + n * 100 < r.edge;
                let (ack, _) = r.acknowledge();
                let next = ack + (u64::from(r.window(ack, true)) << scale);
                prop_assert!(next >= edge);
                edge = next;
                let in_order = seen.iter().take_while(|s| **s).count() as u64;
                prop_assert_eq!(r.delivered(), in_order * 100);
                let (blocks, count) = r.blocks(4);
                for (left, right) in &blocks[..count] {
                    prop_assert!(*left > r.nxt && left < right);
                }
            }
            prop_assert_eq!(r.delivered(), 4000);
        }
    }
}
