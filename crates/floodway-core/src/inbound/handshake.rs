//! From the first SYN to an established connection.
//!
//! What a connection's windows mean is agreed in the two SYNs; that it is one is shown by an answer to the VM's
//! own initial sequence number, which somebody who cannot see its packets cannot give.
//!
//! A connection is *excluded*, for its life, if one of its SYNs has an option that is not known here: TCP-MD5 and TCP-AO
//! sign the window, and others may mean anything. So is one that agrees on AccECN (RFC 9768): an ACK that waits, and a
//! window update after its pattern, would repeat an old count of CE marks.

use floodway_wire::tcp::Flags;
use floodway_wire::tcp::options::MAX_WINDOW_SCALE;

use crate::seq::Seq;
use crate::tcp::ecn::SynEcn;
use crate::tcp::{Segment, Side};
use crate::time::{Duration, Instant};

/// Least segment that is believed, as in Linux (`TCP_MIN_MSS`).
const LEAST_MSS: u16 = 88;
/// Without the option (RFC 9293 section 3.7.1).
const DEFAULT_MSS: [u16; 2] = [536, 1220];
/// Bytes of the timestamps option with its padding.
const TIMESTAMPS_LEN: u16 = 12;

#[derive(Clone, Copy, Debug)]
struct GuestSyn {
    next: Seq,
    scale: Option<u8>,
    mss: u16,
    timestamps: bool,
    /// Its window, and what became of it.
    offered: u16,
    told: u16,
    left: Instant,
    /// It left more than once, so an answer measures nothing (Karn).
    repeated: bool,
    terms: Terms,
}

/// What of a SYN may exclude the connection, in all copies that were seen.
#[derive(Clone, Copy, Debug, Default)]
struct Terms {
    unknown_option: bool,
    ecn: SynEcn,
}

impl Terms {
    fn with(mut self, segment: &Segment) -> Self {
        self.unknown_option |= segment.options.unknown;
        self.ecn.add(segment);
        self
    }
}

/// An excluded connection: of which SYNs it is, so that others are seen to begin another.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Excluded {
    /// The VM has acknowledged data on it.
    pub counted: bool,
    /// Behind the SYN of the VM, and of the peer.
    next: [Option<Seq>; 2],
}

impl Excluded {
    /// Takes in a SYN. Returns `false` if it belongs to another connection.
    pub fn on_syn(&mut self, side: Side, segment: &Segment) -> bool {
        *self.next[side as usize].get_or_insert(segment.end()) == segment.end()
    }
}

#[derive(Clone, Copy, Debug)]
struct PeerSyn {
    next: Seq,
    scale: bool,
    timestamps: bool,
    terms: Terms,
}

/// SYNs seen so far.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Handshake {
    guest: Option<GuestSyn>,
    peer: Option<PeerSyn>,
}

/// What the SYNs agree on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Agreed {
    /// Sequence number of the peer's first byte.
    pub peer_next: Seq,
    /// Sequence number of the VM's first byte.
    pub guest_next: Seq,
    /// Shift of the VM's windows.
    pub scale: u8,
    /// Payload of a full segment to the VM.
    pub mss: u16,
    /// The window of the VM's SYN, and what the peer was told.
    pub offered: u16,
    pub told: u16,
    /// Time from the VM's SYN to the answer, if it was sent once.
    pub took: Option<Duration>,
}

impl Handshake {
    /// A SYN of the VM, which may open `window` bytes at most, but two segments. Answers the field that leaves, and how
    /// much of it is to be charged: that of the first SYN, since repetitions open nothing new.
    pub fn on_guest(
        &mut self,
        segment: &Segment,
        window: u64,
        is_ipv6: bool,
        now: Instant,
    ) -> (u16, u16) {
        let next = segment.seq + 1;
        if let Some(known) = &mut self.guest
            && known.next == next
        {
            known.repeated = true;
            known.terms = known.terms.with(segment);
            known.told = known.told.min(segment.window);
            return (known.told, 0);
        }
        let options = &segment.options;
        let mss = options.mss.unwrap_or(DEFAULT_MSS[usize::from(is_ipv6)]).max(LEAST_MSS);
        let told = window.max(2 * u64::from(mss)).min(u64::from(segment.window)) as u16;
        self.guest = Some(GuestSyn {
            next,
            scale: options.window_scale.map(|scale| scale.min(MAX_WINDOW_SCALE)),
            mss,
            timestamps: options.timestamps.is_some(),
            offered: segment.window,
            told,
            left: now,
            repeated: false,
            terms: Terms::default().with(segment),
        });
        (told, told)
    }

    /// Returns the exclusion of the connection, if its SYNs exclude it.
    pub fn exclusion(&self) -> Option<Excluded> {
        let (guest, peer) = (self.guest.map(|syn| syn.terms), self.peer.map(|syn| syn.terms));
        let unknown_option = guest.iter().chain(&peer).any(|terms| terms.unknown_option);
        let accurate_ecn = guest.zip(peer).is_some_and(|(a, b)| a.ecn.agrees_on_accurate(b.ecn));
        (unknown_option || accurate_ecn).then(|| Excluded {
            counted: false,
            next: [self.guest.map(|syn| syn.next), self.peer.map(|syn| syn.next)],
        })
    }

    /// The VM's SYN has waited, and leaves only now.
    pub fn left(&mut self, now: Instant) {
        if let Some(guest) = &mut self.guest {
            guest.left = now;
        }
    }

    /// A segment from the peer: it may be its SYN, and may complete the handshake. The VM has sent up to
    /// `sent`.
    pub fn on_peer(&mut self, segment: &Segment, sent: Seq, now: Instant) -> Option<Agreed> {
        let answers = |guest: &GuestSyn| segment.has(Flags::ACK) && segment.ack == guest.next;
        if segment.has(Flags::SYN) {
            // Whoever has not seen the VM's SYN cannot answer it.
            if self.guest.as_ref().is_some_and(|guest| segment.has(Flags::ACK) && !answers(guest)) {
                return None;
            }
            let next = segment.seq + 1;
            let before = self.peer.filter(|peer| peer.next == next).map(|peer| peer.terms);
            self.peer = Some(PeerSyn {
                next,
                terms: before.unwrap_or_default().with(segment),
                scale: segment.options.window_scale.is_some(),
                timestamps: segment.options.timestamps.is_some(),
            });
        }
        let (guest, peer) = (self.guest?, self.peer?);
        if !segment.has(Flags::ACK) || segment.has(Flags::RST) {
            return None;
        }
        // If the bare ACK was lost, the next one may acknowledge data as well.
        if segment.ack.before(guest.next) || segment.ack.after(sent.max(guest.next)) {
            return None;
        }
        let options = if guest.timestamps && peer.timestamps { TIMESTAMPS_LEN } else { 0 };
        Some(Agreed {
            peer_next: peer.next,
            guest_next: guest.next,
            scale: guest.scale.filter(|_| peer.scale).unwrap_or(0),
            mss: guest.mss - options,
            offered: guest.offered,
            told: guest.told,
            took: (!guest.repeated).then(|| now.since(guest.left)),
        })
    }
}
