//! Starts data planes, one after the other.
//!
//! # Theory of operation
//! Each data plane gets a new main channel and a new channel for each port, and so can send nothing in its predecessor's name. It gets the message to start when
//! it has all of them. From then on there are three ways in which it is found to have ended: the process (`pidfd`), signs of life that do not come, and a fault
//! in what it says. In the latter two it is killed. Only when the process is gone do ports get new channels: guests' memory has one writer.
//!
//! A first data plane that ends before it was ready will not be ready at the next attempt either (a device that is missing, say): then the broker gives
//! up, and whoever started it reads why.
//!
//! **Changes** of what is served come from the broker's side alone ([`layout`](crate::layout)). The data plane is sent the channels of new ports and then the
//! configuration; from there on the next one starts with that, unless this one refuses. Ends of channels are attached to ports when it has
//! answered, so no front-end is served of which it may know nothing. One that does not answer within [`CHANGE`] is killed.
//!
//! **A broker that takes over** what another one has [left](crate::store) begins with that one's data plane, if it lives and can be used, and goes on as if it had started it.
//!
//! **A data plane that crashed** has left a note of whose turn it was; a port that several died of is [cut off](crate::quarantine).
//!
//! **An upgrade** puts a data plane of another program in the place of the one that runs ([`upgrade`](crate::upgrade)), and ends this program.
//!
//! **Invariant**: at most one data plane has rings, devices and kept memory.

mod change;
mod ends;
mod equip;
mod launch;
mod left;
mod moves;
mod upgrade;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::Child;
use std::sync::mpsc::{Receiver, Sender};
use std::time::{Duration, Instant};

use floodway_process::channel::{Channel, ChannelError, Received};
use floodway_process::fault::{self, Point};
use floodway_process::message::{FromDataPlane, StatePart, ToDataPlane, VERSION, Violation};
use floodway_process::sealed;
use floodway_process::store::Item;
use rustix::io::Errno;

use crate::layout::{Changes, Layout, NotChanged};
use crate::migration::{Moves, TooMuch};
use crate::notices::Notices;
use crate::port::{PortChannel, PortFault};
use crate::process::Process;
use crate::quarantine::{Suspects, TURNS, take_turns};
use crate::settings::{Settings, TooMany};
use crate::store::Store;
use crate::store::taken::TakenDataPlane;
use crate::supervision::{End, LOOK, Pulse, Restarts};
use crate::transaction::{NotAsked, Transaction};
use crate::upgrade::{Candidate, UpgradeControl};
use floodway_process::poll::{is_readable, wait_for};
use left::{leave_uplink, send_uplink};
use upgrade::{Promotion, Replacement, Retired, Successor};

/// How long a data plane may take to end in order, and to start.
const ORDERLY: Duration = Duration::from_secs(5);
/// How long a data plane may take to answer a change: workers have 5 s to see it, guests that are cut off 1 s, front-ends 5 s to let go.
const CHANGE: Duration = Duration::from_secs(40);

type MainChannel = Channel<ToDataPlane, FromDataPlane>;

/// Why there is no data plane any more.
#[derive(Debug, thiserror::Error)]
pub enum BrokerError {
    /// It cannot be started, or given what it needs.
    #[error("cannot {action}: {source}")]
    System {
        /// What was tried.
        action: &'static str,
        /// The error of the system call.
        source: io::Error,
    },
    /// The first one was never ready.
    #[error("the data plane did not start: {0}")]
    NotReady(End),
}

fn failed<E: Into<io::Error>>(action: &'static str) -> impl FnOnce(E) -> BrokerError {
    move |source| BrokerError::System { action, source: source.into() }
}

/// What others may want to know of a broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A data plane has begun to serve.
    Ready,
    /// The broker has looked at its data plane, or waits to start another one.
    Look,
    /// The switch stops.
    Stop,
}

/// What a broker serves and starts.
pub struct Broker<'a> {
    /// Starts a data plane that has the descriptor as its standard input, of another program if there is one.
    pub start: &'a dyn Fn(OwnedFd, Option<&Candidate>) -> io::Result<Child>,
    /// Configuration, ports and uplinks.
    pub layout: Transaction<Layout>,
    /// Numbers that ports can have.
    pub numbers: u16,
    /// Where operators connect; data planes answer them.
    pub control: BorrowedFd<'a>,
    /// Numbers that uplinks can have.
    pub uplink_numbers: u16,
    /// Notices for data planes, sent when they change.
    pub notices: &'a Notices,
    /// What data planes do wrong on the ports' channels.
    pub faults: &'a Receiver<PortFault>,
    /// Called when a data plane serves, and with each look at it.
    pub on_event: &'a dyn Fn(Event),
    /// Becomes readable when the switch is to stop.
    pub stop: BorrowedFd<'a>,
    /// The longest pause before a data plane is replaced that did not live for long.
    pub longest_pause: Duration,
    /// State that data planes leave for each other.
    pub state: Vec<State>,
    /// Settings that operators made at run time.
    pub settings: &'a Settings,
    /// Where changes are left.
    pub changes: &'a Changes,
    /// Where everything is left for the next broker.
    pub store: Store,
    /// What a broker of before has left of data planes.
    pub past: Option<Past>,
    /// Where upgrades are asked for.
    pub upgrades: &'a UpgradeControl,
    /// What is under way of one.
    pub progress: Progress,
    /// Connections that follow VMs to other hosts.
    pub moves: Moves,
}

/// What of data planes and of an [upgrade](crate::upgrade) outlives a data plane.
#[derive(Default)]
pub struct Progress {
    /// Number of the last data plane.
    planes: u32,
    /// What the broker's program is to be replaced by.
    replacement: Option<Replacement>,
    /// Data planes that have handed over and end.
    retired: Vec<Retired>,
}

/// Why a broker has ended.
#[derive(Debug)]
pub enum Outcome {
    /// The switch has stopped.
    Stopped,
    /// Nothing has stopped: this program is to be executed in the broker's place, and finds everything in the store.
    Replaced(Candidate),
}

/// Data planes of a broker that has died.
#[derive(Debug)]
pub struct Past {
    /// How many had ended before the last one.
    pub restarts: u32,
    /// Number of the last one.
    pub number: u32,
    /// The last one, if it can be used.
    pub data_plane: Option<TakenDataPlane>,
}

/// Memory of a fixed size that outlives data planes.
pub struct State {
    part: StatePart,
    file: OwnedFd,
    bytes: u64,
}

impl State {
    /// Makes `bytes` of memory for `part`, all zeros.
    ///
    /// # Errors
    /// Memory or descriptors have run out.
    pub fn new(part: StatePart, bytes: u64) -> io::Result<Self> {
        Ok(Self { part, file: sealed::fixed("floodway-state", bytes)?, bytes })
    }

    /// Memory of before.
    #[must_use]
    pub fn of(part: StatePart, bytes: u64, file: OwnedFd) -> Self {
        Self { part, file, bytes }
    }
}

/// A data plane that runs.
struct DataPlane {
    channel: MainChannel,
    process: Process,
    pulse: Pulse,
    /// Data planes that ended before this one.
    restarts: u32,
    /// What tells it from all others of this switch.
    number: u32,
    started: Instant,
    change: Option<OpenChange>,
    /// What is to take its place.
    successor: Option<Successor>,
    /// It takes the place of another one, and does not serve yet.
    promotion: Option<Promotion>,
}

/// A change that the data plane has not answered.
struct OpenChange {
    /// Our ends of channels, with what tells their ports.
    ends: Vec<(u64, PortChannel)>,
    settled: Vec<String>,
    answer: Sender<Result<(), NotChanged>>,
    deadline: Instant,
}

/// What is wrong with what a data plane says.
#[derive(Debug, thiserror::Error)]
enum HearError {
    #[error(transparent)]
    Channel(#[from] ChannelError),
    #[error("it names uplink {0}, which does not exist")]
    UnknownUplink(u16),
    #[error(transparent)]
    TooManySettings(#[from] TooMany),
    #[error(transparent)]
    NotAsked(#[from] NotAsked),
    #[error(transparent)]
    TooMuch(#[from] TooMuch),
    #[error("it hands over, and nobody has asked it to")]
    NotToHandOver,
    #[error("it does not serve {0} s after it was given everything")]
    NotServing(u64),
}

/// Why a data plane is not waited for any longer.
enum Verdict {
    /// It has ended, or must.
    Ended(End),
    /// It has let go of everything, or has ended over that.
    HandedOver,
    /// The broker's program can be replaced.
    Replace,
    /// The switch stops.
    Stop,
}

impl Broker<'_> {
    /// Keeps a data plane running until the switch is to stop.
    ///
    /// # Errors
    /// The first one does not start, or no process can be had.
    pub fn run(&mut self) -> Result<Outcome, BrokerError> {
        let outcome = self.keep_running();
        self.changes.close();
        self.upgrades.close();
        outcome
    }

    /// The data plane that a broker of before has left, if it has left one that lives.
    fn begin(
        &mut self,
        restarts: &mut Restarts,
        last_end: &mut Option<String>,
    ) -> Option<DataPlane> {
        let Past { restarts: ended, number, data_plane } = self.past.take()?;
        self.progress.planes = number;
        restarts.resume(ended);
        let adopted = data_plane.and_then(|taken| self.adopt(taken, ended));
        if adopted.is_none() {
            restarts.on_end(Duration::MAX);
            *last_end = Some(End::Unknown.to_string());
        }
        adopted
    }

    fn keep_running(&mut self) -> Result<Outcome, BrokerError> {
        let mut restarts = Restarts::new(self.longest_pause);
        let mut suspects = Suspects::default();
        let mut last_end: Option<String> = None;
        self.leave_everything();
        self.note_moves();
        // There was one that served.
        let mut was_ready = self.past.is_some();
        let mut plane = self.begin(&mut restarts, &mut last_end);
        loop {
            let mut running = match plane.take() {
                Some(plane) => plane,
                None => self.launch(restarts.total(), last_end.as_deref())?,
            };
            let end = match self.watch(&mut running) {
                Verdict::Stop => {
                    (self.on_event)(Event::Stop);
                    // First: whatever becomes of this stop, there is to be no switch after it.
                    self.store.close();
                    stop(running);
                    return Ok(Outcome::Stopped);
                }
                Verdict::Replace => return Ok(self.leave(running)),
                Verdict::Ended(_) if self.progress.is_replacing() => {
                    return Ok(self.leave(running));
                }
                Verdict::HandedOver => {
                    plane = Some(self.promote(running));
                    continue;
                }
                Verdict::Ended(_) if running.is_handing_over() => {
                    plane = Some(self.promote(running));
                    continue;
                }
                Verdict::Ended(end) => end,
            };
            was_ready |= running.pulse.is_ready() || running.has_predecessor();
            let lived = running.started.elapsed();
            if let Some(change) = running.change.take() {
                self.end_change(change);
            }
            self.give_upgrade_up(&mut running, &end);
            drop(running);
            self.moves.on_data_plane_end();
            fault::pass(Point::PlaneGone);
            self.judge_turns(&end, &mut suspects);
            if !was_ready {
                return Err(BrokerError::NotReady(end));
            }
            let pause = restarts.on_end(lived);
            tracing::error!(reason = %end, ?lived, ?pause, "the data plane ended; starting another one");
            last_end = Some(end.to_string());
            if self.pause(pause) {
                return Ok(Outcome::Stopped);
            }
        }
    }

    /// Cuts off ports in whose turns data planes crash.
    fn judge_turns(&self, end: &End, suspects: &mut Suspects) {
        let Some(notes) = self.state.iter().find(|state| state.part == StatePart::Turns) else {
            return;
        };
        let turns = take_turns(notes.file.as_fd(), notes.bytes).unwrap_or_else(|error| {
            tracing::error!(%error, "cannot find out whose turn it was");
            Vec::new()
        });
        if !end.is_crash() {
            return;
        }
        for instance in suspects.on_crash(&turns) {
            let mut ports = self.layout.in_force().ports.iter();
            if let Some(place) = ports.find(|place| place.instance == instance) {
                let reason = format!("{TURNS} data planes in a row crashed in its turn: {end}");
                place.thread.cut_off(reason);
            }
        }
    }

    /// Watches a data plane until it has ended, or must.
    fn watch(&mut self, plane: &mut DataPlane) -> Verdict {
        let mut next_look = Instant::now() + LOOK;
        loop {
            self.wait(plane, next_look);
            (self.on_event)(Event::Look);
            if is_readable(self.stop) {
                return Verdict::Stop;
            }
            // First what it has sent, perhaps just before it ended.
            let heard = self
                .hear(plane)
                .and_then(|()| self.move_on(plane))
                .and_then(|()| self.begin_change(plane))
                .and_then(|()| self.pass_notices_on(plane))
                .and_then(|()| self.upgrade(plane));
            if let Some(end) = plane.process.end() {
                return Verdict::Ended(end);
            }
            if let Ok(fault) = self.faults.try_recv() {
                let PortFault { port, fault } = fault;
                return plane.kill(End::Fault(format!("port \"{port}\": {fault}")));
            }
            match heard {
                Err(error) => return plane.kill(End::Fault(error.to_string())),
                Ok(Some(verdict)) => return verdict,
                Ok(None) => {}
            }
            let now = Instant::now();
            if now < next_look {
                continue;
            }
            next_look = now + LOOK;
            if plane.pulse.look() {
                return plane.kill(End::Silent);
            }
            if plane.change.as_ref().is_some_and(|change| now >= change.deadline) {
                return plane.kill(End::Fault("it does not answer a change".to_owned()));
            }
        }
    }

    /// Waits until something has happened, at most until it is time to look.
    fn wait(&self, plane: &DataPlane, next_look: Instant) {
        let mut left = next_look.saturating_duration_since(Instant::now());
        let mut fds =
            vec![self.stop, plane.process.as_fd(), plane.channel.as_fd(), self.notices.as_fd()];
        if plane.is_settled() && !self.progress.is_replacing() {
            fds.extend([self.changes.as_fd(), self.upgrades.as_fd()]);
        }
        if !plane.is_handing_over() {
            fds.extend(self.moves.bell());
        }
        fds.extend(plane.successor_channel().map(AsFd::as_fd));
        if self.progress.is_replacing() {
            left = left.min(upgrade::LOOK);
        }
        wait_for(&fds, Some(left));
    }

    /// Hears what a data plane says. One that has closed its end is ending, or must.
    fn hear(&mut self, plane: &mut DataPlane) -> Result<(), HearError> {
        loop {
            match plane.channel.try_recv()? {
                Received::Nothing => return Ok(()),
                Received::Closed => {
                    wait_for(&[plane.process.as_fd()], Some(ORDERLY));
                    return Err(ChannelError::System(Errno::PIPE).into());
                }
                Received::Message(message, _) => self.on_message(plane, message)?,
            }
        }
    }

    fn pass_notices_on(&self, plane: &DataPlane) -> Result<(), HearError> {
        for notice in self.notices.changed() {
            plane.channel.send(&notice, &[])?;
        }
        Ok(())
    }

    fn on_message(
        &mut self,
        plane: &mut DataPlane,
        message: FromDataPlane,
    ) -> Result<(), HearError> {
        match message {
            FromDataPlane::Ready { version, .. } if version != VERSION => {
                return Err(ChannelError::from(Violation::Version(version)).into());
            }
            FromDataPlane::Ready { carried, .. } => {
                plane.pulse.on_ready();
                self.leave_data_plane(plane);
                fault::pass(Point::ReadyKept);
                (self.on_event)(Event::Ready);
                self.finish_upgrade(plane, carried);
            }
            FromDataPlane::StandsBy { .. } => return Err(HearError::NotToHandOver),
            FromDataPlane::HandOverPrepared => plane.on_prepared(),
            FromDataPlane::HandedOver { online } if plane.on_handed_over(online) => {}
            FromDataPlane::HandedOver { .. } => return Err(HearError::NotToHandOver),
            FromDataPlane::Alive { count } => plane.pulse.on_sign(count),
            FromDataPlane::Reopen { number } if number >= self.uplink_numbers => {
                return Err(HearError::UnknownUplink(number));
            }
            FromDataPlane::Reopen { number } => {
                // It may not have heard yet that one has gone.
                let place = self.layout.states().find_map(|layout| layout.uplink(number));
                if let Some(place) = place
                    && place.with(|uplink| uplink.on_failed(Instant::now()))
                {
                    send_uplink(&plane.channel, place)?;
                    leave_uplink(&self.store, place);
                }
            }
            FromDataPlane::Remember(setting) => {
                let ports = self.layout.states().map(|layout| layout.ports.len()).max();
                self.settings.keep(setting.clone(), ports.unwrap_or(0))?;
                self.store.keep(Item::Setting(setting), &[]);
            }
            FromDataPlane::Changed { number, refusal } => {
                self.on_changed(plane, number, refusal)?;
            }
            FromDataPlane::Leaving { .. }
            | FromDataPlane::Exported { .. }
            | FromDataPlane::Imported { .. } => self.on_move(&message)?,
        }
        Ok(())
    }

    /// Waits. Returns `true` if the switch is to stop.
    fn pause(&self, pause: Duration) -> bool {
        if !pause.is_zero() {
            wait_for(&[self.stop], Some(pause));
        }
        is_readable(self.stop)
    }
}

impl DataPlane {
    fn new(channel: MainChannel, process: Process, restarts: u32, number: u32) -> Self {
        Self {
            channel,
            process,
            pulse: Pulse::default(),
            restarts,
            number,
            started: Instant::now(),
            change: None,
            successor: None,
            promotion: None,
        }
    }

    fn kill(&mut self, end: End) -> Verdict {
        self.process.kill();
        Verdict::Ended(end)
    }
}

/// Lets a data plane end in order; it is killed if that takes too long.
fn stop(plane: DataPlane) {
    // Fails when it has ended already.
    let _ = plane.channel.send(&ToDataPlane::Stop, &[]);
    wait_for(&[plane.process.as_fd()], Some(ORDERLY));
    if plane.process.end().is_none() {
        tracing::error!("the data plane does not stop; it is killed");
    }
    drop(plane);
}

#[cfg(test)]
mod tests;
