//! A growing array that never moves what it holds.

/// log2 of the elements of a chunk.
const CHUNK_SHIFT: u32 = 10;
/// Elements of a chunk.
const CHUNK: usize = 1 << CHUNK_SHIFT;

/// An array that grows by chunks of 1024 elements: growth costs one allocation and no copy.
///
/// Two ways to grow, for one array to use one of: [`push`](Self::push) packs elements densely;
/// [`get_or_default`](Self::get_or_default) fills the chunk around an index and leaves the others
/// unallocated.
#[derive(Clone, Debug)]
pub(crate) struct Chunks<T> {
    chunks: Vec<Vec<T>>,
    capacity: u32,
    len: u32,
}

const fn split(index: u32) -> (usize, usize) {
    ((index >> CHUNK_SHIFT) as usize, index as usize % CHUNK)
}

impl<T> Chunks<T> {
    /// An array for indices below `capacity`. Reserves the list of chunks, so that it never moves
    /// either: 24 bytes for every 1024 elements.
    pub(crate) fn new(capacity: u32) -> Self {
        let chunks = Vec::with_capacity((capacity as usize).div_ceil(CHUNK));
        Self { chunks, capacity, len: 0 }
    }

    /// Elements that were pushed.
    pub(crate) const fn len(&self) -> u32 {
        self.len
    }

    #[inline]
    pub(crate) fn get(&self, index: u32) -> Option<&T> {
        let (chunk, offset) = split(index);
        self.chunks.get(chunk)?.get(offset)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, index: u32) -> Option<&mut T> {
        let (chunk, offset) = split(index);
        self.chunks.get_mut(chunk)?.get_mut(offset)
    }

    /// Appends an element; answers its index, or `None` at the capacity.
    pub(crate) fn push(&mut self, value: T) -> Option<u32> {
        let index = self.len;
        if index >= self.capacity {
            return None;
        }
        let (chunk, offset) = split(index);
        if offset == 0 {
            let room = (self.capacity - index).min(CHUNK as u32);
            self.chunks.push(Vec::with_capacity(room as usize));
        }
        self.chunks.get_mut(chunk)?.push(value);
        self.len += 1;
        Some(index)
    }
}

impl<T: Clone + Default> Chunks<T> {
    /// The element at `index`, a default one if there was none; `None` at and above the capacity.
    #[inline]
    pub(crate) fn get_or_default(&mut self, index: u32) -> Option<&mut T> {
        let (chunk, offset) = split(index);
        if self.chunks.get(chunk).is_none_or(Vec::is_empty) {
            self.fill(index);
        }
        self.chunks.get_mut(chunk)?.get_mut(offset)
    }

    #[cold]
    fn fill(&mut self, index: u32) {
        if index >= self.capacity {
            return;
        }
        let (chunk, offset) = split(index);
        if self.chunks.len() <= chunk {
            self.chunks.resize_with(chunk + 1, Vec::new);
        }
        let room = (self.capacity - (index - offset as u32)).min(CHUNK as u32);
        if let Some(chunk) = self.chunks.get_mut(chunk) {
            *chunk = vec![T::default(); room as usize];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pushed_elements_stay_where_they_are() {
        let mut chunks = Chunks::new(3000);
        assert_eq!(chunks.push(0), Some(0));
        let first: *const u32 = chunks.get(0).unwrap();
        for i in 1..3000 {
            assert_eq!(chunks.push(i), Some(i));
        }
        assert_eq!(chunks.push(3000), None);
        assert!(std::ptr::eq(first, chunks.get(0).unwrap()));
        assert!((0..3000).all(|i| chunks.get(i) == Some(&i)));
        assert_eq!(chunks.get(3000), None);
        assert_eq!(chunks.len(), 3000);
    }

    #[test]
    fn sparse_elements_allocate_only_their_chunk() {
        let mut chunks: Chunks<u32> = Chunks::new(1_000_000);
        *chunks.get_or_default(999_999).unwrap() = 7;
        assert_eq!(chunks.get(999_999), Some(&7));
        assert_eq!(chunks.get(0), None);
        assert_eq!(chunks.chunks.iter().filter(|chunk| chunk.capacity() > 0).count(), 1);
        *chunks.get_or_default(0).unwrap() = 1;
        assert_eq!(chunks.get(0), Some(&1));
        assert_eq!(chunks.get_or_default(1_000_000), None);
        assert_eq!(chunks.get(u32::MAX), None);
    }
}
