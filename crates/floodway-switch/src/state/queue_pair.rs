//! A queue pair of a port, each of its rings behind a lock of its own.

use std::sync::{Mutex, MutexGuard};

use crate::queues::rx::RxQueue;
use crate::queues::tx::TxQueue;
use crate::sync::lock_order::{Ordered, Rank};

/// The two rings of a queue pair. The order of locks is in `lock_order`.
pub struct QueuePair {
    rx: Mutex<RxQueue>,
    tx: Mutex<TxQueue>,
}

impl QueuePair {
    /// A pair whose rings do not run. At most `queue_bytes` wait for buffers of the guest.
    pub(super) fn new(queue_bytes: usize) -> Self {
        Self { rx: Mutex::new(RxQueue::new(queue_bytes)), tx: Mutex::new(TxQueue::default()) }
    }

    /// The receive queue (to the guest).
    #[inline]
    pub fn rx(&self) -> Ordered<MutexGuard<'_, RxQueue>> {
        Ordered::lock(Rank::Receive, &self.rx)
    }

    /// The transmit queue (from the guest).
    #[inline]
    pub fn tx(&self) -> Ordered<MutexGuard<'_, TxQueue>> {
        Ordered::lock(Rank::Transmit, &self.tx)
    }
}
