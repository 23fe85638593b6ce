//! Classes and VMs above the disciplines.
//!
//! # Theory of operation
//! **Class.** Two classes; the high one is served as long as it has anything, up to `high_percent` of the bytes while the low one has packets,
//! too. The [meter](crate::egress::meter) gives each pair of VMs, and each VM, a small rate in the high class, so it rarely comes to that; but many VMs that invent
//! destinations must not starve everybody's bulk. The low class is *owed* its percent of what the high one sends meanwhile; when that is
//! more than [`HIGH_BURST`], the low one is served until it is not, and what it sends is taken off. So short bursts of small flows
//! never wait for it.
//!
//! **VM.** Within a class each source has a discipline of its own, and sources with packets take turns: a source
//! sends while its deficit is positive, every packet is taken off, and a spent deficit is filled up by `quantum` at the end of
//! the round (the deficit round robin of RFC 8290, one level up). So sources share the link by bytes, whatever
//! they send and however many flows they have; a queue that one source fills costs no other a packet.
//!
//! What a source sends in the high class while it has packets in the low one is taken off its turns there, up to `MAX_DEBT`: being high makes a
//! source's packets early, not its share of the link larger.
//!
//! A source that runs empty while it is in debt stays in the round until the debt is paid. Otherwise one that sends
//! a GSO packet each time its queue is empty would get 64 KB per round where others get a quantum.
//!
//! A source can be *paused* in a class: somebody holds its first packet and cannot pass it on. It keeps its queue and its debt and
//! takes no turns until it is resumed; all others go on.
//!
//! A discipline is made when its source first has a packet of its class, and let go of when it was not used between two calls
//! of [`Scheduler::trim`]: a thousand flow queues are 100 KB. A source is a small integer (a port).
//!
//! **Invariants**: no low packet leaves while a high one waits that is not of a paused source, unless more than [`HIGH_BURST`] is owed; while the low class
//! has packets, the high one sends at most `p / (100 - p)` times as much, and [`HIGH_BURST`] of debt and a packet more, with `p` its percent; two sources of a class that both have packets all the time
//! differ by less than a quantum and two of the largest packets in what they have sent.

use super::{Backlog, Cause, Config, Departure, Discipline, Dropped, Packet};
use crate::time::Instant;
use std::collections::VecDeque;

/// Bytes that the low class may be behind its share. At 75 % the high one can have sent four times as many.
pub const HIGH_BURST: u32 = 65_536;

/// Bytes of the high class that a source's turns in the low one are charged with at most.
const MAX_DEBT: i64 = 1 << 18;

/// Precedence of a packet. Small flows are high.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// Served first.
    High,
    /// Served when nothing high is there.
    Low,
}

impl Class {
    /// Both, the first served first.
    pub const ALL: [Self; 2] = [Self::High, Self::Low];

    /// The name in status.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::High => "high",
            Self::Low => "low",
        }
    }
}

/// Who may queue how much, and who is next. See the [module](self).
pub struct Scheduler<H> {
    config: Config,
    quantum: i64,
    high: Sources<H>,
    low: Sources<H>,
    /// Hundredths of bytes that the low class is behind its share; never negative.
    owed: u64,
    counters: Counters,
}

/// What a scheduler has done since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets handed in.
    pub enqueued: u64,
    /// Packets handed out.
    pub dequeued: u64,
    /// Packets handed out with the request to set CE.
    pub marked: u64,
    /// Packets dropped because a queue was at its limit.
    pub dropped_full: u64,
    /// Packets dropped to control delay.
    pub dropped_aqm: u64,
}

/// A packet that leaves, and where it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Served<H> {
    /// The packet.
    pub departure: Departure<H>,
    /// Its class.
    pub class: Class,
    /// Its source.
    pub source: u16,
}

/// One source's queue in one class.
struct Source<H> {
    discipline: Box<dyn Discipline<H> + Send>,
    deficit: i64,
    place: Place,
    /// Had a packet since the last trim.
    used: bool,
}

/// Where a source is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// It has neither packets nor debts.
    Idle,
    /// It takes turns.
    Round,
    /// It takes none until it is resumed.
    Paused,
}

/// The sources of one class.
struct Sources<H> {
    /// By number; `None` for one that never had a packet.
    all: Vec<Option<Source<H>>>,
    /// Those with packets or debts; the first one's turn it is.
    round: VecDeque<u16>,
    backlog: Backlog,
}

impl<H: Send + 'static> Scheduler<H> {
    /// An empty scheduler whose sources get disciplines as `config` says.
    #[must_use]
    pub fn new(config: Config) -> Self {
        Self {
            config,
            quantum: i64::from(config.fq.quantum.max(1)),
            high: Sources::new(),
            low: Sources::new(),
            owed: 0,
            counters: Counters::default(),
        }
    }

    /// Takes a packet of `source` in `class`. It, or others of this source and class in its place, may come back
    /// through `dropped`.
    pub fn enqueue(
        &mut self,
        class: Class,
        source: u16,
        packet: Packet<H>,
        now: Instant,
        dropped: &mut Dropped<'_, H>,
    ) {
        let Self { config, quantum, high, low, counters, .. } = self;
        let sources = if class == Class::High { high } else { low };
        counters.enqueued += 1;
        let mut dropped = |packet, cause| {
            counters.count(cause);
            dropped(packet, cause);
        };
        sources.enqueue(config, *quantum, source, packet, now, &mut dropped);
    }

    /// Gives the packet that leaves next; `None` when nothing is left.
    pub fn dequeue(&mut self, now: Instant, dropped: &mut Dropped<'_, H>) -> Option<Served<H>> {
        let order = if self.owes_burst() { [Class::Low, Class::High] } else { Class::ALL };
        let (class, source, departure) = order.into_iter().find_map(|class| {
            let (source, departure) = self.dequeue_from(class, now, dropped)?;
            Some((class, source, departure))
        })?;
        self.note_share(class, departure.packet.len);
        if class == Class::High {
            self.low.charge(source, departure.packet.len);
        }
        self.counters.dequeued += 1;
        self.counters.marked += u64::from(departure.mark);
        Some(Served { departure, class, source })
    }

    fn dequeue_from(
        &mut self,
        class: Class,
        now: Instant,
        dropped: &mut Dropped<'_, H>,
    ) -> Option<(u16, Departure<H>)> {
        let Self { quantum, high, low, counters, .. } = self;
        let sources = if class == Class::High { high } else { low };
        let mut dropped = |packet, cause| {
            counters.count(cause);
            dropped(packet, cause);
        };
        sources.dequeue(*quantum, now, &mut dropped)
    }

    /// Returns `true` if the low class is owed so much that it comes first.
    #[inline]
    fn owes_burst(&self) -> bool {
        self.owed > u64::from(HIGH_BURST) * 100
    }

    /// Notes that `len` bytes of a class leave.
    #[inline]
    fn note_share(&mut self, class: Class, len: u32) {
        let percent = u64::from(self.config.high_percent.clamp(1, 100));
        let len = u64::from(len);
        self.owed = match class {
            Class::High if self.low.backlog.packets == 0 => 0,
            // It was the low class's turn, but all that it has is paused.
            Class::High if self.owes_burst() => self.owed,
            Class::High => self.owed + len * (100 - percent),
            Class::Low => self.owed.saturating_sub(len * percent),
        };
    }

    /// Gives no packet of `source` in `class` until [`resume`](Self::resume).
    pub fn pause(&mut self, class: Class, source: u16) {
        let config = self.config;
        self.sources_mut(class).pause(&config, source);
    }

    /// Lets a paused source take turns again.
    pub fn resume(&mut self, class: Class, source: u16) {
        self.sources_mut(class).resume(source);
    }

    /// Returns `true` if a packet waits whose source is not paused.
    #[must_use]
    pub fn has_ready(&self) -> bool {
        self.high.has_ready() || self.low.has_ready()
    }

    fn sources_mut(&mut self, class: Class) -> &mut Sources<H> {
        match class {
            Class::High => &mut self.high,
            Class::Low => &mut self.low,
        }
    }

    /// Lets go of disciplines that nothing came to since this was last called, and that are empty. To be called once a
    /// second or so: what a discipline knows of its queue's recent past goes with it.
    pub fn trim(&mut self) {
        self.high.trim();
        self.low.trim();
    }

    /// What waits in a class.
    #[must_use]
    pub const fn backlog(&self, class: Class) -> Backlog {
        match class {
            Class::High => self.high.backlog,
            Class::Low => self.low.backlog,
        }
    }

    /// Nothing waits.
    #[inline]
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.high.backlog.packets == 0 && self.low.backlog.packets == 0
    }

    /// What was done so far.
    #[must_use]
    pub const fn counters(&self) -> &Counters {
        &self.counters
    }
}

impl Counters {
    fn count(&mut self, cause: Cause) {
        match cause {
            Cause::Full => self.dropped_full += 1,
            Cause::Aqm => self.dropped_aqm += 1,
        }
    }
}

impl<H: Send + 'static> Sources<H> {
    fn new() -> Self {
        Self { all: Vec::new(), round: VecDeque::new(), backlog: Backlog::default() }
    }

    fn enqueue(
        &mut self,
        config: &Config,
        quantum: i64,
        number: u16,
        packet: Packet<H>,
        now: Instant,
        dropped: &mut Dropped<'_, H>,
    ) {
        let Some(source) = source(&mut self.all, config, number) else { return };
        source.used = true;
        let before = source.discipline.backlog();
        source.discipline.enqueue(packet, now, dropped);
        self.backlog.replace(before, source.discipline.backlog());
        if source.place == Place::Idle && source.discipline.backlog().packets > 0 {
            source.place = Place::Round;
            source.deficit = quantum;
            self.round.push_back(number);
        }
    }

    /// Takes what a source has sent elsewhere off its turns, if it takes any.
    fn charge(&mut self, number: u16, len: u32) {
        if let Some(Some(source)) = self.all.get_mut(usize::from(number))
            && source.place == Place::Round
            && source.deficit > -MAX_DEBT
        {
            source.deficit -= i64::from(len);
        }
    }

    fn pause(&mut self, config: &Config, number: u16) {
        let Some(source) = source(&mut self.all, config, number) else { return };
        source.place = Place::Paused;
        self.round.retain(|&other| other != number);
    }

    fn resume(&mut self, number: u16) {
        let Some(Some(source)) = self.all.get_mut(usize::from(number)) else { return };
        if source.place == Place::Paused {
            // Without a packet it leaves the round at its turn, when it has paid its debt.
            source.place = Place::Round;
            self.round.push_back(number);
        }
    }

    fn has_ready(&self) -> bool {
        let has_packets = |&number: &u16| {
            let source = self.all.get(usize::from(number)).and_then(Option::as_ref);
            source.is_some_and(|source| source.discipline.backlog().packets > 0)
        };
        self.round.iter().any(has_packets)
    }

    fn trim(&mut self) {
        for place in &mut self.all {
            if let Some(source) = place
                && !std::mem::take(&mut source.used)
                && source.place == Place::Idle
            {
                *place = None;
            }
        }
    }

    fn dequeue(
        &mut self,
        quantum: i64,
        now: Instant,
        dropped: &mut Dropped<'_, H>,
    ) -> Option<(u16, Departure<H>)> {
        loop {
            let number = *self.round.front()?;
            let source = self.all.get_mut(usize::from(number))?.as_mut()?;
            if source.deficit <= 0 {
                source.deficit += quantum;
                self.round.rotate_left(1);
                continue;
            }
            let before = source.discipline.backlog();
            let departure = source.discipline.dequeue(now, dropped);
            self.backlog.replace(before, source.discipline.backlog());
            if let Some(departure) = departure {
                source.deficit -= i64::from(departure.packet.len);
                return Some((number, departure));
            }
            source.place = Place::Idle;
            self.round.pop_front();
        }
    }
}

/// The source with this number, made if it is not there.
fn source<'a, H: Send + 'static>(
    all: &'a mut Vec<Option<Source<H>>>,
    config: &Config,
    number: u16,
) -> Option<&'a mut Source<H>> {
    let index = usize::from(number);
    if all.len() <= index {
        all.resize_with(index + 1, || None);
    }
    let source =
        || Source { discipline: config.build(), deficit: 0, place: Place::Idle, used: false };
    Some(all.get_mut(index)?.get_or_insert_with(source))
}

impl Backlog {
    /// A part of it changed.
    fn replace(&mut self, before: Self, after: Self) {
        self.packets = self.packets + after.packets - before.packets;
        self.bytes = self.bytes + after.bytes - before.bytes;
    }
}

impl<H> std::fmt::Debug for Scheduler<H> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Scheduler")
            .field("config", &self.config)
            .field("high", &self.high.backlog)
            .field("low", &self.low.backlog)
            .field("counters", &self.counters)
            .finish_non_exhaustive()
    }
}
