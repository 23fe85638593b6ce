//! The journal of what was acknowledged for a port's guest and to it, in kept memory of its own.
//!
//! # Theory of operation
//! Its layout follows from the sum of both budgets, as they were when the broker made it ([`budget`]), which stays what it is when they are changed: with larger ones the journal is what
//! refuses frames. It has room for twice the budgets' bytes, and 5 words for each 512 of these, so it never does as long as they are not changed and the guest fills its segments.
//!
//! Memory is there when it has been written: a port that never acknowledges anything has none, and one that does has as much as it ever had to keep at once. So
//! a file of no blocks is not even read, and of others only what has blocks: to read the rest would take memory for it, and a moment in which frames stand still.

use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicU64;

use floodway_core::offload::Config;
use floodway_core::offload::journal::{Journal, Layout, Lost, Used, Verdict, Words};
use floodway_process::fault::{self, Point};
use rustix::fs::{SeekFrom, fstat, seek};
use rustix::io::{Errno, pread};

use super::{WORD, map};

/// Stretches of a file that are looked at, at most: a journal is filled from its beginning.
const MAX_EXTENTS: usize = 64;
/// Bytes of a page, at least: what has memory begins and ends with one.
const PAGE: usize = 4096;

/// The words of a journal, mapped for good.
#[derive(Clone, Copy)]
pub struct KeptWords(&'static [AtomicU64]);

impl Words for KeptWords {
    #[inline]
    fn load(&self, index: usize) -> u64 {
        self.0.load(index)
    }

    #[inline]
    fn store(&self, index: usize, value: u64) {
        self.0.store(index, value);
        fault::pass(Point::JournalStored);
    }
}

/// The memory of a journal.
#[derive(Clone, Copy)]
pub struct KeptJournal {
    words: KeptWords,
    layout: Layout,
    /// What another process may have written.
    used: Used,
    /// Nobody has written anything.
    is_blank: bool,
}

/// What a port of this configuration may have acknowledged in another's name at once, in bytes: for its guest and to it.
#[must_use]
pub const fn budget(config: &Config) -> u32 {
    config.receive_budget.saturating_add(config.budget)
}

/// Words of a journal for a port that keeps up to `budget` bytes.
#[must_use]
pub const fn words(budget: u32) -> usize {
    Layout::for_budget(budget).words()
}

impl KeptJournal {
    /// The journal in `file`, which has the [`words`] for `budget`.
    ///
    /// # Errors
    /// It cannot be used.
    pub fn open(file: &OwnedFd, budget: u32) -> io::Result<Self> {
        let layout = Layout::for_budget(budget);
        let is_blank = fstat(file)?.st_blocks == 0;
        let used = layout.used(|words| end_of_data(file, words));
        Ok(Self { words: KeptWords(map(file, layout.words())?), layout, used, is_blank })
    }

    /// Returns `true` if no process has recorded anything.
    #[must_use]
    pub const fn is_blank(&self) -> bool {
        self.is_blank
    }

    /// A journal in which nothing is recorded, if it [is blank](Self::is_blank).
    #[must_use]
    pub fn begin(self) -> Journal<KeptWords> {
        Journal::blank(self.words, self.layout)
    }

    /// What another process has left.
    #[must_use]
    pub fn adopt(self) -> (Journal<KeptWords>, Vec<Verdict>, Lost) {
        Journal::adopt_used(self.words, self.layout, self.used)
    }
}

/// Behind the last of these words of `file` for which it has memory: all words behind that are zero.
fn end_of_data(file: &OwnedFd, words: Range<usize>) -> usize {
    let words = words.start..own_end(file, &words);
    let [start, end] = [words.start, words.end].map(|word| (word * WORD) as u64);
    let (mut at, mut last) = (start, start);
    for _ in 0..MAX_EXTENTS {
        let data = match seek(file, SeekFrom::Data(at)) {
            Ok(data) if data < end => data,
            // Nothing comes behind.
            Ok(_) | Err(Errno::NXIO) => return usize::try_from(last).unwrap_or(0).div_ceil(WORD),
            Err(_) => break,
        };
        let Ok(hole) = seek(file, SeekFrom::Hole(data)) else { break };
        (at, last) = (hole, hole.min(end));
    }
    words.end
}

/// The end of `words`, but for those in a page of which only what comes behind them has memory. The places of a [`Layout`] end anywhere in a page.
fn own_end(file: &OwnedFd, words: &Range<usize>) -> usize {
    let shared = words.start.max(words.end - words.end % (PAGE / WORD));
    let mut bytes = vec![0; (words.end - shared) * WORD];
    let read = pread(file, &mut bytes, (shared * WORD) as u64);
    let is_zero = read == Ok(bytes.len()) && bytes.iter().all(|&byte| byte == 0);
    if is_zero { shared } else { words.end }
}

impl std::fmt::Debug for KeptJournal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KeptJournal").field("layout", &self.layout).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::os::fd::AsFd;

    use floodway_core::offload::journal::{Creditor, Debtor, Image, Keeper};
    use floodway_core::tcp::Seq;
    use floodway_wire::FiveTuple;
    use rustix::fs::SealFlags;

    use super::super::tests::memory;
    use super::*;

    const BUDGET: u32 = 1 << 20;

    fn blocks(file: &OwnedFd) -> i64 {
        fstat(file.as_fd()).unwrap().st_blocks
    }

    #[test]
    fn what_was_recorded_is_found_and_the_rest_takes_no_memory() {
        // Places and slots that fill whole pages, and such that do not.
        for budget in [BUDGET, 1_000_000, 4_000_000] {
            check_memory(budget);
        }
    }

    fn check_memory(budget: u32) {
        let file = memory(words(budget), SealFlags::SHRINK);
        let kept = KeptJournal::open(&file, budget).unwrap();
        assert!(kept.is_blank());
        let mut journal = kept.begin();
        assert_eq!(blocks(&file), 0);
        let localhost = Ipv4Addr::LOCALHOST;
        let tuple = FiveTuple::v4(localhost, localhost, 6).with_ports(1, 2);
        let debtor = Debtor { tuple: &tuple, creditor: Creditor::Guest, about: [1, 2, 3] };
        let place = journal.open(&debtor, Seq(9)).unwrap();
        assert!(journal.keep(place, 600, Image { about: 3, bytes: &[7; 700] }));
        assert!(blocks(&file) * 512 <= 4 * 4096, "{} blocks", blocks(&file));
        let again = KeptJournal::open(&file, budget).unwrap();
        assert!(!again.is_blank());
        let taken = blocks(&file);
        let (_, verdicts, lost) = again.adopt();
        assert_eq!(lost, Lost::default());
        assert_eq!(blocks(&file), taken, "what is read takes memory");
        let [Verdict::Whole(flow, frames)] = &verdicts[..] else { panic!("{verdicts:?}") };
        assert_eq!(
            (flow.tuple, flow.acked, &frames[0].bytes[..]),
            (tuple, Seq(609), &[7; 700][..])
        );
        assert!(KeptJournal::open(&file, 2 * budget).is_err(), "too short");
    }

    #[test]
    fn a_journal_has_room_for_whatever_its_budget_has_room_for() {
        // Headers of at most 134 bytes: Ethernet with a tag, IPv6, TCP with options.
        for len in [1, 378, 379, 512, 513, 890, 1448, 1460, 8960, 65_535] {
            let memory: Vec<_> = (0..words(BUDGET)).map(|_| AtomicU64::new(0)).collect();
            let mut journal = Journal::blank(&memory[..], Layout::for_budget(BUDGET));
            let localhost = Ipv4Addr::LOCALHOST;
            let tuple = &FiveTuple::v4(localhost, localhost, 6);
            let debtor = Debtor { tuple, creditor: Creditor::Guest, about: [0; 3] };
            let place = journal.open(&debtor, Seq(0)).unwrap();
            let bytes = vec![7; len as usize + 134];
            for frame in 0..BUDGET / len.max(512) {
                assert!(
                    journal.keep(place, len, Image { about: 0, bytes: &bytes }),
                    "{frame} of {len}"
                );
            }
        }
    }
}
