//! What the two SYNs of a connection decide: whether it is offloaded, and with what.
//!
//! # Theory of operation
//! **Goal.** A connection is followed from its first SYN, whoever sends it; simultaneous opens like any other. Both
//! SYNs have to be seen, and an acknowledgement of the guest's. What they agree on (scale, SACK, timestamps, ECN, the
//! size of segments) is fixed from then on, and so is whether the connection is offloaded. Data segments are not asked
//! again, so the decision costs nothing per packet.
//!
//! **Exclusion.** A connection is passed through, byte for byte and for its life, in which the switch would make, edit or
//! absorb segments whose meaning it does not know:
//! - *An option outside the known set* in a SYN or SYN-ACK. TCP-MD5 (RFC 2385) and TCP-AO (RFC 5925) sign what would be
//!   edited; in MPTCP (RFC 8684) an ACK that looks empty carries a data-level acknowledgement; fast open (RFC 7413) sends data in
//!   the SYN; of others nothing is known.
//! - *Data in a SYN*: which of it the peer takes is its own business.
//! - *Accurate ECN* (RFC 9768): AE, CWR and ECE count CE marks in every segment, and neither ACKs that the switch makes nor those
//!   that it absorbs or refreshes could keep the count.
//! - *A guest that forwards* it for another host ([`origin`](crate::l2::origin)): a router does not end connections. Only if the port is not
//!   configured otherwise ([`LocalFlows`]).
//! - *A handshake of which a part was not seen*: the peer acknowledges data before it acknowledges the guest's SYN alone.
//!
//! **ECN** is what [`ecn`](crate::tcp::ecn) makes of both SYNs.
//!
//! **Segment size.** A segment to the peer is no larger than the smaller MSS of the two SYNs: the peer's is what it takes, the guest's
//! stands for the MTU of its own interface (RFC 9293 section 3.7.1, RFC 6691 for options).
//!
//! **Invariant**: of an excluded connection no header is edited, nothing is stored, absorbed or acknowledged (I5).

use floodway_wire::tcp::{Flags, OptionSummary};

use super::config::{Config, LocalFlows};
use super::connection::Connection;
use super::receiver::Receiver;
use super::sender::owed::MAX_SCALE;
use super::sender::{Agreed, Sender};
use super::summary::Reason;
use crate::seq::Seq;
use crate::tcp::ecn::SynEcn;
use crate::tcp::{Segment, Side};
use crate::time::{Duration, Instant};

/// MSS of a peer that names none (RFC 9293 section 3.7.1).
const DEFAULT_MSS: u16 = 536;

/// A handshake that took longer has lost something: its time is no round trip.
const SYN_TIMEOUT: Duration = Duration::from_secs(1);

/// One side's SYN, with what its repetitions added.
#[derive(Clone, Copy, Debug)]
struct Syn {
    /// Sequence number right behind the SYN.
    next: Seq,
    flags: Flags,
    window: u16,
    options: OptionSummary,
    has_data: bool,
    forwarded: bool,
    ecn: SynEcn,
    /// When it came first, and whether it came again.
    at: Instant,
    repeated: bool,
}

impl Syn {
    fn of(segment: &Segment, now: Instant) -> Self {
        let mut syn = Self {
            next: segment.seq + 1,
            flags: segment.flags,
            window: segment.window,
            options: segment.options,
            has_data: false,
            forwarded: false,
            ecn: SynEcn::default(),
            at: now,
            repeated: false,
        };
        syn.add(segment);
        syn
    }

    /// Adds what excludes the connection, in whichever copy of the SYN it is.
    fn add(&mut self, segment: &Segment) {
        self.has_data |= segment.len > 0;
        self.forwarded |= segment.forwarded;
        self.options.unknown |= segment.options.unknown;
        self.ecn.add(segment);
    }
}

/// SYNs seen so far.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Handshake {
    guest: Option<Syn>,
    peer: Option<Syn>,
}

/// A connection that is not offloaded.
#[derive(Clone, Copy, Debug)]
pub(super) struct Exclusion {
    pub reason: Reason,
    /// Sequence number right behind each side's SYN, where one was seen: another SYN is another connection.
    next: [Option<Seq>; 2],
}

impl Exclusion {
    /// Returns `false` if a SYN of `side` belongs to another connection.
    pub fn on_syn(&mut self, side: Side, segment: &Segment) -> bool {
        *self.next[side as usize].get_or_insert(segment.seq + 1) == segment.seq + 1
    }
}

impl Handshake {
    /// Takes in a SYN. Returns `false` if it contradicts the one that was seen before.
    pub fn on_syn(&mut self, side: Side, segment: &Segment, now: Instant) -> bool {
        let seen = match side {
            Side::Guest => &mut self.guest,
            Side::Peer => &mut self.peer,
        };
        match seen {
            Some(before) => {
                before.repeated = true;
                before.add(segment);
                before.next == segment.seq + 1
            }
            None => {
                *seen = Some(Syn::of(segment, now));
                true
            }
        }
    }

    /// Returns `true` if a segment from the peer may go on with the handshake ([`acceptance`](super::acceptance)).
    pub fn is_acceptable(&self, segment: &Segment) -> bool {
        if segment.has(Flags::RST) || !segment.has(Flags::ACK) {
            return segment.has(Flags::SYN) && !segment.has(Flags::RST);
        }
        let Some(guest) = self.guest else { return false };
        let Some(peer) = self.peer else {
            return segment.has(Flags::SYN) && segment.ack == guest.next;
        };
        if segment.has(Flags::SYN) {
            return segment.ack == guest.next;
        }
        // What the guest may have sent by now, past the switch, is within the peer's first window.
        let (last, edge) =
            (guest.next + u32::from(peer.window), peer.next + u32::from(guest.window));
        let in_window = !segment.end().before(peer.next) && !segment.seq.after(edge);
        in_window && !segment.ack.before(guest.next) && !segment.ack.after(last)
    }

    /// Returns why the connection cannot be offloaded, as far as the SYNs that were seen tell.
    pub fn exclusion(&self, local: LocalFlows) -> Option<Reason> {
        let any = |what: fn(&Syn) -> bool| self.guest.iter().chain(&self.peer).any(what);
        if any(|syn| syn.options.unknown) {
            Some(Reason::UnknownOption)
        } else if any(|syn| syn.has_data) {
            Some(Reason::SynData)
        } else if self.guest.zip(self.peer).is_some_and(|(a, b)| a.ecn.agrees_on_accurate(b.ecn)) {
            Some(Reason::AccurateEcn)
        } else if local == LocalFlows::Own && self.guest.is_some_and(|syn| syn.forwarded) {
            Some(Reason::Forwarded)
        } else {
            None
        }
    }

    /// The connection is excluded.
    pub fn exclude(&self, reason: Reason) -> Exclusion {
        Exclusion { reason, next: [self.guest, self.peer].map(|syn| syn.map(|syn| syn.next)) }
    }

    /// Returns `true` if both SYNs were seen, and `ack` acknowledges the guest's.
    pub fn is_over(&self, ack: Seq) -> bool {
        self.peer.is_some() && self.guest.is_some_and(|guest| !ack.before(guest.next))
    }

    /// The machines, if both SYNs were seen and `last`, which is from the peer, acknowledges the guest's.
    pub fn complete<B: 'static>(
        &self,
        last: &Segment,
        now: Instant,
        config: &Config,
    ) -> Option<Connection<B>> {
        let (guest, peer) = (self.guest?, self.peer?);
        if last.ack != guest.next {
            return None;
        }
        let (agreed, guest_scale) = agreed(&guest, &peer);
        let mss = smaller_mss(&guest.options, &peer.options);
        let mut tx = Sender::new(guest.next, agreed, mss, config);
        let mut rx = Receiver::new(peer.next, guest_scale, agreed.ecn());
        if last.has(Flags::SYN) {
            // The window of a SYN-ACK is not scaled.
            tx.follow_ack(guest.next, guest.next + u32::from(last.window));
        }
        if guest.flags.contains(Flags::ACK) {
            rx.first_window(guest.window);
        }
        rx.first_timestamps(guest.options.timestamps, peer.options.timestamps);
        tx.first_tsval(guest.options.timestamps);
        let rtt = now.since(guest.at);
        if !guest.repeated && rtt < SYN_TIMEOUT {
            // As Linux: the guest's own timer starts from this round trip.
            tx.rtt.sample(rtt, now);
        }
        Some(Connection { tx, rx })
    }
}

/// Returns what both SYNs agree on, and the shift of the guest's windows.
fn agreed(guest: &Syn, peer: &Syn) -> (Agreed, u8) {
    let scaled = guest.options.window_scale.zip(peer.options.window_scale);
    let (guest_scale, peer_scale) = scaled.unwrap_or((0, 0));
    let agreed = Agreed::scaled(peer_scale.min(MAX_SCALE))
        .with_sack(guest.options.sack_permitted && peer.options.sack_permitted)
        .with_timestamps(guest.options.timestamps.is_some() && peer.options.timestamps.is_some())
        .with_ecn(guest.ecn.agrees_on_classic(peer.ecn));
    (agreed, guest_scale.min(MAX_SCALE))
}

/// Returns the smaller MSS of the two SYNs, options not taken off. A guest that names none says nothing of what it sends.
fn smaller_mss(guest: &OptionSummary, peer: &OptionSummary) -> u16 {
    let peer = peer.mss.unwrap_or(DEFAULT_MSS);
    guest.mss.map_or(peer, |guest| guest.min(peer))
}
