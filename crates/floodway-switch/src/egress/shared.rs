//! An egress that several workers send through.

use std::sync::{Arc, Mutex};

use floodway_core::l2::PortId;
use floodway_core::time::Instant;
use floodway_core::work::Work;

use super::queue::Owned;
use super::segments::Segments;
use super::uncut::{Backlog, Whole};
use super::{Egress, Label, Outbox, PIECE, Uncut};
use crate::frame::pool::Pool;
use crate::frame::{self, CUT_AT_ONCE, Frame};
use crate::stats::DropReason;
use crate::sync::lock_order::{Ordered, Rank};

/// An [`Egress`] under its lock, which nobody holds for longer than a piece of work of known size.
pub struct SharedEgress {
    egress: Mutex<Egress>,
    pool: Arc<Pool>,
    cuts: bool,
    /// What is cut in later turns.
    backlog: Backlog,
}

impl SharedEgress {
    /// Shares `egress`.
    #[must_use]
    pub fn new(egress: Egress) -> Self {
        let pool = Arc::clone(egress.queue.pool());
        let backlog = Backlog::default();
        Self { cuts: egress.segment, egress: Mutex::new(egress), pool, backlog }
    }

    /// Returns `true` if GSO packets are cut.
    #[must_use]
    pub const fn cuts_gso_packets(&self) -> bool {
        self.cuts
    }

    /// Calls `f` with the egress. The packet path waits meanwhile.
    pub fn with<R>(&self, f: impl FnOnce(&mut Egress) -> R) -> R {
        f(&mut Ordered::lock(Rank::Last, &self.egress))
    }

    /// Sends frames of `source`, or lets them wait. What is dropped is counted in `sent`, and so is what leaves.
    /// Calls `changed` before each time that it lets go of the lock. Returns `true` if something of the source is left to be cut, which
    /// [`resume`](Self::resume) does.
    pub fn send<'f>(
        &self,
        source: PortId,
        now: Instant,
        frames: impl Iterator<Item = Frame<'f>>,
        sent: &Outbox,
        changed: impl Fn(&Egress),
    ) -> bool {
        let turn = Turn { source, now, sent, changed };
        let mut frames = frames.peekable();
        while frames.peek().is_some() {
            if self.is_uncut(source) {
                frames.for_each(|frame| self.keep(&turn, Whole::copy(&frame, None)));
                return true;
            }
            let uncut = self.with(|egress| {
                let uncut = egress.send(source, now, &mut frames, sent);
                (turn.changed)(egress);
                uncut
            });
            if let Some(uncut) = uncut
                && let Some(whole) = self.cut(&turn, &uncut)
            {
                self.keep(&turn, whole);
            }
        }
        self.is_uncut(source)
    }

    /// Hands what waits to the device as far as that takes it, and drops and counts the rest. Nothing is sent afterwards.
    pub fn retire(&self, now: Instant, sent: &Outbox) {
        for Whole { vnet, bytes, .. } in self.backlog.clear() {
            frame::with_slice(vnet, &bytes, |frame| {
                self.with(|_| sent.count_dropped(frame, DropReason::UplinkError, now));
            });
        }
        while self.with(|egress| egress.retire(now, sent)) {}
    }

    /// Returns `true` if something of `source` is left to be cut.
    #[inline]
    #[must_use]
    pub fn is_uncut(&self, source: PortId) -> bool {
        self.backlog.holds(source)
    }

    /// Cuts the next piece of what is left of `source`. Returns what that has cost beyond what its source was charged when the frame came;
    /// `None` if nothing is left.
    pub fn resume(
        &self,
        source: PortId,
        now: Instant,
        sent: &Outbox,
        changed: impl Fn(&Egress),
    ) -> Option<Work> {
        let turn = Turn { source, now, sent, changed };
        let whole = self.backlog.take(source)?;
        let (len, mut work) = (whole.bytes.len(), Work::default());
        let left = match whole.cut {
            None => frame::with_slice(whole.vnet, &whole.bytes, |frame| self.begin(&turn, frame)),
            Some((label, next)) => {
                let next = frame::with_slice(whole.vnet, &whole.bytes, |frame| {
                    self.cut_piece(&turn, frame, label, next, &mut work)
                });
                next.map(|next| Whole { cut: Some((label, next)), ..whole })
            }
        };
        match left {
            Some(whole) => self.backlog.put_back(source, whole),
            None => self.backlog.done(source, len),
        }
        Some(work)
    }

    /// Sends a frame that has waited behind others. Returns it if it is to be cut in later turns.
    fn begin<F: Fn(&Egress)>(&self, turn: &Turn<'_, F>, frame: &Frame<'_>) -> Option<Whole> {
        let uncut = self.with(|egress| {
            let frames = &mut std::iter::once(*frame);
            let uncut = egress.send(turn.source, turn.now, frames, turn.sent);
            (turn.changed)(egress);
            uncut
        })?;
        self.cut(turn, &uncut)
    }

    /// Sends a GSO packet in frames. Returns it if that is to be done in later turns.
    fn cut<F: Fn(&Egress)>(&self, turn: &Turn<'_, F>, uncut: &Uncut<'_>) -> Option<Whole> {
        let cut = |frame: &Frame<'_>| {
            if frame.segments() > CUT_AT_ONCE {
                return Some(Whole::copy(frame, Some(uncut.label)));
            }
            let (mut next, mut work) = (Some(0), Work::default());
            while let Some(number) = next {
                next = self.cut_piece(turn, frame, uncut.label, number, &mut work);
            }
            None
        };
        let frame = &uncut.frame;
        match uncut.retagged {
            None => cut(frame),
            Some(len) => frame::with_headers(frame, frame.vnet, &uncut.headers[..len], cut),
        }
    }

    /// Sends up to [`PIECE`] segments of a GSO packet from number `next` on, and adds what that costs to `work`. Returns the number of the next
    /// one; `None` if there are no more, or the rest was dropped and counted.
    fn cut_piece<F: Fn(&Egress)>(
        &self,
        turn: &Turn<'_, F>,
        frame: &Frame<'_>,
        label: Label,
        next: usize,
        work: &mut Work,
    ) -> Option<usize> {
        let mut piece = [const { None::<Owned> }; PIECE];
        let filled = Segments::starting_at(frame, next).and_then(|mut segments| {
            let more = segments.fill(&mut piece, &self.pool);
            *work += price(&piece);
            self.with(|egress| {
                egress.send_segments(turn.source, turn.now, label, &mut piece, turn.sent);
                (turn.changed)(egress);
            });
            more.map(|more| more.then(|| segments.next_number()))
        });
        filled.unwrap_or_else(|reason| {
            self.drop_one(turn, frame, reason);
            None
        })
    }

    fn keep<F: Fn(&Egress)>(&self, turn: &Turn<'_, F>, whole: Whole) {
        if let Err(Whole { vnet, bytes, .. }) = self.backlog.push(turn.source, whole) {
            frame::with_slice(vnet, &bytes, |frame| {
                self.drop_one(turn, frame, DropReason::UplinkQueueFull);
            });
        }
    }

    /// Counts a dropped frame: counters are written under the lock.
    fn drop_one<F>(&self, turn: &Turn<'_, F>, frame: &Frame<'_>, reason: DropReason) {
        self.with(|_| turn.sent.count_dropped(frame, reason, turn.now));
    }
}

/// What is constant while frames of one source are dealt with.
struct Turn<'a, F> {
    source: PortId,
    now: Instant,
    sent: &'a Outbox,
    changed: F,
}

/// What segments cost.
fn price(piece: &[Option<Owned>]) -> Work {
    let mut work = Work::default();
    for segment in piece.iter().flatten() {
        work.segments += 1;
        work.device += 1;
        work.bytes += u64::from(segment.len);
    }
    work
}
