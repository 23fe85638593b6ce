//! The broker's part in an [upgrade](crate::upgrade): the data plane that stands by, the hand-over, and the end of this program.
//!
//! # Theory of operation
//!
//! | stage | waits for | if that fails |
//! |---|---|---|
//! | `Starting` | the successor says `StandsBy` | the successor is killed; nothing has happened |
//! | `Preparing` | the data plane will say how its connections are, or has taken them off its offload, for as long as it may | the successor is killed, and the data plane's offload takes connections again |
//! | `HandingOver` | the data plane says `HandedOver` | the data plane is killed, as one that hangs; the successor takes over from its death |
//! | (the successor is the data plane) | it says `Ready` | it has ended as any data plane may: one of the program of before replaces it |
//! | `Replacing` | ports' threads have ended | those that have not are left behind: their front-ends have paused inside a message |
//!
//! **The point of no return** is `HandOver`. Until then the data plane moves frames, and its death ends the upgrade and not the switch.
//!
//! **One writer.** State memfds, journals and rings have one user at a time: the successor gets them in datagrams that are sent after `HandedOver` was received,
//! or after the process was seen to have ended. A data plane that lies can go on writing until it is killed, [`RETIREMENT`] later; it could as
//! well have written the same before, and the successor checks what it reads.
//!
//! **Moves.** Connections that are between two hosts would be back where they come from in the next data plane ([`moves`](crate::migration)). So `Preparing` goes on until there are none, for at most [`MOVING`].
//!
//! **Connections** go on by what the data plane writes into memory that it is given when it is to prepare, and that its successor is given after it. The broker never looks
//! at it. It is as large as all that ports' budgets allow, and [`FLOWS_BYTES`] for each port: a data plane that was taken over can fill it, and no more.

use std::fmt::Display;
use std::os::fd::AsFd;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use floodway_process::channel::{ChannelError, Received};
use floodway_process::message::{
    FromDataPlane, PREPARATION_MS, StatePart, ToDataPlane, VERSION, Violation,
};
use floodway_process::sealed;

use super::{
    Broker, BrokerError, DataPlane, HearError, MainChannel, Outcome, Progress, State, Verdict,
    failed,
};
use crate::layout::{FLOWS_BYTES, Place};
use crate::process::Process;
use crate::supervision::End;
use crate::upgrade::Candidate;
use floodway_process::poll::wait_for;

/// How long a successor may take to stand by.
const STARTING: Duration = Duration::from_secs(10);
/// How long the data plane may take to say that it has prepared: it waits for connections for [`PREPARATION_MS`], and looks once a second at worst.
const PREPARING: Duration = Duration::from_millis(2 * PREPARATION_MS + 1000);
/// How long a data plane that is to prepare may go on while connections are between hosts, which a hand-over would bring back to where they come from.
const MOVING: Duration = Duration::from_secs(if cfg!(test) { 5 } else { 30 });
/// How long it may take to let go: it waits for the end of a batch, and of requests.
const HANDING_OVER: Duration = Duration::from_secs(2);
/// How long a successor may take to serve when it has been given everything.
const TAKING_OVER: Duration = Duration::from_secs(5);
/// How long ports' threads may take to end: a front-end may pause inside a message for ten seconds.
const REPLACING: Duration = Duration::from_secs(15);
/// How long a data plane that has handed over may take to end.
const RETIREMENT: Duration = Duration::from_secs(1);
/// Between two looks at ports' threads.
pub(super) const LOOK: Duration = Duration::from_millis(2);

/// A data plane that stands by, or is about to.
pub(super) struct Successor {
    candidate: Candidate,
    channel: MainChannel,
    process: Process,
    /// Where the data plane leaves its connections.
    flows: State,
    /// Connections that were online, as it says.
    online: u32,
    stage: Stage,
    /// `HandOverPrepared` has come.
    is_prepared: bool,
    /// When the stage is over.
    deadline: Instant,
    /// When `HandOver` was sent to the data plane.
    since: Instant,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Starting,
    Preparing,
    HandingOver,
    /// The data plane has let go.
    HandedOver,
}

/// What has become of a data plane that takes the place of another one.
pub(super) struct Promotion {
    candidate: Candidate,
    /// Connections that the predecessor had online.
    online: u32,
    /// When `HandOver` was sent to the predecessor.
    since: Instant,
}

/// The program that is to be executed, once ports' threads have ended.
pub(super) struct Replacement {
    candidate: Candidate,
    deadline: Instant,
}

/// A data plane that has handed over and ends.
pub(super) struct Retired {
    process: Process,
    deadline: Instant,
}

/// What a successor has done wrong.
fn unfit(problem: impl Display) -> String {
    format!("the data plane of the new program did not start: {problem}")
}

impl Successor {
    fn enter(&mut self, stage: Stage, limit: Duration) {
        (self.stage, self.deadline) = (stage, Instant::now() + limit);
    }

    /// Returns `true` if it is time that it takes over. While connections are between hosts that is put off.
    fn may_take_over(&self, are_between_hosts: bool) -> bool {
        let late = Instant::now().checked_duration_since(self.deadline);
        self.stage == Stage::Preparing
            && (self.is_prepared || late.is_some())
            && (!are_between_hosts || late >= Some(MOVING - PREPARING))
    }

    /// What is wrong with it, if anything is; hears whether it stands by.
    fn look(&mut self) -> Result<(), String> {
        loop {
            match self.channel.try_recv() {
                Ok(Received::Nothing) => break,
                Ok(Received::Message(FromDataPlane::StandsBy { version }, _))
                    if self.stage == Stage::Starting =>
                {
                    if version != VERSION {
                        return Err(unfit(Violation::Version(version)));
                    }
                    self.enter(Stage::Preparing, PREPARING);
                }
                Ok(Received::Message(other, _)) => {
                    return Err(unfit(format_args!("it says {other:?}")));
                }
                Ok(Received::Closed) => {
                    wait_for(&[self.process.as_fd()], Some(RETIREMENT));
                    let end = self.process.end();
                    return Err(end.map_or_else(|| unfit("it hung up"), unfit));
                }
                Err(error) => return Err(unfit(error)),
            }
        }
        if let Some(end) = self.process.end() {
            return Err(unfit(end));
        }
        if self.stage == Stage::Starting && Instant::now() >= self.deadline {
            return Err(unfit(format_args!("it was not ready within {} s", STARTING.as_secs())));
        }
        Ok(())
    }
}

impl Broker<'_> {
    /// Starts a successor if one is asked for and the data plane can be replaced.
    fn begin_upgrade(&mut self, plane: &mut DataPlane) {
        if !plane.is_settled() || self.progress.is_replacing() {
            return;
        }
        let Some(candidate) = self.upgrades.take() else { return };
        tracing::info!(
            binary = candidate.program.binary,
            version = candidate.program.version,
            "upgrading"
        );
        match self.start_successor(candidate, plane) {
            Ok(successor) => plane.successor = Some(successor),
            Err(error) => self.fail_upgrade(plane, &error.to_string()),
        }
    }

    fn start_successor(
        &self,
        candidate: Candidate,
        plane: &DataPlane,
    ) -> Result<Successor, BrokerError> {
        let flows = self.memory_for_flows()?;
        let heap = plane.process.heap().unwrap_or_default();
        let (channel, process) = self.start_process(Some(&candidate))?;
        let introduced = self
            .introduce(&channel, plane.restarts, None)
            .and_then(|()| channel.send(&ToDataPlane::StandBy { heap }, &[]));
        if let Err(error) = introduced {
            // It has ended already; what it ended with is found by whoever looks.
            tracing::debug!(%error, "the successor takes nothing");
        }
        let now = Instant::now();
        let (stage, deadline) = (Stage::Starting, now + STARTING);
        let is_prepared = false;
        Ok(Successor {
            candidate,
            channel,
            process,
            flows,
            online: 0,
            stage,
            is_prepared,
            deadline,
            since: now,
        })
    }

    /// Memory in which a data plane leaves its connections.
    fn memory_for_flows(&self) -> Result<State, BrokerError> {
        let ports = &self.layout.in_force().ports;
        let bytes = FLOWS_BYTES + ports.iter().map(Place::room_for_flows).sum::<u64>();
        let file = sealed::fixed("floodway-flows", bytes);
        let file = file.map_err(failed("make memory for connections"))?;
        Ok(State { part: StatePart::Flows, file, bytes })
    }

    /// Begins an upgrade that is asked for, or goes on with one that is under way.
    pub(super) fn upgrade(&mut self, plane: &mut DataPlane) -> Result<Option<Verdict>, HearError> {
        self.begin_upgrade(plane);
        if self.can_be_replaced() {
            return Ok(Some(Verdict::Replace));
        }
        Ok(self.advance_upgrade(plane)?.then_some(Verdict::HandedOver))
    }

    /// Goes on with an upgrade that is under way. Returns `true` once the data plane has handed over.
    fn advance_upgrade(&mut self, plane: &mut DataPlane) -> Result<bool, HearError> {
        self.progress
            .retired
            .retain(|retired| retired.process.end().is_none() && Instant::now() < retired.deadline);
        let is_late = |promotion: &Promotion| promotion.since.elapsed() >= TAKING_OVER;
        if !plane.pulse.is_ready() && plane.promotion.as_ref().is_some_and(is_late) {
            return Err(HearError::NotServing(TAKING_OVER.as_secs()));
        }
        let Some(successor) = &mut plane.successor else { return Ok(false) };
        let before = successor.stage;
        match before {
            Stage::Starting | Stage::Preparing => {
                if let Err(problem) = successor.look() {
                    self.fail_upgrade(plane, &problem);
                    return Ok(false);
                }
                if before != successor.stage {
                    let State { file, bytes, .. } = &successor.flows;
                    let (flows, bytes) = (successor.candidate.flows, *bytes);
                    let says = ToDataPlane::PrepareHandOver { flows, bytes };
                    plane.channel.send(&says, &[file.as_fd()])?;
                } else if successor.may_take_over(self.moves.are_between_hosts()) {
                    plane.begin_hand_over()?;
                }
                Ok(false)
            }
            Stage::HandingOver if Instant::now() >= successor.deadline => {
                tracing::error!("the data plane does not let go; it is killed");
                plane.process.kill();
                Ok(true)
            }
            Stage::HandingOver => Ok(false),
            Stage::HandedOver => Ok(true),
        }
    }

    /// Ends an upgrade that is under way, before the point of no return.
    fn fail_upgrade(&self, plane: &mut DataPlane, problem: &str) {
        tracing::error!(problem, "not upgraded");
        let stage = plane.successor.take().map(|successor| successor.stage);
        plane.promotion = None;
        let programs = self.upgrades.fail(problem);
        self.leave_programs(&programs, false);
        if stage == Some(Stage::Preparing) {
            // Fails when it has ended; whoever watches it finds that.
            let _ = plane.channel.send(&ToDataPlane::CancelHandOver, &[]);
        }
        let _ = plane.channel.send(&ToDataPlane::Programs(programs), &[]);
    }

    /// Gives everything to the successor of `plane`, which has let go of it or has ended. Returns the successor, or `plane` if it has none.
    pub(super) fn promote(&mut self, mut plane: DataPlane) -> DataPlane {
        let Some(successor) = plane.successor.take() else { return plane };
        tracing::debug!("the data plane has let go");
        let Successor { candidate, channel, process, since, flows, online, .. } = successor;
        let restarts = plane.restarts;
        let DataPlane { process: retired, channel: closed, .. } = plane;
        drop(closed);
        self.progress
            .retired
            .push(Retired { process: retired, deadline: Instant::now() + RETIREMENT });
        let mut next = DataPlane::new(channel, process, restarts, self.progress.next_number());
        let program = candidate.program.clone();
        next.promotion = Some(Promotion { candidate, online, since });
        self.forget_faults();
        self.moves.on_data_plane_end();
        self.upgrades.update(|programs| programs.data_plane = program);
        self.leave_data_plane(&next);
        let given = self.equip(&next, Some(&flows)).and_then(|()| self.resume_moves(&next));
        if let Err(error) = given {
            tracing::debug!(%error, "the successor takes nothing");
        }
        tracing::debug!("the successor has everything");
        next
    }

    /// The data plane serves. If it has taken the place of another one, so is the broker to be replaced.
    /// `carried` connections of that are still online.
    pub(super) fn finish_upgrade(&mut self, plane: &mut DataPlane, carried: u32) {
        let Some(Promotion { candidate, online, since }) = plane.promotion.take() else { return };
        let pause = since.elapsed();
        let programs = self.upgrades.update(|programs| {
            let upgrades = &mut programs.upgrades;
            upgrades.count = upgrades.count.saturating_add(1);
            upgrades.at = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
            upgrades.from.clone_from(&programs.broker.version);
            upgrades.pause_us = u64::try_from(pause.as_micros()).unwrap_or(u64::MAX);
            (upgrades.online, upgrades.carried) = (online, carried);
            upgrades.problem = None;
        });
        let binary = candidate.program.binary.as_str();
        tracing::info!(binary, ?pause, online, carried, "the data plane is upgraded");
        // Whoever follows if this process dies from here on is not part of the upgrade yet.
        self.leave_programs(&programs, false);
        // Fails when it has ended; whoever watches it finds that.
        let _ = plane.channel.send(&ToDataPlane::Programs(programs), &[]);
        for place in &self.layout.in_force().ports {
            place.thread.leave();
        }
        let deadline = Instant::now() + REPLACING;
        self.progress.replacement = Some(Replacement { candidate, deadline });
    }

    /// Returns `true` if the broker's program can be replaced now.
    fn can_be_replaced(&self) -> bool {
        let Some(replacement) = &self.progress.replacement else { return false };
        let have_left = self.layout.in_force().ports.iter().all(|place| place.thread.has_left());
        have_left || Instant::now() >= replacement.deadline
    }

    /// Lets go of everything, as it is in the store, for the program that is to replace the broker's.
    pub(super) fn leave(&mut self, plane: DataPlane) -> Outcome {
        // It goes on, or is found to have ended by the next broker.
        std::mem::forget(plane);
        self.progress.retired.clear();
        match self.progress.replacement.take() {
            Some(Replacement { candidate, .. }) => {
                self.leave_programs(&self.upgrades.state().programs, true);
                Outcome::Replaced(candidate)
            }
            None => Outcome::Stopped,
        }
    }

    /// The data plane has ended, and with it the upgrade that was under way, if one was.
    pub(super) fn give_upgrade_up(&self, plane: &mut DataPlane, end: &End) {
        if plane.has_predecessor() {
            self.fail_upgrade(plane, &unfit(end));
        } else if plane.successor.is_some() {
            self.fail_upgrade(
                plane,
                &format!("the data plane that was to be replaced ended: {end}"),
            );
        }
    }
}

impl Progress {
    /// The number of a new data plane.
    pub(super) fn next_number(&mut self) -> u32 {
        self.planes = self.planes.wrapping_add(1);
        self.planes
    }

    /// Returns `true` once the broker's program is to be replaced.
    pub(super) fn is_replacing(&self) -> bool {
        self.replacement.is_some()
    }
}

impl DataPlane {
    /// Returns `true` if it serves and nothing is under way.
    pub(super) fn is_settled(&self) -> bool {
        self.pulse.is_ready() && self.change.is_none() && self.successor.is_none()
    }

    /// It has prepared. One that says so after the deadline, or after the upgrade has failed, is late.
    pub(super) fn on_prepared(&mut self) {
        if let Some(successor) = self.successor.as_mut().filter(|s| s.stage == Stage::Preparing) {
            successor.is_prepared = true;
        }
    }

    /// It is to let go of everything.
    fn begin_hand_over(&mut self) -> Result<(), ChannelError> {
        let Some(successor) = &mut self.successor else { return Ok(()) };
        successor.since = Instant::now();
        successor.enter(Stage::HandingOver, HANDING_OVER);
        self.channel.send(&ToDataPlane::HandOver, &[])
    }

    /// It says that it has let go of everything, and how many connections were online before. Returns `false` if it was not asked to.
    pub(super) fn on_handed_over(&mut self, online: u32) -> bool {
        let asked = self.successor.as_mut().filter(|s| s.stage == Stage::HandingOver);
        let Some(successor) = asked else { return false };
        (successor.stage, successor.online) = (Stage::HandedOver, online);
        true
    }

    /// Returns `true` if `HandOver` was sent: if the data plane has ended, its successor goes on.
    pub(super) fn is_handing_over(&self) -> bool {
        let stage = self.successor.as_ref().map(|successor| successor.stage);
        matches!(stage, Some(Stage::HandingOver | Stage::HandedOver))
    }

    /// Returns `true` if it takes the place of another one, and does not serve yet.
    pub(super) fn has_predecessor(&self) -> bool {
        self.promotion.is_some()
    }

    /// The channel of its successor, if that has something to say.
    pub(super) fn successor_channel(&self) -> Option<&MainChannel> {
        self.successor.as_ref().map(|successor| &successor.channel)
    }
}
