//! The way out of what has waited.

use floodway_core::inbound::Sink;
use floodway_core::offload::Edit;
use floodway_wire::parse;

use crate::frame::headers::with_edit;
use crate::frame::{self, PREFIX_LEN};
use crate::pipeline::delivery::Delivery;
use crate::state::inbound::Kept;
use crate::state::port::Port;

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
                self.delivery.send(self.port.origin(), meta.dst_mac, frame);
            });
        });
    }
}
