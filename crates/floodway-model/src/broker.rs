//! What a broker does: the thread of its port, its main thread, and how the next one begins.

use crate::scenario::{DEATHS, Scenario, Variant};
use crate::step::Step;
use crate::world::{
    Broker, Down, FrontEnd, Kept, Message, Number, Outstanding, Port, Session, Stage, Up, World,
};

impl Session {
    fn new(id: Number) -> Self {
        Self { id, stage: Stage::Unattended, outstanding: None, number: 0, record: None, deaths: 0 }
    }

    /// As `Session::is_unsettled` of the broker.
    fn is_unsettled(&self) -> bool {
        self.stage == Stage::Replaying || self.outstanding.is_some()
    }

    /// As `Session::detach` of the broker.
    fn detach(&mut self) {
        match self.stage {
            Stage::Unattended => {}
            Stage::Replaying => self.deaths += 1,
            Stage::Serving => self.deaths = 0,
        }
        self.stage = Stage::Unattended;
        if let Some(outstanding) = &mut self.outstanding
            && std::mem::take(&mut outstanding.delivered)
        {
            outstanding.deaths += 1;
        }
    }

    fn is_suspect(&self) -> bool {
        self.deaths >= DEATHS
            || self.outstanding.as_ref().is_some_and(|outstanding| outstanding.deaths >= DEATHS)
    }
}

/// What the port's thread does next (`Server::run`), if there is something to do.
pub fn port_jobs(scenario: &Scenario, world: &World, broker: &Broker) -> Option<Vec<Step>> {
    let port = &broker.port;
    let unsettled = port.session.as_ref().is_some_and(Session::is_unsettled);
    if port.mark != unsettled {
        return Some(vec![if unsettled { Step::SetMark } else { Step::RemoveMark }]);
    }
    heard(scenario, world, port)
        .or_else(|| attach(scenario, broker))
        .or_else(|| accept(scenario, world, port))
        .or_else(|| read(scenario, world, port))
}

/// Something has come from the data plane, or its end.
fn heard(scenario: &Scenario, world: &World, port: &Port) -> Option<Vec<Step>> {
    let plane = &world.planes[usize::from(port.channel?)];
    match plane.up.front() {
        None => (!plane.alive).then(|| vec![Step::LosePlane]),
        Some(Up::Handled(..)) => Some(handled(scenario.variant)),
        Some(Up::Resumed(_)) => {
            let session = port.session.as_ref();
            let outstanding = session.is_some_and(|session| session.outstanding.is_some());
            let redelivers = scenario.variant != Some(Variant::OutstandingForgotten);
            let deliver = (outstanding && redelivers).then_some(Step::DeliverMessage);
            Some([Step::ReceiveResumed].into_iter().chain(deliver).collect())
        }
    }
}

/// What a `Handled` leads to (`Server::on_message`, `Server::settle`).
fn handled(variant: Option<Variant>) -> Vec<Step> {
    let (reply, unmark) = (Step::WriteReply, Step::RemoveMark);
    let rest = match variant {
        Some(Variant::ReplyBeforeRecord) => [reply, unmark, Step::KeepChanges, Step::KeepSession],
        Some(Variant::MarkRemovedBeforeReply) => {
            [Step::KeepChanges, Step::KeepSession, unmark, reply]
        }
        _ => [reply, Step::KeepChanges, Step::KeepSession, unmark],
    };
    [Step::ReceiveHandled].into_iter().chain(rest).collect()
}

/// There is another data plane.
fn attach(scenario: &Scenario, broker: &Broker) -> Option<Vec<Step>> {
    broker.mailbox?;
    Some(match (&broker.port.session, scenario.variant) {
        (None, _) => vec![Step::KeepChannel],
        (_, Some(Variant::ChannelKeptBeforeMark)) => {
            vec![Step::KeepChannel, Step::SetMark, Step::SendReplay]
        }
        _ => vec![Step::SetMark, Step::KeepChannel, Step::SendReplay],
    })
}

/// A front-end connects. It waits in the backlog while there is no data plane for it.
fn accept(scenario: &Scenario, world: &World, port: &Port) -> Option<Vec<Step>> {
    if port.channel.is_none() || port.session.is_some() || world.front_end.session.is_some() {
        return None;
    }
    Some(match scenario.variant {
        Some(Variant::ConnectionKeptBeforeMark) => {
            vec![Step::AcceptFrontEnd, Step::KeepSession, Step::SetMark, Step::SendReplay]
        }
        _ => vec![Step::AcceptFrontEnd, Step::SetMark, Step::KeepSession, Step::SendReplay],
    })
}

/// The front-end has sent a message, and the data plane can have it.
fn read(scenario: &Scenario, world: &World, port: &Port) -> Option<Vec<Step>> {
    let session = port.session.as_ref()?;
    if session.stage != Stage::Serving
        || session.outstanding.is_some()
        || world.front_end.unread.is_empty()
    {
        return None;
    }
    Some(match scenario.variant {
        Some(Variant::TakenBeforeMark) => {
            vec![Step::TakeMessage, Step::SetMark, Step::DeliverMessage]
        }
        _ => vec![Step::SetMark, Step::TakeMessage, Step::DeliverMessage],
    })
}

/// What the main thread does next (`Broker::keep_running`), if there is something to do.
pub fn main_jobs(world: &World, broker: &Broker) -> Option<Vec<Step>> {
    let Some(plane) = broker.plane else {
        return Some(vec![Step::StartPlane, Step::KeepPlane, Step::AttachPorts, Step::SupplyPlane]);
    };
    let plane = &world.planes[usize::from(plane)];
    if !plane.alive {
        return Some(vec![Step::AwaitEnd]);
    }
    (plane.said_ready && !broker.ready).then(|| vec![Step::KeepReady])
}

/// Returns `true` if the step does not have to wait.
pub fn is_free(scenario: &Scenario, world: &World, broker: &Broker, step: Step) -> bool {
    let lives = broker.plane.is_some_and(|plane| world.planes[usize::from(plane)].alive);
    step != Step::AwaitEnd || !lives || scenario.variant == Some(Variant::SuccessorBeforeEnd)
}

/// Does `step` of the main thread.
pub fn run_main(world: &mut World, broker: &mut Broker, step: Step) {
    let number = broker.plane.unwrap_or_default();
    match step {
        Step::StartPlane => {
            broker.plane = Some(world.planes.len() as Number);
            world.planes.push(crate::world::Plane { alive: true, ..Default::default() });
        }
        Step::KeepPlane => world.keep(|kept| kept.plane = Some((number, false))),
        Step::AttachPorts => broker.mailbox = Some(number),
        Step::SupplyPlane => {
            let plane = &mut world.planes[usize::from(number)];
            plane.supplied = plane.alive;
        }
        Step::KeepReady => {
            broker.ready = true;
            world.history.has_served = true;
            world.keep(|kept| kept.plane = Some((number, true)));
        }
        Step::KillPlane => world.planes[usize::from(number)].doomed = true,
        Step::AwaitEnd => (broker.plane, broker.ready) = (None, false),
        _ => unreachable!("{step:?} is no step of a broker"),
    }
}

/// Does `step` of the port's thread.
pub fn run_port(scenario: &Scenario, world: &mut World, broker: &mut Broker, step: Step) {
    let port = &mut broker.port;
    match step {
        Step::LosePlane => {
            port.channel = None;
            port.session.iter_mut().for_each(Session::detach);
        }
        Step::KeepChannel => {
            port.channel = broker.mailbox.take();
            world.keep(|kept| kept.channel = port.channel);
        }
        Step::AcceptFrontEnd => {
            port.sessions += 1;
            port.session = Some(Session::new(port.sessions));
            world.front_end.session = Some(port.sessions);
        }
        Step::WriteReply => {
            let message = port.message.take().map(usize::from);
            if let Some(message) = message.filter(|&message| scenario.script[message].has_reply()) {
                world.front_end.replies[message] += 1;
            }
        }
        Step::TakeMessage => port.message = world.front_end.unread.pop_front(),
        Step::DeliverMessage => deliver(world, port),
        Step::SendReplay => send_replay(world, port),
        Step::ReceiveHandled | Step::ReceiveResumed => receive(scenario, world, port),
        _ => leave(world, port, step),
    }
}

/// Leaves something in the store.
fn leave(world: &mut World, port: &mut Port, step: Step) {
    match step {
        Step::SetMark | Step::RemoveMark => {
            port.mark = step == Step::SetMark;
            world.keep(|kept| kept.busy = port.mark);
        }
        Step::KeepSession => {
            let session = port.session.as_ref().map(|session| (session.id, session.number));
            world.keep(|kept| (kept.session, kept.sessions) = (session, port.sessions));
        }
        Step::KeepChanges => {
            let record = port.session.as_ref().and_then(|session| session.record);
            world.keep(|kept| kept.record = record);
        }
        _ => unreachable!("{step:?} is no step of a port's thread"),
    }
}

fn deliver(world: &mut World, port: &mut Port) {
    let Some(session) = &mut port.session else { return };
    if let Some(message) = port.message.take() {
        session.outstanding = Some(Outstanding { message, delivered: false, deaths: 0 });
    }
    let plane = port.channel.map(|channel| &mut world.planes[usize::from(channel)]);
    // To one that is dead nothing can be sent.
    if let (Some(outstanding), Some(plane)) =
        (&mut session.outstanding, plane.filter(|plane| plane.alive))
    {
        outstanding.delivered = true;
        plane.down.push_back(Down::Message(session.id, outstanding.message));
    }
}

fn send_replay(world: &mut World, port: &mut Port) {
    let Some(session) = &mut port.session else { return };
    if session.is_suspect() {
        port.session = None;
        world.keep(|kept| (kept.session, kept.record) = (None, None));
        // No death of a broker is needed for that.
        world.front_end =
            FrontEnd { replies: vec![0; world.front_end.replies.len()], ..FrontEnd::default() };
        return;
    }
    session.stage = Stage::Replaying;
    let plane = port.channel.map(|channel| &mut world.planes[usize::from(channel)]);
    if let Some(plane) = plane.filter(|plane| plane.alive) {
        plane.down.push_back(Down::Connected(session.id));
        plane.down.extend(session.record.map(Down::Replayed));
        plane.down.push_back(Down::EndOfReplay(session.id));
    }
}

fn receive(scenario: &Scenario, world: &mut World, port: &mut Port) {
    let Some(channel) = port.channel else { return };
    let up = world.planes[usize::from(channel)].up.pop_front();
    let session = port.session.as_mut();
    match (up, session) {
        (Some(Up::Handled(id, message)), Some(session)) if id == session.id => {
            match scenario.script[usize::from(message)] {
                Message::Start => session.record = Some(Message::Start),
                Message::Ask => {}
                Message::Stop => session.record = None,
            }
            (session.outstanding, session.number) = (None, session.number + 1);
            port.message = Some(message);
        }
        (Some(Up::Resumed(id)), Some(session)) if id == session.id => {
            session.stage = Stage::Serving;
            if scenario.variant == Some(Variant::OutstandingForgotten) {
                session.outstanding = None;
            }
        }
        // Of a front-end that has gone.
        _ => port.todo.clear(),
    }
}

/// The next broker begins (`beginning`, `Taken`). `None` if it may not.
pub fn begin(scenario: &Scenario, world: &mut World) -> Option<Broker> {
    let Some(kept) = world.store.clone() else { return begin_without_store(scenario, world) };
    let plane = take_plane(scenario, world, &kept);
    // A channel whose data plane has ended is of no use.
    let channel = kept.channel.filter(|_| plane.is_some());
    let stage = if channel.is_some() { Stage::Serving } else { Stage::Unattended };
    let whole = kept.session.filter(|_| !kept.busy);
    let restore = |(id, number)| Session { stage, number, record: kept.record, ..Session::new(id) };
    let port =
        Port { channel, sessions: kept.sessions, session: whole.map(restore), ..Port::default() };
    if port.session.is_none() {
        world.keep(|kept| (kept.session, kept.record) = (None, None));
        tell_that_it_has_gone(world, &port);
    }
    world.keep(|kept| kept.busy = false);
    Some(Broker { plane, ready: plane.is_some(), port, ..Broker::default() })
}

/// The data plane that is taken over. One that cannot be is ended.
fn take_plane(scenario: &Scenario, world: &mut World, kept: &Kept) -> Option<Number> {
    let (number, ready) = kept.plane?;
    let adopts_any = scenario.variant == Some(Variant::AdoptedWithoutPort);
    let plane = &mut world.planes[usize::from(number)];
    plane.alive &= ready && (kept.channel == Some(number) || adopts_any);
    plane.alive.then_some(number)
}

/// As `Server::begin_anew`.
fn tell_that_it_has_gone(world: &mut World, port: &Port) {
    if let Some(channel) = port.channel.filter(|_| port.sessions > 0) {
        world.planes[usize::from(channel)].down.push_back(Down::Disconnected(port.sessions));
    }
}

/// A new switch, if nobody answers at the control socket: each data plane has a duplicate of that.
fn begin_without_store(scenario: &Scenario, world: &mut World) -> Option<Broker> {
    let answered = world.living().next().is_some();
    if answered && scenario.variant != Some(Variant::ControlSocketIgnored) {
        return None;
    }
    world.store = Some(Kept::default());
    world.history.all_lost = true;
    world.journal.open = false;
    world.journal.slots.iter_mut().for_each(|slot| *slot = Default::default());
    Some(Broker::default())
}
