//! Whose frames a worker moves next.
//!
//! # Theory of operation
//! The members of core's [`Turns`] are the worker's ports and its uplinks. In its turn a port is served batch after batch, from its queue pairs in rotation, until
//! its credit is spent or no pair has anything: more pairs bring it no more. A batch ends with the chain that takes it over the
//! credit that is left, so one frame at most is beyond it, and what that costs by being copied to many.
//!
//! Costs are read from the [`Ledger`], to which whoever does the work adds it. What other workers do for a
//! port (segments of its that an uplink's worker releases) is so charged to its next turn.
//!
//! **Time.** While rounds follow each other without a pause, somebody has to do without something, and a member pays for the time that its turn
//! took: the clock is read once after each turn that had work, and the charge by the model is [corrected](Turns::correct). Until then
//! the charge is what such work took recently ([`Pace`]). A worker with time to spare reads no clock; nobody has too little there.
//! Charged by the model in any case, to who sent them: frames that wait for buffers, which are placed in others' turns, and GSO packets that are cut over several turns.
//! What is done of that in a member's turn is not in its time.
//!
//! **Invariant**: [`Turns`]' bound on what two ports that always have frames may differ by. One batch costs at most
//! [`QUANTUM`] and the most expensive frame.

use std::collections::BTreeMap;
use std::sync::Arc;

use floodway_core::l2::PortId;
use floodway_core::time::Instant;
use floodway_core::work::{Pace, Turns};

use crate::state::port::Port;
use crate::state::uplink::UplinkReceiver;
use crate::stats::ledger::{Ledger, Sums};

/// Nanoseconds that a member may spend in a round. A few GSO packets, so that bulk comes in batches still; and
/// short enough for a hundred ports to have their turns within 3 ms when all have work.
pub const QUANTUM: u32 = 32_000;

/// Turns of a worker's ports and uplinks.
pub struct Schedule {
    turns: Turns,
    members: Box<[Member]>,
    /// Of the turn that goes on.
    turn: Turn,
    /// Turns are charged for their time if the worker is busy.
    is_timed: bool,
    /// Until when all time is accounted for; none in a round that follows a pause.
    accounted: Option<Instant>,
    /// Rounds so far.
    rounds: u64,
}

/// What was done in a turn so far, in nanoseconds.
#[derive(Clone, Copy, Default)]
struct Turn {
    /// By the cost model: what was done.
    own: u64,
    /// What was left to others' turns.
    deferred: u64,
    /// What was done that others have been charged for.
    relieved: u64,
    /// What the member was charged.
    charged: u64,
    /// The part that is charged for its time goes on.
    is_timed: bool,
}

struct Member {
    id: PortId,
    /// Queue pairs, and the one that is next.
    pairs: usize,
    next_pair: usize,
    pace: Pace,
    /// What the ledger said when it was last charged, and when shares were last noted.
    charged: Sums,
    noted: u64,
    /// The last round that it was not left out of.
    last_round: u64,
}

impl Schedule {
    /// Turns of ports and uplinks with these numbers and numbers of queue pairs, in this order.
    #[must_use]
    pub fn new(members: impl Iterator<Item = (PortId, usize)>) -> Self {
        let pace = Pace::default();
        let member = |(id, pairs)| Member {
            id,
            pairs,
            next_pair: 0,
            pace,
            charged: Sums::default(),
            noted: 0,
            last_round: 0,
        };
        let members: Box<[_]> = members.map(member).collect();
        let turns = Turns::new(members.len(), QUANTUM);
        Self { turns, members, turn: Turn::default(), is_timed: false, accounted: None, rounds: 0 }
    }

    /// Turns of a worker's ports and then its uplinks.
    #[must_use]
    pub fn of(ports: &[Arc<Port>], uplinks: &[UplinkReceiver]) -> Self {
        let ports = ports.iter().map(|port| (port.id, port.pairs.len()));
        Self::new(ports.chain(uplinks.iter().map(|uplink| (uplink.slot().id, 1))))
    }

    /// Takes over other ports. Those that stay keep their credit; what others have cost before is not charged.
    pub(super) fn take_ports(
        &mut self,
        ports: &[Arc<Port>],
        uplinks: &[UplinkReceiver],
        ledger: &Ledger,
    ) {
        let next = Self { is_timed: self.is_timed, ..Self::of(ports, uplinks) };
        let before = std::mem::replace(self, next);
        let places: BTreeMap<_, _> =
            before.members.iter().enumerate().map(|(place, member)| (member.id, place)).collect();
        for (place, member) in self.members.iter_mut().enumerate() {
            if let Some(&known) = places.get(&member.id) {
                let Member { pace, charged, noted, .. } = before.members[known];
                (member.pace, member.charged, member.noted) = (pace, charged, noted);
                self.turns.carry_over(place, &before.turns, known);
            } else {
                (member.charged, member.noted) = (ledger.sums(member.id), ledger.used(member.id));
            }
        }
    }

    /// Charges turns for their time. Without this they are charged by the cost model, so that the same frames get the same turns.
    #[must_use]
    pub const fn timed(mut self) -> Self {
        self.is_timed = true;
        self
    }

    /// Begins a round. `follows` is `true` if the round before had work and was right before this one.
    #[inline]
    pub(super) fn begin_round(&mut self, follows: bool, clock: impl FnOnce() -> Instant) {
        self.accounted = (follows && self.is_timed).then(clock);
        self.rounds = self.rounds.wrapping_add(1);
    }

    /// Leaves a member out of the rounds that follow, unless it is in debt; returns `true` if it is left out.
    pub(super) fn leave_out(&mut self, member: usize) -> bool {
        let may_be = self.turns.left(member).is_some();
        if may_be {
            self.turns.end(member);
            self.members[member].last_round = self.rounds;
        }
        may_be
    }

    /// Takes a member into rounds again: it is charged what was done for it, and has paid in the rounds that have passed.
    pub(super) fn take_in(&mut self, member: usize, ledger: &Ledger) {
        self.charge_elsewhere(member, ledger);
        let passed = self.rounds.wrapping_sub(self.members[member].last_round);
        self.turns.sit_out(member, passed);
    }

    #[inline]
    fn charge_elsewhere(&mut self, member: usize, ledger: &Ledger) {
        let elsewhere = self.take(member, ledger).spent;
        if elsewhere > 0 {
            self.turns.charge(member, elsewhere);
            ledger.note_used(self.members[member].id, elsewhere);
        }
    }

    /// Begins the turn of a member, with what is charged by the model. Returns the cost of what may be done, if anything.
    #[inline]
    pub(super) fn begin(&mut self, member: usize, ledger: &Ledger) -> Option<u64> {
        self.turn = Turn::default();
        self.charge_elsewhere(member, ledger);
        self.turns.begin(member)
    }

    /// Charges what was done in the turn so far. Returns the cost of what may be done yet.
    #[inline]
    pub(super) fn settle(&mut self, member: usize, ledger: &Ledger) -> Option<u64> {
        let Sums { spent, deferred, relieved } = self.take(member, ledger);
        let own = spent.saturating_sub(deferred);
        let pace = self.pace(member);
        let charge = pace.time(own) + deferred;
        self.turn.own += own;
        self.turn.deferred += deferred;
        self.turn.relieved += relieved;
        self.turn.charged += charge;
        self.turns.charge(member, charge);
        self.turns.left(member).map(|time| pace.cost(time))
    }

    /// Begins the part of a turn that is charged for its time. `has_waited` is `true` if something was done in the turn before.
    /// Returns the cost of what may be done yet.
    #[inline]
    pub(super) fn begin_timed(
        &mut self,
        member: usize,
        ledger: &Ledger,
        has_waited: bool,
        clock: impl FnOnce() -> Instant,
    ) -> Option<u64> {
        if has_waited {
            let cost = self.turn.own + self.turn.deferred;
            self.correct(member, ledger, cost);
            self.accounted = self.accounted.map(|_| clock());
        }
        self.turn.is_timed = true;
        let pace = self.pace(member);
        self.turns.left(member).map(|time| pace.cost(time))
    }

    /// Ends the turn of a member, which has spent its credit or `is_done`: it has nothing more.
    #[inline]
    pub(super) fn end(
        &mut self,
        member: usize,
        ledger: &Ledger,
        is_done: bool,
        clock: impl FnOnce() -> Instant,
    ) {
        let Turn { own, deferred, relieved, .. } = self.turn;
        if own + deferred > 0 {
            let time = self.accounted.map_or(own, |before| {
                let now = clock();
                self.accounted = Some(now);
                let time = now.since(before).as_nanos() as u64;
                self.members[member].pace.learn(own, time.saturating_sub(relieved))
            });
            self.correct(member, ledger, time + deferred);
        }
        if is_done {
            self.turns.end(member);
        }
    }

    /// What was done in the turn so far is charged `time` in the end.
    #[inline]
    fn correct(&mut self, member: usize, ledger: &Ledger, time: u64) {
        let Turn { charged, .. } = std::mem::take(&mut self.turn);
        self.turns.correct(member, time.cast_signed().saturating_sub(charged.cast_signed()));
        ledger.note_used(self.members[member].id, time);
    }

    /// What is expected of a member's work now.
    #[inline]
    fn pace(&self, member: usize) -> Pace {
        let member = self.members.get(member).filter(|_| self.turn.is_timed);
        member.map_or(Pace::default(), |member| member.pace)
    }

    /// The queue pair that is next.
    #[inline]
    pub(super) fn next_pair(&mut self, member: usize) -> usize {
        let member = &mut self.members[member];
        let pair = member.next_pair;
        member.next_pair = if pair + 1 < member.pairs { pair + 1 } else { 0 };
        pair
    }

    /// See [`Turns::skip_rounds`].
    #[inline]
    pub(super) fn skip_rounds(&mut self) -> bool {
        self.turns.skip_rounds()
    }

    /// Notes each member's share of the time that was used since this was last called.
    pub(super) fn note_shares(&mut self, ledger: &Ledger) {
        let time = |member: &mut Member| {
            let used = ledger.used(member.id);
            let before = std::mem::replace(&mut member.noted, used);
            (member.id, used.wrapping_sub(before))
        };
        let times: Vec<_> = self.members.iter_mut().map(time).collect();
        ledger.note_shares(&times);
    }

    /// What was done for a member since this was last called.
    #[inline]
    fn take(&mut self, member: usize, ledger: &Ledger) -> Sums {
        let Some(place) = self.members.get_mut(member) else { return Sums::default() };
        let sums = ledger.sums(place.id);
        sums.since(std::mem::replace(&mut place.charged, sums))
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::path::Path;

    use super::*;
    use floodway_core::work::Work;

    use crate::config::Config;
    use crate::state::shared::Shared;
    use crate::stats::ledger::MODEL;

    const MEMBERS: usize = 3;

    /// Members whose work takes a multiple of what the model says, and a clock that shows it.
    struct Scene {
        schedule: Schedule,
        ledger: Ledger,
        clock: Cell<u64>,
        /// Time of a nanosecond of cost, in hundredths.
        pace: [u64; MEMBERS],
        /// Time that each was served for.
        served: [u64; MEMBERS],
    }

    impl Scene {
        fn new(schedule: impl Fn(Schedule) -> Schedule, pace: [u64; MEMBERS]) -> Self {
            let members = (0..MEMBERS).map(|n| (PortId(n as u16), 1));
            Self {
                schedule: schedule(Schedule::new(members)),
                ledger: Ledger::new(MEMBERS),
                clock: Cell::new(0),
                pace,
                served: [0; MEMBERS],
            }
        }

        /// Has frames of `copies` copies done for a member.
        fn work(&mut self, member: usize, copies: u64) {
            let work = Work { copies, ..Work::default() };
            self.ledger.charge(PortId(member as u16), &work);
            let time = MODEL.cost(&work) * self.pace[member] / 100;
            self.clock.set(self.clock.get() + time);
            self.served[member] += time;
        }

        /// A round in which each member has as much to do as it may.
        fn round(&mut self, follows: bool) {
            let clock = self.clock.clone();
            self.schedule.begin_round(follows, || Instant::from_nanos(clock.get()));
            for member in 0..MEMBERS {
                self.schedule.begin(member, &self.ledger);
                let now = || Instant::ZERO;
                let mut left = self.schedule.begin_timed(member, &self.ledger, false, now);
                while let Some(cost) = left {
                    self.work(member, (cost * 1000 / MODEL.copy).clamp(1, 32));
                    left = self.schedule.settle(member, &self.ledger);
                }
                let clock = self.clock.clone();
                let now = || Instant::from_nanos(clock.get());
                self.schedule.end(member, &self.ledger, false, now);
            }
        }

        /// Serves the members for 300 rounds. Returns the share of each in the time.
        fn shares(&mut self, follows: bool) -> [f64; MEMBERS] {
            (0..300).for_each(|_| self.round(follows));
            let sum: u64 = self.served.iter().sum();
            self.served.map(|time| time as f64 / sum as f64)
        }
    }

    /// What one copies is in the cache, what another one does is more than the model knows of.
    const PACES: [u64; MEMBERS] = [62, 100, 250];

    #[test]
    fn members_of_a_busy_worker_share_its_time_whatever_the_model_says() {
        let mut scene = Scene::new(Schedule::timed, PACES);
        let shares = scene.shares(true);
        assert!(shares.iter().all(|share| (0.32..0.35).contains(share)), "{shares:?}");
        let used = [0, 1, 2].map(|n| scene.ledger.used(PortId(n)));
        assert_eq!(used, scene.served, "and that is what they are charged");
    }

    #[test]
    fn without_a_clock_they_share_its_cost() {
        for (schedule, follows) in [(Schedule::timed as fn(_) -> _, false), (|s| s, true)] {
            let shares = Scene::new(schedule, PACES).shares(follows);
            assert!(shares[0] < 0.16 && shares[2] > 0.58, "{shares:?}");
        }
    }

    /// It could take so long that nobody would want to wait for it.
    #[test]
    fn a_clock_that_jumps_costs_a_bounded_number_of_turns() {
        let mut scene = Scene::new(Schedule::timed, [100; MEMBERS]);
        scene.round(true);
        scene.clock.set(scene.clock.get() + 1_000_000_000);
        // In a turn, not between rounds.
        let ledger = &scene.ledger;
        scene.schedule.begin_round(true, || Instant::ZERO);
        assert!(scene.schedule.begin(0, ledger).is_some());
        scene.schedule.begin_timed(0, ledger, false, || Instant::ZERO);
        ledger.charge(PortId(0), &Work { copies: 10, ..Work::default() });
        scene.schedule.settle(0, ledger);
        scene.schedule.end(0, ledger, true, || Instant::from_nanos(scene.clock.get()));
        let mut rounds = 0;
        while scene.schedule.begin(0, &scene.ledger).is_none() {
            rounds += 1;
        }
        assert!(rounds <= 8, "{rounds}");
    }

    /// A turn of 21 µs in which frames of others are placed for 20, and then 10 copies are made for 1.
    fn turn_with_frames_of_others(scene: &mut Scene, deferred: u64, relieved: u64) -> u64 {
        let (id, clock) = (PortId(0), Cell::new(0));
        let now = || Instant::from_nanos(clock.get());
        scene.schedule.begin_round(true, now);
        let before = scene.schedule.begin(0, &scene.ledger);
        clock.set(20_000);
        let left = scene.schedule.begin_timed(0, &scene.ledger, true, now);
        assert_eq!(left, before, "others have paid");
        scene.ledger.charge(id, &Work { copies: 10, ..Work::default() });
        let work = Work { copies: deferred, ..Work::default() };
        scene.ledger.charge(id, &work);
        scene.ledger.defer(id, &work);
        scene.ledger.relieve(id, relieved);
        scene.schedule.settle(0, &scene.ledger);
        clock.set(21_000);
        scene.schedule.end(0, &scene.ledger, true, now);
        scene.ledger.used(id)
    }

    #[test]
    fn what_others_have_paid_for_is_not_in_the_time_of_a_turn() {
        let mut scene = Scene::new(Schedule::timed, [100; MEMBERS]);
        assert_eq!(turn_with_frames_of_others(&mut scene, 0, 0), 1000);
        let mut scene = Scene::new(Schedule::timed, [100; MEMBERS]);
        assert_eq!(turn_with_frames_of_others(&mut scene, 0, 300), 700, "placed on the way");
    }

    #[test]
    fn turns_are_charged_for_their_time_when_ports_have_changed_too() {
        let text = "[[port]]\nname = \"vm1\"\nsocket = \"/unused\"\n";
        let config = Config::parse(text, Path::new("test")).expect("a good configuration");
        let shared = Shared::without_threads(&config).expect("a switch");
        let ports = shared.ports();
        let mut schedule = Schedule::of(ports.list(), &[]).timed();
        schedule.members[0].pace.learn(32_000, 16_000);
        let pace = schedule.members[0].pace;
        schedule.take_ports(ports.list(), &[], &shared.ledger);
        assert!(schedule.is_timed);
        assert_eq!(schedule.members[0].pace, pace);
    }

    /// A GSO packet that the receiver's turns cut.
    #[test]
    fn what_is_left_to_others_turns_is_charged_by_the_model() {
        let mut scene = Scene::new(Schedule::timed, [100; MEMBERS]);
        let used = turn_with_frames_of_others(&mut scene, 1000, 0);
        assert_eq!(used, 1000 + MODEL.copy);
    }
}
