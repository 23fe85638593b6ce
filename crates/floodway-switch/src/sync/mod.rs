//! What threads share without waiting for long: deadlines, the order of locks, and the atomics of both.

pub(crate) mod atomics;
pub(crate) mod deadline;
pub(crate) mod lock_order;
pub mod waker;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks `mutex`. A panic elsewhere does not make what it protects unusable: that is consistent whenever it is let go of.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
