//! Captures: copies of frames for an operator who looks at a port or an uplink.
//!
//! # Theory of operation
//! **Goal**: an operator sees in Wireshark or tcpdump what a port or an uplink takes, gives, drops and why, while guests are served as before. A switch that
//! captures nothing pays nothing for it, and one that does loses copies rather than frames.
//!
//! ```text
//!  worker 0 ── record ──▶ ring ─┐
//!  worker 1 ── record ──▶ ring ─┼─▶ reader thread: order, filter, pcapng ──▶ who has asked
//!  others   ── record ──▶ ring ─┘   (operator::capture)
//! ```
//!
//! **Taps.** Every port and uplink has a [`Tap`]: one word that says which captures want what of it. It is zero nearly always. The packet path loads
//! it once for a batch and place, and calls what is here only if a stage is wanted:
//!
//! | stage | frames | where |
//! |---|---|---|
//! | in | from the guest or the device, dropped ones with their reason | at the end of the batch, when the reasons are known |
//! | out | to the port's receive queue, dropped ones with their reason; to the device | under the lock of the queue, which is held anyway |
//! | offload | shown to the TCP offload, with its verdict and the flow's state; sent and delivered by it | in the session |
//!
//! **Rings.** Each capture has a [`Ring`] for every worker, and one for all other threads. A worker is the only producer of its rings, so it never waits
//! for anybody: a record is copied, published by one store, and if there is no room or the ring is in use it is counted as lost. No system call is made;
//! the reader looks again every so often. What of a frame is copied is bounded by the capture's snap length. The copy is charged to the port that is
//! captured, so that it does not take others' turns.
//!
//! **Who reads** is a thread of its own for each capture, at most [`MAX_CAPTURES`] of them. It takes records in the order of their
//! times, runs the filter (checked by [`floodway_wire::bpf`]), and writes pcapng. If whoever has asked does not take it, this thread waits, rings fill up, and records are lost.
//!
//! **Life of a record.** A worker may have looked at a tap just before its capture ended, and write afterwards. Rings are therefore never freed while the switch
//! runs, and used again by the next capture with the same slot; every record bears a tag of the capture that the tap named, and the reader leaves out
//! those of others. A slot costs nothing before its first capture, and then [`RING_BYTES`] for each worker, as far as they are written to.
//!
//! **Invariants**: every frame that a capture is to see is in a ring or counted as lost; a worker does a bounded number of steps for each; a record is read by its own
//! capture or not at all.

mod record;
pub(crate) mod ring;
mod tap;

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use floodway_core::offload::FlowSummary;
use floodway_core::time::Instant;
use floodway_wire::pcapng::Direction;

use crate::api::capture::{CaptureStatus, MAX_CAPTURES, Stage};
use crate::frame::Frame;
use crate::stats::DropReason;
use crate::sync::lock;

pub use record::Record;
pub use ring::{Reader, Ring};
pub use tap::{Tap, Watch};

/// Size of a worker's ring: 3 ms of frames at 10 Gbit/s.
pub const RING_BYTES: usize = 4 << 20;
/// Size of the ring of all other threads.
const OTHERS_BYTES: usize = 256 << 10;

thread_local! {
    /// Number of the worker that this thread is.
    static LANE: Cell<usize> = const { Cell::new(usize::MAX) };
}

/// Makes this thread the only one that writes to the rings of worker `index`.
pub fn set_worker(index: usize) {
    LANE.set(index);
}

/// What is known of a frame where it is seen.
#[derive(Clone, Copy)]
pub struct Seen<'a> {
    /// The frame.
    pub frame: &'a Frame<'a>,
    /// Which way it goes, as the port or uplink sees it.
    pub direction: Direction,
    /// Why it is dropped, if it is.
    pub drop: Option<DropReason>,
    /// What the offload does with it; nothing if that was not asked.
    pub verdict: &'static str,
    /// Its flow, if the offload has one.
    pub flow: Option<&'a FlowSummary>,
}

impl<'a> Seen<'a> {
    /// A frame that goes `direction`, and perhaps no farther.
    #[must_use]
    pub const fn new(frame: &'a Frame<'a>, direction: Direction, drop: Option<DropReason>) -> Self {
        Self { frame, direction, drop, verdict: "", flow: None }
    }
}

/// Rings and settings of one capture at a time.
#[derive(Default)]
struct Slot {
    /// One for each worker, and the last for all other threads.
    rings: OnceLock<Box<[Ring]>>,
    snap_len: AtomicU32,
}

/// All captures of a switch.
pub struct Captures {
    slots: [Slot; MAX_CAPTURES],
    workers: usize,
    claims: Mutex<Claims>,
}

#[derive(Default)]
struct Claims {
    last_id: u64,
    entries: [Option<Arc<Capture>>; MAX_CAPTURES],
}

/// One capture, as those see it who begin, end and list captures.
pub struct Capture {
    /// Its number.
    pub id: u64,
    /// Which slot it has.
    pub slot: usize,
    /// Name of the port or uplink.
    pub interface: String,
    /// User who has asked for it.
    pub uid: u32,
    /// It is to end.
    stop: AtomicBool,
    ended: OnceLock<String>,
    /// Records that were taken from the rings.
    pub taken: AtomicU64,
    /// Records for which there was no room.
    pub lost: AtomicU64,
    /// Records that were accepted and sent.
    pub captured: AtomicU64,
}

impl Capture {
    /// Asks it to end.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Returns `true` if it was asked to end.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// It has ended, for this reason: another one may have its slot.
    pub fn end(&self, reason: &str) {
        // Said once, by its reader.
        let _ = self.ended.set(reason.to_owned());
    }

    fn is_running(&self) -> bool {
        self.ended.get().is_none()
    }

    /// What it has done.
    #[must_use]
    pub fn status(&self) -> CaptureStatus {
        let lost = self.lost.load(Ordering::Relaxed);
        CaptureStatus {
            id: self.id,
            interface: self.interface.clone(),
            uid: self.uid,
            running: self.is_running(),
            end: self.ended.get().cloned().unwrap_or_default(),
            seen: self.taken.load(Ordering::Relaxed) + lost,
            lost,
            captured: self.captured.load(Ordering::Relaxed),
        }
    }
}

impl Captures {
    /// No captures, for a switch with so many workers.
    #[must_use]
    pub fn new(workers: usize) -> Self {
        Self { slots: Default::default(), workers, claims: Mutex::default() }
    }

    /// Begins a capture, and makes its rings if they are not there. `None` if there are too many. It sees nothing before a [`Tap`] names it.
    #[must_use]
    pub fn begin(&self, interface: &str, uid: u32, snap_len: u32) -> Option<Arc<Capture>> {
        let mut claims = lock(&self.claims);
        let free = |entry: &Option<Arc<Capture>>| entry.as_ref().is_none_or(|c| !c.is_running());
        let age = |&(_, entry): &(usize, &Option<Arc<Capture>>)| entry.as_ref().map(|c| c.id);
        let entries = claims.entries.iter().enumerate();
        let (slot, _) = entries.filter(|(_, entry)| free(entry)).min_by_key(age)?;
        claims.last_id += 1;
        let capture = Arc::new(Capture {
            id: claims.last_id,
            slot,
            interface: interface.to_owned(),
            uid,
            stop: AtomicBool::new(false),
            ended: OnceLock::new(),
            taken: AtomicU64::new(0),
            lost: AtomicU64::new(0),
            captured: AtomicU64::new(0),
        });
        claims.entries[slot] = Some(Arc::clone(&capture));
        self.slots[slot].snap_len.store(snap_len, Ordering::Relaxed);
        self.rings(slot);
        Some(capture)
    }

    /// Captures that run, and the last ones that have ended.
    #[must_use]
    pub fn list(&self) -> Vec<Arc<Capture>> {
        let mut list: Vec<_> = lock(&self.claims).entries.iter().flatten().cloned().collect();
        list.sort_by_key(|capture| capture.id);
        list
    }

    /// The rings of `slot`.
    pub fn rings(&self, slot: usize) -> &[Ring] {
        self.slots[slot].rings.get_or_init(|| {
            let workers = (0..self.workers).map(|_| Ring::new(RING_BYTES));
            workers.chain([Ring::new(OTHERS_BYTES)]).collect()
        })
    }

    /// Copies a frame for those of `watch` that want it. Returns how many bytes that were.
    #[cold]
    pub fn record(&self, watch: Watch, stage: Stage, now: Instant, seen: &Seen<'_>) -> u64 {
        let wanting = watch.captures(stage, seen.drop.is_some());
        wanting.map(|(slot, tag)| self.slots[slot].put(tag, now, seen)).sum()
    }
}

impl Slot {
    fn put(&self, tag: u16, now: Instant, seen: &Seen<'_>) -> u64 {
        let Some(rings) = self.rings.get() else { return 0 };
        let others = rings.len() - 1;
        // Any other thread than a worker may share the last ring: who finds it in use loses a record.
        let ring = &rings[LANE.get().min(others)];
        record::write(ring, tag, now, self.snap_len.load(Ordering::Relaxed), seen)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame;
    use floodway_wire::vnet::VnetHdr;

    fn capture(captures: &Captures) -> Option<Arc<Capture>> {
        captures.begin("vm1", 0, 64)
    }

    #[test]
    fn there_are_so_many_captures_and_no_more() {
        let captures = Captures::new(2);
        let mut all: Vec<_> = (0..MAX_CAPTURES).map(|_| capture(&captures).unwrap()).collect();
        assert!(capture(&captures).is_none());
        all[2].end("asked to");
        let next = capture(&captures).unwrap();
        assert_eq!((next.slot, next.id), (2, MAX_CAPTURES as u64 + 1));
        all.iter().for_each(|capture| capture.end("asked to"));
        all[0] = capture(&captures).unwrap();
        assert_eq!(all[0].slot, 0, "the one that ended first is forgotten first");
        assert_eq!(captures.list().len(), MAX_CAPTURES);
        assert_eq!(captures.list()[0].status().end, "asked to");
    }

    #[test]
    fn a_record_bears_the_tag_of_the_capture_that_the_tap_named() {
        let captures = Captures::new(1);
        let first = capture(&captures).unwrap();
        let tap = Tap::default();
        tap.set(&first, &[Stage::In], false);
        let late = tap.watch();
        first.end("asked to");
        tap.clear(&first);
        assert!(!tap.watch().wants(Stage::In));
        let note = |watch: Watch| {
            frame::with_slice(VnetHdr::default(), &[7; 20], |frame| {
                let seen = Seen::new(frame, Direction::Inbound, None);
                captures.record(watch, Stage::In, Instant::ZERO, &seen)
            })
        };
        assert_eq!(note(late), 20, "a worker that had looked before");
        let ring = captures.rings(first.slot).last().unwrap();
        let reader = ring.reader().unwrap();
        let record = Record::read(reader.peek().unwrap());
        assert_eq!((record.tag, record.bytes), (Watch::tag(first.id), &[7; 20][..]));
        assert_ne!(Watch::tag(first.id), Watch::tag(first.id + 1));
    }
}
