//! All interleavings of threads that wake each other, or hand frames to a guest that stops.
//!
//! Loom runs each model once for every order of its threads' accesses to shared memory, and every value that the C++ memory model lets a
//! load return. [`sleep`] and [`ring`] run the switch's own code, on loom's atomics; each comes with a model that has no fences, which
//! must fail: so the models can. [`migration`] and [`buffers`] repeat in small what [`crate::pipeline::migration`] and [`crate::pipeline::delivery`] do, lock by lock: theirs hangs on
//! too much else to be run so often.
//!
//! Loom's threads have stacks of its own, for which it installs a handler of `SIGBUS`, as [`crate::memory::sigbus`] does: so the models run in a process
//! without other tests.

mod buffers;
mod migration;
mod ring;
mod sleep;

use std::sync::atomic::Ordering;

use loom::sync::atomic::{AtomicU16, AtomicU64, fence};

use crate::sync::atomics::{Atomics, Word, word};

word!(AtomicU16, u16);
word!(AtomicU64, u64);

/// Loom's atomics.
struct Loom;

impl Atomics for Loom {
    type U16 = AtomicU16;
    type U64 = AtomicU64;

    fn fence() {
        fence(Ordering::SeqCst);
    }
}

/// The same, and somebody forgot the fences.
struct Unfenced;

impl Atomics for Unfenced {
    type U16 = AtomicU16;
    type U64 = AtomicU64;

    fn fence() {}
}
