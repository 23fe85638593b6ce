//! What waits, and its way out.

use floodway_core::inbound::Sink;
use floodway_core::offload::Edit;
use floodway_wire::parse;
use floodway_wire::vnet::VnetHdr;

use crate::delivery::Delivery;
use crate::frame::{self, Frame, PREFIX_LEN};
use crate::port::Port;
use crate::tcp_offload::with_edit;

/// Longest frame that is kept: a question of one segment, at the largest MTU in use.
const LONGEST: usize = 9216;

/// A copy of a frame that waits.
pub(super) struct Kept {
    vnet: VnetHdr,
    /// All of a frame without payload, as most are.
    headers: [u8; PREFIX_LEN],
    len: u8,
    /// All of any other.
    long: Vec<u8>,
}

impl Kept {
    /// Copies `frame`; `None` if it is longer than one that waits can be.
    pub(super) fn copy(frame: &Frame<'_>) -> Option<Self> {
        let len = frame.len as usize;
        let mut kept =
            Self { vnet: frame.vnet, headers: [0; PREFIX_LEN], len: 0, long: Vec::new() };
        if len == frame.prefix.len() && len <= PREFIX_LEN {
            kept.headers[..len].copy_from_slice(frame.prefix);
            kept.len = len as u8;
            return Some(kept);
        }
        (len <= LONGEST).then(|| {
            frame.append_to(&mut kept.long);
            kept
        })
    }

    fn bytes(&self) -> &[u8] {
        if self.long.is_empty() { &self.headers[..usize::from(self.len)] } else { &self.long }
    }
}

/// Sends what the clamp of `port` says.
pub(super) struct Output<'a> {
    pub(super) port: &'a Port,
    pub(super) delivery: &'a mut Delivery,
}

impl Sink<Kept> for Output<'_> {
    fn send(&mut self, kept: &Kept, edit: &Edit) {
        let bytes = kept.bytes();
        // It was parsed when it came.
        let Ok(meta) = parse(&bytes[..bytes.len().min(PREFIX_LEN)], bytes.len()) else { return };
        frame::with_slice(kept.vnet, bytes, |frame| {
            with_edit(frame, &meta, edit, |frame| {
                self.delivery.send(self.port.id, meta.dst_mac, frame);
            });
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::frames::{pattern, tcp};

    #[test]
    fn what_waits_is_kept_whole_or_not_at_all() {
        for payload in [0, 1, 100, 1448, 9000] {
            let bytes = tcp(1, 9, false).build(&pattern(4, payload));
            frame::with_slice(VnetHdr::default(), &bytes, |frame| {
                assert_eq!(Kept::copy(frame).unwrap().bytes(), bytes, "{payload}");
            });
        }
        let long = tcp(1, 9, false).build(&pattern(4, LONGEST));
        frame::with_slice(VnetHdr::default(), &long, |frame| assert!(Kept::copy(frame).is_none()));
    }
}
