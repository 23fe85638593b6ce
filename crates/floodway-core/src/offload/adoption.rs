//! Connections of which an earlier process acknowledged bytes, as the next one finds them in its [journal](super::journal).
//!
//! # Theory of operation
//! **Goal.** The guest and its peer get what was acknowledged for them, or both ends hear that the connection is over.
//!
//! A connection that owes to its *peer* goes on: its record says what the SYNs agreed on and where both sides are ([`sender`](super::sender), `owed`). It is established and
//! online, repairs what it owes, and may owe to its guest as well.
//!
//! One that owes to its *guest* alone is met in mid-stream: what its ends agreed on, and how far the guest's own bytes have come, is not known. So it is offline: everything
//! passes as it came, and nothing is acknowledged for the guest any more. States:
//! - *Owed*: what is kept is delivered when the guest's rings run, and again as [`redelivery`](super::redelivery) says. The guest's ACKs, which pass, say when
//!   it has all; then the connection is forgotten, with its place in the journal. An ACK below what the peer has heard says nothing to the peer (RFC 9293 section
//!   3.10.7.4). The guest may get a frame that it has: it is dropped there. A frame that acknowledges much less than the peer has since is dropped, too, and so is one with an old
//!   clock; so frames have the latest that is known of both, and with each redelivery the peer is asked for more, by a keepalive (RFC 1122 section 4.2.3.6).
//! - *Broken*: some of the bytes are missing. The connection is reset as by a host that does not know it: whatever either end sends goes no further and is
//!   answered by the RST that its sender believes (RFC 9293 section 3.10.7.1); the other end gets one with its number. An end that is silent is reset first by what is known: the guest by what it has
//!   acknowledged, the peer by the acknowledgement in the latest frame, if there is one. For both may be too old, the peer is probed: of two segments whose
//!   numbers are half the circle apart one at least lies beyond its window, and the peer answers with the number that it expects. That is
//!   repeated at intervals that double from 1 s, [`TRIES`] times.
//!
//! A process that dies here leaves the journal as it was but for what the guest has acknowledged: the next one begins anew (J3 of the journal).
//!
//! **Flows that cannot be named.** A record may be damaged (a process that ran wild): then any connection of the port may be broken. For [`DOUBT`] all that come
//! in mid-stream and are not known are reset, in the same way; connections that open after the adoption are not concerned.
//!
//! **No journal.** If it ended with all processes of the switch, connections are found and reset as [`forgotten`](super::forgotten) says.
//!
//! Source: RFC 9293 sections 3.5.2 and 3.10.7, RFC 5961 section 3; R1 of [`super::receiver`].

use floodway_wire::FiveTuple;
use floodway_wire::tcp::Flags;

use super::adopted::{Adopted, Owing, Resets};
use super::carried::Carried;
use super::connection::Connection;
use super::debts;
use super::engine::Offload;
use super::flow::{Flow, OVER, Outcome, Phase};
use super::forgotten::{Forgotten, Found};
use super::guest::GuestState;
use super::journal::{self, Creditor, Journal, Lost, Retained, Words};
use super::keeping::REDELIVERY;
use super::packet::Packet;
use super::port::{CERTAIN, Call, Holdings, OffloadShared};
use super::sink::{Link, Sink, SynthesizedSegment, Verdict};
use super::stopped::rst;
use super::summary::{Reason, TxState};
use crate::seq::Seq;
use crate::tcp::{Segment, Side};
use crate::time::{Duration, Instant};

/// Times that the ends of a broken connection are reset, over two minutes.
const TRIES: u8 = 7;
/// How long connections that come in mid-stream are reset after a record was found damaged.
const DOUBT: Duration = Duration::from_secs(600);

/// What was found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Adoption {
    /// Connections whose bytes are there.
    pub whole: u64,
    /// Connections that are reset.
    pub broken: u64,
    /// Connections that cannot be named, because their record is damaged or the table is full.
    pub unknown: u64,
}

impl<B: 'static> Offload<B> {
    /// Records what it acknowledges in `journal` from now on.
    pub fn record_in<W: Words + Send + 'static>(&mut self, journal: Journal<W>) {
        self.port.journal = Some(Box::new(journal));
    }

    /// It records what it acknowledges.
    #[must_use]
    pub const fn is_recording(&self) -> bool {
        self.port.journal.is_some()
    }

    /// Takes over what an earlier process owed its guest and the guest's peers, and records what it acknowledges in the same `journal`. `revive` makes a frame, and what its headers say, of what was
    /// kept. The guest counts as stopped until [`Offload::resume`].
    pub fn adopt<W: Words + Send + 'static>(
        &mut self,
        found: (Journal<W>, Vec<journal::Verdict>, Lost),
        now: Instant,
        revive: impl FnMut(Creditor, &Retained) -> Option<(B, Segment)>,
    ) -> Adoption {
        self.adopt_carried(found, &mut Carried::default(), now, revive)
    }

    /// As [`adopt`](Self::adopt), but connections of which `carried` has what the journal has go on as they were. [`Offload::take_over`] follows, for the others.
    pub fn adopt_carried<W: Words + Send + 'static>(
        &mut self,
        (journal, verdicts, lost): (Journal<W>, Vec<journal::Verdict>, Lost),
        carried: &mut Carried,
        now: Instant,
        mut revive: impl FnMut(Creditor, &Retained) -> Option<(B, Segment)>,
    ) -> Adoption {
        self.record_in(journal);
        self.suspend();
        let (connections, twice) = debts::by_connection(verdicts);
        let mut found = Adoption { unknown: lost.flows as u64 + twice, ..Adoption::default() };
        for (tuple, debts) in connections {
            let flow = debts.into_flow(now, &self.port.config, &mut revive);
            let resumed = flow.debts().and_then(|d| carried.resume(&tuple, d, &mut revive));
            if resumed.is_some_and(|resumed| self.insert_resumed(&tuple, resumed, carried, now)) {
                continue;
            }
            let is_broken = matches!(&flow.phase, Phase::Adopted(old) if old.broken.is_some());
            if !self.insert_adopted(&tuple, flow, now) {
                found.unknown += 1;
            } else if is_broken {
                found.broken += 1;
            } else {
                found.whole += 1;
            }
        }
        let Adoption { whole, broken, unknown } = found;
        self.port.counters.adopted().add(whole);
        self.port.counters.adopted_broken().add(broken);
        self.port.counters.adopted_unknown().add(unknown);
        if unknown > 0 {
            self.doubt_others(now);
        }
        found
    }

    /// Resets both ends of a connection whose bytes are not here: see the module's *broken*. Whoever it cannot be named for is doubted.
    pub(super) fn insert_lost(&mut self, tuple: &FiveTuple, owing: &Owing, now: Instant) {
        let mut flow = Flow::new(owing.link);
        flow.phase = Phase::Adopted(Box::new(Adopted::lost(owing)));
        if self.insert_adopted(tuple, flow, now) {
            self.port.counters.adopted_broken().add(1);
        } else {
            self.port.counters.adopted_unknown().add(1);
            self.doubt_others(now);
        }
    }

    /// No journal was found: from `now` on connections that lack bytes are found by what their ends do, as [`forgotten`](super::forgotten) says.
    pub fn watch_forgotten(&mut self, now: Instant) {
        self.forgotten = Some(Box::new(Forgotten::new(now)));
    }

    /// What becomes of a segment of a connection that is not known while none is doubted.
    #[cold]
    pub(super) fn watch(
        &mut self,
        now: Instant,
        packet: &Packet<'_>,
        side: Side,
        sink: &mut impl Sink<B>,
    ) -> Verdict {
        let Some(forgotten) = &mut self.forgotten else { return Verdict::PASS };
        if forgotten.is_over(now) {
            self.forgotten = None;
            return Verdict::PASS;
        }
        let (flow, link) = (packet.guest_flow(side), *packet.link);
        match forgotten.hear(now, &flow, side, packet.segment) {
            Found::Nothing => return Verdict::PASS,
            Found::Broken => reset_both(side, &flow, link, packet.segment, sink),
            Found::Gap { by_peer, by_guest } => {
                self.port.counters.adopted_broken().add(1);
                self.port.counters.aborted().add(1);
                sink.to_guest(&rst(flow.reversed(), link, by_guest, by_peer));
                sink.to_network(&rst(flow, link, by_peer, by_guest));
            }
        }
        Verdict::Absorb
    }

    fn doubt_others(&mut self, now: Instant) {
        self.port.doubtful_until = now + DOUBT;
        self.upkeep_at = now;
    }

    /// Returns `false` if the table takes no such flow.
    fn insert_adopted(&mut self, tuple: &FiveTuple, flow: Flow<B>, now: Instant) -> bool {
        let held = flow.holdings();
        let Ok(id) = self.flows.insert(tuple, now, flow) else { return false };
        self.port.counters.flows_opened().add(1);
        self.port.recount(Holdings::default(), held);
        let Some(flow) = self.flows.get_mut(id) else { return false };
        flow.enter_adopted(&mut self.port);
        flow.set_timer(id, now, &mut self.timers);
        self.upkeep_at = self.upkeep_at.min(now);
        true
    }

    /// Whoever had to hear of it has, or is silent.
    pub(super) fn end_doubt(&mut self, now: Instant) {
        if self.port.doubtful_until == CERTAIN || now < self.port.doubtful_until {
            return;
        }
        self.port.doubtful_until = CERTAIN;
        if let Some(journal) = &mut self.port.journal {
            journal.close_damaged();
        }
    }

    /// What becomes of a segment of a connection that is not known. One that may lack bytes is reset.
    #[cold]
    pub(super) fn doubt(
        &mut self,
        now: Instant,
        packet: &Packet<'_>,
        side: Side,
        sink: &mut impl Sink<B>,
    ) -> Verdict {
        const OTHERS: Flags = Flags::SYN.with(Flags::RST);
        let segment = packet.segment;
        let is_known_good = now >= self.port.doubtful_until;
        if is_known_good || segment.flags.intersects(OTHERS) || !segment.has(Flags::ACK) {
            return Verdict::PASS;
        }
        self.port.counters.aborted().add(1);
        reset_both(side, &packet.guest_flow(side), *packet.link, segment, sink);
        Verdict::Absorb
    }
}

/// Resets both ends of `flow`, given in the guest's direction, by `segment`, which came from `side`: its sender by what it expects, the other end by what it may.
fn reset_both<B>(
    side: Side,
    flow: &FiveTuple,
    link: Link,
    segment: &Segment,
    sink: &mut impl Sink<B>,
) {
    let answer = (segment.ack, segment.end());
    let onwards = (segment.seq, segment.ack);
    let (guest, network) = match side {
        Side::Guest => (answer, onwards),
        Side::Peer => (onwards, answer),
    };
    sink.to_guest(&rst(flow.reversed(), link, guest.0, guest.1));
    sink.to_network(&rst(*flow, link, network.0, network.1));
}

impl<B: 'static> Flow<B> {
    /// A flow that owes to its peer is online: it is being repaired, or leaves if the port wants no such flows.
    fn enter_adopted(&mut self, port: &mut OffloadShared) {
        let held = self.holdings();
        let Phase::Established(Connection { tx, .. }) = &mut self.phase else { return };
        let wanted = port.wants_transmit();
        let state = if wanted { TxState::PacketLoss } else { TxState::Leaving };
        tx.enter(state, Reason::Adopted, &port.counters);
        port.counters.went_online().add(1);
        port.pool.enter();
        tx.charge(&mut self.charged, &mut port.pool);
        self.settle(held, port);
    }

    /// A segment of the guest, if the connection is an earlier process's.
    pub(super) fn guest_of_adopted<S: Sink<B>>(
        &mut self,
        segment: &Segment,
        call: &mut Call<'_, S>,
    ) -> Outcome {
        let Phase::Adopted(adopted) = &mut self.phase else { return Verdict::PASS.into() };
        if segment.has(Flags::RST) {
            return OVER;
        }
        if adopted.broken.is_some() {
            if segment.has(Flags::ACK) {
                reset_both(Side::Guest, call.tuple, self.link, segment, call.sink);
            }
            return Verdict::Absorb.into();
        }
        call.port.greet(&self.link, call.sink);
        adopted.note_guest(segment);
        adopted.rx.on_guest(segment, call.now, &call.port.counters);
        if adopted.rx.is_settled() {
            return OVER;
        }
        if adopted.rx.owes_redelivery() {
            let edit = adopted.edit();
            adopted.rx.redeliver(&edit, call.now, &call.port.counters, call.sink);
        }
        Verdict::PASS.into()
    }

    /// A segment of the peer, if the connection is an earlier process's.
    pub(super) fn peer_of_adopted<S: Sink<B>>(
        &mut self,
        segment: &Segment,
        call: &mut Call<'_, S>,
    ) -> Outcome {
        const OTHERS: Flags = Flags::SYN.with(Flags::RST);
        let Phase::Adopted(adopted) = &mut self.phase else { return Verdict::PASS.into() };
        if segment.flags.intersects(OTHERS) {
            // The guest decides whether it believes it, and answers what it does not know.
            return Verdict::PASS.into();
        }
        if adopted.broken.is_some() {
            if segment.has(Flags::ACK) {
                reset_both(Side::Peer, call.tuple, self.link, segment, call.sink);
            }
            return Verdict::Absorb.into();
        }
        adopted.note_peer(segment);
        Verdict::PASS.into()
    }

    /// Does what is due for a connection of an earlier process. Returns `true` if it is over.
    pub(super) fn handle_adopted_timeout<S: Sink<B>>(&mut self, call: &mut Call<'_, S>) -> bool {
        let Phase::Adopted(adopted) = &mut self.phase else { return false };
        if adopted.broken.is_none() && adopted.rx.handle_timeout(call.now, call.port.guest) {
            if call.port.guest != GuestState::Running {
                return true;
            }
            adopted.broken = Some(Resets::FIRST);
        }
        let Some(Resets { at, tries }) = adopted.broken else {
            if adopted.rx.owes_redelivery() {
                if let Some(keepalive) = adopted.keepalive(call.tuple, self.link) {
                    call.sink.to_network(&keepalive);
                }
                let edit = adopted.edit();
                adopted.rx.redeliver(&edit, call.now, &call.port.counters, call.sink);
            }
            return false;
        };
        if at > call.now {
            return false;
        }
        if tries >= TRIES {
            return true;
        }
        let at = call.now + REDELIVERY * (1 << tries);
        adopted.broken = Some(Resets { at, tries: tries + 1 });
        if tries == 0 {
            call.port.counters.aborted().add(1);
        }
        self.reset_adopted(call);
        let Phase::Adopted(adopted) = &self.phase else { return false };
        let seq = adopted.rx.guest_ack();
        let made = rst(call.tuple.reversed(), self.link, seq, adopted.expected().unwrap_or(Seq(0)));
        call.sink.to_guest(&made);
        false
    }

    /// Resets the peer by what is known, and asks it for what is not.
    pub(super) fn reset_adopted<S: Sink<B>>(&self, call: &mut Call<'_, S>) {
        let Phase::Adopted(adopted) = &self.phase else { return };
        let ack = adopted.rx.outgoing().ack;
        if let Some(seq) = adopted.expected() {
            call.sink.to_network(&rst(*call.tuple, self.link, seq, ack));
        }
        let base = adopted.expected().unwrap_or(Seq(0));
        for seq in [base + HALF, base + HALF + HALF] {
            let reset = rst(*call.tuple, self.link, seq, ack);
            let probe = SynthesizedSegment { flags: Flags::ACK, window: u16::MAX, ..reset };
            call.sink.to_network(&probe);
        }
    }
}

/// Half of the circle of sequence numbers.
const HALF: u32 = 1 << 31;
