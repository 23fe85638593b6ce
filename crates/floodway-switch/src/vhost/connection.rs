//! A port's socket: one thread that serves one front-end after the other.
//!
//! In client mode nobody may be listening yet, which is no error: the port tries again soon. Anything else that keeps it from
//! connecting (rights above all) stays until an operator mends it. It is logged once, with the path, the user and the rights that are in
//! the way, and tried again after pauses that double up to [`MAX_RECONNECT`].

use std::cell::{Cell, RefCell};
use std::io;
use std::net::Shutdown;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use floodway_process::allowance::{Allowance, thread_time};
use rustix::process::geteuid;
use vhost::vhost_user::{BackendReqHandler, Error};
use vmm_sys_util::eventfd::EventFd;

use super::arrival::{self, Arrival};
use super::device::Device;
use super::messages::{self, Verdict};
use crate::api::events::EventKind;
use crate::config::{PortConfig, SocketMode};
use crate::host::affinity::Cores;
use crate::host::log_limit::log_limited;
use crate::host::socket_access::{self, Access};
use crate::host::socket_file::{self, SocketError, SocketFile, failed};
use crate::memory::sigbus::Kind;
use crate::state::front_end::Peer;
use crate::state::port::Port;
use crate::state::quarantine::Cause;
use crate::sync::lock;

/// How long a client waits before it tries to reach its front-end again.
const RECONNECT: Duration = Duration::from_millis(100);
/// How long it waits at most while something other than an absent front-end is in the way.
const MAX_RECONNECT: Duration = Duration::from_secs(5);
/// How long a port stays without a front-end after the memory of the last one has gone: a front-end that does it again and again
/// costs workers a few faults a second.
const QUARANTINE: Duration = Duration::from_secs(1);
/// How long a front-end may pause inside a message, or leave an answer unread.
const MESSAGE: Duration = Duration::from_secs(10);

/// How often the rest of a header is looked for.
const PARTIAL: Duration = Duration::from_millis(10);
/// How often a port's thread looks whether workers have let go of memory.
pub(super) const TIDY: Duration = Duration::from_millis(20);
/// How long a stop waits for a port's thread.
const STUCK: Duration = Duration::from_secs(5);

/// How a port's thread is asked to end.
#[derive(Clone)]
pub(super) struct Stop {
    /// Readable for good from then on.
    pub(super) event: Arc<EventFd>,
    /// Another process goes on with the front-end: what it has set up stays as it is.
    is_hand_over: Arc<AtomicBool>,
}

impl Stop {
    fn new() -> Result<Self, SocketError> {
        let event = EventFd::new(libc::EFD_NONBLOCK).map(Arc::new).map_err(failed("watch it"))?;
        Ok(Self { event, is_hand_over: Arc::default() })
    }

    /// Returns `true` if another process goes on with the front-end.
    pub(super) fn is_hand_over(&self) -> bool {
        self.is_hand_over.load(Ordering::Acquire)
    }
}

/// A port's socket thread.
pub struct Connection {
    port: Arc<Port>,
    stop: Stop,
    current: Arc<Current>,
    thread: Option<JoinHandle<()>>,
    /// Hung up when the thread ends.
    ended: Receiver<()>,
    /// A server's socket, removed at last.
    _file: Option<SocketFile>,
}

/// The stream being served, so that a front-end that stops in mid-message cannot hold up a stop.
type Current = Mutex<Option<UnixStream>>;

impl Connection {
    /// Starts to serve `port`. A server socket is bound before this returns.
    ///
    /// # Errors
    /// The socket cannot be had, or no thread.
    pub fn start(port: Arc<Port>) -> Result<Self, SocketError> {
        let stop = Stop::new()?;
        let alarm = EventFd::new(libc::EFD_NONBLOCK).map(Arc::new).map_err(failed("watch it"))?;
        let (listener, file) = match port.config.mode {
            SocketMode::Server => listen(&port.config).map(|(l, f)| (Some(l), Some(f)))?,
            SocketMode::Client => (None, None),
        };
        let current = Arc::new(Current::default());
        let server = Server {
            current: Arc::clone(&current),
            device: Arc::new(Mutex::new(Device::new(Arc::clone(&port), Arc::clone(&alarm)))),
            port: Arc::clone(&port),
            alarm,
            stop: Arc::clone(&stop.event),
            last_try: Cell::new(None),
            allowance: RefCell::new(Allowance::new(Instant::now())),
            backoff: Cell::new(RECONNECT),
        };
        let (thread, ended) = spawn(&port, move || server.run(listener.as_ref()))?;
        Ok(Self { port, stop, current, thread: Some(thread), ended, _file: file })
    }

    /// A connection whose thread runs `body`, which ends soon after it is asked to. It serves `port` in another way than
    /// by its socket.
    ///
    /// # Errors
    /// There are no threads or descriptors left.
    pub(super) fn with_thread(
        port: Arc<Port>,
        body: impl FnOnce(Stop) + Send + 'static,
    ) -> Result<Self, SocketError> {
        let stop = Stop::new()?;
        let stopped = stop.clone();
        let (thread, ended) = spawn(&port, move || body(stopped))?;
        let current = Arc::default();
        Ok(Self { port, stop, current, thread: Some(thread), ended, _file: None })
    }

    /// Keeps the thread to the cores of `spare` if there are such: front-ends take no time from workers then.
    pub(crate) fn keep_to(&self, spare: Option<Cores>) {
        let pinned = spare.zip(self.thread.as_ref()).map(|(cores, thread)| cores.pin(thread));
        if let Some(Err(error)) = pinned {
            let port = &self.port.config.name;
            tracing::warn!(port, %error, "the port's socket thread may run on a worker's core");
        }
    }

    /// Asks the thread to end and to leave everything as it is, for another process to go on with.
    pub(crate) fn begin_hand_over(&self) {
        self.stop.is_hand_over.store(true, Ordering::Release);
        // Cannot fail: few write, and that does not fill an eventfd.
        let _ = self.stop.event.write(1);
    }

    /// Ends the connection and the thread, and removes a server's socket.
    pub fn stop(mut self) {
        // As above.
        let _ = self.stop.event.write(1);
        if let Some(stream) = &*lock(&self.current) {
            // Fails when the front-end has hung up already.
            let _ = stream.shutdown(Shutdown::Both);
        }
        let Some(thread) = self.thread.take() else { return };
        let name = &self.port.config.name;
        // It may be closing a file of a file system that the front-end serves, and the front-end may not let it.
        if self.ended.recv_timeout(STUCK) == Err(RecvTimeoutError::Timeout) {
            tracing::error!(port = name, "the port's socket thread is stuck; it is left behind");
        } else if thread.join().is_err() {
            tracing::error!(port = name, "the port's socket thread panicked");
        }
    }
}

/// Starts the thread of `port`, and returns what is hung up when it ends.
fn spawn(
    port: &Port,
    body: impl FnOnce() + Send + 'static,
) -> Result<(JoinHandle<()>, Receiver<()>), SocketError> {
    let (alive, ended) = mpsc::channel::<()>();
    let thread = thread::Builder::new().name(format!("vhost-{}", port.config.name));
    let thread = thread.spawn(move || {
        let _alive = alive;
        body();
    });
    Ok((thread.map_err(failed("start its thread"))?, ended))
}

/// Listens on the port's socket, whose directory is made if it is missing.
fn listen(port: &PortConfig) -> Result<(UnixListener, SocketFile), SocketError> {
    if let Some(directory) = port.socket.parent() {
        std::fs::create_dir_all(directory).map_err(failed("make its directory"))?;
    }
    socket_file::listen(&port.socket, Access::resolve(&port.permissions)?)
}

struct Server {
    device: Arc<Mutex<Device>>,
    port: Arc<Port>,
    /// Signalled when memory of the front-end has gone.
    alarm: Arc<EventFd>,
    stop: Arc<EventFd>,
    current: Arc<Current>,
    /// When a client last tried to connect.
    last_try: Cell<Option<Instant>>,
    /// What this thread may do for front-ends.
    allowance: RefCell<Allowance>,
    /// How long it waits before it tries again.
    backoff: Cell<Duration>,
}

impl Server {
    fn run(&self, listener: Option<&UnixListener>) {
        while !self.stopped() {
            self.pause();
            let stream = match listener {
                Some(listener) => self.accept(listener),
                None => Ok(self.connect()),
            };
            match stream {
                Ok(Some(stream)) => {
                    on_connected(&self.port, Peer::of(&stream).ok());
                    self.allowance.borrow_mut().connect();
                    if let Err(error) = self.serve(stream) {
                        self.port.front_end.note_error(&error);
                        let reason = Some(format!("its socket failed: {error}"));
                        self.port.emit(|port| EventKind::PortDisconnected { port, reason });
                    }
                    *lock(&self.current) = None;
                    self.disconnect();
                }
                Ok(None) => {}
                Err(error) => {
                    log_limited!(warn, self.port, %error, "socket failed; trying again");
                    self.wait(None, RECONNECT);
                }
            }
        }
    }

    /// Stops the rings and forgets the front-end, for a while if its memory has gone.
    fn disconnect(&self) {
        let mut device = lock(&self.device);
        let lost = device.lost_memory();
        device.disconnect();
        drop(device);
        if let Some(lost) = lost {
            self.wait(None, quarantine(&self.port, lost));
        }
    }

    /// Unmaps memory that is not needed any more; returns when to do so again, if there is more.
    fn tidy(&self) -> Option<Duration> {
        lock(&self.device).drop_retired().then_some(TIDY)
    }

    fn stopped(&self) -> bool {
        // Never drained, so it stays readable for every later look.
        poll(&[self.stop.as_raw_fd()], Some(Duration::ZERO)).is_some()
    }

    /// Waits until `fd` is readable, the switch stops, or the time is over.
    fn wait(&self, fd: Option<RawFd>, timeout: Duration) {
        poll(&[self.stop.as_raw_fd(), fd.unwrap_or(-1)], Some(timeout));
    }

    /// Waits if front-ends have had more done than they may, at most until memory goes.
    fn pause(&self) {
        let pause = self.allowance.borrow_mut().pause(thread_time(), Instant::now());
        if !pause.is_zero() {
            self.wait(Some(self.alarm.as_raw_fd()), pause.max(Duration::from_millis(1)));
        }
    }

    fn accept(&self, listener: &UnixListener) -> io::Result<Option<UnixStream>> {
        poll(&[self.stop.as_raw_fd(), listener.as_raw_fd()], self.tidy());
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(false)?;
                Ok(Some(stream))
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(e) => Err(e),
        }
    }

    fn connect(&self) -> Option<UnixStream> {
        use io::ErrorKind::{ConnectionRefused, NotFound, WouldBlock};
        // Not at once after the last connection: a front-end that hangs up when it has accepted
        // must not keep us busy.
        self.tidy();
        self.wait(None, self.reconnect_in());
        self.last_try.set(Some(Instant::now()));
        self.port.front_end.on_attempt();
        match socket_file::connect(&self.port.config.socket) {
            Ok(stream) => {
                self.backoff.set(RECONNECT);
                Some(stream)
            }
            // No VM yet, or not any more, or one that does not accept.
            Err(e) if matches!(e.kind(), NotFound | ConnectionRefused | WouldBlock) => {
                self.backoff.set(RECONNECT);
                self.port.front_end.set_connect_problem(None);
                None
            }
            Err(e) => {
                self.on_connect_error(&e);
                None
            }
        }
    }

    fn on_connect_error(&self, error: &io::Error) {
        self.backoff.set((2 * self.backoff.get()).min(MAX_RECONNECT));
        let path = &self.port.config.socket;
        let uid = geteuid().as_raw();
        let found = socket_access::describe(path);
        let problem =
            format!("cannot connect to {} as uid {uid}: {error}; {found}", path.display());
        if self.port.front_end.set_connect_problem(Some(problem.clone())) {
            self.port.emit(|port| EventKind::PortUnreachable { port, reason: problem });
        }
    }

    fn reconnect_in(&self) -> Duration {
        let since = self.last_try.get().map_or(Duration::MAX, |last| last.elapsed());
        self.backoff.get().saturating_sub(since)
    }

    /// Handles messages until the front-end is gone or says something that cannot be understood.
    fn serve(&self, stream: UnixStream) -> io::Result<()> {
        *lock(&self.current) = Some(stream.try_clone()?);
        let mut session = Session::open(stream, Arc::clone(&self.port), Arc::clone(&self.device))?;
        let mut paused = None;
        loop {
            let fds = [self.stop.as_raw_fd(), self.alarm.as_raw_fd(), session.stream.as_raw_fd()];
            match poll(&fds, self.tidy()) {
                None => continue,
                Some(0) => return Ok(()),
                Some(1) if lock(&self.device).lost_memory().is_some() => return Ok(()),
                Some(1) => continue,
                _ => {}
            }
            if !session.has_header()? {
                if paused.get_or_insert_with(Instant::now).elapsed() > MESSAGE {
                    return Err(io::ErrorKind::TimedOut.into());
                }
                poll(&fds[..2], Some(PARTIAL));
                continue;
            }
            paused = None;
            if !session.handle_message()? {
                return Ok(());
            }
            self.pause();
        }
    }
}

/// Notes that a front-end of `port` has connected.
pub(super) fn on_connected(port: &Port, peer: Option<Peer>) {
    lock(&port.quarantine).end();
    port.front_end.on_connected(peer);
    port.set_connected(true);
    port.emit(|port| EventKind::PortConnected { port, pid: peer.map(|peer| peer.pid) });
}

/// Notes that a front-end of `port` was cut off because `lost` has gone; returns for how long the port stays without one.
pub(super) fn quarantine(port: &Port, lost: Kind) -> Duration {
    let reason =
        format!("its {} has gone: the file has shrunk, or its file system is full", lost.name());
    cut_off(port, Cause::Memory(lost), reason);
    QUARANTINE
}

/// Notes that a front-end of `port` was cut off.
pub(super) fn cut_off(port: &Port, cause: Cause, reason: String) {
    lock(&port.quarantine).begin(cause, reason.clone());
    let cause = cause.label().to_owned();
    port.emit(|port| EventKind::PortQuarantined { port, cause, reason });
}

/// A connected front-end: its messages, one after the other, against its port's device.
pub(crate) struct Session {
    stream: UnixStream,
    handler: BackendReqHandler<Mutex<Device>>,
    port: Arc<Port>,
    device: Arc<Mutex<Device>>,
}

impl Session {
    /// Serves `stream`, on which nothing has been read yet.
    ///
    /// # Errors
    /// The system refuses time limits, or another descriptor of the stream.
    pub(crate) fn open(
        stream: UnixStream,
        port: Arc<Port>,
        device: Arc<Mutex<Device>>,
    ) -> io::Result<Self> {
        stream.set_read_timeout(Some(MESSAGE))?;
        stream.set_write_timeout(Some(MESSAGE))?;
        let handler = BackendReqHandler::from_stream(stream.try_clone()?, Arc::clone(&device));
        Ok(Self { stream, handler, port, device })
    }

    /// Returns `true` if the header of the next message can be read without waiting, or the front-end is gone.
    ///
    /// # Errors
    /// The socket failed, or the message has more descriptors than can be taken.
    pub(crate) fn has_header(&self) -> io::Result<bool> {
        match arrival::look(&self.stream)? {
            Arrival::Readable => Ok(true),
            Arrival::Partial => Ok(false),
            Arrival::TooManyDescriptors => {
                Err(io::Error::other("a message came with more descriptors than can be taken"))
            }
        }
    }

    /// Takes the next message from the stream, waiting for it if need be, and does what it asks for. Returns `false` if the front-end
    /// is gone, or has sent something that cannot be understood.
    ///
    /// # Errors
    /// The socket failed, or the front-end paused inside the message for longer than [`MESSAGE`].
    pub(crate) fn handle_message(&mut self) -> io::Result<bool> {
        Ok(self.handle()? != Verdict::Over)
    }

    /// As [`Session::handle_message`], and says what became of the message.
    ///
    /// # Errors
    /// As there.
    pub(super) fn handle(&mut self) -> io::Result<Verdict> {
        let errors = self.port.front_end.errors();
        let verdict = self.handle_request(errors);
        lock(&self.device).publish();
        verdict
    }

    fn handle_request(&mut self, errors: u64) -> io::Result<Verdict> {
        if let Some(verdict) = messages::handle(&mut self.stream, &mut lock(&self.device))? {
            return Ok(verdict);
        }
        let note = |error: &Error| self.port.front_end.note_error_since(errors, error);
        match self.handler.handle_request() {
            Ok(()) => Ok(Verdict::Done),
            Err(Error::Disconnected | Error::SocketBroken(_)) => {
                self.port.emit(|port| EventKind::PortDisconnected { port, reason: None });
                Ok(Verdict::Over)
            }
            Err(
                error @ (Error::InvalidParam
                | Error::InvalidOperation(_)
                | Error::InactiveFeature(_)
                | Error::InactiveOperation(_)
                | Error::ReqHandlerError(_)),
            ) => {
                note(&error);
                let reason = error.to_string();
                self.port.emit(|port| EventKind::PortRefused { port, reason });
                Ok(Verdict::Refused)
            }
            Err(error) => {
                note(&error);
                let reason = Some(format!("vhost-user protocol error: {error}"));
                self.port.emit(|port| EventKind::PortDisconnected { port, reason });
                Ok(Verdict::Over)
            }
        }
    }
}

/// The index of the first descriptor that is readable or hung up, or `None` after `timeout`.
pub(super) fn poll(fds: &[RawFd], timeout: Option<Duration>) -> Option<usize> {
    let mut polled: Vec<_> =
        fds.iter().map(|&fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 }).collect();
    let timeout = timeout.map_or(-1, |t| i32::try_from(t.as_millis()).unwrap_or(i32::MAX));
    // SAFETY: the pointer and the count describe `polled`.
    let n = unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, timeout) };
    if n <= 0 { None } else { polled.iter().position(|p| p.revents != 0) }
}
