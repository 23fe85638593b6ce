//! SIGHUP: the switch becomes what its file says by then.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use floodway_switch::operator::ConfigApi;
use signal_hook::consts::SIGHUP;
use signal_hook::iterator::{Handle, Signals};

use super::supervision::SharedNotifier;
use crate::reload::reload;

/// A thread that waits for the signal, until this is dropped.
pub struct Reload {
    signals: Handle,
    thread: Option<JoinHandle<()>>,
}

impl Reload {
    /// Lets `ports` be as the file at `path` says whenever the signal comes, and first of all if `at_once` says so.
    ///
    /// # Errors
    /// There are no threads or descriptors left.
    pub fn start(
        path: &Path,
        ports: Arc<dyn ConfigApi>,
        notifier: SharedNotifier,
        at_once: bool,
    ) -> io::Result<Self> {
        let mut waiting = Signals::new([SIGHUP])?;
        let (signals, path) = (waiting.handle(), path.to_owned());
        let run = move || {
            if at_once {
                reload(&*ports, &path);
            }
            for _ in waiting.forever() {
                notifier.around(|| reload(&*ports, &path));
            }
        };
        let thread = thread::Builder::new().name("reload".to_owned()).spawn(run)?;
        Ok(Self { signals, thread: Some(thread) })
    }
}

impl Drop for Reload {
    fn drop(&mut self) {
        self.signals.close();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that reloads panicked");
        }
    }
}
