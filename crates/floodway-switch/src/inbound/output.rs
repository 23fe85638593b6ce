//! ACKs that wait, and their way out.

use floodway_core::inbound::Sink;
use floodway_core::offload::Edit;
use floodway_wire::parse;
use floodway_wire::vnet::VnetHdr;

use crate::delivery::Delivery;
use crate::frame::{self, Frame, PREFIX_LEN};
use crate::port::Port;
use crate::tcp_offload::with_edit;

/// A copy of a frame that has no payload.
pub(super) struct Ack {
    vnet: VnetHdr,
    len: u8,
    bytes: [u8; PREFIX_LEN],
}

impl Ack {
    /// Copies `frame`; `None` if it is longer than headers can be.
    pub(super) fn copy(frame: &Frame<'_>) -> Option<Self> {
        let len = frame.prefix.len();
        if len != frame.len as usize || len > PREFIX_LEN {
            return None;
        }
        let mut bytes = [0; PREFIX_LEN];
        bytes[..len].copy_from_slice(frame.prefix);
        Some(Self { vnet: frame.vnet, len: len as u8, bytes })
    }

    fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

/// Sends what the clamp of `port` says.
pub(super) struct Output<'a> {
    pub(super) port: &'a Port,
    pub(super) delivery: &'a mut Delivery,
}

impl Sink<Ack> for Output<'_> {
    fn send(&mut self, ack: &Ack, edit: &Edit) {
        // It was parsed when it came.
        let Ok(meta) = parse(ack.bytes(), ack.bytes().len()) else { return };
        frame::with_slice(ack.vnet, ack.bytes(), |frame| {
            with_edit(frame, &meta, edit, |frame| {
                self.delivery.send(self.port.id, meta.dst_mac, frame);
            });
        });
    }
}
