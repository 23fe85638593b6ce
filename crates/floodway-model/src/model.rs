//! Everything that can happen next, for the checker.

use stateright::{Model, Property};

use crate::properties;
use crate::scenario::Scenario;
use crate::step::Step;
use crate::world::{Broker, FrontEnd, Item, Number, Plane, World};
use crate::{broker, plane};

/// A thread of one of the processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Thread {
    /// The worker of a data plane.
    Worker(Number),
    /// The port's thread of a data plane.
    Relay(Number),
    /// The main thread of a data plane.
    Plane(Number),
    /// The port's thread of the broker.
    Port,
    /// The main thread of the broker.
    Broker,
}

/// What happens next.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// A thread does the first of these steps.
    Run(Thread, Vec<Step>),
    /// The guest looks into its receive ring.
    GuestLooks,
    /// The peer sends this segment.
    PeerSends(Number),
    /// The front-end sends its next message.
    FrontEndSends,
    /// The next broker is started.
    BrokerStarts,
    /// A data plane finds that neither broker nor store is there, and ends.
    OrphanEnds(Number),
    /// The kernel ends a data plane that was killed.
    DoomedEnds(Number),
    /// A data plane is killed.
    KillPlane(Number),
    /// The broker hears no sign of life of its data plane, which it kills.
    LosePatience,
    /// The broker is killed.
    KillBroker,
    /// The descriptor store is killed.
    KillStore,
}

impl Scenario {
    fn threads(&self, world: &World, actions: &mut Vec<Action>) {
        for (number, plane) in (0..).zip(&world.planes).filter(|(_, plane)| plane.alive) {
            self.plane_threads(world, (number, plane), actions);
        }
        let Some(broker) = &world.broker else { return };
        let port = next(&broker.port.todo, broker::port_jobs(self, world, broker));
        actions.extend(port.map(|job| Action::Run(Thread::Port, job)));
        let main = next(&broker.main, broker::main_jobs(world, broker));
        let main = main.filter(|job| broker::is_free(self, world, broker, job[0]));
        actions.extend(main.map(|job| Action::Run(Thread::Broker, job)));
    }

    fn plane_threads(
        &self,
        world: &World,
        (number, plane): (Number, &Plane),
        actions: &mut Vec<Action>,
    ) {
        if plane.worker.is_empty() {
            let jobs = plane::worker_jobs(self, world, plane);
            actions.extend(jobs.into_iter().map(|job| Action::Run(Thread::Worker(number), job)));
        } else {
            actions.push(Action::Run(Thread::Worker(number), plane.worker.clone()));
        }
        let relay = next(&plane.relay, plane::relay_jobs(self, plane));
        let relay = relay.filter(|job| plane::is_free(plane, job[0]));
        actions.extend(relay.map(|job| Action::Run(Thread::Relay(number), job)));
        let main = next(&plane.main, plane::main_jobs(plane));
        actions.extend(main.map(|job| Action::Run(Thread::Plane(number), job)));
    }

    fn outside(&self, world: &World, actions: &mut Vec<Action>) {
        actions.extend(world.guest.interrupted.then_some(Action::GuestLooks));
        actions.extend(self.next_segment(world).map(Action::PeerSends));
        actions.extend(self.can_speak(world).then_some(Action::FrontEndSends));
        if world.broker.is_none() && broker::begin(self, &mut world.clone()).is_some() {
            actions.push(Action::BrokerStarts);
        }
        for (number, plane) in (0..).zip(&world.planes).filter(|(_, plane)| plane.alive) {
            actions.extend(plane.doomed.then_some(Action::DoomedEnds(number)));
            actions.extend(self.is_orphan(world, number).then_some(Action::OrphanEnds(number)));
        }
    }

    /// Neither broker nor store has the other end of its channels.
    fn is_orphan(&self, world: &World, number: Number) -> bool {
        let watched = world.broker.as_ref().is_some_and(|broker| broker.plane == Some(number));
        let kept = world
            .store
            .as_ref()
            .is_some_and(|kept| kept.plane.is_some_and(|(kept, _)| kept == number));
        !watched && !kept
    }

    /// The segment that the peer sends next: a new one, or the first one that is lost.
    fn next_segment(&self, world: &World) -> Option<Number> {
        let peer = &world.peer;
        if peer.sent < self.segments && peer.queue.len() < 2 {
            return Some(peer.sent);
        }
        let on_its_way = |segment: &Number| {
            let arrived = world.guest.has_got(*segment);
            let held = world
                .living()
                .any(|plane| plane.hand == Some(*segment) || plane.owed.contains(segment));
            arrived || held || peer.queue.contains(segment)
        };
        (peer.acked..peer.sent).find(|segment| !on_its_way(segment))
    }

    /// The front-end is connected, has something to say, and waits for no answer.
    fn can_speak(&self, world: &World) -> bool {
        let FrontEnd { session, sent, replies, .. } = &world.front_end;
        let before = usize::from(*sent).checked_sub(1);
        let waits = before.is_some_and(|last| self.script[last].has_reply() && replies[last] == 0);
        session.is_some() && usize::from(*sent) < self.script.len() && !waits
    }

    fn deaths(&self, world: &World, actions: &mut Vec<Action>) {
        // A switch that has never served gives up.
        if !world.history.has_served {
            return;
        }
        if world.deaths.planes > 0 {
            let living = (0..).zip(&world.planes).filter(|(_, plane)| plane.alive && !plane.doomed);
            actions.extend(living.map(|(number, _)| Action::KillPlane(number)));
            let watches = |broker: &Broker| broker.ready && broker.main.is_empty();
            actions
                .extend(world.broker.as_ref().filter(|b| watches(b)).map(|_| Action::LosePatience));
        }
        let broker = world.deaths.brokers > 0 && world.broker.is_some();
        actions.extend(broker.then_some(Action::KillBroker));
        let store = world.deaths.stores > 0 && world.store.is_some();
        actions.extend(store.then_some(Action::KillStore));
    }

    /// Returns `true` if nothing happens any more unless somebody dies.
    pub fn is_quiet(&self, world: &World) -> bool {
        let mut actions = Vec::new();
        self.threads(world, &mut actions);
        self.outside(world, &mut actions);
        actions.is_empty()
    }

    fn step(&self, world: &mut World, thread: Thread, mut job: Vec<Step>) {
        let step = job.remove(0);
        if let Thread::Worker(number) | Thread::Relay(number) | Thread::Plane(number) = thread {
            let plane = &mut world.planes[usize::from(number)];
            *own_list(plane, thread) = job;
            return plane::run(self, world, number, step);
        }
        let Some(mut broker) = world.broker.take() else { return };
        if thread == Thread::Port {
            broker.port.todo = job;
            broker::run_port(self, world, &mut broker, step);
        } else {
            broker.main = job;
            broker::run_main(world, &mut broker, step);
        }
        world.broker = Some(broker);
    }
}

/// What a thread of a data plane does next.
fn own_list(plane: &mut Plane, thread: Thread) -> &mut Vec<Step> {
    match thread {
        Thread::Worker(_) => &mut plane.worker,
        Thread::Relay(_) => &mut plane.relay,
        _ => &mut plane.main,
    }
}

/// What a thread does: it goes on, or begins something.
fn next(todo: &[Step], job: Option<Vec<Step>>) -> Option<Vec<Step>> {
    if todo.is_empty() { job } else { Some(todo.to_vec()) }
}

/// The guest takes what its receive ring has.
fn look(world: &mut World) {
    let guest = &mut world.guest;
    guest.interrupted = false;
    let new = guest.rx_used.saturating_sub(guest.rx_seen);
    for item in guest.rx_entries.iter().skip(guest.rx_seen.into()).take(new.into()) {
        if let Item::Segment(segment) = item {
            guest.segments |= 1 << segment;
        }
    }
    guest.rx_seen = guest.rx_used;
}

/// Somebody dies, or is about to.
fn die(world: &mut World, death: &Action) {
    match death {
        Action::OrphanEnds(number) | Action::DoomedEnds(number) => {
            world.planes[usize::from(*number)].alive = false;
        }
        Action::KillPlane(number) => {
            world.planes[usize::from(*number)].alive = false;
            world.deaths.planes -= 1;
        }
        Action::LosePatience => {
            world.deaths.planes -= 1;
            if let Some(broker) = &mut world.broker {
                broker.main = vec![Step::KillPlane, Step::AwaitEnd];
            }
        }
        Action::KillBroker => {
            world.broker = None;
            world.deaths.brokers -= 1;
            world.history.broker_deaths += 1;
        }
        Action::KillStore => {
            world.store = None;
            world.deaths.stores -= 1;
        }
        _ => unreachable!("{death:?} is no death"),
    }
}

/// What nobody holds any more is closed; what a dead process knew is gone.
fn settle(world: &mut World) {
    for at in 0..world.planes.len() {
        if !world.planes[at].alive {
            bury(world, at);
        }
    }
    if let Some(session) = world.front_end.session
        && !world.has_connection(session)
    {
        world.history.cut += 1;
        world.front_end =
            FrontEnd { replies: vec![0; world.front_end.replies.len()], ..FrontEnd::default() };
    }
}

/// Of a data plane that has ended there is only what it has sent.
fn bury(world: &mut World, at: usize) {
    let channel = Some(at as Number);
    let read = world.broker.as_ref().is_some_and(|broker| broker.port.channel == channel);
    let kept = world.store.as_ref().is_some_and(|kept| kept.channel == channel);
    let up = if read || kept { world.planes[at].up.clone() } else { Default::default() };
    let last = std::mem::replace(&mut world.planes[at], Plane { up, ..Plane::default() });
    if last.supplied || last.serves {
        world.history.again = 0;
    }
}

impl Model for Scenario {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        vec![self.world()]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        self.threads(world, actions);
        self.outside(world, actions);
        self.deaths(world, actions);
    }

    fn next_state(&self, last: &World, action: Action) -> Option<World> {
        let mut world = last.clone();
        match action {
            Action::Run(thread, job) => self.step(&mut world, thread, job),
            Action::GuestLooks => look(&mut world),
            Action::PeerSends(segment) => {
                world.peer.queue.push_back(segment);
                world.peer.sent = world.peer.sent.max(segment + 1);
            }
            Action::FrontEndSends => {
                world.front_end.unread.push_back(world.front_end.sent);
                world.front_end.sent += 1;
            }
            Action::BrokerStarts => world.broker = broker::begin(self, &mut world),
            death => die(&mut world, &death),
        }
        settle(&mut world);
        Some(world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        properties::all()
    }
}
