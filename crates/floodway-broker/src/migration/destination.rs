//! The thread of a connection of another host, from which a VM comes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use floodway_process::message::shorten;

use super::inbox::Inbox;
use super::link::{Link, LinkError};
use super::protocol::{Answer, Request};
use super::{Event, Expected, MESSAGE, Order, SILENCE, Shared, TRANSFER};
use crate::poll::wait_for;

/// How long the broker's loop may take to look for a port: it may wait for a data plane that does not read.
const LOOKING: Duration = Duration::from_secs(2);

/// A connection of another host, which is who it should be.
pub(super) struct Destination {
    pub(super) shared: Arc<Shared>,
    pub(super) link: Link,
    /// Which host, for operators.
    pub(super) host: String,
}

/// A VM that a port waits for.
struct Waiting {
    id: u64,
    inbox: Arc<Inbox<Event>>,
    /// Bytes that the port takes.
    room: u64,
    /// All of its state is here.
    has_state: bool,
}

impl Destination {
    /// Serves the connection until it ends.
    ///
    /// # Errors
    /// It has ended otherwise than it should.
    pub(super) fn run(mut self) -> Result<(), LinkError> {
        let Request::Expect { vm, flows } = self.link.recv(MESSAGE)? else {
            return Err(LinkError::NoMessage);
        };
        let ours = self.shared.settings.flows;
        if flows != ours {
            let reason =
                format!("it takes version {ours} of the format of connections, and not {flows}");
            return self.answer(&Answer::Refused { reason });
        }
        let inbox = Arc::new(Inbox::new()?);
        let id = self.shared.next();
        let host = self.host.clone();
        let expected = Expected { id, vm, host, inbox: Arc::clone(&inbox) };
        self.shared.orders.put(Order::Expect(expected));
        wait_for(&[std::os::fd::AsFd::as_fd(&*inbox)], Some(LOOKING));
        let room = match inbox.take() {
            Some(Event::Expected { room }) => room,
            Some(Event::Refused(reason)) => {
                return self.answer(&Answer::Refused { reason: shorten(&reason) });
            }
            _ => {
                self.lose(id, "nobody looked for a port in time");
                return self.answer(&Answer::Refused { reason: "it is busy".to_owned() });
            }
        };
        let mut waiting = Waiting { id, inbox, room, has_state: false };
        let ended = self.answer(&Answer::Expected).and_then(|()| self.attend(&mut waiting));
        if let Err(error) = &ended {
            self.lose(id, &error.to_string());
        }
        ended
    }

    /// Nobody listens to what becomes of it any more.
    fn lose(&self, id: u64, reason: &str) {
        self.shared.orders.put(Order::Lost { id, reason: reason.to_owned() });
    }

    fn answer(&mut self, answer: &Answer) -> Result<(), LinkError> {
        self.link.send(answer, MESSAGE)
    }

    /// Takes the state of the VM's connections, and says what becomes of it.
    fn attend(&mut self, waiting: &mut Waiting) -> Result<(), LinkError> {
        let mut heard = Instant::now();
        loop {
            self.link.wait(&waiting.inbox, SILENCE.saturating_sub(heard.elapsed()));
            if let Some(event) = waiting.inbox.take() {
                return self.answer(&outcome(event));
            }
            if self.link.is_ready() {
                heard = Instant::now();
                let request = self.link.recv(MESSAGE)?;
                if self.on_request(&request, waiting)? {
                    return Ok(());
                }
            } else if heard.elapsed() >= SILENCE {
                return Err(LinkError::Late);
            }
        }
    }

    /// Returns `true` if nothing more comes.
    fn on_request(&mut self, request: &Request, waiting: &mut Waiting) -> Result<bool, LinkError> {
        match *request {
            Request::StillThere => self.answer(&Answer::StillThere)?,
            Request::State { online, bytes } if !waiting.has_state => {
                if bytes > waiting.room {
                    let room = waiting.room;
                    let reason = format!(
                        "{bytes} bytes of connections are more than the {room} that its port takes"
                    );
                    self.shared
                        .orders
                        .put(Order::TakeBack { id: waiting.id, reason: reason.clone() });
                    self.answer(&Answer::NotTaken { reason })?;
                    return Ok(true);
                }
                let file = self.link.recv_file(bytes, TRANSFER)?;
                waiting.has_state = true;
                self.shared.orders.put(Order::Import { id: waiting.id, file, bytes, online });
            }
            Request::Cancel => {
                let reason = "the VM stays where it was".to_owned();
                self.shared.orders.put(Order::TakeBack { id: waiting.id, reason: reason.clone() });
                self.answer(&Answer::NotTaken { reason })?;
                return Ok(true);
            }
            Request::Expect { .. } | Request::State { .. } => return Err(LinkError::NoMessage),
        }
        Ok(false)
    }
}

/// What the other host is told of `event`.
fn outcome(event: Event) -> Answer {
    match event {
        Event::Imported { taken: true, carried, online } => Answer::Taken { carried, online },
        Event::Imported { .. } => {
            Answer::NotTaken { reason: "its data plane could not take them in time".to_owned() }
        }
        Event::Gone(reason) | Event::Refused(reason) | Event::Stays(reason) => {
            Answer::NotTaken { reason: shorten(&reason) }
        }
        Event::Exported { .. } | Event::Expected { .. } => {
            Answer::NotTaken { reason: "it has lost its way".to_owned() }
        }
    }
}
