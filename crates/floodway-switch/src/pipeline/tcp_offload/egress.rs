//! What the engine asks for, carried out.

use std::time::Duration;

use floodway_core::offload::journal::Image;
use floodway_core::offload::{
    Edit, FlowNotice, HEARTBEAT_LIFETIME_MS, Link, Sink, SynthesizedSegment, Transmission,
};
use floodway_process::fault::{self, Point};
use floodway_wire::notice::{self, Notice};
use floodway_wire::pcapng::Direction;
use floodway_wire::vnet::VnetHdr;
use floodway_wire::{FiveTuple, MacAddr};

use crate::api::capture::Stage;
use crate::frame::held::Held;
use crate::frame::iovec::GuestIoVec;
use crate::frame::{self, Frame, PREFIX_LEN, headers};
use crate::pipeline::delivery::{Delivery, Flush};
use crate::pipeline::inbound;
use crate::pipeline::taps::Verdict;
use crate::state::offload::Output;
use crate::state::port::Port;

const HEARTBEAT_LIFETIME: Duration = Duration::from_millis(HEARTBEAT_LIFETIME_MS as u64);
/// Source address of notices, and of what is sent after a guest that has moved: locally administered, and no host's.
const NOTICE_SOURCE: MacAddr = MacAddr([0x02, b'F', b'W', 0, 0, 1]);

/// Sends what the engine of `port` says.
pub(super) struct Egress<'a> {
    pub(super) port: &'a Port,
    pub(super) delivery: &'a mut Delivery,
    pub(super) output: &'a mut Output,
}

impl Egress<'_> {
    /// Sends a frame to where its destination is now, if the inbound clamp agrees.
    ///
    /// A peer that has come to live on this host hears the guest itself. What is stored for it may be older than a turn
    /// of the sequence numbers by now, and nobody needs it: the guest has it still.
    fn send(&mut self, frame: &Frame<'_>, dst: MacAddr) {
        let origin = self.port.origin();
        let shared = &self.delivery.shared;
        let found = shared.tables().of(origin.network).lookup(dst);
        // What was behind an uplink that has gone is looked for beyond the others.
        if found.is_some_and(|dst| self.delivery.ports.get(dst.index()).is_some()) {
            return;
        }
        inbound::to_network(self.port, self.delivery, frame, |delivery, frame| {
            delivery.send(origin, dst, frame);
        });
    }

    fn deliver_to_guest(&mut self, frame: &Frame<'_>) {
        if self.port.rx_running() == 0 && self.send_after_guest(frame) {
            return;
        }
        let pair = self.delivery.select_rx_queue(self.port.id, frame);
        let port = self.port;
        // It is the switch that speaks here, for somebody behind an uplink.
        self.delivery.deliver(port.origin(), port.id, pair, Flush::Later, frame);
    }

    /// Sends a frame to where its destination, the port's guest, is now. Returns `false` if that is not known.
    ///
    /// The frame carries a source address of ours: the network would look for its own at our port.
    #[cold]
    fn send_after_guest(&mut self, frame: &Frame<'_>) -> bool {
        let mut bytes = Vec::with_capacity(frame.len as usize);
        frame.append_to(&mut bytes);
        let Some((dst, rest)) = bytes.split_first_chunk_mut::<6>() else { return false };
        let Some(src) = rest.first_chunk_mut::<6>() else { return false };
        let guest = MacAddr(*dst);
        *src = NOTICE_SOURCE.0;
        let place = self.delivery.shared.tables().of(self.port.network).lookup(guest);
        if place.is_none_or(|place| place == self.port.id) {
            return false;
        }
        let origin = self.port.origin();
        frame::with_slice(frame.vnet, &bytes, |frame| self.delivery.send(origin, guest, frame));
        true
    }

    /// Shows a frame that the engine sends or delivers by itself.
    #[inline]
    fn show(&self, frame: &Frame<'_>, name: &'static str, direction: Direction) {
        let watch = self.port.tap.watch();
        if watch.wants(Stage::Offload) {
            let verdict = Verdict { name, direction, drop: None, flow: None };
            self.delivery.shared.capture_offloaded(self.port, frame, watch, &verdict);
        }
    }

    fn notify(&mut self, notice: &Notice, guest: MacAddr) {
        let mut bytes = [0; notice::MAX_FRAME_LEN];
        let nonce = self.port.nonce();
        // Offline notices say nothing of the switch.
        if !matches!(notice, Notice::Offline { .. }) {
            self.output.introduce(nonce);
        }
        notice.write_frame(NOTICE_SOURCE, guest, nonce, &mut bytes);
        frame::with_slice(VnetHdr::default(), &bytes, |frame| {
            self.show(frame, "notice", Direction::Outbound);
            self.deliver_to_guest(frame);
        });
    }
}

impl Sink<Held> for Egress<'_> {
    fn release(&mut self, held: &Held, release: &Transmission) {
        let payload = held.payload(release.offset, release.len);
        let len = payload.len() as u32;
        debug_assert_eq!(len, release.len, "the range lies in the frame");
        let segments = len.div_ceil(u32::from(release.mss).max(1)).max(1);
        let id = self.output.identify(segments);
        let (headers, vnet) = headers::released(held, release, len, id);
        let prefix = headers.as_slice();
        let parts = [GuestIoVec::from_slice(prefix), GuestIoVec::from_slice(payload)];
        let frame = Frame { vnet, prefix, parts: &parts, len: prefix.len() as u32 + len };
        self.show(&frame, "released", Direction::Inbound);
        self.send(&frame, held.meta().dst_mac);
    }

    fn to_network(&mut self, segment: &SynthesizedSegment) {
        let Link { guest, peer, .. } = segment.link;
        let bytes = headers::synthesized(segment, guest, peer, self.output.identify(1));
        frame::with_slice(VnetHdr::default(), bytes.as_slice(), |frame| {
            self.show(frame, "sent", Direction::Inbound);
            self.send(frame, peer);
        });
        fault::pass(Point::AckSent);
    }

    fn to_guest(&mut self, segment: &SynthesizedSegment) {
        let Link { guest, peer, .. } = segment.link;
        let bytes = headers::synthesized(segment, peer, guest, self.output.identify(1));
        let bytes = bytes.as_slice();
        frame::with_slice(VnetHdr::default(), bytes, |frame| {
            self.show(frame, "answered", Direction::Outbound);
            self.deliver_to_guest(frame);
        });
    }

    fn redeliver(&mut self, held: &Held, edit: &Edit) {
        let bytes = held.bytes();
        let prefix = &bytes[..bytes.len().min(PREFIX_LEN)];
        let parts = [GuestIoVec::from_slice(bytes)];
        let frame = Frame { vnet: held.vnet(), prefix, parts: &parts, len: bytes.len() as u32 };
        headers::with_edit(&frame, held.meta(), edit, |frame| {
            self.show(frame, "redelivered", Direction::Outbound);
            self.deliver_to_guest(frame);
        });
    }

    fn image<'f>(&self, held: &'f Held) -> Image<'f> {
        held.image()
    }

    fn heartbeat(&mut self, link: &Link, lifetime_ms: u16) {
        let lifetime = Duration::from_millis(lifetime_ms.into());
        self.notify(&Notice::Heartbeat { epoch: self.output.epoch, lifetime }, link.guest);
    }

    fn notify_flow(&mut self, flow: &FiveTuple, link: &Link, naming: FlowNotice) {
        let (epoch, flow) = (self.output.epoch, *flow);
        let notice = match naming {
            FlowNotice::Managed => Notice::Managed { epoch, lifetime: HEARTBEAT_LIFETIME, flow },
            FlowNotice::Offline => Notice::Offline { epoch, flow },
        };
        self.notify(&notice, link.guest);
    }
}
