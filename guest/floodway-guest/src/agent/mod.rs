//! The agent: serves the lab's requests, each on a thread of its own.
//!
//! Nothing that comes in ends it: bytes that are no frame are skipped, a message that is no request
//! gets an error reply (if it has a number), a handler that fails or even panics gets one too.

mod counters;
mod exec;
mod file;
mod hog;
mod jobs;
mod listeners;

use std::any::Any;
use std::fs::File;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use floodway_guest::frame::{self, Decoder, Frame};
use floodway_guest::protocol::{
    Clock, Hello, OutputStream, Reply, ReplyMessage, Request, RequestMessage, UNSOLICITED,
};
use floodway_guest::requests::Server;
use floodway_guest::transfer::{self, Sink};
use floodway_guest::{sockets, stream};
use rustix::system::{RebootCommand, reboot, uname};
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;
use serde_json::Value;

use crate::port;
use listeners::Listeners;

/// Most requests that are served at once.
const MAX_IN_FLIGHT: usize = 256;
/// Pause while the lab has its end of the port closed.
const CLOSED_PAUSE: Duration = Duration::from_millis(20);
const STACK: usize = 512 * 1024;
const READ_SIZE: usize = 64 * 1024;

/// Serves the port until it fails.
pub fn run() -> Result<()> {
    let port = port::open()?;
    let replies = Replies::new(port.try_clone().context("cannot clone the port")?);
    // An agent before this one may have been killed in the middle of a frame.
    replies.write(&vec![0; frame::RESYNC_BYTES]);
    replies.send(UNSOLICITED, Reply::Started, &[]);
    serve(port, &Arc::new(Agent { replies, ..Agent::default() }))
}

/// What requests share.
#[derive(Default)]
struct Agent {
    replies: Replies,
    in_flight: AtomicUsize,
    jobs: jobs::Jobs,
    hogs: hog::Hogs,
    streams: Listeners<Arc<TcpListener>>,
    sinks: Listeners<Sink>,
    servers: Listeners<Server>,
}

fn serve(mut port: File, agent: &Arc<Agent>) -> Result<()> {
    let mut decoder = Decoder::default();
    let mut buffer = vec![0; READ_SIZE];
    loop {
        let len = port.read(&mut buffer).context("cannot read the port")?;
        if len == 0 {
            // The lab has closed its end; what it says next starts a new frame.
            decoder.reset();
            thread::sleep(CLOSED_PAUSE);
            continue;
        }
        decoder.push(&buffer[..len]);
        while let Some(frame) = decoder.next_frame() {
            agent.accept(frame);
        }
    }
}

impl Agent {
    fn accept(self: &Arc<Self>, frame: Frame) {
        let message = match serde_json::from_slice::<RequestMessage>(&frame.message) {
            Ok(message) => message,
            Err(error) => {
                // The number may be readable even if the request is not.
                let value: Value = serde_json::from_slice(&frame.message).unwrap_or_default();
                let id = value.get("id").and_then(Value::as_u64).unwrap_or(UNSOLICITED);
                return self.replies.send_error(id, &format!("not a request: {error}"));
            }
        };
        let id = message.id;
        if self.in_flight.fetch_add(1, Ordering::Relaxed) >= MAX_IN_FLIGHT {
            self.in_flight.fetch_sub(1, Ordering::Relaxed);
            let text = format!("more than {MAX_IN_FLIGHT} requests at once; wait for replies");
            return self.replies.send_error(id, &text);
        }
        let agent = Arc::clone(self);
        let started = thread::Builder::new().stack_size(STACK).spawn(move || {
            agent.answer(message, &frame.payload);
            agent.in_flight.fetch_sub(1, Ordering::Relaxed);
        });
        if let Err(error) = started {
            self.in_flight.fetch_sub(1, Ordering::Relaxed);
            self.replies.send_error(id, &format!("cannot start a thread: {error}"));
        }
    }

    fn answer(&self, message: RequestMessage, payload: &[u8]) {
        let id = message.id;
        let handled = catch_unwind(AssertUnwindSafe(|| self.handle(id, message.request, payload)));
        match handled {
            Ok(Ok(done)) => self.replies.send(id, Reply::Done { value: done.value }, &done.payload),
            Ok(Err(error)) => self.replies.send_error(id, &format!("{error:#}")),
            Err(panic) => {
                self.replies.send_error(id, &format!("the agent failed: {}", text(&*panic)));
            }
        }
    }

    fn handle(&self, id: u64, request: Request, payload: &[u8]) -> Result<Done> {
        match request {
            Request::Hello => done(hello()?),
            Request::Exec { command, timeout_ms } => {
                let output = |stream, piece: &[u8]| self.replies.send_data(id, stream, piece);
                done(exec::run(&command, payload, Duration::from_millis(timeout_ms), output)?)
            }
            Request::Spawn { command } => done(self.jobs.spawn(&command)?),
            Request::Signal { job, signal } => done(self.jobs.signal(job, signal)?),
            Request::Wait { job, timeout_ms } => {
                done(self.jobs.wait(job, Duration::from_millis(timeout_ms))?)
            }
            Request::Write { path, offset, mode } => {
                done(file::write(&path, offset, mode, payload)?)
            }
            Request::Read { path, offset, len } => {
                Ok(Done { value: Value::Null, payload: file::read(&path, offset, len)? })
            }
            Request::Sha256 { path } => done(file::sha256(&path)?),
            Request::StreamListen { address } => done(self.streams.open(address)?),
            Request::StreamReceive { listener, timeout_ms } => {
                let listener = self.streams.with(listener, Arc::clone)?;
                done(stream::receive(&listener, Duration::from_millis(timeout_ms))?)
            }
            Request::StreamClose { listener } => done(self.streams.close(listener)?),
            Request::StreamSend { address, bytes, seed, timeout_ms } => {
                done(stream::send(address, bytes, seed, Duration::from_millis(timeout_ms))?)
            }
            Request::TransferSend(plan) => done(transfer::send(&plan)?),
            Request::TransferListen { address } => done(self.sinks.open(address)?),
            Request::TransferArrivals { listener } => done(self.sinks.with(listener, Sink::take)?),
            Request::TransferClose { listener } => done(self.sinks.close(listener)?),
            Request::SocketCalls(script) => done(sockets::run(&script)?),
            Request::RequestsServe { address } => done(self.servers.open(address)?),
            Request::RequestsClose { listener } => done(self.servers.close(listener)?),
            Request::HogStart(hog) => done(self.hogs.start(&hog)?),
            Request::HogStop => done(self.hogs.stop()?),
            Request::Counters => done(counters::read()?),
            Request::Clock => done(clock()),
            Request::Poweroff => self.power_off(id),
        }
    }

    /// Replies by itself, as nobody runs afterwards.
    fn power_off(&self, id: u64) -> Result<Done> {
        self.replies.send(id, Reply::Done { value: Value::Null }, &[]);
        // The reply is in the port's queue once the write returned; files are in memory, so there is
        // nothing to sync.
        reboot(RebootCommand::PowerOff).context("cannot power off")?;
        bail!("the machine goes on after power-off")
    }
}

/// What a request yields.
struct Done {
    value: Value,
    payload: Vec<u8>,
}

fn done(value: impl Serialize) -> Result<Done> {
    Ok(Done { value: serde_json::to_value(value)?, payload: Vec::new() })
}

fn text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("panic")
}

fn hello() -> Result<Hello> {
    Ok(Hello {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        kernel: uname().release().to_string_lossy().into_owned(),
        vcpus: thread::available_parallelism()?.get(),
        pid: std::process::id(),
    })
}

fn clock() -> Clock {
    let read = |id| {
        let time = clock_gettime(id);
        let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
        seconds * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0)
    };
    Clock { monotonic_ns: read(ClockId::Monotonic), realtime_ns: read(ClockId::Realtime) }
}

/// The port's writing side. One frame goes out whole before the next.
#[derive(Default)]
struct Replies {
    port: Option<Mutex<File>>,
}

impl Replies {
    fn new(port: File) -> Self {
        Self { port: Some(Mutex::new(port)) }
    }

    fn send_data(&self, id: u64, stream: OutputStream, piece: &[u8]) {
        self.send(id, Reply::Data { stream }, piece);
    }

    fn send_error(&self, id: u64, message: &str) {
        self.send(id, Reply::Error { message: message.to_owned() }, &[]);
    }

    fn send(&self, id: u64, reply: Reply, payload: &[u8]) {
        let encoded = serde_json::to_vec(&ReplyMessage { id, reply })
            .context("cannot encode a reply")
            .and_then(|message| Ok(frame::encode(&message, payload)?));
        match encoded {
            Ok(bytes) => self.write(&bytes),
            // Only a huge value or message gets here; the lab must hear of it all the same.
            Err(error) => self.send_error(id, &format!("{error:.200}")),
        }
    }

    fn write(&self, bytes: &[u8]) {
        let Some(port) = &self.port else { return };
        let mut port = port.lock().unwrap_or_else(PoisonError::into_inner);
        // With the lab's end closed this waits for it to open again.
        if let Err(error) = port.write_all(bytes) {
            eprintln!("agent: cannot write to the port: {error}");
        }
    }
}
