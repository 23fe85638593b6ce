//! VMs in this process: memory, rings and a front-end, with as little work for each frame as can be.
//!
//! Slot *i* of a ring is descriptor *i*. A frame that is in a slot's buffer once is sent again and again by
//! making its descriptor available, and a receive buffer is given back without being looked at. That keeps the switch the bottleneck
//! with all VMs on one core.
//!
//! A slot has one buffer, or several, and goes on to the next one of them whenever it is made available ([`Spec::laps`]): so a ring that is no longer than real ones
//! leads through more memory than caches hold.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use floodway_switch::testing::driver::F_WRITE;
use floodway_switch::testing::memory::Pages;
use floodway_switch::testing::{DriverQueue, Frontend, RawDescriptor, TestMemory, message};
use floodway_switch::vhost::features;
use floodway_wire::vnet::{self, VnetHdr};
use vmm_sys_util::eventfd::EventFd;

const PAGE: u64 = 4096;
/// Protocol feature: regions are added one by one.
const CONFIGURE_MEM_SLOTS: u64 = 1 << 15;
/// Connections that a switch may have closed by itself.
const ATTEMPTS: usize = 4;
/// Regions of a whole memory table, at most.
const TABLE_REGIONS: u64 = 8;
/// Chains that are taken back from a ring before others get their turn.
const BURST: usize = 64;

/// What a VM is like.
#[derive(Clone, Debug)]
pub struct Spec {
    /// Features that it takes if they are offered.
    pub features: u64,
    pub queue_pairs: u16,
    pub ring_size: u16,
    /// Bytes of each receive buffer.
    pub rx_buffer: u32,
    /// Bytes of each transmit buffer, with the virtio-net header.
    pub tx_buffer: u32,
    /// Buffers of each slot, at least one.
    pub laps: u16,
    /// Bytes behind the buffers, for what an attacker lays out itself.
    pub spare: u64,
    /// What its memory is made of.
    pub pages: Pages,
    /// Further regions of memory: guest physical address and bytes, whole pages, beyond [`Spec::end`].
    pub regions: Vec<(u64, u64)>,
}

impl Default for Spec {
    /// A Linux guest with one queue pair, for frames of up to 1500 bytes.
    fn default() -> Self {
        Self {
            features: features::offered(1) & !features::LOG_ALL,
            queue_pairs: 1,
            ring_size: 256,
            rx_buffer: 2048,
            tx_buffer: 2048,
            laps: 1,
            spare: 0,
            pages: Pages::Small,
            regions: Vec::new(),
        }
    }
}

impl Spec {
    /// A victim: its stream goes through 48 MiB, of its own memory and its partner's, before it touches a byte again. So its frames are in no cache, neither
    /// when it has the worker to itself nor when it has a part of it.
    pub fn victim(pages: Pages) -> Self {
        Self { ring_size: 1024, laps: 16, pages, ..Self::default() }
    }

    /// Where the rings end and the buffers start.
    fn rings(&self) -> u64 {
        2 * u64::from(self.queue_pairs) * self.ring_stride()
    }

    fn ring_stride(&self) -> u64 {
        DriverQueue::footprint(self.ring_size).next_multiple_of(PAGE)
    }

    fn stride(&self, is_tx: bool) -> u64 {
        u64::from(if is_tx { self.tx_buffer } else { self.rx_buffer }).next_multiple_of(64)
    }

    /// Buffers of a ring.
    fn buffers(&self) -> u64 {
        u64::from(self.ring_size) * u64::from(self.laps)
    }

    fn spare_at(&self) -> u64 {
        let pair = self.buffers() * (self.stride(false) + self.stride(true));
        (self.rings() + u64::from(self.queue_pairs) * pair).next_multiple_of(PAGE)
    }

    /// Where the first region ends.
    pub fn end(&self) -> u64 {
        (self.spare_at() + self.spare).next_multiple_of(self.pages.bytes())
    }
}

/// A virtqueue and its buffers.
pub struct Ring {
    pub driver: DriverQueue,
    pub kick: EventFd,
    pub call: EventFd,
    buffers: u64,
    stride: u64,
    /// Which of its buffers each slot has now, and how many it has.
    lap: Vec<u16>,
    laps: u16,
    /// Bytes and flags of descriptors that lead from buffer to buffer.
    shape: (u32, u16),
    /// Slots that the VM has and the switch has not.
    free: Vec<u16>,
}

impl Ring {
    /// Address of the buffer that a slot has now.
    pub fn buffer(&self, slot: u16) -> u64 {
        self.buffer_of(self.lap[usize::from(slot)], slot)
    }

    fn buffer_of(&self, lap: u16, slot: u16) -> u64 {
        let number = u64::from(lap) * u64::from(self.driver.size()) + u64::from(slot);
        self.buffers + number * self.stride
    }

    /// Lets a slot go on to its next buffer.
    fn advance(&mut self, slot: u16) {
        if self.laps > 1 {
            let lap = &mut self.lap[usize::from(slot)];
            *lap = (*lap + 1) % self.laps;
            let (len, flags) = self.shape;
            self.set(slot, self.buffer(slot), len, flags);
        }
    }

    /// Lets descriptor `slot` be a chain of its own.
    pub fn set(&self, slot: u16, addr: u64, len: u32, flags: u16) {
        self.driver.write_descriptor(slot, RawDescriptor { addr, len, flags, next: 0 });
    }

    /// Makes all slots available that the VM has.
    pub fn offer_all(&mut self) {
        while let Some(slot) = self.free.pop() {
            self.driver.offer_raw(slot);
        }
    }

    /// Takes back what is used, a burst at most, and makes it available again if `again`. `each` gets the bytes that were written to
    /// each.
    pub fn recycle(&mut self, again: bool, mut each: impl FnMut(u32)) {
        for _ in 0..BURST {
            let Some(used) = self.driver.reap_raw() else { break };
            each(used.len);
            if again {
                self.advance(used.head);
                self.driver.offer_raw(used.head);
            } else {
                self.free.push(used.head);
            }
        }
    }

    /// The switch has no chain of this ring.
    pub fn is_idle(&self) -> bool {
        self.free.len() == usize::from(self.driver.size())
    }

    /// Kicks the switch if it wants that. Never blocks.
    pub fn kick(&mut self) {
        if self.driver.needs_kick() {
            // Full is as good as kicked.
            let _ = self.kick.write(1);
        }
    }
}

/// A VM that runs on a port.
pub struct Vm {
    pub memory: Arc<TestMemory>,
    /// Receive and transmit ring of each pair.
    rings: Vec<Ring>,
    /// What was negotiated.
    pub features: u64,
    /// Where its own layouts may lie.
    pub spare_at: u64,
    pub frontend: Frontend,
}

impl Vm {
    /// Takes the connection of a port in client mode, and boots. Connections that the switch has given up since are left.
    ///
    /// # Errors
    /// When nobody connects in time, or the switch does not take the VM.
    pub fn accept(listener: &UnixListener, spec: &Spec, timeout: Duration) -> Result<Self> {
        let mut result = Self::boot(accept(listener, timeout)?, spec);
        for _ in 0..ATTEMPTS {
            if result.is_ok() {
                break;
            }
            result = Self::boot(accept(listener, timeout)?, spec);
        }
        result
    }

    /// Negotiates, shares the memory, and starts all rings.
    ///
    /// # Errors
    /// When the switch does not take the VM.
    pub fn boot(stream: UnixStream, spec: &Spec) -> Result<Self> {
        let mut frontend = Frontend::new(stream);
        let offered = ask(frontend.get(message::GET_FEATURES), "GET_FEATURES")?;
        let features = offered & spec.features;
        ask(frontend.negotiate(features), "the features")?;
        let memory = share(&mut frontend, spec)?;
        let rings = (0..2 * spec.queue_pairs).map(|index| ring(&memory, spec, index, features));
        let rings = rings.collect();
        let mut vm = Self { memory, rings, features, spare_at: spec.spare_at(), frontend };
        vm.start().context("the switch does not start the rings")?;
        Ok(vm)
    }

    fn start(&mut self) -> Result<()> {
        for index in 0..self.rings.len() {
            self.start_ring(u32::try_from(index)?)?;
        }
        for index in 0..self.rings.len() {
            let enabled = self.frontend.set_vring_enable(u32::try_from(index)?, true);
            ask(enabled, "SET_VRING_ENABLE")?;
        }
        ask(self.frontend.get(message::GET_FEATURES), "GET_FEATURES").map(drop)
    }

    fn start_ring(&mut self, index: u32) -> Result<()> {
        let (frontend, ring) = (&mut self.frontend, &self.rings[index as usize]);
        let at = ring.driver.addresses();
        let state = |value: u16| message_words(&[index, u32::from(value)]);
        let num = frontend.request(message::SET_VRING_NUM, &state(ring.driver.size()), &[]);
        ask(num, "SET_VRING_NUM")?;
        ask(frontend.request(message::SET_VRING_BASE, &state(0), &[]), "SET_VRING_BASE")?;
        let places = [at.desc, at.used, at.avail, 0];
        let addresses: Vec<u8> =
            state(0).into_iter().chain(places.iter().flat_map(|word| word.to_ne_bytes())).collect();
        ask(frontend.request(message::SET_VRING_ADDR, &addresses, &[]), "SET_VRING_ADDR")?;
        let number = u64::from(index).to_ne_bytes();
        for (request, event) in
            [(message::SET_VRING_CALL, &ring.call), (message::SET_VRING_KICK, &ring.kick)]
        {
            ask(frontend.request(request, &number, &[event.as_raw_fd()]), "an eventfd")?;
        }
        Ok(())
    }

    /// Queue pairs.
    pub fn pairs(&self) -> usize {
        self.rings.len() / 2
    }

    pub fn rx(&mut self, pair: usize) -> &mut Ring {
        &mut self.rings[2 * pair]
    }

    pub fn tx(&mut self, pair: usize) -> &mut Ring {
        &mut self.rings[2 * pair + 1]
    }

    /// Transmits a frame on the first pair. Returns `false` if there is no room.
    pub fn send(&mut self, frame: &[u8]) -> bool {
        let tx = &mut self.rings[1];
        tx.recycle(false, |_| ());
        let Some(slot) = tx.free.pop() else { return false };
        write_frame(&self.memory, tx, slot, &VnetHdr::default(), frame);
        tx.driver.offer_raw(slot);
        tx.kick();
        true
    }

    /// The next frame on the first pair.
    pub fn receive(&mut self) -> Option<Vec<u8>> {
        let rx = &mut self.rings[0];
        let used = rx.driver.reap_raw()?;
        let mut bytes = self.memory.read(rx.buffer(used.head), used.len as usize);
        rx.advance(used.head);
        rx.driver.offer_raw(used.head);
        rx.kick();
        bytes.drain(..vnet::LEN.min(bytes.len()));
        Some(bytes)
    }

    /// Puts the same frame into all transmit buffers that the VM has, of all pairs.
    pub fn fill(&mut self, vnet: &VnetHdr, frame: &[u8]) {
        let bytes = [&vnet.to_bytes()[..], frame].concat();
        for tx in self.rings.iter_mut().skip(1).step_by(2) {
            tx.shape = (bytes.len() as u32, 0);
            for &slot in &tx.free {
                (0..tx.laps).for_each(|lap| self.memory.write(tx.buffer_of(lap, slot), &bytes));
                tx.set(slot, tx.buffer(slot), bytes.len() as u32, 0);
            }
        }
    }

    /// Puts a frame of its own into each transmit buffer of the first pair that the VM has.
    pub fn fill_each(&mut self, frame: impl Fn(u16) -> Vec<u8>) {
        let tx = &self.rings[1];
        for &slot in &tx.free {
            write_frame(&self.memory, tx, slot, &VnetHdr::default(), &frame(slot));
        }
    }

    /// Sends what is in the transmit buffers of a pair, over and over, if `again`; otherwise takes it back. A burst at most.
    pub fn transmit(&mut self, pair: usize, again: bool) {
        let tx = self.tx(pair);
        tx.recycle(again, |_| ());
        if again {
            tx.offer_all();
        }
        tx.kick();
    }

    /// The switch has taken all that was to be transmitted.
    pub fn has_transmitted(&self) -> bool {
        self.rings.iter().skip(1).step_by(2).all(Ring::is_idle)
    }

    /// Gives receive buffers of a pair back unseen, a burst at most. `each` gets the bytes of each frame.
    pub fn discard(&mut self, pair: usize, mut each: impl FnMut(usize)) {
        let rx = self.rx(pair);
        rx.recycle(true, |len| each((len as usize).saturating_sub(vnet::LEN)));
        rx.kick();
    }
}

fn write_frame(memory: &TestMemory, tx: &Ring, slot: u16, vnet: &VnetHdr, frame: &[u8]) {
    let at = tx.buffer(slot);
    memory.write(at, &vnet.to_bytes());
    memory.write(at + vnet::LEN as u64, frame);
    tx.set(slot, at, (vnet::LEN + frame.len()) as u32, 0);
}

/// Ring `index` with its buffers: all of those to receive are posted.
fn ring(memory: &Arc<TestMemory>, spec: &Spec, index: u16, features: u64) -> Ring {
    let (is_tx, pair) = (index % 2 == 1, u64::from(index / 2));
    let (rx, tx) = (spec.buffers() * spec.stride(false), spec.buffers() * spec.stride(true));
    let buffers = spec.rings() + pair * (rx + tx) + if is_tx { rx } else { 0 };
    let at = u64::from(index) * spec.ring_stride();
    let event_idx = features & features::EVENT_IDX != 0;
    let mut driver = DriverQueue::new(Arc::clone(memory), at, spec.ring_size, event_idx);
    driver.disable_interrupts();
    let event = || EventFd::new(libc::EFD_NONBLOCK).expect("descriptors left");
    let stride = spec.stride(is_tx);
    let free = (0..spec.ring_size).rev().collect();
    let lap = vec![0; usize::from(spec.ring_size)];
    let (laps, shape) = (spec.laps, (spec.rx_buffer, F_WRITE));
    let (kick, call) = (event(), event());
    let mut ring = Ring { driver, kick, call, buffers, stride, lap, laps, shape, free };
    if spec.laps > 1 {
        // The kernel finds memory for a page when it is touched first, which is not to be in the switch.
        (0..spec.buffers()).for_each(|n| memory.write(buffers + n * stride, &[0]));
    }
    if !is_tx {
        (0..spec.ring_size).for_each(|i| ring.set(i, ring.buffer(i), spec.rx_buffer, F_WRITE));
        ring.offer_all();
    }
    ring
}

fn message_words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

/// Shares the memory of a VM, with as many of its further regions as the switch takes.
fn share(frontend: &mut Frontend, spec: &Spec) -> Result<Arc<TestMemory>> {
    let protocol = ask(frontend.get(message::GET_PROTOCOL_FEATURES), "GET_PROTOCOL_FEATURES")?;
    let one_by_one = !spec.regions.is_empty() && protocol & CONFIGURE_MEM_SLOTS != 0;
    let slots = if one_by_one {
        ask(frontend.get(message::GET_MAX_MEM_SLOTS), "GET_MAX_MEM_SLOTS")?
    } else {
        TABLE_REGIONS
    };
    let regions = [(0, spec.end())].into_iter().chain(spec.regions.iter().copied());
    let regions: Vec<_> = regions.take(usize::try_from(slots)?).collect();
    let memory = TestMemory::of(spec.pages, &regions);
    if one_by_one {
        for region in 0..memory.layouts().count() {
            ask(frontend.add_mem_region(&memory, region), "a region")?;
        }
    } else {
        ask(frontend.set_mem_table(&memory), "its memory")?;
    }
    Ok(memory)
}

/// The answer of a switch to what a front-end asked.
pub fn ask<T, E: std::fmt::Debug>(answer: Result<T, E>, what: &str) -> Result<T> {
    answer.map_err(|error| anyhow!("the switch does not take {what}: {error:?}"))
}

fn accept(listener: &UnixListener, timeout: Duration) -> Result<UnixStream> {
    listener.set_nonblocking(true)?;
    let deadline = Instant::now() + timeout;
    loop {
        if let Ok((stream, _)) = listener.accept() {
            stream.set_nonblocking(false)?;
            return Ok(stream);
        }
        ensure!(Instant::now() < deadline, "no switch connects within {timeout:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Cuts the files of a VM's memory to nothing. The VM must not be touched any more.
pub fn truncate(memory: &TestMemory) -> Result<()> {
    (0..memory.layouts().count())
        .try_for_each(|region| File::set_len(memory.file(region), 0).map_err(Into::into))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    use floodway_switch::queues::ring::Ring as DeviceRing;
    use floodway_switch::queues::tx::{Batch, TxFeatures, TxQueue};
    use floodway_switch::queues::virtqueue::Virtqueue;

    /// The last level of a large server's cache, for the cores that share it.
    const CACHE: u64 = 32 << 20;

    /// A VM without a switch.
    fn vm(spec: &Spec) -> Vm {
        let (stream, _) = UnixStream::pair().unwrap();
        let memory = TestMemory::new(&[(0, spec.end())]);
        let rings = (0..2).map(|index| ring(&memory, spec, index, spec.features)).collect();
        let (features, spare_at) = (spec.features, spec.spare_at());
        Vm { memory, rings, features, spare_at, frontend: Frontend::new(stream) }
    }

    /// The switch's side of its transmit ring.
    fn device(vm: &mut Vm) -> TxQueue {
        let driver = &vm.tx(0).driver;
        let (size, at) = (driver.size(), driver.addresses());
        let queue = Virtqueue::new(Arc::new(vm.memory.map()), size, at, true);
        let mut device = TxQueue::default();
        device.start(
            DeviceRing { queue: queue.expect("good rings"), call: None },
            TxFeatures { hdr_len: vnet::LEN, ..TxFeatures::default() },
        );
        device.set_enabled(true);
        device
    }

    /// Addresses that a ring's descriptors lead to.
    fn addresses(vm: &mut Vm) -> BTreeSet<u64> {
        let memory = Arc::clone(&vm.memory);
        let driver = &vm.tx(0).driver;
        let (table, _) = driver.written_by_driver()[0];
        let entry = |n: u16| memory.read(table + RawDescriptor::SIZE * u64::from(n), 8);
        let address = |n| u64::from_ne_bytes(entry(n).try_into().expect("eight bytes"));
        (0..driver.size()).map(address).collect()
    }

    /// Streams at least `frames` frames. Returns the addresses that the switch has found them at, and how many were like `frame`.
    fn stream(vm: &mut Vm, frames: u64, frame: &[u8]) -> (BTreeSet<u64>, u64) {
        let (mut device, mut batch) = (device(vm), Batch::default());
        let (mut seen, mut good) = (BTreeSet::new(), 0);
        vm.fill(&VnetHdr::default(), frame);
        vm.transmit(0, true);
        while good < frames {
            // Each slot changes once in a lap.
            if good % u64::from(Spec::default().ring_size) == 0 {
                seen.append(&mut addresses(vm));
            }
            device.dequeue_burst(&mut batch);
            let mut bytes = Vec::new();
            for i in 0..batch.len() {
                bytes.clear();
                batch.frame(i).expect("a frame").append_to(&mut bytes);
                assert!(bytes == frame, "frame {good} is another one");
                good += 1;
            }
            assert!(!batch.is_empty(), "the ring has gone empty");
            device.complete(&mut batch);
            vm.transmit(0, true);
        }
        (seen, good)
    }

    /// Otherwise they are in the cache when the victims are alone, and have gone out of it when they get half of the worker.
    #[test]
    fn the_bytes_of_a_victims_stream_are_in_no_cache_when_they_come_round_again() {
        let spec = Spec::victim(Pages::Small);
        let mut vm = vm(&spec);
        let frame = vec![0x5a; 1500];
        let (seen, good) = stream(&mut vm, 2 * spec.buffers(), &frame);
        assert!(seen.len() as u64 * frame.len() as u64 > CACHE / 2, "{} buffers", seen.len());
        assert!(good > seen.len() as u64, "each comes round again");
        assert!(seen.iter().all(|at| (spec.rings()..spec.spare_at()).contains(at)));
    }

    #[test]
    fn a_vm_with_one_lap_uses_the_buffer_of_each_slot() {
        let spec = Spec::default();
        let mut vm = vm(&spec);
        let (seen, _) = stream(&mut vm, 3 * spec.buffers(), &[0x5a; 64]);
        assert_eq!(seen.len(), usize::from(spec.ring_size));
    }
}
