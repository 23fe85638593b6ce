//! The lab's end of the port to a guest's agent: requests out, replies back to who asked.
//!
//! # Theory of operation
//!
//! The port is a Unix socket of QEMU. A reader thread finds the frames in what comes and hands each reply to
//! the call with its number. When the socket closes while the channel is wanted, every open call
//! fails, and the thread connects again, beginning with zeros that end whatever half frame the guest may be waiting for
//! (see [`floodway_guest::frame`]). Numbers are never reused, so a reply to a call that has given up
//! finds nobody and is dropped.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use floodway_guest::frame::{self, Decoder, Frame, RESYNC_BYTES};
use floodway_guest::protocol::{OutputStream, Reply, ReplyMessage, Request, RequestMessage};

/// Pause between attempts to connect.
const CONNECT_PAUSE: Duration = Duration::from_millis(50);
/// Longest wait for an answer; more would overflow the clock.
const FOREVER: Duration = Duration::from_secs(7 * 24 * 3600);
const READ_SIZE: usize = 64 * 1024;

/// What comes for one call.
type Event = Result<(Reply, Vec<u8>), String>;

/// A connection to one guest's agent. Calls may run on any number of threads at once.
#[derive(Debug)]
pub struct Channel {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    path: PathBuf,
    state: Mutex<State>,
    /// The writing side. Apart from `state`, as a write can wait for a busy guest.
    writer: Mutex<Option<UnixStream>>,
}

#[derive(Debug, Default)]
struct State {
    closed: bool,
    last_id: u64,
    /// For hanging up.
    socket: Option<UnixStream>,
    calls: BTreeMap<u64, Sender<Event>>,
}

/// The end of a call: the value and payload of [`Reply::Done`].
pub struct Done {
    /// Value, of the type that the request names.
    pub value: serde_json::Value,
    /// Payload.
    pub payload: Vec<u8>,
}

impl Channel {
    /// A channel to the socket at `path`, which may come to exist later.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn open(path: &Path) -> Result<Self> {
        let shared = Arc::new(Shared {
            path: path.to_owned(),
            state: Mutex::default(),
            writer: Mutex::default(),
        });
        let reader = Arc::clone(&shared);
        thread::Builder::new().name("agent".into()).spawn(move || reader.run())?;
        Ok(Self { shared })
    }

    /// Sends a request and waits for the end of its replies. Output goes to `output` as it comes.
    ///
    /// # Errors
    /// The agent's error; or the connection was lost, or `timeout` was over, before the end.
    pub fn call(
        &self,
        request: &Request,
        payload: &[u8],
        timeout: Duration,
        mut output: impl FnMut(OutputStream, &[u8]),
    ) -> Result<Done> {
        let deadline = Instant::now() + timeout.min(FOREVER);
        let call = self.shared.register()?;
        self.shared.send(call.id, request, payload, deadline)?;
        loop {
            match call.next(deadline)? {
                (Reply::Data { stream }, piece) => output(stream, &piece),
                (Reply::Done { value }, payload) => return Ok(Done { value, payload }),
                (Reply::Error { message }, _) => bail!("guest: {message}"),
                (Reply::Started, _) => bail!("guest: a start message where a reply was due"),
            }
        }
    }

    /// Drops the connection; the channel connects again by itself. Open calls fail.
    pub fn reconnect(&self) {
        self.shared.hang_up();
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        self.shared.state().closed = true;
        self.shared.hang_up();
    }
}

/// An open call; forgotten when dropped.
struct Call<'a> {
    shared: &'a Shared,
    id: u64,
    events: Receiver<Event>,
}

impl Call<'_> {
    fn next(&self, deadline: Instant) -> Result<(Reply, Vec<u8>)> {
        let left = deadline.saturating_duration_since(Instant::now());
        match self.events.recv_timeout(left) {
            Ok(event) => event.map_err(|error| anyhow!(error)),
            Err(RecvTimeoutError::Timeout) => bail!("the guest's agent did not answer in time"),
            Err(RecvTimeoutError::Disconnected) => bail!("the channel to the guest is closed"),
        }
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        self.shared.state().calls.remove(&self.id);
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn writer(&self) -> MutexGuard<'_, Option<UnixStream>> {
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn register(&self) -> Result<Call<'_>> {
        let (sender, events) = mpsc::channel();
        let mut state = self.state();
        state.last_id += 1;
        let id = state.last_id;
        state.calls.insert(id, sender);
        Ok(Call { shared: self, id, events })
    }

    fn send(&self, id: u64, request: &Request, payload: &[u8], deadline: Instant) -> Result<()> {
        let message = RequestMessage { id, request: request.clone() };
        let frame = frame::encode(&serde_json::to_vec(&message)?, payload)?;
        loop {
            if let Some(socket) = &mut *self.writer() {
                let left = deadline.saturating_duration_since(Instant::now());
                socket.set_write_timeout(Some(left.max(Duration::from_millis(1))))?;
                return socket.write_all(&frame).context("cannot write to the guest's agent");
            }
            if Instant::now() >= deadline {
                bail!("no connection to the guest's agent at {}", self.path.display());
            }
            thread::sleep(CONNECT_PAUSE);
        }
    }

    /// The reader thread: connects, reads, and connects again until the channel is closed.
    fn run(&self) {
        let mut first = true;
        while !self.state().closed {
            if let Ok(socket) = self.connect(first) {
                first = false;
                self.read(socket);
                self.state().socket = None;
                *self.writer() = None;
                self.fail_calls("the connection to the guest's agent was lost");
            }
            thread::sleep(CONNECT_PAUSE);
        }
    }

    fn connect(&self, first: bool) -> Result<UnixStream> {
        let mut socket = UnixStream::connect(&self.path)?;
        if !first {
            socket.write_all(&vec![0; RESYNC_BYTES])?;
        }
        let (to_write, to_hang_up) = (socket.try_clone()?, socket.try_clone()?);
        {
            let mut state = self.state();
            if state.closed {
                bail!("the channel was closed meanwhile");
            }
            state.socket = Some(to_hang_up);
        }
        *self.writer() = Some(to_write);
        Ok(socket)
    }

    fn read(&self, mut socket: UnixStream) {
        let mut decoder = Decoder::default();
        let mut buffer = vec![0; READ_SIZE];
        while let Ok(len @ 1..) = socket.read(&mut buffer) {
            decoder.push(&buffer[..len]);
            while let Some(frame) = decoder.next_frame() {
                self.deliver(frame);
            }
        }
    }

    fn deliver(&self, frame: Frame) {
        let Ok(message) = serde_json::from_slice::<ReplyMessage>(&frame.message) else {
            eprintln!("floodway-lab: the guest's agent sent what is not a reply");
            return;
        };
        if message.reply == Reply::Started {
            return self.agent_started();
        }
        if let Some(call) = self.state().calls.get(&message.id) {
            // A caller that has just given up does not mind.
            let _ = call.send(Ok((message.reply, frame.payload)));
        }
    }

    /// A new agent knows nothing of the calls that the old one had. The first one starts while
    /// the lab's first call waits for it in the port, so that one call stays.
    fn agent_started(&self) {
        let mut state = self.state();
        let first_call = state.calls.remove(&1);
        fail(&mut state, "the guest's agent has started again");
        state.calls.extend(first_call.map(|call| (1, call)));
    }

    fn fail_calls(&self, why: &str) {
        fail(&mut self.state(), why);
    }

    /// Ends the connection. A write that waits for the guest fails then, which is why this does not
    /// go through `writer`: the waiting call holds that.
    fn hang_up(&self) {
        if let Some(socket) = &self.state().socket {
            let _ = socket.shutdown(Shutdown::Both);
        }
    }
}

fn fail(state: &mut State, why: &str) {
    for (_, call) in std::mem::take(&mut state.calls) {
        let _ = call.send(Err(why.to_owned()));
    }
}
