//! Early acknowledgement: the guest is told that bytes are acknowledged which the switch has stored, and its peer has not got yet.
//!
//! # Theory of operation
//! **Goal.** A guest without the module is bound by its own congestion window, which waits for ACKs that wait for the
//! network. A performance-enhancing proxy splits the connection: it acknowledges what it has stored, and
//! answers for it (local acknowledgements, RFC 3135 section 3.1.2). The guest's window then grows at the pace of its own CPU, and the network sees
//! the switch's window alone. Off unless [`Config::early_ack`] is on.
//!
//! An ACK that runs ahead is a promise, and a lie to whoever reads it as the peer's. So it has rules (invariants):
//! - **T1** What was acknowledged to the guest is stored until the peer acknowledges it. A flow that owes bytes is not given up, does not go
//!   offline and is not evicted. When the peer is dead, for it has not answered for [`Config::peer_timeout`], both ends are
//!   reset, and a counter says so. So they are when the guest moves to another host.
//! - **T2** Only bytes without a gap before them are acknowledged early, once at the end of a batch.
//! - **T3** Never the FIN, nor the last byte that the guest has sent: so `close`, `SO_LINGER`, `SIOCOUTQ`,
//!   `TCP_USER_TIMEOUT` and the guest's detection of a dead peer mean what they mean end to end. (M-TCP keeps the last byte back for
//!   a similar reason.)
//! - **T4** The budget is charged from `snd_una` on, and the window shown to the guest reaches no further than it did: what is acknowledged
//!   early makes no room.
//! - **T5** No further ahead than the peer is expected to acknowledge within [`Config::early_ack_delay`]: one round trip, and
//!   the time in which what lies before it leaves at the flow's rate. Else the guest's timer for the byte that T3 keeps
//!   back would run out. What is further ahead already, because the path has become slow, stays acknowledged; the number stands until
//!   the peer's own comes up to it.
//!
//! Nor is anything acknowledged early
//! - that lies within [`RESERVE`] of the right edge of the receiver's window, or beyond it: when that window closes, the guest still
//!   has bytes outstanding by which it can be kept alive ([`super::stall`]);
//! - while a timeout or a probe of the window is unanswered: nothing is known of the rate then;
//! - on a flow that leaves;
//! - on a path whose round trip is less than [`Config::early_ack_min_rtt`], while nothing is lost: the peer's own ACK comes while the guest is still at work on what it
//!   sends, and a second one for the same bytes would only interrupt it.
//!
//! **Numbers.** [`Sender::una_for_guest`] is the larger of what the peer has acknowledged and `una` here. A window field counts whole
//! units of the peer's scale from the ACK number. Rounded up anew for every number that runs ahead, the edge would creep beyond what
//! is charged. So the number is moved back until the edge lies whole units from it, less than a unit: T3 keeps back that much more. While it
//! is ahead, the edge moves by whole units from it, too (`edge_within`).
//!
//! **ACKs that say nothing.** The peer's ACKs below the number would look like duplicates to the guest: they are absorbed unless they widen
//! the window.
//!
//! **Clocks.** An early ACK echoes the latest clock of the guest (RFC 7323), as the peer will: never ahead of what the guest has sent. With the peer's
//! latest echo, a guest that was idle before would measure that time.
//!
//! **Losses, marks, SACK** are the switch's business as ever; the guest hears of none.
//!
//! **Bytes that passed by.** A peer that acknowledges what the switch has not sent has got bytes past it. If more is owed than that,
//! the flow goes on, as if the ACK named what was sent: the peer gets some bytes twice.
//!
//! **The end of the process.** With a journal, what is owed lies in it before the early ACK leaves ([`super::owed`]), and the next process
//! goes on with it. Without one it is lost: such a switch must not turn this on.
//!
//! States: none of its own. Timer: `dead_at`.
//!
//! Source: RFC 3135; Bakre and Badrinath, "I-TCP" (ICDCS 1995); Brown and Singh, "M-TCP" (CCR 27(5), 1997).

use super::ahead::Ahead;
use super::owed::Ledger;
use super::stall::RESERVE;
use super::{Env, PeerSide, Phase, Sender};
use crate::offload::config::Config;
use crate::offload::sink::Sink;
use crate::offload::state_pool::FreeList;
use crate::offload::summary::TxState;
use crate::seq::Seq;
use crate::time::Instant;

impl<B: 'static> Sender<B> {
    /// Returns `true` if the guest was told of more than the peer has acknowledged, as of the latest ACK.
    #[inline]
    pub fn is_ahead(&self) -> bool {
        self.early_una().is_some()
    }

    /// The acknowledgement number that was sent to the guest ahead of the peer's, as of the latest ACK.
    #[inline]
    pub(super) fn early_una(&self) -> Option<Seq> {
        if self.recovery.diverged { self.recovery.early.una } else { None }
    }

    /// Bytes that are acknowledged to the guest and not by the peer.
    pub fn owed(&self) -> u32 {
        let ahead = self.early_una().filter(|una| una.after(self.snd_una()));
        ahead.map_or(0, |una| una.since(self.snd_una()))
    }

    /// Returns `true` if bytes from `ack` on are owed.
    pub fn owes_from(&self, ack: Seq) -> bool {
        self.early_una().is_some_and(|una| una.after(ack))
    }

    /// Moves the acknowledgement number for the guest ahead, as far as the rules allow and `ledger` has the bytes then. Returns `true` if it moved: the guest is to be
    /// told.
    pub fn acknowledge_early<S: Sink<B>>(
        &mut self,
        config: &Config,
        ledger: &mut Ledger<'_, S>,
    ) -> bool {
        let from = self.una_for_guest();
        let Some(una) = self.next_early(from, config) else { return false };
        self.acquire_state(&mut FreeList::default());
        self.recovery.early.open = true;
        self.recovery.diverged = true;
        let una = self.record_owed(una, ledger);
        if una.after(from) {
            self.recovery.early.una = Some(una);
        }
        una.after(from)
    }

    /// The number that what is stored and the rules allow, if it is behind `from`.
    fn next_early(&self, from: Seq, config: &Config) -> Option<Seq> {
        let limit = self.early_limit(config).filter(|limit| limit.after(from))?;
        let una = self.whole_units_from_edge(self.stored_up_to(limit, from));
        una.after(from).then_some(una)
    }

    /// How far the rules allow to acknowledge, whatever is stored; `None` if nothing may be.
    fn early_limit(&self, config: &Config) -> Option<Seq> {
        let grants =
            matches!(self.state, TxState::Active | TxState::NoBuffer | TxState::PacketLoss);
        let is_near = self.rtt.min_rtt().is_some_and(|rtt| rtt < config.early_ack_min_rtt);
        if is_near && self.recovery.phase == Phase::Open {
            return None;
        }
        if !grants || self.unanswered > 0 || self.is_withholding() || self.rwnd() <= RESERVE {
            return None;
        }
        let fin = self.store.last().is_some_and(|last| last.fin);
        let last_byte = self.snd_max - u32::from(fin) - 1;
        let timely = self.snd_una() + self.timely_bytes(config)?;
        Some(last_byte.min(timely).min(self.rwnd_edge - RESERVE))
    }

    /// Bytes from `snd_una` on that the peer will have acknowledged in time (T5); `None` if the path is too long, or not measured.
    fn timely_bytes(&self, config: &Config) -> Option<u32> {
        let srtt = u64::from(self.rtt.srtt_micros()?.max(1));
        let delay = config.early_ack_delay.as_micros() as u64;
        let left = delay.checked_sub(srtt)?;
        let window = u64::from(self.window.cwnd.min(self.rwnd()));
        // Less than half of the sequence space, so that it can be compared.
        Some((window * left / srtt).min(1 << 30) as u32)
    }

    /// Up to where everything from `from` on is stored, `limit` at most.
    pub(super) fn stored_up_to(&self, limit: Seq, from: Seq) -> Seq {
        let mut end = from;
        while end.before(limit)
            && let Some(chunk) = self.store.chunk_at(end)
        {
            end = chunk.end();
        }
        end.min(limit)
    }

    /// The last number, `at` at most, from which a window field names the edge exactly.
    pub(super) fn whole_units_from_edge(&self, at: Seq) -> Seq {
        let unit = 1 << self.agreed.peer_scale();
        let rest = self.granted(at) % unit;
        at - (unit - rest) % unit
    }

    /// The peer was heard. Nothing is ahead once it has acknowledged as much.
    #[inline]
    pub(super) fn settle_early(&mut self) {
        if let Some(early) = self.early_una() {
            let una = Some(early).filter(|una| una.after(self.snd_una()));
            let dead_at = Instant::NEVER;
            self.recovery.early = Ahead { una, dead_at, ..self.recovery.early };
        }
    }

    /// Most bytes that may be withheld: one less than the guest has not heard of.
    pub(super) fn most_withheld(&self) -> u32 {
        match self.early_una() {
            Some(una) if una.before(self.snd_una()) => self.snd_una().since(una) - 1,
            Some(_) => 0,
            None => u32::MAX,
        }
    }

    /// A timeout or a probe of the window has gone by without an answer.
    pub(super) fn note_unanswered<S>(&mut self, env: &Env<'_, S>) {
        self.unanswered = self.unanswered.saturating_add(1);
        if self.is_ahead() && self.recovery.early.dead_at == Instant::NEVER {
            self.recovery.early.dead_at = env.now + env.config.peer_timeout;
        }
    }

    /// The peer is owed bytes and has not answered for so long that it is dead.
    pub fn is_peer_dead(&self, now: Instant) -> bool {
        self.is_ahead() && self.recovery.early.dead_at <= now
    }

    /// Nothing is owed any more: both ends are reset.
    pub fn forget_owed(&mut self) {
        if let Some(recovery) = self.recovery.get_mut() {
            let Ahead { open, counted, place, .. } = recovery.early;
            recovery.early = Ahead { open, counted, place, ..Ahead::NONE };
        }
    }

    /// What an ACK for the guest says of the peer's side: as `peer` has it, but with the guest's latest clock, `tsval`, as its
    /// echo while bytes are owed.
    pub fn side_for_guest(&self, peer: PeerSide, tsval: u32) -> PeerSide {
        if self.is_ahead() {
            return PeerSide { tsecr: Seq(peer.tsecr).max(Seq(tsval)).0, ..peer };
        }
        peer
    }
}
