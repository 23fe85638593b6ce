//! What of a port the next broker would get.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use floodway_process::fault::{self, Point};
use floodway_process::message::Change;
use floodway_process::store::{Item, Key};

use super::{FrontEnd, PortChannel};
use crate::record::Record;
use crate::store::Store;
use crate::store::taken::TakenPort;

/// What a port's thread begins with, and where it leaves what it holds.
#[derive(Debug)]
pub struct Past {
    pub(super) kept: Kept,
    pub(super) taken: TakenPort,
}

impl Past {
    /// The port `instance`, of which a broker of before has left `taken`, or nothing; what it holds is left in `store`.
    #[must_use]
    pub fn new(store: Store, instance: u64, taken: Option<TakenPort>) -> Self {
        let taken = taken.unwrap_or_default();
        let kept = Kept { store, port: instance, busy: taken.busy };
        Self { kept, taken }
    }

    /// A port that begins, and of which nothing is left.
    #[must_use]
    pub fn none() -> Self {
        Self::new(Store::none(), 0, None)
    }
}

/// Leaves in the store what a port's thread holds.
#[derive(Debug)]
pub(super) struct Kept {
    store: Store,
    /// The port's instance.
    port: u64,
    /// The mark is set.
    busy: bool,
}

impl Kept {
    /// There is another data plane, number `data_plane`.
    pub(super) fn channel(&self, channel: &PortChannel, data_plane: u32) {
        self.store.keep(Item::Channel { port: self.port, data_plane }, &[channel.as_fd()]);
    }

    /// A front-end is there, or has had a message handled.
    pub(super) fn front_end(&self, front_end: &FrontEnd) {
        let FrontEnd { id, peer, session, stream, .. } = front_end;
        let (port, number) = (self.port, session.number());
        let item = Item::Session { port, id: *id, number, peer: *peer };
        self.store.keep(item, &[stream.as_fd()]);
        fault::pass(Point::SessionKept);
    }

    /// Front-end `id`, the last one, has gone.
    pub(super) fn no_front_end(&self, id: u32) {
        let port = self.port;
        self.store.keep(Item::Session { port, id, number: 0, peer: None }, &[]);
        self.store.forget_entries(port, 0, u64::MAX);
    }

    /// The record has changed so, and is `record` now.
    pub(super) fn changes(&self, changes: &[Change], record: &Record<Arc<OwnedFd>>) {
        for change in changes {
            match change {
                Change::Keep { key } | Change::KeepOwn { key, .. } => self.entry(*key, record),
                Change::Forget { first, last } => {
                    self.store.forget_entries(self.port, *first, *last);
                }
            }
        }
    }

    fn entry(&self, key: u64, record: &Record<Arc<OwnedFd>>) {
        // One that a later change has forgotten is not there.
        let Some(packet) = record.packet(key) else { return };
        let descriptors: Vec<BorrowedFd<'_>> = packet.descriptors.iter().map(AsFd::as_fd).collect();
        let item = Item::Entry { port: self.port, key, bytes: packet.bytes.clone() };
        self.store.keep(item, &descriptors);
    }

    /// The front-end is owed something, or not any more.
    pub(super) fn set_busy(&mut self, busy: bool) {
        if std::mem::replace(&mut self.busy, busy) == busy {
            return;
        }
        match busy {
            true => self.store.keep(Item::Busy { port: self.port }, &[]),
            false => self.store.forget(Key::Busy(self.port)),
        }
        fault::pass(if busy { Point::MarkSet } else { Point::MarkRemoved });
    }
}
