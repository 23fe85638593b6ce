//! Captures that an operator has asked for: from records in rings to a pcapng file.
//!
//! # Theory of operation
//! Each capture has a thread. It takes records from the capture's rings ([`crate::capture`]) in the order of their times, runs the filter over what was
//! captured of each frame, and hands chunks of a pcapng file to the [`CaptureSink`]. It looks again after [`SHORT`], and up to [`LONG`] while nothing comes: workers do not wake
//! it. It keeps off the cores that workers are pinned to, where the process may use others; where it may not, it has the lowest priority, so that a busy worker gives it a
//! sixtieth of the core, and copies are lost instead of other ports' turns.
//!
//! A port that is changed so that it has to connect again is another object with the same name: the thread looks every [`FOLLOW`] and sets the tap of the one that is there. Frames
//! in between are not seen. An uplink whose device fails stays what it is.
//!
//! It ends when it was asked to, when its time or number of frames is over, when its port is removed, when nobody listens any more, or when the switch stops. The last block says what
//! was seen and what was lost, and why it ended.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use floodway_wire::bpf::{Instruction, Program};
use floodway_wire::pcapng;

use super::excerpt;
use crate::api::capture::{
    CaptureList, CaptureRequest, CaptureStatus, MAX_CAPTURES, MIN_SNAP_LEN, SNAP_LEN, Stage,
};
use crate::api::control::ControlError;
use crate::api::events::EventKind;
use crate::capture::{Capture, Captures, Reader, Record, Tap, Watch};
use crate::events::Events;
use crate::host::affinity::Cores;
use crate::runtime::watchdog::spawn_critical;
use crate::state::port::Port;
use crate::state::shared::Shared;
use crate::state::uplink::Uplink;

/// Between two looks at the rings while records come.
const SHORT: Duration = Duration::from_millis(1);
/// The same while none come.
const LONG: Duration = Duration::from_millis(20);
/// Between two looks whether the port is still the same.
const FOLLOW: Duration = Duration::from_millis(100);
/// Bytes after which a chunk is handed on.
const CHUNK: usize = 256 << 10;
/// The lowest priority of an ordinary thread.
const NICEST: i32 = 19;
/// Longest filter expression that is written to the file.
const MAX_EXPRESSION: usize = 4096;

/// Who takes a capture.
pub trait CaptureSink: Send {
    /// Takes the next bytes of the file, and may wait. Returns `false` if nobody listens any more.
    fn send(&mut self, bytes: Vec<u8>) -> bool;

    /// Returns `true` if somebody listens.
    fn is_open(&self) -> bool;
}

/// What is captured.
enum Target {
    Port(Weak<Port>),
    Uplink(Weak<Uplink>),
}

impl Target {
    fn find(shared: &Shared, name: &str) -> Option<Self> {
        if let Some(port) = shared.ports().named(name) {
            return Some(Self::Port(Arc::downgrade(port)));
        }
        let uplinks = shared.uplinks();
        let uplink = uplinks.iter().find(|uplink| uplink.config.name == name);
        uplink.map(|uplink| Self::Uplink(Arc::downgrade(uplink)))
    }

    /// Calls `f` with its tap, if it is still there.
    fn with_tap(&self, f: impl FnOnce(&Tap)) {
        match self {
            Self::Port(port) => {
                if let Some(port) = port.upgrade() {
                    f(&port.tap);
                }
            }
            Self::Uplink(uplink) => {
                if let Some(uplink) = uplink.upgrade() {
                    f(uplink.tap());
                }
            }
        }
    }

    fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Port(a), Self::Port(b)) => a.ptr_eq(b),
            (Self::Uplink(a), Self::Uplink(b)) => a.ptr_eq(b),
            _ => false,
        }
    }

    const fn kind(&self) -> &'static str {
        match self {
            Self::Port(_) => "port of a virtual switch, as the switch sees it",
            Self::Uplink(_) => "uplink of a virtual switch, as the switch sees it",
        }
    }
}

/// Begins a capture for the user `uid`, whose file goes to `sink`. Returns its number.
///
/// # Errors
/// There is no such port or uplink, the request or its filter is not valid, or too many captures run.
pub(super) fn begin(
    shared: &Arc<Shared>,
    request: &CaptureRequest,
    uid: u32,
    sink: Box<dyn CaptureSink>,
) -> Result<u64, ControlError> {
    let target = Target::find(shared, &request.interface);
    let target = target.ok_or_else(|| unknown(shared, &request.interface))?;
    let program = check(request)?;
    let captures = Arc::clone(&shared.captures);
    let capture = captures.begin(&request.interface, uid, request.snap_len);
    let capture = capture.ok_or(ControlError::TooManyCaptures(MAX_CAPTURES))?;
    let id = capture.id;
    let port = request.interface.clone();
    shared.events.emit(EventKind::CaptureBegan { port, capture: id, uid });
    let since_start = Duration::from_nanos(shared.now().as_nanos());
    let wall = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let task = Task {
        switch_started_ns: wall.saturating_sub(since_start).as_nanos() as u64,
        started_ns: wall.as_nanos() as u64,
        started: Instant::now(),
        shared: Arc::downgrade(shared),
        events: Arc::clone(&shared.events),
        captures,
        capture: Arc::clone(&capture),
        target,
        request: request.clone(),
        program,
        sink,
    };
    let cores = Cores::spare(shared.workers.iter().filter_map(|worker| worker.core));
    let is_apart = cores.is_some();
    let run = move || {
        if !is_apart {
            give_way();
        }
        task.run();
    };
    let thread = spawn_critical(format!("capture-{id}"), run).map_err(|error| {
        capture.end("no thread is left");
        ControlError::Failed(format!("cannot start the thread of a capture: {error}"))
    })?;
    if let Some(error) = cores.and_then(|cores| cores.pin(&thread).err()) {
        tracing::debug!(%error, "a capture may share a core with a worker");
    }
    Ok(id)
}

/// Lets this thread have only what others leave of a core that it may share with a worker. What it does not get to in time is lost, and counted.
fn give_way() {
    if let Err(error) = rustix::process::setpriority_process(None, NICEST) {
        tracing::debug!(%error, "a capture competes with workers");
    }
}

/// Asks a capture to end.
///
/// # Errors
/// There is none with this number.
pub(super) fn end(shared: &Shared, id: u64) -> Result<CaptureStatus, ControlError> {
    let list = shared.captures.list();
    let capture = list.iter().find(|capture| capture.id == id);
    let capture = capture.ok_or(ControlError::UnknownCapture(id))?;
    capture.stop();
    Ok(capture.status())
}

pub(super) fn list(shared: &Shared) -> CaptureList {
    CaptureList { captures: shared.captures.list().iter().map(|c| c.status()).collect() }
}

/// There is no port or uplink called `name`.
pub(super) fn unknown(shared: &Shared, name: &str) -> ControlError {
    let ports = shared.ports();
    let ports = ports.iter().map(|port| port.config.name.clone());
    let uplinks = shared.uplinks();
    let uplinks = uplinks.iter().map(|uplink| uplink.config.name.clone());
    ControlError::UnknownInterface {
        name: excerpt(name),
        interfaces: uplinks.chain(ports).collect(),
    }
}

/// Checks a request. Returns its filter, if it has one.
fn check(request: &CaptureRequest) -> Result<Option<Program>, ControlError> {
    let invalid = |problem: String| Err(ControlError::Invalid(problem));
    if request.stages.is_empty() {
        let names = Stage::ALL.map(Stage::name).join(", ");
        return invalid(format!("stages: at least one of {names}"));
    }
    if !(MIN_SNAP_LEN..=SNAP_LEN).contains(&request.snap_len) {
        return invalid(format!(
            "snap_len = {}: must be {MIN_SNAP_LEN} to {SNAP_LEN}",
            request.snap_len
        ));
    }
    if request.expression.len() > MAX_EXPRESSION {
        return invalid(format!("expression: at most {MAX_EXPRESSION} bytes"));
    }
    if request.filter.is_empty() {
        return Ok(None);
    }
    let instruction = |&(code, jt, jf, k)| Instruction { code, jt, jf, k };
    let program: Vec<_> = request.filter.iter().map(instruction).collect();
    match Program::new(&program) {
        Ok(program) => Ok(Some(program)),
        Err(error) => invalid(error.to_string()),
    }
}

/// A capture at work.
struct Task {
    shared: Weak<Shared>,
    events: Arc<Events>,
    captures: Arc<Captures>,
    capture: Arc<Capture>,
    target: Target,
    request: CaptureRequest,
    program: Option<Program>,
    sink: Box<dyn CaptureSink>,
    /// The beginning of the records' time, in nanoseconds since 1970.
    switch_started_ns: u64,
    started_ns: u64,
    started: Instant,
}

impl Task {
    fn run(mut self) {
        let captures = Arc::clone(&self.captures);
        let rings = captures.rings(self.capture.slot);
        // Nobody else has them: the last capture let go of them before it ended.
        let mut readers: Vec<_> = rings.iter().filter_map(crate::capture::Ring::reader).collect();
        readers.iter_mut().for_each(discard);
        let lost = || rings.iter().map(crate::capture::Ring::lost).sum::<u64>();
        let lost_before = lost();
        let count_lost = move |capture: &Capture| capture.lost.store(lost() - lost_before, Relaxed);

        let mut file = self.header();
        self.set_tap();
        let reason = self.serve(&mut readers, &mut file, &count_lost);
        self.target.with_tap(|tap| tap.clear(&self.capture));
        while self.drain(&mut readers, &mut file) && self.sink.send(std::mem::take(&mut file)) {}
        count_lost(&self.capture);
        self.finish(file, reason);
        drop(readers);
        self.capture.end(reason);
    }

    /// Hands on what comes until something ends the capture, and returns what.
    fn serve(
        &mut self,
        readers: &mut [Reader<'_>],
        file: &mut Vec<u8>,
        count_lost: &dyn Fn(&Capture),
    ) -> &'static str {
        let (mut pause, mut looked) = (SHORT, Instant::now());
        loop {
            let came = self.drain(readers, file);
            count_lost(&self.capture);
            let is_open = match file.is_empty() {
                true => self.sink.is_open(),
                false => self.sink.send(std::mem::take(file)),
            };
            if let Some(reason) = self.over(is_open) {
                return reason;
            }
            if looked.elapsed() >= FOLLOW {
                looked = Instant::now();
                if let Some(reason) = self.follow() {
                    return reason;
                }
            }
            pause = if came { SHORT } else { LONG.min(2 * pause) };
            thread::sleep(pause);
        }
    }

    fn over(&self, is_open: bool) -> Option<&'static str> {
        let left = self.request.packets.map(|n| n.saturating_sub(self.captured()));
        let seconds = self.request.seconds;
        if !is_open {
            Some("nobody listens")
        } else if left == Some(0) {
            Some("all frames that were asked for")
        } else if seconds.is_some_and(|n| self.started.elapsed() >= Duration::from_secs(n)) {
            Some("the time that was asked for is over")
        } else {
            self.capture.is_stopped().then_some("ended by its user")
        }
    }

    /// Looks whether the port is another one now. Returns why the capture ends if there is none.
    fn follow(&mut self) -> Option<&'static str> {
        let Some(shared) = self.shared.upgrade() else { return Some("the switch stops") };
        match Target::find(&shared, &self.request.interface) {
            None => return Some("the port was removed"),
            Some(target) if !target.is_same(&self.target) => {
                self.target = target;
                self.set_tap();
            }
            Some(_) => {}
        }
        None
    }

    fn set_tap(&self) {
        let CaptureRequest { stages, drops, .. } = &self.request;
        self.target.with_tap(|tap| tap.set(&self.capture, stages, *drops));
    }

    fn captured(&self) -> u64 {
        self.capture.captured.load(Relaxed)
    }

    /// Takes records until the chunk is full. Returns `true` if there were any.
    fn drain(&self, readers: &mut [Reader<'_>], file: &mut Vec<u8>) -> bool {
        let mut any = false;
        let tag = Watch::tag(self.capture.id);
        while file.len() < CHUNK
            && let Some(reader) = oldest(readers)
        {
            any = true;
            if let Some(record) = reader.peek().map(Record::read).filter(|r| r.tag == tag) {
                self.capture.taken.fetch_add(1, Relaxed);
                self.take(&record, file);
            }
            reader.advance();
        }
        any
    }

    /// Writes a record, if it is wanted.
    fn take(&self, record: &Record<'_>, file: &mut Vec<u8>) {
        let Record { time, direction, original_len, comment, bytes, .. } = *record;
        let is_full = self.request.packets.is_some_and(|n| self.captured() >= n);
        let accepts = |program: &Program| program.accepts(bytes, original_len);
        if is_full || !self.program.as_ref().is_none_or(accepts) {
            return;
        }
        self.capture.captured.fetch_add(1, Relaxed);
        let time_ns = self.switch_started_ns + time;
        let packet =
            pcapng::Packet { interface: 0, time_ns, original_len, bytes, direction, comment };
        pcapng::packet(file, &packet);
    }

    fn header(&self) -> Vec<u8> {
        let mut file = Vec::with_capacity(CHUNK);
        pcapng::section_header(&mut file, concat!("floodway ", env!("CARGO_PKG_VERSION")));
        let interface = pcapng::Interface {
            name: &self.request.interface,
            description: self.target.kind(),
            snap_len: self.request.snap_len,
            filter: &self.request.expression,
        };
        pcapng::interface(&mut file, &interface);
        file
    }

    /// Writes what was seen and why it is over, as the last block.
    fn finish(&mut self, mut file: Vec<u8>, reason: &'static str) {
        let status = self.capture.status();
        let elapsed = self.started.elapsed().as_nanos() as u64;
        let statistics = pcapng::Statistics {
            interface: 0,
            start_ns: self.started_ns,
            end_ns: self.started_ns + elapsed,
            received: status.seen,
            dropped: status.lost,
            accepted: status.captured,
            delivered: status.captured,
            comment: reason,
        };
        pcapng::statistics(&mut file, &statistics);
        self.sink.send(file);
        let CaptureStatus { id, interface, captured, lost, .. } = status;
        let (port, reason) = (interface, reason.to_owned());
        let kind = EventKind::CaptureEnded { port, capture: id, frames: captured, lost, reason };
        self.events.emit(kind);
    }
}

/// The reader whose first record is the oldest.
fn oldest<'r, 'a>(readers: &'r mut [Reader<'a>]) -> Option<&'r mut Reader<'a>> {
    let time = |reader: &Reader<'_>| reader.peek().map(|bytes| Record::read(bytes).time);
    let first = readers.iter().enumerate().filter_map(|(i, r)| Some((time(r)?, i))).min();
    first.and_then(|(_, i)| readers.get_mut(i))
}

/// Lets go of what an earlier capture has left.
fn discard(reader: &mut Reader<'_>) {
    while reader.peek().is_some() {
        reader.advance();
    }
}
