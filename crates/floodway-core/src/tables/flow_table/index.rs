//! From hashes to entries: open addressing in buckets of one cache line.

/// 32-bit words of a bucket: one cache line.
const WORDS: usize = 16;
/// Slots of a bucket.
const SLOTS: u32 = 7;
/// Word of a bucket that counts the entries which found no slot here and went further.
const PASSED: usize = 7;
/// First word of a bucket's entry numbers.
const ENTRIES: usize = 8;
/// Buckets that one entry may be in. At the highest load that the table allows (four entries per
/// bucket on average) nine buckets of ten have a free slot: with a sound hash no entry is refused
/// in practice (1e-15), and no look-up costs more than this many cache lines whatever the guest
/// does.
const MAX_PROBES: usize = 16;

/// Words 0..7: tags (0 = free). Word 7: [`PASSED`]. Words 8..15: entry numbers. Word 15: unused.
type Bucket = [u32; WORDS];

/// The index of a table of a fixed capacity.
#[derive(Clone, Debug)]
pub(super) struct Index {
    /// Buckets, with slack before the first for alignment. Comes zeroed from the allocator, so
    /// that memory is taken page by page when it is first touched.
    words: Vec<u32>,
    /// Words of slack before the first bucket.
    skip: usize,
    /// Buckets - 1; their number is a power of two.
    mask: usize,
}

/// Where an entry with some hash may be: home bucket from the low bits, then steps of an odd
/// stride (which reaches every bucket) from the tag, so that entries that share a home bucket
/// part ways after it.
#[derive(Clone, Copy)]
struct Probe {
    tag: u32,
    bucket: usize,
}

impl Probe {
    const fn new(hash: u64) -> Self {
        // The top bit tells a used slot from a free one.
        Self { tag: (hash >> 32) as u32 | 1 << 31, bucket: hash as usize }
    }

    const fn step(&mut self) {
        self.bucket = self.bucket.wrapping_add((self.tag as usize) << 1 | 1);
    }
}

/// A bit for every slot whose tag is `tag`.
#[inline]
fn slots_with(bucket: &Bucket, tag: u32) -> u32 {
    let mut slots = 0;
    for (slot, &word) in bucket.iter().take(ENTRIES).enumerate() {
        slots |= u32::from(word == tag) << slot;
    }
    slots & ((1 << SLOTS) - 1)
}

impl Index {
    /// An index for up to `capacity` entries: 16 bytes for each, rounded up to a power of two.
    pub(super) fn new(capacity: u32) -> Self {
        let buckets = (capacity as usize).next_power_of_two().div_ceil(4);
        let words = vec![0u32; (buckets + 1) * WORDS];
        let skip = words.as_ptr().align_offset(WORDS * size_of::<u32>()).min(WORDS);
        Self { words, skip, mask: buckets - 1 }
    }

    #[inline]
    fn bucket(&self, number: usize) -> Option<&Bucket> {
        let start = self.skip + (number & self.mask) * WORDS;
        self.words.get(start..)?.first_chunk()
    }

    fn bucket_mut(&mut self, number: usize) -> Option<&mut Bucket> {
        let start = self.skip + (number & self.mask) * WORDS;
        self.words.get_mut(start..)?.first_chunk_mut()
    }

    fn probes(&self) -> usize {
        MAX_PROBES.min(self.mask + 1)
    }

    /// The first answer that `ask` gives for an entry which may have this hash.
    #[inline]
    pub(super) fn find<R>(&self, hash: u64, mut ask: impl FnMut(u32) -> Option<R>) -> Option<R> {
        let mut probe = Probe::new(hash);
        for _ in 0..self.probes() {
            let bucket = self.bucket(probe.bucket)?;
            let mut slots = slots_with(bucket, probe.tag);
            while slots != 0 {
                let slot = slots.trailing_zeros() as usize;
                if let Some(answer) = ask(bucket[ENTRIES + slot % ENTRIES]) {
                    return Some(answer);
                }
                slots &= slots - 1;
            }
            if bucket[PASSED] == 0 {
                return None;
            }
            probe.step();
        }
        None
    }

    /// The entry of the first slot in the hash's home bucket with its tag: nearly always the one
    /// that [`find`](Self::find) will ask for.
    #[inline]
    pub(super) fn candidate(&self, hash: u64) -> Option<u32> {
        let probe = Probe::new(hash);
        let bucket = self.bucket(probe.bucket)?;
        let slots = slots_with(bucket, probe.tag) | 1 << SLOTS;
        Some(bucket[ENTRIES + slots.trailing_zeros() as usize % ENTRIES])
    }

    /// A word of the hash's home bucket, for no other purpose than to have it in the cache.
    #[inline]
    pub(super) fn load(&self, hash: u64) -> u32 {
        self.bucket(hash as usize).map_or(0, |bucket| bucket[PASSED])
    }

    /// Adds an entry. False if all buckets where it may be are full.
    pub(super) fn insert(&mut self, hash: u64, entry: u32) -> bool {
        let mut probe = Probe::new(hash);
        for passed in 0..self.probes() {
            let Some(bucket) = self.bucket_mut(probe.bucket) else { return false };
            let free = slots_with(bucket, 0);
            if free != 0 {
                let slot = free.trailing_zeros() as usize % ENTRIES;
                bucket[slot] = probe.tag;
                bucket[ENTRIES + slot] = entry;
                self.count_passed(hash, passed, 1);
                return true;
            }
            probe.step();
        }
        false
    }

    /// Takes an entry out that was added under this hash.
    pub(super) fn remove(&mut self, hash: u64, entry: u32) {
        let mut probe = Probe::new(hash);
        for passed in 0..self.probes() {
            let Some(bucket) = self.bucket_mut(probe.bucket) else { return };
            let mut slots = slots_with(bucket, probe.tag);
            while slots != 0 {
                let slot = slots.trailing_zeros() as usize % ENTRIES;
                if bucket[ENTRIES + slot] == entry {
                    bucket[slot] = 0;
                    self.count_passed(hash, passed, u32::MAX);
                    return;
                }
                slots &= slots - 1;
            }
            probe.step();
        }
    }

    /// Adds `change` (modulo 2³²) to the counts of the first `passed` buckets of a probe.
    fn count_passed(&mut self, hash: u64, passed: usize, change: u32) {
        let mut probe = Probe::new(hash);
        for _ in 0..passed {
            if let Some(bucket) = self.bucket_mut(probe.bucket) {
                bucket[PASSED] = bucket[PASSED].wrapping_add(change);
            }
            probe.step();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(index: &Index, hash: u64) -> Vec<u32> {
        let mut asked = Vec::new();
        index.find(hash, |entry| {
            asked.push(entry);
            None::<()>
        });
        asked
    }

    #[test]
    fn a_bucket_is_one_cache_line() {
        for capacity in [1, 5, 1000, 1 << 20] {
            let index = Index::new(capacity);
            for number in [0, 1, index.mask] {
                let bucket = index.bucket(number).unwrap();
                assert_eq!(std::ptr::from_ref(bucket).addr() % 64, 0);
            }
        }
    }

    #[test]
    fn equal_hashes_are_bounded_and_leave_no_trace() {
        let mut index = Index::new(1024);
        let hash = 0x1234_5678_9abc_def0;
        let room = MAX_PROBES as u32 * SLOTS;
        for entry in 0..room {
            assert!(index.insert(hash, entry));
        }
        assert!(!index.insert(hash, room), "every bucket on the way is full");
        assert_eq!(asked(&index, hash), (0..room).collect::<Vec<_>>());
        // From the middle: what is behind stays within reach.
        for entry in (0..room).filter(|entry| entry % 3 != 0) {
            index.remove(hash, entry);
        }
        let left: Vec<u32> = (0..room).filter(|entry| entry % 3 == 0).collect();
        assert_eq!(asked(&index, hash), left);
        for entry in left {
            index.remove(hash, entry);
        }
        assert!(
            index
                .words
                .iter()
                .enumerate()
                .all(|(at, &word)| { word == 0 || (at + WORDS - index.skip) % WORDS >= ENTRIES })
        );
    }

    #[test]
    fn another_tag_parts_ways_after_the_home_bucket() {
        let mut index = Index::new(1024);
        let home = 5;
        for tag in 0..500u64 {
            assert!(index.insert(tag << 33 | home, tag as u32), "{tag}");
        }
        for tag in 0..500u64 {
            assert_eq!(asked(&index, tag << 33 | home), [tag as u32]);
        }
    }

    #[test]
    fn a_small_index_takes_its_capacity_whatever_the_hashes() {
        for capacity in 1..=64 {
            let mut index = Index::new(capacity);
            assert!((0..capacity).all(|entry| index.insert(3, entry)), "{capacity}");
        }
    }
}
