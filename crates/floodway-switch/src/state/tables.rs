//! The forwarding tables, behind a lock that few workers share.
//!
//! Every batch reads them. The word of one lock for reading would move from core to core with each batch of each worker, so a reader locks one of eight
//! shards, each in cache lines of its own, by its thread; a change, which is rare, locks them all.

use std::sync::PoisonError;

use crossbeam_utils::sync::{ShardedLock, ShardedLockReadGuard, ShardedLockWriteGuard};
use floodway_core::l2::MacTables;

use crate::sync::lock_order::{Ordered, Rank};

/// The tables of all networks.
pub struct Tables(ShardedLock<MacTables>);

impl Tables {
    /// Returns `tables` behind a lock.
    #[must_use]
    pub fn new(tables: MacTables) -> Self {
        Self(ShardedLock::new(tables))
    }

    /// The tables, for look-ups and refreshing.
    #[inline]
    pub fn read(&self) -> Ordered<ShardedLockReadGuard<'_, MacTables>> {
        Ordered::take(Rank::Last, || self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The tables, for changes.
    pub fn write(&self) -> Ordered<ShardedLockWriteGuard<'_, MacTables>> {
        Ordered::take(Rank::Last, || self.0.write().unwrap_or_else(PoisonError::into_inner))
    }
}
