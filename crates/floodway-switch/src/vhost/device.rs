//! The virtio-net device of one port, as vhost-user messages set it up.

mod moves;

use std::fs::File;
use std::os::fd::{FromRawFd, IntoRawFd};
use std::sync::Arc;
use std::time::Duration;

use floodway_wire::MacAddr;
use vhost::vhost_user::message::{
    VhostTransferStateDirection, VhostTransferStatePhase, VhostUserConfigFlags, VhostUserInflight,
    VhostUserLog, VhostUserMemoryRegion, VhostUserProtocolFeatures, VhostUserShMemConfig,
    VhostUserSharedMsg, VhostUserSingleMemoryRegion, VhostUserVringAddrFlags, VhostUserVringState,
};
use vhost::vhost_user::{Error, GpuBackend, Result, VhostUserBackendReqHandlerMut};
use vmm_sys_util::eventfd::EventFd;

use super::features;
use crate::api::events::EventKind;
use crate::memory::dirty_log::DirtyLog;
use crate::memory::sigbus::{Faults, Kind};
use crate::memory::{GuestMemory, MAX_REGIONS, RegionLayout};
use crate::queues::call::{self, Call};
use crate::queues::ring::Ring;
use crate::queues::virtqueue::{RingAddresses, Virtqueue};
use crate::state::front_end::VringFacts;
use crate::state::port::Port;
use moves::{Arrival, Departure};

/// One vring as the front-end has described it so far.
#[derive(Default)]
struct Vring {
    size: u16,
    addresses: Option<RingAddresses>,
    /// The avail index at which the ring goes on, as far as it is known without looking at the ring.
    base: u16,
    kick: Option<Arc<EventFd>>,
    call: Option<Arc<Call>>,
    /// `SET_VRING_KICK` has come, with or without a descriptor.
    started: bool,
    enabled: bool,
    /// It has been enabled since the front-end connected.
    was_enabled: bool,
}

impl Vring {
    fn facts(&self) -> VringFacts {
        VringFacts {
            size: self.size,
            addressed: self.addresses.is_some(),
            started: self.started,
            enabled: self.enabled,
            kick: self.kick.is_some(),
            call: self.call.is_some(),
        }
    }
}

/// Memories that were replaced and are still held, above which a front-end waits before it shares more.
const MAX_RETIRED: usize = 4;
/// Milliseconds that it waits at most. Workers let go of memory with their next batch.
const RETIRED_WAITS: u32 = 1000;

/// Rings come in pairs: even indices are receive rings, odd ones transmit.
fn is_rx(index: usize) -> bool {
    index.is_multiple_of(2)
}

/// The virtio-net device of one port.
pub struct Device {
    port: Arc<Port>,
    memory: Arc<GuestMemory>,
    /// Memory that was replaced. Workers may still hold it; unmapping it takes long, so none of them may be the last to let go.
    retired: Vec<Arc<GuestMemory>>,
    features: u64,
    protocol_features: u64,
    /// The dirty log, whether it is in use or not.
    log: Option<Arc<DirtyLog>>,
    /// The virtio device status, as the front-end last told it.
    status: u8,
    vrings: Vec<Vring>,
    /// What this connection's mappings have done. Each has its own: workers may let go of the last one's a little later.
    faults: Arc<Faults>,
    /// Signalled at each fault.
    alarm: Arc<EventFd>,
    departure: Departure,
    arrival: Arrival,
}

impl Device {
    /// A device that nobody has set up yet. `alarm`, which must be non-blocking and nobody else's, is signalled when memory of its
    /// front-end has gone.
    #[must_use]
    pub fn new(port: Arc<Port>, alarm: Arc<EventFd>) -> Self {
        let vrings = (0..2 * port.pairs.len()).map(|_| Vring::default()).collect();
        let faults = Arc::new(Faults::new(Arc::clone(&alarm)));
        let memory = Arc::new(GuestMemory::new(port.memory.clone(), Arc::clone(&faults)));
        let retired = Vec::new();
        Self {
            port,
            memory,
            retired,
            features: 0,
            protocol_features: 0,
            log: None,
            status: 0,
            vrings,
            faults,
            alarm,
            departure: Departure::default(),
            arrival: Arrival::default(),
        }
    }

    /// Writes down what the front-end has set up, for whoever asks the port.
    pub fn publish(&self) {
        let vrings = self.vrings.iter().map(Vring::facts).collect();
        self.port.front_end.set_device(self.protocol_features, self.memory.layouts(), vrings);
    }

    /// Unmaps memory that was replaced and that no worker holds any more; returns `true` if there is more.
    pub fn drop_retired(&mut self) -> bool {
        // Whoever held it has got it from the rings, which have another one: none can come back to it.
        self.retired.retain(|memory| Arc::strong_count(memory) > 1);
        !self.retired.is_empty()
    }

    fn replace_memory(&mut self, memory: GuestMemory) {
        self.retired.push(std::mem::replace(&mut self.memory, Arc::new(memory)));
    }

    /// Waits until workers have let go of most memory that was replaced, so that a front-end cannot make it pile up.
    fn await_retired(&mut self) {
        for _ in 0..RETIRED_WAITS {
            if !self.drop_retired() || self.retired.len() < MAX_RETIRED {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// What of the front-end's memory has gone since it connected, if any has.
    #[must_use]
    pub fn lost_memory(&self) -> Option<Kind> {
        // Who was signalled looks here: a fault from now on signals again.
        let _ = self.alarm.read();
        self.faults.first()
    }

    /// Forgets everything that a front-end has set up: it is gone.
    pub fn disconnect(&mut self) {
        self.reset();
        self.port.offload.end_drain();
        self.port.forget_own();
        self.port.inbound.reset();
        self.vrings.fill_with(Vring::default);
        self.faults = Arc::new(Faults::new(Arc::clone(&self.alarm)));
        self.replace_memory(GuestMemory::new(self.port.memory.clone(), Arc::clone(&self.faults)));
        self.log = None;
        self.status = 0;
        self.features = 0;
        self.protocol_features = 0;
        self.port.set_features(0);
        self.port.set_connected(false);
        self.port.front_end.on_disconnected();
        self.end_departure();
        self.expect_nothing();
        self.publish();
    }

    /// The port.
    #[must_use]
    pub fn port(&self) -> &Port {
        &self.port
    }

    /// The virtio device status, as the front-end last told it.
    #[must_use]
    pub fn status(&self) -> u8 {
        self.status
    }

    /// The avail index at which a stopped ring goes on. `None` if there is no such ring.
    #[must_use]
    pub fn base(&self, index: u32) -> Option<u16> {
        self.vrings.get(index as usize).map(|vring| vring.base)
    }

    /// Notes the virtio device status. Zero resets the device.
    ///
    /// # Errors
    /// More than a status has bits.
    pub fn set_status(&mut self, status: u64) -> Result<()> {
        self.status = u8::try_from(status).map_err(|_| Error::InvalidParam)?;
        if self.status == 0 {
            self.reset_device()?;
        }
        Ok(())
    }

    /// Announces a guest that has moved here and cannot do so itself. The first six bytes of `address` are its address.
    ///
    /// # Errors
    /// Not an address that the port's guest may use.
    pub fn send_rarp(&mut self, address: u64) -> Result<()> {
        let [a, b, c, d, e, f, _, _] = address.to_ne_bytes();
        let mac = MacAddr([a, b, c, d, e, f]);
        if mac.is_multicast() || self.port.policy.check_mac(mac).is_err() {
            return Err(Error::InvalidParam);
        }
        self.port.announce(mac);
        Ok(())
    }

    /// The front-end will tell its guest this MTU.
    ///
    /// # Errors
    /// Larger than the port's, which would drop the guest's frames.
    pub fn set_mtu(&mut self, mtu: u64) -> Result<()> {
        let limit = self.port.config.mtu;
        if mtu > u64::from(limit) {
            let error = format_args!("an MTU of {mtu}, and the port allows {limit}");
            self.port.front_end.note_error(&error);
            let reason = error.to_string();
            self.port.emit(|port| EventKind::PortRefused { port, reason });
            return Err(Error::InvalidParam);
        }
        Ok(())
    }

    /// Stops all rings. That may be a pause, so what the switch knows of the guest's connections stays.
    fn reset(&mut self) {
        for index in 0..self.vrings.len() {
            self.stop(index);
            self.set_kick(index, None);
            // QEMU 7.2 stops a device by status 0 and asks for the bases after that: where the guest goes on elsewhere.
            let base = self.vrings[index].base;
            self.vrings[index] = Vring { base, ..Vring::default() };
        }
    }

    fn vring(&mut self, index: u32) -> Result<(usize, &mut Vring)> {
        let index = index as usize;
        let vring = self.vrings.get_mut(index).ok_or(Error::InvalidParam)?;
        Ok((index, vring))
    }

    /// Starts, restarts or stops the ring, whichever the vring's description asks for.
    fn update(&mut self, index: usize) -> Result<()> {
        let vring = &self.vrings[index];
        // A transmit ring that is disabled is emptied and its frames discarded. But not before it was
        // ever enabled: then it may hold frames from before the switch started again.
        let runs = vring.started && (vring.enabled || (vring.was_enabled && !is_rx(index)));
        let (true, Some(addresses)) = (runs, vring.addresses) else {
            self.stop(index);
            return Ok(());
        };
        if !self.may_start() {
            return Ok(());
        }
        self.return_from_move();
        let (vring, pair) = (&self.vrings[index], &self.port.pairs[index / 2]);
        let event_idx = self.features & features::EVENT_IDX != 0;
        let memory = Arc::clone(&self.memory);
        let call = vring.call.clone();
        // The old ring, if there is one, finishes its work before the new one reads where it stood.
        let start = || match Virtqueue::new(memory, vring.size, addresses, event_idx) {
            Ok(queue) => Ok(Ring { queue, call }),
            Err(error) => {
                let reason = format!("vring {index} cannot start: {error}");
                self.port.front_end.note_error(&reason);
                self.port.emit(|port| EventKind::PortRefused { port, reason });
                Err(Error::InvalidParam)
            }
        };
        let started = if is_rx(index) {
            let mut rx = pair.rx();
            rx.flush();
            start().map(|ring| rx.start(ring, features::rx(self.features)))
        } else {
            let mut tx = pair.tx();
            tx.set_enabled(vring.enabled);
            start().map(|ring| tx.start(ring, features::tx(self.features)))
        };
        if started.is_err() {
            self.stop(index);
        }
        self.port.update_rx_running();
        self.port.waker.wake();
        started
    }

    /// Stops the ring and notes where it can go on.
    fn stop(&mut self, index: usize) {
        let pair = &self.port.pairs[index / 2];
        let ring = if is_rx(index) { pair.rx().stop() } else { pair.tx().stop() };
        self.port.update_rx_running();
        if let Some(ring) = ring {
            self.vrings[index].base = ring.queue.next_avail();
            self.export_if_stopped();
        }
    }

    /// Sets up again, in the memory as it is now, every ring that runs or should. One that cannot
    /// run there stops: the front-end may be about to add the memory that it lies in.
    fn update_all(&mut self) {
        for index in 0..self.vrings.len() {
            // The reason was logged.
            let _ = self.update(index);
        }
    }

    fn set_memory(&mut self, memory: &GuestMemory) {
        self.replace_memory(memory.with_log(self.log_in_use()));
        self.update_all();
    }

    /// The dirty log, if the front-end wants writes to be noted.
    fn log_in_use(&self) -> Option<Arc<DirtyLog>> {
        self.log.clone().filter(|_| self.features & features::LOG_ALL != 0)
    }

    fn set_kick(&mut self, index: usize, kick: Option<EventFd>) {
        let vring = &mut self.vrings[index];
        if let Some(old) = vring.kick.take() {
            self.port.waker.unwatch(&*old);
        }
        if let Some(kick) = kick {
            self.port.waker.watch(&kick, self.port.id);
            vring.kick = Some(Arc::new(kick));
        }
    }

    fn refuse(&self, error: &dyn std::error::Error) -> Error {
        self.port.front_end.note_error(&error);
        let reason = error.to_string();
        self.port.emit(|port| EventKind::PortRefused { port, reason });
        Error::InvalidParam
    }
}

fn layout(region: &VhostUserMemoryRegion) -> RegionLayout {
    RegionLayout {
        gpa: region.guest_phys_addr,
        size: region.memory_size,
        frontend_addr: region.user_addr,
        file_offset: region.mmap_offset,
    }
}

fn event_fd(file: File) -> EventFd {
    // SAFETY: `into_raw_fd` gives up the descriptor, so the EventFd is its only owner.
    unsafe { EventFd::from_raw_fd(file.into_raw_fd()) }
}

impl VhostUserBackendReqHandlerMut for Device {
    fn set_owner(&mut self) -> Result<()> {
        Ok(())
    }

    fn reset_owner(&mut self) -> Result<()> {
        self.reset();
        Ok(())
    }

    fn reset_device(&mut self) -> Result<()> {
        self.reset();
        self.features = 0;
        self.port.set_features(0);
        self.note_migration();
        Ok(())
    }

    fn get_features(&mut self) -> Result<u64> {
        Ok(features::offered(self.port.config.queue_pairs))
    }

    fn set_features(&mut self, features: u64) -> Result<()> {
        let pairs = self.port.config.queue_pairs;
        features::check(features, pairs).map_err(|error| self.refuse(&error))?;
        self.features = features;
        self.port.set_features(features & !features::LOG_ALL);
        if self.memory.is_logged() != self.log_in_use().is_some() {
            self.replace_memory(self.memory.with_log(self.log_in_use()));
        }
        if features & features::PROTOCOL_FEATURES == 0 {
            // Without protocol features there is no SET_VRING_ENABLE: rings are enabled at once.
            for vring in &mut self.vrings {
                vring.enabled = true;
                vring.was_enabled = true;
            }
        }
        self.update_all();
        self.note_migration();
        Ok(())
    }

    fn set_mem_table(
        &mut self,
        regions: &[VhostUserMemoryRegion],
        files: Vec<File>,
        _postcopy: Option<bool>,
    ) -> Result<Option<Vec<vhost::VhostUserMemoryRegionBase>>> {
        self.await_retired();
        let table = regions.iter().map(layout).zip(files);
        let memory = self.memory.with_table(table).map_err(|e| self.refuse(&e))?;
        self.set_memory(&memory);
        Ok(None)
    }

    fn get_max_mem_slots(&mut self) -> Result<u64> {
        Ok(self.port.memory.regions().min(MAX_REGIONS as u64))
    }

    fn add_mem_region(
        &mut self,
        region: &VhostUserSingleMemoryRegion,
        file: File,
        _postcopy: Option<bool>,
    ) -> Result<Option<vhost::VhostUserMemoryRegionBase>> {
        // QEMU before 8.0 says all of it for each queue pair, and removes it for each, too.
        if self.memory.has(layout(region), &file) {
            return Ok(None);
        }
        self.await_retired();
        let memory = self.memory.with_region(layout(region), &file).map_err(|e| self.refuse(&e))?;
        self.set_memory(&memory);
        Ok(None)
    }

    fn remove_mem_region(&mut self, region: &VhostUserSingleMemoryRegion) -> Result<()> {
        let (gpa, size) = (region.guest_phys_addr, region.memory_size);
        if let Ok(memory) = self.memory.without_region(gpa, size) {
            self.set_memory(&memory);
        }
        Ok(())
    }

    fn set_vring_num(&mut self, index: u32, num: u32) -> Result<()> {
        let size = u16::try_from(num).map_err(|_| Error::InvalidParam)?;
        self.vring(index)?.1.size = size;
        Ok(())
    }

    fn set_vring_addr(
        &mut self,
        index: u32,
        _flags: VhostUserVringAddrFlags,
        descriptor: u64,
        used: u64,
        available: u64,
        _log: u64,
    ) -> Result<()> {
        let (index, vring) = self.vring(index)?;
        vring.addresses = Some(RingAddresses { desc: descriptor, avail: available, used });
        self.update(index)
    }

    fn set_vring_base(&mut self, index: u32, base: u32) -> Result<()> {
        // The used ring says where to go on, also after a crash, when the front-end can only guess.
        // This is what it is told if the ring never runs.
        self.vring(index)?.1.base = base as u16;
        Ok(())
    }

    fn get_vring_base(&mut self, index: u32) -> Result<VhostUserVringState> {
        // There is no way to refuse this one but to hang up: the front-end waits for the answer.
        let (i, vring) = self.vring(index).map_err(|_| Error::FrontendInternalError)?;
        vring.started = false;
        self.stop(i);
        self.set_kick(i, None);
        self.vrings[i].call = None;
        Ok(VhostUserVringState::new(index, u32::from(self.vrings[i].base)))
    }

    fn set_vring_kick(&mut self, index: u8, fd: Option<File>) -> Result<()> {
        let kick = fd.map(|file| call::require_eventfd(file, "SET_VRING_KICK")).transpose();
        let kick = kick.map_err(|error| self.refuse(&error))?;
        let (index, vring) = self.vring(u32::from(index))?;
        vring.started = true;
        self.set_kick(index, kick.map(event_fd));
        self.update(index)
    }

    fn set_vring_call(&mut self, index: u8, fd: Option<File>) -> Result<()> {
        let call = fd.map(Call::new).transpose().map_err(|error| self.refuse(&error))?;
        let (index, vring) = self.vring(u32::from(index))?;
        let call = call.map(Arc::new);
        vring.call.clone_from(&call);
        let pair = &self.port.pairs[index / 2];
        let change = |ring: &mut Ring| ring.call.clone_from(&call);
        let runs = if is_rx(index) {
            pair.rx().ring_mut().map(change).is_some()
        } else {
            pair.tx().ring_mut().map(change).is_some()
        };
        // An interrupt sent to the old descriptor may never have arrived. Not under the queue's lock, which workers need.
        if let Some(call) = call.filter(|_| runs) {
            call.signal();
        }
        Ok(())
    }

    fn set_vring_err(&mut self, index: u8, _fd: Option<File>) -> Result<()> {
        self.vring(u32::from(index)).map(|_| ())
    }

    fn get_protocol_features(&mut self) -> Result<VhostUserProtocolFeatures> {
        Ok(features::protocol())
    }

    fn set_protocol_features(&mut self, features: u64) -> Result<()> {
        if features & !features::protocol().bits() != 0 {
            return Err(Error::InvalidParam);
        }
        self.protocol_features = features;
        Ok(())
    }

    fn get_queue_num(&mut self) -> Result<u64> {
        Ok(self.port.pairs.len() as u64)
    }

    fn set_vring_enable(&mut self, index: u32, enable: bool) -> Result<()> {
        let (index, vring) = self.vring(index)?;
        vring.enabled = enable;
        vring.was_enabled |= enable;
        self.update(index)
    }

    // What follows belongs to protocol features that are not offered, but for the dirty log.

    fn get_config(&mut self, _: u32, _: u32, _: VhostUserConfigFlags) -> Result<Vec<u8>> {
        Err(Error::InactiveOperation(VhostUserProtocolFeatures::CONFIG))
    }

    fn set_config(&mut self, _: u32, _: &[u8], _: VhostUserConfigFlags) -> Result<()> {
        Err(Error::InactiveOperation(VhostUserProtocolFeatures::CONFIG))
    }

    fn set_gpu_socket(&mut self, _: GpuBackend) -> Result<()> {
        Err(Error::InvalidOperation("this is a network device"))
    }

    fn get_shared_object(&mut self, _: VhostUserSharedMsg) -> Result<File> {
        Err(Error::InactiveOperation(VhostUserProtocolFeatures::SHARED_OBJECT))
    }

    fn get_inflight_fd(&mut self, _: &VhostUserInflight) -> Result<(VhostUserInflight, File)> {
        Err(Error::InactiveOperation(VhostUserProtocolFeatures::INFLIGHT_SHMFD))
    }

    fn set_inflight_fd(&mut self, _: &VhostUserInflight, _: File) -> Result<()> {
        Err(Error::InactiveOperation(VhostUserProtocolFeatures::INFLIGHT_SHMFD))
    }

    fn set_device_state_fd(
        &mut self,
        _: VhostTransferStateDirection,
        _: VhostTransferStatePhase,
        _: File,
    ) -> Result<Option<File>> {
        Err(Error::InactiveOperation(VhostUserProtocolFeatures::DEVICE_STATE))
    }

    fn check_device_state(&mut self) -> Result<()> {
        Err(Error::InactiveOperation(VhostUserProtocolFeatures::DEVICE_STATE))
    }

    fn get_shmem_config(&mut self) -> Result<VhostUserShMemConfig> {
        Err(Error::InactiveOperation(VhostUserProtocolFeatures::SHMEM))
    }

    fn set_log_base(&mut self, log: &VhostUserLog, file: File) -> Result<()> {
        let map = DirtyLog::map(&file, log.mmap_offset, log.mmap_size, &self.faults);
        self.log = Some(Arc::new(map.map_err(|error| self.refuse(&error))?));
        if self.memory.is_logged() {
            // A larger one in place of the one in use.
            let memory = Arc::clone(&self.memory);
            self.set_memory(&memory);
        }
        self.note_migration();
        Ok(())
    }
}
