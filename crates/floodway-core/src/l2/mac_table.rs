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
//! | local port, live | refused, unless the port may take addresses over | moves if the frame is an announcement, else refused |
//! | local port, expired or departed | moves | moves |
//! | uplink, live | refused, unless the port may take addresses over | moves |
//! | uplink, expired | moves | moves |
//! | static | refused | refused; moves if the port has departed |
//! | reserved for another port | refused | as if it were not |
//!
//! An *announcement* is a gratuitous ARP, a RARP request or an unsolicited neighbour advertisement:
//! what a guest (or its hypervisor) sends after it moved to another host. Anything else that
//! arrives from the network under a local guest's address is that guest's own broadcast, reflected.
//! A port whose guest has just stopped is *departed* ([`depart`](MacTable::depart)): its addresses stay where they
//! were last seen, so that what comes for them can be kept, and follow it to where they are used next, announced or not.
//!
//! A guest chooses its source addresses, so a live one is not given to another local port: that would be theft of a
//! co-resident VM's or a gateway's traffic. A guest that has moved in, or takes over for another, and has no configured
//! address, looks the same; the operator can allow it ([`allow_takeover`](MacTable::allow_takeover)).
//!
//! A refused frame should not be delivered either: a guest that sees its own neighbour
//! solicitation come back believes that its address is a duplicate. The source policy has been checked
//! before any of this. A configured address is *reserved* ([`reserve`](MacTable::reserve)) for its port, whether or not there is a guest:
//! no other local port ever gets it. While the guest runs, it is a *static* entry ([`pin`](MacTable::pin)), so
//! that nobody on the network can take it over either.
//!
//! **Cost.** `observe` and `lookup` touch one cluster of slots. A port that departs is marked, not searched; one that is forgotten
//! costs what it has learned since it last was ([`Journal`]), so a front-end that toggles its rings costs others nothing. Only
//! uplinks, which do not come and go, are searched.
//!
//! Invariants: an address has at most one entry; entries of a port never exceed its limit (static
//! ones are not counted); an entry belongs to a port that was added and not removed.

mod peek;

use std::collections::BTreeMap;

use floodway_wire::ethernet::MacAddr;

use super::PortId;
use super::journal::Journal;
use super::slots::{Slots, Word};
use crate::time::{Duration, Instant};

/// log2 of the nanoseconds of a tick.
const TICK_SHIFT: u32 = 30;
/// "Last seen" of a static entry: later than any time, so it neither ages nor needs a refresh.
const STATIC: u32 = u32::MAX;
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
    /// The address is live behind another port or an uplink, and the port may not take addresses over.
    InUse,
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

struct Port {
    kind: PortKind,
    limit: u32,
    learned: u32,
    pinned: u32,
    /// Its guest has stopped: nothing behind it is live.
    departed: bool,
    may_take_over: bool,
    /// What is behind it; kept for local ports only.
    journal: Journal,
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
    ports: BTreeMap<PortId, Port>,
    /// Addresses that no other local port may have.
    reserved: BTreeMap<MacAddr, PortId>,
    /// Ticks without a frame after which an entry is dropped.
    max_idle: u32,
    /// Next slot of the sweep; `None` between passes.
    sweep: Option<usize>,
    /// Tick in which the last pass began.
    swept: u32,
    /// Entries that came or went.
    changes: u64,
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
            ports: BTreeMap::new(),
            reserved: BTreeMap::new(),
            max_idle: u32::try_from(ticks).unwrap_or(STATIC),
            sweep: None,
            swept: 0,
            changes: 0,
        }
    }

    /// Adds a port that may learn `limit` addresses, or changes the limit of one that is there. A port whose kind changes forgets
    /// what is behind it. A port above [`PortId::MAX`] is left out.
    pub fn add_port(&mut self, port: PortId, kind: PortKind, limit: u32) {
        if port > PortId::MAX {
            return;
        }
        if self.port(port).is_some_and(|known| known.kind != kind) {
            self.forget_port(port);
        }
        let entry = self.ports.entry(port).or_insert_with(|| Port {
            kind,
            limit,
            learned: 0,
            pinned: 0,
            departed: false,
            may_take_over: false,
            journal: Journal::default(),
        });
        (entry.kind, entry.limit) = (kind, limit);
    }

    /// Lets the guest of a local port take addresses that are live elsewhere, save static and reserved ones.
    pub fn allow_takeover(&mut self, port: PortId, allowed: bool) {
        if let Some(port) = self.port_mut(port) {
            port.may_take_over = allowed;
        }
    }

    /// Keeps `mac` from all local ports but `port`, until that is removed.
    pub fn reserve(&mut self, mac: MacAddr, port: PortId) {
        self.reserved.insert(mac, port);
    }

    /// Forgets a port, everything behind it and what is reserved for it.
    pub fn remove_port(&mut self, port: PortId) {
        self.forget_port(port);
        self.reserved.retain(|_, owner| *owner != port);
        self.ports.remove(&port);
    }

    /// Drops every entry of a port that went down or is used anew, static ones too; returns how many. For a local port the work is
    /// bounded by what it has learned since the last time; for an uplink the whole table is searched.
    pub fn forget_port(&mut self, port: PortId) -> usize {
        let before = self.len();
        let Some(entry) = self.port_mut(port) else { return 0 };
        entry.departed = false;
        match entry.kind {
            PortKind::Local => {
                for mac in entry.journal.take() {
                    self.slots
                        .find_exact(Word::new(mac, port))
                        .into_iter()
                        .for_each(|slot| self.remove(slot));
                }
            }
            PortKind::Uplink => self.search_and_forget(port),
        }
        before - self.len()
    }

    fn search_and_forget(&mut self, port: PortId) {
        let mut slot = 0;
        while slot < self.slots.len() {
            if self.slots.get(slot).is_some_and(|word| word.port() == port) {
                self.remove(slot);
            } else {
                slot += 1;
            }
        }
    }

    /// The guest of a port is gone, perhaps to another host: its addresses stay, static ones too, until they show up
    /// elsewhere or [`forget_port`](Self::forget_port). Returns `true` if there are any.
    pub fn depart(&mut self, port: PortId) -> bool {
        let Some(port) = self.port_mut(port) else { return false };
        port.departed = port.learned + port.pinned > 0;
        port.departed
    }

    /// Puts `mac` behind `port` for good: it does not age, does not move, and does not count for
    /// the limit. Replaces whatever is known of the address; a departed port is back. [`forget_port`](Self::forget_port)
    /// undoes it.
    ///
    /// # Errors
    /// [`Refusal::NotUnicast`] or [`Refusal::UnknownPort`].
    pub fn pin(&mut self, mac: MacAddr, port: PortId) -> Result<(), Refusal> {
        if !is_source(mac) {
            return Err(Refusal::NotUnicast);
        }
        self.port_mut(port).ok_or(Refusal::UnknownPort)?.departed = false;
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
                self.count(from, slot, false);
                self.slots.set_port(slot, port);
                self.slots.set_seen(slot, tick);
                self.count(port, slot, true);
                self.note(mac, port);
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
            let owner = self.slots.get(slot).and_then(|word| self.port(word.port()));
            if owner.is_some_and(|owner| !owner.departed) && self.is_expired(slot, tick) {
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

    /// A number that grows whenever an entry comes, goes or moves.
    #[must_use]
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// Learned addresses and where they are, in no order.
    pub fn learned(&self) -> impl Iterator<Item = (MacAddr, PortId)> + '_ {
        let word = |slot| self.slots.get(slot).filter(|_| self.slots.seen(slot) != STATIC);
        let words = (0..self.slots.len()).filter_map(word);
        words.map(|word| (word.mac(), word.port()))
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

    fn port(&self, port: PortId) -> Option<&Port> {
        self.ports.get(&port)
    }

    fn port_mut(&mut self, port: PortId) -> Option<&mut Port> {
        self.ports.get_mut(&port)
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
        let reserved = arrival.kind == PortKind::Local
            && self.reserved.get(&mac).is_some_and(|&owner| owner != port);
        let decision = match held {
            Some((slot, owner)) if owner == port => return Decision::Known(slot),
            _ if reserved => return Decision::Refuse(Refusal::Static),
            None => Decision::Insert,
            Some((slot, from)) => match self.objection(slot, from, arrival, announcement, tick) {
                Some(refusal) => return Decision::Refuse(refusal),
                None => Decision::Move { slot, from },
            },
        };
        if arrival.learned >= arrival.limit {
            return Decision::Refuse(Refusal::PortLimit);
        }
        decision
    }

    /// Returns why the entry in `slot` must not move from port `from` to where a frame has arrived.
    fn objection(
        &self,
        slot: usize,
        from: PortId,
        arrival: &Port,
        announcement: bool,
        tick: u32,
    ) -> Option<Refusal> {
        let owner = self.port(from).filter(|owner| !owner.departed)?;
        if self.is_expired(slot, tick) {
            return None;
        }
        match (owner.kind, arrival.kind) {
            _ if self.slots.seen(slot) == STATIC => Some(Refusal::Static),
            (_, PortKind::Local) => (!arrival.may_take_over).then_some(Refusal::InUse),
            (PortKind::Local, PortKind::Uplink) => (!announcement).then_some(Refusal::Reflected),
            (PortKind::Uplink, PortKind::Uplink) => None,
        }
    }

    #[inline(always)]
    fn refresh(&self, slot: usize, tick: u32) {
        if self.slots.seen(slot) < tick {
            self.slots.set_seen(slot, tick);
        }
    }

    /// Static entries never are: their time is in the future.
    fn is_expired(&self, slot: usize, tick: u32) -> bool {
        tick.saturating_sub(self.slots.seen(slot)) > self.max_idle
    }

    fn insert(&mut self, word: Word, seen: u32) {
        if self.slots.insert(word, seen) && self.sweep.is_some() {
            // The slots were reordered: the pass begins again.
            self.sweep = Some(0);
        }
        if let Some(slot) = self.slots.find_exact(word) {
            self.count(word.port(), slot, true);
        }
        self.note(word.mac(), word.port());
    }

    fn remove(&mut self, slot: usize) {
        if let Some(word) = self.slots.get(slot) {
            self.count(word.port(), slot, false);
            self.slots.remove(slot);
        }
    }

    /// Counts the entry in `slot` as one more or one less of `port`.
    fn count(&mut self, port: PortId, slot: usize, more: bool) {
        self.changes += 1;
        let is_static = self.slots.seen(slot) == STATIC;
        let Some(port) = self.port_mut(port) else { return };
        let count = if is_static { &mut port.pinned } else { &mut port.learned };
        *count = if more { *count + 1 } else { *count - 1 };
    }

    /// Notes that `mac` is behind a local port now.
    fn note(&mut self, mac: MacAddr, port: PortId) {
        let Some(entry) = self.ports.get_mut(&port) else { return };
        if entry.kind == PortKind::Local {
            let slots = &self.slots;
            entry.journal.append(mac, |mac| slots.find_exact(Word::new(mac, port)).is_some());
        }
    }
}

/// Saturates one below [`STATIC`], after 146 years.
#[inline(always)]
fn tick(now: Instant) -> u32 {
    u32::try_from(now.as_nanos() >> TICK_SHIFT).unwrap_or(STATIC).min(STATIC - 1)
}

fn is_source(mac: MacAddr) -> bool {
    !mac.is_multicast() && mac != MacAddr::default()
}
