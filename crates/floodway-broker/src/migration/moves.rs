//! The broker's loop's part in moves: which ports leave or wait for a VM, and what their data plane is told.
//!
//! It sends nothing itself: what is returned is for the data plane, in its order, and is put off until that can be told.

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::thread;
use std::time::Instant;

use floodway_process::message::{ToDataPlane, shorten};
use floodway_process::moves::{Move, Moves as Report};

use super::asking::{Asked, Asker, Pace};
use super::inbox::Inbox;
use super::listener::Listener;
use super::source::{Source, Sources, TAKING};
use super::tls::Keys;
use super::{
    Event, Expected, MESSAGE, MigrationError, Order, SILENCE, Settings, Shared, Stayed, TRANSFER,
    Went,
};
use crate::layout::{Layout, Place};
use crate::vm::Vm;

/// A message for the data plane, with what goes beside it.
type Message = (ToDataPlane, Option<OwnedFd>);
/// Messages for the data plane.
pub(crate) type Messages = Vec<Message>;

/// Refusals of a port that operators hear of in a row; then one a second.
const REFUSED_IN_A_ROW: u32 = 16;
/// Moves that are over and of which no data plane has heard: of more than that the last ones are told.
const UNTOLD: usize = 64;

/// A data plane says that it has written more than there is room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it says that it has written {bytes} bytes of connections where there is room for {room}")]
pub(crate) struct TooMuch {
    bytes: u64,
    room: u64,
}

/// Moves of a switch: see the module above.
#[derive(Default)]
pub struct Moves {
    shared: Option<Arc<Shared>>,
    listener: Option<Listener>,
    /// By number of the port.
    leaving: BTreeMap<u16, Leaving>,
    /// By number of the port.
    arriving: BTreeMap<u16, Arriving>,
    /// What ports have asked other hosts, by their numbers.
    asked: BTreeMap<u16, Asked>,
    /// How often operators hear that ports ask for nothing: front-ends decide that.
    refused: BTreeMap<u16, Pace>,
    sources: Sources,
    /// Why there are none, although there should be.
    problem: Option<String>,
    report: Report,
    /// What the data plane has not been told yet.
    outbox: VecDeque<Message>,
    /// Instances of ports whose VMs have left.
    released: BTreeMap<u16, u64>,
}

/// A port whose VM leaves.
struct Leaving {
    id: u64,
    instance: u64,
    port: String,
    inbox: Arc<Inbox<Event>>,
    /// The front-end that it had.
    session: Option<u32>,
    /// When that was found to have gone.
    gone: Option<Instant>,
    stage: Stage,
    /// Connections that were online, once that is known.
    online: u32,
}

enum Stage {
    /// Other hosts are asked.
    Asking,
    /// The data plane has been told to export into this memory, of so many bytes.
    Following(OwnedFd, u64),
    /// It has. `stays`: the VM stays after all, and the other host has yet to confirm that.
    Exported { stays: bool },
}

/// A port that waits for a VM.
struct Arriving {
    id: u64,
    instance: u64,
    port: String,
    host: String,
    inbox: Arc<Inbox<Event>>,
    /// The front-end that it has.
    session: u32,
    /// The data plane has the state; so many connections were online where it comes from.
    importing: Option<u32>,
    /// Why the VM does not come after all, which the data plane has yet to confirm.
    called_back: Option<String>,
}

impl Moves {
    /// Connections follow VMs as `settings` say.
    ///
    /// # Errors
    /// A file cannot be used, or the address is in use.
    pub fn start(settings: Settings) -> Result<Self, MigrationError> {
        let (keys, orders) = (Keys::load(&settings.trust)?, Inbox::new()?);
        let shared = Arc::new(Shared {
            settings,
            keys,
            orders,
            askers: Arc::default(),
            last: AtomicU64::new(0),
        });
        let listener = Listener::start(&shared)?;
        let mut moves = Self::default();
        (moves.shared, moves.listener) = (Some(shared), listener);
        Ok(moves)
    }

    /// Connections follow no VM, as that could not be [started](Self::start): `error` says why. Operators hear of that.
    #[must_use]
    pub fn failed(error: &MigrationError) -> Self {
        let mut moves = Self::default();
        moves.problem = Some(error.to_string());
        moves.note(Move { problem: moves.problem.clone(), ..Move::default() });
        moves
    }

    /// Where other hosts connect.
    #[cfg(test)]
    pub(crate) fn address(&self) -> Option<std::net::SocketAddr> {
        self.listener.as_ref().map(|listener| listener.address)
    }

    /// How they stand, for the status. `None` where there are none.
    #[must_use]
    pub(crate) fn report(&self) -> Option<Report> {
        let count = |len: usize| u16::try_from(len).unwrap_or(u16::MAX);
        let (leaving, arriving) = (count(self.leaving.len()), count(self.arriving.len()));
        let is_known = self.shared.is_some() || self.problem.is_some();
        is_known.then(|| Report { leaving, arriving, ..self.report.clone() })
    }

    /// Queues messages for the data plane, which has them as soon as it can take any.
    pub(crate) fn queue(&mut self, messages: Messages) {
        self.outbox.extend(messages);
    }

    /// What the data plane is to be told next.
    pub(crate) fn next(&self) -> Option<(&ToDataPlane, &Option<OwnedFd>)> {
        self.outbox.front().map(|(message, file)| (message, file))
    }

    /// It has been told.
    pub(crate) fn on_told(&mut self) {
        self.outbox.pop_front();
    }

    /// Readable while threads want something.
    pub(crate) fn bell(&self) -> Option<BorrowedFd<'_>> {
        self.shared.as_ref().map(|shared| shared.orders.as_fd())
    }

    /// The VM of a port is about to leave, or stays.
    pub(crate) fn on_leaving(&mut self, layout: &Layout, port: u16, leaving: bool) -> Messages {
        let stays = || "the VM stays".to_owned();
        if !leaving {
            match self.leaving.get_mut(&port) {
                // The other host says whether that comes too late.
                Some(Leaving { stage: Stage::Exported { stays: is_said }, inbox, .. }) => {
                    *is_said = true;
                    inbox.put(Event::Stays(stays()));
                }
                _ => self.forget(port, stays()),
            }
            return Messages::new();
        }
        if self.is_on_its_way(layout, port) {
            // Another data plane, which has found that writes are noted. It hears what becomes of the move.
            return vec![(ToDataPlane::StayBehind { port }, None)];
        }
        if self.shared.is_none() && self.problem.is_none() {
            return vec![(ToDataPlane::StayBehind { port }, None)];
        }
        self.forget(port, stays());
        // One that has gone drains with its front-end.
        let Some(place) = layout.port(port) else { return Messages::new() };
        match self.begin(place) {
            Ok(()) => Messages::new(),
            Err(reason) => self.refuse(place, reason),
        }
    }

    /// Returns `true` if a port's connections have been exported and its VM is not known to stay.
    fn is_on_its_way(&self, layout: &Layout, port: u16) -> bool {
        let instance = layout.port(port).map(|place| place.instance);
        self.leaving.get(&port).is_some_and(|leaving| {
            matches!(leaving.stage, Stage::Exported { stays: false })
                && Some(leaving.instance) == instance
        })
    }

    /// Returns `true` if connections of a VM are between two hosts: it is not known yet which host owes what they owe.
    pub(crate) fn are_between_hosts(&self) -> bool {
        self.leaving.values().any(|leaving| matches!(leaving.stage, Stage::Exported { .. }))
            || self.arriving.values().any(|arriving| arriving.importing.is_some())
    }

    /// No host is asked for a port's VM. All of that is counted, and operators hear of some.
    fn refuse(&mut self, place: &Place, reason: String) -> Messages {
        self.refused.retain(|_, pace| !pace.is_over());
        let pace = self.refused.entry(place.number).or_insert_with(Pace::new);
        if pace.take(REFUSED_IN_A_ROW) {
            return self.stay(place.number, &place.name, Stayed { host: String::new(), reason });
        }
        self.report.failed = self.report.failed.saturating_add(1);
        vec![(ToDataPlane::StayBehind { port: place.number }, None)]
    }

    /// Starts to look for the host to which a port's VM moves.
    fn begin(&mut self, place: &Place) -> Result<(), String> {
        let hosts = |shared: &&Arc<Shared>| !shared.settings.hosts.is_empty();
        let problem = || self.problem.as_deref().unwrap_or("no other host is configured");
        let shared = self.shared.as_ref().filter(hosts).ok_or_else(problem)?;
        let shared = Arc::clone(shared);
        let vm = place
            .vm
            .clone()
            .ok_or("the port has no mac, by which other hosts could know its VM")?;
        let inbox = Arc::new(Inbox::new().map_err(|error| error.to_string())?);
        let askers = self.take_askers(&shared, place.number)?;
        let alive = self.sources.begin().ok_or("the switch stops")?;
        let id = shared.next();
        let inbox_of_thread = Arc::clone(&inbox);
        let source =
            Source { shared, id, vm, inbox: inbox_of_thread, taking: TAKING, _alive: alive };
        let thread = thread::Builder::new().name("move-out".to_owned());
        thread.spawn(move || source.run(askers)).map_err(|error| error.to_string())?;
        let session = place.thread.front_end().map(|(session, _)| session);
        let (instance, port, stage) = (place.instance, place.name.clone(), Stage::Asking);
        let leaving = Leaving { id, instance, port, inbox, session, gone: None, stage, online: 0 };
        self.leaving.insert(place.number, leaving);
        Ok(())
    }

    /// Threads that ask all hosts, and one that waits for them.
    fn take_askers(&mut self, shared: &Shared, port: u16) -> Result<Vec<Asker>, &'static str> {
        self.asked.retain(|_, asked| !asked.is_over());
        let asked = self.asked.entry(port).or_insert_with(Asked::new);
        asked.begin(&shared.askers, shared.settings.hosts.len() + 1)
    }

    /// A move of a VM that leaves is nobody's business any more, for the reason that its thread is told.
    fn forget(&mut self, port: u16, reason: String) {
        if let Some(leaving) = self.leaving.remove(&port) {
            leaving.inbox.put(Event::Stays(reason));
        }
    }

    /// A move ends for a reason that lies here, and operators hear of it. What was exported still goes along: the other host may have all of it already, and nobody here owes it any more.
    fn abandon(&mut self, port: u16, reason: &str) {
        let Some(leaving) = self.leaving.get(&port) else { return };
        if matches!(leaving.stage, Stage::Exported { .. }) {
            leaving.inbox.put(Event::Abandoned);
            self.leaving.remove(&port);
            return;
        }
        let name = leaving.port.clone();
        self.forget(port, reason.to_owned());
        self.fail(&name, Stayed { host: String::new(), reason: reason.to_owned() });
    }

    /// The data plane has written what goes along, or cannot.
    ///
    /// # Errors
    /// It lies.
    pub(crate) fn on_exported(
        &mut self,
        port: u16,
        online: u32,
        bytes: u64,
    ) -> Result<(), TooMuch> {
        let Some(leaving) = self.leaving.get_mut(&port) else { return Ok(()) };
        // Another stage: an answer to an earlier move, which has failed since.
        let Stage::Following(_, room) = leaving.stage else { return Ok(()) };
        if bytes > room {
            return Err(TooMuch { bytes, room });
        }
        if bytes == 0 {
            self.abandon(port, "its data plane cannot hand connections over");
            return Ok(());
        }
        leaving.online = online;
        let exported = Stage::Exported { stays: false };
        if let Stage::Following(file, _) = std::mem::replace(&mut leaving.stage, exported) {
            leaving.inbox.put(Event::Exported { file: File::from(file), bytes, online });
        }
        Ok(())
    }

    /// The data plane has taken up what came, or not.
    pub(crate) fn on_imported(&mut self, port: u16, taken: bool, carried: u32, online: u32) {
        // Others are answers to imports that were taken back since.
        let is_importing = |arriving: &Arriving| arriving.importing.is_some();
        if !self.arriving.get(&port).is_some_and(is_importing) {
            return;
        }
        let Some(arriving) = self.arriving.remove(&port) else { return };
        let Arriving { port, host, inbox, importing, called_back, .. } = arriving;
        if let (false, Some(reason)) = (taken, called_back) {
            return inbox.put(Event::Stays(reason));
        }
        inbox.put(Event::Imported { taken, carried, online });
        if !taken {
            let reason = "its data plane could not take connections up in time".to_owned();
            return self.fail_inward(&port, host, reason);
        }
        self.report.arrived = self.report.arrived.saturating_add(1);
        let (before, inward) = (importing.unwrap_or_default(), true);
        self.note(Move { port, inward, host, online: before, carried: online, ..Move::default() });
    }

    /// Does what threads want.
    pub(crate) fn run_orders(&mut self, layout: &Layout) -> Messages {
        let mut messages = Messages::new();
        while let Some(order) = self.shared.as_ref().and_then(|shared| shared.orders.take()) {
            messages.extend(match order {
                Order::Export { id } => self.export(layout, id),
                Order::Left { id, outcome } => self.on_left(id, outcome),
                Order::Expect(expected) => self.expect(layout, expected),
                Order::Import { id, file, bytes, online } => self.import(id, file, bytes, online),
                Order::TakeBack { id, reason } => self.take_back(id, &reason),
                Order::Lost { id, reason } => self.on_lost(id, &reason),
            });
        }
        messages
    }

    /// Another host takes what goes along.
    fn export(&mut self, layout: &Layout, id: u64) -> Messages {
        let Some((&port, leaving)) = self.leaving.iter_mut().find(|(_, found)| found.id == id)
        else {
            return Messages::new();
        };
        let flows = self.shared.as_ref().map_or(0, |shared| shared.settings.flows);
        let place = layout.port(port).filter(|place| place.instance == leaving.instance);
        let memory = place.and_then(|place| place.memory_for_flows().ok());
        let memory = memory.and_then(|(file, bytes)| Some((file.try_clone().ok()?, file, bytes)));
        let Some((theirs, file, bytes)) = memory else {
            self.abandon(port, "there is no memory for its connections");
            return vec![(ToDataPlane::StayBehind { port }, None)];
        };
        leaving.stage = Stage::Following(file, bytes);
        vec![(ToDataPlane::Export { port, flows, bytes }, Some(theirs))]
    }

    /// A move of a VM that leaves is over.
    fn on_left(&mut self, id: u64, outcome: Result<Went, Stayed>) -> Messages {
        let Some((&number, _)) = self.leaving.iter().find(|(_, leaving)| leaving.id == id) else {
            return Messages::new();
        };
        let Some(Leaving { port, online, instance, .. }) = self.leaving.remove(&number) else {
            return Messages::new();
        };
        self.released.insert(number, instance);
        match outcome {
            Err(stayed) => self.stay(number, &port, stayed),
            Ok(Went { host, carried, online: there }) => {
                tracing::info!(port, host, carried, there, "connections have followed a VM");
                self.report.left = self.report.left.saturating_add(1);
                self.note(Move { port, host, online, carried: there, ..Move::default() });
                vec![(ToDataPlane::Released { port: number }, None)]
            }
        }
    }

    /// Connections of a port do not follow its VM.
    fn stay(&mut self, number: u16, port: &str, stayed: Stayed) -> Messages {
        self.fail(port, stayed);
        vec![(ToDataPlane::StayBehind { port: number }, None)]
    }

    fn fail(&mut self, port: &str, Stayed { host, reason }: Stayed) {
        tracing::warn!(port, host, reason, "connections do not follow a VM");
        self.report.failed = self.report.failed.saturating_add(1);
        let (port, problem) = (port.to_owned(), Some(reason));
        self.note(Move { port, host, problem, ..Move::default() });
    }

    fn fail_inward(&mut self, port: &str, host: String, reason: String) {
        tracing::warn!(port, host, reason, "connections do not come with a VM");
        self.report.failed = self.report.failed.saturating_add(1);
        let (port, problem, inward) = (port.to_owned(), Some(reason), true);
        self.note(Move { port, host, problem, inward, ..Move::default() });
    }

    /// A move is over: operators hear of it.
    fn note(&mut self, last: Move) {
        let number = self.report.last.as_ref().map_or(0, |last| last.number).wrapping_add(1);
        let Move { port, host, problem, inward, online, carried, .. } = last;
        let (port, host) = (shorten(&port), shorten(&host));
        let problem = problem.map(|problem| shorten(&problem));
        self.report.last = Some(Move { number, port, host, problem, inward, online, carried });
        let is_report = |(message, _): &Message| matches!(message, ToDataPlane::Moves(_));
        if self.outbox.iter().filter(|message| is_report(message)).count() >= UNTOLD
            && let Some(first) = self.outbox.iter().position(is_report)
        {
            self.outbox.remove(first);
        }
        let report = self.report().map(|report| (ToDataPlane::Moves(report), None));
        self.outbox.extend(report);
    }

    /// Looks for a port that waits for a VM.
    fn expect(&mut self, layout: &Layout, expected: Expected) -> Messages {
        let Expected { id, vm, host, inbox } = expected;
        let (place, session) = match self.find(layout, &vm) {
            Ok(found) => found,
            Err(reason) => {
                inbox.put(Event::Refused(reason));
                return Messages::new();
            }
        };
        let (port, number) = (place.name.clone(), place.number);
        tracing::info!(port, host, "a VM is expected");
        inbox.put(Event::Expected { room: place.room_for_flows() });
        let instance = place.instance;
        let (importing, called_back) = (None, None);
        let arriving =
            Arriving { id, instance, port, host, inbox, session, importing, called_back };
        self.arriving.insert(number, arriving);
        vec![(ToDataPlane::Arriving { port: number, arriving: true }, None)]
    }

    /// The port that waits for `vm`, and its front-end.
    fn find<'l>(&self, layout: &'l Layout, vm: &Vm) -> Result<(&'l Place, u32), String> {
        let place = layout.ports.iter().find(|place| place.vm.as_ref() == Some(vm));
        let place = place.ok_or_else(|| format!("no port is for {vm}"))?;
        let name = &place.name;
        if self.arriving.contains_key(&place.number) {
            return Err(format!("port {name:?} waits for it from another host already"));
        }
        match place.thread.front_end() {
            None => Err(format!("port {name:?} has no front-end")),
            Some((_, true)) => Err(format!("port {name:?} has a VM that runs or has run")),
            Some((session, false)) => Ok((place, session)),
        }
    }

    fn import(&mut self, id: u64, file: OwnedFd, bytes: u64, online: u32) -> Messages {
        let found = self.arriving.iter_mut().find(|(_, arriving)| arriving.id == id);
        // Its thread was told that the port waits no more.
        let Some((&port, arriving)) = found else { return Messages::new() };
        arriving.importing = Some(online);
        vec![(ToDataPlane::Import { port, bytes }, Some(file))]
    }

    fn take_back(&mut self, id: u64, reason: &str) -> Messages {
        let found = self.arriving.iter_mut().find(|(_, arriving)| arriving.id == id);
        let Some((&number, arriving)) = found else { return Messages::new() };
        tracing::info!(port = arriving.port, host = arriving.host, reason, "a VM does not come");
        if arriving.importing.is_some() {
            // It may run here already: the data plane's answer to the import says.
            arriving.called_back = Some(reason.to_owned());
        } else {
            arriving.inbox.put(Event::Stays(reason.to_owned()));
            self.arriving.remove(&number);
        }
        vec![(ToDataPlane::Arriving { port: number, arriving: false }, None)]
    }

    fn on_lost(&mut self, id: u64, reason: &str) -> Messages {
        let imports = |arriving: &Arriving| arriving.id == id && arriving.importing.is_some();
        if self.arriving.values().any(imports) {
            // The VM may be about to run here.
            return Messages::new();
        }
        self.take_back(id, reason)
    }

    /// Looks whether ports still wait with the front-ends that they had, and whether they are still there.
    pub(crate) fn look(&mut self, layout: &Layout) -> Messages {
        let is_there = |number: &u16, instance| {
            layout.port(*number).is_some_and(|place| place.instance == instance)
        };
        let gone: Vec<_> = (self.leaving.iter())
            .filter(|(number, leaving)| !is_there(number, leaving.instance))
            .map(|(number, _)| *number)
            .collect();
        gone.into_iter().for_each(|number| self.abandon(number, "its port has gone"));
        let mut messages = self.look_after_exports(layout);
        let waits = |number: &u16, arriving: &Arriving| {
            let place = layout.port(*number).filter(|place| place.instance == arriving.instance);
            let front_end = place.and_then(|place| place.thread.front_end());
            front_end.is_some_and(|(session, _)| session == arriving.session)
        };
        let gone: Vec<_> = (self.arriving.iter())
            .filter(|(number, arriving)| !waits(number, arriving))
            .map(|(number, _)| *number)
            .collect();
        let ended = |number| self.end_arrival(number, "its front-end has gone");
        messages.extend(gone.into_iter().flat_map(ended));
        messages
    }

    /// Ends moves whose front-end has gone, with which the VM has stopped, and of which the data plane has said nothing for [`SILENCE`] since.
    fn look_after_exports(&mut self, layout: &Layout) -> Messages {
        let mut late = Vec::new();
        for (&number, leaving) in &mut self.leaving {
            let front_end = layout.port(number).and_then(|place| place.thread.front_end());
            let is_same = front_end.map(|(session, _)| session) == leaving.session;
            if is_same || !matches!(leaving.stage, Stage::Following(..)) {
                leaving.gone = None;
            } else if leaving.gone.get_or_insert_with(Instant::now).elapsed() >= SILENCE {
                late.push(number);
            }
        }
        let end = |port| {
            self.abandon(port, "its data plane does not hand connections over");
            (ToDataPlane::StayBehind { port }, None)
        };
        late.into_iter().map(end).collect()
    }

    /// A port waits no more, for a reason that the other host is told.
    fn end_arrival(&mut self, number: u16, reason: &str) -> Messages {
        let Some(Arriving { port, host, inbox, .. }) = self.arriving.remove(&number) else {
            return Messages::new();
        };
        inbox.put(Event::Gone(reason.to_owned()));
        self.fail_inward(&port, host, reason.to_owned());
        vec![(ToDataPlane::Arriving { port: number, arriving: false }, None)]
    }

    /// The data plane has ended, or has handed over. What was exported is here, and what was being imported is nobody's.
    pub(crate) fn on_data_plane_end(&mut self) {
        let is_exported = |leaving: &Leaving| matches!(leaving.stage, Stage::Exported { .. });
        let gone: Vec<_> = (self.leaving.iter())
            .filter(|(_, leaving)| !is_exported(leaving))
            .map(|(number, _)| *number)
            .collect();
        for number in gone {
            self.abandon(number, "its data plane ended");
        }
        let importing: Vec<_> = (self.arriving.iter())
            .filter(|(_, arriving)| arriving.importing.is_some())
            .map(|(number, _)| *number)
            .collect();
        for number in importing {
            self.end_arrival(number, "its data plane ended");
        }
    }

    /// A new data plane has to hear of ports that wait, and of VMs that have left and of moves that are over, if the one before has not.
    pub(crate) fn resume(&mut self, layout: &Layout) {
        let released = std::mem::take(&mut self.released);
        self.outbox.retain(|(message, _)| match message {
            ToDataPlane::Moves(_) => true,
            ToDataPlane::Released { port } => {
                layout.port(*port).map(|place| place.instance) == released.get(port).copied()
            }
            _ => false,
        });
        self.released = released;
        let arriving = |&port: &u16| (ToDataPlane::Arriving { port, arriving: true }, None);
        self.outbox.extend(self.arriving.keys().map(arriving));
    }
}

impl Drop for Moves {
    /// The switch stops: other hosts hear of it, or of what was exported.
    fn drop(&mut self) {
        // First, so that no other move begins.
        self.listener = None;
        for number in self.leaving.keys().copied().collect::<Vec<_>>() {
            self.abandon(number, "the switch stops");
        }
        for arriving in self.arriving.values() {
            arriving.inbox.put(Event::Gone("the switch stops".to_owned()));
        }
        self.sources.join(MESSAGE + TRANSFER + MESSAGE);
    }
}
