//! Runs a row, and compares what happened with what it says.

use std::fmt::Write;
use std::net::{Ipv4Addr, Ipv6Addr};

use floodway_core::offload::{Config, EarlyAck, Segment};
use floodway_core::time::{Duration, Instant};
use floodway_wire::FiveTuple;
use floodway_wire::tcp::Flags;

use super::parse::ZERO;
use super::row::{
    Event, GUEST_ISN, Line, PEER_ISN, Row, Runs, SegmentText, Setup, Shown, Timestamps,
};
use super::sender::{Sender, clock};
use crate::harness::packet::Packet;
use crate::harness::switch::{Action, Switch};

/// Events agree if they are not further apart than this.
const TOLERANCE: Duration = Duration::from_millis(2);
/// Ahead of the guest's clock.
const PEER_CLOCK: u32 = 1000;

/// What left the switch, with the time.
type Seen = Vec<(Instant, Packet)>;

/// One run of a row.
struct Run<'a> {
    setup: &'a Setup,
    now: Instant,
    switch: Switch,
    flow: FiveTuple,
    guest: Option<Sender>,
    wire: Seen,
    vm: Seen,
    /// Latest clocks of the guest, as the network saw it, and of the peer.
    clocks: (u32, u32),
}

fn flow(ipv6: bool) -> FiveTuple {
    let flow = if ipv6 {
        let address = |n| Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, n);
        FiveTuple::v6(address(1), address(2), 6)
    } else {
        FiveTuple::v4(Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2), 6)
    };
    flow.with_ports(40_000, 80)
}

impl<'a> Run<'a> {
    fn new(row: &'a Row, on: bool) -> Self {
        let setup = &row.setup;
        let config = Config {
            transmit: on && setup.transmit,
            receive: on && setup.receive,
            congestion: setup.congestion,
            initial_window: setup.initial_window,
            min_rto: setup.switch_min_rto,
            early_ack: if setup.early { EarlyAck::Always } else { EarlyAck::Never },
            early_ack_min_rtt: Duration::ZERO,
            ..Config::default()
        };
        Self {
            setup,
            now: ZERO - setup.rtt,
            switch: Switch::new(config),
            flow: flow(setup.ipv6),
            guest: row.is_live().then(|| Sender::new(setup)),
            wire: Vec::new(),
            vm: Vec::new(),
            clocks: (0, 0),
        }
    }

    fn syn(&self, of_peer: bool) -> SegmentText {
        let setup = self.setup;
        let answers = of_peer != setup.passive;
        let scale = setup.peer_scale.filter(|_| of_peer).unwrap_or(setup.scale);
        let mss = setup.peer_mss.filter(|_| of_peer).unwrap_or(setup.mss);
        let flags = if answers { Flags::SYN.with(Flags::ACK) } else { Flags::SYN };
        let ecn = if answers { Flags::ECE } else { Flags::ECE.with(Flags::CWR) };
        SegmentText {
            flags: if setup.ecn { flags.with(ecn) } else { flags },
            ack: answers.then_some(1),
            window: Some((u32::from(setup.window) << scale.unwrap_or(0)).min(65_535) as u16),
            mss: (!setup.no_mss).then_some(mss),
            scale,
            sack_permitted: setup.sack,
            ..SegmentText::default()
        }
    }

    /// The handshake ends at time 0.
    fn open(&mut self) {
        if self.setup.closed {
            return;
        }
        let (guest, peer) = (self.syn(false), self.syn(true));
        let last =
            SegmentText { flags: Flags::ACK, seq: 1, ack: Some(1), ..SegmentText::default() };
        if self.setup.passive {
            self.peer(&peer);
            self.guest(&guest);
            self.advance(ZERO);
            self.peer(&last);
        } else {
            for _ in 0..=usize::from(self.setup.syn_repeated) {
                self.guest(&guest);
            }
            self.advance(ZERO);
            self.peer(&peer);
            self.guest(&last);
        }
        if let Some(guest) = self.guest.as_mut().filter(|_| !self.setup.syn_repeated) {
            guest.sample(self.setup.rtt);
        }
        self.settle();
        self.wire.clear();
        self.vm.clear();
    }

    /// Clocks for a segment that gives none, if the connection has them.
    fn timestamps(&self, own: u32, echo: u32) -> Option<Timestamps> {
        self.setup.timestamps.then(|| Timestamps { value: own + clock(self.now), echo })
    }

    fn guest(&mut self, text: &SegmentText) {
        let clock = self.timestamps(0, self.clocks.1);
        let packet = text.packet(GUEST_ISN, PEER_ISN, self.setup.window, clock);
        self.switch.guest_sends(self.now, &self.flow, &packet);
        self.carry_out();
    }

    fn peer(&mut self, text: &SegmentText) {
        let clock = self.timestamps(PEER_CLOCK, self.clocks.0);
        let packet = text.packet(PEER_ISN, GUEST_ISN, self.setup.window, clock);
        self.clocks.1 = packet.timestamps().map_or(0, |t| t.value);
        self.switch.peer_sends(self.now, &self.flow, &packet);
        self.carry_out();
        self.switch.offload.on_delivered(true);
    }

    fn run(mut self, row: &Row, on: bool) -> (Seen, Seen) {
        self.open();
        for line in row.lines.iter().filter(|line| line.runs.has(on)) {
            self.advance(line.at);
            self.inject(&line.event);
            self.settle();
        }
        self.advance(row.end);
        (self.wire, self.vm)
    }

    fn inject(&mut self, event: &Event) {
        let now = self.now;
        match event {
            Event::Guest(text) => self.guest(text),
            Event::Peer(text) => self.peer(text),
            Event::Wire(_) | Event::Vm(_) => {}
            Event::Write(bytes) => self.live(|guest| guest.write(*bytes, now)),
            Event::Close => self.live(|guest| guest.close(now)),
            Event::TooBig { seq, mtu } => self.too_big(*seq, *mtu),
        }
    }

    fn live(&mut self, act: impl FnOnce(&mut Sender)) {
        if let Some(guest) = &mut self.guest {
            act(guest);
        }
        self.send();
    }

    fn too_big(&mut self, seq: u32, mtu: u32) {
        let (now, actions) = (self.now, &mut self.switch.actions);
        let number = floodway_core::seq::Seq(GUEST_ISN.wrapping_add(seq));
        self.switch.offload.too_big(now, &self.flow, number, mtu, actions);
        self.carry_out();
        // No path of IPv6 takes less than 1280 (RFC 8200 section 5).
        let (least, headers) = if self.setup.ipv6 { (1280, 60) } else { (68, 40) };
        let mss = i64::from(mtu.max(least)) - headers - if self.setup.timestamps { 12 } else { 0 };
        self.live(|guest| guest.too_big(seq.into(), mss, now));
    }

    /// Lets time pass until `end`; timers that are due at `end` have run.
    fn advance(&mut self, end: Instant) {
        loop {
            let guest = self.guest.as_ref().map_or(Instant::NEVER, Sender::next);
            let next = guest.min(self.switch.offload.next_timeout());
            if next > end {
                break;
            }
            self.now = self.now.max(next);
            self.switch.on_time(self.now);
            self.carry_out();
            let now = self.now;
            if guest <= now {
                self.live(|guest| guest.on_time(now));
            }
            self.settle();
        }
        self.now = end;
    }

    fn settle(&mut self) {
        self.switch.flush(self.now);
        self.carry_out();
    }

    /// Sends what the live guest has put out.
    fn send(&mut self) {
        let Some(guest) = &mut self.guest else { return };
        for packet in guest.take_out() {
            self.switch.guest_sends(self.now, &self.flow, &packet);
            self.carry_out();
        }
    }

    fn carry_out(&mut self) {
        for action in self.switch.take_actions() {
            match action {
                Action::ToNetwork(packet) => {
                    let at = packet.segment.seq.0.wrapping_sub(GUEST_ISN);
                    let right = packet.segment.len == 0 || packet.at as u32 == at;
                    assert!(right, "bytes that are not those of their place");
                    self.clocks.0 = packet.timestamps().map_or(0, |t| t.value);
                    self.wire.extend(packet.segments().map(|segment| (self.now, segment)));
                }
                Action::ToGuest(packet) | Action::Redeliver(packet) => self.deliver(&packet),
                Action::Name(_, naming) => {
                    let managed = naming == floodway_core::offload::FlowNotice::Managed;
                    if let Some(guest) = &mut self.guest {
                        guest.managed = managed;
                    }
                }
                // No row has a guest that reads names.
                Action::Heartbeat | Action::NameInside => {}
            }
        }
    }

    fn deliver(&mut self, packet: &Packet) {
        let now = self.now;
        self.vm.push((now, packet.clone()));
        self.live(|guest| guest.on_packet(packet, now));
    }
}

/// A line of a script beside what happened.
struct Pair<'a> {
    line: Option<&'a Line>,
    seen: Option<&'a (Instant, Packet)>,
    good: bool,
}

fn pair_up<'a>(lines: &[&'a Line], seen: &'a Seen, push: bool) -> Vec<Pair<'a>> {
    let pair = |n: usize| {
        let (line, seen) = (lines.get(n).copied(), seen.get(n));
        let good = line.zip(seen).is_some_and(|(line, seen)| is_as_written(line, seen, push));
        Pair { line, seen, good }
    };
    (0..lines.len().max(seen.len())).map(pair).collect()
}

fn is_as_written(line: &Line, (at, packet): &(Instant, Packet), push: bool) -> bool {
    let in_time = at.since(line.at).max(line.at.since(*at)) <= TOLERANCE;
    in_time
        && match &line.event {
            Event::Wire(text) => text.matches(GUEST_ISN, PEER_ISN, packet, push),
            Event::Vm(text) => text.matches(PEER_ISN, GUEST_ISN, packet, true),
            _ => false,
        }
}

/// Checks a row. Returns what is wrong with it.
pub fn check(row: &Row) -> Result<(), String> {
    let off = Run::new(row, false).run(row, false);
    let on = Run::new(row, true).run(row, true);
    let (push, mut faults) = (row.setup.push, String::new());
    for (wire, [off, on]) in [(true, [&off.0, &on.0]), (false, [&off.1, &on.1])] {
        let lines: Vec<_> = row.lines.iter().filter(|line| is_output(line, wire)).collect();
        if !wire && lines.is_empty() {
            continue;
        }
        let of = |on: bool| -> Vec<&Line> {
            lines.iter().copied().filter(|line| line.runs.has(on)).collect()
        };
        let (off_pairs, on_pairs) = (pair_up(&of(false), off, push), pair_up(&of(true), on, push));
        report(row, false, &off_pairs, wire, &mut faults);
        report(row, true, &on_pairs, wire, &mut faults);
        if faults.is_empty() && wire {
            compare(&off_pairs, &on_pairs, push, &mut faults);
        }
        if faults.is_empty() {
            unused(&lines, &off_pairs, &on_pairs, push, &mut faults);
        }
    }
    if faults.is_empty() {
        return Ok(());
    }
    Err(format!("[{}] {}: {}\n{faults}", row.name, row.source, row.rule))
}

fn is_output(line: &Line, wire: bool) -> bool {
    if wire { matches!(line.event, Event::Wire(_)) } else { matches!(line.event, Event::Vm(_)) }
}

/// What both runs have in common is the same in every field, but for PSH if that is not looked at.
fn compare(off: &[Pair<'_>], on: &[Pair<'_>], push: bool, faults: &mut String) {
    let looked_at = |segment: &Segment| {
        let mut segment = *segment;
        segment.flags = if push { segment.flags } else { segment.flags.without(Flags::PSH) };
        segment
    };
    let common = |pair: &&Pair<'_>| pair.line.is_some_and(|line| line.runs == Runs::Both);
    for (off, on) in off.iter().filter(common).zip(on.iter().filter(common)) {
        let (Some(line), Some((_, a)), Some((_, b))) = (off.line, off.seen, on.seen) else {
            continue;
        };
        if looked_at(&a.segment) != looked_at(&b.segment) {
            let shown = |packet| Shown(packet, GUEST_ISN, PEER_ISN);
            let _ = writeln!(faults, "  differs between off and on: {}", line.text);
            let _ = writeln!(faults, "    off {}\n    on  {}", shown(a), shown(b));
        }
    }
}

/// A difference that is listed has to be one: the other run has nothing that fits the line.
fn unused(lines: &[&Line], off: &[Pair<'_>], on: &[Pair<'_>], push: bool, faults: &mut String) {
    for line in lines.iter().filter(|line| line.runs != Runs::Both) {
        let other = if line.runs == Runs::On { off } else { on };
        let differing = other.iter().filter(|pair| pair.line.is_some_and(|l| l.runs != Runs::Both));
        let found =
            differing.filter_map(|pair| pair.seen).any(|seen| is_as_written(line, seen, push));
        if found {
            let _ = writeln!(faults, "  no difference: {}", line.text);
        }
    }
}

/// Expected and actual side by side, if they are not the same.
fn report(row: &Row, on: bool, pairs: &[Pair<'_>], wire: bool, faults: &mut String) {
    if pairs.iter().all(|pair| pair.good) {
        return;
    }
    let place = if wire { "wire" } else { "vm" };
    let run = if on { "on" } else { "off" };
    let _ = writeln!(faults, "  {place}, offload {run} ({}):", row.file);
    let _ = writeln!(faults, "   {:<52} | actual", "expected");
    let time = |at: Instant| (at.as_nanos() as f64 - ZERO.as_nanos() as f64) / 1e9;
    for pair in pairs {
        let expected =
            pair.line.map_or("(nothing)".into(), |l| format!("{:.4} {}", time(l.at), l.text));
        let (isn, other) = if wire { (GUEST_ISN, PEER_ISN) } else { (PEER_ISN, GUEST_ISN) };
        let actual = pair.seen.map_or("(nothing)".into(), |(at, packet)| {
            format!("{:.4} {place}> {}", time(*at), Shown(packet, isn, other))
        });
        let mark = if pair.good { ' ' } else { '!' };
        let _ = writeln!(faults, " {mark} {expected:<52} | {actual}");
    }
}
