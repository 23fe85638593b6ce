//! An uplink inside the switch: a sending half, which any worker may use, with all that is before the
//! device ([`crate::egress`]), and a receiving half, which one worker owns.
//!
//! A device that fails (it was deleted, or set down) is not used until it can be opened again,
//! which its worker tries once a second, by itself or through a broker ([`DeviceSupply`]). What should have left meanwhile is counted as
//! `uplink_error`.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};

use floodway_core::l2::{NetworkId, Origin, PortId, StormLimit};
use floodway_core::time::Instant;
use floodway_core::work::Work;
use floodway_wire::MacAddr;
use floodway_wire::vnet::VnetHdr;

use super::carried::Carried;
use super::supply::DeviceSupply;
use crate::api::events::EventKind;
use crate::capture::{Captures, Tap};
use crate::config::{MeterConfig, UplinkConfig};
use crate::egress::{Egress, LinkRate, Outbox, Settings, SharedEgress};
use crate::events::Events;
use crate::frame::Frame;
use crate::kept::counters::UplinkCounters;
use crate::stats::{DropReason, Traffic};
use crate::sync::deadline::Deadline;
use crate::sync::lock;
use crate::sync::waker::Waker;
use crate::uplink::{self, Device, OpenError, Received, Receiver, Sender};

/// Who opens an uplink's device.
#[derive(Clone, Debug)]
pub enum DeviceSource {
    /// This process.
    Own,
    /// This process, which has it open; by the name when it has failed.
    Opened(Arc<Mutex<Option<Device>>>),
    /// A broker.
    Broker(Arc<DeviceSupply>),
}

/// Why an uplink cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum UplinkError {
    /// Its device cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// Descriptors have run out.
    #[error("no descriptor is left: {0}")]
    Descriptors(#[from] io::Error),
}

impl DeviceSource {
    /// Opens or takes the device named by `config`, for the first time. `None` if a broker has none yet.
    fn first(&self, config: &UplinkConfig) -> Result<Option<Device>, OpenError> {
        match self {
            Self::Own => Device::open(config.kind, &config.device).map(Some),
            Self::Opened(device) => match lock(device).take() {
                None => Device::open(config.kind, &config.device).map(Some),
                device => Ok(device),
            },
            Self::Broker(supply) => Ok(supply.take()),
        }
    }

    /// A copy of `device` for an uplink that may take over. A broker keeps its own.
    fn keep(&self, device: Option<&Device>) -> Option<Device> {
        match self {
            Self::Own | Self::Opened(_) => device.and_then(|device| device.try_clone().ok()),
            Self::Broker(_) => None,
        }
    }

    /// As [`first`](Self::first), after a failure.
    fn next(&self, config: &UplinkConfig) -> Result<Option<Device>, OpenError> {
        let device = self.first(config)?;
        if let (Self::Broker(supply), None) = (self, &device) {
            supply.request();
        }
        Ok(device)
    }
}

/// The half that sends, and the counters of both.
pub struct Uplink {
    /// Its number in the forwarding table.
    pub id: PortId,
    /// As configured.
    pub config: UplinkConfig,
    /// The networks that it carries, and what may be flooded to each.
    pub carried: Carried<FloodLimits>,
    egress: SharedEgress,
    /// The open device, for another uplink that takes over.
    device: Mutex<Option<Device>>,
    /// When the egress has something to do.
    deadline: Deadline,
    /// The worker that owns the receiving half and looks at the deadline.
    waker: Arc<Waker>,
    events: Arc<Events>,
    /// Frames that left. Written under the egress's lock.
    pub sent: Outbox,
    /// Frames that arrived. Written by the worker that owns the receiving half.
    pub received: Traffic,
}

/// What may come from the network and go to many, each second.
pub struct FloodLimits {
    /// Broadcast and unknown unicast.
    storm: Mutex<StormLimit>,
    multicast: Mutex<StormLimit>,
}

impl FloodLimits {
    fn of(config: &UplinkConfig) -> Self {
        let limit = |pps: u32| Mutex::new(StormLimit::new(pps.into(), Instant::ZERO));
        Self { storm: limit(config.storm_pps), multicast: limit(config.multicast_pps) }
    }
}

impl Uplink {
    /// Makes both halves of the device that `source` has; `waker` is that of the uplink's worker; what it does is counted in `kept`. Without a device, which a broker may not have yet,
    /// the receiving half has failed.
    ///
    /// # Errors
    /// The device cannot be used.
    pub fn open(
        id: PortId,
        config: UplinkConfig,
        defaults: &EgressDefaults<'_>,
        waker: Arc<Waker>,
        source: DeviceSource,
        kept: UplinkCounters,
    ) -> Result<(Arc<Self>, UplinkReceiver), UplinkError> {
        let device = source.first(&config)?;
        let failed = device.is_none();
        let link = device.as_ref().and_then(Device::link_rate);
        let shared = source.keep(device.as_ref());
        let (device, sender) = match device {
            Some(device) => device.halves(&config.device),
            None => uplink::absent::halves()?,
        };
        let link = LinkRate::new(link);
        let UplinkCounters { sent, received, meter } = kept;
        let mut slot = Self::with_sender(id, config, defaults, link, sender, waker, meter);
        (slot.sent.traffic, slot.received) = (sent, received);
        slot.device = Mutex::new(shared);
        let slot = Arc::new(slot);
        if failed {
            Self::tell_failure(&slot, "the broker has no device yet");
        }
        let receiver = UplinkReceiver { slot: Arc::clone(&slot), source, device, lost: 0, failed };
        Ok((slot, receiver))
    }

    fn tell_failure(slot: &Self, reason: &str) {
        let UplinkConfig { name, device, .. } = &slot.config;
        let (uplink, device, reason) = (name.clone(), device.clone(), reason.to_owned());
        slot.events.emit(EventKind::UplinkDown { uplink, device, reason });
    }

    /// A half that sends through `sender`, to a link of rate `link` if the configuration names none; its meters count in `meter`.
    fn with_sender(
        id: PortId,
        config: UplinkConfig,
        defaults: &EgressDefaults<'_>,
        link: LinkRate,
        sender: Box<dyn Sender>,
        waker: Arc<Waker>,
        meter: Option<&'static [AtomicU64]>,
    ) -> Self {
        let settings = Settings { counters: meter, ..defaults.settings(&config, link) };
        let limits = |_: &_| FloodLimits::of(&config);
        Self {
            id,
            carried: Carried::new(config.network.as_ref(), &config.tagged, limits),
            config,
            egress: SharedEgress::new(Egress::new(sender, &settings, Instant::ZERO)),
            device: Mutex::new(None),
            deadline: Deadline::default(),
            waker,
            events: Arc::clone(defaults.events),
            sent: Outbox::new(Arc::clone(defaults.captures)),
            received: Traffic::default(),
        }
    }

    /// Sends frames from `origin`, with a tag if their network has one here, or lets them wait; what is dropped is counted. Returns `true` if something of
    /// the source is left to be cut: its worker has to [`resume`](Self::resume).
    #[must_use]
    pub fn send<'f>(
        &self,
        origin: Origin,
        now: Instant,
        frames: impl Iterator<Item = Frame<'f>>,
    ) -> bool {
        if self.carried.untagged() == Some(origin.network) {
            return self.send_as_is(origin.port, now, frames);
        }
        let mut is_left = false;
        for frame in frames {
            self.carried.put_tag(origin.network, &frame, |frame| {
                is_left = self.send_as_is(origin.port, now, std::iter::once(*frame));
            });
        }
        is_left
    }

    fn send_as_is<'f>(
        &self,
        source: PortId,
        now: Instant,
        frames: impl Iterator<Item = Frame<'f>>,
    ) -> bool {
        self.egress.send(source, now, frames, &self.sent, |egress| self.publish(egress))
    }

    /// Cuts the next piece of what is left of `source`. Returns what that has cost, as far as it was not charged; `None` if nothing is left.
    pub fn resume(&self, source: PortId, now: Instant) -> Option<Work> {
        self.egress.resume(source, now, &self.sent, |egress| self.publish(egress))
    }

    /// Returns `true` if a frame of `segments` segments that has come by this uplink may be flooded in `network`, to `dst`.
    #[must_use]
    pub fn admits_flood(
        &self,
        network: NetworkId,
        dst: MacAddr,
        segments: u32,
        now: Instant,
    ) -> bool {
        self.flood_limit(network, dst).is_some_and(|limit| lock(limit).admit(segments, now))
    }

    /// The limit that holds for what has come by this uplink and is flooded in `network`, to `dst`; `None` if it does not carry the network.
    #[must_use]
    pub fn flood_limit(&self, network: NetworkId, dst: MacAddr) -> Option<&Mutex<StormLimit>> {
        let is_multicast = dst.is_multicast() && dst != MacAddr::BROADCAST;
        let FloodLimits { storm, multicast } = self.carried.get(network)?;
        Some(if is_multicast { multicast } else { storm })
    }

    /// When [`run_timer`](Self::run_timer) is due.
    #[inline]
    #[must_use]
    pub fn next_timeout(&self) -> Instant {
        self.deadline.get()
    }

    /// Sends what waits, if it is time; returns whether it was.
    #[inline]
    pub fn run_timer(&self, now: Instant) -> bool {
        if self.next_timeout() > now {
            return false;
        }
        self.egress.with(|egress| {
            egress.pump(now, &self.sent);
            self.publish(egress);
        });
        true
    }

    /// What is done once a second.
    pub fn run_housekeeping(&self, now: Instant) {
        self.egress.with(|egress| egress.run_housekeeping(now));
    }

    /// Returns `true` if GSO packets are cut before they leave.
    #[inline]
    #[must_use]
    pub fn cuts_gso_packets(&self) -> bool {
        self.egress.cuts_gso_packets()
    }

    /// Which captures want what of it.
    #[inline]
    #[must_use]
    pub const fn tap(&self) -> &Tap {
        &self.sent.tap
    }

    /// What is before the device.
    pub fn egress(&self) -> &SharedEgress {
        &self.egress
    }

    /// Puts limits of `config` into effect that change nothing else.
    pub(crate) fn configure_floods(&self, config: &UplinkConfig, now: Instant) {
        for FloodLimits { storm, multicast } in self.carried.values() {
            *lock(storm) = StormLimit::new(config.storm_pps.into(), now);
            *lock(multicast) = StormLimit::new(config.multicast_pps.into(), now);
        }
    }

    /// Sends what waits as far as the device takes it now, and drops and counts the rest; to be called when no worker knows the uplink any more.
    pub(crate) fn retire(&self, now: Instant) {
        self.egress.retire(now, &self.sent);
    }

    /// The device, for an uplink that takes over; `None` if it is a broker's or there is none.
    pub(crate) fn share_device(&self) -> Option<Device> {
        lock(&self.device).as_ref().and_then(|device| device.try_clone().ok())
    }

    pub(crate) fn replace_sender(&self, sender: Box<dyn Sender>) {
        self.egress.with(|egress| {
            egress.replace_sender(sender);
            self.publish(egress);
        });
    }

    /// Makes known when the worker has to look.
    fn publish(&self, egress: &Egress) {
        self.waker.publish(&self.deadline, egress.next_look());
    }
}

/// What uplinks have in common.
pub struct EgressDefaults<'a> {
    /// The meter.
    pub meter: &'a MeterConfig,
    /// Numbers below this one are guests'.
    pub guests: usize,
    /// Guests must not know it.
    pub seed: u64,
    /// Who looks at frames.
    pub captures: &'a Arc<Captures>,
    /// Who hears of failures.
    pub events: &'a Arc<Events>,
}

impl EgressDefaults<'_> {
    fn settings(&self, config: &UplinkConfig, link: LinkRate) -> Settings {
        let link = config.queue.rate.map_or(link, |rate| LinkRate::new(Some(rate)));
        Settings {
            queue: config.queue.clone(),
            meter: self.meter.clone(),
            link,
            guests: self.guests,
            seed: self.seed,
            counters: None,
        }
    }
}

/// A frame that has arrived, and the uplink that it arrived by.
pub struct ReceivedFrame<'a> {
    /// The uplink.
    pub slot: &'a Uplink,
    /// Offload state.
    pub vnet: VnetHdr,
    /// The frame.
    pub frame: &'a [u8],
}

/// The half that receives.
pub struct UplinkReceiver {
    slot: Arc<Uplink>,
    source: DeviceSource,
    device: Box<dyn Receiver>,
    /// Lost frames of the device that have been counted.
    lost: u64,
    failed: bool,
}

impl UplinkReceiver {
    /// The half that sends.
    #[must_use]
    pub fn slot(&self) -> &Uplink {
        &self.slot
    }

    /// The device is gone or broken; nothing will arrive before [`UplinkReceiver::reopen`].
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.failed
    }

    /// The next frame that has arrived.
    pub fn recv(&mut self) -> Option<ReceivedFrame<'_>> {
        if self.failed {
            return None;
        }
        match self.device.recv() {
            Ok(None) => None,
            Ok(Some(Received { vnet, frame })) => {
                Some(ReceivedFrame { slot: &self.slot, vnet, frame })
            }
            Err(error) => {
                self.failed = true;
                Self::report(&self.slot, &error);
                None
            }
        }
    }

    #[cold]
    fn report(slot: &Uplink, error: &io::Error) {
        Uplink::tell_failure(slot, &error.to_string());
        slot.received.count_drop(DropReason::UplinkError, 1);
    }

    /// Opens a failed device again. Returns `true` if that worked; `false` also if a broker was asked, which answers later.
    pub fn reopen(&mut self) -> bool {
        let config = &self.slot.config;
        match self.source.next(config) {
            Ok(Some(device)) => {
                *lock(&self.slot.device) = self.source.keep(Some(&device));
                let (device, sender) = device.halves(&config.device);
                let (uplink, name) = (config.name.clone(), config.device.clone());
                self.device = device;
                self.lost = 0;
                self.failed = false;
                self.slot.replace_sender(sender);
                self.slot.events.emit(EventKind::UplinkUp { uplink, device: name });
                true
            }
            Ok(None) => false,
            Err(error) => {
                tracing::debug!(uplink = config.name, %error, "cannot open the uplink again");
                false
            }
        }
    }

    /// Ends it: what was taken from the device and not forwarded is dropped and counted.
    pub fn close(mut self) {
        self.count_lost();
        self.slot.received.count_drop(DropReason::UplinkError, self.device.pending());
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
