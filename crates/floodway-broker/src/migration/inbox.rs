//! Where threads leave things for one that waits for descriptors.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::event::{EventfdFlags, eventfd};

/// A queue that is readable while it holds something.
#[derive(Debug)]
pub(crate) struct Inbox<T> {
    queue: Mutex<VecDeque<T>>,
    bell: OwnedFd,
}

impl<T> Inbox<T> {
    /// An empty one.
    ///
    /// # Errors
    /// Descriptors have run out.
    pub(crate) fn new() -> io::Result<Self> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { queue: Mutex::default(), bell })
    }

    /// Leaves `item` there.
    pub(crate) fn put(&self, item: T) {
        let mut queue = self.lock();
        queue.push_back(item);
        // Fails only when the counter is full, and then it is readable.
        let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
    }

    /// The next one, in the order in which they came.
    pub(crate) fn take(&self) -> Option<T> {
        let mut queue = self.lock();
        let item = queue.pop_front();
        if queue.is_empty() {
            // Nothing to read: it was silent.
            let _ = rustix::io::read(&self.bell, &mut [0; 8]);
        }
        item
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<T>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> AsFd for Inbox<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use floodway_process::poll::is_readable;

    #[test]
    fn it_is_readable_while_it_holds_something() {
        let inbox = Inbox::new().unwrap();
        assert!(inbox.take().is_none() && !is_readable(inbox.as_fd()));
        inbox.put(1);
        inbox.put(2);
        assert_eq!(inbox.take(), Some(1));
        assert!(is_readable(inbox.as_fd()));
        assert_eq!(inbox.take(), Some(2));
        assert!(!is_readable(inbox.as_fd()));
    }
}
