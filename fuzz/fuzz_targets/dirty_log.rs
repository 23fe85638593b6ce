//! The dirty log while frames go into a hostile receive ring: every page that changes is marked, at a bounded cost.

#![no_main]

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use arbitrary::Arbitrary;
use floodway_switch::frame;
use floodway_switch::frame::vnet_offload::Offloads;
use floodway_switch::memory::GuestMemory;
use floodway_switch::memory::dirty_log::DirtyLog;
use floodway_switch::queues::ring::Ring;
use floodway_switch::queues::rx::{RxFeatures, RxQueue};
use floodway_switch::queues::virtqueue::Virtqueue;
use floodway_switch::stats::work;
use floodway_switch::testing::memory::memfd;
use floodway_switch::testing::{Buffer, DriverQueue, RawDescriptor, TestMemory};
use floodway_wire::vnet::VnetHdr;
use libfuzzer_sys::fuzz_target;

const PAGE: u64 = 4096;
/// With a hole between them.
const REGIONS: [(u64, u64); 2] = [(0, 16 * PAGE), (20 * PAGE, 16 * PAGE)];
const RING: u16 = 16;
/// A page ends within the used ring.
const RING_AT: u64 = PAGE - 368;

#[derive(Arbitrary, Debug)]
struct Input {
    /// Bytes of the bitmap; smaller ones do not cover all memory.
    bitmap: u8,
    mergeable: bool,
    steps: Vec<Step>,
}

#[derive(Arbitrary, Debug)]
enum Step {
    /// Good chains, unless an address is in the hole.
    Post {
        pieces: [(u32, u16); 2],
    },
    /// Anything.
    Offer {
        index: u8,
        addr: u32,
        len: u32,
        flags: u16,
        next: u16,
        heads: u8,
    },
    AvailIdx(u16),
    Deliver {
        len: u16,
    },
    Drain,
    /// What no queue would mark.
    Mark {
        gpa: u64,
        len: u64,
    },
    /// The front-end takes the bits.
    Collect,
}

struct Scene {
    memory: Arc<TestMemory>,
    mapped: Arc<GuestMemory>,
    driver: DriverQueue,
    rx: RxQueue,
    features: RxFeatures,
    log: Arc<DirtyLog>,
    bitmap: File,
    bytes: usize,
}

impl Scene {
    fn start(&mut self) {
        let queue = Virtqueue::new(Arc::clone(&self.mapped), RING, self.driver.addresses(), true)
            .expect("a good ring");
        self.rx.start(Ring { queue, call: None }, self.features);
    }

    fn bits(&self) -> Vec<u8> {
        let mut bits = vec![0; self.bytes];
        self.bitmap.read_exact_at(&mut bits, 0).expect("the bitmap");
        bits
    }

    fn contents(&self) -> Vec<Vec<u8>> {
        REGIONS.iter().map(|&(gpa, size)| self.memory.read(gpa, size as usize)).collect()
    }

    /// Lets the queue write, and checks what is marked against what has changed.
    fn write(&mut self, f: impl FnOnce(&mut RxQueue)) {
        let before = self.contents();
        let traffic = |rx: &RxQueue| (rx.traffic.packets.get(), rx.traffic.bytes.get());
        let (packets, bytes) = traffic(&self.rx);
        let _ = work::take();
        f(&mut self.rx);
        self.rx.flush();
        let work = work::take();
        let placed = traffic(&self.rx);
        let written = (placed.1 - bytes) + 12 * (placed.0 - packets);
        // Each piece, each used entry that goes with one, and each index may lie in two pages.
        let allowed = written / PAGE + 4 * work.iovecs + 16;
        assert!(work.pages <= allowed, "{} pages for {written} bytes, {work:?}", work.pages);
        let bits = self.bits();
        let after = self.contents();
        for ((old, new), (gpa, _)) in before.iter().zip(&after).zip(REGIONS) {
            for (i, (old, new)) in old.chunks(4096).zip(new.chunks(4096)).enumerate() {
                let page = (gpa / PAGE) as usize + i;
                let marked = bits.get(page / 8).is_none_or(|byte| byte >> (page % 8) & 1 == 1);
                assert!(old == new || marked, "page {page} changed and is not marked");
            }
        }
        if !self.rx.is_running() {
            self.driver.set_avail_idx(self.driver.used_idx());
            self.start();
        }
    }

    fn mark(&self, gpa: u64, len: u64) {
        let mut expected = self.bits();
        let pages = 8 * self.bytes as u64;
        if let Some(last) = len.checked_sub(1).and_then(|n| gpa.checked_add(n)) {
            for page in (gpa / PAGE).min(pages)..(last / PAGE + 1).min(pages) {
                expected[page as usize / 8] |= 1 << (page % 8);
            }
        }
        let _ = work::take();
        self.log.mark(gpa, len);
        assert!(work::take().pages <= pages);
        assert_eq!(self.bits(), expected);
    }
}

fuzz_target!(|input: Input| {
    thread_local! {
        static MEMORY: (Arc<TestMemory>, Arc<GuestMemory>) = {
            let memory = TestMemory::new(&REGIONS);
            let mapped = Arc::new(memory.map());
            (memory, mapped)
        };
    }
    let (memory, mapped) = MEMORY.with(Clone::clone);
    for (gpa, size) in REGIONS {
        memory.write(gpa, &vec![0; size as usize]);
    }
    let bytes = usize::from(input.bitmap % 8) + 1;
    let bitmap = memfd(PAGE);
    let log = DirtyLog::map(&bitmap, 0, bytes as u64, &Arc::default()).expect("a bitmap");
    let log = Arc::new(log);
    let mut s = Scene {
        mapped: Arc::new(mapped.with_log(Some(Arc::clone(&log)))),
        driver: DriverQueue::new(Arc::clone(&memory), RING_AT, RING, true),
        memory,
        rx: RxQueue::new(32 * 1024),
        features: RxFeatures {
            mergeable: input.mergeable,
            hdr_len: 12,
            offloads: Offloads::default(),
        },
        log,
        bitmap,
        bytes,
    };
    s.start();
    for step in input.steps {
        match step {
            Step::Post { pieces } => {
                let buffers = pieces.map(|(addr, len)| {
                    Buffer::writable(u64::from(addr) % (36 * PAGE), u32::from(len))
                });
                s.driver.post(&buffers);
            }
            Step::Offer { index, addr, len, flags, next, heads } => {
                let raw = RawDescriptor { addr: u64::from(addr), len, flags, next };
                s.driver.write_descriptor(u16::from(index) % RING, raw);
                (0..heads % 20).for_each(|i| s.driver.offer_raw(u16::from(i)));
            }
            Step::AvailIdx(index) => s.driver.set_avail_idx(index),
            Step::Deliver { len } => {
                let bytes = vec![0xa5; usize::from(len)];
                s.write(|rx| frame::with_slice(VnetHdr::default(), &bytes, |f| rx.deliver(f)));
            }
            Step::Drain => s.write(|rx| {
                rx.drain_within(u64::MAX);
            }),
            Step::Mark { gpa, len } => s.mark(gpa, len),
            Step::Collect => {
                s.bitmap.write_all_at(&vec![0; s.bytes], 0).expect("the bitmap");
            }
        }
    }
});
