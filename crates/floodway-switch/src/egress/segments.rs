//! A GSO packet in frames, each in a buffer of ours: headers written, payload copied once from where it lies.

use std::sync::Arc;

use floodway_wire::checksum::Sum;
use floodway_wire::segmentation::Plan;
use floodway_wire::vnet::VnetHdr;

use super::queue::Owned;
use crate::frame::Frame;
use crate::frame::iovec::GuestIoVec;
use crate::frame::pool::Pool;
use crate::stats::DropReason;

/// What is left of a GSO packet.
pub(super) struct Segments<'a> {
    plan: Plan<'a>,
    next: usize,
    payload: Payload<'a>,
}

impl<'a> Segments<'a> {
    /// What is left behind the first `next` frames.
    ///
    /// # Errors
    /// The frame cannot be segmented: [`DropReason::BadOffload`].
    pub(super) fn starting_at(frame: &Frame<'a>, next: usize) -> Result<Self, DropReason> {
        let plan = Plan::new(frame.prefix, frame.len as usize, frame.vnet.gso_size)
            .map_err(|_| DropReason::BadOffload)?;
        let mut payload = Payload { parts: frame.parts, at: 0 };
        payload.skip(plan.payload(next).start);
        Ok(Self { plan, next, payload })
    }

    /// The number of the next frame.
    pub(super) const fn next_number(&self) -> usize {
        self.next
    }

    /// Fills `piece` with the next frames. Returns `true` if there are more.
    ///
    /// # Errors
    /// There is no buffer: [`DropReason::UplinkFull`]. What was made before is in `piece`.
    pub(super) fn fill(
        &mut self,
        piece: &mut [Option<Owned>],
        pool: &Arc<Pool>,
    ) -> Result<bool, DropReason> {
        for place in piece {
            *place = self.next(pool)?;
        }
        Ok(self.next < self.plan.count())
    }

    /// The next frame, finished; `None` after the last.
    ///
    /// # Errors
    /// There is no buffer: [`DropReason::UplinkFull`].
    fn next(&mut self, pool: &Arc<Pool>) -> Result<Option<Owned>, DropReason> {
        if self.next >= self.plan.count() {
            return Ok(None);
        }
        let headers_len = self.plan.headers_len();
        let len = headers_len + self.plan.payload(self.next).len();
        let mut buffer = pool.take(len, ()).ok_or(DropReason::UplinkFull)?;
        let (headers, body) = buffer.bytes_mut()[..len].split_at_mut(headers_len);
        self.payload.read(body);
        // The sum is taken over the copy: the guest can change the original at any time.
        let written = self.plan.write_headers(self.next, Sum::of(body), headers);
        written.map_err(|_| DropReason::BadOffload)?;
        self.next += 1;
        Ok(Some(Owned { buffer, vnet: VnetHdr::default(), len: len as u32 }))
    }
}

/// Bytes of a frame that are still to be read.
struct Payload<'a> {
    parts: &'a [GuestIoVec<'a>],
    /// Bytes of the first part that are done with.
    at: usize,
}

impl Payload<'_> {
    fn skip(&mut self, mut n: usize) {
        while let Some(part) = self.parts.first() {
            let step = n.min(part.len() - self.at);
            self.advance(step, part.len());
            n -= step;
            if n == 0 {
                return;
            }
        }
    }

    /// Fills `out`, as far as there are bytes.
    fn read(&mut self, out: &mut [u8]) {
        let mut rest = out;
        while !rest.is_empty()
            && let Some(part) = self.parts.first()
        {
            let piece = part.skip(self.at);
            let (to, more) = rest.split_at_mut(piece.len().min(rest.len()));
            // SAFETY: the piece is readable and at least as long as `to`, which is ours alone and so overlaps
            // neither guest memory nor a borrowed slice.
            unsafe { std::ptr::copy_nonoverlapping(piece.as_ptr(), to.as_mut_ptr(), to.len()) };
            self.advance(to.len(), part.len());
            rest = more;
        }
    }

    fn advance(&mut self, n: usize, part_len: usize) {
        self.at += n;
        if self.at >= part_len {
            self.parts = &self.parts[1..];
            self.at = 0;
        }
    }
}
