//! A process that ends at each of its stores, and what the next one finds.

use std::cell::{Cell, RefCell};
use std::net::Ipv4Addr;

use proptest::prelude::*;

use super::*;

const LAYOUT: Layout = Layout { flows: 3, slots: 12, slot_bytes: 16 };
const ABOUT: [u64; ABOUT_WORDS] = [7, u64::MAX, 9];

/// Memory of a process that dies when it makes one store too many.
struct Mortal {
    words: RefCell<Vec<u64>>,
    /// Which of them were stored.
    stored: RefCell<Vec<bool>>,
    stores_left: Cell<usize>,
    is_dead: Cell<bool>,
}

impl Mortal {
    fn new() -> Self {
        let words = RefCell::new(vec![0; LAYOUT.words()]);
        let stored = RefCell::new(vec![false; LAYOUT.words()]);
        Self { words, stored, stores_left: Cell::new(usize::MAX), is_dead: Cell::new(false) }
    }

    /// The next process, which makes so many stores.
    fn revive(&self, stores: usize) {
        self.stores_left.set(stores);
        self.is_dead.set(false);
    }

    /// Stores since it was revived with `stores`.
    fn made(&self, stores: usize) -> usize {
        stores - self.stores_left.get()
    }
}

impl Words for &Mortal {
    fn load(&self, index: usize) -> u64 {
        self.words.borrow()[index]
    }

    fn store(&self, index: usize, value: u64) {
        match self.stores_left.get().checked_sub(1) {
            Some(left) if !self.is_dead.get() => {
                self.stores_left.set(left);
                self.words.borrow_mut()[index] = value;
                self.stored.borrow_mut()[index] = true;
            }
            _ => self.is_dead.set(true),
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Open,
    /// So many bytes come for one of the flows: as one frame for a guest, as two for a peer, the last of which is acknowledged in part.
    Keep {
        flow: usize,
        len: u32,
    },
    /// A guest acknowledges part of what it has not, in percent.
    Acknowledge {
        flow: usize,
        part: u32,
    },
    Close {
        flow: usize,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let flow = 0..LAYOUT.flows;
    prop_oneof![
        2 => Just(Step::Open),
        6 => (flow.clone(), 1..40_u32).prop_map(|(flow, len)| Step::Keep { flow, len }),
        4 => (flow.clone(), 0..=120_u32).prop_map(|(flow, part)| Step::Acknowledge { flow, part }),
        1 => flow.prop_map(|flow| Step::Close { flow }),
    ]
}

/// A connection, as its ends know it.
#[derive(Clone, Debug)]
struct Connection {
    number: u16,
    place: FlowPlace,
    /// What the sender has heard, and so forgotten.
    heard: Seq,
    /// What the creditor has acknowledged.
    guest: Seq,
    /// Behind what is kept.
    stored: Seq,
}

/// Odd connections owe to their peer.
fn debtor(tuple: &FiveTuple) -> Debtor<'_> {
    let creditor = if tuple.src_port.is_multiple_of(2) { Creditor::Guest } else { Creditor::Peer };
    Debtor { tuple, creditor, about: ABOUT }
}

fn tuple(number: u16) -> FiveTuple {
    let ip = |n| Ipv4Addr::new(10, 0, 0, n);
    FiveTuple::v4(ip(1), ip(2), 6).with_ports(number, 80)
}

/// The byte of a connection with this sequence number.
fn byte(number: u16, seq: Seq) -> u8 {
    (u32::from(number).wrapping_mul(7919) ^ seq.0.wrapping_mul(0x9e37_79b9)).to_be_bytes()[0]
}

fn bytes(number: u16, from: Seq, len: u32) -> Vec<u8> {
    (0..len).map(|offset| byte(number, from + offset)).collect()
}

fn image(bytes: &[u8]) -> Image<'_> {
    Image { about: bytes.len() as u64, bytes }
}

/// Both ends of all connections, and the process in between.
struct World<'m> {
    memory: &'m Mortal,
    journal: Journal<&'m Mortal>,
    connections: Vec<Connection>,
    opened: u16,
}

impl<'m> World<'m> {
    fn new(memory: &'m Mortal, journal: Journal<&'m Mortal>) -> Self {
        Self { memory, journal, connections: Vec::new(), opened: 0 }
    }

    /// Does the steps until the process ends.
    fn run(&mut self, steps: &[Step]) {
        for &step in steps {
            self.step(step);
            if self.memory.is_dead.get() {
                return;
            }
        }
    }

    fn step(&mut self, step: Step) {
        let pick = |flow: usize, all: &[Connection]| (!all.is_empty()).then(|| flow % all.len());
        match step {
            Step::Open => self.open(),
            Step::Keep { flow, len } => {
                if let Some(index) = pick(flow, &self.connections) {
                    self.keep(index, len);
                }
            }
            Step::Acknowledge { flow, part } => {
                if let Some(index) = pick(flow, &self.connections) {
                    self.acknowledge(index, part);
                }
            }
            Step::Close { flow } => {
                if let Some(index) = pick(flow, &self.connections) {
                    // Its ends have closed or reset it, whatever becomes of the process.
                    let connection = self.connections.swap_remove(index);
                    self.journal.close(connection.place);
                }
            }
        }
    }

    fn open(&mut self) {
        let number = self.opened;
        // Near the wrap.
        let next = Seq(u32::MAX - 60) + u32::from(number);
        if let Some(place) = self.journal.open(&debtor(&tuple(number)), next)
            && !self.memory.is_dead.get()
        {
            self.opened += 1;
            let (heard, guest, stored) = (next, next, next);
            self.connections.push(Connection { number, place, heard, guest, stored });
        }
    }

    fn keep(&mut self, index: usize, len: u32) {
        let Connection { number, place, heard, guest, .. } = self.connections[index];
        if number % 2 == 1 {
            return self.keep_for_peer(index, len);
        }
        let next = heard.max(guest);
        let kept = self.journal.keep(place, len, image(&bytes(number, next, len)));
        // The acknowledgement leaves if the process gets so far.
        if kept && !self.memory.is_dead.get() {
            self.connections[index].heard = next + len;
        }
    }

    fn keep_for_peer(&mut self, index: usize, len: u32) {
        let Connection { number, place, .. } = self.connections[index];
        for len in [len, len / 2 + 1] {
            let from = self.connections[index].stored.max(self.connections[index].guest);
            if !self.journal.store(place, from, len, image(&bytes(number, from, len))) {
                break;
            }
            self.connections[index].stored = from + len;
        }
        let Connection { heard, guest, stored, .. } = self.connections[index];
        let promised = stored - len % 3;
        if promised.after(heard.max(guest)) {
            self.journal.promise(place, promised, &[promised.0.into(); NOTE_WORDS]);
            if !self.memory.is_dead.get() {
                self.connections[index].heard = promised;
            }
        }
    }

    /// More than all is what came to the guest unacknowledged, and it acknowledges.
    fn acknowledge(&mut self, index: usize, part: u32) {
        let Connection { place, heard, guest, .. } = self.connections[index];
        let ack = guest + heard.since(guest) * part / 100 + u32::from(part > 100);
        self.connections[index].guest = ack;
        self.journal.acknowledged(place, ack);
    }
}

/// What the next process finds is what the ends of `connections` need.
fn assert_nothing_is_missing(verdicts: &[Verdict], connections: &[Connection]) {
    for verdict in verdicts {
        let Verdict::Whole(flow, frames) = verdict else { panic!("{verdict:?}") };
        let mut covered = flow.creditor_ack;
        for frame in frames {
            assert!(!frame.seq.after(covered), "a hole before {frame:?}");
            let expected = bytes(flow.tuple.src_port, frame.seq, frame.len);
            assert_eq!((&frame.bytes, frame.about), (&expected, expected.len() as u64), "{flow:?}");
            covered = covered.max(frame.seq + frame.len);
        }
        let is_for_peer = flow.creditor == Creditor::Peer;
        assert_eq!((flow.about, is_for_peer), (ABOUT, flow.tuple.src_port % 2 == 1));
        assert!(covered == flow.acked || (is_for_peer && covered.after(flow.acked)), "{flow:?}");
    }
    for connection in connections.iter().filter(|c| c.heard.after(c.guest)) {
        let found = verdicts.iter().find_map(|verdict| match verdict {
            Verdict::Whole(flow, _) if flow.tuple == tuple(connection.number) => Some(flow),
            _ => None,
        });
        let flow = found.unwrap_or_else(|| panic!("{connection:?} is not in {verdicts:?}"));
        assert!(!flow.acked.before(connection.heard), "{flow:?}, {connection:?}");
        assert!(!flow.creditor_ack.after(connection.guest), "{flow:?}, {connection:?}");
    }
}

/// All slots are free once all flows that were adopted are over.
fn assert_nothing_leaks(mut journal: Journal<&Mortal>, verdicts: &[Verdict]) {
    for verdict in verdicts {
        let (Verdict::Whole(flow, _) | Verdict::Broken(flow)) = verdict;
        journal.acknowledged(flow.place, flow.acked);
        journal.close(flow.place);
    }
    let free_flows = journal.free_flows.len() + LAYOUT.flows - journal.flows.len();
    assert_eq!((journal.free_slots(), free_flows), (LAYOUT.slots, LAYOUT.flows));
}

/// What of `memory` was written.
fn written(memory: &Mortal) -> Used {
    LAYOUT.used(|range| {
        let stored = memory.stored.borrow();
        range.clone().rev().find(|&at| stored[at]).map_or(range.start, |last| last + 1)
    })
}

/// Adopts what is left in `memory`, and reads no more of it than was written.
fn adopt(memory: &Mortal) -> (Journal<&Mortal>, Vec<Verdict>, Lost) {
    Journal::adopt_used(memory, LAYOUT, written(memory))
}

/// Ends a process after `stores` stores of these steps, and the one after it, which adopts what is left, at each of its stores.
fn die_after(stores: usize, steps: &[Step]) {
    let memory = Mortal::new();
    let mut world = World::new(&memory, Journal::format(&memory, LAYOUT));
    memory.revive(stores);
    world.run(steps);
    let connections = world.connections.clone();
    let left = memory.words.borrow().clone();
    for adoption in 0.. {
        memory.words.replace(left.clone());
        memory.revive(adoption);
        drop(adopt(&memory));
        let ended = memory.is_dead.get();
        memory.revive(usize::MAX);
        let (journal, verdicts, lost) = adopt(&memory);
        assert_eq!(lost, Lost::default());
        assert_nothing_is_missing(&verdicts, &connections);
        if !ended {
            return assert_nothing_leaks(journal, &verdicts);
        }
    }
}

/// Stores that these steps make.
fn stores_of(steps: &[Step]) -> usize {
    let memory = Mortal::new();
    let mut world = World::new(&memory, Journal::format(&memory, LAYOUT));
    memory.revive(usize::MAX);
    world.run(steps);
    memory.made(usize::MAX)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_acknowledged_byte_is_missing_wherever_a_process_ends(
        steps in prop::collection::vec(step(), 1..40),
    ) {
        for stores in 0..=stores_of(&steps) {
            die_after(stores, &steps);
        }
    }

    #[test]
    fn a_series_of_processes_that_die_loses_nothing(
        lives in prop::collection::vec((prop::collection::vec(step(), 1..30), 0..200_usize), 1..8),
    ) {
        let memory = Mortal::new();
        drop(Journal::format(&memory, LAYOUT));
        let (mut connections, mut opened) = (Vec::new(), 0);
        for (steps, stores) in lives {
            memory.revive(usize::MAX);
            let (mut journal, verdicts, lost) = adopt(&memory);
            prop_assert_eq!(lost, Lost::default());
            assert_nothing_is_missing(&verdicts, &connections);
            // What is not owed anything is met anew.
            connections.clear();
            for verdict in verdicts {
                let Verdict::Whole(flow, frames) = verdict else { unreachable!() };
                let (number, place) = (flow.tuple.src_port, flow.place);
                let (heard, guest) = (flow.acked, flow.creditor_ack);
                let stored = frames.last().map_or(heard, |frame| frame.seq + frame.len);
                connections.push(Connection { number, place, heard, guest, stored });
            }
            if let Some(flow) = connections.pop() {
                // The guest gets what it is owed.
                journal.acknowledged(flow.place, flow.heard);
                journal.close(flow.place);
            }
            memory.revive(stores);
            let mut world = World { memory: &memory, journal, connections, opened };
            world.run(&steps);
            (connections, opened) = (world.connections, world.opened);
        }
    }

    #[test]
    fn whatever_a_stranger_wrote_no_flow_has_a_hole_that_nobody_hears_of(
        steps in prop::collection::vec(step(), 1..40),
        damage in prop::collection::vec((0..1_000_usize, any::<u64>(), any::<bool>()), 1..4),
    ) {
        let memory = Mortal::new();
        let mut world = World::new(&memory, Journal::format(&memory, LAYOUT));
        world.run(&steps);
        let connections = world.connections.clone();
        let headers: Vec<_> = headers().collect();
        for (at, value, flips) in damage {
            let word = &mut memory.words.borrow_mut()[headers[at % headers.len()]];
            *word = if flips { *word ^ (1 << (value % 64)) } else { value };
        }
        let (_, verdicts, lost) = Journal::adopt(&memory, LAYOUT);
        for connection in connections.iter().filter(|c| c.heard.after(c.guest)) {
            let of_it = |verdict: &&Verdict| {
                let (Verdict::Whole(flow, _) | Verdict::Broken(flow)) = verdict;
                flow.tuple == tuple(connection.number)
            };
            match verdicts.iter().find(of_it) {
                Some(Verdict::Broken(_)) => {}
                Some(whole) => {
                    assert_nothing_is_missing(std::slice::from_ref(whole), std::slice::from_ref(connection));
                }
                None => prop_assert!(lost.flows > 0 || unpublished(&memory, connection)),
            }
        }
    }
}

/// Words of records but for numbers and notes, which no sum guards, since they change alone.
fn headers() -> impl Iterator<Item = usize> {
    let flows =
        (0..LAYOUT.flows).flat_map(|place| (0..layout::FLOW_WORDS).map(move |word| (place, word)));
    let own = layout::NUMBERS..layout::NOTES + NOTE_WORDS;
    let flows = flows.filter(move |(_, word)| !own.contains(word));
    let flows = flows.map(|(place, word)| LAYOUT.flow(place) + word);
    flows.chain(
        (0..LAYOUT.slots)
            .flat_map(|slot| (0..layout::SLOT_WORDS).map(move |word| LAYOUT.slot(slot) + word)),
    )
}

/// The bit was damaged that says that there is a flow.
fn unpublished(memory: &Mortal, connection: &Connection) -> bool {
    let state = memory.words.borrow()[LAYOUT.flow(connection.place.0)];
    !layout::is_published(state)
}

#[test]
fn what_is_kept_ends_where_the_memory_does_and_starts_again_where_the_guest_acknowledges() {
    let memory = Mortal::new();
    let mut journal = Journal::format(&memory, LAYOUT);
    let place = journal.open(&debtor(&tuple(1)), Seq(100)).unwrap();
    let kept = (0..).take_while(|_| journal.keep(place, 20, image(&[7; 20]))).count();
    // Two slots each.
    assert_eq!((kept, journal.free_slots()), (6, 0));
    journal.acknowledged(place, Seq(139));
    assert_eq!(journal.free_slots(), 2);
    assert!(!journal.keep(place, 33, image(&[7; 33])) && journal.keep(place, 32, image(&[7; 32])));
    journal.close(place);
    assert_eq!(journal.free_slots(), LAYOUT.slots);
    let all: Vec<_> = (0..).map_while(|n| journal.open(&debtor(&tuple(n)), Seq(0))).collect();
    assert_eq!(all.len(), LAYOUT.flows);
}

#[test]
fn a_flow_that_lacks_a_frame_is_broken_until_it_is_closed() {
    let memory = Mortal::new();
    let mut journal = Journal::format(&memory, LAYOUT);
    let place = journal.open(&debtor(&tuple(1)), Seq(0)).unwrap();
    (0..3).for_each(|_| assert!(journal.keep(place, 10, image(&[7; 10]))));
    // The second one's slot: slots are taken from the first on.
    (&memory).store(LAYOUT.slot(1), 0);
    for _ in 0..2 {
        let (_, verdicts, _) = Journal::adopt(&memory, LAYOUT);
        assert!(matches!(&verdicts[..], [Verdict::Broken(flow)] if flow.tuple == tuple(1)));
    }
    let (mut journal, verdicts, _) = Journal::adopt(&memory, LAYOUT);
    let [Verdict::Broken(flow)] = &verdicts[..] else { panic!("{verdicts:?}") };
    journal.close(flow.place);
    let (journal, verdicts, lost) = Journal::adopt(&memory, LAYOUT);
    assert_eq!((verdicts, lost), (vec![], Lost::default()));
    assert_nothing_leaks(journal, &[]);
}

#[test]
fn a_frame_that_could_not_be_adopted_is_not_kept() {
    let layout = Layout { flows: 1, slots: 2, slot_bytes: layout::MAX_BYTES };
    let memory: Vec<_> = (0..layout.words()).map(|_| AtomicU64::new(0)).collect();
    let mut journal = Journal::format(&memory[..], layout);
    let place = journal.open(&debtor(&tuple(1)), Seq(0)).unwrap();
    assert!(!journal.keep(place, 1, image(&vec![7; layout::MAX_BYTES + 1])));
    assert_eq!(journal.free_slots(), 2);
    assert!(journal.keep(place, 1, image(&vec![7; layout::MAX_BYTES])));
    let (_, verdicts, _) = Journal::adopt(&memory[..], layout);
    assert!(matches!(&verdicts[..], [Verdict::Whole(_, frames)] if frames.len() == 1));
}

/// Words of the record of a slot.
fn slot_words(slot: usize) -> std::ops::Range<usize> {
    LAYOUT.slot(slot)..LAYOUT.slot(slot) + layout::SLOT_WORDS
}

#[test]
fn a_frame_of_an_earlier_flow_at_the_same_place_is_nobodys() {
    let memory = Mortal::new();
    let mut journal = Journal::format(&memory, LAYOUT);
    let place = journal.open(&debtor(&tuple(1)), Seq(0)).unwrap();
    assert!(journal.keep(place, 10, image(&[7; 10])));
    let record = memory.words.borrow()[slot_words(0)].to_vec();
    journal.close(place);
    assert_eq!(journal.open(&debtor(&tuple(2)), Seq(0)), Some(place));
    assert!(journal.keep(place, 10, image(&[9; 10])));
    // As if the first flow's frame had stayed where the second one's is.
    for (at, word) in slot_words(0).zip(record) {
        (&memory).store(at, word);
    }
    let (_, verdicts, _) = Journal::adopt(&memory, LAYOUT);
    assert!(
        matches!(&verdicts[..], [Verdict::Broken(flow)] if flow.tuple == tuple(2)),
        "{verdicts:?}"
    );
}

#[test]
fn after_an_adoption_no_slot_has_a_state_but_those_of_frames_that_are_kept() {
    let memory = Mortal::new();
    let mut journal = Journal::format(&memory, LAYOUT);
    let place = journal.open(&debtor(&tuple(1)), Seq(0)).unwrap();
    (0..3).for_each(|_| assert!(journal.keep(place, 20, image(&[7; 20]))));
    // It ends behind the first store of this.
    memory.revive(1);
    journal.close(place);
    assert!(memory.is_dead.get());
    memory.revive(usize::MAX);
    let states = || {
        let words = memory.words.borrow();
        (0..LAYOUT.slots).filter(|&slot| words[LAYOUT.slot(slot)] != 0).count()
    };
    assert_eq!(states(), 3);
    let (mut journal, verdicts, _) = Journal::adopt(&memory, LAYOUT);
    assert_eq!((verdicts.len(), states()), (0, 0));
    let place = journal.open(&debtor(&tuple(2)), Seq(0)).unwrap();
    assert!(journal.keep(place, 20, image(&[9; 20])));
    drop(journal);
    let (_, verdicts, _) = Journal::adopt(&memory, LAYOUT);
    assert_eq!((verdicts.len(), states()), (1, 1));
}

#[test]
fn a_slot_that_two_frames_claim_is_neithers() {
    let memory = Mortal::new();
    let mut journal = Journal::format(&memory, LAYOUT);
    for number in 1..3 {
        let place = journal.open(&debtor(&tuple(number)), Seq(0)).unwrap();
        assert!(journal.keep(place, 20, image(&[number as u8; 20])));
    }
    // The second frame's slots are 2 and 3. A stranger who knows sums has it end in a slot of the first one.
    let (record, slots) = FrameRecord::read(&&memory, &LAYOUT, 2).unwrap();
    assert_eq!(slots, [2, 3]);
    record.write(&&memory, &LAYOUT, [2, 1].into_iter(), &[2; 20]);
    let (journal, verdicts, _) = Journal::adopt(&memory, LAYOUT);
    assert!(matches!(&verdicts[..], [Verdict::Broken(_), Verdict::Broken(_)]), "{verdicts:?}");
    assert_nothing_leaks(journal, &verdicts);
}

#[test]
fn a_flow_has_the_notes_of_its_last_promise_or_later_ones() {
    let memory = Mortal::new();
    let mut journal = Journal::format(&memory, LAYOUT);
    let place = journal.open(&debtor(&tuple(1)), Seq(0)).unwrap();
    assert!(journal.store(place, Seq(0), 20, image(&[7; 20])));
    journal.promise(place, Seq(19), &[1, 2, 3, 4]);
    let notes = || {
        let (_, verdicts, _) = Journal::adopt(&memory, LAYOUT);
        let [Verdict::Whole(flow, frames)] = &verdicts[..] else { panic!("{verdicts:?}") };
        assert_eq!((frames.len(), flow.creditor, flow.acked), (1, Creditor::Peer, Seq(19)));
        flow.notes
    };
    assert_eq!(notes(), [1, 2, 3, 4]);
    journal.note(place, &[5, 6, 7, 8]);
    assert_eq!(notes(), [5, 6, 7, 8]);
}

/// Memory of which only what was written may be read.
struct Bounded<'m>(&'m Mortal, Used);

impl Words for Bounded<'_> {
    fn load(&self, index: usize) -> u64 {
        let Used { flows, slots } = self.1;
        let blank =
            [LAYOUT.flow(flows)..LAYOUT.slot(0), LAYOUT.slot(slots)..LAYOUT.slot(LAYOUT.slots)];
        assert!(!blank.iter().any(|words| words.contains(&index)), "word {index} is read");
        self.0.load(index)
    }

    fn store(&self, index: usize, value: u64) {
        self.0.store(index, value);
    }
}

#[test]
fn what_was_never_written_is_not_read_and_is_free() {
    let memory = Mortal::new();
    let mut journal = Journal::blank(&memory, LAYOUT);
    let place = journal.open(&debtor(&tuple(1)), Seq(0)).unwrap();
    assert!(journal.keep(place, 20, image(&bytes(1, Seq(0), 20))));
    let used = written(&memory);
    assert_eq!(used, Used { flows: 1, slots: 2 });
    let (_, verdicts, lost) = Journal::adopt_used(Bounded(&memory, used), LAYOUT, used);
    assert_eq!((&verdicts, lost), (&Journal::adopt(&memory, LAYOUT).1, Lost::default()));
    assert!(matches!(&verdicts[..], [Verdict::Whole(_, frames)] if frames.len() == 1));
    assert_nothing_leaks(adopt(&memory).0, &verdicts);
}
