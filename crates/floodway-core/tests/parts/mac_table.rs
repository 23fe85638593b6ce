//! The forwarding database against a reference model, and its promises to the other ports.

use std::collections::{BTreeMap, BTreeSet};

use floodway_core::l2::{EntryKind, Learned, MacTable, Observed, PortId, PortKind, Refusal};
use floodway_core::time::{Duration, Instant};
use floodway_wire::ethernet::MacAddr;
use proptest::prelude::*;

const SEED: [u64; 2] = [0x9e37_79b9_7f4a_7c15, 0xd1b5_4a32_d192_ed03];
const TICK_NS: u64 = 1 << 30;
const MAX_IDLE: u64 = 3;
const LIMIT: usize = 6;
const LOCAL: [PortId; 3] = [PortId(0), PortId(1), PortId(2)];
const UPLINK: PortId = PortId(3);
/// The local port that may take addresses over.
const BOLD: PortId = LOCAL[2];
/// Addresses from 0 on that are configured for the first local port.
const RESERVED: u64 = 2;

fn mac(n: u64) -> MacAddr {
    let [_, _, _, b, c, d, e, f] = n.to_be_bytes();
    MacAddr([0x02, b, c, d, e, f])
}

fn at(tick: u64) -> Instant {
    Instant::from_nanos(tick * TICK_NS)
}

fn table() -> MacTable {
    let mut table = MacTable::new(SEED, Duration::from_nanos(MAX_IDLE * TICK_NS));
    for port in LOCAL {
        table.add_port(port, PortKind::Local, LIMIT as u32);
    }
    table.add_port(UPLINK, PortKind::Uplink, LIMIT as u32);
    table.allow_takeover(BOLD, true);
    (0..RESERVED).for_each(|n| table.reserve(mac(n), LOCAL[0]));
    table
}

/// Runs the sweep to the end of its pass.
fn age(table: &mut MacTable, tick: u64) -> usize {
    let mut dropped = 0;
    while table.age_due(at(tick)) {
        dropped += table.age(at(tick));
    }
    dropped
}

/// What the documentation says, in a map. `None` as the time means static.
#[derive(Clone, Default)]
struct Model {
    entries: BTreeMap<MacAddr, (PortId, Option<u64>)>,
    departed: BTreeSet<PortId>,
}

impl Model {
    fn learned_by(&self, port: PortId) -> usize {
        self.entries.values().filter(|&&(p, seen)| p == port && seen.is_some()).count()
    }

    fn is_live(&self, (port, seen): (PortId, Option<u64>), tick: u64) -> bool {
        !self.departed.contains(&port) && seen.is_none_or(|seen| tick - seen <= MAX_IDLE)
    }

    fn learn(&mut self, mac: MacAddr, port: PortId, announcement: bool, tick: u64) -> Learned {
        let reserved = port != UPLINK && port != LOCAL[0] && is_reserved(mac);
        let held = self.entries.get(&mac).copied();
        let outcome = match held {
            Some((p, None)) if p == port => return Learned::Known,
            Some((p, Some(_))) if p == port => Learned::Known,
            _ if reserved => return Learned::Refused(Refusal::Static),
            Some(entry) if self.is_live(entry, tick) => match entry {
                (_, None) => return Learned::Refused(Refusal::Static),
                (from, _) if port == BOLD => Learned::Moved { from },
                _ if port != UPLINK => return Learned::Refused(Refusal::InUse),
                _ if !announcement => return Learned::Refused(Refusal::Reflected),
                (from, _) => Learned::Moved { from },
            },
            Some((from, _)) => Learned::Moved { from },
            None => Learned::New,
        };
        if outcome != Learned::Known && self.learned_by(port) >= LIMIT {
            return Learned::Refused(Refusal::PortLimit);
        }
        self.entries.insert(mac, (port, Some(tick)));
        outcome
    }

    fn age(&mut self, tick: u64) -> usize {
        let before = self.entries.len();
        let departed = &self.departed;
        self.entries.retain(|_, (port, seen)| {
            departed.contains(port) || seen.is_none_or(|seen| tick - seen <= MAX_IDLE)
        });
        before - self.entries.len()
    }

    fn depart(&mut self, port: PortId) -> bool {
        let any = self.entries.values().any(|&(p, _)| p == port);
        self.departed.remove(&port);
        self.departed.extend(any.then_some(port));
        any
    }

    fn forget(&mut self, port: PortId) -> usize {
        let before = self.entries.len();
        self.departed.remove(&port);
        self.entries.retain(|_, (p, _)| *p != port);
        before - self.entries.len()
    }
}

fn is_reserved(address: MacAddr) -> bool {
    (0..RESERVED).any(|n| mac(n) == address)
}

#[derive(Clone, Debug)]
enum Op {
    Learn { mac: u64, port: u16, announcement: bool },
    Observe { mac: u64, port: u16, announcement: bool },
    Pin { mac: u64, port: u16 },
    Forget { port: u16 },
    Depart { port: u16 },
    Advance { ticks: u64 },
    Age,
}

fn op() -> impl Strategy<Value = Op> {
    let frame = (0_u64..30, 0_u16..4, any::<bool>());
    prop_oneof![
        8 => frame.clone().prop_map(|(mac, port, announcement)| Op::Learn { mac, port, announcement }),
        4 => frame.prop_map(|(mac, port, announcement)| Op::Observe { mac, port, announcement }),
        1 => (0_u64..30, 0_u16..4).prop_map(|(mac, port)| Op::Pin { mac, port }),
        1 => (0_u16..4).prop_map(|port| Op::Forget { port }),
        1 => (0_u16..4).prop_map(|port| Op::Depart { port }),
        3 => (0_u64..3).prop_map(|ticks| Op::Advance { ticks }),
        2 => Just(Op::Age),
    ]
}

/// What `observe` has to say when `learn` would say `learned`.
fn announced(learned: Learned) -> Observed {
    match learned {
        Learned::Known => Observed::Known,
        Learned::New | Learned::Moved { .. } => Observed::Changed,
        Learned::Refused(reason) => Observed::Refused(reason),
    }
}

fn assert_same(table: &MacTable, model: &Model, tick: u64) {
    for n in 0..30 {
        assert_eq!(table.lookup(mac(n)), model.entries.get(&mac(n)).map(|&(port, _)| port));
    }
    let listed = table.entries(at(tick)).into_iter().map(|e| (e.mac, e.port, e.kind));
    let expected = model.entries.iter().map(|(&mac, &(port, seen))| {
        let idle = |seen| Duration::from_nanos((tick - seen) * TICK_NS);
        (mac, port, seen.map_or(EntryKind::Static, |s| EntryKind::Learned { idle: idle(s) }))
    });
    assert!(listed.eq(expected));
    for port in LOCAL.into_iter().chain([UPLINK]) {
        assert_eq!(table.learned_by(port) as usize, model.learned_by(port));
        assert!(model.learned_by(port) <= LIMIT);
    }
}

proptest! {
    #[test]
    fn agrees_with_the_model(ops in proptest::collection::vec(op(), 1..200)) {
        let (mut table, mut model, mut tick) = (table(), Model::default(), 0);
        for op in ops {
            match op {
                Op::Learn { mac: n, port, announcement } => {
                    let learned = table.learn(mac(n), PortId(port), announcement, at(tick));
                    prop_assert_eq!(learned, model.learn(mac(n), PortId(port), announcement, tick));
                }
                Op::Observe { mac: n, port, announcement } => {
                    let seen = table.observe(mac(n), PortId(port), announcement, at(tick));
                    let mut after = model.clone();
                    let learned = after.learn(mac(n), PortId(port), announcement, tick);
                    prop_assert_eq!(seen, announced(learned));
                    if learned == Learned::Known {
                        model = after;
                    }
                }
                Op::Pin { mac: n, port } => {
                    prop_assert_eq!(table.pin(mac(n), PortId(port)), Ok(()));
                    model.entries.insert(mac(n), (PortId(port), None));
                    model.departed.remove(&PortId(port));
                }
                Op::Forget { port } => {
                    prop_assert_eq!(table.forget_port(PortId(port)), model.forget(PortId(port)));
                }
                Op::Depart { port } => {
                    prop_assert_eq!(table.depart(PortId(port)), model.depart(PortId(port)));
                }
                Op::Advance { ticks } => tick += ticks,
                Op::Age => {
                    // There is one pass in each tick.
                    tick += 1;
                    prop_assert_eq!(age(&mut table, tick), model.age(tick));
                }
            }
            assert_same(&table, &model, tick);
        }
    }

    /// Whatever one port sends, the others keep their entries and can learn up to their limits.
    #[test]
    fn a_flood_costs_nobody_else_anything(flood in proptest::collection::vec(any::<u64>(), 1..500)) {
        let mut table = table();
        for n in 10..LIMIT as u64 + 9 {
            prop_assert_eq!(table.learn(mac(n), LOCAL[1], false, at(0)), Learned::New);
            prop_assert_eq!(table.learn(mac(100 + n), UPLINK, false, at(0)), Learned::New);
        }
        for n in &flood {
            // Also the addresses of the others.
            table.learn(mac(10 + n % 5), LOCAL[0], true, at(0));
            table.learn(mac(110 + n % 5), LOCAL[0], true, at(0));
            table.learn(mac(1000 + (n >> 16)), LOCAL[0], true, at(0));
        }
        prop_assert!(table.learned_by(LOCAL[0]) as usize <= LIMIT);
        for n in 10..LIMIT as u64 + 9 {
            prop_assert_eq!(table.lookup(mac(n)), Some(LOCAL[1]));
            prop_assert_eq!(table.lookup(mac(100 + n)), Some(UPLINK));
        }
        prop_assert_eq!(table.learn(mac(50), LOCAL[1], false, at(0)), Learned::New);
        prop_assert_eq!(table.learn(mac(150), UPLINK, false, at(0)), Learned::New);
        prop_assert!(table.len() <= 3 * LIMIT);
    }
}

#[test]
fn the_network_cannot_steal_a_guests_address() {
    let mut table = table();
    assert_eq!(table.learn(mac(5), LOCAL[0], false, at(0)), Learned::New);
    let reflected = Refusal::Reflected;
    assert_eq!(table.learn(mac(5), UPLINK, false, at(1)), Learned::Refused(reflected));
    assert_eq!(table.lookup(mac(5)), Some(LOCAL[0]));
    // It moved to another host and says so; later it comes back, with any frame.
    assert_eq!(table.learn(mac(5), UPLINK, true, at(1)), Learned::Moved { from: LOCAL[0] });
    assert_eq!(table.learn(mac(5), LOCAL[2], false, at(2)), Learned::Moved { from: UPLINK });
    // Silent for the ageing time, though no sweep has run: then any frame will do.
    let expired = at(2 + MAX_IDLE + 1);
    assert_eq!(table.learn(mac(5), UPLINK, false, expired), Learned::Moved { from: LOCAL[2] });
}

#[test]
fn a_pinned_address_stays() {
    let mut table = table();
    assert_eq!(table.learn(mac(5), LOCAL[1], false, at(0)), Learned::New);
    assert_eq!(table.pin(mac(5), LOCAL[0]), Ok(()));
    assert_eq!((table.learned_by(LOCAL[0]), table.learned_by(LOCAL[1])), (0, 0));
    for port in [LOCAL[1], UPLINK] {
        let refused = Learned::Refused(Refusal::Static);
        assert_eq!(table.learn(mac(5), port, true, at(1)), refused);
    }
    assert_eq!(table.observe(mac(5), LOCAL[0], false, at(1)), Observed::Known);
    assert_eq!(age(&mut table, 1000), 0);
    assert_eq!(table.entries(at(1000))[0].kind, EntryKind::Static);
    assert_eq!(table.forget_port(LOCAL[0]), 1);
    assert_eq!(table.learn(mac(5), LOCAL[1], false, at(1)), Learned::New);
}

#[test]
fn what_is_no_source_is_refused() {
    let mut table = table();
    for bad in [MacAddr::BROADCAST, MacAddr([1, 0, 0x5e, 0, 0, 1]), MacAddr([0; 6])] {
        let refused = Refusal::NotUnicast;
        assert_eq!(table.learn(bad, LOCAL[0], true, at(0)), Learned::Refused(refused));
        assert_eq!(table.observe(bad, LOCAL[0], true, at(0)), Observed::Refused(refused));
        assert_eq!(table.pin(bad, LOCAL[0]), Err(refused));
        assert_eq!(table.lookup(bad), None);
    }
    for stranger in [PortId(4), PortId::MAX, PortId(u16::MAX)] {
        let refused = Refusal::UnknownPort;
        assert_eq!(table.learn(mac(1), stranger, true, at(0)), Learned::Refused(refused));
        assert_eq!(table.pin(mac(1), stranger), Err(refused));
    }
    table.remove_port(LOCAL[2]);
    let refused = Learned::Refused(Refusal::UnknownPort);
    assert_eq!(table.learn(mac(1), LOCAL[2], true, at(0)), refused);
    assert!(table.is_empty());
}

#[test]
fn the_sweep_is_bounded_and_ends() {
    const ENTRIES: u64 = 10_000;
    let mut table = MacTable::new(SEED, Duration::from_secs(300));
    table.add_port(UPLINK, PortKind::Uplink, ENTRIES as u32);
    for n in 0..ENTRIES {
        assert_eq!(table.learn(mac(n), UPLINK, false, at(0)), Learned::New);
    }
    // Half of them are seen again, by readers who share the table.
    for n in 0..ENTRIES / 2 {
        assert_eq!(table.observe(mac(n), UPLINK, false, at(200)), Observed::Known);
    }
    // 300 s are 280 ticks: nothing goes early.
    assert_eq!(age(&mut table, 280), 0);
    let (mut calls, mut dropped) = (0, 0);
    while table.age_due(at(282)) {
        let n = table.age(at(282));
        assert!(n <= 1024);
        dropped += n;
        calls += 1;
    }
    assert_eq!(dropped as u64, ENTRIES / 2);
    assert!((20..=60).contains(&calls), "{calls} calls for 32768 slots and the entries dropped");
    assert!((0..ENTRIES / 2).all(|n| table.lookup(mac(n)) == Some(UPLINK)));
}

#[test]
fn the_same_steps_give_the_same_report_whatever_the_seed() {
    let report = |seed| {
        let mut table = MacTable::new(seed, MacTable::DEFAULT_AGEING);
        table.add_port(LOCAL[0], PortKind::Local, MacTable::DEFAULT_LOCAL_LIMIT);
        for n in 0..300 {
            table.learn(mac(n * 7919), LOCAL[0], false, at(n));
        }
        table.entries(at(300))
    };
    assert_eq!(report(SEED), report([1, 2]));
    assert_eq!(report(SEED).len(), MacTable::DEFAULT_LOCAL_LIMIT as usize);
}

#[test]
fn addresses_of_a_departed_port_stay_until_somebody_uses_them() {
    let mut table = table();
    table.pin(mac(1), LOCAL[0]).unwrap();
    table.learn(mac(2), LOCAL[0], false, at(0));
    table.learn(mac(3), LOCAL[1], false, at(0));
    assert!(table.depart(LOCAL[0]) && !table.depart(LOCAL[2]));
    // They do not age.
    assert_eq!(age(&mut table, 100), 1);
    for n in [1, 2] {
        assert_eq!(table.lookup(mac(n)), Some(LOCAL[0]));
        // No announcement is needed.
        assert_eq!(table.observe(mac(n), UPLINK, false, at(100)), Observed::Changed);
        assert_eq!(
            table.observe(mac(n), LOCAL[2], false, at(100)),
            [Observed::Refused(Refusal::Static), Observed::Changed,][n as usize - 1]
        );
    }
    let moved = Learned::Moved { from: LOCAL[0] };
    assert_eq!(table.learn(mac(1), UPLINK, false, at(100)), moved);
    assert_eq!(table.learn(mac(2), LOCAL[2], false, at(100)), moved);
    assert_eq!((table.learned_by(LOCAL[0]), table.forget_port(LOCAL[0])), (0, 0));
    // From here on they are like any other.
    assert_eq!(age(&mut table, 104), 2);
}

#[test]
fn a_departed_port_can_be_forgotten_and_come_back() {
    let mut table = table();
    table.pin(mac(1), LOCAL[0]).unwrap();
    table.depart(LOCAL[0]);
    assert_eq!((table.forget_port(LOCAL[0]), table.learned_by(LOCAL[0])), (1, 0));
    table.pin(mac(1), LOCAL[0]).unwrap();
    table.depart(LOCAL[0]);
    table.pin(mac(1), LOCAL[0]).unwrap();
    assert_eq!(table.learned_by(LOCAL[0]), 0);
    let refused = Learned::Refused(Refusal::Static);
    assert_eq!(table.learn(mac(1), UPLINK, true, at(1)), refused);
}

#[test]
fn a_guest_cannot_take_an_address_that_is_live_elsewhere() {
    let mut table = table();
    assert_eq!(table.learn(mac(5), LOCAL[0], false, at(0)), Learned::New);
    assert_eq!(table.learn(mac(6), UPLINK, false, at(0)), Learned::New);
    for (n, owner) in [(5, LOCAL[0]), (6, UPLINK)] {
        // An announcement is no better: the guest writes it.
        for announcement in [false, true] {
            let refusal = Refusal::InUse;
            let seen = table.observe(mac(n), LOCAL[1], announcement, at(MAX_IDLE));
            assert_eq!(seen, Observed::Refused(refusal));
            let learned = table.learn(mac(n), LOCAL[1], announcement, at(MAX_IDLE));
            assert_eq!(learned, Learned::Refused(refusal));
        }
        assert_eq!(table.lookup(mac(n)), Some(owner));
        let moved = Learned::Moved { from: owner };
        assert_eq!(table.learn(mac(n), BOLD, false, at(MAX_IDLE)), moved, "it is allowed to");
    }
    // Nobody has used it for the ageing time.
    let later = at(2 * MAX_IDLE + 1);
    assert_eq!(table.learn(mac(6), LOCAL[1], false, later), Learned::Moved { from: BOLD });
}

#[test]
fn a_gateways_configured_address_is_the_uplinks_before_it_was_ever_seen() {
    let mut table = table();
    table.pin(mac(9), UPLINK).unwrap();
    for port in LOCAL {
        for tick in [0, 1000] {
            let refused = Learned::Refused(Refusal::Static);
            assert_eq!(table.learn(mac(9), port, true, at(tick)), refused);
        }
    }
    assert_eq!(table.observe(mac(9), UPLINK, false, at(1000)), Observed::Known);
}

#[test]
fn a_configured_address_is_kept_from_other_guests_whatever_has_become_of_its_own() {
    let mut table = table();
    let refused_to_guests = |table: &mut MacTable, tick| {
        for port in [LOCAL[1], BOLD] {
            let refused = Learned::Refused(Refusal::Static);
            assert_eq!(table.learn(mac(1), port, true, at(tick)), refused, "{port:?} at {tick}");
        }
    };
    // The guest has not come yet; it runs; it has stopped; it was given up.
    refused_to_guests(&mut table, 0);
    table.pin(mac(1), LOCAL[0]).unwrap();
    refused_to_guests(&mut table, 1);
    assert_eq!(table.learn(mac(1), UPLINK, true, at(1)), Learned::Refused(Refusal::Static));
    table.depart(LOCAL[0]);
    refused_to_guests(&mut table, 2);
    assert_eq!(table.lookup(mac(1)), Some(LOCAL[0]), "frames for it wait there");
    table.forget_port(LOCAL[0]);
    refused_to_guests(&mut table, 3);
    // It has moved to another host, and is silent for long.
    assert_eq!(table.learn(mac(1), UPLINK, false, at(3)), Learned::New);
    refused_to_guests(&mut table, 4);
    refused_to_guests(&mut table, 1000);
    // The port is no more.
    table.remove_port(LOCAL[0]);
    age(&mut table, 1000);
    assert_eq!(table.learn(mac(1), LOCAL[1], false, at(1000)), Learned::New);
}
