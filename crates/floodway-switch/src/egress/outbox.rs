//! What has become of frames to an uplink: counted, and seen by those who capture.

use std::ops::Deref;
use std::sync::Arc;

use floodway_core::time::Instant;
use floodway_wire::pcapng::Direction;

use crate::api::capture::Stage;
use crate::capture::{Captures, Seen, Tap, Watch};
use crate::frame::Frame;
use crate::stats::{Block, DropReason, Traffic};

/// Counters of frames that leave by an uplink, and who looks at these frames. Written under the egress's lock.
pub struct Outbox {
    /// The counters.
    pub traffic: Traffic,
    /// Which captures want what of the uplink.
    pub tap: Tap,
    captures: Arc<Captures>,
}

impl Outbox {
    /// Counts from zero.
    #[must_use]
    pub fn new(captures: Arc<Captures>) -> Self {
        Self { traffic: Traffic::default(), tap: Tap::default(), captures }
    }

    /// Counts a frame that the device has taken.
    #[inline]
    pub(super) fn count_left(&self, frame: &Frame<'_>, now: Instant) {
        self.traffic.count(u64::from(frame.len));
        if frame.vnet.is_gso() {
            self.traffic.gso_packets.add(1);
        }
        let watch = self.tap.watch();
        if watch.wants(Stage::Out) {
            self.record(watch, frame, None, now);
        }
    }

    /// Counts a frame that is dropped.
    #[cold]
    pub(super) fn count_dropped(&self, frame: &Frame<'_>, reason: DropReason, now: Instant) {
        self.traffic.count_drop(reason, 1);
        let watch = self.tap.watch();
        if watch.wants(Stage::Out) {
            self.record(watch, frame, Some(reason), now);
        }
    }

    #[cold]
    fn record(&self, watch: Watch, frame: &Frame<'_>, drop: Option<DropReason>, now: Instant) {
        let seen = Seen::new(frame, Direction::Outbound, drop);
        self.captures.record(watch, Stage::Out, now, &seen);
    }
}

impl Default for Outbox {
    /// Counts for a switch without workers.
    fn default() -> Self {
        Self::new(Arc::new(Captures::new(0)))
    }
}

impl Deref for Outbox {
    type Target = Block;

    fn deref(&self) -> &Block {
        &self.traffic
    }
}
