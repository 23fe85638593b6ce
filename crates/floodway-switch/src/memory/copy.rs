//! Copies of a few bytes, without a call.
//!
//! # Theory of operation
//! Most of what is copied on the packet path are headers and small frames, for which a call of the C library's `memcpy` and its choice of a method take
//! longer than the copy. Here a length picks one of a few sequences of moves of 1 to 16 bytes, of which the last overlaps the one
//! before it. All bytes are loaded before any is stored, so ranges may overlap as with [`std::ptr::copy`].

/// Longest copy that is made without a call.
pub(crate) const INLINE: usize = 128;

/// The largest word that one instruction moves on every processor of the architecture.
#[cfg(target_arch = "x86_64")]
type Wide = std::arch::x86_64::__m128i;
#[cfg(not(target_arch = "x86_64"))]
type Wide = u64;

/// Its bytes.
const WIDE: usize = size_of::<Wide>();

/// A word at any address.
#[repr(C, packed)]
#[derive(Clone, Copy)]
struct Unaligned<T>(T);

/// Copies `n` bytes from `from` to `to`; the ranges may overlap.
///
/// # Safety
/// As for [`std::ptr::copy`].
#[inline(always)]
pub(crate) unsafe fn copy(from: *const u8, to: *mut u8, n: usize) {
    // SAFETY: each sequence copies bytes 0 to n, by the bounds of its arm; the caller answers for those.
    unsafe {
        if n > INLINE {
            std::ptr::copy(from, to, n);
        } else if n > 64 {
            ends::<Wide, { 64 / WIDE }>(from, to, n);
        } else if n >= 32 {
            ends::<Wide, { 32 / WIDE }>(from, to, n);
        } else {
            copy_short(from, to, n);
        }
    }
}

/// As [`copy`], of less than 32 bytes.
///
/// # Safety
/// As for [`std::ptr::copy`].
#[inline(always)]
unsafe fn copy_short(from: *const u8, to: *mut u8, n: usize) {
    // SAFETY: as in `copy`.
    unsafe {
        match n {
            16.. => ends::<[u64; 2], 1>(from, to, n),
            8.. => ends::<u64, 1>(from, to, n),
            4.. => ends::<u32, 1>(from, to, n),
            1.. => copy_bytes(from, to, n),
            0 => {}
        }
    }
}

/// Copies the first and the last `N` words of `n` bytes, which together are all of them.
///
/// # Safety
/// As for [`std::ptr::copy`], and `n` is from the size of `N` words to twice that.
#[inline(always)]
unsafe fn ends<T: Copy, const N: usize>(from: *const u8, to: *mut u8, n: usize) {
    let last = n - N * size_of::<T>();
    // SAFETY: all words are inside the ranges; reads and writes need no alignment.
    unsafe {
        let words = |start: usize| -> [T; N] {
            std::array::from_fn(|i| from.add(start).cast::<T>().add(i).read_unaligned())
        };
        let (head, tail) = (words(0), words(last));
        for (i, (head, tail)) in head.into_iter().zip(tail).enumerate() {
            to.cast::<T>().add(i).write_unaligned(head);
            to.add(last).cast::<T>().add(i).write_unaligned(tail);
        }
    }
}

/// Copies one to three bytes.
///
/// # Safety
/// As for [`std::ptr::copy`], and `n` is from 1 to 3.
#[inline(always)]
unsafe fn copy_bytes(from: *const u8, to: *mut u8, n: usize) {
    // SAFETY: 0, n / 2 and n - 1 are below n, and are all of 0, 1 and 2 that are.
    unsafe {
        let [first, middle, last] = [*from, *from.add(n / 2), *from.add(n - 1)];
        *to = first;
        *to.add(n / 2) = middle;
        *to.add(n - 1) = last;
    }
}

/// Reads a word as it lies in memory that somebody else may be writing to, once.
///
/// # Safety
/// Its bytes are readable, and any bytes are a valid `T`.
#[inline(always)]
pub(crate) unsafe fn read_word<T: Copy>(from: *const u8) -> T {
    // SAFETY: the caller answers for the bytes. A packed word has no alignment.
    unsafe { from.cast::<Unaligned<T>>().read_volatile() }.0
}

/// Copies `n` bytes out of memory that somebody else may be writing to, by volatile reads: whatever is done with the copy, the compiler does not go
/// back to where it came from.
///
/// # Safety
/// The `n` bytes at `from` are readable, those at `to` are writable and nobody else's; the ranges do not overlap.
#[inline(always)]
pub(crate) unsafe fn read_shared(from: *const u8, to: *mut u8, n: usize) {
    // SAFETY: of all words the bytes are inside 0 to n; the caller answers for those. A packed word has no alignment.
    unsafe {
        if n < size_of::<u64>() {
            for at in 0..n {
                to.add(at).write(from.add(at).read_volatile());
            }
        } else if n < 2 * WIDE {
            read_words::<u64>(from, to, n);
        } else {
            read_words::<Wide>(from, to, n);
        }
    }
}

/// As [`read_shared`], word by word.
///
/// # Safety
/// As for [`read_shared`]; `n` is at least the size of a word, and any bytes are one.
#[inline(always)]
unsafe fn read_words<T: Copy>(from: *const u8, to: *mut u8, n: usize) {
    let last = n - size_of::<T>();
    // SAFETY: no word begins behind `last`, which the caller has bytes for.
    unsafe {
        let read = |at: usize| {
            to.add(at).cast::<Unaligned<T>>().write(Unaligned(read_word(from.add(at))));
        };
        let mut at = 0;
        while at < last {
            read(at);
            at += size_of::<T>();
        }
        // Bytes that are read twice differ if somebody writes meanwhile; the copy has what was read last.
        read(last);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(n: usize) -> Vec<u8> {
        (0..n).map(|i| (i * 7 + 1) as u8).collect()
    }

    #[test]
    fn every_length_is_copied_and_nothing_else_is_written() {
        for n in 0..=300 {
            let from = pattern(n);
            let mut copied = vec![0xee; n + 2];
            // SAFETY: both have n bytes from there on.
            unsafe { copy(from.as_ptr(), copied.as_mut_ptr().add(1), n) };
            assert_eq!(copied[1..=n], from);
            assert_eq!((copied[0], copied[n + 1]), (0xee, 0xee), "{n}");
            let mut read = vec![0xee; n + 2];
            // SAFETY: as above.
            unsafe { read_shared(from.as_ptr(), read.as_mut_ptr().add(1), n) };
            assert_eq!(read, copied, "{n}");
        }
    }

    #[test]
    fn ranges_may_overlap_in_both_directions() {
        for n in 0..=200 {
            for shift in [1, 7, 16, 40] {
                for (from, to) in [(0, shift), (shift, 0)] {
                    let mut bytes = pattern(n + shift);
                    let mut expected = bytes.clone();
                    expected.copy_within(from..from + n, to);
                    let start = bytes.as_mut_ptr();
                    // SAFETY: both ranges are inside the vector.
                    unsafe { copy(start.add(from), start.add(to), n) };
                    assert_eq!(bytes, expected, "{n} bytes from {from} to {to}");
                }
            }
        }
    }
}
