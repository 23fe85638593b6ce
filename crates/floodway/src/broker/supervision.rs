//! What the service manager hears of a broker: that a data plane serves, that the broker looks after it, that the switch stops.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use floodway_broker::broker::Event;

use crate::notify::Notifier;

/// A broker that has not looked at its data plane for so long hangs: it may wait five seconds for one that does not read.
const HANGS: Duration = Duration::from_secs(10);

/// Passes events of a broker on.
pub struct Supervision {
    summary: String,
    last_look: Arc<Mutex<Instant>>,
    notifier: SharedNotifier,
}

/// The notifier: there from the first data plane that serves until the stop.
#[derive(Clone, Default)]
pub struct SharedNotifier(Arc<Mutex<Option<Notifier>>>);

impl SharedNotifier {
    /// Does what the service manager is to know as reading the configuration again.
    pub fn around(&self, reload: impl FnOnce()) {
        if let Some(notifier) = &*self.lock() {
            notifier.reloading();
        }
        // Not under the lock, for which a stop would have to wait.
        reload();
        if let Some(notifier) = &*self.lock() {
            notifier.reloaded();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Notifier>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Supervision {
    /// For a switch that is described by `summary`.
    pub fn new(summary: String) -> Self {
        let last_look = Arc::new(Mutex::new(Instant::now()));
        Self { summary, last_look, notifier: SharedNotifier::default() }
    }

    /// What hears of reloads.
    pub fn notifier(&self) -> SharedNotifier {
        self.notifier.clone()
    }

    /// Something has happened.
    pub fn on_event(&self, event: Event) {
        match event {
            Event::Look => {
                *self.last_look.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
            }
            Event::Ready if self.notifier.lock().is_none() => self.begin(),
            Event::Ready => {}
            Event::Stop => {
                let notifier = self.notifier.lock().take();
                if let Some(notifier) = notifier {
                    notifier.stopping();
                }
            }
        }
    }

    fn begin(&self) {
        let last_look = Arc::clone(&self.last_look);
        let lives = move || last_look.lock().is_ok_and(|last_look| last_look.elapsed() < HANGS);
        match Notifier::ready(lives, &self.summary) {
            Ok(notifier) => *self.notifier.lock() = Some(notifier),
            Err(error) => tracing::error!(%error, "the service manager hears nothing"),
        }
    }
}
