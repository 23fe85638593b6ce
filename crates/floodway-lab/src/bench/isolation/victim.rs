//! The victims: two VMs, or a VM and a host beyond the uplink, that exchange frames while they are measured.
//!
//! # Theory of operation
//! **Round trips.** A request of 64 bytes is due every 100 µs whatever became of earlier ones; the other end answers at once. A latency
//! counts from when the request was due, so that a switch that stands still is charged for all requests that it delayed. One that is not
//! answered when the slice ends counts with the time that it has waited, which is the least that it can have taken.
//!
//! **Stream.** The transmit ring is kept full of frames of 1500 bytes. What arrives counts. The ring leads through more memory than caches hold ([`Spec::victim`]): a
//! stream with a part of the worker comes back to its buffers later than one that is alone, and finds in a cache less of what fits into it, whoever has the rest of
//! the worker.
//!
//! [`Spec::victim`]: super::vm::Spec::victim
//!
//! One thread plays victims and attacker in turns, because they share a core: threads would add the scheduler's slices to each latency.
//! What a turn takes is noted, the attacker's apart, as it is part of every latency: see [`ClientCost`].

use std::time::{Duration, Instant};

use anyhow::Result;
use floodway_switch::frame::iovec::GuestIoVec;
use floodway_switch::testing::frames::{number_of, numbered};
use floodway_switch::uplink::packet::{PacketReceiver, PacketSender};
use floodway_switch::uplink::{Receiver, Sender};
use floodway_wire::vnet::VnetHdr;
use hdrhistogram::Histogram;

use super::slices::{ClientCost, Load, Measured};
use super::vm::Vm;

/// VM and host numbers, of which addresses are made.
pub const VICTIM: u8 = 1;
/// The VM that the victim talks to.
pub const PARTNER: u8 = 2;
/// The host beyond the uplink.
pub const FAR: u8 = 9;

/// Time between two requests: 10 000 a second.
const PERIOD: Duration = Duration::from_micros(100);
/// What requests of the end of a slice are waited for.
const GRACE: Duration = Duration::from_millis(2);
/// Payload of a frame of 64 bytes, without FCS.
const SMALL: usize = 64 - HEADERS;
/// Payload of a frame of 1500 bytes.
const LARGE: usize = 1500 - HEADERS;
/// Ethernet, IPv4 and UDP.
const HEADERS: usize = 14 + 20 + 8;
/// Frames that are taken from a ring or the uplink before others get their turn.
const BURST: usize = 64;
/// Longest turn that is told from longer ones, in nanoseconds.
const LONGEST_TURN: u64 = 10_000_000_000;

/// Who answers the victim.
pub enum Partner {
    /// Another VM.
    Vm(Box<Vm>),
    /// A host beyond the uplink.
    Far(Box<Far>),
}

/// The far end of the uplink.
pub struct Far {
    pub receiver: PacketReceiver,
    pub sender: PacketSender,
}

impl Far {
    /// Sends a frame, if the device takes it.
    pub fn send(&mut self, frame: &[u8]) -> bool {
        self.sender.send(&VnetHdr::default(), &[GuestIoVec::from_slice(frame)]).is_ok()
    }
}

impl Partner {
    /// Number of its addresses.
    fn number(&self) -> u8 {
        match self {
            Self::Vm(_) => PARTNER,
            Self::Far(_) => FAR,
        }
    }

    fn send(&mut self, frame: &[u8]) -> bool {
        match self {
            Self::Vm(vm) => vm.send(frame),
            Self::Far(far) => far.send(frame),
        }
    }

    fn receive(&mut self) -> Result<Option<Vec<u8>>> {
        Ok(match self {
            Self::Vm(vm) => vm.receive(),
            Self::Far(far) => far.receiver.recv()?.map(|received| received.frame.to_vec()),
        })
    }

    /// Takes what has arrived, a burst at most. `each` gets the bytes of each frame.
    fn discard(&mut self, mut each: impl FnMut(usize)) -> Result<()> {
        match self {
            Self::Vm(vm) => vm.discard(0, each),
            Self::Far(far) => {
                for _ in 0..BURST {
                    let Some(received) = far.receiver.recv()? else { break };
                    each(received.frame.len());
                }
            }
        }
        Ok(())
    }
}

/// The two that exchange frames.
pub struct Victims {
    pub victim: Vm,
    pub partner: Partner,
    /// Tells the requests of different slices apart.
    slice: u32,
}

/// The attacker's turn. Returns an error if the attack cannot go on.
pub type Turn<'a> = &'a mut dyn FnMut() -> Result<()>;

impl Victims {
    pub fn new(victim: Vm, partner: Partner) -> Self {
        Self { victim, partner, slice: 0 }
    }

    /// Measures one load for `time`, with the attacker's turns in between.
    ///
    /// # Errors
    /// When the attack cannot go on, or the uplink's interface is gone.
    pub fn measure(&mut self, load: Load, time: Duration, attacker: Turn<'_>) -> Result<Measured> {
        match load {
            Load::RoundTrips => self.round_trips(time, attacker),
            Load::Stream => self.stream(time, attacker),
        }
    }

    /// Lets `time` pass, takes what arrives and sends nothing, with the attacker's turns in between. Returns how many frames arrived.
    ///
    /// # Errors
    /// As [`Self::measure`].
    pub fn idle(&mut self, time: Duration, attacker: Turn<'_>) -> Result<u64> {
        let end = Instant::now() + time;
        let mut arrived = 0;
        while Instant::now() < end {
            self.victim.transmit(0, false);
            self.victim.discard(0, |_| arrived += 1);
            self.partner.discard(|_| arrived += 1)?;
            attacker()?;
        }
        Ok(arrived)
    }

    fn round_trips(&mut self, time: Duration, attacker: Turn<'_>) -> Result<Measured> {
        self.slice = (self.slice + 1) & 0xfff;
        let mut trips = Trips::new(self.slice, Instant::now(), time);
        let mut turns = Turns::new();
        while !trips.is_over() {
            let now = turns.begin();
            if let Some(number) = trips.due(now) {
                let request = numbered(VICTIM, self.partner.number(), number, SMALL);
                trips.sent(self.victim.send(&request));
            }
            // Bounded, since others may send without end.
            for _ in 0..BURST {
                let Some(frame) = self.partner.receive()? else { break };
                match number_of(&frame).filter(|number| trips.is_ours(*number)) {
                    Some(number) if frame.len() == SMALL + HEADERS => {
                        self.partner.send(&numbered(self.partner.number(), VICTIM, number, SMALL));
                    }
                    _ => trips.foreign += 1,
                }
            }
            self.victim.transmit(0, false);
            for _ in 0..BURST {
                let Some(frame) = self.victim.receive() else { break };
                trips.answered(number_of(&frame), Instant::now());
            }
            turns.attack(attacker)?;
        }
        Ok(trips.measured(turns.cost()))
    }

    fn stream(&mut self, time: Duration, attacker: Turn<'_>) -> Result<Measured> {
        let frame = numbered(VICTIM, self.partner.number(), 0, LARGE);
        self.victim.fill(&VnetHdr::default(), &frame);
        let (mut frames, mut foreign) = (0, 0);
        let mut turns = Turns::new();
        let start = Instant::now();
        while turns.begin() < start + time {
            self.victim.transmit(0, true);
            self.partner.discard(
                |len| {
                    if len == frame.len() { frames += 1 } else { foreign += 1 }
                },
            )?;
            self.victim.discard(0, |_| ());
            turns.attack(attacker)?;
        }
        let seconds = start.elapsed().as_secs_f64();
        Ok(Measured {
            rate: f64::from(frames) * frame.len() as f64 * 8.0 / seconds / 1e9,
            foreign: f64::from(foreign) / seconds,
            client: turns.cost(),
            ..Measured::default()
        })
    }
}

/// Requests of a slice.
struct Trips {
    slice: u32,
    start: Instant,
    time: Duration,
    /// Requests that were sent.
    next: u32,
    total: u32,
    /// Latency of each, in microseconds; not a number while there is no answer.
    latencies: Vec<f64>,
    open: u32,
    foreign: u32,
}

impl Trips {
    fn new(slice: u32, start: Instant, time: Duration) -> Self {
        let total = (time.as_nanos() / PERIOD.as_nanos()) as u32;
        let latencies = vec![f64::NAN; total as usize];
        Self { slice, start, time, next: 0, total, latencies, open: total, foreign: 0 }
    }

    /// All are answered, or no answer is waited for any more.
    fn is_over(&self) -> bool {
        let elapsed = self.start.elapsed();
        elapsed >= self.time && (self.open == 0 || elapsed >= self.time + GRACE)
    }

    fn is_ours(&self, number: u32) -> bool {
        number >> 20 == self.slice
    }

    /// The number of the request that is due.
    fn due(&self, now: Instant) -> Option<u32> {
        let due = self.next < self.total && now >= self.start + PERIOD * self.next;
        due.then_some(self.slice << 20 | self.next)
    }

    /// The request that was due has left if there was room for it.
    fn sent(&mut self, has_left: bool) {
        self.next += u32::from(has_left);
    }

    fn answered(&mut self, number: Option<u32>, now: Instant) {
        let number = number.filter(|number| self.is_ours(*number)).map(|number| number & 0xf_ffff);
        let Some(latency) = number.and_then(|n| self.latencies.get_mut(n as usize)) else {
            self.foreign += 1;
            return;
        };
        if latency.is_nan() {
            let due = self.start + PERIOD * number.unwrap_or(0);
            *latency = (now - due).as_secs_f64() * 1e6;
            self.open -= 1;
        }
    }

    fn measured(mut self, client: ClientCost) -> Measured {
        let answers = f64::from(self.total - self.open);
        let end = self.start.elapsed();
        for (n, latency) in (0..).zip(&mut self.latencies) {
            if latency.is_nan() {
                *latency = end.saturating_sub(PERIOD * n).as_secs_f64() * 1e6;
            }
        }
        Measured {
            rate: answers / self.time.as_secs_f64(),
            latencies_us: self.latencies,
            foreign: f64::from(self.foreign) / end.as_secs_f64(),
            client,
        }
    }
}

/// Times of the client's turns.
struct Turns {
    start: Instant,
    last: Option<Instant>,
    turns: Histogram<u64>,
    attacking: Duration,
}

impl Turns {
    fn new() -> Self {
        let turns = Histogram::new_with_max(LONGEST_TURN, 2).expect("bounds that are in order");
        Self { start: Instant::now(), last: None, turns, attacking: Duration::ZERO }
    }

    /// A turn begins; the one before it ends.
    fn begin(&mut self) -> Instant {
        let now = Instant::now();
        if let Some(last) = self.last.replace(now) {
            self.turns.saturating_record((now - last).as_nanos() as u64);
        }
        now
    }

    fn attack(&mut self, attacker: Turn<'_>) -> Result<()> {
        let before = Instant::now();
        attacker()?;
        self.attacking += before.elapsed();
        Ok(())
    }

    fn cost(&self) -> ClientCost {
        let us = |ns: u64| ns as f64 / 1000.0;
        ClientCost {
            turn_p99_us: us(self.turns.value_at_quantile(0.99)),
            turn_max_us: us(self.turns.max()),
            attacking: self.attacking.as_secs_f64() / self.start.elapsed().as_secs_f64(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLICE: Duration = Duration::from_millis(1);

    /// Ten requests, all due.
    fn trips() -> Trips {
        let start = Instant::now().checked_sub(SLICE).unwrap();
        let mut trips = Trips::new(3, start, SLICE);
        while trips.due(start + SLICE).is_some() {
            trips.sent(true);
        }
        trips
    }

    #[test]
    fn a_request_is_due_every_hundred_microseconds() {
        let start = Instant::now();
        let mut trips = Trips::new(3, start, SLICE);
        assert_eq!(trips.due(start), Some(3 << 20));
        trips.sent(true);
        assert_eq!(trips.due(start + PERIOD / 2), None);
        assert_eq!(trips.due(start + PERIOD), Some(3 << 20 | 1));
        trips.sent(false);
        assert_eq!(trips.due(start + PERIOD), Some(3 << 20 | 1), "one without room stays due");
    }

    #[test]
    fn a_latency_counts_from_when_the_request_was_due() {
        let mut trips = trips();
        let answer = trips.start + PERIOD * 4 + Duration::from_micros(30);
        trips.answered(Some(3 << 20 | 4), answer);
        trips.answered(Some(3 << 20 | 4), answer + PERIOD);
        assert!((trips.latencies[4] - 30.0).abs() < 1e-6, "and only the first answer does");
        assert_eq!((trips.total, trips.open, trips.foreign), (10, 9, 0));
    }

    #[test]
    fn answers_of_other_slices_and_other_frames_count_as_foreign() {
        let mut trips = trips();
        for number in [None, Some(2 << 20), Some(3 << 20 | 10)] {
            trips.answered(number, Instant::now());
        }
        assert_eq!((trips.open, trips.foreign), (10, 3));
    }

    #[test]
    fn a_request_without_answer_has_waited_until_the_end() {
        let measured = trips().measured(ClientCost::default());
        assert_eq!(measured.rate, 0.0);
        assert_eq!(measured.latencies_us.len(), 10);
        assert!(measured.latencies_us[0] >= 1000.0 && measured.latencies_us[9] >= 100.0);
    }
}
