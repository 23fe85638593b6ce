//! What is known of a port's front-end, for an operator who asks why a port does not work.
//!
//! # Theory of operation
//! The port's thread alone knows the front-end, and may wait for it. So it writes down what it sees after each message and
//! each attempt to connect, and whoever asks reads that: nobody waits for a front-end. Nothing else is locked under the lock of
//! [`FrontEnd`].
//!
//! What one front-end has set up is forgotten when it goes; the last error stays.

use std::sync::{Mutex, MutexGuard};
use std::time::Instant;

pub use floodway_process::peer::Peer;
use vhost::vhost_user::message::FrontendReq;

use crate::memory::RegionLayout;
use crate::sync::lock;

/// Longest text of an error that is kept, in bytes.
const MAX_ERROR: usize = 400;

/// A vring as the front-end has described it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VringFacts {
    /// Entries; zero before the front-end has said how many.
    pub size: u16,
    /// Its addresses are known.
    pub addressed: bool,
    /// The front-end has started it.
    pub started: bool,
    /// The front-end has enabled it.
    pub enabled: bool,
    /// The guest can kick it; polled otherwise.
    pub kick: bool,
    /// The guest can be interrupted.
    pub call: bool,
}

/// Something that went wrong.
#[derive(Clone, Debug)]
pub struct Noted {
    /// What, with the request that it belongs to.
    pub text: String,
    /// When.
    pub at: Instant,
}

/// What is known of the front-end.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// The process; none while nobody is connected.
    pub peer: Option<Peer>,
    /// When the last one connected.
    pub connected_at: Option<Instant>,
    /// Times that a port in client mode has tried to connect.
    pub attempts: u64,
    /// Why it cannot connect, other than that nobody listens.
    pub connect_problem: Option<String>,
    /// The last thing that went wrong between the port and a front-end.
    pub last_error: Option<Noted>,
    /// How many things have gone wrong.
    pub errors: u64,
    /// vhost-user protocol features that the front-end has chosen.
    pub protocol_features: u64,
    /// Memory that it shares.
    pub regions: Vec<RegionLayout>,
    /// Its vrings, by index.
    pub vrings: Vec<VringFacts>,
    /// The request that is being handled.
    request: Option<FrontendReq>,
}

/// A port's [`Facts`], shared between its thread and whoever asks.
#[derive(Debug, Default)]
pub struct FrontEnd(Mutex<Facts>);

impl FrontEnd {
    /// What is known now.
    #[must_use]
    pub fn facts(&self) -> Facts {
        self.lock().clone()
    }

    /// The process; none while nobody is connected.
    #[must_use]
    pub fn peer(&self) -> Option<Peer> {
        self.lock().peer
    }

    /// How many things have gone wrong.
    #[must_use]
    pub fn errors(&self) -> u64 {
        self.lock().errors
    }

    /// Notes that a front-end has connected.
    pub fn on_connected(&self, peer: Option<Peer>) {
        let mut facts = self.lock();
        facts.peer = peer;
        facts.connected_at = Some(Instant::now());
        facts.connect_problem = None;
    }

    /// Notes that the front-end has gone.
    pub fn on_disconnected(&self) {
        let mut facts = self.lock();
        facts.peer = None;
        facts.request = None;
    }

    /// Notes what a broker has tried, which connects in the port's place. Returns `true` if the problem is another one than before.
    pub fn set_attempts(&self, attempts: u64, problem: Option<String>) -> bool {
        self.lock().attempts = attempts;
        self.set_connect_problem(problem)
    }

    /// Notes an attempt to connect.
    pub fn on_attempt(&self) {
        self.lock().attempts += 1;
    }

    /// Notes why the port cannot connect, or that nothing is in the way. Returns `true` if the problem is another one than before.
    pub fn set_connect_problem(&self, problem: Option<String>) -> bool {
        let mut facts = self.lock();
        let changed = facts.connect_problem != problem;
        facts.connect_problem = problem;
        changed
    }

    /// Notes which request is being handled.
    pub fn set_request(&self, request: Option<FrontendReq>) {
        self.lock().request = request;
    }

    /// Notes that something has gone wrong.
    pub fn note_error(&self, error: &dyn std::fmt::Display) {
        let mut facts = self.lock();
        let mut text = match facts.request {
            Some(request) => format!("{request:?}: {error}"),
            None => error.to_string(),
        };
        text.truncate(text.floor_char_boundary(MAX_ERROR));
        facts.errors += 1;
        facts.last_error = Some(Noted { text, at: Instant::now() });
    }

    /// Notes that something has gone wrong, unless something more exact was noted since there were `before` errors.
    pub fn note_error_since(&self, before: u64, error: &dyn std::fmt::Display) {
        if self.errors() == before {
            self.note_error(error);
        }
    }

    /// Notes what the front-end has set up.
    pub fn set_device(
        &self,
        protocol_features: u64,
        regions: Vec<RegionLayout>,
        vrings: Vec<VringFacts>,
    ) {
        let mut facts = self.lock();
        facts.protocol_features = protocol_features;
        facts.regions = regions;
        facts.vrings = vrings;
    }

    fn lock(&self) -> MutexGuard<'_, Facts> {
        lock(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_names_its_request_and_is_of_bounded_length() {
        let front_end = FrontEnd::default();
        front_end.set_request(Some(FrontendReq::SET_MEM_TABLE));
        front_end.note_error(&"\u{e9}".repeat(1000));
        let text = front_end.facts().last_error.unwrap().text;
        assert!(text.starts_with("SET_MEM_TABLE: \u{e9}"), "{text}");
        assert!(text.len() <= MAX_ERROR);
    }

    #[test]
    fn a_problem_that_lasts_is_another_one_only_once() {
        let front_end = FrontEnd::default();
        let refused = || Some("refused".to_owned());
        assert!(front_end.set_connect_problem(refused()));
        assert!(!front_end.set_connect_problem(refused()));
        assert!(front_end.set_connect_problem(None));
        assert!(front_end.set_connect_problem(refused()));
    }
}
