//! What has to hold for any traffic of any VMs: the fuzz target and tests feed the same function. It panics where it does not.

use std::cell::Cell;
use std::rc::Rc;

use floodway_wire::FiveTuple;
use floodway_wire::tcp::Flags;
use floodway_wire::tcp::options::{SackBlock, Timestamps};

use super::allocation::{Allocator, Demand};
use super::config::{Config, Policy};
use super::connection::Connection;
use super::port::{Sink, Verdict, WindowClamp};
use super::waiting::MAX_HOLD;
use crate::seq::Seq;
use crate::steps;
use crate::tables::flow_table::{FlowRef, SCAN};
use crate::tables::timer::TICK;
use crate::tcp::{Edit, Segment};
use crate::time::{Duration, Instant};

/// VMs that have connections.
const VMS: usize = 3;
/// Connections of each that an input tells apart. Floods have others.
const CONNECTIONS: usize = 8;
/// Connections that a clamp knows.
const KNOWN: u32 = 24;
/// VMs of the division that takes any demands.
const DEMANDS: usize = 64;
/// Most steps of a search of the queue for connections that are gone.
const SEARCH_COST: u64 = 2 * KNOWN as u64 + 65;
/// Most steps of a segment: connections are searched twice for one that may go, and the queue for those that are gone.
const SEGMENT_COST: u64 = SEARCH_COST + 2 * SCAN as u64 + 8;
/// Most steps of a call for timers: what one call handles at most of each kind, timers that let something leave its line, connections that may be
/// forgotten, and searches of the queue, of which a call makes no more than what it adds to the queue allows.
const TIMEOUT_COST: u64 = 3 * 256 + 64 * 2 + 64 * (1 + SCAN as u64) + 2 * SEARCH_COST;
/// Most steps of dividing a link among `vms`: each round fixes one at least.
const fn division_cost(vms: u64) -> u64 {
    vms * (vms + 4)
}

/// A frame that is kept, and counts itself.
#[derive(Debug)]
struct Kept {
    alive: Rc<Cell<u32>>,
}

impl Kept {
    fn new(alive: &Rc<Cell<u32>>) -> Self {
        alive.set(alive.get() + 1);
        Self { alive: Rc::clone(alive) }
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.alive.set(self.alive.get() - 1);
    }
}

/// What leaves after it has waited is nobody's concern here: its window follows what the VM said before, and that may have been more.
struct Network;

impl Sink<Kept> for Network {
    fn send(&mut self, _: &Kept, _: &Edit) {}
}

/// Where a connection is, as far as honest segments go.
#[derive(Clone, Copy, Default)]
struct Known {
    vm: Seq,
    peer: Seq,
    scale: u8,
}

struct World {
    config: Config,
    ports: Vec<WindowClamp<Kept>>,
    allocator: Allocator,
    /// Of VMs that only demand.
    demands: Allocator,
    known: [[Known; CONNECTIONS]; VMS],
    alive: Rc<Cell<u32>>,
    now: Instant,
}

/// Feeds traffic and settings. A byte is an operation, what follows belongs to it.
///
/// - Rates add up to the capacity, and none is below the minimum (N4).
/// - What is kept is bounded (N5): two frames for each connection that is known. What waits leaves within [`MAX_HOLD`].
/// - No segment that leaves at once has a larger window than the VM has given it (N1).
/// - A segment, a call for timers and a division take a bounded number of steps, whatever came before.
///
/// # Panics
/// One of these does not hold.
pub fn inbound(input: &[u8]) {
    let mut world = World::new();
    let mut input = Input(input);
    while world.step(&mut input).is_some() {
        world.check();
    }
    world.end();
}

impl World {
    fn new() -> Self {
        let config = Config { capacity: 1_000_000, max_connections: KNOWN, ..Config::default() };
        let ports = (0..VMS as u64).map(|seed| WindowClamp::new(config.clone(), seed)).collect();
        let mut known = [[Known::default(); CONNECTIONS]; VMS];
        for (n, known) in known.as_flattened_mut().iter_mut().enumerate() {
            // Some wrap soon.
            *known =
                Known { vm: Seq(1000), peer: Seq((n as u32 % 3).wrapping_sub(2) << 10), scale: 7 };
        }
        let mut world = Self {
            allocator: Allocator::new(&config, VMS),
            demands: Allocator::new(&config, DEMANDS),
            ports,
            known,
            config,
            alive: Rc::default(),
            now: Instant::from_millis(1),
        };
        let _ = steps::take();
        world.divide();
        world
    }

    /// Carries out an operation; `None` at the end of the input.
    fn step(&mut self, input: &mut Input<'_>) -> Option<()> {
        let _ = steps::take();
        match input.byte()? % 16 {
            0 => self.open(input)?,
            1 | 2 => self.peer_data(input)?,
            3 | 4 => self.vm_ack(input)?,
            5 => self.vm_data(input)?,
            6 => self.any_segment(input, true)?,
            7 => self.any_segment(input, false)?,
            8 => self.wait(Duration::from_micros(u64::from(input.u16()?))),
            9 => self.wait(Duration::from_millis(u64::from(input.byte()?))),
            10 => {
                let (vm, bytes) = (input.vm()?, u64::from(input.u16()?));
                self.ports[vm].other_from_network(self.now, bytes % 2 == 0, bytes);
                self.charge(SEGMENT_COST);
            }
            11 => self.configure(input)?,
            12 => self.lend(),
            13 => self.demand(input)?,
            14 => self.flood(input)?,
            _ => self.stop(input)?,
        }
        Some(())
    }

    /// What has been done since this was last called was within bounds.
    fn charge(&self, limit: u64) {
        let steps = steps::take();
        assert!(steps <= limit, "{steps} steps, {limit} allowed");
    }

    fn peer_sends(&mut self, vm: usize, flow: &FiveTuple, segment: &Segment) {
        let wire = u64::from(segment.len) + 78;
        self.ports[vm].tcp_from_network(self.now, &flow.reversed(), segment, wire);
        self.charge(SEGMENT_COST);
        self.divide();
    }

    fn vm_sends(&mut self, vm: usize, flow: &FiveTuple, segment: &Segment, memory: bool) {
        let alive = &self.alive;
        let keep = || memory.then(|| Kept::new(alive));
        let verdict = self.ports[vm].from_vm(self.now, flow, segment, keep, &mut Network);
        if let Verdict::Pass(edit) = verdict {
            assert!(edit.window.is_none_or(|window| window < segment.window));
        }
        self.charge(SEGMENT_COST);
        self.divide();
    }

    /// A handshake as it should be, begun by either side.
    fn open(&mut self, input: &mut Input<'_>) -> Option<()> {
        let (vm, n, how) = (input.vm()?, input.connection()?, input.byte()?);
        let flow = tuple(vm, n as u16);
        let known = &mut self.known[vm][n];
        // A new one has other numbers.
        (known.vm, known.peer) = (known.vm + 70_000, known.peer + 70_000);
        known.scale = how >> 4;
        let Known { vm: isn, peer, scale } = *known;
        (known.vm, known.peer) = (isn + 1, peer + 1);
        let vm_begins = how & 1 != 0;
        let syn = |seq, ack, flags| {
            let mut segment = Segment { seq, ack, flags, window: 65_535, ..Segment::default() };
            segment.options.mss = Some(1460);
            segment.options.window_scale = (how & 2 != 0).then_some(scale);
            segment.options.unknown = how & 12 == 12;
            segment
        };
        let syn_ack = Flags::SYN.with(Flags::ACK);
        if vm_begins {
            self.vm_sends(vm, &flow, &syn(isn, Seq(0), Flags::SYN), true);
            self.peer_sends(vm, &flow, &syn(peer, isn + 1, syn_ack));
        } else {
            self.peer_sends(vm, &flow, &syn(peer, Seq(0), Flags::SYN));
            self.vm_sends(vm, &flow, &syn(isn, peer + 1, syn_ack), true);
            self.wait(MAX_HOLD + 2 * TICK);
            self.peer_sends(vm, &flow, &self.plain(vm, n, true));
        }
        Some(())
    }

    /// A pure ACK of a connection, as the peer or the VM would send it.
    fn plain(&self, vm: usize, n: usize, of_peer: bool) -> Segment {
        let Known { vm, peer, .. } = self.known[vm][n];
        let (seq, ack) = if of_peer { (peer, vm) } else { (vm, peer) };
        Segment { seq, ack, window: 1000, flags: Flags::ACK, ..Segment::default() }
    }

    fn peer_data(&mut self, input: &mut Input<'_>) -> Option<()> {
        let (vm, n, len) = (input.vm()?, input.connection()?, u32::from(input.u16()?));
        let segment = Segment { len, ..self.plain(vm, n, true) };
        self.known[vm][n].peer = segment.end();
        self.peer_sends(vm, &tuple(vm, n as u16), &segment);
        Some(())
    }

    fn vm_ack(&mut self, input: &mut Input<'_>) -> Option<()> {
        let (vm, n, window) = (input.vm()?, input.connection()?, input.u16()?);
        let segment = Segment { window, ..self.plain(vm, n, false) };
        self.vm_sends(vm, &tuple(vm, n as u16), &segment, true);
        Some(())
    }

    fn vm_data(&mut self, input: &mut Input<'_>) -> Option<()> {
        let (vm, n, len) = (input.vm()?, input.connection()?, u32::from(input.u16()?));
        let segment = Segment { len, ..self.plain(vm, n, false) };
        self.known[vm][n].vm = segment.end();
        self.vm_sends(vm, &tuple(vm, n as u16), &segment, len % 7 != 0);
        Some(())
    }

    fn any_segment(&mut self, input: &mut Input<'_>, of_peer: bool) -> Option<()> {
        let (vm, n) = (input.vm()?, input.connection()?);
        let mut segment = self.plain(vm, n, of_peer);
        let what = input.byte()?;
        segment.flags = Flags(input.byte()?);
        segment.seq = near(segment.seq, what & 3, input)?;
        segment.ack = near(segment.ack, what >> 2 & 3, input)?;
        segment.len = if what & 16 != 0 { u32::from(input.u16()?) } else { 0 };
        segment.window = input.u16()?;
        segment.ae = what & 32 != 0;
        if what & 64 != 0 {
            let sack = SackBlock { left: segment.ack.0.wrapping_sub(10), right: segment.ack.0 };
            segment.options.set_sack_blocks(&[sack]);
        }
        if what & 128 != 0 {
            let options = input.byte()?;
            segment.options.mss = Some(u16::from(options) * 40);
            segment.options.window_scale = (options & 1 != 0).then_some(options);
            segment.options.unknown = options & 2 != 0;
            segment.gso_size = u16::from(options & 4) * 300;
            segment.options.timestamps =
                (options & 8 != 0).then_some(Timestamps { value: options.into(), echo: 0 });
        }
        let flow = tuple(vm, n as u16);
        match of_peer {
            true => self.peer_sends(vm, &flow, &segment),
            false => self.vm_sends(vm, &flow, &segment, what & 0xc0 != 0xc0),
        }
        Some(())
    }

    /// Time passes, and what is due is done.
    fn wait(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some(vm) = (0..VMS).min_by_key(|&vm| self.ports[vm].next_timeout())
            && self.ports[vm].next_timeout() <= end
        {
            self.now = self.now.max(self.ports[vm].next_timeout());
            let mut calls = 0;
            while self.ports[vm].next_timeout() <= self.now {
                self.ports[vm].handle_timeout(self.now, &mut Network);
                self.charge(TIMEOUT_COST);
                calls += 1;
                assert!(calls < 100, "no progress at {:?}", self.now);
            }
            self.divide();
        }
        self.now = end;
    }

    fn configure(&mut self, input: &mut Input<'_>) -> Option<()> {
        let what = input.byte()?;
        self.config.policy = Policy::ALL[usize::from(what) % Policy::ALL.len()];
        self.config.police_udp = what & 0x40 != 0;
        self.config.weight_cap = u32::from(what >> 4 & 3);
        self.config.capacity = u64::from(input.u16()?) << (what & 31);
        self.config.minimum = u64::from(input.u16()?);
        self.config.burst = u32::from(input.u16()?) << 3;
        for port in &mut self.ports {
            port.configure(self.config.clone(), self.now);
        }
        self.allocator.configure(&self.config);
        self.demands.configure(&self.config);
        let _ = steps::take();
        self.divide();
        self.check_rates();
        Some(())
    }

    /// As the switch does when the number of a VM's active connections has changed.
    fn divide(&mut self) {
        for vm in 0..VMS {
            let demand = Demand { weight: self.weight(vm), limit: None };
            let changed = self.allocator.set(vm, demand);
            self.charge(division_cost(VMS as u64));
            if !changed {
                continue;
            }
            for (port, &rate) in self.ports.iter_mut().zip(self.allocator.rates()) {
                port.set_rate(rate, self.now);
            }
        }
    }

    fn weight(&self, vm: usize) -> u32 {
        self.config.policy.weight(self.ports[vm].active(), self.config.weight_cap, vm as u32 + 1)
    }

    /// What VMs do not use is lent to the others.
    fn lend(&mut self) {
        let now = self.now;
        let limits: Vec<_> = self.ports.iter_mut().map(|port| port.limit(now)).collect();
        let demands: Vec<_> =
            (0..VMS).map(|vm| Demand { weight: self.weight(vm), limit: limits[vm] }).collect();
        self.allocator.set_all(demands);
        for (port, &rate) in self.ports.iter_mut().zip(self.allocator.rates()) {
            port.set_rate(rate, now);
        }
        self.charge(division_cost(VMS as u64));
        self.check_rates();
    }

    /// A VM asks for anything.
    fn demand(&mut self, input: &mut Input<'_>) -> Option<()> {
        let (vm, how) = (usize::from(input.byte()?) % DEMANDS, input.byte()?);
        let weight = u32::from(input.u16()?) << (how & 15);
        let limit = u64::from(input.u16()?) << (how >> 4 << 1);
        let limit = (how & 16 == 0).then_some(limit);
        self.demands.set(vm, Demand { weight, limit });
        self.charge(division_cost(DEMANDS as u64));
        self.check_rates();
        Some(())
    }

    /// Many peers say the same at once: SYNs, or what they did not say before.
    fn flood(&mut self, input: &mut Input<'_>) -> Option<()> {
        let (vm, first, count) = (input.vm()?, u16::from(input.byte()?), u16::from(input.byte()?));
        let what = input.byte()?;
        for n in first..first + count {
            let flow = tuple(vm, 100 + n);
            let flags = [Flags::SYN, Flags::ACK, Flags::RST][usize::from(what) % 3];
            let syn = Segment { seq: Seq(5), flags, window: 1000, ..Segment::default() };
            self.peer_sends(vm, &flow, &syn);
            if what & 64 != 0 {
                let flags = Flags::SYN.with(Flags::ACK);
                let answer = Segment { seq: Seq(50), ack: Seq(6), flags, ..syn };
                self.vm_sends(vm, &flow, &answer, true);
            }
            if what & 128 != 0 {
                let ack = Segment { seq: Seq(6), ack: Seq(51), flags: Flags::ACK, ..syn };
                self.peer_sends(vm, &flow, &ack);
            }
        }
        Some(())
    }

    fn stop(&mut self, input: &mut Input<'_>) -> Option<()> {
        let (vm, now) = (input.vm()?, self.now);
        if input.byte()? % 2 == 0 {
            self.ports[vm].reset(now);
        } else {
            self.ports[vm].stop(now, &mut Network);
        }
        // Each connection is looked at twice, and leaves its line.
        self.charge(u64::from(KNOWN) * 4 + SEARCH_COST);
        assert_eq!((self.ports[vm].connections(), self.ports[vm].waiting()), (0, 0));
        self.divide();
        Some(())
    }

    fn check(&self) {
        for port in &self.ports {
            assert!(port.active() <= port.connections() && port.connections() <= KNOWN);
            // For an edge, where those that are gone are counted for a while.
            assert!(port.queue.len() <= 2 * KNOWN as usize + 65, "{} in turn", port.queue.len());
            let waits = |found: &FlowRef<'_, Connection<Kept>>| found.flow.waiting.is_some();
            let waiting = port.flows.iter_from(0, KNOWN).filter(waits).count();
            assert_eq!(port.requests.len() + port.syn_acks.len(), waiting, "in lines");
        }
        let most = 2 * KNOWN * VMS as u32;
        assert!(self.alive.get() <= most, "{} frames are kept", self.alive.get());
    }

    fn check_rates(&self) {
        for (allocator, vms) in [(&self.allocator, VMS), (&self.demands, DEMANDS)] {
            let sum: u128 = allocator.rates().iter().map(|&rate| u128::from(rate)).sum();
            assert_eq!(sum, u128::from(self.config.capacity), "N4");
            let low = self.config.minimum.min(self.config.capacity / vms as u64);
            assert!(allocator.rates().iter().all(|&rate| rate >= low), "N4");
        }
    }

    /// Everybody falls silent: what waits leaves, nothing counts as active, and nothing is kept for who is gone.
    fn end(&mut self) {
        self.wait(MAX_HOLD + 2 * TICK);
        for port in &self.ports {
            let mut known = port.flows.iter_from(0, KNOWN);
            let waits = |latest| latest != Instant::NEVER;
            assert!(!known.any(|found| waits(found.flow.latest())), "what waits is stuck");
            assert_eq!((port.requests.len(), port.syn_acks.len()), (0, 0), "who waits is stuck");
        }
        self.wait(self.config.idle + 2 * TICK);
        for vm in 0..VMS {
            assert_eq!(self.ports[vm].active(), 0);
            self.ports[vm].reset(self.now);
        }
        assert_eq!(self.alive.get(), 0, "frames of forgotten connections");
    }
}

/// A number that is as expected, near it, or any.
fn near(expected: Seq, how: u8, input: &mut Input<'_>) -> Option<Seq> {
    Some(match how {
        0 | 1 => expected,
        2 => Seq(expected.0.wrapping_add_signed(i32::from(input.u16()? as i16))),
        _ => Seq(u32::from(input.u16()?) << 16 | u32::from(input.u16()?)),
    })
}

fn tuple(vm: usize, n: u16) -> FiveTuple {
    let address = |a, b| std::net::Ipv4Addr::new(10, 0, a, b);
    FiveTuple::v4(address(0, vm as u8), address(1, 0), 6).with_ports(80, n)
}

/// What is left of an input.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn byte(&mut self) -> Option<u8> {
        let (&first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(first)
    }

    fn u16(&mut self) -> Option<u16> {
        Some(u16::from_le_bytes([self.byte()?, self.byte()?]))
    }

    fn vm(&mut self) -> Option<usize> {
        Some(usize::from(self.byte()?) % VMS)
    }

    fn connection(&mut self) -> Option<usize> {
        Some(usize::from(self.byte()?) % CONNECTIONS)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn seeds_of_the_fuzz_target_hold() {
        let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/seeds/inbound");
        let seeds = std::fs::read_dir(dir).expect("seeds").map(|seed| seed.expect("a seed").path());
        let fed = seeds.map(|seed| inbound(&std::fs::read(seed).expect("a seed"))).count();
        assert!(fed >= 3, "{fed} seeds");
    }

    proptest! {
        #[test]
        fn any_traffic_and_settings_keep_the_invariants(input in prop::collection::vec(any::<u8>(), 0..1500)) {
            inbound(&input);
        }
    }
}
