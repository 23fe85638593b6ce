//! A model of what is around the clamp. Senders have no congestion window: they send at once whatever the
//! right edge lets them, which is the worst that a window has to hold back.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::net::Ipv4Addr;

use floodway_core::inbound::allocation::Demand;
use floodway_core::inbound::{Allocator, Config, Sink, Verdict, WindowClamp};
use floodway_core::offload::{Edit, Segment};
use floodway_core::seq::Seq;
use floodway_core::time::{Duration, Instant};
use floodway_wire::FiveTuple;
use floodway_wire::tcp::{Flags, OptionSummary};

pub const MSS: u32 = 1460;
/// Ethernet, IP and TCP headers, and what Ethernet adds to a frame.
pub const HEADERS: u32 = 14 + 20 + 20 + 24;

/// Bytes of a request.
const QUESTION: u32 = 100;

/// What a scene is made of.
#[derive(Clone, Debug)]
pub struct Scene {
    pub config: Config,
    /// Rate of the port in bytes per second.
    pub link: u64,
    /// Bytes that the port can queue.
    pub buffer: u64,
    /// Connections: VM, round trip in microseconds.
    pub connections: Vec<(usize, u64)>,
    pub vms: usize,
    /// What a guest takes for an ACK, in microseconds.
    pub guest_us: u64,
    /// Window scale of the guests.
    pub scale: u8,
    pub seed: u64,
}

impl Scene {
    /// 1 Gbit/s with 128 KiB of buffer, and the clamp knows.
    pub fn gigabit(vms: usize, connections: Vec<(usize, u64)>) -> Self {
        let link = 125_000_000;
        let config = Config { capacity: link, burst: 64 << 10, ..Config::default() };
        Self { config, link, buffer: 128 << 10, connections, vms, guest_us: 20, scale: 7, seed: 1 }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A connection begins or ends.
    Open(usize),
    Close(usize),
    /// Its handshake is complete.
    Established(usize),
    /// A segment of the sender arrives at the port: connection, first byte, length.
    AtPort(usize, u32, u32),
    /// The port is through with it.
    AtHost(usize, u32, u32),
    /// The guest acknowledges what it has.
    Ack(usize),
    /// An ACK reaches the sender: edge.
    AtSender(usize, u32),
    /// The VM asks for an answer of so many bytes, and the request reaches the sender.
    Ask(usize, u32),
    Asked(usize, u32),
    /// A sender that paused goes on.
    Wake(usize),
    /// The clamp's timer of a VM.
    Timer(usize),
}

pub struct Connection {
    pub vm: usize,
    tuple: FiveTuple,
    half: Duration,
    isn: Seq,
    snd_nxt: Seq,
    edge: Seq,
    rcv_nxt: Seq,
    open: bool,
    ack_due: bool,
    guest_seq: Seq,
    /// As they left the clamp.
    advertised_ack: Seq,
    advertised_edge: Seq,
    /// Payload that the guest has.
    pub received: u64,
    /// Nothing is sent before then.
    paused_until: Instant,
    /// Nothing is sent beyond: what was asked for.
    limit: Option<Seq>,
    /// Bytes of the next answer.
    answer: u32,
}

pub struct Network {
    pub scene: Scene,
    pub now: Instant,
    events: BinaryHeap<Reverse<(Instant, u64, Event)>>,
    order: u64,
    pub connections: Vec<Connection>,
    pub ports: Vec<WindowClamp<Frame>>,
    pub allocator: Allocator,
    /// When the clamp's timer of each VM runs out.
    armed: Vec<Instant>,
    link_free: Instant,
    queued: u64,
    pub drops: u64,
    pub deepest: u64,
    random: u64,
}

/// What the clamp keeps: a segment and the number of its connection.
type Frame = (usize, Segment);

/// ACKs that the clamp sends by itself, with the numbers of their connections.
#[derive(Default)]
struct Sent(Vec<Frame>);

impl Sink<Frame> for Sent {
    fn send(&mut self, (number, segment): &Frame, edit: &Edit) {
        self.0.push((*number, edited(segment, edit)));
    }
}

fn edited(segment: &Segment, edit: &Edit) -> Segment {
    Segment {
        seq: edit.seq.unwrap_or(segment.seq),
        ack: edit.ack.unwrap_or(segment.ack),
        window: edit.window.unwrap_or(segment.window),
        ..*segment
    }
}

pub fn tuple(vm: usize, number: usize) -> FiveTuple {
    let guest = Ipv4Addr::new(10, 0, 0, vm as u8 + 1);
    FiveTuple::v4(guest, Ipv4Addr::new(10, 0, 1, 1), 6).with_ports(80, 10_000 + number as u16)
}

impl Network {
    pub fn new(scene: Scene) -> Self {
        let connection = |(number, &(vm, rtt_us)): (usize, &(usize, u64))| {
            // Some sequence numbers wrap.
            let isn = Seq((number as u32).wrapping_mul(0x9e37_79b9));
            Connection {
                vm,
                tuple: tuple(vm, number),
                half: Duration::from_micros(rtt_us / 2),
                isn,
                snd_nxt: isn + 1,
                edge: isn + 1,
                rcv_nxt: isn + 1,
                open: false,
                ack_due: false,
                guest_seq: Seq(77),
                advertised_ack: isn,
                advertised_edge: isn,
                received: 0,
                paused_until: Instant::ZERO,
                limit: None,
                answer: 0,
            }
        };
        let mut network = Self {
            connections: scene.connections.iter().enumerate().map(connection).collect(),
            ports: (0..scene.vms)
                .map(|vm| WindowClamp::new(scene.config.clone(), vm as u64))
                .collect(),
            allocator: Allocator::new(&scene.config, scene.vms),
            armed: vec![Instant::NEVER; scene.vms],
            now: Instant::ZERO,
            events: BinaryHeap::new(),
            order: 0,
            link_free: Instant::ZERO,
            queued: 0,
            drops: 0,
            deepest: 0,
            random: scene.seed | 1,
            scene,
        };
        let weight = network.scene.config.policy.weight(0, 0, 1);
        network.allocator.set_all((0..network.scene.vms).map(|_| Demand { weight, limit: None }));
        network.spread_rates();
        network
    }

    fn at(&mut self, time: Instant, event: Event) {
        self.order += 1;
        self.events.push(Reverse((time, self.order, event)));
    }

    fn random(&mut self, below: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % below.max(1)
    }

    pub fn open(&mut self, number: usize, at: Instant) {
        self.at(at, Event::Open(number));
    }

    /// The connection says nothing but what it is asked for.
    pub fn only_answers(&mut self, number: usize) {
        let connection = &mut self.connections[number];
        connection.limit = Some(connection.isn + 1);
    }

    pub fn ask(&mut self, number: usize, answer: u32, at: Instant) {
        self.at(at, Event::Ask(number, answer));
    }

    /// The connection's sender has nothing to send until `end`.
    pub fn pause(&mut self, number: usize, end: Instant) {
        self.connections[number].paused_until = end;
        self.at(end, Event::Wake(number));
    }

    pub fn close(&mut self, number: usize, at: Instant) {
        self.at(at, Event::Close(number));
    }

    /// Runs until `end`.
    pub fn run(&mut self, end: Instant) {
        while let Some(&Reverse((time, _, event))) = self.events.peek()
            && time <= end
        {
            self.events.pop();
            self.now = time.max(self.now);
            self.happen(event);
        }
        self.now = end;
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Open(number) => self.handshake(number),
            Event::Close(number) => self.finish(number),
            Event::Established(number) => self.established(number),
            Event::AtPort(number, start, len) => self.at_port(number, start, len),
            Event::AtHost(number, start, len) => self.at_host(number, Seq(start), len),
            Event::Ack(number) => self.acknowledge(number),
            Event::AtSender(number, edge) => {
                let edge = Seq(edge);
                let connection = &mut self.connections[number];
                assert!(!edge.before(connection.edge), "N1: an edge was taken back");
                connection.edge = edge;
                self.send(number);
            }
            Event::Wake(number) => self.send(number),
            Event::Ask(number, answer) => self.request(number, answer),
            Event::Asked(number, answer) => {
                let connection = &mut self.connections[number];
                connection.limit = connection.limit.map(|limit| limit + answer);
                self.send(number);
            }
            // An earlier one has taken its place.
            Event::Timer(vm) if self.armed[vm] != self.now => {}
            Event::Timer(vm) => {
                self.armed[vm] = Instant::NEVER;
                let mut sent = Sent::default();
                self.ports[vm].handle_timeout(self.now, &mut sent);
                self.after(vm, &sent);
            }
        }
    }

    fn segment(&self, number: usize, flags: Flags) -> Segment {
        let connection = &self.connections[number];
        let mut options = OptionSummary::default();
        options.mss = flags.contains(Flags::SYN).then_some(MSS as u16);
        options.window_scale = flags.contains(Flags::SYN).then_some(self.scene.scale);
        Segment {
            seq: connection.snd_nxt,
            ack: connection.guest_seq,
            flags,
            options,
            ..Segment::default()
        }
    }

    /// The SYN, and the guest's answer.
    fn handshake(&mut self, number: usize) {
        let Connection { vm, tuple, isn, .. } = self.connections[number];
        let (ask, answer) = (Flags::SYN, Flags::SYN.with(Flags::ACK));
        let syn = Segment { seq: isn, ack: Seq(0), ..self.segment(number, ask) };
        let guest_isn = self.connections[number].guest_seq - 1;
        let syn_ack = Segment {
            seq: guest_isn,
            ack: isn + 1,
            window: 65_535,
            ..self.segment(number, answer)
        };
        let now = self.now;
        let port = &mut self.ports[vm];
        port.tcp_from_network(now, &tuple.reversed(), &syn, 64);
        let mut sent = Sent::default();
        let verdict = port.from_vm(now, &tuple, &syn_ack, || Some((number, syn_ack)), &mut sent);
        self.connections[number].open = true;
        self.after(vm, &sent);
        if let Verdict::Pass(edit) = verdict {
            self.syn_ack_leaves(number, edit.window.unwrap_or(65_535));
        }
    }

    fn syn_ack_leaves(&mut self, number: usize, told: u16) {
        let connection = &mut self.connections[number];
        connection.advertised_ack = connection.isn + 1;
        connection.advertised_edge = connection.isn + 1 + u32::from(told);
        connection.edge = connection.advertised_edge;
        let at = self.now + 2 * connection.half;
        self.at(at, Event::Established(number));
    }

    /// The guest asks for an answer.
    fn request(&mut self, number: usize, answer: u32) {
        let window = self.guest_window();
        let Connection { vm, tuple, rcv_nxt, guest_seq, .. } = self.connections[number];
        let segment = Segment {
            seq: guest_seq,
            ack: rcv_nxt,
            len: QUESTION,
            window,
            ..self.segment(number, Flags::ACK)
        };
        let connection = &mut self.connections[number];
        connection.guest_seq += QUESTION;
        connection.answer = answer;
        let mut sent = Sent::default();
        let now = self.now;
        let verdict =
            self.ports[vm].from_vm(now, &tuple, &segment, || Some((number, segment)), &mut sent);
        self.after(vm, &sent);
        if let Verdict::Pass(edit) = verdict {
            self.leave(number, &edited(&segment, &edit));
        }
    }

    fn guest_window(&self) -> u16 {
        (4 << 20 >> self.scene.scale).min(65_535) as u16
    }

    /// The answer to the guest's SYN-ACK arrives, and data behind it.
    fn established(&mut self, number: usize) {
        let Connection { vm, tuple, .. } = self.connections[number];
        let ack = self.segment(number, Flags::ACK);
        self.ports[vm].tcp_from_network(self.now, &tuple.reversed(), &ack, 64);
        self.after(vm, &Sent::default());
        self.send(number);
    }

    fn finish(&mut self, number: usize) {
        let Connection { vm, tuple, .. } = self.connections[number];
        self.connections[number].open = false;
        let reset =
            Segment { seq: self.connections[number].guest_seq, ..self.segment(number, Flags::RST) };
        let mut sent = Sent::default();
        let now = self.now;
        let _ = self.ports[vm].from_vm(now, &tuple, &reset, || None, &mut sent);
        self.after(vm, &sent);
    }

    /// Whatever the edge lets through, at once.
    fn send(&mut self, number: usize) {
        loop {
            let (now, connection) = (self.now, &mut self.connections[number]);
            let end = connection.limit.map_or(connection.edge, |limit| limit.min(connection.edge));
            let usable = end.since(connection.snd_nxt);
            if usable < MSS || !connection.open || now < connection.paused_until {
                return;
            }
            let start = connection.snd_nxt;
            connection.snd_nxt += MSS;
            let at = now + connection.half;
            self.at(at, Event::AtPort(number, start.0, MSS));
        }
    }

    fn at_port(&mut self, number: usize, start: u32, len: u32) {
        let wire = u64::from(len + HEADERS);
        if self.queued + wire > self.scene.buffer {
            self.drops += 1;
            return;
        }
        self.queued += wire;
        self.deepest = self.deepest.max(self.queued);
        self.link_free = self.link_free.max(self.now)
            + Duration::from_nanos(wire * 1_000_000_000 / self.scene.link);
        let done = self.link_free;
        self.at(done, Event::AtHost(number, start, len));
    }

    fn at_host(&mut self, number: usize, start: Seq, len: u32) {
        let wire = u64::from(len + HEADERS);
        self.queued -= wire;
        let Connection { vm, tuple, .. } = self.connections[number];
        let segment = Segment { seq: start, len, ..self.segment(number, Flags::ACK) };
        self.ports[vm].tcp_from_network(self.now, &tuple.reversed(), &segment, wire);
        self.after(vm, &Sent::default());
        let delay = Duration::from_micros(self.random(2 * self.scene.guest_us + 1));
        let connection = &mut self.connections[number];
        if connection.open && start == connection.rcv_nxt {
            connection.rcv_nxt += len;
            connection.received += u64::from(len);
            if !std::mem::replace(&mut connection.ack_due, true) {
                let at = self.now + delay;
                self.at(at, Event::Ack(number));
            }
        }
    }

    /// A guest with plenty of buffer acknowledges.
    fn acknowledge(&mut self, number: usize) {
        let Connection { vm, tuple, rcv_nxt, guest_seq, .. } = self.connections[number];
        self.connections[number].ack_due = false;
        if !self.connections[number].open {
            return;
        }
        let window = self.guest_window();
        let ack =
            Segment { seq: guest_seq, ack: rcv_nxt, window, ..self.segment(number, Flags::ACK) };
        let mut sent = Sent::default();
        let now = self.now;
        let verdict = self.ports[vm].from_vm(now, &tuple, &ack, || Some((number, ack)), &mut sent);
        self.after(vm, &sent);
        if let Verdict::Pass(edit) = verdict {
            self.leave(number, &edited(&ack, &edit));
        }
    }

    /// Something leaves the clamp: here the invariants are watched.
    fn leave(&mut self, number: usize, segment: &Segment) {
        if segment.has(Flags::SYN) {
            return self.syn_ack_leaves(number, segment.window);
        }
        let scale = self.scene.scale;
        let connection = &mut self.connections[number];
        assert!(!segment.ack.before(connection.advertised_ack), "N3: an ACK number went back");
        let bytes = u32::from(segment.window) << scale;
        let edge = segment.ack + bytes;
        assert!(!edge.before(connection.advertised_edge), "N1: an edge was taken back");
        assert!(bytes >= 2 * MSS, "N2: {bytes} bytes are less than two segments");
        assert!(bytes <= 4 << 20, "N1: more than the guest's own");
        assert!(!segment.ack.after(connection.rcv_nxt), "what the guest has not got");
        (connection.advertised_ack, connection.advertised_edge) = (segment.ack, edge);
        let at = self.now + connection.half;
        let answer = connection.answer;
        self.at(at, Event::AtSender(number, edge.0));
        if segment.len > 0 {
            self.at(at, Event::Asked(number, answer));
        }
    }

    /// Frames that the clamp sent, a changed weight, and its timer.
    fn after(&mut self, vm: usize, sent: &Sent) {
        for (number, segment) in &sent.0 {
            self.leave(*number, segment);
        }
        let config = &self.scene.config;
        let active = self.ports[vm].active();
        let weight = config.policy.weight(active, config.weight_cap, 1);
        if self.allocator.set(vm, Demand { weight, limit: None }) {
            self.spread_rates();
        }
        let due = self.ports[vm].next_timeout().max(self.now);
        if due < self.armed[vm] {
            self.armed[vm] = due;
            self.at(due, Event::Timer(vm));
        }
    }

    pub fn spread_rates(&mut self) {
        for (port, &rate) in self.ports.iter_mut().zip(self.allocator.rates()) {
            port.set_rate(rate, self.now);
        }
    }

    /// Payload received by each connection since it was last asked.
    pub fn take_received(&mut self) -> Vec<u64> {
        self.connections.iter_mut().map(|c| std::mem::take(&mut c.received)).collect()
    }
}

/// Jain's index: 1 if all are equal.
pub fn jain(values: &[u64]) -> f64 {
    let sum: f64 = values.iter().map(|&v| v as f64).sum();
    let squares: f64 = values.iter().map(|&v| (v as f64).powi(2)).sum();
    sum * sum / (values.len() as f64 * squares)
}

/// Bytes on the wire of so much payload.
pub fn wire(payload: u64) -> f64 {
    payload as f64 * f64::from(MSS + HEADERS) / f64::from(MSS)
}
