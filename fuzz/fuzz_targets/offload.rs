//! Any segments from both sides, at any times, while the operator changes things: the offload never
//! panics, never uses more than its budget, keeps a bounded number of frames, works its timers off, and
//! is drained when both sides fall silent.
//!
//! Cost: a call tells its sink of no more frames and segments than are kept and a few; time-outs are worked off in a bounded number of calls.
#![no_main]

use std::cell::Cell;
use std::net::Ipv4Addr;
use std::rc::Rc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use arbitrary::Arbitrary;
use floodway_core::congestion::Algorithm;
use floodway_core::offload::journal::{Creditor, Image, Journal, Layout, Retained};
use floodway_core::offload::{
    BufferPolicy, Carried, Config, EarlyAck, Ecn, Edit, FlowNotice, Link, Offload, Packet, Segment,
    Sink, SynthesizedSegment, Transmission,
};
use floodway_core::seq::Seq;
use floodway_core::time::{Duration, Instant};
use floodway_wire::FiveTuple;
use floodway_wire::tcp::Flags;
use floodway_wire::tcp::options::{SackBlock, Timestamps};
use libfuzzer_sys::fuzz_target;

const BUDGET: u32 = 256 << 10;
/// Frames that budget and receive budget allow at most, 64 and 512 bytes for each.
const MOST_FRAMES: u32 = BUDGET / 64 + BUDGET / 512;

/// Where a number lies: near what is current, so that segments often fit.
#[derive(Arbitrary, Clone, Copy, Debug)]
enum Near {
    Next(i8),
    Far(i16),
    Any(u32),
}

impl Near {
    fn of(self, current: u32) -> u32 {
        match self {
            Self::Next(by) => current.wrapping_add_signed(i32::from(by.max(-2).min(2))),
            Self::Far(by) => current.wrapping_add_signed(i32::from(by)),
            Self::Any(any) => any,
        }
    }
}

#[derive(Arbitrary, Clone, Debug)]
struct Shape {
    flow: bool,
    seq: Near,
    ack: Near,
    len: u16,
    window: u16,
    flags: u8,
    plain: bool,
    ecn: u8,
    gso_size: u16,
    clock: Option<(u8, u8)>,
    sacks: Vec<(i16, u16)>,
    ae: bool,
    unknown_option: bool,
    no_memory: bool,
}

#[derive(Arbitrary, Clone, Debug)]
enum Step {
    Guest(Shape),
    Peer(Shape),
    /// A connection opens, as it should.
    Open {
        flow: bool,
        scale: (u8, u8),
        options: u8,
        window: u16,
        mss: u16,
    },
    /// The peer acknowledges all that it got.
    Ack {
        flow: bool,
        window: u16,
    },
    /// A router speaks of a segment of the guest's.
    TooBig {
        flow: bool,
        seq: Near,
        mtu: u16,
    },
    Wait(u32),
    WaitLong(u8),
    Flush,
    Configure {
        transmit: bool,
        receive: bool,
        algorithm: u8,
        policy: u8,
        window: u8,
    },
    Drain(bool),
    Reset,
    /// Another process takes over, of whose state a stranger has changed bytes: of which record, where, and how.
    HandOver(Vec<(u8, u16, u8)>),
    /// Another host takes over, of whose state a stranger has changed bytes, or the guest stays if it cannot.
    Move(Vec<(u8, u16, u8)>),
}

/// A frame that counts itself.
struct Frame {
    /// What its headers say.
    segment: Segment,
    alive: Rc<Cell<u32>>,
}

impl Drop for Frame {
    fn drop(&mut self) {
        self.alive.set(self.alive.get() - 1);
    }
}

#[derive(Default)]
struct Checks {
    /// What the sink was told since [`Run::charge`] was last called.
    told: u64,
    /// Behind the highest byte released, by flow.
    released: [u32; 2],
}

fn tuple(flow: bool) -> FiveTuple {
    let (guest, peer) = (Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2));
    FiveTuple::v4(guest, peer, 6).with_ports(1000 + u16::from(flow), 80)
}

impl Sink<Frame> for Checks {
    fn release(&mut self, frame: &Frame, release: &Transmission) {
        self.told += 1;
        assert!(
            release.offset.checked_add(release.len).is_some_and(|end| end <= frame.segment.len)
        );
        assert!(release.mss > 0);
        let end = release.seq + release.len;
        for flow in &mut self.released {
            // Close enough to tell the flows apart where their numbers are.
            if end.after(Seq(*flow)) {
                *flow = end.0;
            }
        }
    }
    fn to_network(&mut self, segment: &SynthesizedSegment) {
        self.told += 1;
        let (blocks, clocks) = (segment.sack.as_slice(), segment.timestamps.is_some());
        assert!(blocks.len() <= if clocks { 3 } else { 4 }, "{} SACK blocks", blocks.len());
        for (n, block) in blocks.iter().enumerate() {
            let (left, right) = (Seq(block.left), Seq(block.right));
            // The first one may be a DSACK.
            assert!(n == 0 || (left.before(right) && left.after(segment.ack)), "{segment:?}");
        }
    }
    fn to_guest(&mut self, _: &SynthesizedSegment) {
        self.told += 1;
    }
    fn redeliver(&mut self, _: &Frame, _: &Edit) {
        self.told += 1;
    }
    fn heartbeat(&mut self, _: &Link, _: u16) {
        self.told += 1;
    }
    fn notify_flow(&mut self, _: &FiveTuple, _: &Link, _: FlowNotice) {
        self.told += 1;
    }
    fn image<'f>(&self, Frame { segment, .. }: &'f Frame) -> Image<'f> {
        let numbers = u64::from(segment.seq.0) << 32 | u64::from(segment.len) << 12;
        let has_clock = u64::from(segment.options.timestamps.is_some());
        Image { about: numbers | u64::from(segment.flags.0) << 4 | has_clock, bytes: &[7] }
    }
}

/// What the headers of a frame say of which an image tells this.
fn told(about: u64) -> Segment {
    let mut segment = Segment {
        seq: Seq((about >> 32) as u32),
        len: (about >> 12) as u32 & 0xf_ffff,
        flags: Flags((about >> 4) as u8),
        ..Segment::default()
    };
    segment.options.timestamps = (about & 1 == 1).then(Timestamps::default);
    segment
}

/// Room for all that the budgets allow, but for tiny frames.
const LAYOUT: Layout = Layout { flows: 8, slots: 1024, slot_bytes: 8 };

/// The frame that was kept so.
fn revive(alive: &Rc<Cell<u32>>, retained: &Retained) -> (Frame, Segment) {
    let segment = told(retained.about);
    alive.set(alive.get() + 1);
    (Frame { segment, alive: Rc::clone(alive) }, segment)
}

thread_local! {
    /// What outlives a process: the same memory for each run.
    static WORDS: &'static [AtomicU64] =
        (0..LAYOUT.words()).map(|_| AtomicU64::new(0)).collect::<Vec<_>>().leak();
}

struct Run {
    offload: Offload<Frame>,
    words: &'static [AtomicU64],
    sink: Checks,
    now: Instant,
    alive: Rc<Cell<u32>>,
    /// Next numbers of guest and peer, by flow.
    next: [(u32, u32); 2],
    /// The state of some connection is a stranger's: nobody knows whether it ends by itself.
    is_damaged: bool,
    /// The journal has what a stranger has changed: another host's state is all that there is of what is owed.
    is_journal_damaged: bool,
}

impl Run {
    fn new() -> Self {
        let config = Config {
            transmit: true,
            receive: true,
            budget: BUDGET,
            receive_budget: BUDGET,
            max_flows: 2,
            idle: Duration::from_secs(30),
            ..Config::default()
        };
        let words: &'static [AtomicU64] = WORDS.with(|words| {
            words.iter().for_each(|word| word.store(0, Relaxed));
            *words
        });
        let mut offload = Offload::new(config, 7);
        offload.record_in(Journal::blank(words, LAYOUT));
        Self {
            offload,
            words,
            sink: Checks::default(),
            now: Instant::from_millis(1),
            alive: Rc::default(),
            next: [(1000, 5000), (u32::MAX - 3000, u32::MAX - 100)],
            is_damaged: false,
            is_journal_damaged: false,
        }
    }

    fn segment(&self, shape: &Shape, guest: bool) -> Segment {
        let (mine, theirs) = self.next[usize::from(shape.flow)];
        let (seq, ack) = if guest { (mine, theirs) } else { (theirs, mine) };
        let flags = if shape.plain { Flags::ACK } else { Flags(shape.flags) };
        let mut segment = Segment {
            seq: Seq(shape.seq.of(seq)),
            ack: Seq(shape.ack.of(ack)),
            len: u32::from(shape.len),
            window: shape.window,
            flags,
            ecn: Ecn(shape.ecn & 3),
            ae: shape.ae,
            gso_size: shape.gso_size,
            ..Segment::default()
        };
        let clock = (self.now.as_nanos() / 1_000_000) as u32;
        segment.options.timestamps = shape.clock.map(|(value, echo)| Timestamps {
            value: clock.wrapping_add(value.into()),
            echo: clock.wrapping_sub(echo.into()),
        });
        let sacks: Vec<_> = shape
            .sacks
            .iter()
            .map(|&(left, len)| {
                let left = segment.ack.0.wrapping_add_signed(i32::from(left));
                SackBlock { left, right: left.wrapping_add(len.into()) }
            })
            .collect();
        segment.options.set_sack_blocks(&sacks);
        segment.options.unknown = shape.unknown_option;
        segment
    }

    fn send(&mut self, flow: bool, guest: bool, segment: &Segment, memory: bool) {
        let alive = Rc::clone(&self.alive);
        let keep = || {
            memory.then(|| {
                alive.set(alive.get() + 1);
                Frame { segment: *segment, alive: Rc::clone(&alive) }
            })
        };
        let (now, link, tuple) = (self.now, Link::default(), tuple(flow));
        if guest {
            let packet = Packet::new(&tuple, &link, segment);
            self.offload.from_guest(now, &packet, keep, &mut self.sink);
        } else {
            let tuple = tuple.reversed();
            let packet = Packet::new(&tuple, &link, segment);
            self.offload.from_network(now, &packet, keep, &mut self.sink);
            // What the offload has no memory for the guest's queue has none for either.
            self.offload.on_delivered(memory);
        }
        self.charge();
        let next = &mut self.next[usize::from(flow)];
        let next = if guest { &mut next.0 } else { &mut next.1 };
        if segment.seq.0 == *next {
            *next = segment.end().0;
        }
    }

    fn open(&mut self, flow: bool, scale: (u8, u8), options: u8, window: u16, mss: u16) {
        let (guest, peer) = self.next[usize::from(flow)];
        let mut syn = Segment { seq: Seq(guest), flags: Flags::SYN, window, ..Segment::default() };
        syn.options.sack_permitted = options & 1 != 0;
        syn.options.mss = Some(mss);
        syn.options.window_scale = (options & 2 != 0).then_some(scale.0);
        if options & 4 != 0 {
            syn.options.timestamps = Some(Timestamps { value: 1, echo: 0 });
        }
        if options & 8 != 0 {
            syn.flags = syn.flags.with(Flags::ECE.with(Flags::CWR));
        }
        syn.ae = options & 16 != 0;
        syn.options.unknown = options & 0xe0 == 0xe0;
        syn.forwarded = options & 0xe0 == 0xa0;
        self.send(flow, true, &syn, true);
        let mut answer = syn;
        answer.seq = Seq(peer);
        answer.ack = Seq(guest) + 1;
        answer.options.window_scale = (options & 2 != 0).then_some(scale.1);
        // ECE: classic ECN. CWR: AccECN, if that was asked for.
        let ecn = match options & 0x18 {
            8 => Flags::ECE,
            0x18 => Flags::CWR,
            _ => Flags(0),
        };
        answer.flags = Flags::SYN.with(Flags::ACK).with(ecn);
        (answer.ae, answer.forwarded) = (false, false);
        answer.options.unknown = options & 0xe0 == 0xc0;
        self.send(flow, false, &answer, true);
        let ack = Segment {
            seq: answer.ack,
            ack: Seq(peer) + 1,
            window,
            flags: Flags::ACK,
            ..Segment::default()
        };
        self.send(flow, true, &ack, true);
    }

    fn wait(&mut self, time: Duration) {
        let end = self.now + time;
        while self.offload.next_timeout() <= end {
            self.now = self.now.max(self.offload.next_timeout());
            let mut calls = 0;
            while self.offload.next_timeout() <= self.now {
                self.offload.handle_timeout(self.now, &mut self.sink);
                self.charge();
                calls += 1;
                assert!(calls < 100, "no progress at {:?}", self.now);
            }
            self.check();
        }
        self.now = end;
    }

    fn configure(&mut self, change: impl FnOnce(&mut Config)) {
        let mut config = self.offload.config().clone();
        change(&mut config);
        self.offload.configure(config, self.now, &mut self.sink);
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Guest(ref shape) => {
                let segment = self.segment(shape, true);
                self.send(shape.flow, true, &segment, !shape.no_memory);
            }
            Step::Peer(ref shape) => {
                let segment = self.segment(shape, false);
                self.send(shape.flow, false, &segment, !shape.no_memory);
            }
            Step::Open { flow, scale, options, window, mss } => {
                self.open(flow, scale, options, window, mss);
            }
            Step::Ack { flow, window } => {
                let ack = Segment {
                    seq: Seq(self.next[usize::from(flow)].1),
                    ack: Seq(self.sink.released[usize::from(flow)]),
                    window,
                    flags: Flags::ACK,
                    ..Segment::default()
                };
                self.send(flow, false, &ack, true);
            }
            Step::TooBig { flow, seq, mtu } => {
                let seq = Seq(seq.of(self.sink.released[usize::from(flow)]));
                let (now, flow) = (self.now, tuple(flow));
                self.offload.too_big(now, &flow, seq, mtu.into(), &mut self.sink);
            }
            Step::Wait(ns) => self.wait(Duration::from_nanos(ns.into())),
            Step::WaitLong(s) => self.wait(Duration::from_secs(s.into())),
            Step::Flush => self.offload.flush(self.now, &mut self.sink),
            Step::Configure { transmit, receive, algorithm, policy, window } => {
                self.configure(|c| {
                    c.transmit = transmit;
                    c.receive = receive;
                    c.congestion = Algorithm::ALL[usize::from(algorithm) % Algorithm::ALL.len()];
                    c.buffer = BufferPolicy::ALL[usize::from(policy) % BufferPolicy::ALL.len()];
                    c.initial_window = window.clamp(1, 64);
                    // Seeds from before there was the mode have zeros there.
                    c.early_ack = match policy >> 4 & 3 {
                        0 | 3 => EarlyAck::Never,
                        1 => EarlyAck::Always,
                        _ => EarlyAck::WithoutModule,
                    };
                    c.early_ack_min_rtt = Duration::ZERO;
                });
                let heard = policy & 0x40 != 0;
                self.offload.hear_module(heard, self.now, &mut self.sink);
            }
            Step::Drain(on) => self.offload.drain(on, self.now, &mut self.sink),
            Step::Reset if self.offload.owed() > 0 => self.die(),
            Step::Reset => self.offload.reset(),
            Step::HandOver(ref damage) => self.hand_over(damage),
            Step::Move(ref damage) => self.move_guest(damage),
        }
        self.check();
    }

    /// The state of all connections, with `damage`, and whether all that is owed is in it.
    fn export(&mut self, damage: &[(u8, u16, u8)]) -> (Vec<Vec<u8>>, bool) {
        self.offload.flush(self.now, &mut self.sink);
        let mut records = Vec::new();
        let is_whole = self.offload.export(&self.sink, |record| {
            records.push(record.to_vec());
            true
        });
        for &(record, at, with) in damage {
            let record = usize::from(record) % records.len();
            let record = &mut records[record];
            let at = usize::from(at) % record.len().max(1);
            if let Some(byte) = record.get_mut(at) {
                *byte ^= with;
                self.is_damaged |= with != 0;
            }
        }
        (records, is_whole)
    }

    /// Another host goes on with all connections, or with those whose state can be one's; those that owe and cannot go on are reset. Or all are brought back.
    fn move_guest(&mut self, damage: &[(u8, u16, u8)]) {
        self.offload.suspend();
        let (records, is_whole) = self.export(damage);
        let before = (self.offload.online(), self.offload.owed(), self.offload.used());
        let aside = self.offload.set_aside(7);
        assert!(self.offload.is_empty());
        if is_whole {
            self.offload.forget_aside(aside);
            let (_, owed, lost) = Journal::adopt(self.words, LAYOUT);
            assert_eq!((owed.len(), lost.flows), (0, 0), "nothing is owed any more");
            self.import(&records, before);
        } else {
            self.offload.bring_back(aside);
        }
        self.offload.resume(self.now, &mut self.sink);
    }

    fn import(&mut self, records: &[Vec<u8>], before: (u32, u64, (u32, u32))) {
        let mut carried = Carried::of_port(&records[0]).unwrap_or_default();
        records[1..].iter().for_each(|record| carried.add(record));
        if !carried.is_readable() {
            return;
        }
        let (now, alive) = (self.now, &self.alive);
        let revive = |_: Creditor, retained: &Retained| Some(revive(alive, retained));
        self.is_journal_damaged |= self.is_damaged;
        let found = self.offload.import(carried, now, &self.sink, revive);
        let after = (self.offload.online(), self.offload.owed(), self.offload.used());
        assert!(self.is_damaged || found.refused > 0 || before == after, "{before:?} {after:?}");
    }

    /// Another process goes on with all connections, or with those whose state can be one's.
    fn hand_over(&mut self, damage: &[(u8, u16, u8)]) {
        let (records, _) = self.export(damage);
        let before = (self.offload.online(), self.offload.owed(), self.offload.used());
        let config = self.offload.config().clone();
        self.offload = Offload::new(config, 7);
        let mut carried = Carried::of_port(&records[0]).unwrap_or_default();
        records[1..].iter().for_each(|record| carried.add(record));
        let (now, alive) = (self.now, &self.alive);
        let revive = |_: Creditor, retained: &Retained| Some(revive(alive, retained));
        let found = Journal::adopt(self.words, LAYOUT);
        self.offload.adopt_carried(found, &mut carried, now, revive);
        let found = self.offload.take_over(carried, now, revive);
        let after = (self.offload.online(), self.offload.owed(), self.offload.used());
        // Numbers that lie farther apart than any window are refused, whoever has sent them.
        assert!(self.is_damaged || found.refused > 0 || before == after, "{before:?} {after:?}");
        self.offload.resume(now, &mut self.sink);
    }

    /// The process ends while bytes are owed, and the next one finds all of them.
    fn die(&mut self) {
        let config = self.offload.config().clone();
        let owed = self.offload.owed();
        self.offload = Offload::new(config, 7);
        let found = Journal::adopt(self.words, LAYOUT);
        let alive = &self.alive;
        let adoption =
            self.offload.adopt(found, self.now, |_, retained| Some(revive(alive, retained)));
        if !self.is_journal_damaged {
            assert_eq!((adoption.broken, adoption.unknown), (0, 0));
            assert_eq!(self.offload.owed(), owed);
        }
        self.offload.resume(self.now, &mut self.sink);
    }

    /// A call has told the sink of a bounded number of frames.
    fn charge(&mut self) {
        let told = std::mem::take(&mut self.sink.told);
        assert!(told <= u64::from(MOST_FRAMES) + 64, "{told} frames and segments in a call");
    }

    fn check(&self) {
        let (used, kept) = self.offload.used();
        assert!(used <= BUDGET, "{used}");
        assert!(kept <= BUDGET, "{kept}");
        assert!(self.alive.get() <= MOST_FRAMES, "{} frames", self.alive.get());
    }
}

fuzz_target!(|steps: Vec<Step>| {
    let mut run = Run::new();
    for step in &steps {
        run.step(step);
    }
    // Both sides fall silent. What was acknowledged for the guest is kept until the guest says
    // something, or is gone: its port is reset then.
    run.offload.drain(true, run.now, &mut run.sink);
    run.wait(Duration::from_secs(4 * 3600));
    if !run.is_damaged {
        assert_eq!(run.offload.online(), 0, "a silent flow stays online");
        assert_eq!(run.offload.used().0, 0);
    }
    run.offload.reset();
    assert!(run.offload.is_drained() && run.offload.is_empty());
    assert_eq!((run.offload.used(), run.alive.get()), ((0, 0), 0));
});
