//! The forwarding database under any sequence of frames, arrivals and departures.

use std::collections::BTreeMap;

use floodway_wire::ethernet::MacAddr;

use crate::l2::{Learned, MacTable, PortId, PortKind};
use crate::steps;
use crate::time::{Duration, Instant};

const SEED: [u64; 2] = [0x9e37_79b9_7f4a_7c15, 0xd1b5_4a32_d192_ed03];
const TICK_NS: u64 = 1 << 30;
const MAX_IDLE: u64 = 3;
const LIMIT: u32 = 24;
/// Three guests, of which the last may take addresses over, and an uplink.
const PORTS: [PortId; 4] = [PortId(0), PortId(1), PortId(2), PortId(3)];
const TIMID: [PortId; 2] = [PortId(0), PortId(1)];
const UPLINK: PortId = PortId(3);
/// Configured for the first guest.
const RESERVED: u8 = 1;
/// Configured for the uplink.
const GATEWAY: u8 = 2;
/// Steps that a look-up and a change take at most, on average: short clusters, a doubling, a cleaned journal.
const STEPS: u64 = 64;
/// What a call of the sweep may look at.
const SWEEP: u64 = 1 << 13;

struct World {
    table: MacTable,
    tick: u64,
    /// Where each address is that was learned, and when it was last seen there.
    seen: BTreeMap<u8, (PortId, u64)>,
    departed: [bool; 4],
    /// Entries that ports have got since they were last forgotten.
    gained: [u64; 4],
    calls: u64,
    steps: u64,
}

/// Two bytes are an operation and an address.
///
/// - Work is bounded: for frames on average, for a guest that stops by a constant, for one that comes by what it has learned.
/// - No port has more than its limit; a live address does not come to a guest that may not take it; a configured one never does.
pub fn mac_table(input: &[u8]) {
    let mut world = World::new();
    for pair in input.chunks_exact(2) {
        let _ = steps::take();
        world.step(pair[0], pair[1]);
        world.check();
    }
}

impl World {
    fn new() -> Self {
        let mut table = MacTable::new(SEED, Duration::from_nanos(MAX_IDLE * TICK_NS));
        for port in PORTS {
            let kind = if port == UPLINK { PortKind::Uplink } else { PortKind::Local };
            table.add_port(port, kind, LIMIT);
        }
        table.allow_takeover(PortId(2), true);
        table.reserve(mac(RESERVED), PortId(0));
        let _ = table.pin(mac(GATEWAY), UPLINK);
        let (seen, departed, gained) = (BTreeMap::new(), [false; 4], [0; 4]);
        Self { table, tick: 0, seen, departed, gained, calls: 0, steps: 0 }
    }

    fn now(&self) -> Instant {
        Instant::from_nanos(self.tick * TICK_NS)
    }

    fn step(&mut self, op: u8, n: u8) {
        let port = PORTS[usize::from(op & 3)];
        match op >> 2 & 7 {
            0..=3 => self.frame(port, n, op & 0x20 != 0),
            4 => self.depart(port),
            5 => self.arrive(port),
            6 => self.tick += u64::from(n & 3),
            _ => self.age(),
        }
    }

    fn frame(&mut self, port: PortId, n: u8, announcement: bool) {
        let owner = self.table.lookup(mac(n));
        let _ = self.table.observe(mac(n), port, announcement, self.now());
        let learned = self.table.learn(mac(n), port, announcement, self.now());
        self.calls += 1;
        self.steps += steps::take();
        assert!(self.steps <= STEPS * self.calls + SWEEP, "{} for {}", self.steps, self.calls);
        if matches!(learned, Learned::Moved { .. }) {
            let (from, seen) = self.seen[&n];
            let is_live =
                !self.departed[from.index()] && self.tick.saturating_sub(seen) <= MAX_IDLE;
            assert!(!(is_live && TIMID.contains(&port)), "{n} was taken from {from:?}");
            assert_eq!(owner, Some(from));
        }
        if !matches!(learned, Learned::Refused(_)) {
            self.seen.insert(n, (port, self.tick));
            self.gained[port.index()] += 1;
        }
    }

    fn depart(&mut self, port: PortId) {
        if port == UPLINK {
            return;
        }
        self.departed[port.index()] = self.table.depart(port);
        assert_eq!(steps::take(), 0, "a guest that stops is no reason to search");
    }

    fn arrive(&mut self, port: PortId) {
        if port == UPLINK {
            return;
        }
        self.table.forget_port(port);
        let limit = STEPS * (self.gained[port.index()] + 1);
        let steps = steps::take();
        assert!(steps <= limit, "{steps} of {limit} steps to forget a guest");
        self.departed[port.index()] = false;
        self.gained[port.index()] = 0;
        if port == PortId(0) {
            assert_eq!(self.table.pin(mac(RESERVED), port), Ok(()));
            self.gained[0] = 1;
            self.seen.insert(RESERVED, (port, u64::MAX));
        }
    }

    fn age(&mut self) {
        // A pass ends, and looks at each slot once.
        for _ in 0..16 {
            self.table.age(self.now());
            assert!(steps::take() <= SWEEP);
        }
    }

    fn check(&self) {
        for port in PORTS {
            assert!(self.table.learned_by(port) <= LIMIT);
        }
        assert_eq!(self.table.lookup(mac(GATEWAY)), Some(UPLINK));
        let reserved = self.table.lookup(mac(RESERVED));
        assert!(reserved.is_none_or(|port| port == PortId(0) || port == UPLINK));
    }
}

fn mac(n: u8) -> MacAddr {
    MacAddr([2, 0, 0, 0, 0, n])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::l2::fuzz::tests::replay;

    #[test]
    fn seeds_of_the_fuzz_target_hold() {
        replay("mac_table", mac_table);
    }

    proptest! {
        #[test]
        fn any_sequence_costs_a_bounded_number_of_steps(input in prop::collection::vec(any::<u8>(), 0..1200)) {
            mac_table(&input);
        }
    }

    /// A front-end that toggles its rings is no burden to others, however large the table is.
    #[test]
    fn a_port_that_stops_and_starts_costs_what_it_has_learned_and_no_search() {
        const ENTRIES: u32 = 10_000;
        let mut table = MacTable::new(SEED, MacTable::DEFAULT_AGEING);
        table.add_port(UPLINK, PortKind::Uplink, ENTRIES);
        table.add_port(PORTS[0], PortKind::Local, 256);
        for n in 0..ENTRIES {
            let [a, b, c, d] = n.to_be_bytes();
            table.learn(MacAddr([4, 0, a, b, c, d]), UPLINK, false, Instant::ZERO);
        }
        for n in [1, 2, 3] {
            table.learn(mac(n), PORTS[0], false, Instant::ZERO);
        }
        let toggle = |table: &mut MacTable| {
            let _ = steps::take();
            table.depart(PORTS[0]);
            let stop = steps::take();
            table.forget_port(PORTS[0]);
            table.pin(mac(1), PORTS[0]).unwrap();
            (stop, steps::take())
        };
        let (stop, start) = toggle(&mut table);
        assert_eq!(stop, 0);
        assert!(start < 100, "{start} steps");
        let again: u64 = (0..100).map(|_| toggle(&mut table).1).sum();
        assert!(again < 100 * 50, "{again} steps");
    }
}
