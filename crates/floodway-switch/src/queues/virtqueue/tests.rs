//! The device side against a driver that is correct, and against memory that is not.

mod cost;

use std::collections::VecDeque;
use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::frame::iovec::{GuestIoVec, GuestIoVecs};
use crate::stats::work;
use crate::testing::driver::{F_INDIRECT, F_NEXT, F_WRITE};
use crate::testing::{Buffer, DriverQueue, RawDescriptor, TestMemory, Used};

const PAGE: u64 = 4096;
/// Two adjacent regions with a hole behind the second.
const REGIONS: [(u64, u64); 2] = [(0, 64 * PAGE), (64 * PAGE, 64 * PAGE)];
const BORDER: u64 = 64 * PAGE;
const END: u64 = 128 * PAGE;
/// Where buffers may lie: behind the rings.
const BUFFERS: u64 = 32 * PAGE;
const TABLE: u64 = 24 * PAGE;

/// Whole chains, whatever their length.
const READ: Access = Access::Read { max: u32::MAX };
const WRITE: Access = Access::Write { need: u32::MAX };

struct Pair {
    memory: Arc<TestMemory>,
    driver: DriverQueue,
    device: Virtqueue,
    iovecs: GuestIoVecs,
}

fn device(memory: &TestMemory, driver: &DriverQueue, event_idx: bool) -> Virtqueue {
    Virtqueue::new(Arc::new(memory.map()), driver.size(), driver.addresses(), event_idx).unwrap()
}

impl Pair {
    fn new(size: u16, event_idx: bool) -> Self {
        Self::starting_at(size, event_idx, 0)
    }

    fn starting_at(size: u16, event_idx: bool, index: u16) -> Self {
        let memory = TestMemory::new(&REGIONS);
        let driver = DriverQueue::new(Arc::clone(&memory), 0, size, event_idx).starting_at(index);
        let device = device(&memory, &driver, event_idx);
        Self { memory, driver, device, iovecs: GuestIoVecs::default() }
    }

    /// A ring of 8 whose head 0 is `first`, with `others` behind it in the table.
    fn with_table(first: RawDescriptor, others: &[RawDescriptor]) -> Self {
        let mut pair = Self::new(8, true);
        for (i, raw) in std::iter::once(&first).chain(others).enumerate() {
            pair.driver.write_descriptor(i as u16, *raw);
        }
        pair.driver.offer_raw(0);
        pair
    }

    fn pop(&mut self, access: Access) -> Pop {
        self.iovecs.clear();
        self.device.pop(access, &mut self.iovecs).unwrap()
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for iovec in self.iovecs.as_slice() {
            // SAFETY: `device` keeps the memory of the iovecs mapped; nobody writes meanwhile.
            bytes.extend(unsafe { std::slice::from_raw_parts(iovec.as_ptr(), iovec.len()) });
        }
        bytes
    }

    fn malformed(&mut self, access: Access) -> ChainError {
        match self.pop(access) {
            Pop::Malformed { error, .. } => {
                assert!(self.iovecs.is_empty());
                error
            }
            other => panic!("{other:?} where a malformed chain was expected"),
        }
    }
}

fn raw(addr: u64, len: u32, flags: u16, next: u16) -> RawDescriptor {
    RawDescriptor { addr, len, flags, next }
}

#[test]
fn every_shape_of_chain_reads_the_same_bytes() {
    let data: Vec<u8> = (0..6000u32).map(|i| i as u8).collect();
    let at = BORDER - 3000;
    let shapes: [&[u32]; 4] = [&[6000], &[12, 5988], &[1, 2999, 1, 2999], &[2990, 20, 2990]];
    for lens in shapes {
        for indirect in [false, true] {
            let mut pair = Pair::new(8, true);
            pair.memory.write(at, &data);
            let mut next = at;
            let buffers: Vec<_> = lens
                .iter()
                .map(|&len| {
                    next += u64::from(len);
                    Buffer::readable(next - u64::from(len), len)
                })
                .collect();
            let head = if indirect {
                pair.driver.post_indirect(TABLE, &buffers)
            } else {
                pair.driver.post(&buffers)
            };
            let head = head.unwrap();
            assert_eq!(pair.pop(READ), Pop::Chain(Chain { head, len: 6000 }));
            assert_eq!(pair.bytes(), data, "{lens:?} indirect={indirect}");
            // The border of the regions cuts a buffer in two, or lies between two.
            assert_eq!(pair.iovecs.len(), if lens.len() == 4 { 4 } else { lens.len() + 1 });
            assert_eq!(pair.pop(READ), Pop::Empty);
        }
    }
}

#[test]
fn zero_length_pieces_and_unaligned_tables_are_fine() {
    let mut pair = Pair::new(8, false);
    let buffers =
        [Buffer::readable(u64::MAX, 0), Buffer::readable(BUFFERS, 5), Buffer::readable(0, 0)];
    let head = pair.driver.post_indirect(TABLE + 3, &buffers).unwrap();
    assert_eq!(pair.pop(READ), Pop::Chain(Chain { head, len: 5 }));
    assert_eq!(pair.iovecs.len(), 1);
}

#[test]
fn malformed_chains_are_named() {
    use ChainError::*;
    let ok = |flags, next| raw(BUFFERS, 64, flags, next);
    let cases: &[(&str, ChainError, RawDescriptor, &[RawDescriptor])] = &[
        ("next outside the table", Index, ok(F_NEXT, 8), &[]),
        ("next far outside", Index, ok(F_NEXT, 0xffff), &[]),
        ("loop onto itself", TooLong, ok(F_NEXT, 0), &[]),
        ("loop of two", TooLong, ok(F_NEXT, 1), &[ok(F_NEXT, 0)]),
        ("writable where read", Direction, ok(F_WRITE, 0), &[]),
        ("writable behind readable", Direction, ok(F_NEXT, 1), &[ok(F_WRITE, 0)]),
        ("outside memory", Address, raw(END, 1, 0, 0), &[]),
        ("runs past the last region", Address, raw(END - 4, 5, 0, 0), &[]),
        ("wraps around the address space", Address, raw(u64::MAX - 3, 64, 0, 0), &[]),
        ("huge", Address, raw(0, u32::MAX, 0, 0), &[]),
        ("indirect behind direct", Indirect, ok(F_NEXT, 1), &[raw(TABLE, 16, F_INDIRECT, 0)]),
        ("indirect with next", Indirect, raw(TABLE, 16, F_INDIRECT | F_NEXT, 1), &[ok(0, 0)]),
        ("empty table", Indirect, raw(TABLE, 0, F_INDIRECT, 0), &[]),
        ("table of 17 bytes", Indirect, raw(TABLE, 17, F_INDIRECT, 0), &[]),
        ("table outside memory", Address, raw(END, 16, F_INDIRECT, 0), &[]),
        ("table across regions", Address, raw(BORDER - 16, 32, F_INDIRECT, 0), &[]),
    ];
    for (what, error, first, others) in cases {
        let mut pair = Pair::with_table(*first, others);
        assert_eq!(pair.malformed(READ), *error, "{what}");
    }
    let mut readable = Pair::with_table(ok(0, 0), &[]);
    assert_eq!(readable.malformed(WRITE), Direction);
    let mut empty = Pair::with_table(ok(F_WRITE | F_NEXT, 1), &[raw(BUFFERS, 0, F_WRITE, 0)]);
    assert_eq!(empty.malformed(WRITE), Length);
}

#[test]
fn indirect_tables_are_walked_as_carefully() {
    use ChainError::*;
    let inner = |flags, next| raw(BUFFERS, 64, flags, next);
    let cases = [
        ("nested", Indirect, raw(TABLE, 32, F_INDIRECT, 0)),
        ("loop", TooLong, inner(F_NEXT, 0)),
        ("next is good in the ring's table, not in this one", Index, inner(F_NEXT, 2)),
        ("direction", Direction, inner(F_WRITE, 0)),
        ("address", Address, raw(END, 1, 0, 0)),
    ];
    for (what, error, first) in cases {
        let mut pair = Pair::with_table(raw(TABLE, 32, F_INDIRECT, 0), &[]);
        pair.driver.write_indirect(TABLE, 0, first);
        pair.driver.write_indirect(TABLE, 1, inner(0, 0));
        assert_eq!(pair.malformed(READ), error, "{what}");
    }
}

#[test]
fn lengths_that_overflow_32_bits_are_refused() {
    let size = 2u64 << 30;
    let memory = TestMemory::new(&[(0, size + PAGE)]);
    let mut driver = DriverQueue::new(Arc::clone(&memory), 0, 8, true);
    let big = Buffer::readable(PAGE, 2 << 30);
    driver.post(&[big, big]).unwrap();
    let mut device = device(&memory, &driver, true);
    let popped = device.pop(READ, &mut GuestIoVecs::default()).unwrap();
    assert_eq!(popped, Pop::Malformed { head: 0, error: ChainError::Length });
}

#[test]
fn a_chain_to_read_has_no_more_bytes_than_allowed() {
    let chain = [Buffer::readable(BUFFERS, 60), Buffer::readable(BUFFERS, 40)];
    for (max, fits) in [(101, true), (100, true), (99, false), (60, false), (59, false), (0, false)]
    {
        for indirect in [false, true] {
            let mut pair = Pair::new(8, true);
            let head = match indirect {
                true => pair.driver.post_indirect(TABLE, &chain),
                false => pair.driver.post(&chain),
            };
            let head = head.unwrap();
            let expected = match fits {
                true => Pop::Chain(Chain { head, len: 100 }),
                false => Pop::Malformed { head, error: ChainError::Length },
            };
            assert_eq!(pair.pop(Access::Read { max }), expected, "max {max}");
        }
    }
}

#[test]
fn a_chain_to_write_is_walked_as_far_as_it_is_needed() {
    let chain = [Buffer::writable(BUFFERS, 60), Buffer::writable(BUFFERS + 4096, 40)];
    for need in [1, 59, 60, 61, 99, 100, 101] {
        let mut pair = Pair::new(8, true);
        let head = pair.driver.post(&chain).unwrap();
        let popped = pair.pop(Access::Write { need });
        assert_eq!(popped, Pop::Chain(Chain { head, len: need.min(100) }));
        let lens: Vec<_> = pair.iovecs.as_slice().iter().map(GuestIoVec::len).collect();
        let n = need as usize;
        assert_eq!(lens, if n <= 60 { vec![n] } else { vec![60, (n - 60).min(40)] });
    }
    // What follows is not looked at.
    let first = raw(BUFFERS, 60, F_WRITE | F_NEXT, 1);
    let mut pair = Pair::with_table(first, &[raw(END, 40, F_WRITE, 0)]);
    assert_eq!(pair.pop(Access::Write { need: 60 }), Pop::Chain(Chain { head: 0, len: 60 }));
    let mut pair = Pair::with_table(first, &[raw(END, 40, F_WRITE, 0)]);
    assert_eq!(pair.malformed(Access::Write { need: 61 }), ChainError::Address);
}

#[test]
fn chains_longer_than_the_limit_are_refused() {
    let mut pair = Pair::new(8, true);
    let longest = vec![Buffer::readable(BUFFERS, 1); MAX_CHAIN];
    pair.driver.post_indirect(TABLE, &longest).unwrap();
    assert!(matches!(pair.pop(READ), Pop::Chain(Chain { len: 1023, .. })));
    let longer = vec![Buffer::readable(BUFFERS, 1); MAX_CHAIN + 1];
    pair.driver.post_indirect(TABLE, &longer).unwrap();
    assert_eq!(pair.malformed(READ), ChainError::TooLong);
}

#[test]
fn impossible_indices_break_the_ring() {
    let mut iovecs = GuestIoVecs::default();
    for jump in [9, 100, 32768, 65535] {
        let mut pair = Pair::new(8, true);
        pair.driver.set_avail_idx(jump);
        assert_eq!(pair.device.available(), Err(RingBroken), "avail index {jump}");
        assert_eq!(pair.device.enable_kick(), Err(RingBroken));
    }
    for head in [8, 9, 0xffff] {
        let mut pair = Pair::new(8, true);
        pair.driver.offer_raw(head);
        assert_eq!(pair.device.pop(READ, &mut iovecs), Err(RingBroken), "head {head}");
        assert!(iovecs.is_empty());
    }
    // Exactly full is fine.
    let mut pair = Pair::new(8, true);
    pair.driver.set_avail_idx(8);
    assert_eq!(pair.device.available(), Ok(8));
}

#[test]
fn rings_that_cannot_be_are_refused() {
    let memory = TestMemory::new(&REGIONS);
    let driver = DriverQueue::new(Arc::clone(&memory), 0, 8, true);
    let mapped = Arc::new(memory.map());
    let make =
        |size, addresses| Virtqueue::new(Arc::clone(&mapped), size, addresses, true).map(|_| ());
    for size in [0, 3, 12, 32769] {
        assert_eq!(make(size, driver.addresses()), Err(RingError::Size(size)));
    }
    let good = driver.addresses();
    let at = |gpa| memory.frontend_addr(gpa);
    let bad = [
        RingAddresses { desc: good.desc + 8, ..good },
        RingAddresses { avail: good.avail + 1, ..good },
        RingAddresses { used: good.used + 2, ..good },
        RingAddresses { desc: at(END - 16), ..good },
        RingAddresses { avail: at(END - 20), ..good },
        RingAddresses { used: at(END - 68), ..good },
        // Regions adjacent for the guest are not adjacent for the front-end.
        RingAddresses { used: at(BORDER - 8), ..good },
        RingAddresses { desc: 0, ..good },
        RingAddresses { desc: u64::MAX - 15, ..good },
    ];
    assert_eq!(make(8, good), Ok(()));
    for addresses in bad {
        assert!(matches!(make(8, addresses), Err(RingError::Address(_))), "{addresses:x?}");
    }
    // The last byte of the last part fits exactly.
    assert_eq!(make(8, RingAddresses { used: at(END - 72), ..good }), Ok(()));
}

#[test]
fn a_device_after_a_crash_goes_on_where_used_entries_end() {
    let mut pair = Pair::starting_at(16, true, 65530);
    let heads: Vec<u16> =
        (0..16).map(|i| pair.driver.post(&[Buffer::readable(BUFFERS + i, 1)]).unwrap()).collect();
    for head in &heads[..5] {
        assert_eq!(pair.pop(READ), Pop::Chain(Chain { head: *head, len: 1 }));
        pair.device.push_used(*head, 0);
    }
    pair.device.publish();
    // Two more are used, not published; three more are taken and not used. Then it dies.
    for head in &heads[5..7] {
        pair.pop(READ);
        pair.device.push_used(*head, 0);
    }
    (0..3).for_each(|_| assert_ne!(pair.pop(READ), Pop::Empty));

    pair.device = device(&pair.memory, &pair.driver, true);
    assert_eq!(pair.device.next_avail(), 65535);
    for head in &heads[5..] {
        assert_eq!(pair.pop(READ), Pop::Chain(Chain { head: *head, len: 1 }));
        pair.device.push_used(*head, 0);
    }
    assert_eq!(pair.pop(READ), Pop::Empty);
    pair.device.publish();
    let reaped: Vec<u16> =
        std::iter::from_fn(|| pair.driver.reap()).map(|used| used.head).collect();
    assert_eq!(reaped, heads, "each once, in order");
    assert_eq!(pair.driver.free(), 16, "no descriptor leaked");
}

#[test]
fn a_device_that_stops_polling_is_kicked_for_more_than_it_has_seen() {
    // Two chains are available and not enough; the next one must be announced.
    for event_idx in [false, true] {
        let mut pair = Pair::new(8, event_idx);
        for _ in 0..2 {
            pair.driver.post(&[Buffer::writable(BUFFERS, 64)]).unwrap();
        }
        pair.driver.needs_kick();
        let mark = pair.device.next_avail();
        pair.pop(WRITE);
        pair.pop(WRITE);
        assert_eq!(pair.pop(WRITE), Pop::Empty);
        pair.device.rewind(mark);
        assert_eq!(pair.device.enable_kick(), Ok(true));
        pair.driver.post(&[Buffer::writable(BUFFERS, 64)]).unwrap();
        assert!(pair.driver.needs_kick(), "event_idx={event_idx}");
    }
}

/// What a driver and a device do to a ring, one at a time.
#[derive(Clone, Debug)]
enum Step {
    /// The driver posts a chain of so many iovecs.
    Post { iovecs: u8, indirect: bool },
    /// The device takes up to so many chains and gives them back.
    Serve(u8),
    /// The device publishes and considers an interrupt.
    Publish,
    /// The driver sees every used chain, then asks for an interrupt.
    ReapAndSleep,
    /// The device asks for a kick, as before it sleeps.
    DeviceSleeps,
    /// The device polls again.
    DevicePolls,
    /// The device is set up again, as after a crash.
    Crash,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (1u8..5, any::<bool>()).prop_map(|(iovecs, indirect)| Step::Post { iovecs, indirect }),
        3 => (1u8..9).prop_map(Step::Serve),
        3 => Just(Step::Publish),
        2 => Just(Step::ReapAndSleep),
        2 => Just(Step::DeviceSleeps),
        1 => Just(Step::DevicePolls),
        1 => Just(Step::Crash),
    ]
}

/// What must hold whatever the steps are.
struct Model {
    pair: Pair,
    event_idx: bool,
    /// Chains posted, oldest first, and how many of them the device has given back.
    posted: VecDeque<(u16, u32)>,
    served: usize,
    published: usize,
    /// The driver sleeps: it has seen everything and asked for an interrupt.
    driver_sleeps: bool,
    /// The device sleeps: it has seen everything and asked for a kick.
    device_sleeps: bool,
}

impl Model {
    fn apply(&mut self, step: &Step) {
        match *step {
            Step::Post { iovecs, indirect } => self.post(iovecs, indirect),
            Step::Serve(n) => (0..n).for_each(|_| self.serve_one()),
            Step::Publish => self.publish(),
            Step::ReapAndSleep => self.reap(),
            Step::DeviceSleeps => {
                let more = self.pair.device.enable_kick().unwrap();
                assert_eq!(more, self.served < self.posted.len());
                self.device_sleeps = !more;
            }
            Step::DevicePolls => {
                self.pair.device.disable_kick();
                self.device_sleeps = false;
            }
            Step::Crash => {
                self.pair.device = device(&self.pair.memory, &self.pair.driver, self.event_idx);
                self.served = self.published;
                self.device_sleeps = false;
                // A new device interrupts once in any case, as `RxQueue::start` does.
                self.driver_sleeps = false;
            }
        }
    }

    fn post(&mut self, iovecs: u8, indirect: bool) {
        let len = 100 * u32::from(iovecs);
        let buffers: Vec<_> =
            (0..u64::from(iovecs)).map(|i| Buffer::writable(BUFFERS + 100 * i, 100)).collect();
        let posted = if indirect {
            let table = TABLE + 64 * u64::from(self.pair.driver.avail_idx() % 256);
            self.pair.driver.post_indirect(table, &buffers)
        } else {
            self.pair.driver.post(&buffers)
        };
        let Some(head) = posted else { return };
        self.posted.push_back((head, len));
        let kicked = self.pair.driver.needs_kick();
        assert!(kicked || !self.device_sleeps, "the device sleeps and was not kicked");
        self.device_sleeps &= !kicked;
    }

    fn serve_one(&mut self) {
        let popped = self.pair.pop(WRITE);
        let Some(&(head, len)) = self.posted.get(self.served) else {
            return assert_eq!(popped, Pop::Empty);
        };
        assert_eq!(popped, Pop::Chain(Chain { head, len }));
        self.pair.device.push_used(head, len);
        self.served += 1;
    }

    fn publish(&mut self) {
        let news = self.served > self.published;
        assert_eq!(self.pair.device.has_unpublished(), news);
        self.pair.device.publish();
        self.published = self.served;
        let interrupted = self.pair.device.take_interrupt();
        assert!(
            interrupted || !(self.driver_sleeps && news),
            "the driver sleeps and was not interrupted"
        );
        self.driver_sleeps &= !interrupted;
    }

    fn reap(&mut self) {
        for _ in 0..self.published {
            let (head, len) = self.posted.pop_front().unwrap();
            assert_eq!(self.pair.driver.reap(), Some(Used { head, len }));
        }
        assert_eq!(self.pair.driver.reap(), None);
        self.served -= self.published;
        self.published = 0;
        assert!(!self.pair.driver.enable_interrupts());
        self.driver_sleeps = true;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// Chains come in order, are given back once, and no side sleeps over the other's work,
    /// wherever the 16-bit indices stand.
    #[test]
    fn driver_and_device_agree(
        event_idx: bool,
        start in prop_oneof![Just(0u16), 65500u16..=65535, any::<u16>()],
        size in prop_oneof![Just(1u16), Just(2), Just(8), Just(64)],
        steps in prop::collection::vec(step(), 1..300),
    ) {
        let pair = Pair::starting_at(size, event_idx, start);
        let mut model = Model {
            pair, event_idx, posted: VecDeque::new(), served: 0, published: 0,
            driver_sleeps: false, device_sleeps: false,
        };
        for step in &steps {
            model.apply(step);
        }
        // Whatever happened: once all is served and reaped, every descriptor is back.
        model.apply(&Step::Serve(u8::MAX));
        model.apply(&Step::Publish);
        model.apply(&Step::ReapAndSleep);
        prop_assert_eq!(model.pair.driver.free(), usize::from(size));
    }

    /// Garbage in the rings never gives an iovec outside the regions or more bytes than it says.
    #[test]
    fn garbage_stays_inside_memory(
        garbage in prop::collection::vec(any::<u8>(), 16..512),
        descriptors in prop::collection::vec((0u64..2 * END, 0u32..70000, 0u16..8, 0u16..20), 0..16),
        heads in prop::collection::vec(0u16..18, 1..16),
        write: bool,
    ) {
        let mut pair = Pair::new(16, true);
        pair.driver.scribble(&garbage);
        pair.driver.set_used_idx(0);
        pair.driver.set_avail_idx(0);
        for (i, &(addr, len, flags, next)) in descriptors.iter().enumerate() {
            pair.driver.write_descriptor(i as u16, raw(addr, len, flags, next));
        }
        let access = if write { WRITE } else { READ };
        heads.iter().for_each(|&head| pair.driver.offer_raw(head));
        let mapped = Arc::clone(pair.device.memory());
        let inside = |iovec: &GuestIoVec<'_>| {
            let at = iovec.as_ptr().addr();
            REGIONS.iter().any(|&(gpa, size)| {
                let (base, _) = mapped.translate(&mut 0, gpa, 1).unwrap();
                at >= base.addr() && at + iovec.len() <= base.addr() + size as usize
            })
        };
        loop {
            pair.iovecs.clear();
            match pair.device.pop(access, &mut pair.iovecs) {
                Ok(Pop::Chain(chain)) => {
                    prop_assert!(pair.iovecs.as_slice().iter().all(inside));
                    prop_assert_eq!(pair.iovecs.as_slice().iter().map(|p| p.len() as u64).sum::<u64>(), u64::from(chain.len));
                    pair.device.push_used(chain.head, 0);
                }
                Ok(Pop::Malformed { head, .. }) => pair.device.push_used(head, 0),
                Ok(Pop::Empty) | Err(RingBroken) => break,
            }
        }
    }
}
