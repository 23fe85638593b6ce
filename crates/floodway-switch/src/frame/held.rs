//! A frame that the engine keeps.

use std::sync::Arc;

use floodway_core::offload::Segment;
use floodway_core::offload::journal::{Image, Retained};
use floodway_wire::Meta;
use floodway_wire::vnet::VnetHdr;

use crate::frame::describe::{Direction, describe};
use crate::frame::pool::{Buffer, Pool};
use crate::frame::vnet_offload::Offloads;
use crate::frame::{self, Frame, PREFIX_LEN};

/// A copy of a whole frame, in one piece, and where its headers lie.
pub(crate) struct Held(Buffer<About>);

/// What is known of a frame that is kept.
pub(crate) struct About {
    /// Offload state, as the frame came.
    vnet: VnetHdr,
    /// The parsed headers. The frame ends where its packet ends.
    meta: Meta,
}

/// The fields of a header that a journal keeps, in one word.
fn pack(vnet: &VnetHdr) -> u64 {
    let VnetHdr { flags, gso_type, gso_size, csum_start, csum_offset, .. } = *vnet;
    let [high, low] = gso_size.to_be_bytes();
    let [start_high, start_low] = csum_start.to_be_bytes();
    let [offset_high, offset_low] = csum_offset.to_be_bytes();
    u64::from_be_bytes([flags, gso_type, high, low, start_high, start_low, offset_high, offset_low])
}

/// The reverse of [`pack`].
fn unpack(word: u64) -> VnetHdr {
    let [flags, gso_type, size @ .., _, _, _, _] = word.to_be_bytes();
    VnetHdr {
        flags,
        gso_type,
        gso_size: u16::from_be_bytes(size),
        csum_start: (word >> 16) as u16,
        csum_offset: word as u16,
        ..VnetHdr::default()
    }
}

impl Held {
    /// Copies `frame`, without Ethernet padding. `None` when there is no memory.
    pub(crate) fn copy(pool: &Arc<Pool<About>>, frame: &Frame<'_>, meta: &Meta) -> Option<Self> {
        let len = meta.packet_end as usize;
        let meta = Meta { frame_len: meta.packet_end, ..*meta };
        let mut buffer = pool.take(len, About { vnet: frame.vnet, meta })?;
        frame.copy_to(&mut buffer.bytes_mut()[..len]);
        Some(Self(buffer))
    }

    /// Offload state, as the frame came.
    pub(crate) fn vnet(&self) -> VnetHdr {
        self.0.about().vnet
    }

    /// The parsed headers. The frame ends where its packet ends.
    pub(crate) fn meta(&self) -> &Meta {
        &self.0.about().meta
    }

    /// What a journal keeps of it.
    pub(crate) fn image(&self) -> Image<'_> {
        Image { about: pack(&self.0.about().vnet), bytes: self.bytes() }
    }

    /// The frame that a journal has kept, and what its headers say. `None` if they contradict themselves, or there is no memory. Who
    /// wrote the journal may have been taken over: nothing is believed that is not believed of a guest.
    pub(crate) fn revive(
        pool: &Arc<Pool<About>>,
        direction: Direction,
        kept: &Retained,
    ) -> Option<(Self, Segment)> {
        let bytes = &kept.bytes[..];
        let prefix = &bytes[..bytes.len().min(PREFIX_LEN)];
        let vnet = Offloads::ALL.check(unpack(kept.about), prefix, bytes.len() as u32).ok()?;
        frame::with_slice(vnet, bytes, |frame| {
            let described = describe(frame, direction)?;
            Some((Self::copy(pool, frame, &described.meta)?, described.segment))
        })
    }

    /// The frame.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0.bytes()[..self.meta().packet_end as usize]
    }

    /// Its headers up to the payload.
    pub(crate) fn headers(&self) -> &[u8] {
        &self.bytes()[..usize::from(self.meta().payload_offset)]
    }

    /// `len` bytes of payload from `offset` on, as far as there are so many.
    pub(crate) fn payload(&self, offset: u32, len: u32) -> &[u8] {
        let payload = &self.bytes()[usize::from(self.meta().payload_offset)..];
        let rest = payload.get(offset as usize..).unwrap_or_default();
        &rest[..rest.len().min(len as usize)]
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::frames::{partial, pattern, tcp};

    fn keep(pool: &Arc<Pool<About>>, vnet: VnetHdr, bytes: &[u8]) -> (Held, Segment) {
        frame::with_slice(vnet, bytes, |frame| {
            let described = describe(frame, Direction::FromNetwork).unwrap();
            (Held::copy(pool, frame, &described.meta).unwrap(), described.segment)
        })
    }

    fn retained(held: &Held, segment: &Segment) -> Retained {
        let Image { about, bytes } = held.image();
        Retained { seq: segment.seq, len: segment.len, about, bytes: bytes.to_vec() }
    }

    #[test]
    fn a_list_of_frames_has_two_words_for_each() {
        assert_eq!(size_of::<Held>(), 2 * size_of::<usize>(), "beside {}", size_of::<About>());
    }

    #[test]
    fn what_a_journal_kept_is_the_frame_again() {
        let pool = Arc::new(Pool::new(1 << 20));
        for (v6, len, gso_size) in
            [(false, 1, 0), (true, 1000, 0), (false, 40_000, 1448), (true, 9000, 1220)]
        {
            let bytes = tcp(1, 2, v6).build(&pattern(7, len));
            let claims = [partial(&bytes, gso_size), VnetHdr::default()];
            for vnet in claims.into_iter().take(if gso_size > 0 { 1 } else { 2 }) {
                let (held, segment) = keep(&pool, vnet, &bytes);
                let kept = retained(&held, &segment);
                let (again, same) = Held::revive(&pool, Direction::FromNetwork, &kept).unwrap();
                assert_eq!((again.bytes(), again.vnet()), (held.bytes(), vnet));
                assert_eq!(
                    (same, again.meta().payload_offset),
                    (segment, held.meta().payload_offset)
                );
            }
        }
        assert_eq!(pool.used(), 0);
    }

    proptest! {
        #[test]
        fn whatever_is_found_in_a_journal_is_a_frame_or_nothing(
            about: u64,
            believed: bool,
            bytes in prop::collection::vec(any::<u8>(), 0..200),
            at in 0..100_usize,
        ) {
            let pool = Arc::new(Pool::new(1 << 20));
            let mut frame = tcp(1, 2, false).build(&pattern(7, 300));
            let (held, segment) = keep(&pool, partial(&frame, 100), &frame);
            let kept = retained(&held, &segment);
            let end = frame.len().min(at + bytes.len());
            frame[at..end].copy_from_slice(&bytes[..end - at]);
            let about = if believed { kept.about } else { about };
            for bytes in [frame, bytes] {
                if let Some((held, segment)) = Held::revive(&pool, Direction::FromGuest, &Retained { about, bytes, ..kept.clone() }) {
                    prop_assert_eq!(held.payload(0, segment.len).len(), segment.len as usize);
                }
            }
        }
    }
}
