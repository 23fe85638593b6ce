//! Connections that lack bytes which a switch had acknowledged, and that nobody knows any more.
//!
//! # Theory of operation
//! **Goal.** If all processes of a switch end at once, and no service manager has a duplicate of its journals, these are gone. Connections that were owed bytes then stand still for ever: one end is sure that the other one has the bytes, and the other one waits for
//! them. The next switch finds such a connection by what its ends do, and resets both.
//!
//! **How it shows.** An end whose data is not acknowledged sends its first unacknowledged byte again at each timeout (RFC 6298 section 5.4), whatever its loss recovery is. If that byte lies beyond the one that the other end expects,
//! and ACKs have named the latter, then the sender takes the bytes between for arrived, and will not send them. A guest always has such a byte, for the last one is never acknowledged early (T3). A peer has one only
//! if it has sent more than what was acknowledged for the guest; else nothing shows, and the connection stands still.
//!
//! **State** of each direction ([`Way`]): what the receiver expects, by the ACKs that have passed to the sender; the first byte that the sender has sent since that has moved; how often it has been sent again, each time after another ACK,
//! and at least [`TIMEOUT`] after the time before. Everything begins anew when the sender sends what is expected. At [`REPEATS`] the connection is broken: both ends are reset by the numbers that they expect, and whatever they still send goes no further and is answered by an RST.
//!
//! **Why not sooner.** A sender that lacks nothing repeats a segment beyond a hole, too: a tail loss probe (RFC 8985 section 7) may leave before ACKs are read that wait for its CPU. It does so once, and what follows is the byte that
//! is expected. So the reset comes with the third timeout that the next switch sees. Repairs without a timeout come in less than [`TIMEOUT`].
//!
//! **Strangers.** Who does not see a connection must not be able to end it (RFC 5961). A segment is believed only if both its numbers lie within [`REACH`] of what the ends have shown before, and repeats have to begin within
//! the same reach: to hit them takes as many segments as to hit a window.
//!
//! **Bounds.** It [begins](Forgotten::new) with a process that has found no journal, and only there. Connections that are met in mid-stream are watched for [`WATCH`] after that, [`MOST`] at a time. When there are more, those make room of which nothing
//! is known but that they go on; beyond that, connections are not watched.

use std::collections::BTreeMap;

use floodway_wire::FiveTuple;
use floodway_wire::tcp::Flags;

use crate::seq::Seq;
use crate::tcp::{Segment, Side};
use crate::time::{Duration, Instant};

/// Two minutes are the longest retransmission timeout of Linux.
const WATCH: Duration = Duration::from_secs(600);
const MOST: usize = 4096;
/// How often room is made for others at most.
const SWEEP: Duration = Duration::from_secs(1);
/// How often the same byte has to be sent again.
const REPEATS: u8 = 2;
/// Linux's smallest retransmission timeout.
const TIMEOUT: Duration = Duration::from_millis(200);
/// Bytes. More than a connection has under way: a receive window of Linux is 6 MiB at most (the default of `tcp_rmem`).
const REACH: u32 = 8 << 20;

/// Connections in mid-stream, in the guest's direction.
#[derive(Debug)]
pub(super) struct Forgotten {
    /// Until when they are watched.
    until: Instant,
    swept_at: Instant,
    watched: BTreeMap<FiveTuple, Watched>,
}

#[derive(Debug, Default)]
struct Watched {
    to_peer: Way,
    to_guest: Way,
    is_broken: bool,
}

/// One direction.
#[derive(Clone, Copy, Debug, Default)]
struct Way {
    /// Behind the last byte that the sender has shown.
    shown: Option<Seq>,
    /// What the receiver expects.
    expected: Option<Seq>,
    /// The first byte that was sent since.
    first: Option<First>,
    /// An ACK has passed to the sender since it has sent that.
    is_acked_since: bool,
}

#[derive(Clone, Copy, Debug)]
struct First {
    seq: Seq,
    /// How often it was sent again.
    times: u8,
    /// When it was counted last.
    at: Instant,
}

/// What is wrong with a connection that is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// Nothing, as far as is known.
    Nothing,
    /// It lacks bytes, and has just been found out. These are the numbers that the peer and the guest expect.
    Gap { by_peer: Seq, by_guest: Seq },
    /// It was found out before.
    Broken,
}

impl Forgotten {
    /// Watches from `now` on.
    pub fn new(now: Instant) -> Self {
        Self { until: now + WATCH, swept_at: now, watched: BTreeMap::new() }
    }

    /// Nobody is watched any more.
    pub fn is_over(&self, now: Instant) -> bool {
        now >= self.until
    }

    /// Takes in a segment, which came from `side`, of the connection `tuple`, which is not known.
    pub fn hear(
        &mut self,
        now: Instant,
        tuple: &FiveTuple,
        side: Side,
        segment: &Segment,
    ) -> Found {
        if segment.flags.intersects(Flags::SYN.with(Flags::RST)) {
            self.watched.remove(tuple);
            return Found::Nothing;
        }
        if !segment.has(Flags::ACK) || !self.has_room(tuple, now) {
            return Found::Nothing;
        }
        let watched = self.watched.entry(*tuple).or_default();
        if watched.is_broken {
            return Found::Broken;
        }
        let (own, other) = match side {
            Side::Guest => (&mut watched.to_peer, &mut watched.to_guest),
            Side::Peer => (&mut watched.to_guest, &mut watched.to_peer),
        };
        if !own.is_near(segment.seq) || !other.is_near(segment.ack) {
            return Found::Nothing;
        }
        other.acknowledge(segment.ack);
        own.send(segment, now);
        let is_gap = own.is_gap();
        match (watched.to_peer.expected, watched.to_guest.expected) {
            (Some(by_peer), Some(by_guest)) if is_gap => {
                watched.is_broken = true;
                Found::Gap { by_peer, by_guest }
            }
            _ => Found::Nothing,
        }
    }

    /// Returns `true` if `tuple` can be watched.
    fn has_room(&mut self, tuple: &FiveTuple, now: Instant) -> bool {
        if self.watched.len() < MOST || self.watched.contains_key(tuple) {
            return true;
        }
        if now.since(self.swept_at) >= SWEEP {
            self.swept_at = now;
            self.watched.retain(|_, it| {
                it.is_broken || it.to_peer.is_suspect() || it.to_guest.is_suspect()
            });
        }
        self.watched.len() < MOST
    }
}

impl Way {
    /// Returns `true` if a number can be of this direction, as far as is known.
    fn is_near(&self, seq: Seq) -> bool {
        self.shown.is_none_or(|shown| (shown - REACH).before(seq) && seq.before(shown + REACH))
    }

    /// An ACK passes to the sender. Nothing is known of the receiver before the sender has shown where it is.
    fn acknowledge(&mut self, ack: Seq) {
        if self.shown.is_none_or(|shown| ack.after(shown))
            || self.expected.is_some_and(|it| ack.before(it))
        {
            return;
        }
        if self.expected != Some(ack) {
            self.expected = Some(ack);
            let beyond = self.first.filter(|first| first.seq.after(ack));
            self.first = beyond.map(|first| First { times: 0, ..first });
        }
        self.is_acked_since = true;
    }

    /// The sender sends something.
    fn send(&mut self, segment: &Segment, now: Instant) {
        let end = segment.end();
        self.shown = Some(self.shown.map_or(end, |shown| shown.max(end)));
        if !end.after(segment.seq) {
            return;
        }
        if self.expected.is_some_and(|expected| !segment.seq.after(expected)) {
            (self.first, self.is_acked_since) = (None, false);
            return;
        }
        match &mut self.first {
            Some(first) if first.seq.before(segment.seq) => {}
            Some(first) if first.seq == segment.seq => {
                if self.is_acked_since && now.since(first.at) >= TIMEOUT {
                    (first.times, first.at) = (first.times.saturating_add(1), now);
                    self.is_acked_since = false;
                }
            }
            first => {
                *first = Some(First { seq: segment.seq, times: 0, at: now });
                self.is_acked_since = false;
            }
        }
    }

    /// Something was sent again beyond what is expected.
    fn is_suspect(&self) -> bool {
        self.first.is_some_and(|first| first.times > 0)
    }

    /// The sender keeps sending from beyond what is expected.
    fn is_gap(&self) -> bool {
        let beyond = |first: &First| {
            self.expected.is_some_and(|it| first.seq.after(it) && first.seq.before(it + REACH))
        };
        self.first.as_ref().is_some_and(|first| first.times >= REPEATS && beyond(first))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    const MS: fn(u64) -> Instant = Instant::from_millis;
    const LEN: u32 = 1000;

    fn tuple(port: u16) -> FiveTuple {
        FiveTuple::v4(Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2), 6)
            .with_ports(port, 80)
    }

    fn segment(seq: u32, ack: u32, len: u32) -> Segment {
        Segment { seq: Seq(seq), ack: Seq(ack), len, flags: Flags::ACK, ..Segment::default() }
    }

    /// The guest sends `seq` at each time, and the peer answers that it expects `expected`. Returns what is found at last.
    fn repeat(
        forgotten: &mut Forgotten,
        flow: &FiveTuple,
        (seq, expected): (u32, u32),
        times: &[u64],
    ) -> Found {
        let mut found = Found::Nothing;
        for &at in times {
            found = forgotten.hear(MS(at), flow, Side::Guest, &segment(seq, 7, LEN));
            forgotten.hear(MS(at + 1), flow, Side::Peer, &segment(7, expected, 0));
        }
        found
    }

    #[test]
    fn three_timeouts_beyond_what_is_expected_are_a_gap() {
        let numbers = (5000, 2000);
        for (times, is_gap) in [
            (&[0, 200, 600][..], true),
            (&[0, 200], false),
            // Repairs of a recovery follow each other sooner.
            (&[0, 10, 20, 30, 199], false),
        ] {
            let mut forgotten = Forgotten::new(MS(0));
            let found = repeat(&mut forgotten, &tuple(1), numbers, times);
            let gap = Found::Gap { by_peer: Seq(2000), by_guest: Seq(7) };
            assert_eq!(found, if is_gap { gap } else { Found::Nothing }, "{times:?}");
        }
    }

    #[test]
    fn a_broken_connection_stays_broken_until_it_is_opened_again() {
        let mut forgotten = Forgotten::new(MS(0));
        repeat(&mut forgotten, &tuple(1), (5000, 2000), &[0, 200, 600]);
        let hear = |forgotten: &mut Forgotten, segment: &Segment| {
            forgotten.hear(MS(700), &tuple(1), Side::Peer, segment)
        };
        assert_eq!(hear(&mut forgotten, &segment(7, 2000, 0)), Found::Broken);
        hear(&mut forgotten, &Segment { flags: Flags::SYN, ..Segment::default() });
        assert_eq!(hear(&mut forgotten, &segment(7, 2000, 0)), Found::Nothing);
    }

    #[test]
    fn a_sender_that_goes_back_to_what_is_expected_lacks_nothing() {
        let mut forgotten = Forgotten::new(MS(0));
        repeat(&mut forgotten, &tuple(1), (5000, 2000), &[0, 200]);
        forgotten.hear(MS(400), &tuple(1), Side::Guest, &segment(2000, 7, LEN));
        assert_eq!(repeat(&mut forgotten, &tuple(1), (5000, 2000), &[600, 1000]), Found::Nothing);
    }

    #[test]
    fn numbers_out_of_reach_are_not_believed() {
        let mut forgotten = Forgotten::new(MS(0));
        repeat(&mut forgotten, &tuple(1), (2000, 3000), &[0]);
        for far in [3000 + REACH, 3000 + (1 << 30), 3000 + (3 << 30)] {
            for at in [200, 600, 1400, 3000] {
                let forged = segment(far, 7, 1);
                assert_eq!(forgotten.hear(MS(at), &tuple(1), Side::Guest, &forged), Found::Nothing);
                // The receiver says what it expects.
                forgotten.hear(MS(at + 1), &tuple(1), Side::Peer, &segment(7, 3000, 0));
            }
        }
        // And an ACK of what nobody has sent does not hide a gap.
        forgotten.hear(MS(3100), &tuple(1), Side::Peer, &segment(7, 3000 + (1 << 20), 0));
        assert!(matches!(
            repeat(&mut forgotten, &tuple(1), (9000, 3000), &[4000, 4200, 4600]),
            Found::Gap { .. }
        ));
    }

    #[test]
    fn connections_that_go_on_make_room_for_others() {
        let mut forgotten = Forgotten::new(MS(0));
        for port in 0..MOST as u16 {
            forgotten.hear(MS(0), &tuple(port), Side::Guest, &segment(1, 7, LEN));
        }
        let last = tuple(u16::MAX);
        assert!(matches!(
            repeat(&mut forgotten, &last, (5000, 2000), &[1000, 1200, 1600]),
            Found::Gap { .. }
        ));
        assert!(
            forgotten.watched.len() <= MOST
                && !forgotten.is_over(MS(1600))
                && forgotten.is_over(MS(600_000))
        );
    }
}
