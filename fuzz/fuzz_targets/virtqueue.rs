//! A virtqueue over memory that a guest writes as it likes, region by region there or not.

#![no_main]

use std::sync::Arc;

use arbitrary::Arbitrary;
use floodway_switch::frame::iovec::{GuestIoVec, GuestIoVecs};
use floodway_switch::memory::GuestMemory;
use floodway_switch::queues::virtqueue::{Access, MAX_CHAIN, Pop, Virtqueue};
use floodway_switch::stats::work;
use floodway_switch::testing::{DriverQueue, RawDescriptor, TestMemory};
use libfuzzer_sys::fuzz_target;

const REGION: u64 = 4 * 4096;

/// Most work that one chain may cause: a descriptor and a piece are looked up once each, by at most two comparisons with two regions.
const CHAIN_COST: u64 = (2 * MAX_CHAIN as u64 + 2) * (1 + 2);

#[derive(Arbitrary, Debug)]
struct Input {
    size_log2: u8,
    event_idx: bool,
    write: bool,
    /// Bytes that a chain may have, or that are to be written.
    bytes: u32,
    start: u16,
    steps: Vec<Step>,
}

#[derive(Arbitrary, Debug)]
enum Step {
    // What the guest does.
    Bytes { at: u16, bytes: [u8; 8] },
    Descriptor { index: u8, addr: u16, len: u16, flags: u8, next: u8 },
    HugeDescriptor { index: u8, addr: u64, len: u32, flags: u16, next: u16 },
    Offer(u8),
    AvailIdx(u16),
    UsedIdx(u16),
    AvailFlags(u16),
    UsedEvent(u16),
    // What the switch does.
    Pop,
    PopAndRewind(u8),
    PushUsed(u32),
    Publish,
    TakeInterrupt,
    EnableKick,
    DisableKick,
    Prefetch(u8),
    // What the front-end does.
    RemoveRegion,
    AddRegion,
}

struct Device {
    queue: Virtqueue,
    access: Access,
    taken: Vec<u16>,
    iovecs: GuestIoVecs,
}

impl Device {
    fn pop(&mut self) -> Option<u16> {
        self.iovecs.clear();
        let _ = work::take();
        let popped = self.queue.pop(self.access, &mut self.iovecs);
        let work = work::take();
        assert!(work.total() <= CHAIN_COST, "{work:?} for one chain");
        match popped {
            Ok(Pop::Chain(chain)) => {
                let segments = self.iovecs.as_slice();
                let sum: u64 = segments.iter().map(|p| p.len() as u64).sum();
                assert_eq!(sum, u64::from(chain.len));
                segments.iter().for_each(|piece| self.touch(*piece));
                Some(chain.head)
            }
            Ok(Pop::Malformed { head, .. }) => {
                assert!(self.iovecs.is_empty());
                Some(head)
            }
            Ok(Pop::Empty) | Err(_) => None,
        }
        .inspect(|head| assert!(*head < self.queue.size()))
    }

    /// A piece lies inside one region that is mapped.
    fn touch(&self, piece: GuestIoVec<'_>) {
        let at = piece.as_ptr().addr();
        let inside = [0, REGION].iter().any(|&gpa| {
            self.queue.memory().translate(&mut 0, gpa, 1).is_some_and(|(base, _)| {
                at >= base.addr() && at + piece.len() <= base.addr() + REGION as usize
            })
        });
        assert!(inside, "a piece outside guest memory");
        // SAFETY: mapped, as was just seen; the guest is this thread.
        unsafe {
            let last = piece.as_mut_ptr().add(piece.len() - 1);
            let byte = last.read_volatile();
            if matches!(self.access, Access::Write { .. }) {
                last.write_volatile(byte);
            }
        }
    }
}

fuzz_target!(|input: Input| {
    thread_local! {
        static MEMORY: (Arc<TestMemory>, Arc<GuestMemory>, Arc<GuestMemory>) = {
            let memory = TestMemory::new(&[(0, REGION), (REGION, REGION)]);
            let whole = memory.map();
            let half = whole.without_region(REGION, REGION).expect("the second region");
            (memory, Arc::new(whole), Arc::new(half))
        };
    }
    let (memory, whole, half) = MEMORY.with(Clone::clone);
    memory.write(0, &[0; 2 * REGION as usize]);
    let size = 1 << (input.size_log2 % 6);
    let mut driver =
        DriverQueue::new(Arc::clone(&memory), 0, size, input.event_idx).starting_at(input.start);
    let open = |memory: &Arc<GuestMemory>, driver: &DriverQueue| {
        Virtqueue::new(Arc::clone(memory), size, driver.addresses(), input.event_idx)
            .expect("the rings are in the first region")
    };
    let mut device = Device {
        queue: open(&whole, &driver),
        access: if input.write {
            Access::Write { need: input.bytes.max(1) }
        } else {
            Access::Read { max: input.bytes }
        },
        taken: Vec::new(),
        iovecs: GuestIoVecs::default(),
    };
    for step in input.steps {
        match step {
            Step::Bytes { at, bytes } => memory.write(u64::from(at) % (2 * REGION - 8), &bytes),
            Step::Descriptor { index, addr, len, flags, next } => {
                let raw = RawDescriptor {
                    addr: u64::from(addr),
                    len: u32::from(len),
                    flags: u16::from(flags % 8),
                    next: u16::from(next),
                };
                driver.write_descriptor(u16::from(index) % size, raw);
            }
            Step::HugeDescriptor { index, addr, len, flags, next } => {
                let raw = RawDescriptor { addr, len, flags, next };
                driver.write_descriptor(u16::from(index) % size, raw);
            }
            Step::Offer(head) => driver.offer_raw(u16::from(head)),
            Step::AvailIdx(index) => driver.set_avail_idx(index),
            Step::UsedIdx(index) => driver.set_used_idx(index),
            Step::AvailFlags(flags) => driver.set_avail_flags(flags),
            Step::UsedEvent(event) => driver.set_used_event(event),
            Step::Pop => {
                let head = device.pop();
                device.taken.extend(head);
            }
            Step::PopAndRewind(n) => {
                let mark = device.queue.next_avail();
                for _ in 0..n {
                    let _ = device.pop();
                }
                device.queue.rewind(mark);
                assert_eq!(device.queue.next_avail(), mark);
            }
            Step::PushUsed(len) => {
                if !device.taken.is_empty() {
                    let head = device.taken.remove(0);
                    device.queue.push_used(head, len);
                    assert!(device.queue.has_unpublished());
                }
            }
            Step::Publish => {
                device.queue.publish();
                assert!(!device.queue.has_unpublished());
            }
            Step::TakeInterrupt => {
                device.queue.take_interrupt();
                assert!(!device.queue.take_interrupt(), "asked twice for one publication");
            }
            Step::EnableKick => {
                let _ = device.queue.enable_kick();
            }
            Step::DisableKick => device.queue.disable_kick(),
            Step::Prefetch(n) => device.queue.prefetch(u16::from(n)),
            Step::RemoveRegion => device.queue = open(&half, &driver),
            Step::AddRegion => device.queue = open(&whole, &driver),
        }
    }
});
