//! Socket calls in a guest.

use std::time::Duration;

use anyhow::Result;
use floodway_guest::protocol::Request;
use floodway_guest::sockets::{Outcome, Script};

use super::Agent;

impl Agent {
    /// Connects in the guest, makes the calls of a script, and returns what each has returned.
    ///
    /// # Errors
    /// There is no connection. A call that fails is no error: see [`Outcome::error`].
    pub fn socket_calls(&self, script: &Script) -> Result<Vec<Outcome>> {
        self.call(&Request::SocketCalls(script.clone()), Duration::MAX)
    }
}
