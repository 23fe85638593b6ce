//! Egress: the way of a frame from the switch into an uplink's device.
//!
//! # Theory of operation
//! **Goal**: what a guest asks in small messages leaves at once, whatever else the host sends, and the
//! network knows which frames those are.
//!
//! A frame to an uplink goes through five steps, all but the second under the lock of that uplink:
//!
//! 1. `tagger`: core's [meter](floodway_core::egress::meter) says whether the pair of guest and destination is a small
//!    flow; the frame's DSCP becomes ours, whatever the guest wrote. GSO packets are metered whole.
//! 2. `segments`: a GSO packet is cut into frames, if the uplink says so, straight into buffers of ours, by who sends it and without
//!    the lock, `PIECE` at a time; one of very many over several turns of its source (`uncut`).
//! 3. Nothing waits and the device is ready: the frame goes to the device from where it lies, and that was all.
//! 4. Otherwise it is copied and queued (`queue`): core's [scheduler](floodway_core::egress::qdisc::scheduler) with two
//!    classes, turns of VMs, and a discipline for each VM's flows.
//! 5. `device`: the queue is emptied as fast as the device may be filled: up to a number of bytes that it
//!    holds, or at a rate.
//!
//! **Who empties the queue**: whoever sends next, and the uplink's worker at the time that [`Egress::next_look`] says. That
//! time is known outside of the lock, and the worker is woken if it would sleep past it ([`crate::runtime::worker`]).
//!
//! **Who waits**: nobody holds the lock for more than `PIECE` frames, or `PIECE_BYTES` and a frame, at a time. A device that is full lets all wait; one that refuses a
//! frame lets its sender wait (`queue`).
//!
//! **Invariants**: a frame is never handed to the device past one that waits, unless that was refused and is of another source or class;
//! every frame leaves, waits, or is counted as dropped; memory is bounded by the limits of the queues. Frames between guests never come here.
//!
//! Source: Xu et al., "Small is Better" (`SoCC` 2013), sections 4.2 and 4.3.

mod device;
mod outbox;
mod queue;
mod segments;
mod shared;
mod status;
mod tagger;
#[cfg(test)]
mod tests;
mod uncut;

use std::sync::atomic::AtomicU64;

use floodway_core::egress::qdisc::{Class, Kind};
use floodway_core::l2::PortId;
use floodway_core::time::Instant;

use crate::config::{MeterConfig, QueueConfig};
use crate::frame::{self, Frame, PREFIX_LEN};
use crate::stats::DropReason;
use crate::uplink::Sender;
use device::{Device, Offered};
use queue::{Owned, Queue};
use tagger::{Seen, Tagger};

pub use device::LinkRate;
pub use outbox::Outbox;
pub use shared::SharedEgress;

/// Most frames that are dealt with under one hold of the lock.
const PIECE: usize = 32;
/// Bytes after which the lock is let go of.
const PIECE_BYTES: usize = 1 << 16;
/// Most waiting frames that are handed to the device before others have their turn.
const BATCH: usize = 64;

/// How an uplink's frames leave.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The queue.
    pub queue: QueueConfig,
    /// The meter and its tags.
    pub meter: MeterConfig,
    /// Bits per second of the link, if that is known.
    pub link: LinkRate,
    /// Sources below this number are guests; others are uplinks, whose frames keep their tags.
    pub guests: usize,
    /// Guests must not know it.
    pub seed: u64,
    /// Words that all meters count in; each in its own if there are none.
    pub counters: Option<&'static [AtomicU64]>,
}

/// The sending half of an uplink with all that is before it.
pub struct Egress {
    tagger: Tagger,
    /// GSO packets are cut.
    segment: bool,
    discipline: Kind,
    hash_seed: u64,
    queue: Queue,
    device: Device,
    /// The latest time seen: workers' clock readings can be a little out of order.
    latest: Instant,
}

/// What is constant while one frame is dealt with.
struct Pass<'a> {
    source: PortId,
    class: Class,
    /// `None` while nobody has looked.
    seen: Option<Seen>,
    now: Instant,
    hash_seed: u64,
    sent: &'a Outbox,
}

/// What is known of a frame once it was classified.
#[derive(Clone, Copy)]
struct Label {
    class: Class,
    /// `None` while nobody has looked.
    seen: Option<Seen>,
}

/// A GSO packet that is to be cut.
struct Uncut<'f> {
    frame: Frame<'f>,
    label: Label,
    /// Its first bytes with the code point of its class, if they are not right as they are, and their number.
    headers: [u8; PREFIX_LEN],
    retagged: Option<usize>,
}

impl Egress {
    /// An empty queue in front of `sender`.
    #[must_use]
    pub fn new(sender: Box<dyn Sender>, settings: &Settings, now: Instant) -> Self {
        let QueueConfig { discipline, segment, rate, device_bytes } = settings.queue;
        Self {
            tagger: Tagger::new(settings),
            segment: segment.unwrap_or_else(|| settings.link.is_slow()),
            discipline: discipline.kind,
            hash_seed: settings.seed,
            queue: Queue::new(discipline),
            device: Device::new(sender, rate, device_bytes, now),
            latest: now,
        }
    }

    /// Sends frames of `source`, or lets them wait, up to [`PIECE`] of them or [`PIECE_BYTES`], or the first one that has to be cut, which is
    /// returned. What is dropped is counted in `sent`, and so is what leaves.
    fn send<'f>(
        &mut self,
        source: PortId,
        now: Instant,
        frames: &mut impl Iterator<Item = Frame<'f>>,
        sent: &Outbox,
    ) -> Option<Uncut<'f>> {
        let now = self.tick(now);
        let mut bytes = 0;
        for frame in frames.take(PIECE) {
            // Others may get the same frame, with the tags that it came with: its own bytes stay as they are.
            let mut headers = [0; PREFIX_LEN];
            let (class, seen) = self.tagger.classify(source, &frame, now);
            let pass = Pass { source, class, seen, now, hash_seed: self.hash_seed, sent };
            let retagged =
                seen.and_then(|seen| self.tagger.retag(source, class, &seen, &frame, &mut headers));
            if self.segment && frame.vnet.is_gso() {
                self.pump(now, sent);
                return Some(Uncut { frame, label: Label { class, seen }, headers, retagged });
            }
            match retagged {
                None => self.admit(&pass, &frame),
                Some(len) => {
                    frame::with_headers(&frame, frame.vnet, &headers[..len], |frame| {
                        self.admit(&pass, frame);
                    });
                }
            }
            bytes += frame.len as usize;
            if bytes >= PIECE_BYTES {
                break;
            }
        }
        self.pump(now, sent);
        None
    }

    /// Sends segments that a GSO packet was cut into, or lets them wait.
    fn send_segments(
        &mut self,
        source: PortId,
        now: Instant,
        label: Label,
        segments: &mut [Option<Owned>],
        sent: &Outbox,
    ) {
        let now = self.tick(now);
        let (Label { class, seen }, hash_seed) = (label, self.hash_seed);
        let pass = Pass { source, class, seen, now, hash_seed, sent };
        for segment in segments.iter_mut().filter_map(Option::take) {
            match segment.with_frame(|frame| self.offer(&pass, frame)) {
                Offered::Done => {}
                Offered::Full => self.queue.push_owned(&pass, segment),
                Offered::Refused => self.queue.push_refused(&pass, segment),
            }
        }
        self.pump(now, sent);
    }

    /// Hands waiting frames to the device, as far as it may be filled.
    pub fn pump(&mut self, now: Instant, sent: &Outbox) {
        if self.queue.is_empty() {
            return;
        }
        let now = self.tick(now);
        for _ in 0..BATCH {
            if !self.device.is_ready(now) {
                return;
            }
            let Some(waiting) = self.queue.next(now, sent) else { return };
            match waiting.owned.with_frame(|frame| self.device.send(frame, now, sent)) {
                Offered::Done => self.queue.done(&waiting),
                Offered::Full => return self.queue.put_back(waiting),
                Offered::Refused => self.queue.refuse(waiting, now, sent),
            }
        }
    }

    /// Hands some of what waits to the device, whatever its rate, and drops and counts what that does not take. Returns `true` if more waits.
    fn retire(&mut self, now: Instant, sent: &Outbox) -> bool {
        let now = self.tick(now);
        self.queue.drop_refused(now, sent);
        for _ in 0..BATCH {
            let Some(waiting) = self.queue.next(now, sent) else { return false };
            waiting.owned.with_frame(|frame| {
                if !matches!(self.device.send(frame, now, sent), Offered::Done) {
                    sent.count_dropped(frame, DropReason::UplinkError, now);
                }
            });
        }
        true
    }

    /// When [`pump`](Self::pump) has something to do, if nothing is sent before; [`Instant::NEVER`] while nothing waits.
    #[must_use]
    pub fn next_look(&self) -> Instant {
        if self.queue.is_empty() {
            return Instant::NEVER;
        }
        let look = self.device.next_look(self.queue.patient(), self.latest);
        self.queue.next_retry().map_or(look, |retry| retry.max(look))
    }

    /// The device was opened anew.
    pub fn replace_sender(&mut self, sender: Box<dyn Sender>) {
        self.device.replace_sender(sender, self.latest);
    }

    /// What is done once a second.
    pub fn run_housekeeping(&mut self, now: Instant) {
        let now = self.tick(now);
        self.tagger.forget(now);
        self.queue.trim();
    }

    fn tick(&mut self, now: Instant) -> Instant {
        self.latest = self.latest.max(now);
        self.latest
    }

    fn admit(&mut self, pass: &Pass<'_>, frame: &Frame<'_>) {
        match self.offer(pass, frame) {
            Offered::Done => {}
            Offered::Full => self.queue.push(pass, frame),
            Offered::Refused => self.queue.push_refused_copy(pass, frame),
        }
    }

    /// Hands the frame to the device if nothing waits that is to leave before it, and the device is ready.
    fn offer(&mut self, pass: &Pass<'_>, frame: &Frame<'_>) -> Offered {
        if !self.queue.may_pass(pass.class, pass.source) {
            return Offered::Full;
        }
        if self.queue.is_empty() {
            self.device.idle(pass.now);
        }
        if !self.device.is_ready(pass.now) {
            return Offered::Full;
        }
        self.device.send(frame, pass.now, pass.sent)
    }
}
