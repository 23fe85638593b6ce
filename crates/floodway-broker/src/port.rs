//! A port's thread in the broker: its socket on one side, the data plane's channel on the other.
//!
//! # Theory of operation
//! The thread accepts or connects one front-end at a time, puts its messages together ([`framing`](crate::framing)) and passes them on one by one, as its
//! [session](crate::session) says. It waits for nothing for ever: a front-end may pause inside a message, and leave a reply unread, for [`MESSAGE`]; a data plane
//! that does not read for [`DELIVERY`] has failed.
//!
//! A new data plane is there when its end of a new channel has been [put into the mailbox](PortThread::attach). The old channel is read to its end first: what its
//! data plane had sent counts.
//!
//! A front-end of which data planes die is cut off, and its port stays without one [for a while](crate::quarantine).
//!
//! What the next broker would need is left in the [descriptor store](crate::store) at each step. The mark that a front-end is owed something comes before
//! whatever would let the next broker believe that the data plane has it: a new channel, a new connection, the first byte of a message.
//!
//! Whatever a front-end does costs this thread only: closing a descriptor that it serves itself may take for ever.

mod attempts;
mod kept;
mod mailbox;
mod presence;

use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use floodway_process::allowance::{Allowance, thread_time};
use floodway_process::channel::{Channel, ChannelError, Received};
use floodway_process::fault::{self, Point};
use floodway_process::message::{FromPort, ToPort, shorten};
use floodway_process::peer::Peer;
use rustix::io::Errno;

use crate::framing::{Framer, Progress};
use crate::quarantine::CutOffs;
use crate::record::{Limits, Packet, Record};
use crate::session::{Outcome, Outgoing, Session};
use crate::store::taken::TakenFrontEnd;
use attempts::{Attempts, connect, describe_problem, is_nobody};
use floodway_process::poll::{is_readable, wait_for};
use kept::Kept;
pub use kept::Past;
use mailbox::Mailbox;
use presence::Presence;

/// How long a front-end may pause inside a message, or leave a reply unread.
const MESSAGE: Duration = Duration::from_secs(10);
/// How long a data plane may leave a message unread.
const DELIVERY: Duration = Duration::from_secs(5);
/// How long a stop waits for a port's thread: it may be closing a file that its front-end serves.
const STUCK: Duration = Duration::from_secs(5);
/// Between two attempts to reach a front-end that listens.
const RECONNECT: Duration = Duration::from_millis(100);
/// Between two reports of attempts to the data plane.
const REPORT: Duration = Duration::from_secs(1);

/// The broker's end of a port's channel.
pub type PortChannel = Channel<ToPort, FromPort>;

/// Where front-ends come from.
#[derive(Debug)]
pub enum Source {
    /// They connect.
    Listen(UnixListener),
    /// They listen.
    Connect {
        /// Where.
        path: PathBuf,
        /// Says whose a path is, for somebody who may not connect to it.
        describe: fn(&Path) -> String,
    },
}

/// A data plane has broken the protocol on a port's channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortFault {
    /// The port.
    pub port: String,
    /// What it did.
    pub fault: String,
}

/// A port's thread. It ends when this is dropped.
#[derive(Debug)]
pub struct PortThread {
    mailbox: Arc<Mailbox>,
    presence: Arc<Presence>,
    thread: Option<JoinHandle<()>>,
}

impl PortThread {
    /// Starts to serve the port `name`, or goes on from where a broker of before was; what data planes do wrong goes to `faults`.
    ///
    /// # Errors
    /// There are no threads or descriptors left.
    pub fn start(
        name: &str,
        source: Source,
        limits: Limits,
        faults: Sender<PortFault>,
        past: Past,
    ) -> io::Result<Self> {
        let mailbox = Arc::new(Mailbox::new()?);
        if let Source::Listen(listener) = &source {
            listener.set_nonblocking(true)?;
        }
        let Past { kept, taken } = past;
        let front_end = taken
            .front_end
            .map(|front_end| FrontEnd::restore(front_end, limits, taken.channel.is_some()));
        let presence = Arc::new(Presence::default());
        if let Some(front_end) = &front_end {
            presence.restore(front_end);
        }
        let server = Server {
            presence: Arc::clone(&presence),
            name: name.to_owned(),
            source,
            limits,
            faults,
            mailbox: Arc::clone(&mailbox),
            channel: taken.channel,
            front_end,
            sessions: taken.sessions,
            retry: Instant::now(),
            attempts: Attempts::default(),
            cut_offs: CutOffs::default(),
            quarantine: None,
            allowance: Allowance::new(Instant::now()),
            is_leaving: false,
            kept,
        };
        let thread =
            thread::Builder::new().name(format!("port-{name}")).spawn(move || server.run())?;
        Ok(Self { mailbox, presence, thread: Some(thread) })
    }

    /// The front-end that is connected, if there is one: its number, and whether rings of its guest were ever started.
    #[must_use]
    pub fn front_end(&self) -> Option<(u32, bool)> {
        self.presence.get()
    }

    /// Hands the port to a new data plane, number `data_plane`, which has the other end of `channel`.
    pub fn attach(&self, channel: PortChannel, data_plane: u32) {
        self.mailbox.change(|letters| letters.channel = Some((channel, data_plane)));
    }

    /// Cuts off the front-end, of which data planes die.
    pub fn cut_off(&self, reason: String) {
        self.mailbox.change(|letters| letters.cut_off = Some(reason));
    }

    /// Lets the thread end when no front-end is owed anything. What it holds is in the store: another broker goes on with it.
    pub fn leave(&self) {
        self.mailbox.change(|letters| letters.leave = true);
    }

    /// Returns `true` once the thread has ended.
    #[must_use]
    pub fn has_left(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }
}

impl Drop for PortThread {
    fn drop(&mut self) {
        self.mailbox.change(|letters| letters.stop = true);
        let Some(thread) = self.thread.take() else { return };
        let deadline = Instant::now() + STUCK;
        while !thread.is_finished() {
            if Instant::now() >= deadline {
                return tracing::error!("a port's thread is stuck; it is left behind");
            }
            thread::sleep(Duration::from_millis(1));
        }
        if thread.join().is_err() {
            tracing::error!("a port's thread panicked");
        }
    }
}

/// A front-end that is connected.
struct FrontEnd {
    stream: UnixStream,
    framer: Framer,
    session: Session<Arc<OwnedFd>>,
    id: u32,
    peer: Option<Peer>,
    /// Until when the rest of a message has to come.
    deadline: Option<Instant>,
}

impl FrontEnd {
    /// One that a broker of before had; a data plane serves it, or the next one is to.
    fn restore(taken: TakenFrontEnd, limits: Limits, is_served: bool) -> Self {
        let TakenFrontEnd { stream, id, number, peer, entries } = taken;
        let record = Record::restore(limits, entries);
        let session = Session::restore(id, number, record, is_served).of_process(peer);
        let (stream, framer) = (UnixStream::from(stream), Framer::default());
        Self { stream, framer, session, id, peer, deadline: None }
    }
}

struct Server {
    presence: Arc<Presence>,
    name: String,
    source: Source,
    limits: Limits,
    faults: Sender<PortFault>,
    mailbox: Arc<Mailbox>,
    channel: Option<PortChannel>,
    front_end: Option<FrontEnd>,
    /// Front-ends so far.
    sessions: u32,
    /// When a front-end that listens is looked for next.
    retry: Instant,
    attempts: Attempts,
    cut_offs: CutOffs,
    /// Why the last front-end was cut off, until there is another one.
    quarantine: Option<String>,
    /// What this thread may do for front-ends.
    allowance: Allowance,
    /// Takes nothing new: it ends when no front-end is owed anything.
    is_leaving: bool,
    /// What of it the next broker would get.
    kept: Kept,
}

impl Server {
    fn run(mut self) {
        self.begin_anew();
        loop {
            if !self.settle() && self.is_leaving {
                return;
            }
            self.wait();
            let letters = self.mailbox.take();
            if letters.stop {
                return;
            }
            self.is_leaving |= letters.leave;
            self.hear();
            if let Some(reason) = letters.cut_off {
                self.cut_off(&reason);
            }
            if let Some((channel, data_plane)) = letters.channel {
                self.attach(channel, data_plane);
            }
            self.find_front_end();
            self.read_front_end();
            self.pause();
        }
    }

    /// Tells a data plane of before that the last front-end has gone, if it has.
    fn begin_anew(&mut self) {
        if self.front_end.is_none() && self.sessions > 0 {
            self.kept.no_front_end(self.sessions);
            self.send(&ToPort::Disconnected { session: self.sessions }.into());
        }
    }

    /// Takes note of whether the front-end is owed something, and returns that.
    fn settle(&mut self) -> bool {
        let owed = self.front_end.as_ref().is_some_and(|front_end| {
            front_end.session.is_unsettled() || front_end.framer.is_inside()
        });
        self.kept.set_busy(owed);
        owed
    }

    /// Returns `true` if the front-end's bytes are wanted.
    fn wants_bytes(&self, front_end: &FrontEnd) -> bool {
        front_end.session.is_ready() && (!self.is_leaving || front_end.framer.is_inside())
    }

    /// Waits if front-ends have had more done than they may, at most until there is another data plane.
    fn pause(&mut self) {
        let pause = self.allowance.pause(thread_time(), Instant::now());
        if !pause.is_zero() {
            wait_for(&[self.mailbox.bell.as_fd()], Some(pause));
        }
    }

    /// Waits until there is something to do.
    fn wait(&self) {
        let now = Instant::now();
        let ready = self.front_end.as_ref().filter(|front_end| self.wants_bytes(front_end));
        let listens = self.channel.is_some() && self.front_end.is_none() && !self.is_leaving;
        let pauses = listens && now < self.retry;
        let mut due = ready.and_then(|front_end| front_end.deadline);
        let mut fds = vec![self.mailbox.bell.as_fd()];
        fds.extend(self.channel.as_ref().map(AsFd::as_fd));
        fds.extend(ready.map(|front_end| front_end.stream.as_fd()));
        match &self.source {
            Source::Listen(listener) if listens && !pauses => fds.push(listener.as_fd()),
            _ if listens => due = Some(self.retry),
            _ => {}
        }
        let timeout = due.map(|due| due.saturating_duration_since(now));
        wait_for(&fds, timeout);
    }

    /// Takes over a data plane, and tells it what it has to know.
    fn attach(&mut self, channel: PortChannel, data_plane: u32) {
        self.lose_data_plane();
        if let Err(error) = channel.set_time_limit(Some(DELIVERY)) {
            tracing::error!(port = self.name, %error, "cannot limit how long a channel waits");
        }
        if self.front_end.is_some() {
            // Before the next broker can take the channel for one whose data plane has the record.
            self.kept.set_busy(true);
        }
        self.kept.channel(&channel, data_plane);
        fault::pass(Point::ChannelKept);
        self.channel = Some(channel);
        self.attempts.reported = None;
        self.report_quarantine();
        self.replay();
        self.report_attempts();
    }

    /// Closes the connection of a front-end of which data planes die, and lets in no other for a while.
    fn cut_off(&mut self, reason: &str) {
        let now = Instant::now();
        let pause = self.cut_offs.on_cut_off(now);
        tracing::warn!(port = self.name, reason, ?pause, "front-end cut off");
        self.front_end = None;
        self.presence.leave();
        self.kept.no_front_end(self.sessions);
        self.retry = self.retry.max(now + pause);
        self.quarantine = Some(match pause.as_secs() {
            0 => shorten(reason),
            seconds => shorten(&format!("{reason}; no other is let in for {seconds} s")),
        });
        self.report_quarantine();
    }

    fn report_quarantine(&mut self) {
        if let Some(reason) = self.quarantine.clone() {
            self.send(&ToPort::Quarantined { reason }.into());
        }
    }

    fn replay(&mut self) {
        let Some(front_end) = &mut self.front_end else { return };
        match front_end.session.attach() {
            Ok(replay) => {
                for outgoing in replay {
                    if !self.send(&outgoing) {
                        return;
                    }
                }
                fault::pass(Point::ReplaySent);
            }
            Err(suspect) => self.cut_off(&suspect.to_string()),
        }
    }

    /// Sends to the data plane; returns `false` if it does not take it. Then it has failed, or is gone.
    fn send(&mut self, outgoing: &Outgoing<Arc<OwnedFd>>) -> bool {
        let Some(channel) = &self.channel else { return false };
        let descriptors: Vec<BorrowedFd<'_>> =
            outgoing.descriptors.iter().map(AsFd::as_fd).collect();
        match channel.send(&outgoing.message, &descriptors) {
            Ok(()) => true,
            // It is gone. What it has sent before is still to be received.
            Err(ChannelError::System(Errno::PIPE)) => {
                self.on_undelivered();
                false
            }
            Err(error) => {
                self.on_undelivered();
                self.report(&error);
                false
            }
        }
    }

    fn on_undelivered(&mut self) {
        if let Some(front_end) = &mut self.front_end {
            front_end.session.on_undelivered();
        }
    }

    /// The data plane is to be ended.
    fn report(&mut self, fault: &impl ToString) {
        let fault = PortFault { port: self.name.clone(), fault: fault.to_string() };
        // Fails when the broker is stopping.
        let _ = self.faults.send(fault);
        self.lose_data_plane();
    }

    fn lose_data_plane(&mut self) {
        if self.channel.take().is_some()
            && let Some(front_end) = &mut self.front_end
        {
            front_end.session.detach();
        }
    }

    /// Receives all that the data plane has sent.
    fn hear(&mut self) {
        while let Some(channel) = &self.channel {
            match channel.try_recv() {
                Ok(Received::Message(message, _)) => self.on_message(message),
                Ok(Received::Nothing) => return,
                Ok(Received::Closed) => return self.lose_data_plane(),
                Err(error) => return self.report(&error),
            }
        }
    }

    fn on_message(&mut self, message: FromPort) {
        // Of a front-end that has gone.
        let Some(front_end) = &mut self.front_end else { return };
        let changes = match &message {
            FromPort::Handled(handled) => handled.changes.clone(),
            _ => Vec::new(),
        };
        match front_end.session.receive(message) {
            Err(fault) => self.report(&fault),
            Ok(Outcome { reply, hang_up, deliver }) => {
                fault::pass(Point::HandledReceived);
                let unread = front_end.stream.write_all(&reply).is_err();
                fault::pass(Point::ReplyWritten);
                if let Some(reason) = hang_up {
                    tracing::debug!(port = self.name, reason, "front-end cut off");
                    return self.hang_up();
                }
                if unread {
                    return self.hang_up();
                }
                self.kept.changes(&changes, front_end.session.record());
                fault::pass(Point::ChangesKept);
                self.kept.front_end(front_end);
                if let Some(outgoing) = deliver {
                    self.send(&outgoing);
                }
            }
        }
    }

    /// Closes the front-end's connection, and tells the data plane.
    fn hang_up(&mut self) {
        let Some(front_end) = self.front_end.take() else { return };
        self.presence.leave();
        self.kept.no_front_end(self.sessions);
        self.send(&ToPort::Disconnected { session: front_end.id }.into());
    }

    /// Takes a front-end, if there is none, and there is a data plane for it.
    fn find_front_end(&mut self) {
        if self.channel.is_none() || self.front_end.is_some() || self.is_leaving {
            return;
        }
        let now = Instant::now();
        if now < self.retry {
            return;
        }
        let found = match &self.source {
            Source::Listen(listener) => listener.accept().map(|(stream, _)| stream),
            Source::Connect { path, describe } => {
                self.attempts.count += 1;
                let connected = connect(path);
                let problem = connected.as_ref().err().filter(|error| !is_nobody(error));
                let problem = problem.map(|error| describe_problem(path, error, *describe));
                // Also after one that hangs up when it has accepted: it must not keep us busy.
                self.retry = now + self.attempts.next_pause(problem.is_some());
                self.note_problem(problem);
                connected
            }
        };
        match found.and_then(limit_writes) {
            Ok(stream) => self.begin(stream),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => {
                tracing::trace!(port = self.name, %error, "no front-end");
                self.retry = self.retry.max(now + RECONNECT);
                self.report_attempts();
            }
        }
    }

    /// Notes why no connection is possible, and says so once.
    fn note_problem(&mut self, problem: Option<String>) {
        if problem == self.attempts.problem {
            return;
        }
        if let Some(problem) = &problem {
            // The data plane tells operators.
            tracing::debug!(port = self.name, "{problem}");
        }
        self.attempts.problem = problem;
        self.attempts.reported = None;
    }

    /// Tells the data plane what was tried, once a second.
    fn report_attempts(&mut self) {
        let now = Instant::now();
        let recent = self.attempts.reported.is_some_and(|last| now - last < REPORT);
        if recent || self.front_end.is_some() || matches!(self.source, Source::Listen(_)) {
            return;
        }
        self.attempts.reported = Some(now);
        let Attempts { count, ref problem, .. } = self.attempts;
        self.send(&ToPort::Attempts { count, problem: problem.clone() }.into());
    }

    fn begin(&mut self, stream: UnixStream) {
        self.sessions += 1;
        let id = self.sessions;
        self.allowance.connect();
        self.quarantine = None;
        let peer = Peer::of(&stream).ok();
        let session = Session::new(id, self.limits).of_process(peer);
        let framer = Framer::default();
        let front_end = FrontEnd { stream, framer, session, id, peer, deadline: None };
        fault::pass(Point::FrontEndAccepted);
        // The data plane has not heard of it.
        self.kept.set_busy(true);
        self.kept.front_end(&front_end);
        self.front_end = Some(front_end);
        self.presence.begin(id);
        self.replay();
    }

    /// Passes the next message on, if it is there and the data plane can have it.
    fn read_front_end(&mut self) {
        let Some(front_end) = &self.front_end else { return };
        if !self.wants_bytes(front_end) || !is_readable(front_end.stream.as_fd()) {
            return;
        }
        let Some(front_end) = &mut self.front_end else { return };
        // Before the first byte is taken.
        self.kept.set_busy(true);
        match front_end.framer.read(&front_end.stream) {
            Ok(Progress::Message(Packet { bytes, descriptors })) => {
                front_end.deadline = None;
                fault::pass(Point::MessageTaken);
                self.presence.on_message(&bytes);
                let descriptors = descriptors.into_iter().map(Arc::new).collect();
                if let Some(outgoing) = front_end.session.take(Packet { bytes, descriptors }) {
                    self.send(&outgoing);
                    fault::pass(Point::MessageDelivered);
                }
            }
            Ok(Progress::Partial) if !front_end.framer.is_inside() => {}
            Ok(Progress::Partial) => {
                let deadline = *front_end.deadline.get_or_insert_with(|| Instant::now() + MESSAGE);
                if Instant::now() >= deadline {
                    self.hang_up();
                }
            }
            Ok(Progress::Closed) => self.hang_up(),
            Err(error) => {
                tracing::debug!(port = self.name, %error, "front-end cut off");
                self.hang_up();
            }
        }
    }
}

fn limit_writes(stream: UnixStream) -> io::Result<UnixStream> {
    stream.set_nonblocking(false)?;
    stream.set_write_timeout(Some(MESSAGE))?;
    Ok(stream)
}

#[cfg(test)]
mod tests;
