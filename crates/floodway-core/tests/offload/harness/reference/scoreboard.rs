//! What was sent and what became of it, as the wire shows it.
//!
//! Every byte that was sent and not acknowledged belongs to one transmission, its latest. Counted as in flight is what is neither
//! delivered nor taken for lost by the most liberal rule: RACK without a reordering window (RFC 8985 section 6.2).

use floodway_core::time::{Duration, Instant};

use super::Ack;
use crate::harness::packet::Position;

/// The order of transmissions (RFC 8985 section 5.2).
pub type Order = (Instant, Position);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Unknown,
    Delivered,
    /// A router dropped it and said so.
    TooLarge,
}

#[derive(Clone, Copy, Debug)]
struct Transmission {
    start: Position,
    end: Position,
    order: Order,
    again: bool,
    fate: Fate,
}

impl Transmission {
    fn len(&self) -> i64 {
        self.end - self.start
    }
}

/// What an ACK says that was not known.
#[derive(Clone, Copy, Debug)]
pub struct News {
    pub una_before: Position,
    pub una: Position,
    /// End of what was sent.
    pub nxt: Position,
    /// Bytes newly acknowledged or SACKed.
    pub delivered: i64,
    /// What the receiver had twice.
    pub twice: Option<(Position, Position)>,
    /// The earliest transmission that has arrived, of those that were sent once.
    pub earliest: Option<Order>,
    pub rtt: Option<Duration>,
    pub duplicate: bool,
    /// It is no duplicate for senders that look at the window.
    pub moves_window: bool,
    pub ece: bool,
    pub stale: bool,
    /// It may repeat what stale ones reported.
    pub reports: bool,
    /// Bytes of the first segment that is missing.
    pub first: i64,
}

/// What is outstanding.
#[derive(Clone, Copy, Debug)]
pub struct Flight {
    pub bytes: i64,
    /// Bytes of the shortest segment.
    pub shortest: i64,
}

#[derive(Debug)]
pub struct Scoreboard {
    sack: bool,
    pub una: Position,
    pub nxt: Position,
    /// By place.
    sent: Vec<Transmission>,
    arrived: Option<Order>,
}

impl Scoreboard {
    pub fn new(sack: bool) -> Self {
        Self { sack, una: 1, nxt: 1, sent: Vec::new(), arrived: None }
    }

    /// Forgets what is on its way.
    pub fn forget(&mut self) {
        self.sent.clear();
        self.una = self.nxt;
        self.arrived = None;
    }

    /// Takes in an ACK. Returns `None` if it is old or acknowledges what was not sent.
    pub fn ack(&mut self, now: Instant, ack: &Ack<'_>) -> Option<News> {
        if ack.ack < self.una || ack.ack > self.nxt {
            return None;
        }
        let duplicate = ack.pure && ack.ack == self.una;
        let mut news = News {
            una_before: self.una,
            una: ack.ack,
            nxt: self.nxt,
            delivered: 0,
            twice: None,
            earliest: None,
            rtt: None,
            duplicate,
            moves_window: ack.moves_window,
            // One that is refused reduces nothing.
            ece: ack.ece && !ack.stale,
            stale: ack.stale,
            reports: duplicate || !ack.sacks.is_empty() || ack.ack > self.una,
            first: 0,
        };
        self.deliver(now, self.una, ack.ack, &mut news);
        for (n, &(left, right)) in ack.sacks.iter().enumerate() {
            let within = ack.sacks.get(1).is_some_and(|&(l, r)| l <= left && right <= r);
            if n == 0 && (right <= ack.ack || within) {
                news.twice = (left < right).then_some((left, right));
            } else if self.sack {
                self.deliver(now, left, right, &mut news);
            }
        }
        self.una = ack.ack;
        self.sent.retain(|sent| sent.end > ack.ack);
        news.first = self.first_missing();
        Some(news)
    }

    /// Bytes of the first segment that is missing, as a sender knows it that cuts what is too long (RFC 1191, RFC 8899): no more than the longest
    /// that it has sent since.
    fn first_missing(&self) -> i64 {
        let Some((first, others)) = self.sent.split_first() else { return 0 };
        let later = others.iter().filter(|sent| sent.order > first.order).map(Transmission::len);
        later.max().map_or(first.len(), |longest| longest.min(first.len()))
    }

    fn deliver(&mut self, now: Instant, start: Position, end: Position, news: &mut News) {
        self.split(start);
        self.split(end);
        for sent in &mut self.sent {
            if sent.start < start || sent.end > end || sent.fate == Fate::Delivered {
                continue;
            }
            sent.fate = Fate::Delivered;
            news.delivered += sent.len();
            self.arrived = self.arrived.max(Some(sent.order));
            if !sent.again {
                news.rtt = news.rtt.max(Some(now.since(sent.order.0)));
                let earliest = news.earliest.unwrap_or(sent.order);
                news.earliest = Some(earliest.min(sent.order));
            }
        }
    }

    /// Lets a transmission end at `at`.
    fn split(&mut self, at: Position) {
        let index = self.sent.partition_point(|sent| sent.end <= at);
        if let Some(sent) = self.sent.get_mut(index)
            && sent.start < at
        {
            let first = Transmission { end: at, ..*sent };
            sent.start = at;
            self.sent.insert(index, first);
        }
    }

    /// Segments of more than `largest` bytes do not arrive, and neither does what was sent along with them.
    pub fn drop_larger(&mut self, largest: i64) {
        if self.sent.iter().any(|sent| sent.len() > largest) {
            let unknown = self.sent.iter_mut().filter(|sent| sent.fate == Fate::Unknown);
            unknown.for_each(|sent| sent.fate = Fate::TooLarge);
        }
    }

    fn within(&self, start: Position, end: Position) -> impl Iterator<Item = &Transmission> {
        let first = self.sent.partition_point(|sent| sent.end <= start);
        self.sent[first..].iter().take_while(move |sent| sent.start < end)
    }

    /// Bytes of `start..end` that were sent before, other than those that a router dropped.
    pub fn repeats(&self, start: Position, end: Position) -> i64 {
        let sent = self.within(start, end).filter(|sent| sent.fate != Fate::TooLarge);
        sent.map(|sent| sent.end.min(end) - sent.start.max(start)).sum()
    }

    /// Something has arrived that was sent after a part of `start..end`.
    pub fn is_overtaken(&self, start: Position, end: Position) -> bool {
        let is = |sent: &Transmission| self.arrived.is_some_and(|arrived| sent.order < arrived);
        self.within(start, end).any(is)
    }

    /// Nothing is missing beyond `end`.
    pub fn is_tail(&self, end: Position) -> bool {
        self.within(end, self.nxt).all(|sent| sent.fate == Fate::Delivered)
    }

    /// Sends `start..end`, again or not.
    pub fn send(&mut self, now: Instant, start: Position, end: Position) {
        self.split(start);
        self.split(end);
        let again = start < self.nxt;
        self.sent.retain(|sent| sent.start < start || sent.end > end);
        let index = self.sent.partition_point(|sent| sent.start < start);
        let order = (now, end);
        self.sent.insert(index, Transmission { start, end, order, again, fate: Fate::Unknown });
        self.nxt = self.nxt.max(end);
    }

    /// The earliest transmission of what is not acknowledged; the latest order of all if there is none.
    pub fn oldest(&self) -> Option<Order> {
        self.sent.iter().map(|sent| sent.order).min().or(Some((Instant::NEVER, 0)))
    }

    /// What nobody has acknowledged or SACKed, without what was sent up to a timeout: at least what is in flight.
    pub fn flight(&self, lost_before: Option<Order>) -> Flight {
        let sent = self.sent.iter().filter(|sent| sent.fate == Fate::Unknown);
        let lens = sent.filter(|sent| Some(sent.order) > lost_before).map(Transmission::len);
        lens.fold(Flight { bytes: 0, shortest: i64::MAX }, |all, len| Flight {
            bytes: all.bytes + len,
            shortest: all.shortest.min(len),
        })
    }

    /// Bytes in flight, at most what a sender takes to be: without what was sent before something that has arrived.
    /// Without SACK nobody knows what has arrived beyond a gap, and this is [`flight`](Self::flight).
    pub fn in_flight(&self, lost_before: Option<Order>) -> i64 {
        let overtaken = self.arrived.filter(|_| self.sack);
        self.flight(lost_before.max(overtaken)).bytes
    }
}
