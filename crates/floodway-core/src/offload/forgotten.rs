//! Connections that lack bytes which a switch had acknowledged, and that nobody knows any more.
//!
//! # Theory of operation
//! **Goal.** If all processes of a switch end at once, the journal is gone. Connections that were owed bytes then stand still for ever: one end is sure that the other one has the bytes, and the other one waits for
//! them. The next switch finds such a connection by what its ends do, and resets both.
//!
//! **How it shows.** An end whose data is not acknowledged sends its first unacknowledged byte again at each timeout (RFC 6298 section 5.4), with whatever recovery it has. If that byte lies beyond the one that the other end expects,
//! and it has been told so, then it believes the bytes between to have arrived, and will not send them. There always is such a byte: the last one is never acknowledged early (T3 of [`sender`](super::sender), `early_ack`), and what was acknowledged for
//! a guest does not end what its peer has to send.
//!
//! **State** of each direction ([`Way`]): what the receiver expects, by the ACKs that have passed to the sender; the first byte that the sender has sent beyond that; how often it has begun there again, each time after the receiver has said once more what it expects.
//! Everything begins anew when the sender sends what is expected, and when the receiver expects more. At [`REPEATS`] the connection is [broken](super::adoption).
//!
//! **Why not sooner.** A sender that has not lost anything repeats a segment beyond a hole, too: a tail loss probe (RFC 8985 section 7) may leave before ACKs are read that wait for its CPU. It does so once, and what follows is the byte that
//! is expected. So the reset comes with the third timeout that the next switch sees.
//!
//! **Bounds.** Only connections that are met in mid-stream are watched, for [`WATCH`] from the first one on and [`MOST`] at a time. What is more is not: it ends as it would without this.

use std::collections::HashMap;

use floodway_wire::FiveTuple;
use floodway_wire::tcp::Flags;

use crate::seq::Seq;
use crate::tcp::{Segment, Side};
use crate::time::{Duration, Instant};

/// Two minutes are the longest retransmission timeout of Linux.
const WATCH: Duration = Duration::from_secs(600);
const MOST: usize = 4096;
/// How often the same byte has to be sent again.
const REPEATS: u8 = 2;

/// Connections in mid-stream, in the guest's direction.
#[derive(Debug, Default)]
pub(super) struct Forgotten {
    /// Until when they are watched; none before the first.
    until: Option<Instant>,
    watched: HashMap<FiveTuple, Watched>,
}

#[derive(Debug, Default)]
struct Watched {
    to_peer: Way,
    to_guest: Way,
}

/// One direction.
#[derive(Clone, Copy, Debug, Default)]
struct Way {
    /// What the receiver expects.
    expected: Option<Seq>,
    /// The first byte beyond it that was sent, and how often it was sent again.
    beyond: Option<(Seq, u8)>,
    /// The sender has been told what is expected since it has sent that.
    is_told: bool,
}

/// A connection that cannot go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Gap {
    /// What the peer expects of the guest.
    pub by_peer: Seq,
    /// What the guest expects of the peer.
    pub by_guest: Seq,
}

impl Forgotten {
    /// Takes in a segment of a connection that is not known. Returns a gap if its sender no longer has bytes that the other end waits for.
    pub fn hear(
        &mut self,
        now: Instant,
        tuple: &FiveTuple,
        side: Side,
        segment: &Segment,
    ) -> Option<Gap> {
        if now >= *self.until.get_or_insert(now + WATCH) {
            self.watched = HashMap::new();
            return None;
        }
        if segment.flags.intersects(Flags::SYN.with(Flags::RST)) {
            self.watched.remove(tuple);
            return None;
        }
        if self.watched.len() >= MOST && !self.watched.contains_key(tuple) {
            return None;
        }
        let Watched { to_peer, to_guest } = self.watched.entry(*tuple).or_default();
        let (own, other) = match side {
            Side::Guest => (&mut *to_peer, &mut *to_guest),
            Side::Peer => (&mut *to_guest, &mut *to_peer),
        };
        other.is_acknowledged(segment);
        if !own.is_sent(segment) {
            return None;
        }
        let gap = Gap { by_peer: to_peer.expected?, by_guest: to_guest.expected? };
        self.watched.remove(tuple);
        Some(gap)
    }
}

impl Way {
    /// The receiver tells the sender what it expects.
    fn is_acknowledged(&mut self, segment: &Segment) {
        if !segment.has(Flags::ACK) || self.expected.is_some_and(|it| segment.ack.before(it)) {
            return;
        }
        if self.expected != Some(segment.ack) {
            *self = Self { expected: Some(segment.ack), ..Self::default() };
        }
        self.is_told = true;
    }

    /// Returns `true` if the sender keeps sending from beyond what is expected.
    fn is_sent(&mut self, segment: &Segment) -> bool {
        let Some(expected) = self.expected.filter(|_| segment.end().after(segment.seq)) else {
            return false;
        };
        if !segment.seq.after(expected) {
            *self = Self { expected: Some(expected), ..Self::default() };
            return false;
        }
        match &mut self.beyond {
            Some((first, _)) if first.before(segment.seq) => return false,
            Some((first, times)) if *first == segment.seq => *times += u8::from(self.is_told),
            beyond => *beyond = Some((segment.seq, 0)),
        }
        self.is_told = false;
        self.beyond.is_some_and(|(_, times)| times >= REPEATS)
    }
}
