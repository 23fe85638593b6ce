//! What a transfer waits for at each moment: its critical path.
//!
//! # Theory of operation
//! The path is followed backwards, from what ended the transfer to its beginning. Each passage of a packet has a cause before it:
//!
//! | passage | cause |
//! |---|---|
//! | a packet leaves a queue | the same packet has come into it |
//! | the driver domain gives a packet to the card or a VM | what it took last, from the card or a VM: the packet itself, or the ACK that has released one that was held |
//! | the VM's stack makes a packet | what it received last, or the application's call at the beginning |
//! | the peer sends | what it received last |
//!
//! The time between cause and passage belongs to the VM, the driver domain, the network or the peer. That of the VM and of the
//! driver domain is divided by what their vCPUs do: one that has something to do and no pCPU waits for whoever runs there. So every
//! moment of a transfer has one [`Spent`], and they add up to its time. Passages are in the order of the simulator's work, in which
//! causes come first; no time is measured to find them.

use floodway_core::time::Instant;
use floodway_sim::cpu::State;
use floodway_sim::trace::{Passage, Point};
use serde::Serialize;

use super::schedule::{DRIVER, Schedule, VM};

/// What a moment of a transfer is spent with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Spent {
    /// The VM runs.
    VmRuns,
    /// The VM waits for its pCPU, which another VM has.
    VmWaitsForVms,
    /// The VM waits for its pCPU, which the driver domain has, or gets.
    VmWaitsForDriver,
    /// The driver domain runs.
    DriverRuns,
    /// The driver domain waits for its pCPU, which another VM has.
    DriverWaitsForVms,
    /// The driver domain waits for its pCPU, which the VM has.
    DriverWaitsForVm,
    /// Whoever is to go on is blocked: the card gathers interrupts, or a timer is awaited.
    Blocked,
    /// A packet is on its way between the machine and its peer.
    Network,
    /// The peer does not answer at once.
    Peer,
}

impl Spent {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::VmRuns,
        Self::VmWaitsForVms,
        Self::VmWaitsForDriver,
        Self::DriverRuns,
        Self::DriverWaitsForVms,
        Self::DriverWaitsForVm,
        Self::Blocked,
        Self::Network,
        Self::Peer,
    ];

    /// In words.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::VmRuns => "the VM runs",
            Self::VmWaitsForVms => "the VM waits for another VM",
            Self::VmWaitsForDriver => "the VM waits for the driver domain",
            Self::DriverRuns => "the driver domain runs",
            Self::DriverWaitsForVms => "the driver domain waits for another VM",
            Self::DriverWaitsForVm => "the driver domain waits for the VM",
            Self::Blocked => "card or timer",
            Self::Network => "network",
            Self::Peer => "peer",
        }
    }
}

/// A stretch of the path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stretch {
    /// Its beginning.
    pub from: Instant,
    /// Its end.
    pub to: Instant,
    /// What it is spent with.
    pub spent: Spent,
}

/// Whose time is between a passage and its cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    Vm,
    Driver,
    Network,
    Peer,
}

/// The critical path of a transfer, whose passages these are: stretches from `begun` to `ended`, one after the other. It ends at the sender, which
/// is the VM if the transfer goes `outwards`.
pub fn follow(
    passages: &[Passage],
    schedule: &Schedule,
    outwards: bool,
    [begun, ended]: [Instant; 2],
) -> Vec<Stretch> {
    let mut path = Vec::new();
    let mut to = ended;
    let (point, mut owner) = match outwards {
        true => (Point::Received, Owner::Vm),
        false => (Point::PeerReceived, Owner::Peer),
    };
    let last = |passage: &Passage| passage.at <= ended && passage.point == point;
    let mut at = passages.iter().rposition(last);
    while let Some(n) = at {
        let passage = passages[n];
        add(&mut path, owner, passage.at.max(begun), to, schedule);
        to = to.min(passage.at).max(begun);
        owner = owner_before(passage.point);
        at = cause(&passages[..n], &passage);
    }
    add(&mut path, owner, begun, to, schedule);
    path.reverse();
    path
}

/// Whose time it is until something passes a point.
const fn owner_before(point: Point) -> Owner {
    match point {
        Point::Queued | Point::Sent | Point::Received => Owner::Vm,
        Point::TakenFromVm | Point::TakenFromCard | Point::ToNetwork | Point::ToVm => Owner::Driver,
        Point::AtCard | Point::PeerReceived => Owner::Network,
        Point::PeerSent => Owner::Peer,
    }
}

/// Where the cause of a passage is among those before it; `None` if it is the transfer's beginning.
fn cause(before: &[Passage], passage: &Passage) -> Option<usize> {
    use Point::{
        AtCard, PeerReceived, PeerSent, Queued, Received, Sent, TakenFromCard, TakenFromVm,
        ToNetwork, ToVm,
    };
    let latest = |points: &[Point]| before.iter().rposition(|p| points.contains(&p.point));
    // A packet that a card has cut into several has a new name: then it is the latest that went the same way.
    let same = |point: Point| {
        let named = |p: &Passage| p.point == point && p.id == passage.id;
        before.iter().rposition(named).or_else(|| latest(&[point]))
    };
    match passage.point {
        Queued => latest(&[Received]),
        Sent => same(Queued),
        TakenFromVm => same(Sent),
        ToNetwork | ToVm => latest(&[TakenFromVm, TakenFromCard]),
        PeerReceived => same(ToNetwork),
        PeerSent => latest(&[PeerReceived]),
        AtCard => same(PeerSent),
        TakenFromCard => same(AtCard),
        Received => same(ToVm),
    }
}

/// Adds what a time of an owner is spent with, the last first.
fn add(path: &mut Vec<Stretch>, owner: Owner, from: Instant, to: Instant, schedule: &Schedule) {
    let vcpu = match owner {
        Owner::Network => return push(path, Stretch { from, to, spent: Spent::Network }),
        Owner::Peer => return push(path, Stretch { from, to, spent: Spent::Peer }),
        Owner::Vm => VM,
        Owner::Driver => DRIVER,
    };
    for (from, to, states) in schedule.between(from, to).rev() {
        let spent = match (vcpu, states[vcpu]) {
            (_, State::Blocked) => Spent::Blocked,
            (DRIVER, State::Running(_)) => Spent::DriverRuns,
            (_, State::Running(_)) => Spent::VmRuns,
            (_, State::Waiting) => waits_for(vcpu, states),
        };
        push(path, Stretch { from, to, spent });
    }
}

/// For whom a vCPU waits.
fn waits_for(vcpu: usize, states: &[State]) -> Spent {
    let running = |vcpu: usize| matches!(states[vcpu], State::Running(_));
    let others = (VM + 1..states.len()).any(running);
    match (vcpu, others) {
        (DRIVER, true) => Spent::DriverWaitsForVms,
        (DRIVER, false) => Spent::DriverWaitsForVm,
        (_, true) => Spent::VmWaitsForVms,
        (_, false) => Spent::VmWaitsForDriver,
    }
}

/// Adds a stretch before the last one that was added.
fn push(path: &mut Vec<Stretch>, stretch: Stretch) {
    if stretch.to <= stretch.from {
        return;
    }
    match path.last_mut() {
        Some(next) if next.spent == stretch.spent && next.from == stretch.to => {
            next.from = stretch.from;
        }
        _ => path.push(stretch),
    }
}
