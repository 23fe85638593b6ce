//! An independent reference for I1: how much a standards-compliant sender may have in flight.
//!
//! # Theory of operation
//! **Goal.** Judge what the switch releases without asking the switch. The reference sees the wire next to the switch: the
//! segments that leave, the ACKs that arrive, and when. From these it keeps an upper bound of what a sender may have in
//! flight that follows RFC 5681, 6298, 6582, 6675, 6928, 6937, 8985 and 9438. A sender that stays below is not
//! necessarily right; one that exceeds it is wrong.
//!
//! **Accounts.** The wire does not show everything: a lone segment that is sent again may be a tail loss probe or a timeout.
//! So the reference keeps a set of [accounts](account::Account), each of them one explanation of the trace. An
//! event that can be explained in several ways splits an account; an account that would have to send less than was sent is
//! dropped. A violation is a trace without any explanation.
//!
//! **In flight** is what the most liberal reading of RFC 6675 and RACK leaves: without what was acknowledged or SACKed,
//! sent again since, sent before something that has arrived, or sent before a timeout ([`scoreboard`]); without SACK,
//! less one MSS for each duplicate ACK (RFC 6582).
//!
//! **What is bounded.**
//! - The first window: the configured number of segments (RFC 6928).
//! - Growth: in slow start by the bytes acknowledged, in congestion avoidance by one MSS per window, or along the
//!   curve of RFC 9438 ([`curve`]); never by an ACK with ECE; never beyond
//!   what the flight size of the last two round trips has validated (RFC 7661 section 4).
//! - Loss: what is sent again, other than by a probe, is a recovery; `ssthresh` is `beta` times the flight size (CUBIC: `cwnd`, as in Linux, where
//!   RFC 9438 section 4.6 has the flight size), and the sender goes there by proportional rate reduction.
//! - Timeout: one MSS, then slow start up to `ssthresh`.
//! - ECE: one reduction per window. Until what was sent after it is acknowledged the receiver may not have seen the CWR that ends
//!   the echo (RFC 3168 section 6.1.2). A mark is never spurious: it ends the hope for undoing.
//! - Idle time: the restart window, after any plausible retransmission timeout.
//!
//! **Slack**, each because a specification allows it:
//! - no limit on the bytes that one ACK may count for in slow start (RFC 3465 limits them to two MSS, but a receiver
//!   that coalesces acknowledges 64 KB at a time), though not more than was in flight;
//! - HyStart++ (RFC 9406) only slows growth down: the bound ignores it;
//! - two MSS in congestion avoidance: RFC 5681 rounds up, and may count part of a window that was acknowledged before;
//! - undo: when DSACKs cover all that was repeated (RFC 3708), or an ACK after a timeout is for a segment that was not
//!   repeated (RFC 5682), the window before the reduction may come back;
//! - a tail loss probe is one segment beyond the window, until it is acknowledged (RFC 8985 section 7.3), however much more
//!   than the window is in flight; outside of a recovery it is none of what the recovery before repeated, whose DSACKs undo that. A window that
//!   has nothing in flight may always hold one segment;
//! - segments that a router reported as too large are repeated without a reduction (RFC 1191);
//! - the round trips of the curve are the longest seen, and its clock never stops while the application pauses;
//! - an ACK that came late, by its clock, may be refused (RFC 7323 section 5.3): what it says counts at once, and what it reports as
//!   delivered may count with the next ACK that repeats it. (One with an old sequence number is refused, by RFC 9293 section 3.10.7.4, and
//!   is not shown to the reference.)
//! - without SACK a duplicate ACK stands for a segment of the sender's MSS, which is at most what the SYNs agreed on, and may be the shortest in
//!   flight: what duplicates before a recovery took off what the next ACK delivers (RFC 6937 section 2) is as little as that. One that moves the window need
//!   not be counted.
//!
//! Vegas is held to Reno's bound, which it must not exceed. DCTCP is, too, but its reductions by marks are not
//! checked: they depend on an average that the wire does not show. They may set `ssthresh` to nearly the whole window (RFC 8257
//! section 3.3).

mod account;
mod curve;
mod scoreboard;
mod traces;

use std::collections::BTreeMap;

use floodway_core::congestion::Algorithm;
use floodway_core::time::{Duration, Instant};

use self::account::Account;
use self::scoreboard::{News, Scoreboard};
use super::packet::Position;

/// Accounts of one phase that are kept.
const MOST_ACCOUNTS: usize = 32;

/// What the connection agreed on, and what its operator chose.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Terms {
    pub algorithm: Algorithm,
    /// Payload of a full-sized segment, in bytes.
    pub mss: i64,
    /// First window, in segments.
    pub initial_window: i64,
    pub sack: bool,
    pub ecn: bool,
    /// Round trip of the handshake.
    pub handshake: Duration,
}

impl Terms {
    /// What a loss leaves of the window.
    fn beta(&self) -> f64 {
        if self.algorithm == Algorithm::Cubic { 0.7 } else { 0.5 }
    }

    fn first_window(&self) -> f64 {
        (self.initial_window * self.mss) as f64
    }
}

/// An ACK of the receiver.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ack<'a> {
    pub ack: Position,
    pub sacks: &'a [(Position, Position)],
    /// It carries no data: a duplicate, if it acknowledges nothing.
    pub pure: bool,
    /// Its window has another right edge than the last one's: no duplicate by RFC 5681 section 2.
    pub moves_window: bool,
    pub ece: bool,
    /// The receiver's clock was later in a segment that came before: the sender may have to refuse it.
    pub stale: bool,
}

/// Why the latest segments were sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    /// An ACK arrived.
    Ack,
    /// A timer expired, or the application wrote.
    Other,
}

/// What was sent in one go.
#[derive(Clone, Copy, Debug)]
struct Burst {
    cause: Cause,
    /// Bytes sent, and how many of them again (without those that a router dropped).
    bytes: i64,
    again: i64,
    /// First byte that was sent again, and the end of the last.
    first_again: Position,
    last_again: Position,
    /// No byte that is still missing lies beyond what was sent again.
    is_tail: bool,
    /// Something sent later than what was sent again has arrived.
    overtaken: bool,
    /// Nothing was in flight and nothing was sent for longer than any timeout.
    after_idle: bool,
    /// First unacknowledged byte, and the end of what had been sent, before the burst.
    una: Position,
    nxt: Position,
    /// Bytes outstanding before it and before the ACK that caused it.
    flight: i64,
}

/// The reference of one connection.
#[derive(Debug)]
pub struct Reference {
    terms: Terms,
    board: Scoreboard,
    accounts: Vec<Account>,
    /// What is sent in the current call.
    burst: Option<Burst>,
    /// The ACK of the current call.
    news: Option<News>,
    last_sent: Option<Instant>,
    longest_rtt: Duration,
    is_paused: bool,
}

impl Reference {
    pub fn new(terms: Terms) -> Self {
        Self {
            board: Scoreboard::new(terms.sack),
            accounts: vec![Account::new(&terms)],
            burst: None,
            news: None,
            last_sent: None,
            longest_rtt: terms.handshake,
            is_paused: false,
            terms,
        }
    }

    /// Somebody else sends: the guest itself, while its flow is offline. Nothing is judged until the next
    /// [`resume`](Self::resume).
    pub fn pause(&mut self) {
        self.is_paused = true;
    }

    /// The sender under test sends again.
    pub fn resume(&mut self) {
        if std::mem::take(&mut self.is_paused) {
            self.board.forget();
            let una = self.board.una;
            self.accounts.iter_mut().for_each(|account| account.take_over(una));
        }
    }

    /// An ACK arrives.
    pub fn ack(&mut self, now: Instant, ack: &Ack<'_>) {
        let flights: Vec<_> =
            self.accounts.iter().map(|account| self.board.flight(account.lost_before)).collect();
        let Some(news) = self.board.ack(now, ack) else { return };
        if let Some(rtt) = news.rtt {
            self.longest_rtt = self.longest_rtt.max(rtt);
        }
        if !self.is_paused {
            let mut undone = Vec::new();
            for (account, flight) in self.accounts.iter_mut().zip(flights) {
                undone.extend(account.on_ack(now, &news, flight, self.longest_rtt, &self.terms));
            }
            self.accounts.extend(undone);
            self.prune();
        }
        self.news = Some(news);
    }

    /// A router reports that it drops segments of more than `largest` bytes.
    pub fn too_large(&mut self, largest: i64) {
        self.board.drop_larger(largest);
    }

    /// A segment leaves that covers `start..end`.
    pub fn sent(&mut self, now: Instant, start: Position, end: Position) {
        let burst = match self.burst {
            Some(burst) => burst,
            None => self.begin_burst(now),
        };
        let again = self.board.repeats(start, end);
        let first = if again > 0 && burst.again == 0 { start } else { burst.first_again };
        let overtaken = again > 0 && self.board.is_overtaken(start, end);
        let is_tail = again == 0 || self.board.is_tail(end);
        self.board.send(now, start, end);
        self.last_sent = Some(now);
        self.burst = Some(Burst {
            bytes: burst.bytes + end - start,
            again: burst.again + again,
            first_again: first,
            last_again: if again > 0 { end } else { burst.last_again },
            is_tail: burst.is_tail && is_tail,
            overtaken: burst.overtaken || overtaken,
            ..burst
        });
    }

    fn begin_burst(&self, now: Instant) -> Burst {
        let (una, nxt) = (self.board.una, self.board.nxt);
        let idle = self.last_sent.map_or(Duration::ZERO, |last| now.since(last));
        // RFC 6298: the variation is at most the longest round trip.
        let timeout = (self.longest_rtt * 5).max(Duration::from_secs(1));
        let (cause, before) = match &self.news {
            Some(news) => (Cause::Ack, news.una_before),
            None => (Cause::Other, una),
        };
        Burst {
            cause,
            bytes: 0,
            again: 0,
            first_again: nxt,
            last_again: nxt,
            is_tail: true,
            overtaken: false,
            after_idle: una == nxt && idle > timeout,
            una,
            nxt,
            flight: nxt - before,
        }
    }

    /// A call of the sender is over.
    ///
    /// # Errors
    /// What was sent has no explanation: says what the last account allowed.
    pub fn settle(&mut self, now: Instant) -> Result<(), String> {
        self.news = None;
        let Some(burst) = self.burst.take() else { return Ok(()) };
        if self.is_paused {
            return Ok(());
        }
        let mut reasons = Vec::new();
        let mut kept = Vec::new();
        for account in &self.accounts {
            for explained in account.explain(now, &burst, &self.terms) {
                // A probe is sent whatever the window is.
                match explained.check(&self.board, &self.terms) {
                    Err(reason) if !explained.has_just_probed(&burst, account) => {
                        reasons.push(reason);
                    }
                    _ => kept.push(explained),
                }
            }
        }
        if kept.is_empty() {
            return Err(format!("{reasons:?} {burst:?}"));
        }
        self.accounts = kept;
        self.prune();
        Ok(())
    }

    fn prune(&mut self) {
        // Those that allow most come first; one in recovery has the smaller window now, but need not reduce it again. Of two recoveries, one
        // began earlier, and has more to send.
        self.accounts.iter_mut().for_each(|account| account.forget(&self.board));
        self.accounts.sort_by(Account::compare);
        let mut kept: Vec<Account> = Vec::new();
        for account in self.accounts.drain(..) {
            if !kept.iter().any(|better| better.covers(&account)) {
                kept.push(account);
            }
        }
        let mut of_phase = BTreeMap::new();
        kept.retain(|account| {
            let count = of_phase.entry(account.phase_key()).or_insert(0);
            *count += 1;
            *count < MOST_ACCOUNTS
        });
        self.accounts = kept;
    }
}
