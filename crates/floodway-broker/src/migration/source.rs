//! The thread of a VM that leaves: finds out where it goes, and brings its connections there.

use std::fs::File;
use std::net::ToSocketAddrs;
use std::sync::Arc;
use std::sync::mpsc::{self, Sender};
use std::thread;
use std::time::{Duration, Instant};

use floodway_process::message::{ANSWER_MS, RELEASE_MS};

use super::inbox::Inbox;
use super::link::{Link, LinkError};
use super::protocol::{Answer, Request};
use super::{Event, HEARTBEAT, MESSAGE, Order, SILENCE, Shared, Stayed, TRANSFER, Went};
use crate::vm::Vm;

/// How long hosts may take to say whether they expect a VM: the data plane waits for little longer.
pub(super) const ASKING: Duration = Duration::from_millis(ANSWER_MS - 50);
/// How long a VM may take to start over there, once its connections are there: the data plane waits for longer than that and the transfer.
pub(super) const TAKING: Duration = Duration::from_millis(RELEASE_MS - 15_000);

/// A move of a VM that leaves.
pub(super) struct Source {
    pub(super) shared: Arc<Shared>,
    pub(super) id: u64,
    pub(super) vm: Vm,
    pub(super) inbox: Arc<Inbox<Event>>,
}

/// What goes along.
struct Exported {
    file: File,
    bytes: u64,
    online: u32,
}

/// When something was last said, each way.
struct Pulse {
    said: Instant,
    heard: Instant,
}

impl Source {
    /// Follows the VM. Its outcome is left for the broker's loop.
    pub(super) fn run(self) {
        let outcome = self.follow();
        self.shared.orders.put(Order::Left { id: self.id, outcome });
    }

    fn follow(&self) -> Result<Went, Stayed> {
        let (mut link, host) = self.ask()?;
        self.shared.orders.put(Order::Export { id: self.id });
        match self.go_along(&mut link) {
            Ok((carried, online)) => Ok(Went { host, carried, online }),
            Err(reason) => Err(Stayed { host, reason }),
        }
    }

    /// Asks all hosts. Returns the connection to the first that expects the VM.
    fn ask(&self) -> Result<(Link, String), Stayed> {
        let deadline = Instant::now() + ASKING;
        let (answers, answered) = mpsc::channel();
        for (name, port) in &self.shared.settings.hosts {
            self.ask_apart((name.clone(), *port), deadline, answers.clone());
        }
        drop(answers);
        let mut reasons = Vec::new();
        while let Ok((host, answer)) =
            answered.recv_timeout(deadline.saturating_duration_since(Instant::now()))
        {
            match answer {
                Ok(link) => return Ok((link, host)),
                Err(reason) => reasons.push(format!("{host}: {reason}")),
            }
        }
        let (asked, answered) = (self.shared.settings.hosts.len(), reasons.len());
        if answered < asked {
            reasons.push(format!("{} of {asked} hosts did not answer in time", asked - answered));
        }
        Err(Stayed { host: String::new(), reason: reasons.join("; ") })
    }

    /// Asks one host, in a thread of its own: names take as long to look up as they take.
    fn ask_apart(
        &self,
        (name, port): (String, u16),
        deadline: Instant,
        answers: Sender<(String, Result<Link, String>)>,
    ) {
        let (shared, vm) = (Arc::clone(&self.shared), self.vm.clone());
        let ask = move || {
            let answer = ask_host(&shared, (&name, port), vm, deadline);
            // Fails when another one was faster: then this connection ends.
            let _ = answers.send((format!("{name}:{port}"), answer));
        };
        if let Err(error) = thread::Builder::new().name("move-ask".to_owned()).spawn(ask) {
            tracing::error!(%error, "a host is not asked whether it expects a VM");
        }
    }

    /// Brings the connections to the host that expects them. Returns how many go on, and how many are online, there.
    fn go_along(&self, link: &mut Link) -> Result<(u32, u32), String> {
        let Exported { file, bytes, online } = self.wait_for_export(link)?;
        let state = Request::State { online, bytes };
        let sent = link.send(&state, MESSAGE).and_then(|()| link.send_file(&file, bytes, TRANSFER));
        sent.map_err(|error| error.to_string())?;
        self.wait_until_taken(link)
    }

    /// Waits until the VM has stopped, for as long as the other host gives signs of life.
    fn wait_for_export(&self, link: &mut Link) -> Result<Exported, String> {
        let mut pulse = Pulse::new();
        loop {
            pulse.wait(link, &self.inbox);
            match self.inbox.take() {
                Some(Event::Exported { file, bytes, online }) => {
                    return Ok(Exported { file, bytes, online });
                }
                Some(Event::Stays(reason)) => {
                    // Fails when the other host has gone, which comes to the same.
                    let _ = link.send(&Request::Cancel, MESSAGE);
                    return Err(reason);
                }
                _ => {}
            }
            if let Some(answer) = pulse.beat(link)? {
                return Err(refusal(answer));
            }
        }
    }

    /// Waits until the VM runs on the other host.
    fn wait_until_taken(&self, link: &mut Link) -> Result<(u32, u32), String> {
        let mut deadline = Instant::now() + TAKING;
        let mut pulse = Pulse::new();
        while Instant::now() < deadline {
            pulse.wait(link, &self.inbox);
            if let Some(Event::Stays(_)) = self.inbox.take() {
                // The answer says whether that comes too late.
                deadline = Instant::now() + SILENCE;
                link.send(&Request::Cancel, MESSAGE).map_err(|error| error.to_string())?;
            }
            match pulse.beat(link)? {
                Some(Answer::Taken { carried, online }) => return Ok((carried, online)),
                Some(answer) => return Err(refusal(answer)),
                None => {}
            }
        }
        Err("the VM did not start there in time".to_owned())
    }
}

impl Pulse {
    fn new() -> Self {
        let now = Instant::now();
        Self { said: now, heard: now }
    }

    /// Waits until there is news, or it is time to say something.
    fn wait(&self, link: &Link, inbox: &Inbox<Event>) {
        link.wait(inbox, HEARTBEAT.saturating_sub(self.said.elapsed()));
    }

    /// Gives a sign of life when it is time to, and hears what there is. Returns an answer that is more than that.
    fn beat(&mut self, link: &mut Link) -> Result<Option<Answer>, String> {
        let heard = self.exchange(link);
        heard.map_err(|error| error.to_string())
    }

    fn exchange(&mut self, link: &mut Link) -> Result<Option<Answer>, LinkError> {
        if link.is_ready() {
            self.heard = Instant::now();
            let answer = link.recv(MESSAGE)?;
            return Ok((answer != Answer::StillThere).then_some(answer));
        }
        if self.heard.elapsed() >= SILENCE {
            return Err(LinkError::Late);
        }
        if self.said.elapsed() >= HEARTBEAT {
            self.said = Instant::now();
            link.send(&Request::StillThere, MESSAGE)?;
        }
        Ok(None)
    }
}

/// Why a host takes nothing, as it says.
fn refusal(answer: Answer) -> String {
    match answer {
        Answer::Refused { reason } | Answer::NotTaken { reason } => reason,
        other => format!("it says {other:?}, which is no answer"),
    }
}

/// Asks a host whether it expects `vm`. Returns the connection on which it says yes.
fn ask_host(
    shared: &Shared,
    (name, port): (&str, u16),
    vm: Vm,
    deadline: Instant,
) -> Result<Link, String> {
    let mut link = connect(shared, (name, port), deadline).map_err(|error| error.to_string())?;
    let expect = Request::Expect { vm, flows: shared.settings.flows };
    let left = || deadline.saturating_duration_since(Instant::now());
    let answer = link.send(&expect, left()).and_then(|()| link.recv(left()));
    match answer.map_err(|error| error.to_string())? {
        Answer::Expected => Ok(link),
        other => Err(refusal(other)),
    }
}

fn connect(
    shared: &Shared,
    (name, port): (&str, u16),
    deadline: Instant,
) -> Result<Link, LinkError> {
    let mut last = LinkError::Closed;
    for address in (name, port).to_socket_addrs()? {
        match Link::connect(&address, deadline) {
            Ok(socket) => {
                let mut link = shared.keys.connect(name, socket)?;
                link.greet()?;
                return Ok(link);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}
