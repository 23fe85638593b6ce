//! One front-end's connection, whatever happens to data planes.
//!
//! # Theory of operation
//! **Goal**: every message of a front-end takes effect once and is answered once, although the data plane that acts on it may die at any
//! moment. The session holds each message until its outcome is known, and a [record](crate::record) of what is replayed to a successor. It does no I/O: what is to be sent is
//! returned, what was received is an argument.
//!
//! | stage | means | ends with |
//! |---|---|---|
//! | `Unattended` | there is no data plane | [`Session::attach`] |
//! | `Replaying` | a data plane is being given the record | `Resumed` of the data plane: [`Session::receive`] |
//! | `Serving` | it has it; messages are delivered, one at a time | |
//!
//! From both of the latter [`Session::detach`] leads back to the first.
//!
//! **Outcome.** `Handled` is one datagram: either the broker has it, and then reply and changes of the record count, or it does not, and then nothing
//! has happened and the successor is given the message. So before `detach` everything that the dead data plane had sent has to be received.
//!
//! **Suspicion.** A message that was outstanding at [`DEATHS`] deaths, or a replay that was under way at as many in a row, is held to be the cause: the
//! session is over, its front-end cut off. Whoever is cut off by mistake connects again.
//!
//! **Trust.** Everything that the data plane says is checked against what it was given. It can name no other session, answer no message twice, and make the record no
//! larger than its limits; anything else is a [`Fault`], for which it is ended. What it says of a session that is over is ignored: it may not have
//! heard of the end.
//!
//! **Invariants**: at most one message is outstanding; a reply follows only from an outstanding message, once; only a `Handled` changes the record.

use floodway_process::message::{FromPort, Handled, ToPort};
use floodway_process::peer::Peer;

use crate::record::{Limits, Packet, Record, TooLarge};

/// Deaths of data planes after which what they had in common is not tried again.
pub const DEATHS: u32 = 2;

/// What is to be sent to the data plane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outgoing<D> {
    /// The message.
    pub message: ToPort,
    /// What goes beside it.
    pub descriptors: Vec<D>,
}

impl<D> From<ToPort> for Outgoing<D> {
    fn from(message: ToPort) -> Self {
        Self { message, descriptors: Vec::new() }
    }
}

/// What a message of the data plane has led to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome<D> {
    /// To be written to the front-end, if there is anything.
    pub reply: Vec<u8>,
    /// The connection is to end after that, for this reason.
    pub hang_up: Option<String>,
    /// To be sent to the data plane.
    pub deliver: Option<Outgoing<D>>,
}

impl<D> Outcome<D> {
    fn nothing() -> Self {
        Self { reply: Vec::new(), hang_up: None, deliver: None }
    }
}

/// The data plane has broken the protocol, and is to be ended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// It names a session that has not begun.
    #[error("it names session {0}, which has not begun")]
    UnknownSession(u32),
    /// It answers a message that is not outstanding.
    #[error("it has handled message {0}, which is not outstanding")]
    UnknownMessage(u64),
    /// It has resumed what was not replayed.
    #[error("it has resumed a session that was not replayed")]
    NotReplaying,
    /// Its record would exceed the limits.
    #[error(transparent)]
    Record(#[from] TooLarge),
}

/// Data planes die of this session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Suspect {
    /// Of a message.
    #[error("{DEATHS} data planes ended while they handled the same message of its front-end")]
    Message,
    /// Of the record.
    #[error("{DEATHS} data planes in a row ended while they took over its front-end's connection")]
    Record,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Unattended,
    Replaying,
    Serving,
}

#[derive(Clone, Debug)]
struct Outstanding<D> {
    packet: Packet<D>,
    /// A data plane of now has it.
    delivered: bool,
    /// Data planes that ended while they had it.
    deaths: u32,
}

/// A session: see the module.
#[derive(Clone, Debug)]
pub struct Session<D> {
    id: u32,
    /// The front-end's process.
    peer: Option<Peer>,
    stage: Stage,
    record: Record<D>,
    outstanding: Option<Outstanding<D>>,
    /// Number of the outstanding message, or of the next one.
    number: u64,
    /// Data planes in a row that ended while they were given the record.
    deaths: u32,
}

impl<D: Clone> Session<D> {
    /// The session of a front-end that has just connected. `id` is higher than all earlier ones of the port.
    #[must_use]
    pub fn new(id: u32, limits: Limits) -> Self {
        Self {
            id,
            peer: None,
            stage: Stage::Unattended,
            record: Record::new(limits),
            outstanding: None,
            number: 0,
            deaths: 0,
        }
    }

    /// A session that a data plane serves or, without one, that the next one is to be given, and nothing is owed in it: `number` is that of its next message.
    #[must_use]
    pub(crate) fn restore(id: u32, number: u64, record: Record<D>, is_served: bool) -> Self {
        let stage = if is_served { Stage::Serving } else { Stage::Unattended };
        Self { id, peer: None, stage, record, outstanding: None, number, deaths: 0 }
    }

    /// The same, whose front-end is the process `peer`.
    #[must_use]
    pub fn of_process(self, peer: Option<Peer>) -> Self {
        Self { peer, ..self }
    }

    /// Returns `true` if the next message of the front-end can be [taken](Self::take).
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.stage == Stage::Serving && self.outstanding.is_none()
    }

    /// Returns `true` while a message has not had all its effect, or a data plane is being given the record.
    #[must_use]
    pub fn is_unsettled(&self) -> bool {
        self.stage == Stage::Replaying || self.outstanding.is_some()
    }

    /// Number of the outstanding message, or of the next one.
    #[must_use]
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// What would be replayed to a successor.
    #[must_use]
    pub fn record(&self) -> &Record<D> {
        &self.record
    }

    /// A new data plane serves this port. Returns what is replayed to it; what was outstanding follows when it has resumed.
    ///
    /// # Errors
    /// Its predecessors died of this session, which is over.
    pub fn attach(&mut self) -> Result<Vec<Outgoing<D>>, Suspect> {
        if self.deaths >= DEATHS {
            return Err(Suspect::Record);
        }
        if self.outstanding.as_ref().is_some_and(|outstanding| outstanding.deaths >= DEATHS) {
            return Err(Suspect::Message);
        }
        self.stage = Stage::Replaying;
        let session = self.id;
        let mut replay = vec![ToPort::Connected { session, peer: self.peer }.into()];
        for (number, packet) in (0..).zip(self.record.packets()) {
            replay.push(message(session, number, true, packet));
        }
        replay.push(ToPort::Replayed { session }.into());
        Ok(replay)
    }

    /// The data plane has ended, and all that it had sent was received.
    pub fn detach(&mut self) {
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

    /// Takes the front-end's next message; returns what is sent to the data plane. `None`, and nothing happens, if the session is not
    /// [ready](Self::is_ready).
    pub fn take(&mut self, packet: Packet<D>) -> Option<Outgoing<D>> {
        if !self.is_ready() {
            return None;
        }
        self.outstanding = Some(Outstanding { packet, delivered: false, deaths: 0 });
        self.deliver()
    }

    /// What was to be delivered last could not be sent: the data plane has ended. It was not the message that killed it.
    pub fn on_undelivered(&mut self) {
        if let Some(outstanding) = &mut self.outstanding {
            outstanding.delivered = false;
        }
    }

    /// Hears what the data plane says.
    ///
    /// # Errors
    /// It has broken the protocol. Nothing has changed.
    pub fn receive(&mut self, report: FromPort) -> Result<Outcome<D>, Fault> {
        let session = match &report {
            FromPort::Handled(handled) => handled.session,
            FromPort::Resumed { session } | FromPort::HangUp { session, .. } => *session,
        };
        if session > self.id {
            return Err(Fault::UnknownSession(session));
        }
        if session < self.id {
            return Ok(Outcome::nothing());
        }
        match report {
            FromPort::Handled(handled) => self.on_handled(handled),
            FromPort::Resumed { .. } => self.on_resumed(),
            FromPort::HangUp { reason, .. } => {
                Ok(Outcome { hang_up: Some(reason), ..Outcome::nothing() })
            }
        }
    }

    fn on_handled(&mut self, handled: Handled) -> Result<Outcome<D>, Fault> {
        let outstanding = self.outstanding.as_ref().filter(|outstanding| outstanding.delivered);
        let Some(outstanding) = outstanding.filter(|_| handled.number == self.number) else {
            return Err(Fault::UnknownMessage(handled.number));
        };
        self.record.apply(&handled.changes, &outstanding.packet)?;
        self.outstanding = None;
        self.number += 1;
        let hang_up = handled.hang_up.then(|| "it sent what is no vhost-user message".to_owned());
        Ok(Outcome { reply: handled.reply, hang_up, deliver: None })
    }

    fn on_resumed(&mut self) -> Result<Outcome<D>, Fault> {
        if self.stage != Stage::Replaying {
            return Err(Fault::NotReplaying);
        }
        self.stage = Stage::Serving;
        Ok(Outcome { deliver: self.deliver(), ..Outcome::nothing() })
    }

    fn deliver(&mut self) -> Option<Outgoing<D>> {
        let outstanding = self.outstanding.as_mut()?;
        outstanding.delivered = true;
        Some(message(self.id, self.number, false, &outstanding.packet))
    }
}

fn message<D: Clone>(session: u32, number: u64, replayed: bool, packet: &Packet<D>) -> Outgoing<D> {
    let bytes = packet.bytes.clone();
    let message = ToPort::Message { session, number, replayed, bytes };
    Outgoing { message, descriptors: packet.descriptors.clone() }
}

#[cfg(test)]
mod tests;
