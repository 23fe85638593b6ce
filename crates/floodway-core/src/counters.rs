//! What mechanisms count.
//!
//! # Theory of operation
//! A mechanism counts in *cells*, 64-bit words with one writer at a time: whoever holds the mechanism. Counting is a relaxed load and store, not a locked
//! instruction. The words belong to the mechanism, or they are the caller's and outlive the process. What is counted is then there at once: nothing is copied
//! from time to time, and nothing is lost with a process that is killed but the one count that it was about to make.
//!
//! Words that outlive a process may hold anything, since anybody may have written them: counters wrap around, and nothing is decided by them.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// The words of `N` counters.
#[derive(Debug)]
pub(crate) enum Words<const N: usize> {
    /// Those of one mechanism.
    Own(Box<[AtomicU64; N]>),
    /// Those of the caller, which are there for as long as the process runs.
    Kept(&'static [AtomicU64; N]),
}

impl<const N: usize> Words<N> {
    #[inline]
    pub fn at(&self, index: usize) -> Count<'_> {
        match self {
            Self::Own(words) => Count(&words[index]),
            Self::Kept(words) => Count(&words[index]),
        }
    }
}

impl<const N: usize> Default for Words<N> {
    fn default() -> Self {
        Self::Own(Box::new([const { AtomicU64::new(0) }; N]))
    }
}

/// A counter with a single writer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Count<'a>(&'a AtomicU64);

impl Count<'_> {
    /// Adds `n`.
    #[inline]
    pub fn add(self, n: u64) {
        self.0.store(self.get().wrapping_add(n), Relaxed);
    }

    /// The value now.
    #[inline]
    pub fn get(self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// Declares counters once: their values as a struct, the cells that they are counted in, their names on the control socket, their meanings.
macro_rules! counters {
    (
        $(#[$about:meta])+
        pub struct $counters:ident in $cells:ident { $($(#[doc = $doc:literal])+ $name:ident,)+ }
    ) => {
        $(#[$about])+
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[repr(C)]
        pub struct $counters {
            $($(#[doc = $doc])+ pub $name: u64,)+
        }

        impl $counters {
            /// How many there are.
            pub const LEN: usize = [$(stringify!($name),)+].len();

            /// Returns every counter with its name and meaning.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, &'static str, u64)> {
                [$((stringify!($name), concat!($($doc),+).trim_ascii(), self.$name),)+].into_iter()
            }
        }

        #[doc = concat!("Where [`", stringify!($counters), "`] are counted: in words of its own by default.")]
        #[derive(Debug, Default)]
        pub struct $cells($crate::counters::Words<{ $counters::LEN }>);

        impl $cells {
            /// Cells in the first [`LEN`](
            #[doc = concat!(stringify!($counters), "::LEN")]
            /// ) of `words`, on top of what is there. Returns `None` if there are fewer.
            #[must_use]
            pub fn kept(words: &'static [std::sync::atomic::AtomicU64]) -> Option<Self> {
                words.first_chunk().map($crate::counters::Words::Kept).map(Self)
            }

            /// The values now.
            #[must_use]
            pub fn get(&self) -> $counters {
                $counters { $($name: self.$name().get(),)+ }
            }

            $(
                #[inline]
                pub(crate) fn $name(&self) -> $crate::counters::Count<'_> {
                    self.0.at(std::mem::offset_of!($counters, $name) / size_of::<u64>())
                }
            )+
        }
    };
}

pub(crate) use counters;

#[cfg(test)]
mod tests {
    use super::*;

    counters! {
        /// Of the test.
        pub struct Counters in Cells {
            /// The first.
            first,
            /// The second.
            second,
        }
    }

    #[test]
    fn kept_words_go_on_where_they_were_and_others_start_from_zero() {
        let words: &'static [AtomicU64] = Box::leak(Box::new([const { AtomicU64::new(0) }; 3]));
        for round in 1..4 {
            let (kept, own) = (Cells::kept(words).unwrap(), Cells::default());
            for cells in [&kept, &own] {
                cells.first().add(1);
                cells.second().add(10);
            }
            assert_eq!(kept.get(), Counters { first: round, second: 10 * round });
            assert_eq!(own.get(), Counters { first: 1, second: 10 });
        }
        let names: Vec<_> = Cells::kept(words).unwrap().get().iter().collect();
        assert_eq!(names, [("first", "The first.", 3), ("second", "The second.", 30)]);
        assert_eq!(words[2].load(Relaxed), 0, "it is nobody's");
        assert!(Cells::kept(&words[2..]).is_none());
    }

    #[test]
    fn a_word_that_a_stranger_wrote_wraps_around() {
        let words: &'static [AtomicU64] =
            Box::leak(Box::new([const { AtomicU64::new(u64::MAX) }; 2]));
        let cells = Cells::kept(words).unwrap();
        cells.first().add(3);
        assert_eq!(cells.get(), Counters { first: 2, second: u64::MAX });
    }
}
