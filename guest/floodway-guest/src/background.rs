//! Threads that end with whoever started them.

use std::io;
use std::os::fd::OwnedFd;
use std::thread::{self, JoinHandle};

use rustix::event::{EventfdFlags, eventfd};

/// A thread that is told to end, and waited for, when this is dropped.
#[derive(Debug)]
pub struct Background {
    stop: OwnedFd,
    thread: Option<JoinHandle<()>>,
}

impl Background {
    /// Starts a thread, in the network namespace and on the CPUs of the calling one. `work` gets a descriptor that becomes readable when it is to return.
    ///
    /// # Errors
    /// When there are no descriptors left, or no thread can be started.
    pub fn start(name: &str, work: impl FnOnce(OwnedFd) + Send + 'static) -> io::Result<Self> {
        let stop = eventfd(0, EventfdFlags::CLOEXEC)?;
        let stopped = stop.try_clone()?;
        let thread = thread::Builder::new().name(name.into()).spawn(move || work(stopped))?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        // The write can only fail when the counter is full, and then the thread wakes up, too.
        let _ = rustix::io::write(&self.stop, &1_u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
