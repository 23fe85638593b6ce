//! The device, and how much it may be given.
//!
//! A device that says what it holds is filled up to a limit of bytes ([`ByteLimit`]); one that does not (a tap, which hands
//! frames over at once) takes all. A rate ([`Shaper`]) holds for either. A device that is full is asked again a
//! little later, and the frame waits.

use std::time::Duration;

use floodway_core::egress::qdisc::{ByteLimit, Shaper};
use floodway_core::time::Instant;

use super::Outbox;
use crate::frame::vnet_offload::{self, Offloads};
use crate::frame::{self, Frame};
use crate::stats::DropReason;
use crate::uplink::{SendError, Sender};

/// When a device that was full, or held as much as it may, is looked at again. At 10 Gbit/s it sends 62 KB in this
/// time, and the limit grows until that is enough.
pub(super) const LOOK_AGAIN: Duration = Duration::from_micros(50);
/// What may leave at a rate is let collect for this long: a wake-up for each frame would cost more than the frames do. The
/// high class is not let wait.
const RELEASE: Duration = Duration::from_micros(250);
/// How much of the time is made up for that frames waited for a late worker: a tick of a kernel with 250 of them in a second, which is how
/// long it may let a thread wait that has woken up, beside what the worker was meant to sleep. Linux's shapers want a burst of
/// this size for the same reason. At 1 Gbit/s it is 531 KB.
const LATE: Duration = Duration::from_micros(4250);
/// The same if nothing waited.
const IDLE: Duration = Duration::from_millis(1);
/// Range of the limit that follows the device: two full frames to 1 MiB.
const DEVICE_BYTES: std::ops::RangeInclusive<u64> = 3028..=1 << 20;
/// Links from this many bits per second on send a GSO packet in 52 us at most: not worth cutting.
const FAST: u64 = 10_000_000_000;

/// How fast a link is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkRate(Option<u64>);

impl LinkRate {
    /// `bits` per second, if that is known.
    #[must_use]
    pub const fn new(bits: Option<u64>) -> Self {
        Self(bits)
    }

    /// Bits per second.
    #[must_use]
    pub const fn bits_per_second(self) -> Option<u64> {
        self.0
    }

    /// A GSO packet takes noticeable time.
    #[must_use]
    pub fn is_slow(self) -> bool {
        self.0.is_some_and(|bits| bits < FAST)
    }
}

/// What became of a frame that was offered to the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Offered {
    /// It left, or was dropped and counted.
    Done,
    /// The device takes no frame now.
    Full,
    /// The device does not take this frame now.
    Refused,
}

/// A device under its limits.
pub(super) struct Device {
    sender: Box<dyn Sender>,
    offloads: Offloads,
    /// `None` for a device that does not say what it holds.
    limit: Option<ByteLimit>,
    fixed: Option<u64>,
    shaper: Option<Shaper>,
    /// It was full; not before this time again.
    retry_at: Instant,
}

impl Device {
    pub(super) fn new(
        sender: Box<dyn Sender>,
        rate: Option<u64>,
        fixed: Option<u64>,
        now: Instant,
    ) -> Self {
        Self {
            offloads: offloads(&*sender),
            limit: limit(&*sender, fixed, now),
            sender,
            fixed,
            shaper: rate.map(|bits| Shaper::new(bits / 8, LATE)),
            retry_at: Instant::ZERO,
        }
    }

    pub(super) fn replace_sender(&mut self, sender: Box<dyn Sender>, now: Instant) {
        self.offloads = offloads(&*sender);
        self.limit = limit(&*sender, self.fixed, now);
        self.sender = sender;
        self.retry_at = Instant::ZERO;
    }

    /// The device may be given a frame.
    #[inline]
    pub(super) fn is_ready(&mut self, now: Instant) -> bool {
        if self.retry_at > now || self.shaper.as_ref().is_some_and(|s| s.ready_at() > now) {
            return false;
        }
        let Some(limit) = &mut self.limit else { return true };
        report(limit, &*self.sender, now);
        limit.may_send()
    }

    /// Returns what [`is_ready`](Self::is_ready) would: what the device holds is reported to a copy of the limit.
    pub(super) fn would_be_ready(&self, now: Instant) -> bool {
        if self.retry_at > now || self.shaper.as_ref().is_some_and(|s| s.ready_at() > now) {
            return false;
        }
        let Some(mut limit) = self.limit.clone() else { return true };
        report(&mut limit, &*self.sender, now);
        limit.may_send()
    }

    /// Returns `true` if there is a device at all.
    pub(super) fn is_present(&self) -> bool {
        self.sender.is_present()
    }

    /// Nothing waits.
    #[inline]
    pub(super) fn idle(&mut self, now: Instant) {
        if let Some(shaper) = &mut self.shaper {
            shaper.idle(IDLE, now);
        }
    }

    /// When to look whether a device that was not ready is, for `waiting` bytes that are let collect, if any.
    pub(super) fn next_look(&self, waiting: u64, now: Instant) -> Instant {
        let paced =
            self.shaper.as_ref().map_or(Instant::ZERO, |s| s.look_at(waiting, RELEASE, now));
        let full = match &self.limit {
            Some(limit) if !limit.may_send() => now + LOOK_AGAIN,
            _ => Instant::ZERO,
        };
        self.retry_at.max(paced).max(full)
    }

    /// Offers a frame, which is the caller's again unless that is [`Offered::Done`].
    #[inline]
    pub(super) fn send(&mut self, frame: &Frame<'_>, now: Instant, sent: &Outbox) -> Offered {
        if self.offloads.allow(&frame.vnet) {
            return self.send_one(frame, now, sent);
        }
        let finished = vnet_offload::finish(frame, self.offloads, |vnet, bytes| {
            frame::with_slice(vnet, bytes, |frame| {
                // In the middle of a GSO packet there is no going back.
                match self.send_one(frame, now, sent) {
                    Offered::Done => {}
                    Offered::Full => sent.count_dropped(frame, DropReason::UplinkFull, now),
                    Offered::Refused => sent.count_dropped(frame, DropReason::UplinkRefused, now),
                }
            });
        });
        if let Err(reason) = finished {
            sent.count_dropped(frame, reason, now);
        }
        Offered::Done
    }

    fn send_one(&mut self, frame: &Frame<'_>, now: Instant, sent: &Outbox) -> Offered {
        match self.sender.send(&frame.vnet, frame.parts) {
            Ok(()) => {
                self.note_sent(frame, now);
                sent.count_left(frame, now);
                Offered::Done
            }
            Err(SendError::Full) => {
                self.retry_at = now + LOOK_AGAIN;
                Offered::Full
            }
            Err(SendError::Refused) => Offered::Refused,
            Err(SendError::Failed(error)) => {
                tracing::debug!(%error, "an uplink cannot send");
                sent.count_dropped(frame, DropReason::UplinkError, now);
                Offered::Done
            }
        }
    }

    /// The link has a rate for what is on the wire; the device says what it holds as it was given.
    #[inline]
    fn note_sent(&mut self, frame: &Frame<'_>, now: Instant) {
        if let Some(shaper) = &mut self.shaper {
            shaper.sent(frame.wire_len(), now);
        }
        if let Some(limit) = &mut self.limit {
            limit.sent(frame.len);
        }
    }

    /// Bytes that the device may hold, and holds as far as it has said.
    pub(super) fn limit(&self) -> Option<(u64, u64)> {
        self.limit.as_ref().map(|limit| (limit.limit(), limit.outstanding()))
    }
}

fn offloads(sender: &dyn Sender) -> Offloads {
    let can = sender.capabilities();
    let tso = can.csum && can.tso;
    Offloads { csum: can.csum, tso4: tso, tso6: tso, ecn: tso }
}

/// Tells a limit in time what the device holds: it is only seen to bind if the device still holds something.
#[inline]
fn report(limit: &mut ByteLimit, sender: &dyn Sender, now: Instant) {
    if 2 * limit.outstanding() >= limit.limit() {
        limit.report(sender.outstanding().unwrap_or(0), now);
    }
}

fn limit(sender: &dyn Sender, fixed: Option<u64>, now: Instant) -> Option<ByteLimit> {
    sender.outstanding()?;
    Some(fixed.map_or_else(|| ByteLimit::dynamic(DEVICE_BYTES, now), ByteLimit::fixed))
}
