//! The forwarding database.
//!
//! # Theory of operation
//! An entry says that a MAC address is behind a port, and when it was last seen there. Per packet
//! there are two questions, and both are asked with `&self`, so that workers can share the table
//! under a reader's lock that they take once per batch: [`observe`](MacTable::observe) for the
//! source (is it known where it comes from? refresh it) and [`lookup`](MacTable::lookup) for the
//! destination. Only what `observe` calls [`Observed::Changed`] needs
//! [`learn`](MacTable::learn) and the table for oneself.
//!
//! **Time** is kept in ticks of 2³⁰ ns (1.07 s): refreshing an entry that was seen in the same
//! tick writes nothing. An entry is dropped when it was not seen for the ageing time, never
//! earlier and at most two ticks later, by an incremental sweep ([`age`](MacTable::age)) that
//! looks at a bounded number of slots per call and makes one pass per tick.
//!
//! **Bounds.** Each port has its own limit of learned addresses; at the limit its new addresses
//! are refused until old ones have aged. Nothing is ever evicted to make room, and the table
//! grows (doubling) to hold every port's limit, so no port can cost another an entry. Growth
//! is no steady state: it happens while addresses come in that were never seen before, at most
//! log2(sum of limits) times.
//!
//! **Moves.** An address that shows up behind another port:
//!
//! | from \ to | local port | uplink |
//! |---|---|---|
//! | local port, live | moves | moves if the frame is an announcement, else refused |
//! | local port, expired | moves | moves |
//! | local port, departed | moves | moves |
//! | uplink | moves | moves |
//! | static | refused | refused |
//!
//! An *announcement* is a gratuitous ARP, a RARP request or an unsolicited neighbour advertisement:
//! what a guest (or its hypervisor) sends after it moved to another host. Anything else that
//! arrives from the network under a local guest's address is that guest's own broadcast, reflected.
//! A port whose guest has just stopped is *departed* ([`depart`](MacTable::depart)): its addresses stay where they
//! were last seen, so that what comes for them can be kept, and go to whoever uses them next, announced or not.
//!
//! A refused frame should not be delivered either: a guest that sees its own neighbour
//! solicitation come back believes that its address is a duplicate. The spoof check has been done
//! before any of this, and a port with a configured address gets a *static* entry
//! ([`pin`](MacTable::pin)), so that no other guest and nobody on the network can take it over.
//!
//! Invariants: an address has at most one entry; entries of a port never exceed its limit (static
//! ones are not counted); an entry belongs to a port that was added and not removed.

use floodway_wire::ethernet::MacAddr;

use super::PortId;
use super::slots::{Slots, Word};
use crate::time::{Duration, Instant};

/// log2 of the nanoseconds of a tick.
const TICK_SHIFT: u32 = 30;
/// "Last seen" of a static entry: later than any time, so it neither ages nor needs a refresh.
const STATIC: u32 = u32::MAX;
/// "Last seen" of an entry of a departed port: it does not age, and anybody may take it.
const DEPARTED: u32 = STATIC - 1;
/// Slots that one call of [`MacTable::age`] looks at: about a microsecond.
const SWEEP_SLOTS: usize = 1024;

/// Where a port leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortKind {
    /// To a guest on this host.
    Local,
    /// To the host's stack or to the network.
    Uplink,
}

/// Why an address was not learned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// A group address or all zeros: not valid as a source.
    NotUnicast,
    /// The port was not added to the table.
    UnknownPort,
    /// The port has as many addresses as it may.
    PortLimit,
    /// The address is live behind a local port and the frame from the uplink is no announcement:
    /// a reflection.
    Reflected,
    /// The address is configured for another port.
    Static,
}

/// What [`MacTable::observe`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Observed {
    /// The address is known to be there. The entry is fresh now.
    Known,
    /// [`MacTable::learn`] would change the table.
    Changed,
    /// [`MacTable::learn`] would refuse.
    Refused(Refusal),
}

/// What [`MacTable::learn`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Learned {
    /// Nothing but a refresh.
    Known,
    /// Added an entry.
    New,
    /// Moved the entry.
    Moved {
        /// The port that it was behind.
        from: PortId,
    },
    /// Left the table as it was.
    Refused(Refusal),
}

/// An entry as the operator sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The address.
    pub mac: MacAddr,
    /// The port behind which it is.
    pub port: PortId,
    /// How it came into the table.
    pub kind: EntryKind,
}

/// How an entry came into the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryKind {
    /// Configured.
    Static,
    /// Learned from a frame.
    Learned {
        /// Time since it was last seen, in steps of a tick (1.07 s).
        idle: Duration,
    },
}

#[derive(Clone, Copy)]
struct Port {
    kind: PortKind,
    limit: u32,
    learned: u32,
}

enum Decision {
    Known(usize),
    Insert,
    Move { slot: usize, from: PortId },
    Refuse(Refusal),
}

/// The forwarding database. See the module for the rules.
pub struct MacTable {
    slots: Slots,
    ports: Vec<Option<Port>>,
    /// Ticks without a frame after which an entry is dropped.
    max_idle: u32,
    /// Next slot of the sweep; `None` between passes.
    sweep: Option<usize>,
    /// Tick in which the last pass began.
    swept: u32,
}

impl MacTable {
    /// How long an address stays without being seen, unless configured otherwise (IEEE 802.1Q).
    pub const DEFAULT_AGEING: Duration = Duration::from_secs(300);
    /// Addresses that a local port may learn, unless configured otherwise.
    pub const DEFAULT_LOCAL_LIMIT: u32 = 256;
    /// Addresses that an uplink may learn, unless configured otherwise.
    pub const DEFAULT_UPLINK_LIMIT: u32 = 16_384;

    /// An empty table without ports. `seed` keys the hash: secret and random where guests are
    /// hostile, any constant where runs must be repeatable. `ageing` is rounded up to ticks.
    #[must_use]
    pub fn new(seed: [u64; 2], ageing: Duration) -> Self {
        let ticks = ageing.as_nanos().div_ceil(1 << TICK_SHIFT);
        Self {
            slots: Slots::new(seed),
            ports: Vec::new(),
            max_idle: u32::try_from(ticks).unwrap_or(STATIC),
            sweep: None,
            swept: 0,
        }
    }

    /// Adds a port that may learn `limit` addresses, or changes kind and limit of one that is
    /// there; what it has learned stays. A port above [`PortId::MAX`] is left out.
    pub fn add_port(&mut self, port: PortId, kind: PortKind, limit: u32) {
        if port > PortId::MAX {
            return;
        }
        if self.ports.len() <= port.index() {
            self.ports.resize(port.index() + 1, None);
        }
        let learned = self.port(port).map_or(0, |p| p.learned);
        self.ports[port.index()] = Some(Port { kind, limit, learned });
    }

    /// Forgets a port and everything behind it.
    pub fn remove_port(&mut self, port: PortId) {
        self.forget_port(port);
        if let Some(entry) = self.ports.get_mut(port.index()) {
            *entry = None;
        }
    }

    /// Drops every entry of a port that went down, static ones too; returns how many. Looks at
    /// the whole table.
    pub fn forget_port(&mut self, port: PortId) -> usize {
        let before = self.len();
        let mut slot = 0;
        while slot < self.slots.len() {
            if self.slots.get(slot).is_some_and(|word| word.port() == port) {
                self.remove(slot);
            } else {
                slot += 1;
            }
        }
        before - self.len()
    }

    /// The guest of a port is gone, perhaps to another host: its addresses stay, static ones too, until they show up
    /// anywhere or [`forget_port`](Self::forget_port). Answers whether there are any. Looks at the whole table.
    pub fn depart(&mut self, port: PortId) -> bool {
        let mut any = false;
        for slot in 0..self.slots.len() {
            if self.slots.get(slot).is_some_and(|word| word.port() == port) {
                if self.slots.seen(slot) == STATIC {
                    self.count(port, |learned| learned + 1);
                }
                self.slots.set_seen(slot, DEPARTED);
                any = true;
            }
        }
        any
    }

    /// Puts `mac` behind `port` for good: it does not age, does not move, and does not count for
    /// the limit. Replaces whatever is known of the address; [`forget_port`](Self::forget_port)
    /// undoes it.
    ///
    /// # Errors
    /// [`Refusal::NotUnicast`] or [`Refusal::UnknownPort`].
    pub fn pin(&mut self, mac: MacAddr, port: PortId) -> Result<(), Refusal> {
        if !is_source(mac) {
            return Err(Refusal::NotUnicast);
        }
        self.port(port).ok_or(Refusal::UnknownPort)?;
        if let Some(slot) = self.slots.find(mac) {
            self.remove(slot);
        }
        self.insert(Word::new(mac, port), STATIC);
        Ok(())
    }

    /// The port behind which `mac` is. `None` for an address that is not known, and for group
    /// addresses.
    #[must_use]
    #[inline]
    pub fn lookup(&self, mac: MacAddr) -> Option<PortId> {
        self.slots.port_of(mac)
    }

    /// Notes that a frame from `mac` came in by `port`; `announcement` says whether it was one.
    /// Refreshes the entry if all is as known, and otherwise says what
    /// [`learn`](Self::learn) would do, so that a flood of refused addresses never needs the table
    /// for itself.
    #[inline]
    pub fn observe(
        &self,
        mac: MacAddr,
        port: PortId,
        announcement: bool,
        now: Instant,
    ) -> Observed {
        let tick = tick(now);
        match self.slots.find_exact(Word::new(mac, port)) {
            Some(slot) => {
                self.refresh(slot, tick);
                Observed::Known
            }
            None => self.observe_change(mac, port, announcement, tick),
        }
    }

    #[cold]
    fn observe_change(
        &self,
        mac: MacAddr,
        port: PortId,
        announcement: bool,
        tick: u32,
    ) -> Observed {
        match self.decide(mac, port, announcement, tick) {
            Decision::Refuse(reason) => Observed::Refused(reason),
            Decision::Known(_) => Observed::Known,
            Decision::Insert | Decision::Move { .. } => Observed::Changed,
        }
    }

    /// Learns from a frame from `mac` that came in by `port`; `announcement` says whether it was
    /// one.
    pub fn learn(
        &mut self,
        mac: MacAddr,
        port: PortId,
        announcement: bool,
        now: Instant,
    ) -> Learned {
        let tick = tick(now);
        match self.decide(mac, port, announcement, tick) {
            Decision::Known(slot) => {
                self.refresh(slot, tick);
                Learned::Known
            }
            Decision::Insert => {
                self.insert(Word::new(mac, port), tick);
                Learned::New
            }
            Decision::Move { slot, from } => {
                self.count(from, |learned| learned - 1);
                self.count(port, |learned| learned + 1);
                self.slots.set_port(slot, port);
                self.slots.set_seen(slot, tick);
                Learned::Moved { from }
            }
            Decision::Refuse(reason) => Learned::Refused(reason),
        }
    }

    /// Drops entries that were not seen for the ageing time. A call looks at a bounded number of
    /// slots; call it often, it does nothing between passes. Returns how many it dropped.
    pub fn age(&mut self, now: Instant) -> usize {
        if !self.age_due(now) {
            return 0;
        }
        let tick = tick(now);
        let mut slot = self.sweep.unwrap_or_else(|| {
            self.swept = tick;
            0
        });
        let before = self.len();
        for _ in 0..SWEEP_SLOTS {
            if slot == self.slots.len() {
                break;
            }
            let departed = self.slots.seen(slot) == DEPARTED;
            if self.slots.get(slot).is_some() && !departed && !self.is_live(slot, tick) {
                self.remove(slot);
            } else {
                slot += 1;
            }
        }
        self.sweep = (slot < self.slots.len()).then_some(slot);
        before - self.len()
    }

    /// Whether [`age`](Self::age) has anything to do.
    #[must_use]
    pub fn age_due(&self, now: Instant) -> bool {
        self.sweep.is_some() || tick(now) != self.swept
    }

    /// Number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.slots.used()
    }

    /// No entries.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Addresses that `port` has learned, static ones not counted.
    #[must_use]
    pub fn learned_by(&self, port: PortId) -> u32 {
        self.port(port).map_or(0, |p| p.learned)
    }

    /// All entries, ordered by address. For reports: it allocates.
    #[must_use]
    pub fn entries(&self, now: Instant) -> Vec<Entry> {
        let mut entries: Vec<_> = (0..self.slots.len())
            .filter_map(|slot| self.slots.get(slot).map(|word| self.entry(slot, word, tick(now))))
            .collect();
        entries.sort_unstable_by_key(|entry| entry.mac);
        entries
    }

    fn entry(&self, slot: usize, word: Word, tick: u32) -> Entry {
        let kind = match self.slots.seen(slot) {
            STATIC => EntryKind::Static,
            seen => {
                let ticks = u64::from(tick.saturating_sub(seen));
                EntryKind::Learned { idle: Duration::from_nanos(ticks << TICK_SHIFT) }
            }
        };
        Entry { mac: word.mac(), port: word.port(), kind }
    }

    fn port(&self, port: PortId) -> Option<Port> {
        self.ports.get(port.index()).copied().flatten()
    }

    /// The rules of the table in the module's documentation.
    fn decide(&self, mac: MacAddr, port: PortId, announcement: bool, tick: u32) -> Decision {
        if !is_source(mac) {
            return Decision::Refuse(Refusal::NotUnicast);
        }
        let Some(arrival) = self.port(port) else {
            return Decision::Refuse(Refusal::UnknownPort);
        };
        let held = self.slots.find(mac).and_then(|slot| Some((slot, self.slots.get(slot)?.port())));
        let decision = match held {
            None => Decision::Insert,
            Some((slot, owner)) if owner == port => return Decision::Known(slot),
            Some((slot, _)) if self.slots.seen(slot) == STATIC => {
                return Decision::Refuse(Refusal::Static);
            }
            Some((slot, from)) => {
                let from_local = self.port(from).is_some_and(|p| p.kind == PortKind::Local);
                let to_uplink = arrival.kind == PortKind::Uplink;
                if from_local && to_uplink && !announcement && self.is_live(slot, tick) {
                    return Decision::Refuse(Refusal::Reflected);
                }
                Decision::Move { slot, from }
            }
        };
        if arrival.learned >= arrival.limit {
            return Decision::Refuse(Refusal::PortLimit);
        }
        decision
    }

    #[inline(always)]
    fn refresh(&self, slot: usize, tick: u32) {
        if self.slots.seen(slot) < tick {
            self.slots.set_seen(slot, tick);
        }
    }

    /// Static entries are: their time is in the future.
    fn is_live(&self, slot: usize, tick: u32) -> bool {
        let seen = self.slots.seen(slot);
        seen != DEPARTED && tick.saturating_sub(seen) <= self.max_idle
    }

    fn insert(&mut self, word: Word, seen: u32) {
        if seen != STATIC {
            self.count(word.port(), |learned| learned + 1);
        }
        if self.slots.insert(word, seen) && self.sweep.is_some() {
            // The slots were reordered: the pass begins again.
            self.sweep = Some(0);
        }
    }

    fn remove(&mut self, slot: usize) {
        if let Some(word) = self.slots.get(slot) {
            if self.slots.seen(slot) != STATIC {
                self.count(word.port(), |learned| learned - 1);
            }
            self.slots.remove(slot);
        }
    }

    fn count(&mut self, port: PortId, change: impl Fn(u32) -> u32) {
        if let Some(Some(port)) = self.ports.get_mut(port.index()) {
            port.learned = change(port.learned);
        }
    }
}

/// Saturates one below [`DEPARTED`], after 146 years.
#[inline(always)]
fn tick(now: Instant) -> u32 {
    u32::try_from(now.as_nanos() >> TICK_SHIFT).unwrap_or(STATIC).min(DEPARTED - 1)
}

fn is_source(mac: MacAddr) -> bool {
    !mac.is_multicast() && mac != MacAddr::default()
}
