//! What is noted in the dirty log is what was written.

use std::collections::{BTreeSet, VecDeque};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use proptest::prelude::*;

use floodway_core::histogram::upper_bound;
use floodway_wire::vnet::VnetHdr;

use super::place::write_header;
use super::*;
use crate::memory::dirty_log::DirtyLog;
use crate::queues::virtqueue::Virtqueue;
use crate::stats::work;
use crate::testing::memory::FRONTEND_BASE;
use crate::testing::memory::memfd;
use crate::testing::{Buffer, DriverQueue, TestMemory};

const PAGE: u64 = 4096;
const RING: u16 = 16;
/// A page ends within the used ring.
const RING_AT: u64 = PAGE - 368;
/// Buffers lie from here on; the ring is in pages of its own.
const BUFFERS: u64 = 16 * PAGE;
const TABLES: u64 = 8 * PAGE;

/// A receive queue of a guest that migrates.
struct Scene {
    memory: Arc<TestMemory>,
    driver: DriverQueue,
    rx: RxQueue,
    log: File,
}

impl Scene {
    fn new(regions: &[(u64, u64)], mergeable: bool) -> Self {
        let memory = TestMemory::new(regions);
        let driver = DriverQueue::new(Arc::clone(&memory), RING_AT, RING, true);
        let bytes =
            regions.iter().map(|&(gpa, size)| (gpa + size).div_ceil(8 * PAGE)).max().unwrap();
        let log = memfd(bytes);
        let dirty = DirtyLog::map(&log, 0, bytes, &Arc::default()).unwrap();
        let mapped = Arc::new(memory.map().with_log(Some(Arc::new(dirty))));
        let queue = Virtqueue::new(mapped, RING, driver.addresses(), true).unwrap();
        let mut rx = RxQueue::new(1 << 20);
        let features = RxFeatures { mergeable, hdr_len: 12, offloads: Offloads::default() };
        rx.start(Ring { queue, call: None }, features);
        Self { memory, driver, rx, log }
    }

    fn deliver(&mut self, bytes: &[u8]) {
        frame::with_slice(VnetHdr::default(), bytes, |frame| self.rx.deliver(frame));
        self.rx.flush();
    }

    /// Pages that were noted since this was last called.
    fn noted(&self) -> BTreeSet<u64> {
        let mut bits = vec![0; self.log.metadata().unwrap().len() as usize];
        self.log.read_exact_at(&mut bits, 0).unwrap();
        self.log.write_all_at(&vec![0; bits.len()], 0).unwrap();
        let is_set = |page: &u64| bits[*page as usize / 8] >> (page % 8) & 1 == 1;
        (0..8 * bits.len() as u64).filter(is_set).collect()
    }
}

fn pages(gpa: u64, len: u64) -> std::ops::Range<u64> {
    if len == 0 { 0..0 } else { gpa / PAGE..(gpa + len).div_ceil(PAGE) }
}

#[test]
fn a_small_frame_in_a_large_buffer_marks_the_page_that_it_is_in() {
    let mut scene = Scene::new(&[(0, 64 * PAGE)], true);
    scene.driver.post(&[Buffer::writable(BUFFERS, 64 << 10)]).unwrap();
    scene.noted();
    scene.deliver(&[7; 60]);
    assert_eq!(scene.rx.traffic.packets.get(), 1);
    assert_eq!(scene.noted(), BTreeSet::from([0, BUFFERS / PAGE]));
}

#[test]
fn the_delay_of_a_frame_is_how_long_it_waited_and_others_are_in_the_first_bucket() {
    let mut scene = Scene::new(&[(0, 64 * PAGE)], true);
    let buffer = || Buffer::writable(BUFFERS, 2048);
    (0..3).for_each(|_| {
        scene.driver.post(&[buffer()]).unwrap();
    });
    (0..4).for_each(|_| scene.deliver(&[7; 60]));
    let counts = scene.rx.delays();
    assert_eq!((counts.buckets[0], counts.count(), counts.sum_ns), (3, 3, 0));
    // One waits, for longer than the fourth bucket has.
    let bound = upper_bound(3).unwrap();
    std::thread::sleep(bound);
    scene.driver.post(&[buffer()]).unwrap();
    scene.rx.drain_within(u64::MAX);
    let counts = scene.rx.delays();
    assert_eq!((counts.buckets[0], counts.count(), scene.rx.pending().0), (3, 4, 0));
    assert!(counts.sum_ns > bound.as_nanos() as u64, "{counts:?}");
    assert_eq!(counts.buckets[1..4], [0; 3]);
    // Another queue that goes on counting where this one has ended has delayed nothing yet.
    let mut next = RxQueue::new(1 << 20);
    next.count_in(std::mem::take(&mut scene.rx.traffic));
    assert_eq!((next.traffic.packets.get(), next.delays().count()), (4, 0));
}

/// What waits for a guest of which nothing is known yet waits for whatever it takes.
#[test]
fn frames_for_a_guest_that_is_expected_wait_until_its_ring_starts() {
    let mut scene = Scene::new(&[(0, 64 * PAGE)], true);
    let mut next = RxQueue::new(1 << 20);
    let wait = |rx: &mut RxQueue| {
        frame::with_slice(VnetHdr::default(), &[7; 60], |frame| rx.wait_for_guest(frame));
        rx.pending().0
    };
    assert_eq!(wait(&mut next), 0, "nobody is expected");
    next.expect_guest();
    assert_eq!((wait(&mut next), wait(&mut next)), (1, 2));
    let features = scene.rx.features();
    assert_ne!(features, next.features());
    next.start(scene.rx.stop().unwrap(), features);
    for _ in 0..2 {
        scene.driver.post(&[Buffer::writable(BUFFERS, 2048)]).unwrap();
    }
    next.drain_within(u64::MAX);
    next.flush();
    assert_eq!((next.pending().0, next.traffic.packets.get()), (0, 2));
    // As with any queue, what waits was meant for what the guest takes by now.
    next.stop();
    assert_eq!(wait(&mut next), 1);
    next.forget();
    assert_eq!(next.pending().0, 0);
}

/// What waits for a guest that has stopped is given to it when it goes on. One that takes frames otherwise is another guest.
#[test]
fn frames_that_wait_are_for_the_same_guest_only() {
    for (mergeable, given, dropped) in [(true, 2, 0), (false, 0, 2)] {
        let mut scene = Scene::new(&[(0, 64 * PAGE)], true);
        scene.deliver(&[7; 60]);
        scene.deliver(&[8; 60]);
        let ring = scene.rx.stop().unwrap();
        assert_eq!(scene.rx.pending().0, 2);
        let features = RxFeatures { mergeable, ..scene.rx.features() };
        scene.rx.start(ring, features);
        for _ in 0..2 {
            scene.driver.post(&[Buffer::writable(BUFFERS, 2048)]).unwrap();
        }
        scene.rx.drain_within(u64::MAX);
        scene.rx.flush();
        let traffic = &scene.rx.traffic;
        let counts = (traffic.packets.get(), traffic.drops(DropReason::PortDown));
        assert_eq!((counts, scene.rx.pending().0), ((given, dropped), 0), "{mergeable}");
    }
}

/// A frame that finds too few buffers is tried again when there are more, not each time that somebody looks.
#[test]
fn buffers_that_were_too_few_are_not_walked_again() {
    let mut scene = Scene::new(&[(0, 64 * PAGE)], true);
    let post = |scene: &mut Scene, n: u64| {
        for i in 0..n {
            scene.driver.post(&[Buffer::writable(BUFFERS + 64 * i, 64)]).unwrap();
        }
    };
    post(&mut scene, 8);
    scene.deliver(&[7; 1000]);
    assert_eq!(scene.rx.pending().0, 1);
    let _ = work::take();
    for _ in 0..100 {
        scene.rx.drain_within(u64::MAX);
    }
    assert_eq!(work::take().descriptors, 0);
    post(&mut scene, 8);
    scene.rx.drain_within(u64::MAX);
    assert_eq!(scene.rx.pending().0, 0, "now they are enough");
    // Another frame, which may need fewer.
    post(&mut scene, 0);
    scene.deliver(&[8; 1000]);
    scene.deliver(&[9; 6]);
    assert_eq!(scene.rx.pending().0, 2);
    assert_eq!(scene.rx.take_all_waiting().len(), 2);
    scene.deliver(&[9; 6]);
    assert_eq!(scene.rx.pending().0, 1, "the ring is empty");
}

#[test]
fn a_stopped_queue_keeps_no_memory_mapped() {
    let mut scene = Scene::new(&[(0, 64 * PAGE)], true);
    scene.driver.post(&[Buffer::writable(BUFFERS, 2048)]).unwrap();
    scene.deliver(&[7; 60]);
    let ring = scene.rx.stop().unwrap();
    let memory = Arc::clone(ring.queue.memory());
    drop(ring);
    assert_eq!(Arc::strong_count(&memory), 1);
}

#[test]
fn what_a_frame_costs_does_not_depend_on_how_large_the_buffer_is() {
    const SIZE: u64 = 4 << 30;
    let cost = |len| {
        let mut scene = Scene::new(&[(0, BUFFERS), (BUFFERS, SIZE)], true);
        scene.driver.post(&[Buffer::writable(BUFFERS, len)]).unwrap();
        let _ = work::take();
        scene.deliver(&[7; 60]);
        assert_eq!(scene.rx.traffic.packets.get(), 1);
        work::take().total()
    };
    assert_eq!(cost(u32::MAX), cost(2048));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// Pages that frames, the used ring's entries and its index were written to, and no others.
    #[test]
    fn exactly_the_pages_that_are_written_are_noted(
        chains in prop::collection::vec(
            (prop::collection::vec((0u64..6 * PAGE, 1u32..3 * PAGE as u32), 1..4), any::<bool>()),
            1..RING as usize,
        ),
        lens in prop::collection::vec(1usize..5000, 1..4),
    ) {
        // Two regions, adjacent for the guest.
        let border = BUFFERS + 4 * PAGE;
        let mut scene = Scene::new(&[(0, border), (border, 12 * PAGE)], true);
        let used = scene.driver.addresses().used - FRONTEND_BASE;
        let mut posted = VecDeque::new();
        for (i, (pieces, indirect)) in chains.iter().enumerate() {
            let buffers: Vec<_> =
                pieces.iter().map(|&(at, len)| Buffer::writable(BUFFERS + at, len)).collect();
            let head = if *indirect {
                scene.driver.post_indirect(TABLES + 64 * i as u64, &buffers)
            } else {
                scene.driver.post(&buffers)
            };
            posted.extend(head.map(|_| buffers));
        }
        scene.noted();
        let mut next_used = 0;
        for len in lens {
            let room = |chain: &Vec<Buffer>| chain.iter().map(|b| u64::from(b.len)).sum::<u64>();
            let mut left = 12 + len as u64;
            if posted.iter().map(room).sum::<u64>() < left {
                break;
            }
            let mut expected = BTreeSet::from([(used + 2) / PAGE]);
            while left > 0 {
                for buffer in posted.pop_front().unwrap() {
                    let n = left.min(u64::from(buffer.len));
                    expected.extend(pages(buffer.addr, n));
                    left -= n;
                }
                expected.extend(pages(used + 4 + 8 * next_used, 8));
                next_used += 1;
            }
            scene.deliver(&vec![9; len]);
            prop_assert_eq!(scene.noted(), expected);
        }
        let written = scene.memory.load(used + 2);
        prop_assert_eq!(u64::from(written), next_used);
    }
}

#[test]
fn a_header_is_as_long_as_the_guest_has_it() {
    let numbers = [66, 1448, 34, 16, 2];
    let [hdr_len, gso_size, csum_start, csum_offset, num_buffers] = numbers;
    let hdr =
        VnetHdr { flags: 1, gso_type: 4, hdr_len, gso_size, csum_start, csum_offset, num_buffers };
    for len in [vnet::LEGACY_LEN, vnet::LEN] {
        let mut buffer = [0xaa_u8; 16];
        // SAFETY: 16 bytes are writable.
        unsafe { write_header(&hdr, buffer.as_mut_ptr(), len) };
        assert_eq!(buffer[..len], hdr.to_bytes()[..len]);
        assert!(buffer[len..].iter().all(|&byte| byte == 0xaa), "{buffer:?}");
    }
}
