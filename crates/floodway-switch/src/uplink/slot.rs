//! An uplink inside the switch: a sending half, which any worker may use, and a receiving half,
//! which one worker owns.
//!
//! A device that fails (it was deleted, or set down) is not used until it can be opened again,
//! which its worker tries once a second. What should have left meanwhile is counted as
//! `uplink_error`.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Arc, Mutex};

use floodway_core::l2::PortId;
use floodway_wire::vnet::VnetHdr;

use super::{OpenError, Received, Receiver, SendError, Sender};
use crate::config::UplinkConfig;
use crate::frame::{self, Frame};
use crate::port::lock;
use crate::stats::{DropReason, Traffic};
use crate::vnet_offload::{self, Offloads};

/// The half that sends, and the counters of both.
pub struct UplinkSlot {
    /// Its number in the forwarding table.
    pub id: PortId,
    /// As configured.
    pub config: UplinkConfig,
    sender: Mutex<Box<dyn Sender>>,
    /// Frames that left. Written under the sender's lock.
    pub sent: Traffic,
    /// Frames that arrived. Written by the worker that owns the receiving half.
    pub received: Traffic,
}

impl UplinkSlot {
    /// Opens both halves.
    ///
    /// # Errors
    /// The device cannot be used.
    pub fn open(
        id: PortId,
        config: UplinkConfig,
    ) -> Result<(Arc<Self>, UplinkReceiver), OpenError> {
        let (device, sender) = super::open(config.kind, &config.device)?;
        let slot = Arc::new(Self {
            id,
            config,
            sender: Mutex::new(sender),
            sent: Traffic::default(),
            received: Traffic::default(),
        });
        let receiver = UplinkReceiver { slot: Arc::clone(&slot), device, lost: 0, failed: false };
        Ok((slot, receiver))
    }

    /// Sends frames; what the device does not take is counted.
    pub fn send<'f>(&self, frames: impl Iterator<Item = Frame<'f>>) {
        let mut sender = lock(&self.sender);
        let can = sender.capabilities();
        let tso = can.csum && can.tso;
        let offloads = Offloads { csum: can.csum, tso4: tso, tso6: tso, ecn: tso };
        for frame in frames {
            if offloads.allow(&frame.vnet) {
                self.send_one(&mut **sender, &frame);
                continue;
            }
            let finished = vnet_offload::finish(&frame, offloads, |vnet, bytes| {
                frame::with_slice(vnet, bytes, |frame| self.send_one(&mut **sender, frame));
            });
            if let Err(reason) = finished {
                self.sent.count_drop(reason, 1);
            }
        }
    }

    fn send_one(&self, sender: &mut dyn Sender, frame: &Frame<'_>) {
        match sender.send(&frame.vnet, frame.parts) {
            Ok(()) => {
                self.sent.count(u64::from(frame.len));
                if frame.vnet.is_gso() {
                    self.sent.gso_packets.add(1);
                }
            }
            Err(SendError::Full) => self.sent.count_drop(DropReason::UplinkFull, 1),
            Err(SendError::Failed(error)) => {
                tracing::debug!(uplink = self.config.name, %error, "cannot send");
                self.sent.count_drop(DropReason::UplinkError, 1);
            }
        }
    }
}

/// A frame that has arrived, and the uplink that it arrived by.
pub struct Arrived<'a> {
    /// The uplink.
    pub slot: &'a UplinkSlot,
    /// Offload state.
    pub vnet: VnetHdr,
    /// The frame.
    pub frame: &'a [u8],
}

/// The half that receives.
pub struct UplinkReceiver {
    slot: Arc<UplinkSlot>,
    device: Box<dyn Receiver>,
    /// Lost frames of the device that have been counted.
    lost: u64,
    failed: bool,
}

impl UplinkReceiver {
    /// The device is gone or broken; nothing will arrive before [`UplinkReceiver::reopen`].
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.failed
    }

    /// The next frame that has arrived.
    pub fn recv(&mut self) -> Option<Arrived<'_>> {
        if self.failed {
            return None;
        }
        match self.device.recv() {
            Ok(None) => None,
            Ok(Some(Received { vnet, frame })) => Some(Arrived { slot: &self.slot, vnet, frame }),
            Err(error) => {
                self.failed = true;
                Self::report(&self.slot, &error);
                None
            }
        }
    }

    #[cold]
    fn report(slot: &UplinkSlot, error: &io::Error) {
        let (uplink, device) = (&slot.config.name, &slot.config.device);
        tracing::error!(uplink, device, %error, "the uplink failed; trying to open it again");
        slot.received.count_drop(DropReason::UplinkError, 1);
    }

    /// Opens a failed device again; answers whether that worked.
    pub fn reopen(&mut self) -> bool {
        let config = &self.slot.config;
        match super::open(config.kind, &config.device) {
            Ok((device, sender)) => {
                tracing::info!(uplink = config.name, device = config.device, "the uplink is back");
                self.device = device;
                self.lost = 0;
                self.failed = false;
                *lock(&self.slot.sender) = sender;
                true
            }
            Err(error) => {
                tracing::debug!(uplink = config.name, %error, "cannot open the uplink again");
                false
            }
        }
    }

    /// Counts what the device has lost since this was last called.
    pub fn count_lost(&mut self) {
        let lost = self.device.lost();
        let new = lost.saturating_sub(self.lost);
        if new > 0 {
            self.slot.received.count_drop(DropReason::UplinkFull, new);
        }
        self.lost = lost;
    }
}

impl AsRawFd for UplinkReceiver {
    /// Readable when a frame has arrived.
    fn as_raw_fd(&self) -> RawFd {
        self.device.fd()
    }
}
