//! A port whose socket a broker holds: vhost-user messages come one at a time, with a number, and each is answered with all that it led to.
//!
//! # Theory of operation
//! The broker takes messages from the front-end's socket and keeps them until they are handled (`docs/src/theory/processes.md`). Here they are
//! written into one end of a local stream, whose other end is served like a front-end's socket (`Session`): the same parser, the same device. What the device
//! replies is read back and returned in `Handled`, with the changes of the broker's record (`record`).
//!
//! To a new data plane the record is replayed before anything else. Replies to that are thrown away: the front-end has had them.
//!
//! When the broker's end closes, the port's rings go on as they are. When another process is to go on with them, the thread ends between two messages, and
//! rings that run are left to whoever stops the workers.

mod record;

use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use floodway_process::allowance::{Allowance, thread_time};
use floodway_process::channel::{Channel, ChannelError, Received};
use floodway_process::fault::{self, Point};
use floodway_process::message::{FromPort, Handled, MAX_VHOST_MESSAGE, ToPort, shorten};
use floodway_process::peer::Peer;
use vmm_sys_util::eventfd::EventFd;
use vmm_sys_util::sock_ctrl_msg::ScmSocket;

use super::connection::{Connection, Session, Stop, TIDY, cut_off, on_connected, poll, quarantine};
use super::device::Device;
use super::messages::Verdict;
use crate::api::events::EventKind;
use crate::host::log_limit::log_limited;
use crate::host::socket_file::{SocketError, failed};
use crate::state::port::Port;
use crate::state::quarantine::Cause;
use crate::sync::lock;
use record::Keeper;

type PortChannel = Channel<FromPort, ToPort>;

/// Starts to serve `port`, whose socket a broker holds, through the broker's `channel`.
///
/// # Errors
/// There are no threads or descriptors left.
pub fn start(port: Arc<Port>, channel: OwnedFd) -> Result<Connection, SocketError> {
    let alarm = EventFd::new(libc::EFD_NONBLOCK).map(Arc::new).map_err(failed("watch it"))?;
    let device = Arc::new(Mutex::new(Device::new(Arc::clone(&port), Arc::clone(&alarm))));
    let channel = PortChannel::from(channel);
    port.offload.moving.wake_by(Arc::clone(&alarm));
    Connection::with_thread(Arc::clone(&port), move |stop| {
        let allowance = Allowance::new(Instant::now());
        Relay { port, device, alarm, stop, channel, front_end: None, allowance }.run();
    })
}

/// A port's thread; [`Relay::run`] is its body.
struct Relay {
    port: Arc<Port>,
    device: Arc<Mutex<Device>>,
    /// Signalled when memory of the front-end has gone, and when there are orders for a port whose guest moves.
    alarm: Arc<EventFd>,
    stop: Stop,
    channel: PortChannel,
    front_end: Option<FrontEnd>,
    /// What this thread may do for front-ends.
    allowance: Allowance,
}

/// A front-end, behind the broker.
struct FrontEnd {
    id: u32,
    device: Arc<Mutex<Device>>,
    session: Session,
    /// Where its messages go in and replies come out.
    feed: UnixStream,
    keeper: Keeper,
}

impl Relay {
    /// Serves the port until the switch stops, or the broker is gone.
    fn run(mut self) {
        loop {
            let fds =
                [self.stop.event.as_raw_fd(), self.alarm.as_raw_fd(), self.channel.as_raw_fd()];
            let outcome = match poll(&fds, self.due_in()) {
                // What the front-end has set up is what the next process is told by the broker.
                Some(0) if self.stop.is_hand_over() => return lock(&self.device).end_moves(),
                Some(0) => {
                    lock(&self.device).end_moves();
                    return self.disconnect();
                }
                Some(1) => self.on_alarm(),
                Some(_) => self.on_channel(),
                None => {
                    lock(&self.device).on_time();
                    Ok(())
                }
            };
            if let Err(error) = outcome {
                // Frames go on: nothing that they need is the broker's.
                lock(&self.device).go_on_alone();
                return log_limited!(error, self.port, %error, "the broker is gone");
            }
            self.pause();
        }
    }

    /// When something is to be done without anything to read.
    fn due_in(&self) -> Option<Duration> {
        let mut device = lock(&self.device);
        let tidy = device.drop_retired().then_some(TIDY);
        let until = |at: Instant| at.saturating_duration_since(Instant::now());
        let due = device.deadline().map(|at| until(at) + Duration::from_millis(1));
        tidy.into_iter().chain(due).min()
    }

    /// Waits if front-ends have had more done than they may, at most until memory goes.
    fn pause(&mut self) {
        let pause = self.allowance.pause(thread_time(), Instant::now());
        if !pause.is_zero() {
            let fds = [self.stop.event.as_raw_fd(), self.alarm.as_raw_fd()];
            poll(&fds, Some(pause.max(Duration::from_millis(1))));
        }
    }

    fn on_channel(&mut self) -> Result<(), ChannelError> {
        match self.channel.try_recv()? {
            Received::Nothing => Ok(()),
            Received::Closed => Err(ChannelError::System(rustix::io::Errno::PIPE)),
            Received::Message(ToPort::Connected { session, peer }, _) => {
                self.connect(session, peer)
            }
            Received::Message(ToPort::Attempts { count, problem }, _) => {
                let reason = problem.clone();
                let is_another = self.port.front_end.set_attempts(count, problem);
                if let (true, Some(reason)) = (is_another, reason) {
                    self.port.emit(|port| EventKind::PortUnreachable { port, reason });
                }
                Ok(())
            }
            Received::Message(ToPort::Quarantined { reason }, _) => {
                cut_off(&self.port, Cause::Crash, reason);
                Ok(())
            }
            Received::Message(ToPort::Disconnected { session }, _) => {
                if self.current(session).is_some() {
                    self.port.emit(|port| EventKind::PortDisconnected { port, reason: None });
                    self.disconnect();
                }
                Ok(())
            }
            Received::Message(ToPort::Replayed { session }, _) => match self.current(session) {
                Some(_) => {
                    self.port.take_addresses_back();
                    tracing::debug!(port = self.port.config.name, "the record was replayed");
                    self.channel.send(&FromPort::Resumed { session }, &[])?;
                    fault::pass(Point::ResumedSent);
                    Ok(())
                }
                None => Ok(()),
            },
            Received::Message(ToPort::Message { session, number, replayed, bytes }, files) => {
                let Some(front_end) = self.current(session) else { return Ok(()) };
                if !replayed {
                    fault::pass(Point::MessageReceived);
                }
                let handled = front_end.handle(number, &bytes, &files);
                if replayed {
                    fault::pass(Point::ReplayActed);
                    return Ok(());
                }
                fault::pass(Point::MessageActed);
                self.channel.send(&FromPort::Handled(handled), &[])?;
                fault::pass(Point::HandledSent);
                Ok(())
            }
        }
    }

    /// The front-end, if it is still the one that is meant.
    fn current(&mut self, session: u32) -> Option<&mut FrontEnd> {
        self.front_end.as_mut().filter(|front_end| front_end.id == session)
    }

    fn connect(&mut self, id: u32, peer: Option<Peer>) -> Result<(), ChannelError> {
        self.disconnect();
        self.allowance.connect();
        match self.open(id) {
            Ok(front_end) => {
                on_connected(&self.port, peer);
                self.front_end = Some(front_end);
                Ok(())
            }
            Err(error) => self.hang_up(id, &error.to_string()),
        }
    }

    fn open(&self, id: u32) -> io::Result<FrontEnd> {
        let (feed, served) = UnixStream::pair()?;
        feed.set_nonblocking(true)?;
        let session = Session::open(served, Arc::clone(&self.port), Arc::clone(&self.device))?;
        let keeper = Keeper::new(2 * self.port.pairs.len());
        Ok(FrontEnd { id, device: Arc::clone(&self.device), session, feed, keeper })
    }

    fn hang_up(&self, session: u32, reason: &str) -> Result<(), ChannelError> {
        self.channel.send(&FromPort::HangUp { session, reason: shorten(reason) }, &[])
    }

    /// There are orders, or memory of the front-end may have gone.
    fn on_alarm(&mut self) -> Result<(), ChannelError> {
        let lost = lock(&self.device).lost_memory();
        lock(&self.device).follow_orders();
        let Some(lost) = lost else { return Ok(()) };
        let id = self.front_end.as_ref().map(|front_end| front_end.id);
        self.disconnect();
        if let Some(id) = id {
            self.hang_up(id, lost.name())?;
        }
        let pause = quarantine(&self.port, lost);
        poll(&[self.stop.event.as_raw_fd()], Some(pause));
        Ok(())
    }

    /// Stops the rings and forgets the front-end.
    fn disconnect(&mut self) {
        if self.front_end.take().is_some() {
            lock(&self.device).disconnect();
        }
    }
}

impl FrontEnd {
    /// Lets the device act on a message; returns all that this has led to.
    fn handle(&mut self, number: u64, bytes: &[u8], files: &[OwnedFd]) -> Handled {
        let mut handled = Handled { session: self.id, number, ..Handled::default() };
        match self.act(bytes, files) {
            Ok((verdict, reply)) => {
                handled.reply = reply;
                handled.hang_up = verdict == Verdict::Over;
                if verdict == Verdict::Done {
                    let bases = |ring| lock(&self.device).base(ring);
                    handled.changes = self.keeper.changes(bytes, &bases);
                }
            }
            Err(error) => {
                tracing::debug!(%error, "a front-end's message cannot be served");
                handled.hang_up = true;
            }
        }
        handled
    }

    fn act(&mut self, bytes: &[u8], files: &[OwnedFd]) -> io::Result<(Verdict, Vec<u8>)> {
        let files: Vec<_> = files.iter().map(AsRawFd::as_raw_fd).collect();
        // One write takes all of it: the stream is empty.
        let sent = self.feed.send_with_fds(&[bytes], &files)?;
        if sent != bytes.len() {
            return Err(io::ErrorKind::WriteZero.into());
        }
        let verdict = self.session.handle()?;
        Ok((verdict, self.reply()?))
    }

    /// What the device has replied.
    fn reply(&mut self) -> io::Result<Vec<u8>> {
        let mut reply = vec![0; MAX_VHOST_MESSAGE];
        let n = match self.feed.read(&mut reply) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
            read => read?,
        };
        reply.truncate(n);
        Ok(reply)
    }
}
