//! One network on several threads.
//!
//! # Theory of operation
//! **Goal.** A network of hundreds of hosts is simulated by several processors, with the same result whatever their number.
//!
//! **Parts.** [`Parallel::new`] divides a world by a rule that looks at the network only ([`Partition`](crate::net::Partition)). Each part is a world
//! with its own events, packets and ends of flows. What crosses parts is packets, on links with a delay, and updates on
//! each other's flows ([`env`](crate::env)). Threads share out the parts; a part is always run by one thread, and which one makes no difference to it.
//!
//! **Windows.** Let `begin` be the time of the earliest event of all parts, and the look-ahead the least delay of a link between two
//! parts. What happens at `begin` or later has no effect on another part before `begin` plus the look-ahead. So all parts run up to that
//! time, but not including it, on their own; then they exchange what they have sent, and the next window begins. Time without events is skipped.
//!
//! **One barrier a window.** A part leaves what it has for others, and the time of its earliest event or of what it has sent, in the
//! set of mailboxes of the next window; there are two sets, used in turn. Behind the barrier each thread finds `begin` from those times, takes the mail of
//! its parts, and runs them. Nobody can be two barriers ahead, so a set is read by all before it is written again.
//!
//! **Order.** Of the events of one nanosecond in a part, those from other parts come first, by the number of the link, then in the order in
//! which they were sent. The part's own follow in the order in which they were scheduled, as in a whole world. None of that depends on threads, on windows, or on
//! where runs stop, so a result is a function of scenario, seed and number of parts. A whole world may order events of the same nanosecond in
//! another way, and then has another result: [`Parallel::digest`] is to be compared with that of another parallel run.
//!
//! **Invariants.** No part ever gets anything that is in its past. Mail is bounded by what a part sends in one window. A thread that
//! has no processor for a while holds the others up, and that is all.
//!
//! Source: conservative synchronization, Chandy and Misra, "Distributed simulation", IEEE TSE 1979; with windows instead of null
//! messages: Lubachevsky, "Efficient distributed event-driven simulations of multiple-loop networks", CACM 1989; Nicol, "The cost of conservative
//! synchronization in parallel discrete event simulations", JACM 1993.

use std::num::NonZeroUsize;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::engine::{Barrier, Broken, Digest};
use crate::env::Update;
use crate::net::{Crossing, Port, PortId};
use crate::packet::Address;
use crate::tcp::SenderStats;
use crate::world::{App, AppId, CannotDivide, Whole, World};
use crate::{Duration, Instant};

/// A world in parts, to be run by any number of threads.
pub struct Parallel {
    worlds: Vec<World>,
    ports: Vec<(u8, PortId)>,
    look_ahead: Option<Duration>,
    part_of: Arc<[u8]>,
}

impl Parallel {
    /// Divides a world that has not begun to run into at most `parts` parts. The same `parts` give the same results.
    ///
    /// # Errors
    /// If the world cannot be divided: it has machines with VMs, an application that cannot be divided, or a link
    /// without delay between two parts.
    ///
    /// # Panics
    /// If `parts` is zero or more than [`Partition::MOST`](crate::net::Partition::MOST).
    pub fn new(world: World, parts: usize) -> Result<Self, CannotDivide> {
        let Whole { worlds, ports, look_ahead, part_of } = world.divide(parts)?;
        Ok(Self { worlds, ports, look_ahead, part_of })
    }

    /// Number of parts.
    #[must_use]
    pub const fn parts(&self) -> usize {
        self.worlds.len()
    }

    /// The parts of an application, to read their results.
    pub fn app<A: App>(&self, id: AppId) -> impl Iterator<Item = &A> {
        self.worlds.iter().filter_map(move |world| world.app(id))
    }

    /// A port of the network. It names nodes as the network does.
    #[must_use]
    pub fn port(&self, id: PortId) -> &Port {
        let (part, place) = self.ports[id.0 as usize];
        self.worlds[usize::from(part)].net().port(place)
    }

    /// All ports of the network, in the order in which they were made.
    pub fn ports(&self) -> impl Iterator<Item = &Port> {
        (0..self.ports.len() as u32).map(|id| self.port(PortId(id)))
    }

    /// What all senders at an address have done so far.
    #[must_use]
    pub fn sender_stats(&self, address: Address) -> SenderStats {
        let part = self.part_of[address.0 as usize];
        self.worlds[usize::from(part)].sender_stats(address)
    }

    /// The present.
    #[must_use]
    pub fn now(&self) -> Instant {
        self.worlds.first().map_or(Instant::ZERO, World::now)
    }

    /// Events so far.
    #[must_use]
    pub fn events(&self) -> u64 {
        self.worlds.iter().map(World::events).sum()
    }

    /// Packets that exist now.
    #[must_use]
    pub fn packets(&self) -> usize {
        self.worlds.iter().map(World::packets).sum()
    }

    /// Flows, or halves of flows, that exist now.
    #[must_use]
    pub fn flows(&self) -> usize {
        self.worlds.iter().map(|world| world.flows().len()).sum()
    }

    /// The digest of all events, if the world that was divided was to have one ([`World::fingerprint`]).
    #[must_use]
    pub fn digest(&self) -> Option<u64> {
        let mut all = Digest::default();
        for world in &self.worlds {
            all.write(world.digest()?);
        }
        Some(all.value())
    }

    /// Runs until `end`, with at most as many threads as there are parts: the present is `end` after that.
    ///
    /// # Panics
    /// If a part panics.
    pub fn run(&mut self, end: Instant, threads: NonZeroUsize) {
        let parts = self.worlds.len();
        let threads = threads.get().min(parts);
        let exchange = Exchange::new(parts, threads);
        let (ahead, exchange) = (self.look_ahead, &exchange);
        let work = |(first, worlds)| {
            let _guard = exchange.barrier.guard();
            let mut worker = Worker { first, worlds, exchange };
            // A broken barrier is due to a thread that panics, which `join` returns.
            let _ = worker.run(end, ahead);
        };
        let groups = groups(&mut self.worlds, threads);
        std::thread::scope(|scope| {
            // Of threads that cannot be created, too, those that wait must hear.
            let _guard = exchange.barrier.guard();
            let mut groups = groups.into_iter();
            let own = groups.next();
            let others: Vec<_> = groups.map(|group| scope.spawn(move || work(group))).collect();
            own.into_iter().for_each(work);
            others
                .into_iter()
                .for_each(|thread| thread.join().unwrap_or_else(|e| resume_unwind(e)));
        });
    }
}

/// Divides the parts among so many threads, of which none has more than one part more than another. With each group comes the number of its first part.
fn groups(mut worlds: &mut [World], threads: usize) -> Vec<(usize, &mut [World])> {
    let mut first = 0;
    let group = |left: usize| {
        let count = worlds.len().div_ceil(left);
        let (own, others) = std::mem::take(&mut worlds).split_at_mut(count);
        worlds = others;
        first += count;
        (first - count, own)
    };
    (1..=threads).rev().map(group).collect()
}

/// What a part has sent to another in one window.
#[derive(Default)]
struct Mail {
    packets: Vec<Crossing>,
    updates: Vec<Update>,
}

/// Mail of one window, and when the parts go on.
struct Set {
    /// By receiver, then by sender.
    mail: Vec<Mutex<Mail>>,
    /// For each part, nanoseconds of its earliest event or of what it has sent.
    next: Vec<AtomicU64>,
}

/// What the threads of a run share.
struct Exchange {
    parts: usize,
    sets: [Set; 2],
    barrier: Barrier,
}

impl Exchange {
    fn new(parts: usize, threads: usize) -> Self {
        let set = |_| Set {
            mail: (0..parts * parts).map(|_| Mutex::default()).collect(),
            next: (0..parts).map(|_| AtomicU64::new(u64::MAX)).collect(),
        };
        Self { parts, sets: [0, 1].map(set), barrier: Barrier::new(threads) }
    }
}

/// A thread with the parts that it runs, from number `first` on.
struct Worker<'a> {
    first: usize,
    worlds: &'a mut [World],
    exchange: &'a Exchange,
}

impl Worker<'_> {
    fn run(&mut self, end: Instant, look_ahead: Option<Duration>) -> Result<(), Broken> {
        let Exchange { sets, barrier, .. } = self.exchange;
        for (part, world) in (self.first..).zip(&mut *self.worlds) {
            world.start();
            self.exchange.send(part, world, &sets[0]);
        }
        for window in 0.. {
            barrier.wait()?;
            let (set, next_set) = (&sets[window % 2], &sets[(window + 1) % 2]);
            let next = set.next.iter().map(|next| next.load(Ordering::Relaxed)).min();
            let begin = Instant::from_nanos(next.unwrap_or(u64::MAX));
            let last =
                look_ahead.map_or(end, |ahead| end.min(begin + ahead - Duration::from_nanos(1)));
            for (part, world) in (self.first..).zip(&mut *self.worlds) {
                self.exchange.receive(part, world, set);
                world.run_part(last);
                self.exchange.send(part, world, next_set);
            }
            if begin > end || begin == Instant::NEVER {
                break;
            }
        }
        Ok(())
    }
}

impl Exchange {
    /// Takes what other parts have for this one.
    fn receive(&self, part: usize, world: &mut World, set: &Set) {
        for from in &set.mail[part * self.parts..][..self.parts] {
            let mut mail = from.lock().unwrap_or_else(PoisonError::into_inner);
            mail.updates.drain(..).for_each(|update| world.apply(update));
            mail.packets.drain(..).for_each(|packet| world.receive(&packet));
        }
        world.sort_incoming();
    }

    /// Leaves what a part has for others, and when it goes on.
    fn send(&self, part: usize, world: &mut World, set: &Set) {
        let mut next = world.next_time();
        let mail = |to: u8| {
            let mail = &set.mail[usize::from(to) * self.parts + part];
            mail.lock().unwrap_or_else(PoisonError::into_inner)
        };
        for packet in world.outbox().drain(..) {
            next = next.min(packet.arrival);
            mail(packet.part).packets.push(packet);
        }
        for (to, update) in world.updates() {
            if let Update::Event(at, _) = &update {
                next = next.min(*at);
            }
            mail(to).updates.push(update);
        }
        set.next[part].store(next.as_nanos(), Ordering::Relaxed);
    }
}
