//! A VM with a virtio-net device, as far as a switch can tell.

use std::sync::Arc;

use floodway_wire::vnet::{self, VnetHdr};
use vmm_sys_util::eventfd::EventFd;

use super::driver::{Buffer, DriverQueue, RawDescriptor};
use super::memory::TestMemory;
use crate::frame::vnet_offload::{self, Offloads};
use crate::frame::with_slice;
use crate::vhost::features;

const PAGE: u64 = 4096;
/// Longest frame with its header.
const TX_BUFFER: u64 = 65_600;
/// Most pieces of a transmitted frame.
const MAX_PIECES: u64 = 64;

/// How a guest lays its frames out for transmission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TxShape {
    /// Header and frame in one buffer.
    Single,
    /// The header in a buffer of its own.
    HeaderApart,
    /// The header apart and the frame in so many buffers, at most 63.
    Pieces(u8),
    /// As `Pieces`, in an indirect table.
    Indirect(u8),
}

/// What a guest is like.
#[derive(Clone, Debug)]
pub struct GuestConfig {
    /// virtio features that it negotiates.
    pub features: u64,
    /// Queue pairs that it uses.
    pub queue_pairs: u16,
    /// Entries of each ring.
    pub ring_size: u16,
    /// Bytes of each receive buffer.
    pub rx_buffer: u32,
    /// Frames that it can have in transmission on each queue.
    pub tx_slots: u16,
    /// How it lays out what it transmits.
    pub tx_shape: TxShape,
    /// Its memory is two regions, adjacent for the guest, and a buffer lies across the border.
    pub two_regions: bool,
}

impl Default for GuestConfig {
    /// A Linux guest of today with one queue pair.
    fn default() -> Self {
        Self {
            features: features::offered(1) & !features::LOG_ALL,
            queue_pairs: 1,
            ring_size: 256,
            rx_buffer: 1536,
            tx_slots: 32,
            tx_shape: TxShape::Indirect(3),
            two_regions: true,
        }
    }
}

/// One queue, its notifications, and its buffers.
pub struct GuestQueue {
    /// The ring.
    pub driver: DriverQueue,
    /// From guest to switch.
    pub kick: EventFd,
    /// From switch to guest.
    pub call: EventFd,
    buffers: u64,
    stride: u64,
    /// Indirect tables, one for each slot.
    tables: u64,
    free: Vec<u16>,
    /// The slot of the chain with each head.
    slot_of: Vec<u16>,
}

impl GuestQueue {
    fn slot(&self, slot: u16) -> u64 {
        self.buffers + u64::from(slot) * self.stride
    }

    fn reap(&mut self) -> Option<(u16, u32)> {
        let used = self.driver.reap()?;
        let slot = self.slot_of[usize::from(used.head)];
        self.free.push(slot);
        Some((slot, used.len))
    }

    /// Kicks the switch if it wants that.
    ///
    /// # Panics
    /// The eventfd is full.
    pub fn kick(&mut self) {
        if self.driver.needs_kick() {
            self.kick.write(1).expect("room in an eventfd");
        }
    }

    /// Interrupts since this was last asked.
    #[must_use]
    pub fn take_interrupts(&self) -> u64 {
        self.call.read().unwrap_or(0)
    }
}

/// The two queues of a pair.
pub struct GuestPair {
    /// Frames to the guest.
    pub rx: GuestQueue,
    /// Frames from the guest.
    pub tx: GuestQueue,
}

impl GuestPair {
    /// Used indices of both queues, as the switch has published them.
    #[must_use]
    pub fn used(&self) -> [u16; 2] {
        [&self.rx, &self.tx].map(|queue| queue.driver.used_idx())
    }
}

/// Finishes a frame of a TCP stack behind a tap as the guest's driver would, which leaves to the device only what was negotiated. Each frame that this makes goes to `each`.
///
/// # Panics
/// The frame is none that a stack makes.
pub fn as_driver_sends(
    offloads: Offloads,
    vnet: VnetHdr,
    frame: &[u8],
    mut each: impl FnMut(VnetHdr, &[u8]),
) {
    let vnet = VnetHdr { flags: vnet.flags & vnet::F_NEEDS_CSUM, ..vnet };
    if offloads.allow(&vnet) {
        return each(vnet, frame);
    }
    with_slice(vnet, frame, |frame| {
        vnet_offload::finish(frame, offloads, each).expect("a good frame");
    });
}

/// A VM. It outlives its connections to the switch.
pub struct Guest {
    /// Its memory.
    pub memory: Arc<TestMemory>,
    /// What it is like.
    pub config: GuestConfig,
    /// Its queue pairs.
    pub pairs: Vec<GuestPair>,
    /// Receive buffers are given to the switch again as soon as they are read.
    pub auto_refill: bool,
}

/// Hands out guest physical addresses, from the first on.
struct Layout(u64);

impl Layout {
    fn take(&mut self, bytes: u64) -> u64 {
        let at = self.0;
        self.0 += bytes.next_multiple_of(16);
        at
    }
}

impl Guest {
    /// A guest that has booted: rings set up, receive buffers posted.
    #[must_use]
    pub fn new(config: GuestConfig) -> Self {
        let pairs = u64::from(config.queue_pairs);
        let (slots, ring) = (u64::from(config.tx_slots), u64::from(config.ring_size));
        let tables = slots * MAX_PIECES * RawDescriptor::SIZE;
        let rings =
            pairs * (2 * DriverQueue::footprint(config.ring_size).next_multiple_of(PAGE) + tables);
        let buffers =
            pairs * (slots * TX_BUFFER + ring * u64::from(config.rx_buffer).next_multiple_of(16));
        let border = (rings + buffers / 2).next_multiple_of(PAGE);
        let end = (rings + buffers).next_multiple_of(PAGE) + PAGE;
        let memory = if config.two_regions {
            TestMemory::new(&[(0, border), (border, end - border)])
        } else {
            TestMemory::new(&[(0, end)])
        };
        let mut layout = Layout(0);
        let mut places: Vec<_> = (0..2 * pairs)
            .map(|i| {
                let ring =
                    layout.take(DriverQueue::footprint(config.ring_size).next_multiple_of(PAGE));
                let is_tx = i % 2 == 1;
                (ring, if is_tx { layout.take(tables) } else { 0 })
            })
            .collect();
        let mut queue = |is_tx: bool| {
            let (ring, tables) = places.remove(0);
            let (slots, stride) = if is_tx {
                (config.tx_slots, TX_BUFFER)
            } else {
                (config.ring_size, u64::from(config.rx_buffer).next_multiple_of(16))
            };
            let event_idx = config.features & features::EVENT_IDX != 0;
            GuestQueue {
                driver: DriverQueue::new(Arc::clone(&memory), ring, config.ring_size, event_idx),
                kick: EventFd::new(libc::EFD_NONBLOCK).expect("descriptors left"),
                call: EventFd::new(libc::EFD_NONBLOCK).expect("descriptors left"),
                buffers: layout.take(u64::from(slots) * stride),
                stride,
                tables,
                free: (0..slots).rev().collect(),
                slot_of: vec![0; usize::from(config.ring_size)],
            }
        };
        let pairs = (0..pairs).map(|_| GuestPair { rx: queue(false), tx: queue(true) }).collect();
        let mut guest = Self { memory, config, pairs, auto_refill: true };
        (0..guest.pairs.len()).for_each(|pair| guest.refill(pair, usize::MAX));
        guest
    }

    /// The queue that vhost-user calls ring `index`.
    #[must_use]
    pub fn queue(&self, index: u32) -> &GuestQueue {
        let pair = &self.pairs[index as usize / 2];
        if index.is_multiple_of(2) { &pair.rx } else { &pair.tx }
    }

    /// The guest goes on in other memory, into which its own has been copied.
    pub fn move_to(&mut self, memory: Arc<TestMemory>) {
        for pair in &mut self.pairs {
            pair.rx.driver.move_to(&memory);
            pair.tx.driver.move_to(&memory);
        }
        self.memory = memory;
    }

    /// Guest physical ranges (address, bytes) that the guest itself writes: a VMM sees those writes. The switch's are in the
    /// dirty log.
    pub fn written_by_guest(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let slots = u64::from(self.config.tx_slots);
        self.pairs.iter().flat_map(move |GuestPair { rx, tx }| {
            let tables = (tx.tables, slots * MAX_PIECES * RawDescriptor::SIZE);
            let own = [tables, (tx.buffers, slots * TX_BUFFER)];
            let rings = [rx.driver.written_by_driver(), tx.driver.written_by_driver()];
            own.into_iter().chain(rings.into_iter().flatten())
        })
    }

    /// Bytes of the virtio-net header.
    #[must_use]
    pub fn hdr_len(&self) -> usize {
        let modern = features::VERSION_1 | features::MRG_RXBUF;
        if self.config.features & modern != 0 { vnet::LEN } else { vnet::LEGACY_LEN }
    }

    /// Posts at most `limit` free receive buffers and kicks if that is wanted.
    pub fn refill(&mut self, pair: usize, limit: usize) {
        let len = self.config.rx_buffer;
        let rx = &mut self.pairs[pair].rx;
        for _ in 0..limit.min(rx.free.len()) {
            let Some(slot) = rx.free.pop() else { break };
            let Some(head) = rx.driver.post(&[Buffer::writable(rx.slot(slot), len)]) else { break };
            rx.slot_of[usize::from(head)] = slot;
        }
        rx.kick();
    }

    /// Transmits a frame on queue pair `pair`; returns whether there was room.
    ///
    /// # Panics
    /// The frame is longer than 65 588 bytes.
    pub fn send(&mut self, pair: usize, vnet: &VnetHdr, frame: &[u8]) -> bool {
        if !self.send_quietly(pair, vnet, frame) {
            return false;
        }
        self.pairs[pair].tx.kick();
        true
    }

    /// As [`Guest::send`], without a kick.
    ///
    /// # Panics
    /// As [`Guest::send`].
    pub fn send_quietly(&mut self, pair: usize, vnet: &VnetHdr, frame: &[u8]) -> bool {
        let hdr_len = self.hdr_len();
        let shape = self.config.tx_shape;
        let tx = &mut self.pairs[pair].tx;
        while tx.reap().is_some() {}
        let Some(slot) = tx.free.pop() else { return false };
        let at = tx.slot(slot);
        let bytes = [&vnet.to_bytes()[..hdr_len], frame].concat();
        assert!(bytes.len() as u64 <= TX_BUFFER, "the frame fits a transmit buffer");
        self.memory.write(at, &bytes);
        let buffers = cut(at, hdr_len as u32, frame.len() as u32, shape);
        let posted = match shape {
            TxShape::Indirect(_) => {
                let table = tx.tables + u64::from(slot) * MAX_PIECES * RawDescriptor::SIZE;
                tx.driver.post_indirect(table, &buffers)
            }
            _ => tx.driver.post(&buffers),
        };
        let Some(head) = posted else {
            tx.free.push(slot);
            return false;
        };
        tx.slot_of[usize::from(head)] = slot;
        true
    }

    /// Frames whose transmission is not finished.
    pub fn transmitting(&mut self, pair: usize) -> u16 {
        let tx = &mut self.pairs[pair].tx;
        while tx.reap().is_some() {}
        tx.driver.in_flight()
    }

    /// The next frame that has arrived on queue pair `pair`.
    ///
    /// # Panics
    /// The frame is not all there, or `num_buffers` is wrong.
    pub fn recv(&mut self, pair: usize) -> Option<(VnetHdr, Vec<u8>)> {
        let hdr_len = self.hdr_len();
        let rx = &mut self.pairs[pair].rx;
        let (slot, len) = rx.reap()?;
        let mut bytes = self.memory.read(rx.slot(slot), len as usize);
        assert!(bytes.len() >= hdr_len, "a used receive buffer of {len} bytes has no header");
        let mut hdr = [0; vnet::LEN];
        hdr[..hdr_len].copy_from_slice(&bytes[..hdr_len]);
        let vnet = VnetHdr::from_bytes(&hdr);
        let more =
            if self.config.features & features::MRG_RXBUF != 0 { vnet.num_buffers } else { 1 };
        assert!(more > 0, "num_buffers is zero");
        for _ in 1..more {
            let (slot, len) = rx.reap().expect("frames become visible whole");
            bytes.extend(self.memory.read(rx.slot(slot), len as usize));
        }
        bytes.drain(..hdr_len);
        if self.auto_refill {
            self.refill(pair, usize::MAX);
        }
        Some((vnet, bytes))
    }
}

/// The buffers of a frame at `at` behind its header, in `shape`.
fn cut(at: u64, hdr_len: u32, frame_len: u32, shape: TxShape) -> Vec<Buffer> {
    let pieces = match shape {
        TxShape::Single => return vec![Buffer::readable(at, hdr_len + frame_len)],
        TxShape::HeaderApart => 1,
        TxShape::Pieces(n) | TxShape::Indirect(n) => u32::from(n).clamp(1, MAX_PIECES as u32 - 1),
    };
    let mut buffers = vec![Buffer::readable(at, hdr_len)];
    let mut done = 0;
    for i in 1..=pieces {
        let end = (u64::from(frame_len) * u64::from(i) / u64::from(pieces)) as u32;
        buffers.push(Buffer::readable(at + u64::from(hdr_len + done), end - done));
        done = end;
    }
    buffers
}
