//! Two and more workers against one, each with guests of its own in its thread.
//!
//! A round: every worker's guests fill their transmit rings; all workers begin at once and forward until these are empty; the receivers take
//! what has come. Only the middle part is timed, from the common start until the last worker is done: the time has the workers in it, what they have in
//! common, and how they wait for each other twice, which makes several workers look somewhat slower. Slices of rounds with one worker and with several alternate, and a ratio is that of two slices' median rounds.
//!
//! - `apart`: each worker has a sender and a receiver, and a switch of its own. The ratio is what the machine gives several threads that have nothing in common
//!   but its caches and its memory: 2 at most for two.
//! - `pairs`: each worker has a sender and a receiver of its own. The ratio is what all of them forward in a time, by what one does alone.
//! - `incast`: eight senders and one receiver, all of one worker, or the senders divided among several. The ratio is what several forward in a time, by
//!   what one does.
//!
//! Worker N runs on processor N, so the machine's first processors should be different cores. 2, 4, 8 and 16 workers are measured, as far as there are processors;
//! an incast has as many as it has senders at most.
//! Run: `cargo bench -p floodway-switch --bench workers`; arguments (`apart`, `pairs`, `incast`, `64`, `1514`) choose rows.

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use floodway_report::stats::{median as median_of, median_interval};
use floodway_switch::runtime::polling::Polling;
use floodway_switch::runtime::worker::{Progress, Worker};
use floodway_switch::state::shared::Shared;
use floodway_switch::testing::frames::numbered;
use floodway_switch::testing::{Guest, GuestConfig, TxShape};
use floodway_wire::vnet::VnetHdr;

use guests::{attach, median, pin, polling_guest, port, shared_by};

mod guests;

/// Frames that each sender has in a round.
const FRAMES: u16 = 128;
/// Senders of an incast.
const SENDERS: usize = 8;
const SLICE: Duration = Duration::from_millis(100);
const PAIRS: usize = 40;

/// A worker and the guests that live in its thread.
struct Team {
    worker: Worker,
    progress: Progress,
    /// Each with the frame that it sends.
    senders: Vec<(Guest, Vec<u8>)>,
    receiver: Option<Guest>,
}

impl Team {
    fn new(
        shared: &Arc<Shared>,
        index: usize,
        senders: Vec<(Guest, Vec<u8>)>,
        receiver: Option<Guest>,
    ) -> Self {
        let ports = shared.ports();
        let mine: Vec<_> = ports.iter().filter(|port| port.config.worker == index).collect();
        let waker = Arc::clone(&mine.first().expect("a port of this worker").waker);
        // The ports of the senders come first.
        for (port, (guest, _)) in mine.iter().zip(&senders) {
            waker.watch(&guest.pairs[0].tx.kick, port.id);
        }
        let polling = Polling::new(Duration::from_secs(3600));
        let mut worker = Worker::new(Arc::clone(shared), index, waker, polling);
        let progress = worker.begin();
        Self { worker, progress, senders, receiver }
    }

    /// Lets all senders send. Returns how many frames.
    fn fill(&mut self) -> usize {
        for (guest, frame) in &mut self.senders {
            for _ in 0..FRAMES {
                assert!(guest.send_quietly(0, &VnetHdr::default(), frame), "room to transmit");
            }
            // A worker that was left alone for long has asked for it.
            guest.pairs[0].tx.kick();
        }
        self.senders.len() * usize::from(FRAMES)
    }

    /// Does a worker's rounds until the senders' frames are forwarded.
    fn forward(&mut self) {
        let done = |(guest, _): &(Guest, Vec<u8>)| {
            let tx = &guest.pairs[0].tx.driver;
            tx.used_idx() == tx.avail_idx()
        };
        while !self.senders.iter().all(done) {
            self.worker.step(&mut self.progress);
        }
    }

    /// Frames that have arrived.
    fn receive(&mut self) -> usize {
        let Some(guest) = &mut self.receiver else { return 0 };
        let mut frames = 0;
        while let Some(frame) = guest.recv(0) {
            black_box(frame);
            frames += 1;
        }
        guest.refill(0, usize::MAX);
        frames
    }
}

fn sender() -> Guest {
    let tx_shape = TxShape::Single;
    polling_guest(GuestConfig { tx_slots: FRAMES, tx_shape, ..GuestConfig::default() })
}

fn receiver() -> Guest {
    let ring_size = 2048;
    let mut guest = polling_guest(GuestConfig { ring_size, tx_slots: 1, ..GuestConfig::default() });
    guest.auto_refill = false;
    guest
}

fn frame(from: usize, to: usize, len: usize) -> Vec<u8> {
    numbered(from as u8 + 1, to as u8 + 1, 0, len - 42)
}

/// A sender and a receiver for each of so many workers.
fn pairs(workers: usize, len: usize) -> Vec<Team> {
    let ports = (0..2 * workers).map(|i| {
        let mut port = port(i as u8 + 1);
        port.worker = i / 2;
        port
    });
    let shared = shared_by(ports.collect(), workers);
    let team = |index| {
        let (from, to) = (2 * index, 2 * index + 1);
        let (sender, receiver) = (sender(), receiver());
        attach(&shared, from, &sender);
        attach(&shared, to, &receiver);
        Team::new(&shared, index, vec![(sender, frame(from, to, len))], Some(receiver))
    };
    (0..workers).map(team).collect()
}

/// The same, each in a switch of its own.
fn apart(workers: usize, len: usize) -> Vec<Team> {
    (0..workers).flat_map(|_| pairs(1, len)).collect()
}

/// Eight senders, divided among so many workers, and the receiver of them all at the first worker.
fn incast(workers: usize, len: usize) -> Vec<Team> {
    let of = |sender: usize| sender % workers;
    let mut ports: Vec<_> = (0..=SENDERS).map(|i| port(i as u8 + 1)).collect();
    for (i, port) in ports.iter_mut().enumerate().take(SENDERS) {
        port.worker = of(i);
    }
    let shared = shared_by(ports, workers);
    let team = |index| {
        let senders = (0..SENDERS).filter(|&i| of(i) == index).map(|i| {
            let guest = sender();
            attach(&shared, i, &guest);
            (guest, frame(i, SENDERS, len))
        });
        let senders = senders.collect();
        let receiver = (index == 0).then(|| {
            let guest = receiver();
            attach(&shared, SENDERS, &guest);
            guest
        });
        Team::new(&shared, index, senders, receiver)
    };
    (0..workers).map(team).collect()
}

/// Where threads wait for each other without sleeping.
#[derive(Default)]
struct Barrier {
    arrived: AtomicUsize,
}

impl Barrier {
    /// Waits until threads have come here so many times in all, this one included.
    fn wait(&self, times: usize) {
        self.arrived.fetch_add(1, Ordering::AcqRel);
        while self.arrived.load(Ordering::Acquire) < times {
            std::hint::spin_loop();
        }
    }
}

/// What a thread has of a slice.
struct Rounds {
    times: Vec<Duration>,
    sent: usize,
    received: usize,
}

/// Rounds of a slice, in the thread of one of its `threads` teams.
fn run_rounds(
    team: &mut Team,
    core: usize,
    threads: usize,
    barrier: &Barrier,
    over: &AtomicBool,
) -> Rounds {
    pin(core);
    let until = Instant::now() + SLICE;
    let mut rounds = Rounds { times: Vec::new(), sent: 0, received: 0 };
    for round in 0.. {
        rounds.sent += team.fill();
        barrier.wait(threads * (3 * round + 1));
        let start = Instant::now();
        team.forward();
        barrier.wait(threads * (3 * round + 2));
        rounds.times.push(start.elapsed());
        rounds.received += team.receive();
        // One decides for all.
        if core == 0 && Instant::now() >= until {
            over.store(true, Ordering::Relaxed);
        }
        barrier.wait(threads * (3 * round + 3));
        if over.load(Ordering::Relaxed) {
            break;
        }
    }
    rounds
}

/// A slice: rounds of all these teams at once. Returns the median round's nanoseconds.
fn slice(teams: &mut [Team]) -> f64 {
    let threads = teams.len();
    let (barrier, over) = (Barrier::default(), AtomicBool::new(false));
    let all: Vec<Rounds> = thread::scope(|scope| {
        let running: Vec<_> = teams
            .iter_mut()
            .enumerate()
            .map(|(core, team)| {
                let (barrier, over) = (&barrier, &over);
                scope.spawn(move || run_rounds(team, core, threads, barrier, over))
            })
            .collect();
        running.into_iter().map(|thread| thread.join().expect("a slice without a panic")).collect()
    });
    let sum = |of: fn(&Rounds) -> usize| all.iter().map(of).sum::<usize>();
    assert_eq!(sum(|rounds| rounds.sent), sum(|rounds| rounds.received), "every frame arrives");
    median(all[0].times.iter().copied()).as_nanos() as f64
}

/// Prints what `workers` forward in a time by what one does.
fn compare(name: &str, len: usize, workers: usize, one: &mut [Team], several: &mut [Team]) {
    let frames = |teams: &[Team]| {
        teams.iter().map(|team| team.senders.len()).sum::<usize>() as f64 * f64::from(FRAMES)
    };
    let (frames_of_one, frames_of_several) = (frames(one), frames(several));
    let (mut alone, mut together, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..PAIRS {
        alone.push(slice(one) / frames_of_one);
        together.push(slice(several) / frames_of_several);
        ratios.push(alone[alone.len() - 1] / together[together.len() - 1]);
    }
    let [alone, together, ratio] =
        [&alone, &together, &ratios].map(|all| median_of(all).expect("slices"));
    let interval = median_interval(&ratios, 1).expect("slices");
    println!(
        "{name}, {len} B: {workers} workers {together:.1} ns a frame, one {alone:.1}; ratio {ratio:.2} ({:.2} to {:.2})",
        interval.low, interval.high
    );
}

/// Makes the teams of so many workers, with frames of this length.
type Case = fn(usize, usize) -> Vec<Team>;

const CASES: [(&str, Case); 3] = [("apart", apart), ("pairs", pairs), ("incast", incast)];

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with('-')).collect();
    let (numbers, names): (Vec<_>, Vec<_>) =
        arguments.iter().partition(|a| a.parse::<usize>().is_ok());
    let chosen = |of: &[&String], name: &str| of.is_empty() || of.iter().any(|a| *a == name);
    let cores = thread::available_parallelism().map_or(1, usize::from);
    for workers in [2, 4, 8, 16].into_iter().filter(|&workers| workers <= cores) {
        for len in [64, 1514].into_iter().filter(|len| chosen(&numbers, &len.to_string())) {
            for (name, case) in CASES.into_iter().filter(|(name, _)| chosen(&names, name)) {
                if name == "incast" && workers > SENDERS {
                    continue;
                }
                compare(name, len, workers, &mut case(1, len), &mut case(workers, len));
            }
        }
    }
}
