//! Two stacks with their programs, two paths, and a port's offload engine between them, in virtual time.
//!
//! The guest runs only when it has a CPU: its frames come to the engine when it runs, and frames to it wait
//! until then. Everything follows from the seed.

use std::collections::VecDeque;

use floodway_core::offload::{Config, TxState};
use floodway_core::time::{Duration, Instant};
use floodway_switch::pipeline::tcp_offload::testing::{FrameOffload, Sent};
use floodway_wire::checksum::ChecksumState;
use floodway_wire::coalescing::{Coalescer, Offer};
use floodway_wire::vnet::VnetHdr;
use floodway_wire::{FiveTuple, parse};

use super::app::{App, Plan, Stream};
use super::path::{Path, PathConfig};
use super::random::Random;
use super::stack::Stack;
use super::wire::{self, Wire};

/// Bytes of the longest GSO packet.
const MAX_GSO_PACKET: usize = 65_535 + 14;

/// How long the guest has a CPU, and for how long it has none, at random between the bounds.
#[derive(Clone, Copy, Debug)]
pub struct Cpu {
    pub runs: (Duration, Duration),
    pub away: (Duration, Duration),
}

/// Everything but the stacks that a run follows from.
#[derive(Clone, Debug)]
pub struct Setup {
    pub seed: u64,
    pub offload: Config,
    pub guest: Plan,
    pub peer: Plan,
    pub to_peer: PathConfig,
    pub to_guest: PathConfig,
    /// `None`: the guest always runs.
    pub cpu: Option<Cpu>,
    pub guest_connects: bool,
    /// What the guest sends at once comes as GSO packets, as with TSO.
    pub gso_packets: bool,
    /// Frames from the network come this often, those that fit together as GSO packets: moderated interrupts, and
    /// GRO.
    pub gro: Option<Duration>,
    /// Frames to the guest that its queue drops, in 1/1000.
    pub queue_drops: u32,
    /// Frames in its queue that the guest drops unread, also those that the switch has acknowledged, in 1/1000.
    pub guest_drops: u32,
    /// The offload is switched off and on again each time that this has passed.
    pub toggle: Option<Duration>,
}

/// An end: its stack and its program.
struct End {
    stack: Box<dyn Stack>,
    app: App,
}

impl End {
    /// Lets the program and the stack do all that they can now. Returns the frames that were sent.
    fn run(&mut self, now: Instant) -> Vec<Vec<u8>> {
        self.stack.poll(now);
        while self.app.run(now, &mut *self.stack) {
            self.stack.poll(now);
        }
        self.stack.take_output()
    }

    fn next(&mut self) -> Instant {
        self.stack.next_timeout().min(self.app.next())
    }

    /// The stream from the other end has ended, and so has its own.
    fn is_done(&self) -> bool {
        self.app.is_done_writing() && self.stack.status().ended
    }
}

/// The frames as they come to the switch: joined into GSO packets, if `joined`.
pub fn as_sent(frames: Vec<Vec<u8>>, joined: bool) -> Vec<(VnetHdr, Vec<u8>)> {
    if !joined {
        return frames.into_iter().map(|frame| (VnetHdr::default(), frame)).collect();
    }
    let mut sent = Vec::new();
    let mut run = Coalescer::new(vec![0; MAX_GSO_PACKET]);
    let finish = |run: &mut Coalescer<Vec<u8>>, sent: &mut Vec<_>| {
        sent.extend(run.finish().map(|(vnet, bytes)| (vnet, bytes.to_vec())));
    };
    for frame in frames {
        let offer = |run: &mut Coalescer<Vec<u8>>| match parse(&frame, frame.len()) {
            Ok(meta) => run.offer(&frame, &meta, ChecksumState::Unverified),
            Err(_) => Offer::Refused,
        };
        let mut outcome = offer(&mut run);
        if outcome == Offer::Refused {
            finish(&mut run, &mut sent);
            outcome = offer(&mut run);
        }
        match outcome {
            Offer::Taken => {}
            Offer::TakenLast => finish(&mut run, &mut sent),
            Offer::Refused => sent.push((VnetHdr::default(), frame)),
        }
    }
    finish(&mut run, &mut sent);
    sent
}

/// A run.
pub struct World {
    pub now: Instant,
    setup: Setup,
    guest: End,
    peer: End,
    pub offload: FrameOffload,
    to_peer: Path,
    to_guest: Path,
    pub wire: Wire,
    flow: Option<FiveTuple>,
    /// Frames that wait for the guest to run.
    inbox: VecDeque<Vec<u8>>,
    /// Frames to the guest that its queue has dropped.
    dropped: u64,
    /// Prints every frame (`FLOODWAY_TRACE` in the environment).
    traces: bool,
    random: Random,
    running: bool,
    cpu_until: Instant,
    toggle_at: Instant,
    switched_off: bool,
}

impl World {
    pub fn new(setup: &Setup, guest: Box<dyn Stack>, peer: Box<dyn Stack>) -> Self {
        let mut random = Random::new(setup.seed);
        let mut end = |stack, plan| End { stack, app: App::new(plan, random.next()) };
        let (guest, peer) = (end(guest, setup.guest), end(peer, setup.peer));
        Self {
            now: Instant::from_millis(10),
            guest,
            peer,
            offload: FrameOffload::new(setup.offload.clone(), random.next()),
            to_peer: Path::new(setup.to_peer, random.next()),
            to_guest: Path::new(setup.to_guest, random.next()),
            wire: Wire::new(setup.offload.transmit_mode().may_owe()),
            flow: None,
            inbox: VecDeque::new(),
            dropped: 0,
            traces: std::env::var_os("FLOODWAY_TRACE").is_some(),
            running: setup.cpu.is_none(),
            cpu_until: if setup.cpu.is_none() { Instant::NEVER } else { Instant::ZERO },
            toggle_at: setup.toggle.map_or(Instant::NEVER, |every| Instant::ZERO + every),
            switched_off: false,
            setup: setup.clone(),
            random,
        }
    }

    /// Connects, transfers both streams, and closes. Fails with the reason if that takes longer than `limit`, or if
    /// anything but the same bytes arrives.
    pub fn run(&mut self, limit: Duration) -> Result<(), String> {
        self.connect();
        self.run_until(limit, |world| world.guest.is_done() && world.peer.is_done())?;
        self.compare("to the peer", &self.guest.app.written(), &self.peer.app.read_so_far())?;
        self.compare("to the guest", &self.peer.app.written(), &self.guest.app.read_so_far())
    }

    /// Begins to connect.
    pub fn connect(&mut self) {
        let connecting = if self.setup.guest_connects { &mut self.guest } else { &mut self.peer };
        connecting.stack.connect();
        self.handle();
    }

    /// Runs until `done`. Fails with the state of everything if that takes longer than `limit`.
    pub fn run_until(&mut self, limit: Duration, done: fn(&Self) -> bool) -> Result<(), String> {
        let end = self.now + limit;
        while !done(self) {
            let next = self.next();
            if next > end {
                return Err(self.describe(&format!("not done after {limit:?}")));
            }
            self.now = next;
            self.handle();
        }
        Ok(())
    }

    /// Bytes that each end has read.
    pub fn read_so_far(&self) -> [u64; 2] {
        [&self.guest, &self.peer].map(|end| end.app.read_so_far().bytes)
    }

    /// The ends' connections were reset.
    pub fn are_reset(&self) -> [bool; 2] {
        [&self.guest, &self.peer].map(|end| end.stack.status().reset)
    }

    /// Resets the connection at one end.
    pub fn abort(&mut self, at_guest: bool) {
        let end = if at_guest { &mut self.guest } else { &mut self.peer };
        end.stack.abort();
        self.handle();
    }

    fn compare(&self, what: &str, sent: &Stream, got: &Stream) -> Result<(), String> {
        let equal = sent == got;
        equal.then_some(()).ok_or_else(|| self.describe(&format!("{what}: {sent:?} {got:?}")))
    }

    fn describe(&self, what: &str) -> String {
        let progress =
            |end: &End| (end.app.written().bytes, end.app.read_so_far().bytes, end.stack.detail());
        format!(
            "{what} at {:?}: guest {:?}, peer {:?}, flow {:?}, {:?}, dropped {} and {}",
            self.now,
            progress(&self.guest),
            progress(&self.peer),
            self.flow.and_then(|flow| self.offload.summary(&flow)),
            self.offload.counters(),
            self.to_peer.dropped,
            self.to_guest.dropped,
        )
    }

    fn next(&mut self) -> Instant {
        let mut guest = self.guest.next();
        if !self.inbox.is_empty() {
            guest = self.now;
        }
        if !self.running {
            guest = guest.max(self.cpu_until);
        }
        guest
            .min(self.peer.next())
            .min(self.to_peer.next())
            .min(self.next_receive())
            .min(self.offload.next_timeout())
            .min(self.toggle_at)
            .max(self.now)
    }

    fn handle(&mut self) {
        let now = self.now;
        self.advance_cpu();
        self.toggle();
        while self.offload.next_timeout() <= now {
            self.offload.handle_timeout(now);
            self.carry_out();
        }
        while let Some(frame) = self.to_peer.pop(now) {
            self.peer.stack.input(now, &frame);
        }
        for frame in self.peer.run(now) {
            self.to_guest.send(now, frame);
        }
        self.receive();
        if self.running {
            self.run_guest();
        }
    }

    /// What has arrived from the network comes to the engine.
    fn receive(&mut self) {
        let mut frames = Vec::new();
        while self.next_receive() <= self.now
            && let Some(frame) = self.to_guest.pop(self.now)
        {
            self.trace("peer   > switch", &frame);
            self.wire.peer_sends(&frame);
            frames.push(frame);
        }
        for (vnet, frame) in as_sent(frames, self.setup.gro.is_some()) {
            self.offload.from_network(self.now, vnet, &frame);
            let dropped = self.dropped;
            self.carry_out();
            self.offload.on_delivered(dropped == self.dropped);
        }
        self.flush();
    }

    /// When the next frame from the network comes to the engine.
    fn next_receive(&self) -> Instant {
        let at = self.to_guest.next();
        match self.setup.gro {
            Some(every) if at != Instant::NEVER => {
                Instant::from_nanos(at.as_nanos().next_multiple_of(every.as_nanos() as u64))
            }
            _ => at,
        }
    }

    fn run_guest(&mut self) {
        while let Some(frame) = self.inbox.pop_front() {
            self.guest.stack.input(self.now, &frame);
        }
        let frames = self.guest.run(self.now);
        for frame in &frames {
            self.note_flow(frame);
            self.trace("guest  > switch", frame);
            self.wire.guest_sends(frame);
        }
        for (vnet, frame) in as_sent(frames, self.setup.gso_packets) {
            self.offload.from_guest(self.now, vnet, &frame);
            self.carry_out();
        }
        self.flush();
    }

    fn flush(&mut self) {
        self.offload.flush(self.now);
        self.carry_out();
    }

    fn carry_out(&mut self) {
        let sent = self.offload.take_sent();
        let online = self.flow.and_then(|flow| self.offload.summary(&flow));
        let online = online.is_some_and(|flow| flow.tx != TxState::Offline);
        for frame in sent {
            match frame {
                Sent::ToNetwork(frame) => {
                    self.trace("switch > peer  ", &frame);
                    self.wire.network_gets(&frame, online);
                    self.to_peer.send(self.now, frame);
                }
                Sent::ToGuest(frame) => {
                    self.trace("switch > guest ", &frame);
                    self.wire.guest_gets(&frame);
                    if self.random.permille(self.setup.queue_drops) {
                        self.dropped += 1;
                    } else if !self.random.permille(self.setup.guest_drops) {
                        self.inbox.push_back(frame);
                    }
                }
            }
        }
    }

    fn trace(&self, way: &str, frame: &[u8]) {
        if self.traces {
            eprintln!("{:>12.6} {way} {}", self.now.as_nanos() as f64 / 1e9, wire::describe(frame));
        }
    }

    fn note_flow(&mut self, frame: &[u8]) {
        if self.flow.is_none()
            && let Ok(meta) = parse(frame, frame.len())
            && meta.tcp().is_some()
        {
            self.flow = Some(meta.flow);
        }
    }

    fn advance_cpu(&mut self) {
        let Some(cpu) = self.setup.cpu else { return };
        while self.cpu_until <= self.now {
            self.running = !self.running;
            self.cpu_until += self.random.between(if self.running { cpu.runs } else { cpu.away });
        }
    }

    fn toggle(&mut self) {
        let Some(every) = self.setup.toggle.filter(|_| self.toggle_at <= self.now) else { return };
        self.toggle_at = self.now + every;
        self.switched_off = !self.switched_off;
        let mut config = self.setup.offload.clone();
        if self.switched_off {
            (config.transmit, config.receive) = (false, false);
        }
        self.offload.configure(self.now, config);
        self.carry_out();
    }
}
