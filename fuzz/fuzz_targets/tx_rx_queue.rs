//! Frames from a hostile transmit ring into a hostile receive ring.

#![no_main]

use std::sync::Arc;

use arbitrary::Arbitrary;
use floodway_switch::memory::GuestMemory;
use floodway_switch::queues::ring::Ring;
use floodway_switch::queues::rx::RxQueue;
use floodway_switch::queues::tx::{BATCH, Batch, TxQueue};
use floodway_switch::queues::virtqueue::{MAX_CHAIN, Virtqueue};
use floodway_switch::stats::work;
use floodway_switch::stats::{DropReason, Traffic};
use floodway_switch::testing::{Buffer, DriverQueue, RawDescriptor, TestMemory};
use floodway_switch::vhost::features;
use libfuzzer_sys::fuzz_target;

const REGION: u64 = 32 * 4096;
const RING: u16 = 32;
const RX_AT: u64 = 0;
const TX_AT: u64 = 4096;
const BUFFERS: u64 = 2 * 4096;
const QUEUE_BYTES: usize = 32 * 1024;

/// Most work that one chain may cause: a descriptor and a piece are looked up once each, by at most two comparisons with two regions.
const CHAIN_COST: u64 = (2 * MAX_CHAIN as u64 + 2) * (1 + 2);
/// Most work that placing one frame may cause: as many pieces as it may have, and the chain that goes beyond.
const PLACE_COST: u64 = 2 * (2048 + MAX_CHAIN as u64) * (1 + 2);

#[derive(Arbitrary, Debug)]
struct Input {
    features: u64,
    steps: Vec<Step>,
}

#[derive(Arbitrary, Debug)]
enum Step {
    Bytes {
        at: u32,
        bytes: [u8; 16],
    },
    /// A good frame with this header and these first bytes.
    Transmit {
        hdr: [u8; 12],
        head: [u8; 48],
        len: u16,
        cut: u16,
    },
    /// Good receive buffers.
    Refill {
        n: u8,
        len: u16,
    },
    /// Anything.
    Offer {
        rx: bool,
        index: u8,
        addr: u32,
        len: u32,
        flags: u16,
        next: u16,
        heads: u8,
    },
    AvailIdx {
        rx: bool,
        index: u16,
    },
    Forward,
    Drain,
    Enable(bool),
    Restart {
        rx: bool,
    },
}

fn dropped(traffic: &Traffic) -> u64 {
    DropReason::ALL.iter().map(|&reason| traffic.drops(reason)).sum()
}

struct Switch {
    memory: Arc<TestMemory>,
    mapped: Arc<GuestMemory>,
    features: u64,
    rx_driver: DriverQueue,
    tx_driver: DriverQueue,
    rx: RxQueue,
    tx: TxQueue,
    batch: Batch,
    delivered: u64,
    /// A GSO packet may wait whole, to become many frames when there are buffers.
    may_cut: bool,
}

impl Switch {
    fn open(&self, driver: &DriverQueue) -> Ring {
        let event_idx = self.features & features::EVENT_IDX != 0;
        let memory = Arc::clone(&self.mapped);
        let queue =
            Virtqueue::new(memory, RING, driver.addresses(), event_idx).expect("good rings");
        Ring { queue, call: None }
    }

    fn restart_rx(&mut self) {
        let ring = self.open(&self.rx_driver);
        self.rx.start(ring, features::rx(self.features));
    }

    fn restart_tx(&mut self) {
        let ring = self.open(&self.tx_driver);
        self.tx.start(ring, features::tx(self.features));
    }

    fn forward(&mut self) {
        let _ = work::take();
        self.tx.dequeue_burst(&mut self.batch);
        let work = work::take();
        assert!(work.total() <= BATCH as u64 * CHAIN_COST, "{work:?} for a batch");
        for i in 0..self.batch.len() {
            let Some(frame) = self.batch.frame(i) else { continue };
            let sum: usize = frame.parts.iter().map(|part| part.len()).sum();
            assert_eq!(sum, frame.len as usize);
            assert!(frame.prefix.len() <= sum);
            let as_is = features::rx(self.features).offloads.allow(&frame.vnet);
            let (before, waiting) = (self.accounted(), self.rx.pending().0 as u64);
            self.rx.deliver(&frame);
            let after = self.accounted();
            // Frames that wait are tried again by the first one of these, twice at most.
            let places = (after - before) + 2 * (waiting + (after - before));
            let work = work::take();
            assert!(work.total() <= places * PLACE_COST, "{work:?} for {places} attempts");
            // Segmentation in software makes many of one.
            assert!(after > before && (after == before + 1 || !as_is || self.may_cut));
            self.delivered += after - before;
            self.may_cut |= !as_is;
        }
        self.rx.flush();
        self.tx.complete(&mut self.batch);
        self.check();
    }

    fn accounted(&self) -> u64 {
        let traffic = &self.rx.traffic;
        traffic.packets.get() + dropped(traffic) + self.rx.pending().0 as u64
    }

    fn check(&mut self) {
        assert!(self.rx.pending().1 <= QUEUE_BYTES);
        let accounted = self.accounted();
        if self.may_cut {
            assert!(accounted >= self.delivered, "a frame was lost uncounted");
            self.delivered = accounted;
        }
        assert_eq!(accounted, self.delivered, "a frame was lost uncounted");
        self.may_cut &= self.rx.pending().0 > 0;
    }
}

fuzz_target!(|input: Input| {
    thread_local! {
        static MEMORY: (Arc<TestMemory>, Arc<GuestMemory>) = {
            let memory = TestMemory::new(&[(0, REGION), (REGION, REGION)]);
            let mapped = Arc::new(memory.map());
            (memory, mapped)
        };
    }
    let (memory, mapped) = MEMORY.with(Clone::clone);
    memory.write(0, &[0; BUFFERS as usize]);
    let features = input.features & features::offered(1);
    let event_idx = features & features::EVENT_IDX != 0;
    let mut s = Switch {
        rx_driver: DriverQueue::new(Arc::clone(&memory), RX_AT, RING, event_idx),
        tx_driver: DriverQueue::new(Arc::clone(&memory), TX_AT, RING, event_idx),
        memory,
        mapped,
        features,
        rx: RxQueue::new(QUEUE_BYTES),
        tx: TxQueue::default(),
        batch: Batch::default(),
        delivered: 0,
        may_cut: false,
    };
    s.tx.set_enabled(true);
    s.restart_rx();
    s.restart_tx();
    for step in input.steps {
        match step {
            Step::Bytes { at, bytes } => s.memory.write(u64::from(at) % (2 * REGION - 16), &bytes),
            Step::Transmit { hdr, head, len, cut } => {
                // Across the border of the regions.
                let at = REGION - 100;
                s.memory.write(at, &[&hdr[..], &head].concat());
                let (len, cut) = (u32::from(len), u32::from(cut).min(u32::from(len)));
                s.tx_driver.post(&[
                    Buffer::readable(at, cut),
                    Buffer::readable(at + u64::from(cut), len - cut),
                ]);
            }
            Step::Refill { n, len } => {
                for i in 0..u64::from(n % RING as u8) {
                    let buffer = Buffer::writable(BUFFERS + 4096 * i, u32::from(len));
                    s.rx_driver.post(&[buffer]);
                }
            }
            Step::Offer { rx, index, addr, len, flags, next, heads } => {
                let driver = if rx { &mut s.rx_driver } else { &mut s.tx_driver };
                let raw = RawDescriptor { addr: u64::from(addr), len, flags, next };
                driver.write_descriptor(u16::from(index) % RING, raw);
                (0..heads % 40).for_each(|i| driver.offer_raw(u16::from(i)));
            }
            Step::AvailIdx { rx, index } => {
                let driver = if rx { &s.rx_driver } else { &s.tx_driver };
                driver.set_avail_idx(index);
            }
            Step::Forward => s.forward(),
            Step::Drain => {
                s.rx.drain_within(u64::MAX);
                s.rx.flush();
                s.check();
            }
            Step::Enable(enable) => s.tx.set_enabled(enable),
            Step::Restart { rx: true } => s.restart_rx(),
            Step::Restart { rx: false } => s.restart_tx(),
        }
    }
});
