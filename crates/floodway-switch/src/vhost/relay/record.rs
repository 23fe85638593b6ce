//! What the broker keeps of a front-end's messages, for the data plane after this one.
//!
//! # Theory of operation
//! The record is to bring a new device to where this one is. So a message that sets something is kept under the key of what it sets, once the device has accepted
//! it, and a message that undoes something lets its entries go:
//!
//! | message | record |
//! |---|---|
//! | features, protocol features, status, dirty log | one entry each |
//! | `GET_FEATURES`, `GET_PROTOCOL_FEATURES` | the first one: the protocol's library acknowledges only after it was asked |
//! | `SET_MEM_TABLE` | one entry; all regions that were added or removed go |
//! | `ADD_MEM_REG` | an entry for its guest address |
//! | `REM_MEM_REG` | the entry of its guest address goes; kept itself only if the region is in the table. Nothing if there is no such region |
//! | a ring's size, addresses, base, kick, call, enable flag | an entry for each ring |
//! | `GET_VRING_BASE` | kick and call go; a `SET_VRING_BASE` of our own with the index that was returned |
//! | a reset | all of the rings go, but for their bases; the features, too, unless it is `RESET_OWNER` |
//!
//! Entries are replayed in the order in which they were made, so a ring's start comes after what it needs, as it did. Where a ring goes on is not in the
//! record: its used index says that.
//!
//! **Invariant**: the record is bounded by what a device can hold: its rings and [`MAX_REGIONS`](crate::memory::MAX_REGIONS).

use std::collections::{BTreeMap, BTreeSet};

use floodway_process::message::Change;

const GET_FEATURES: u32 = 1;
const SET_FEATURES: u32 = 2;
const RESET_OWNER: u32 = 4;
const SET_MEM_TABLE: u32 = 5;
const SET_LOG_BASE: u32 = 6;
const SET_VRING_NUM: u32 = 8;
const SET_VRING_ADDR: u32 = 9;
const SET_VRING_BASE: u32 = 10;
const GET_VRING_BASE: u32 = 11;
const SET_VRING_KICK: u32 = 12;
const SET_VRING_CALL: u32 = 13;
const GET_PROTOCOL_FEATURES: u32 = 15;
const SET_PROTOCOL_FEATURES: u32 = 16;
const SET_VRING_ENABLE: u32 = 18;
const RESET_DEVICE: u32 = 34;
const ADD_MEM_REG: u32 = 37;
const REM_MEM_REG: u32 = 38;
const SET_STATUS: u32 = 39;

const HEADER_LEN: usize = 12;
/// Bytes of a region in a table of memory.
const REGION_LEN: usize = 32;

/// The key of what `request` sets for `which`: a ring, a page of guest memory, or 0 for the device.
const fn key(request: u32, which: u64) -> u64 {
    (request as u64) << 56 | which
}

/// All keys of `request`.
const fn all(request: u32) -> Change {
    Change::Forget { first: key(request, 0), last: key(request, (1 << 56) - 1) }
}

fn one(key: u64) -> Change {
    Change::Forget { first: key, last: key }
}

/// The avail index at which a stopped ring goes on; `None` if there is no such ring.
pub(super) type Bases<'a> = dyn Fn(u32) -> Option<u16> + 'a;

/// Says what is kept. It sees all messages of a session, replayed ones, too.
pub(super) struct Keeper {
    rings: usize,
    /// Guest addresses of the regions of the last table.
    table: BTreeSet<u64>,
    /// Sizes of the regions that there are, by their guest addresses.
    present: BTreeMap<u64, u64>,
    asked_features: bool,
    asked_protocol: bool,
}

impl Keeper {
    pub(super) fn new(rings: usize) -> Self {
        let (table, present) = (BTreeSet::new(), BTreeMap::new());
        Self { rings, table, present, asked_features: false, asked_protocol: false }
    }

    /// What changes in the record by `message`, which the device has accepted. `bases` knows the avail index at which a stopped ring goes on.
    pub(super) fn changes(&mut self, message: &[u8], bases: &Bases<'_>) -> Vec<Change> {
        let request = word(message, 0);
        let number = word(message, HEADER_LEN);
        match request {
            GET_FEATURES => first_time(&mut self.asked_features, request),
            GET_PROTOCOL_FEATURES => first_time(&mut self.asked_protocol, request),
            SET_FEATURES | SET_PROTOCOL_FEATURES | SET_LOG_BASE => keep(request, 0),
            SET_STATUS if long(message, HEADER_LEN) != 0 => keep(request, 0),
            SET_STATUS => self.reset(&[SET_STATUS, SET_FEATURES], bases),
            RESET_DEVICE => self.reset(&[SET_FEATURES], bases),
            RESET_OWNER => self.reset(&[], bases),
            SET_MEM_TABLE => self.new_table(message),
            ADD_MEM_REG => self.added(region(message, HEADER_LEN + 8)),
            REM_MEM_REG => self.removed(region(message, HEADER_LEN + 8)),
            SET_VRING_NUM | SET_VRING_ADDR | SET_VRING_BASE | SET_VRING_ENABLE => {
                keep(request, number.into())
            }
            // The ring is the low byte; a flag says whether there is a descriptor.
            SET_VRING_KICK | SET_VRING_CALL => keep(request, u64::from(number & 0xff)),
            GET_VRING_BASE => stopped(number, bases),
            _ => Vec::new(),
        }
    }

    fn new_table(&mut self, message: &[u8]) -> Vec<Change> {
        let regions =
            (0..word(message, HEADER_LEN) as usize).map(|n| HEADER_LEN + 8 + n * REGION_LEN);
        self.present = regions.map(|at| region(message, at)).collect();
        self.table = self.present.keys().copied().collect();
        [vec![all(ADD_MEM_REG), all(REM_MEM_REG)], keep(SET_MEM_TABLE, 0)].concat()
    }

    fn added(&mut self, (page, size): (u64, u64)) -> Vec<Change> {
        self.present.insert(page, size);
        keep(ADD_MEM_REG, page)
    }

    fn removed(&mut self, (page, size): (u64, u64)) -> Vec<Change> {
        if self.present.get(&page) != Some(&size) {
            return Vec::new();
        }
        self.present.remove(&page);
        let mut changes = vec![one(key(ADD_MEM_REG, page))];
        if self.table.contains(&page) {
            changes.extend(keep(REM_MEM_REG, page));
        }
        changes
    }

    fn reset(&self, requests: &[u32], bases: &Bases<'_>) -> Vec<Change> {
        let rings = [
            SET_VRING_NUM,
            SET_VRING_ADDR,
            SET_VRING_BASE,
            SET_VRING_KICK,
            SET_VRING_CALL,
            SET_VRING_ENABLE,
        ];
        let gone = rings.iter().chain(requests).map(|&request| all(request));
        gone.chain((0..self.rings as u32).filter_map(|ring| base(ring, bases))).collect()
    }
}

fn stopped(ring: u32, bases: &Bases<'_>) -> Vec<Change> {
    let gone = [SET_VRING_KICK, SET_VRING_CALL].map(|request| one(key(request, ring.into())));
    gone.into_iter().chain(base(ring, bases)).collect()
}

/// A message that sets the base of a stopped ring as it is. None for the index that a device has anyway.
fn base(ring: u32, bases: &Bases<'_>) -> Option<Change> {
    let base = bases(ring).filter(|&base| base != 0)?;
    let words = [SET_VRING_BASE, 1, 8, ring, base.into()];
    let bytes = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    Some(Change::KeepOwn { key: key(SET_VRING_BASE, ring.into()), bytes })
}

fn keep(request: u32, which: u64) -> Vec<Change> {
    vec![Change::Keep { key: key(request, which) }]
}

/// Keeps only the first of its kind: the order of entries matters.
fn first_time(asked: &mut bool, request: u32) -> Vec<Change> {
    if std::mem::replace(asked, true) { Vec::new() } else { keep(request, 0) }
}

/// 32 bits at `at`; zero beyond the end. The device has accepted the message, so what it needs is there.
fn word(message: &[u8], at: usize) -> u32 {
    let bytes = message.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
    bytes.map_or(0, u32::from_ne_bytes)
}

fn long(message: &[u8], at: usize) -> u64 {
    let bytes = message.get(at..at + 8).and_then(|bytes| bytes.try_into().ok());
    bytes.map_or(0, u64::from_ne_bytes)
}

/// The page at which the region of guest memory begins whose address is at `at`, and its size in bytes.
fn region(message: &[u8], at: usize) -> (u64, u64) {
    (long(message, at) / crate::memory::PAGE_SIZE, long(message, at + 8))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A broker's record: keys and messages, in order.
    struct Record {
        keeper: Keeper,
        entries: Vec<(u64, Vec<u8>)>,
    }

    impl Record {
        fn new() -> Self {
            Self { keeper: Keeper::new(4), entries: Vec::new() }
        }

        fn accept(&mut self, request: u32, payload: &[u8]) {
            let header = [request, 1, payload.len() as u32].map(u32::to_ne_bytes).concat();
            let message = [&header[..], payload].concat();
            // Ring 3 has never run.
            for change in self.keeper.changes(&message, &|ring| (ring < 3).then_some(7)) {
                let (key, bytes) = match change {
                    Change::Keep { key } => (key, message.clone()),
                    Change::KeepOwn { key, bytes } => (key, bytes),
                    Change::Forget { first, last } => {
                        self.entries.retain(|(key, _)| !(first..=last).contains(key));
                        continue;
                    }
                };
                self.entries.retain(|(other, _)| *other != key);
                self.entries.push((key, bytes));
            }
        }

        /// What would be replayed, and for which ring or page.
        fn requests(&self) -> Vec<(u32, u64)> {
            let last_bits = (1 << 56) - 1;
            self.entries.iter().map(|(key, bytes)| (word(bytes, 0), key & last_bits)).collect()
        }
    }

    fn region(page: u64) -> Vec<u8> {
        [page * 4096, 4096, 0, 0].map(u64::to_ne_bytes).concat()
    }

    fn table(pages: &[u64]) -> Vec<u8> {
        let count = [pages.len() as u32, 0].map(u32::to_ne_bytes).concat();
        [count, pages.iter().flat_map(|&page| region(page)).collect()].concat()
    }

    fn single(page: u64) -> Vec<u8> {
        [vec![0; 8], region(page)].concat()
    }

    fn state(ring: u32, value: u32) -> Vec<u8> {
        [ring, value].map(u32::to_ne_bytes).concat()
    }

    #[test]
    fn regions_that_come_and_go_leave_what_is_shared() {
        let mut record = Record::new();
        record.accept(SET_MEM_TABLE, &table(&[0, 1]));
        for page in [5, 6] {
            record.accept(ADD_MEM_REG, &single(page));
        }
        for page in [5, 0] {
            record.accept(REM_MEM_REG, &single(page));
        }
        // The table still has this page: it has to go before it comes again.
        record.accept(ADD_MEM_REG, &single(0));
        let expected = [(SET_MEM_TABLE, 0), (ADD_MEM_REG, 6), (REM_MEM_REG, 0), (ADD_MEM_REG, 0)];
        assert_eq!(record.requests(), expected);
        record.accept(SET_MEM_TABLE, &table(&[9]));
        assert_eq!(record.requests(), [(SET_MEM_TABLE, 0)]);
    }

    #[test]
    fn a_region_that_is_not_there_leaves_the_record_as_it_is() {
        let mut record = Record::new();
        record.accept(ADD_MEM_REG, &single(5));
        let larger = [0, 5 * 4096, 8192, 0, 0].map(u64::to_ne_bytes).concat();
        record.accept(REM_MEM_REG, &larger);
        record.accept(REM_MEM_REG, &single(6));
        assert_eq!(record.requests(), [(ADD_MEM_REG, 5)]);
    }

    #[test]
    fn regions_that_come_and_go_for_ever_do_not_pile_up() {
        let mut record = Record::new();
        for page in 0..1000 {
            record.accept(ADD_MEM_REG, &single(page));
            record.accept(REM_MEM_REG, &single(page));
        }
        assert_eq!(record.requests(), []);
    }

    #[test]
    fn a_ring_that_stops_keeps_its_index_and_loses_its_descriptors() {
        let mut record = Record::new();
        for request in [SET_VRING_NUM, SET_VRING_BASE, SET_VRING_ADDR] {
            record.accept(request, &state(1, 256));
        }
        // The flag says that there is no descriptor; the ring is the low byte.
        record.accept(SET_VRING_CALL, &0x101_u64.to_ne_bytes());
        record.accept(SET_VRING_KICK, &1_u64.to_ne_bytes());
        assert_eq!(record.entries.len(), 5);
        record.accept(GET_VRING_BASE, &state(1, 0));
        let left = [(SET_VRING_NUM, 1), (SET_VRING_ADDR, 1), (SET_VRING_BASE, 1)];
        assert_eq!(record.requests(), left);
        let (_, bytes) = record.entries.last().unwrap();
        assert_eq!((word(bytes, 12), word(bytes, 16)), (1, 7));
    }

    #[test]
    fn a_reset_leaves_what_outlives_it() {
        for (request, keeps_features) in [(RESET_OWNER, true), (RESET_DEVICE, false)] {
            let mut record = Record::new();
            record.accept(GET_FEATURES, &[]);
            record.accept(SET_FEATURES, &[1; 8]);
            record.accept(SET_VRING_KICK, &0_u64.to_ne_bytes());
            record.accept(SET_MEM_TABLE, &table(&[0]));
            record.accept(request, &[]);
            let bases = [0, 1, 2].map(|ring| (SET_VRING_BASE, ring));
            let features = keeps_features.then_some((SET_FEATURES, 0));
            let expected: Vec<_> = [(GET_FEATURES, 0)]
                .into_iter()
                .chain(features)
                .chain([(SET_MEM_TABLE, 0)])
                .chain(bases)
                .collect();
            assert_eq!(record.requests(), expected);
        }
    }

    #[test]
    fn a_reset_of_the_largest_port_is_one_message() {
        let mut keeper = Keeper::new(32);
        let status = [vec![0; 12], vec![0; 8]].concat();
        let message = [&SET_STATUS.to_ne_bytes()[..], &status[4..]].concat();
        let changes = keeper.changes(&message, &|_| Some(u16::MAX));
        assert_eq!(changes.len(), floodway_process::message::MAX_CHANGES);
    }

    #[test]
    fn questions_are_kept_once_and_first() {
        let mut record = Record::new();
        record.accept(GET_FEATURES, &[]);
        record.accept(SET_FEATURES, &[1; 8]);
        record.accept(GET_FEATURES, &[]);
        assert_eq!(record.requests(), [(GET_FEATURES, 0), (SET_FEATURES, 0)]);
    }
}
