//! What data planes show and cannot find out: each is given the latest of it at its start, and again when it changes.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use floodway_process::message::ToDataPlane;
use rustix::event::{EventfdFlags, eventfd};

#[derive(Debug, Default)]
struct State {
    latest: BTreeMap<u16, ToDataPlane>,
    changed: BTreeSet<u16>,
}

/// The latest notices, one under each key. Any thread puts them here, and the broker passes them on.
#[derive(Debug)]
pub struct Notices {
    state: Mutex<State>,
    /// Readable after a change.
    bell: OwnedFd,
}

impl Notices {
    /// No notices yet.
    ///
    /// # Errors
    /// Descriptors have run out.
    pub fn new() -> io::Result<Self> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { state: Mutex::default(), bell })
    }

    /// Replaces the notice under `key`. One that is the same as before is not passed on again.
    pub fn put(&self, key: u16, notice: ToDataPlane) {
        let mut state = self.lock();
        if state.latest.get(&key) == Some(&notice) {
            return;
        }
        state.latest.insert(key, notice);
        state.changed.insert(key);
        // Fails only when the counter is full, and then it is readable.
        let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
    }

    /// Forgets the notice under `key`.
    pub fn remove(&self, key: u16) {
        self.lock().latest.remove(&key);
    }

    /// All of them, for a new data plane.
    pub(crate) fn all(&self) -> Vec<ToDataPlane> {
        self.silence();
        let mut state = self.lock();
        state.changed.clear();
        state.latest.values().cloned().collect()
    }

    /// Those that have changed since this or [`all`](Self::all) was last called.
    pub(crate) fn changed(&self) -> Vec<ToDataPlane> {
        self.silence();
        let mut state = self.lock();
        let State { latest, changed } = &mut *state;
        std::mem::take(changed).iter().filter_map(|key| latest.get(key).cloned()).collect()
    }

    fn silence(&self) {
        // Nothing to read: it was silent.
        let _ = rustix::io::read(&self.bell, &mut [0; 8]);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AsFd for Notices {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn notice(threads: u32) -> ToDataPlane {
        ToDataPlane::Vcpus { port: 1, threads, problem: None }
    }

    #[test]
    fn a_notice_is_passed_on_when_it_changes_and_to_each_data_plane() {
        let notices = Notices::new().unwrap();
        notices.put(1, notice(1));
        notices.put(2, notice(2));
        assert_eq!(notices.all(), [notice(1), notice(2)]);
        assert_eq!(notices.changed(), []);
        notices.put(1, notice(1));
        assert_eq!(notices.changed(), [], "it is the same");
        notices.put(2, notice(3));
        notices.put(2, notice(4));
        assert_eq!(notices.changed(), [notice(4)]);
        assert_eq!(notices.all(), [notice(1), notice(4)]);
        notices.put(2, notice(5));
        notices.remove(2);
        assert_eq!(notices.changed(), []);
        assert_eq!(notices.all(), [notice(1)]);
    }
}
