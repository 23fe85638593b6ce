//! Two endpoints, a network, and the offload between them, in virtual time.
//!
//! The *guest* is a TCP that runs only when it has a CPU ([`Cpu`]); the *peer* is one that always runs.
//! Both are [`tcp::Endpoint`]s. Frames of the guest come to the [`switch::Switch`] at once, frames
//! to it wait in its queue until it runs. Between switch and peer lie two [`network::Path`]s. A
//! [`monitor::Monitor`] checks the invariants at every packet. Everything follows from the seed.

pub mod cases;
mod delivered;
pub mod dying;
mod early_ack;
mod forging;
pub mod handing_over;
pub mod monitor;
mod moving;
pub mod network;
pub mod packet;
pub mod pcap;
pub mod random;
mod reference;
mod stopping;
pub mod switch;
pub mod tcp;

use std::collections::VecDeque;
use std::net::Ipv4Addr;

use floodway_core::offload::{Config, FlowNotice, Verdict};
use floodway_core::seq::Seq;
use floodway_core::time::{Duration, Instant};
use floodway_wire::FiveTuple;
use floodway_wire::tcp::Flags;

use monitor::{Monitor, View};
use network::{Mercy, Path, PathConfig};
use packet::{Packet, unwrap};
use pcap::Capture;
use random::Random;
use switch::{Action, Switch};
use tcp::{Endpoint, TcpConfig};

/// When the guest has a CPU.
#[derive(Clone, Debug)]
pub struct CpuConfig {
    /// It runs for this long, at random between the bounds; and is away for this long.
    pub runs: (Duration, Duration),
    pub away: (Duration, Duration),
}

impl CpuConfig {
    /// It always runs.
    pub const ALWAYS: Self = Self {
        runs: (Duration::from_secs(3600), Duration::from_secs(3600)),
        away: (Duration::ZERO, Duration::ZERO),
    };
}

#[derive(Debug)]
struct Cpu {
    config: CpuConfig,
    random: Random,
    running: bool,
    until: Instant,
    /// The VM is stopped: see [`World::stop_guest`].
    stopped: bool,
}

impl Cpu {
    fn advance(&mut self, now: Instant) {
        while self.until <= now {
            self.running = !self.running;
            let (least, most) = if self.running { self.config.runs } else { self.config.away };
            self.until += self.random.between(least, most);
        }
    }

    /// When it runs next, from `now` on.
    fn next_run(&self, at: Instant) -> Instant {
        if self.stopped {
            return Instant::NEVER;
        }
        if self.running { at } else { at.max(self.until) }
    }
}

/// Everything that a run follows from.
#[derive(Clone, Debug)]
pub struct Setup {
    pub name: &'static str,
    pub seed: u64,
    pub offload: Config,
    pub guest: TcpConfig,
    pub peer: TcpConfig,
    pub to_peer: PathConfig,
    pub to_guest: PathConfig,
    pub cpu: CpuConfig,
    /// Packets to the guest that its queue drops, in 1/1000.
    pub queue_drops: u32,
    /// Packets in its queue that the guest drops unread, in 1/1000.
    pub guest_drops: u32,
    /// The guest knows what a managed flow is.
    pub module: bool,
    /// The path is alive: see [`Mercy`].
    pub mercy: Option<u32>,
    /// Packets that do not come to the switch's offload, in either direction, in 1/1000.
    pub bypass: u32,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            name: "run",
            seed: 1,
            offload: Config {
                transmit: true,
                receive: true,
                early_ack_min_rtt: Duration::ZERO,
                ..Config::default()
            },
            guest: TcpConfig::default(),
            peer: TcpConfig { isn: 3_000_000_000, clock: 4_000_000, ..TcpConfig::default() },
            to_peer: PathConfig::default(),
            to_guest: PathConfig::default(),
            cpu: CpuConfig::ALWAYS,
            queue_drops: 0,
            guest_drops: 0,
            module: true,
            mercy: None,
            bypass: 0,
        }
    }
}

pub struct World {
    pub name: &'static str,
    pub now: Instant,
    pub switch: Switch,
    pub guest: Endpoint,
    pub peer: Endpoint,
    pub to_peer: Path,
    pub to_guest: Path,
    pub monitor: Monitor,
    pub flow: FiveTuple,
    /// What the guest's module knows.
    pub named: Vec<FlowNotice>,
    pub heartbeats: u64,
    pub absorbed: u64,
    pub refused: u64,
    /// What was delivered again, with what the peer had acknowledged by then.
    pub redelivered: Vec<(Packet, Seq)>,
    cpu: Cpu,
    random: Random,
    /// Packets to the guest that its queue drops, in 1/1000.
    pub queue_drops: u32,
    /// Packets in its queue that the guest drops unread, in 1/1000.
    pub guest_drops: u32,
    module: bool,
    mercy: Mercy,
    /// As in [`Setup`].
    pub bypass: u32,
    to_network_count: u64,
    to_guest_count: u64,
    /// Frames that wait for the guest to run, unless its receive rings have stopped.
    inbox: VecDeque<Packet>,
    rings_stopped: bool,
    /// The latest frame for the guest has found room in its queue.
    is_queued: bool,
    guest_capture: Capture,
    wire_capture: Capture,
    /// Where the switch records what it acknowledges, if it does.
    journal: Option<dying::Lease>,
}

/// The flow in the guest's direction.
pub fn flow(port: u16) -> FiveTuple {
    FiveTuple::v4(Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2), 6).with_ports(port, 80)
}

impl World {
    pub fn new(setup: Setup) -> Self {
        let mut random = Random::new(setup.seed);
        let cpu = Cpu {
            config: setup.cpu,
            random: Random::new(random.next()),
            running: false,
            until: Instant::ZERO,
            stopped: false,
        };
        Self {
            name: setup.name,
            now: Instant::from_millis(10),
            switch: Switch::new(setup.offload),
            guest: Endpoint::new(setup.guest),
            peer: Endpoint::new(setup.peer),
            to_peer: Path::new(true, setup.to_peer, random.next()),
            to_guest: Path::new(false, setup.to_guest, random.next()),
            monitor: Monitor::default(),
            flow: flow(40_000),
            named: Vec::new(),
            heartbeats: 0,
            absorbed: 0,
            refused: 0,
            redelivered: Vec::new(),
            cpu,
            random,
            queue_drops: setup.queue_drops,
            guest_drops: setup.guest_drops,
            module: setup.module,
            mercy: Mercy::new(setup.mercy),
            bypass: setup.bypass,
            to_network_count: 0,
            to_guest_count: 0,
            inbox: VecDeque::new(),
            rings_stopped: false,
            is_queued: false,
            guest_capture: Capture::default(),
            wire_capture: Capture::default(),
            journal: None,
        }
    }

    /// The guest connects to a peer that listens, until both know.
    pub fn connect(&mut self) {
        self.peer.listen();
        self.guest.connect(self.now);
        self.run_until(Duration::from_secs(60), |w| {
            w.guest.is_established() && w.peer.is_established()
        });
    }

    /// The peer connects to a guest that listens.
    pub fn accept(&mut self) {
        self.guest.listen();
        self.peer.connect(self.now);
        self.run_until(Duration::from_secs(60), |w| {
            w.guest.is_established() && w.peer.is_established()
        });
    }

    /// Transfers bytes both ways, closes from both sides, and checks that all came, within
    /// `limit`.
    pub fn transfer(&mut self, up: i64, down: i64, limit: Duration) {
        let now = self.now;
        self.guest.write(up, now);
        self.guest.close(now);
        self.peer.write(down, now);
        self.peer.close(now);
        self.run_until(limit, |w| w.guest.is_closed() && w.peer.is_closed());
        self.check_received(self.guest.tx.written - 1, self.peer.tx.written - 1);
    }

    /// Transfers bytes both ways and lets the connection open, until it is quiet.
    pub fn transfer_some(&mut self, up: i64, down: i64) {
        let now = self.now;
        let (ups, downs) = (self.peer.rx.bytes() + up, self.guest.rx.bytes() + down);
        self.guest.write(up, now);
        self.peer.write(down, now);
        self.run_until(Duration::from_secs(30), |w| {
            w.peer.rx.bytes() == ups && w.guest.rx.bytes() == downs
        });
        self.run_for(Duration::from_millis(300));
    }

    /// I7: the guest had no reason to repeat anything.
    pub fn check_i7(&self) {
        let counts = self.guest.tx.counts;
        assert_eq!((counts.segments, counts.timeouts), (0, 0), "I7");
    }

    /// Both ends begin anew with other numbers, and know nothing of the connection before.
    pub fn restart(&mut self, round: u32) {
        let mut guest = self.guest.config.clone();
        let mut peer = self.peer.config.clone();
        let ahead = 10_000_000 * round;
        guest.isn = guest.isn.wrapping_add(ahead);
        peer.isn = peer.isn.wrapping_add(ahead);
        self.guest = Endpoint::new(guest);
        self.peer = Endpoint::new(peer);
        self.inbox.clear();
        self.monitor = Monitor::default();
        self.monitor.note_counters(&self.switch.offload.counters());
    }

    /// Packets that the network and the guest got from the switch.
    pub fn passed_to_network(&self) -> u64 {
        self.to_network_count
    }

    pub fn passed_to_guest(&self) -> u64 {
        self.to_guest_count
    }

    /// The guest has seen ECE outside of a handshake.
    pub fn guest_was_echoed(&self) -> bool {
        self.guest_capture.any(|from_guest, packet| {
            let flags = packet.segment.flags;
            !from_guest && flags.contains(Flags::ECE) && !flags.contains(Flags::SYN)
        })
    }

    /// Segments that told the guest of something that it had sent twice.
    pub fn dsacks_to_guest(&self) -> u64 {
        self.guest_capture.count(|from_guest, packet| {
            let (ack, blocks) = (packet.segment.ack, packet.segment.options.sack_blocks());
            !from_guest && blocks.first().is_some_and(|block| !Seq(block.right).after(ack))
        })
    }

    /// Packets that left for the network and are what `what` says.
    pub fn count_on_wire(&self, what: impl Fn(&Packet) -> bool) -> u64 {
        self.wire_capture.count(|from_guest, packet| from_guest && what(packet))
    }

    /// Packets with payload that the network saw more than once.
    pub fn wire_repeats(&self) -> usize {
        self.wire_capture.repeats()
    }

    /// I2.
    pub fn check_received(&self, up: i64, down: i64) {
        assert_eq!(self.peer.rx.bytes(), up, "bytes from the guest");
        assert_eq!(self.guest.rx.bytes(), down, "bytes to the guest");
    }

    /// Runs until `done`; panics if that is not so within `limit`.
    pub fn run_until(&mut self, limit: Duration, done: impl Fn(&Self) -> bool) {
        let end = self.now + limit;
        while !done(self) {
            let state = (self.guest.state, self.peer.state);
            let summary = self.switch.summary(&self.flow);
            assert!(
                self.step(end),
                "not done after {limit:?}: {state:?} up {}/{} down {}/{} {summary:?} {:?}",
                self.peer.rx.bytes(),
                self.guest.tx.written - 1,
                self.guest.rx.bytes(),
                self.peer.tx.written - 1,
                self.switch.offload.counters(),
            );
        }
    }

    /// Runs for a time.
    pub fn run_for(&mut self, time: Duration) {
        let end = self.now + time;
        while self.step(end) {}
        self.now = end;
        self.cpu.advance(end);
    }

    /// The next event, unless it is after `end`.
    fn step(&mut self, end: Instant) -> bool {
        let mut guest = self.guest.next();
        if !self.inbox.is_empty() || self.guest.has_output() {
            guest = self.now;
        }
        let peer = if self.peer.has_output() { self.now } else { self.peer.next() };
        let guest = self.cpu.next_run(guest.max(self.now));
        let next = guest
            .min(peer)
            .min(self.to_peer.next())
            .min(self.to_guest.next())
            .min(self.switch.next_timeout())
            .max(self.now);
        if next > end || next == Instant::NEVER {
            return false;
        }
        self.now = next;
        self.cpu.advance(next);
        self.handle();
        true
    }

    fn handle(&mut self) {
        let now = self.now;
        self.send_from_peer();
        self.switch_on_time();
        while let Some(packet) = self.to_peer.pop(now) {
            self.peer.on_packet(&packet, now);
            self.send_from_peer();
        }
        while let Some(packet) = self.to_guest.pop(now) {
            self.network_packet(&packet);
        }
        self.flush();
        if self.peer.next() <= now {
            self.peer.on_time(now);
        }
        self.send_from_peer();
        if self.cpu.running && !self.cpu.stopped {
            self.run_guest();
        }
        self.tell_of_path();
    }

    fn run_guest(&mut self) {
        let now = self.now;
        while let Some(packet) = self.inbox.pop_front() {
            self.guest.on_packet(&packet, now);
        }
        if self.guest.next() <= now {
            self.guest.on_time(now);
        }
        self.send_from_guest();
        self.flush();
    }

    /// Routers say which segments of the guest were too large, to the switch and to the guest.
    fn tell_of_path(&mut self) {
        let overhead = if self.guest.config.timestamps { 52 } else { 40 };
        while let (Some(seq), Some(largest)) = (self.to_peer.too_large.pop(), self.to_peer.largest)
        {
            self.monitor.too_large(largest);
            let now = self.switch.time(self.now);
            let sink = &mut self.switch.actions;
            self.switch.offload.too_big(now, &self.flow, seq, largest + overhead, sink);
            self.carry_out();
            self.guest.too_big(largest as u16, self.now);
        }
    }

    fn send_from_peer(&mut self) {
        for packet in self.peer.take_out() {
            self.to_guest.send(self.now, &packet, &mut self.mercy);
        }
    }

    /// What the guest has put into its transmit queue comes to the switch.
    pub fn send_from_guest(&mut self) {
        for packet in self.guest.take_out() {
            self.guest_packet(&packet);
        }
    }

    /// A packet comes from the guest.
    pub fn guest_packet(&mut self, packet: &Packet) -> Verdict {
        let (now, flow) = (self.now, self.flow);
        self.guest_capture.note(now, true, packet);
        if self.bypass > 0 && self.random.permille(self.bypass) {
            self.to_peer.send(now, packet, &mut self.mercy);
            return Verdict::PASS;
        }
        self.monitor.guest_sent(packet);
        let offline = self.is_offline();
        let verdict = self.switch.guest_sends(now, &flow, packet);
        self.monitor.verdict(&verdict, offline && self.is_offline());
        self.note(&verdict);
        self.carry_out();
        verdict
    }

    /// A packet comes from the network.
    pub fn network_packet(&mut self, packet: &Packet) -> Verdict {
        let (now, flow) = (self.now, self.flow);
        self.wire_capture.note(now, false, packet);
        if self.bypass > 0 && self.random.permille(self.bypass) {
            self.queue_for_guest(packet.clone());
            return Verdict::PASS;
        }
        self.is_queued = false;
        let una = self.guest.tx.una;
        self.mercy.heard(unwrap(una, self.guest.config.isn, packet.segment.ack));
        self.monitor.peer_sent(packet, now);
        let offline = self.is_offline();
        let verdict = self.switch.peer_sends(now, &flow, packet);
        self.monitor.verdict(&verdict, offline && self.is_offline());
        self.note(&verdict);
        self.carry_out();
        // What passes comes last.
        self.switch.offload.on_delivered(self.is_queued);
        verdict
    }

    /// What the peer has acknowledged, by what has come to the switch.
    pub fn wire_una(&self) -> Seq {
        self.guest.seq(self.monitor.wire_una())
    }

    /// All that the network and the guest have seen.
    pub fn captures(&self) -> (&Capture, &Capture) {
        (&self.wire_capture, &self.guest_capture)
    }

    fn note(&mut self, verdict: &Verdict) {
        match verdict {
            Verdict::Absorb => self.absorbed += 1,
            Verdict::Drop(_) => self.refused += 1,
            Verdict::Pass(_) => {}
        }
    }

    fn is_offline(&self) -> bool {
        use floodway_core::offload::{RxState, TxState};
        self.switch
            .summary(&self.flow)
            .is_none_or(|s| s.tx == TxState::Offline && s.rx == RxState::Offline && s.kept == 0)
    }

    fn switch_on_time(&mut self) {
        // What is due may take several calls.
        while self.switch.next_timeout() <= self.now {
            self.switch.on_time(self.now);
            self.carry_out();
        }
    }

    /// Ends a batch.
    pub fn flush(&mut self) {
        self.switch.flush(self.now);
        self.carry_out();
    }

    pub fn configure(&mut self, change: impl FnOnce(&mut Config)) {
        let mut config = self.switch.offload.config().clone();
        change(&mut config);
        let now = self.switch.time(self.now);
        self.switch.offload.configure(config, now, &mut self.switch.actions);
        self.carry_out();
    }

    pub fn drain(&mut self, draining: bool) {
        let now = self.switch.time(self.now);
        self.switch.offload.drain(draining, now, &mut self.switch.actions);
        self.carry_out();
    }

    fn carry_out(&mut self) {
        let actions = self.switch.take_actions();
        let config = self.switch.offload.config().clone();
        let counters = self.switch.offload.counters();
        let view = View {
            now: self.now,
            summary: self.switch.summary(&self.flow),
            counters: &counters,
            used: self.switch.offload.used(),
            config: &config,
        };
        for action in actions {
            match action {
                Action::ToNetwork(packet) => {
                    self.wire_capture.note(self.now, true, &packet);
                    self.to_network_count += 1;
                    self.monitor.network_gets(&packet, &view);
                    self.to_peer.send(self.now, &packet, &mut self.mercy);
                }
                Action::ToGuest(packet) => {
                    self.monitor.guest_gets(&packet, &view);
                    self.queue_for_guest(packet);
                }
                Action::Redeliver(packet) => {
                    self.monitor.guest_gets(&packet, &view);
                    let una = self.peer_segment(0).segment.ack;
                    self.redelivered.push((packet.clone(), una));
                    self.queue_for_guest(packet);
                }
                Action::Heartbeat => self.heartbeats += 1,
                Action::Name(flow, naming) => {
                    assert_eq!(flow, self.flow);
                    self.named.push(naming);
                    self.guest.tx.managed = self.module && naming == FlowNotice::Managed;
                }
                Action::NameInside => self.guest.tx.managed = self.module,
            }
        }
        self.monitor.after(&view);
    }
}

impl World {
    fn queue_for_guest(&mut self, packet: Packet) {
        self.guest_capture.note(self.now, false, &packet);
        self.to_guest_count += 1;
        self.is_queued = !self.rings_stopped && !self.random.permille(self.queue_drops);
        if self.is_queued {
            self.monitor.delivered(&packet);
        }
        if self.is_queued && !self.random.permille(self.guest_drops) {
            self.inbox.push_back(packet);
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        pcap::leave(self.name, &self.guest_capture, &self.wire_capture);
    }
}
