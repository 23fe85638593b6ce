//! An egress that several workers send through.

use std::sync::{Arc, Mutex};

use floodway_core::l2::PortId;
use floodway_core::time::Instant;

use super::queue::Owned;
use super::segments::Segments;
use super::{Egress, PIECE, Uncut};
use crate::frame::{self, Frame};
use crate::lock_order::{Ordered, Rank};
use crate::pool::Pool;
use crate::stats::{DropReason, Traffic};

/// An [`Egress`] under its lock, which nobody holds for longer than a piece of work of known size.
pub struct SharedEgress {
    egress: Mutex<Egress>,
    pool: Arc<Pool>,
    cuts: bool,
}

impl SharedEgress {
    /// Shares `egress`.
    #[must_use]
    pub fn new(egress: Egress) -> Self {
        let pool = Arc::clone(egress.queue.pool());
        Self { cuts: egress.segment, egress: Mutex::new(egress), pool }
    }

    /// Returns `true` if super-frames are cut.
    #[must_use]
    pub const fn cuts_super_frames(&self) -> bool {
        self.cuts
    }

    /// Calls `f` with the egress. The packet path waits meanwhile.
    pub fn with<R>(&self, f: impl FnOnce(&mut Egress) -> R) -> R {
        f(&mut Ordered::lock(Rank::Last, &self.egress))
    }

    /// Sends frames of `source`, or lets them wait. What is dropped is counted in `sent`, and so is what leaves.
    /// Calls `changed` before each time that it lets go of the lock.
    pub fn send<'f>(
        &self,
        source: PortId,
        now: Instant,
        frames: impl Iterator<Item = Frame<'f>>,
        sent: &Traffic,
        changed: impl Fn(&Egress),
    ) {
        let mut frames = frames.peekable();
        while frames.peek().is_some() {
            let uncut = self.with(|egress| {
                let uncut = egress.send(source, now, &mut frames, sent);
                changed(egress);
                uncut
            });
            if let Some(uncut) = uncut {
                self.cut(source, now, &uncut, sent, &changed);
            }
        }
    }

    /// Sends a super-frame in frames.
    fn cut(
        &self,
        source: PortId,
        now: Instant,
        uncut: &Uncut<'_>,
        sent: &Traffic,
        changed: &impl Fn(&Egress),
    ) {
        let cut = |frame: &Frame<'_>| -> Result<(), DropReason> {
            let mut segments = Segments::new(frame)?;
            let mut piece = [const { None::<Owned> }; PIECE];
            loop {
                let more = segments.fill(&mut piece, &self.pool);
                self.with(|egress| {
                    egress.send_segments(source, now, uncut, &mut piece, sent);
                    changed(egress);
                });
                if !more? {
                    return Ok(());
                }
            }
        };
        let frame = &uncut.frame;
        let done = match uncut.retagged {
            None => cut(frame),
            Some(len) => frame::with_headers(frame, frame.vnet, &uncut.headers[..len], cut),
        };
        if let Err(reason) = done {
            // Counters are written under the lock.
            self.with(|_| sent.count_drop(reason, 1));
        }
    }
}
