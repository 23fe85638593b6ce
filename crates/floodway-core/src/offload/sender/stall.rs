//! A receiver that closes its window while the guest may still send.
//!
//! # Theory of operation
//! The guest's grant reaches beyond the receiver's window. When that window closes, the guest has bytes outstanding that
//! the switch holds. It takes them for lost, repeats them, and ends the connection after `tcp_retries2` timeouts, although
//! the receiver is alive. A plain sender probes a closed window for as long as the probes are answered (RFC 9293 section
//! 3.8.6.1, RFC 1122 section 4.2.2.17), and so must the guest's connection last.
//!
//! Nothing but an acknowledgement that advances ends a sender's count of timeouts, and none may be invented. So some are
//! saved: while the window is nearly closed and the grant goes beyond it, the last acknowledged bytes are *withheld* from
//! the guest, [`RESERVE`] at most. The guest repeats the first of them when its timer runs out. The repeat is absorbed and, if
//! the peer has been heard since the last answer, answered with one byte of the reserve. If it has not been heard, a window
//! probe asks it, and its answer lets the byte go. A peer that does not answer thus leaves the guest without an answer too,
//! and the guest gives up as it would without the switch.
//!
//! One byte is enough: Linux counts timeouts from zero after each advance (`icsk_retransmits`), and keeps the timeout backed
//! off, since less than a segment is no round trip. It then repeats every 120 s, so that the reserve lasts for days. Each timeout
//! must be answered before the next one, though: Linux measures `tcp_retries2` from the first repeat of a recovery (`retrans_stamp`), and one
//! that has lasted for longer ends with the second timeout in a row. So the time between two answers begins with [`FIRST_INTERVAL`] and
//! doubles with every answer, as timeouts do. A sender whose timeout starts anew at every advance comes to be answered once in
//! [`LONGEST_INTERVAL`], which is within four of its timeouts (0.2, 0.4, 0.8 and 1.6 s), and the reserve lasts for two hours.
//!
//! All is disclosed as soon as the window opens, the guest's FIN is acknowledged, or the flow goes offline. An idle flow whose
//! window is merely small withholds nothing, for the guest's timer would run for no purpose.
//!
//! # Invariants
//! - `advertised_una <= una_for_guest`, which never goes back and is no more than `snd_una` but for what is acknowledged early.
//! - The window that the guest is shown counts from `una_for_guest`, so its right edge stays (I3); the budget is charged from
//!   there too, so that withholding never adds to a charge (I4).

use serde::{Deserialize, Serialize};

use super::{Env, Sender};
use crate::offload::sink::Sink;
use crate::seq::Seq;
use crate::time::{Duration, Instant};

/// Most bytes that are withheld: as many answers.
pub(super) const RESERVE: u32 = 4096;
/// Least time between the first two answers: below any timeout of the guest.
const FIRST_INTERVAL: Duration = Duration::from_millis(25);
/// Least time between two answers of many.
const LONGEST_INTERVAL: Duration = Duration::from_secs(2);
/// Least time between two probes that the guest asks for: its smallest timeout (Linux `TCP_RTO_MIN`).
const ASK_INTERVAL: Duration = Duration::from_millis(200);

/// What is withheld from the guest, and who waits for whom.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(in crate::offload) struct Stall {
    /// Acknowledged bytes of which the guest has not been told, on purpose.
    pub withheld: u32,
    /// The guest has repeated something since it was last answered.
    guest_asks: bool,
    /// The peer was heard since the guest was last answered.
    peer_heard: bool,
    /// Answers since the window closed.
    answers: u8,
    /// No answer is given before, and the peer is not asked before.
    answer_from: Instant,
    ask_from: Instant,
}

impl Stall {
    pub const NONE: Self = Self {
        withheld: 0,
        guest_asks: false,
        peer_heard: false,
        answers: 0,
        answer_from: Instant::ZERO,
        ask_from: Instant::ZERO,
    };
}

impl Stall {
    /// When an answer that is due may be given; `NEVER` if none is.
    #[inline]
    pub fn answer_at(&self) -> Instant {
        if self.guest_asks && self.peer_heard { self.answer_from } else { Instant::NEVER }
    }

    /// Least time from the latest answer to the next.
    fn interval(&self) -> Duration {
        let doublings = self.answers.saturating_sub(1).min(7);
        (FIRST_INTERVAL * (1 << doublings)).min(LONGEST_INTERVAL)
    }
}

impl<B: 'static> Sender<B> {
    /// The acknowledgement number for the guest: `snd_una` less what is withheld, or what was acknowledged early.
    #[inline]
    pub fn una_for_guest(&self) -> Seq {
        let disclosed = self.charged_from();
        self.early_una().map_or(disclosed, |early| early.max(disclosed))
    }

    /// Where what counts for the budget begins: at `snd_una`, less what is withheld.
    #[inline]
    pub fn charged_from(&self) -> Seq {
        self.snd_una() - self.withheld()
    }

    /// Acknowledged bytes that are withheld from the guest.
    #[inline]
    fn withheld(&self) -> u32 {
        if self.recovery.diverged { self.recovery.stall.withheld } else { 0 }
    }

    /// Returns `true` if the guest is not told of all that is acknowledged.
    #[inline]
    pub fn is_withholding(&self) -> bool {
        self.withheld() > 0
    }

    /// Decides what to withhold after an ACK of the peer; `before` was `snd_una` until then. `guest_is_done` says that
    /// the peer has acknowledged the guest's FIN. Returns `true` if the guest has to be told of something now: bytes are
    /// disclosed, or a repeat is answered.
    #[inline]
    pub fn on_peer_heard(&mut self, before: Seq, guest_is_done: bool, now: Instant) -> bool {
        let tells = if self.rwnd() >= self.window.mss || guest_is_done {
            self.disclose()
        } else {
            self.on_small_window(before, now)
        };
        self.settle_early();
        tells
    }

    fn on_small_window(&mut self, before: Seq, now: Instant) -> bool {
        let stalled =
            self.advertised_edge.after(self.rwnd_edge) && (self.held() > 0 || self.rwnd() == 0);
        if !stalled {
            return self.disclose();
        }
        // The guest makes progress with every ACK that makes any.
        let advanced = self.snd_una().since(before);
        let stall = &self.recovery.stall;
        let unheard = stall.withheld + advanced.saturating_sub(1);
        let withheld = RESERVE.min(unheard).min(self.most_withheld());
        if withheld == 0 {
            return false;
        }
        self.recovery.stall.withheld = withheld;
        self.recovery.diverged = true;
        self.recovery.stall.peer_heard = true;
        self.answer(now)
    }

    /// Withholds nothing any more. Returns `true` if something was.
    #[inline]
    pub fn disclose(&mut self) -> bool {
        let withheld = self.is_withholding();
        if withheld {
            self.recovery.stall = Stall::NONE;
            self.recovery.note_divergence();
        }
        withheld
    }

    /// The guest has repeated what begins at `seq` although it need not. Returns `true` if it is to be told of one byte
    /// more. If the peer has to be heard first and nothing is on its way that it will answer, it is asked.
    pub fn on_guest_repeat<S: Sink<B>>(&mut self, seq: Seq, env: &mut Env<'_, S>) -> bool {
        // A timeout repeats what comes first; what else is repeated asks for nothing.
        if !self.is_withholding() || seq.after(self.una_for_guest()) {
            return false;
        }
        self.recovery.stall.guest_asks = true;
        let answers = self.answer(env.now);
        if !answers && self.recovery.stall.ask_from <= env.now && self.store.records() == 0 {
            self.recovery.stall.ask_from = env.now + ASK_INTERVAL;
            self.ask_for_window(env);
        }
        answers
    }

    /// Lets a byte go if the guest waits for it and the peer was heard. Returns `true` if it does.
    pub fn answer(&mut self, now: Instant) -> bool {
        let answers = self.recovery.stall.answer_at() <= now;
        if answers {
            let stall = &mut self.recovery.stall;
            let (withheld, answers) = (stall.withheld - 1, stall.answers.saturating_add(1));
            *stall = Stall { withheld, answers, ..Stall::NONE };
            stall.answer_from = now + stall.interval();
            stall.ask_from = now + stall.interval().min(ASK_INTERVAL);
            self.recovery.note_divergence();
        }
        answers
    }
}
