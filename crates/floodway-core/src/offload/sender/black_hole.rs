//! Paths that drop large segments and do not say so.
//!
//! # Theory of operation
//! A tunnel that is smaller than it says, or a filter that drops ICMP, lets small segments pass and large ones vanish (RFC 2923
//! section 2.1). A sender that repeats them as they are repeats them for ever. Two things make segments smaller, after RFC 4821
//! section 7.7 and RFC 8899 section 4.4:
//! - *The switch itself*: after two timeouts in a row, and every two more, if what comes first was sent in a segment larger than the
//!   next of [`PLATEAUS`], segments become as large as that. It is done together with the timeout, whose `cwnd` of one segment
//!   and whose `ssthresh` stay: nothing came through, for whatever reason.
//! - *The guest*: one that probes its path (Linux `tcp_mtu_probing`) repeats in segments of its own choice. After a timeout
//!   of the switch, a repeat of the first bytes that ends before the segment that was sent there says the size that the next timeout
//!   uses.
//!
//! The guest's size is not believed below what every path takes ([`least_mtu`]), and the switch tries nothing below its last
//! plateau: paths that take less are rare, and dead peers are not. A dead peer looks the same, so the size from before is remembered and
//! tried again: the first new segment after the recovery is one of the old size. If it is acknowledged without having been sent again,
//! the old size is back. If not, it is tried again after [`RAISE_INTERVAL`]. Such a probe that is lost counts as any loss.
//! A router's message, or a guest that makes all its segments smaller, ends it: then the size is known.
//!
//! Invariant: `full` is zero or larger than the MSS; only a probe is longer than the MSS when it is sent.

use serde::{Deserialize, Serialize};

use super::{Env, Phase, Sender};
use crate::offload::mtu::{headers_len, least_mtu};
use crate::seq::Seq;
use crate::tcp::Segment;
use crate::time::{Duration, Instant};

/// Sizes of packets that are tried one after the other: Ethernet's, and what every path of IPv6 and nearly every tunnel takes
/// (RFC 8200 section 5; RFC 8899 section 5.1.2 has 1200 as its base).
const PLATEAUS: [u32; 2] = [1500, 1280];
/// After a probe in vain the next is sent no earlier (RFC 8899 section 5.1.1, `PMTU_RAISE_TIMER`).
const RAISE_INTERVAL: Duration = Duration::from_secs(600);

/// What is remembered of the time before segments became smaller.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(in crate::offload) struct BlackHole {
    /// The MSS before; zero if nothing has happened.
    pub full: u32,
    /// Behind the segment of that size that is on its way.
    probe: Option<Seq>,
    /// No such segment is sent before.
    probe_from: Instant,
}

impl BlackHole {
    pub const NONE: Self = Self { full: 0, probe: None, probe_from: Instant::ZERO };
}

/// The largest payload of a segment that is tried instead of one of `len` bytes, with `overhead` bytes of headers and
/// options. `None` if there is none.
fn next_smaller(len: u32, overhead: u32) -> Option<u32> {
    PLATEAUS.into_iter().map(|mtu| mtu.saturating_sub(overhead)).find(|&payload| payload < len)
}

impl<B: 'static> Sender<B> {
    fn overhead<S>(&self, env: &Env<'_, S>) -> u32 {
        headers_len(env.flow.is_ipv6) + self.options_len()
    }

    /// A timeout has been noted: makes segments smaller if it is one of several.
    pub(super) fn fall_back<S>(&mut self, env: &mut Env<'_, S>) {
        self.end_raise(env.now);
        let in_a_row = self.rtt.backed_off();
        let Some(first) = self.store.place(0) else { return };
        if in_a_row < 2 || in_a_row % 2 == 1 {
            return;
        }
        let smaller = next_smaller(first.len(), self.overhead(env));
        if let Some(mss) = smaller.filter(|&mss| mss < self.window.mss) {
            self.make_smaller(mss, env);
        }
    }

    /// The guest has repeated `segment`, which is stored. Its size is that of the next timeout if it says that larger ones
    /// do not come through.
    pub(super) fn learn_from_repeat<S>(&mut self, segment: &Segment, env: &mut Env<'_, S>) {
        let Some(first) = self.store.place(0) else { return };
        let cuts = segment.seq == first.start && segment.end().before(first.sent.end);
        if !cuts || segment.gso_size > 0 || segment.len == 0 || self.is_withholding() {
            return;
        }
        let least = least_mtu(env.flow.is_ipv6).saturating_sub(self.overhead(env));
        let mss = segment.len.max(least);
        if self.rtt.backed_off() > 0 && mss < self.window.mss {
            self.make_smaller(mss, env);
        }
    }

    fn make_smaller<S>(&mut self, mss: u32, env: &mut Env<'_, S>) {
        let hole = &mut self.recovery.black_hole;
        hole.full = hole.full.max(self.window.mss);
        self.window.mss = mss;
        env.counters.mss_fallbacks().add(1);
    }

    /// The size of the path is known to be `mss`: nothing larger is tried any more.
    pub(in crate::offload) fn forget_full_size(&mut self) {
        if self.recovery.black_hole.full > 0 {
            self.recovery.black_hole = BlackHole::NONE;
        }
    }

    /// The flow is given up: nothing was learnt of the path.
    pub(super) fn restore_full_size(&mut self) {
        self.window.mss = self.window.mss.max(self.recovery.black_hole.full);
        self.forget_full_size();
    }

    /// The size of the next segment, if it is to find out whether segments as large as before come through.
    pub(super) fn raised_size(&self, now: Instant) -> Option<u32> {
        let hole = &self.recovery.black_hole;
        let due = hole.full > 0 && hole.probe.is_none() && hole.probe_from <= now;
        (due && self.recovery.phase == Phase::Open).then_some(hole.full)
    }

    /// A segment of that size, up to `end`, has left.
    pub(super) fn note_raise(&mut self, end: Seq) {
        self.recovery.black_hole.probe = Some(end);
    }

    /// What is on its way may have to be sent again, or is: a larger segment among it proves nothing any more.
    pub(super) fn end_raise(&mut self, now: Instant) {
        if self.recovery.black_hole.probe.is_some() {
            let hole = &mut self.recovery.black_hole;
            (hole.probe, hole.probe_from) = (None, now + RAISE_INTERVAL);
        }
    }

    /// `snd_una` has advanced: a larger segment may have come through.
    pub(super) fn check_raise<S>(&mut self, env: &mut Env<'_, S>) {
        let hole = self.recovery.black_hole;
        if hole.probe.is_some_and(|end| !self.snd_una().before(end)) {
            self.restore_full_size();
            env.counters.mss_restored().add(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_tried_down_to_what_tunnels_take() {
        let all = |mut len, ipv6| {
            let overhead = headers_len(ipv6) + 12;
            let next = move || {
                len = next_smaller(len, overhead)?;
                Some(len + overhead)
            };
            std::iter::from_fn(next).collect::<Vec<_>>()
        };
        assert_eq!(all(8_948, false), [1500, 1280]);
        assert_eq!(all(1_448, false), [1280]);
        assert_eq!(all(1_300, false), [1280]);
        assert_eq!(all(1_228, false), [0; 0]);
        assert_eq!(all(200, false), [0; 0]);
        assert_eq!(all(8_928, true), [1500, 1280]);
        assert_eq!(all(1_428, true), [1280]);
        assert_eq!(all(1_208, true), [0; 0]);
    }
}
