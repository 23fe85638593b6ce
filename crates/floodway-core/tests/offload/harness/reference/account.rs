//! One explanation of a trace: the state of a compliant sender that has sent exactly this, with the largest
//! window that it may have.

use std::cmp::Ordering;

use floodway_core::congestion::Algorithm;
use floodway_core::time::{Duration, Instant};

use super::curve::Curve;
use super::scoreboard::{Flight, News, Order, Scoreboard};
use super::{Burst, Cause, Terms};
use crate::harness::packet::Position;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Phase {
    Open,
    /// Fast recovery with proportional rate reduction (RFC 6937).
    Fast {
        recover: Position,
        flight: f64,
        delivered: f64,
        sent: f64,
    },
    /// After a timeout.
    Loss {
        recover: Position,
    },
}

/// The window before the last reduction, and what must be known to restore it.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Undo {
    cwnd: f64,
    ssthresh: f64,
    curve: Curve,
    /// Bytes sent again since, and bytes that the receiver has had twice since.
    again: i64,
    twice: i64,
    /// The latest probe after the recovery, which is not among them.
    probe: Option<(Position, Position)>,
}

impl Undo {
    /// It restores as much as another one, as early.
    fn covers(&self, other: &Self) -> bool {
        self.cwnd >= other.cwnd
            && self.ssthresh >= other.ssthresh
            && self.again - self.twice <= other.again - other.twice
            && self.probe == other.probe
    }
}

/// The circumstances of an ACK.
struct Context {
    now: Instant,
    /// Bytes outstanding before it.
    flight: f64,
    /// The longest round trip.
    rtt: Duration,
    /// It acknowledges what was sent at the start of the last round trip.
    is_new_round: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Account {
    /// In fast recovery this is `ssthresh`.
    cwnd: f64,
    ssthresh: f64,
    phase: Phase,
    curve: Curve,
    undo: Option<Undo>,
    /// Everything sent up to here is lost: a timeout.
    pub lost_before: Option<Order>,
    /// The last reduction covers everything before; by ECE or by a loss.
    reduced_until: Position,
    by_mark: bool,
    /// The first unacknowledged byte at the last timeout, and at the last probe.
    timed_out: Option<Position>,
    probed: Option<Position>,
    /// End of the current round trip.
    round: Position,
    /// The largest flight size in this round trip, and in the two before.
    used: [f64; 3],
    /// Bytes that the latest ACK reported.
    delivered: i64,
    /// Bytes that ACKs reported that need not have been believed, since the last one that may have repeated that.
    refused: i64,
    /// Without SACK: bytes that duplicate ACKs say have arrived, at most and at least.
    duplicates: i64,
    counted: i64,
    /// Probes that are not acknowledged: their number, and the end of what had been sent at the latest.
    probes: (i64, Position),
}

impl Account {
    pub fn new(terms: &Terms) -> Self {
        Self {
            cwnd: terms.first_window(),
            ssthresh: f64::INFINITY,
            phase: Phase::Open,
            curve: Curve::default(),
            undo: None,
            lost_before: None,
            reduced_until: 0,
            by_mark: false,
            timed_out: None,
            probed: None,
            round: 0,
            used: [0.0; 3],
            delivered: 0,
            refused: 0,
            duplicates: 0,
            counted: 0,
            probes: (0, 0),
        }
    }

    /// What it may still send in recovery.
    fn due(&self) -> f64 {
        match self.phase {
            Phase::Fast { flight, delivered, sent, .. } => {
                delivered * self.ssthresh / flight.max(1.0) - sent
            }
            Phase::Open | Phase::Loss { .. } => 0.0,
        }
    }

    /// By what they allow, most first.
    pub fn compare(&self, other: &Self) -> Ordering {
        let key = |account: &Self| (account.cwnd, account.ssthresh, account.due());
        let ((a, b, c), (x, y, z)) = (key(other), key(self));
        a.total_cmp(&x).then(b.total_cmp(&y)).then(c.total_cmp(&z))
    }

    /// It allows all that another one does, now and later. (But for the curves of CUBIC, which are as their windows in all but rare cases.)
    pub fn covers(&self, other: &Self) -> bool {
        let undo = match (&self.undo, &other.undo) {
            (Some(a), Some(b)) => a.covers(b),
            (_, None) => true,
            (None, Some(_)) => false,
        };
        let same = |account: &Self| {
            (account.phase_key(), account.by_mark, account.reduced_until, account.timed_out)
        };
        undo && same(self) == same(other)
            && (self.probed, self.round) == (other.probed, other.round)
            && self.cwnd >= other.cwnd
            && self.ssthresh >= other.ssthresh
            && self.due() >= other.due()
            && self.lost_before >= other.lost_before
            && self.probes.0 >= other.probes.0
            && self.probes.1 >= other.probes.1
            && self.duplicates >= other.duplicates
            && self.counted <= other.counted
            && self.refused >= other.refused
            && self.used.iter().zip(&other.used).all(|(a, b)| a >= b)
    }

    /// Forgets what concerns only what has been acknowledged.
    pub fn forget(&mut self, board: &Scoreboard) {
        let una = board.una;
        if !matches!(self.phase, Phase::Loss { .. }) && board.oldest() > self.lost_before {
            self.lost_before = None;
        }
        if self.reduced_until < una {
            (self.reduced_until, self.by_mark) = (0, false);
        }
        self.timed_out = self.timed_out.filter(|&at| at >= una);
        self.probed = self.probed.filter(|&at| at >= una);
        if self.probes.0 == 0 {
            self.probes.1 = 0;
        }
    }

    /// Which phase it is in: its kind, and where that ends.
    pub fn phase_key(&self) -> (u8, Position) {
        match self.phase {
            Phase::Open => (0, 0),
            Phase::Fast { recover, .. } => (1, recover),
            Phase::Loss { recover } => (2, recover),
        }
    }

    /// The largest window, with what rounding may add in congestion avoidance.
    fn largest(&self, terms: &Terms) -> f64 {
        let slack = if self.cwnd >= self.ssthresh { 2.0 * terms.mss as f64 } else { 0.0 };
        self.cwnd + slack
    }

    /// All before `una` was sent by somebody else, and a mark of it is nothing to this sender.
    pub fn take_over(&mut self, una: Position) {
        self.phase = Phase::Open;
        (self.reduced_until, self.by_mark) = (una, false);
        (self.timed_out, self.probed, self.probes) = (None, None, (0, 0));
    }

    /// Takes in an ACK, before which `flight` was outstanding. Returns the account in which the last reduction is
    /// undone, if this is allowed.
    pub fn on_ack(
        &mut self,
        now: Instant,
        news: &News,
        flight: Flight,
        rtt: Duration,
        terms: &Terms,
    ) -> Option<Self> {
        if news.una >= self.probes.1 {
            self.probes.0 = 0;
        }
        let is_new_round = news.una >= self.round;
        if is_new_round {
            (self.round, self.used) = (news.nxt, [0.0, self.used[0], self.used[1]]);
        }
        self.used[0] = self.used[0].max(flight.bytes as f64);
        let arrived = self.take_delivered(news, flight, terms);
        self.delivered = self.refused + arrived;
        self.refused = match (news.stale, news.reports) {
            (true, _) => self.delivered,
            (false, true) => 0,
            (false, false) => self.refused,
        };
        let context = Context { now, flight: flight.bytes as f64, rtt, is_new_round };
        let mut undone = self.undone(news);
        if let Some(undone) = &mut undone {
            undone.resize(news, &context, terms);
        }
        self.leave(news, terms);
        self.resize(news, &context, terms);
        if let Phase::Fast { delivered, .. } = &mut self.phase {
            *delivered += arrived as f64;
            self.refused = 0;
        }
        undone
    }

    /// Bytes that an ACK reports; without SACK by the rules of RFC 6937 section 2.
    fn take_delivered(&mut self, news: &News, flight: Flight, terms: &Terms) -> i64 {
        if terms.sack {
            return news.delivered;
        }
        if news.una > news.una_before {
            self.duplicates -= self.duplicates.min(news.delivered);
            let known = self.counted.min(news.delivered);
            self.counted -= known;
            return news.delivered - known;
        }
        if !news.duplicate {
            return 0;
        }
        // All but the one that is missing.
        let possible = (flight.bytes - news.first - self.duplicates).max(0);
        let arrived = terms.mss.min(possible);
        self.duplicates += arrived;
        // What has counted in a recovery does not count again.
        self.counted += match self.phase {
            Phase::Fast { .. } => arrived,
            _ if news.moves_window => 0,
            _ => arrived.min(flight.shortest),
        };
        arrived
    }

    /// Growth, or a reduction by a mark.
    fn resize(&mut self, news: &News, context: &Context, terms: &Terms) {
        if !(terms.ecn && news.ece) {
            return self.grow(news, context, terms);
        }
        self.undo = None;
        if terms.algorithm == Algorithm::Dctcp {
            self.ssthresh = self.ssthresh.max(self.cwnd);
        } else if news.una > self.reduced_until {
            self.reduce_by_mark(news, context.flight, terms);
        }
    }

    fn undone(&mut self, news: &News) -> Option<Self> {
        let undo = self.undo.as_mut()?;
        if let Some((left, right)) = news.twice {
            let is_probe = undo.probe.is_some_and(|(start, end)| start < right && left < end);
            undo.twice += if is_probe { 0 } else { right - left };
        }
        let needless = undo.again > 0 && undo.twice >= undo.again;
        let in_time = matches!(self.phase, Phase::Loss { .. })
            && news.earliest.is_some_and(|order| Some(order) <= self.lost_before);
        (needless || in_time).then_some(Self {
            // What has grown since stays (Linux `tcp_undo_cwnd_reduction`).
            cwnd: undo.cwnd.max(self.cwnd),
            ssthresh: undo.ssthresh.max(self.ssthresh),
            curve: undo.curve,
            undo: None,
            phase: Phase::Open,
            // What the timeout took for lost is on its way.
            lost_before: None,
            reduced_until: 0,
            ..*self
        })
    }

    /// Ends a recovery whose losses have arrived.
    fn leave(&mut self, news: &News, terms: &Terms) {
        let recover = match self.phase {
            Phase::Open => return,
            Phase::Fast { recover, .. } | Phase::Loss { recover } => recover,
        };
        // RFC 5681 section 3.2 step 6: Reno without SACK leaves with the first new ACK.
        let is_fast = matches!(self.phase, Phase::Fast { .. });
        let any = is_fast && !terms.sack && terms.algorithm == Algorithm::Reno;
        if news.una >= recover || (any && news.una > news.una_before) {
            (self.phase, self.duplicates, self.counted) = (Phase::Open, 0, 0);
        }
    }

    fn reduce_by_mark(&mut self, news: &News, flight: f64, terms: &Terms) {
        let mss = terms.mss as f64;
        let largest = self.largest(terms);
        self.curve.reduce(flight, largest);
        self.ssthresh = (largest * terms.beta()).max(2.0 * mss);
        self.cwnd = (largest * terms.beta()).max(mss);
        (self.reduced_until, self.by_mark, self.undo) = (news.nxt, true, None);
    }

    fn grow(&mut self, news: &News, context: &Context, terms: &Terms) {
        if matches!(self.phase, Phase::Fast { .. }) {
            return;
        }
        let &Context { now, flight, rtt, is_new_round } = context;
        let mss = terms.mss as f64;
        let acked = ((news.una - news.una_before) as f64).min(flight.max(mss));
        // RFC 7661 section 4.3: a window that is not used does not grow. In slow start it may have been half used.
        let used = self.used.into_iter().fold(0.0, f64::max);
        let validated = (2.0 * used).max(used + 2.0 * mss);
        let step = acked.min((self.ssthresh - self.cwnd).max(0.0));
        self.cwnd = self.cwnd.max((self.cwnd + step).min(validated + step));
        let rest = acked - step;
        if rest <= 0.0 || self.cwnd < self.ssthresh {
            return;
        }
        let larger = match terms.algorithm {
            Algorithm::Cubic => self.curve.grow(now, self.cwnd, rest, rtt, mss),
            // A segment per round trip, whatever part of the window was used.
            Algorithm::Vegas if is_new_round => self.cwnd + mss,
            Algorithm::Vegas => self.cwnd,
            _ => self.cwnd + mss * rest / self.cwnd,
        };
        let gain = larger - self.cwnd;
        self.cwnd = self.cwnd.max(larger.min(used + 2.0 * mss + gain));
    }

    /// The ways in which this sender may have come to send `burst`.
    pub fn explain(&self, now: Instant, burst: &Burst, terms: &Terms) -> Vec<Self> {
        let mut account = *self;
        if burst.after_idle {
            account.restart(terms);
        }
        if burst.again == 0 {
            account.count(burst);
            return vec![account];
        }
        let may_probe = terms.sack && burst.is_tail && burst.again <= terms.mss;
        let probe = burst.cause == Cause::Other && may_probe && self.probed != Some(burst.una);
        let timeout = burst.cause == Cause::Other && burst.first_again == burst.una;
        let recovers = burst.cause == Cause::Ack || burst.overtaken || self.phase != Phase::Open;
        let mut all = Vec::new();
        if recovers {
            all.push(account.recovering(burst, terms));
        }
        if probe {
            all.push(account.probing(burst));
        }
        if timeout {
            all.push(account.timing_out(now, burst, terms));
        }
        all
    }

    /// RFC 5681 section 4.1; `ssthresh` as RFC 7661 section 4.4.2 has it.
    fn restart(&mut self, terms: &Terms) {
        self.ssthresh = self.ssthresh.max(self.cwnd * 0.75);
        self.cwnd = self.cwnd.min(terms.first_window());
        self.curve.restart();
        self.undo = None;
    }

    fn count(&mut self, burst: &Burst) {
        if let Phase::Fast { sent, .. } = &mut self.phase {
            *sent += burst.bytes as f64;
        }
        if let Some(undo) = &mut self.undo {
            undo.again += burst.again;
        }
    }

    /// Fast recovery goes on, or begins.
    fn recovering(&self, burst: &Burst, terms: &Terms) -> Self {
        let mut account = *self;
        if account.phase == Phase::Open {
            let counted = account.by_mark
                && burst.una < account.reduced_until
                && terms.algorithm != Algorithm::Dctcp;
            account.by_mark = false;
            if counted {
                account.reduced_until = burst.nxt;
            } else {
                account.reduce(burst, terms);
            }
            account.cwnd = account.ssthresh;
            account.phase = Phase::Fast {
                recover: burst.nxt,
                // `RecoverFS`: without what the ACK that tells of the loss has freed.
                flight: (burst.nxt - burst.una) as f64,
                delivered: if burst.cause == Cause::Ack { self.delivered as f64 } else { 0.0 },
                sent: 0.0,
            };
        }
        account.count(burst);
        account
    }

    /// RFC 5681 equation 4, with RFC 9438's factor for CUBIC.
    fn reduce(&mut self, burst: &Burst, terms: &Terms) {
        let Self { cwnd, ssthresh, curve, .. } = *self;
        self.undo = Some(Undo { cwnd, ssthresh, curve, again: 0, twice: 0, probe: None });
        let flight = burst.flight as f64;
        let largest = self.largest(terms);
        // A deviation that is allowed here: RFC 9438 section 4.6 has the flight size, Linux and the offload take `cwnd`.
        let is_cubic = terms.algorithm == Algorithm::Cubic;
        let used = if is_cubic { largest } else { flight.min(largest) };
        self.curve.reduce(flight.min(largest), largest);
        self.ssthresh = (used * terms.beta()).max(2.0 * terms.mss as f64);
        (self.reduced_until, self.by_mark) = (burst.nxt, false);
    }

    /// A tail loss probe (RFC 8985 section 7.3).
    fn probing(&self, burst: &Burst) -> Self {
        let mut account = *self;
        if let Some(undo) = &mut account.undo {
            if account.phase == Phase::Open {
                undo.probe = Some((burst.first_again, burst.last_again));
            } else {
                undo.again += burst.again;
            }
        }
        account.probed = Some(burst.una);
        account.probes = (account.probes.0 + 1, burst.nxt);
        account
    }

    /// A probe explains `burst`, before which the account was `before`.
    pub fn has_just_probed(&self, burst: &Burst, before: &Self) -> bool {
        burst.bytes == burst.again && before.probed != self.probed && self.probed == Some(burst.una)
    }

    /// RFC 5681 section 3.1 and RFC 6298 section 5.
    fn timing_out(&self, now: Instant, burst: &Burst, terms: &Terms) -> Self {
        let mut account = *self;
        if account.timed_out != Some(burst.una) {
            if matches!(account.phase, Phase::Fast { .. }) {
                // Proportional rate reduction may not have come down to `ssthresh`.
                account.cwnd = account.cwnd.max(burst.flight as f64);
            }
            account.reduce(burst, terms);
        }
        account.timed_out = Some(burst.una);
        account.cwnd = terms.mss as f64;
        (account.duplicates, account.counted) = (0, 0);
        account.phase = Phase::Loss { recover: burst.nxt };
        // What the burst itself sent is later.
        account.lost_before = Some((now, -1));
        account.count(burst);
        account
    }

    /// Compares what is in flight with what it allows.
    ///
    /// # Errors
    /// It allows less.
    pub fn check(&self, board: &Scoreboard, terms: &Terms) -> Result<(), String> {
        let mss = terms.mss as f64;
        let pipe = (board.in_flight(self.lost_before) - self.duplicates) as f64;
        let probes = self.probes.0 as f64 * mss;
        let allowed = self.largest(terms).max(mss) + probes;
        let proportional = match self.phase {
            Phase::Fast { flight, delivered, sent, .. } => {
                sent <= (delivered * self.ssthresh / flight.max(1.0)).ceil().max(mss)
            }
            Phase::Open | Phase::Loss { .. } => false,
        };
        if pipe <= allowed || proportional {
            return Ok(());
        }
        Err(format!("{pipe} bytes in flight, at most {allowed:.0}: {self:?}"))
    }
}
