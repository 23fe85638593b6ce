//! Servers of requests in a guest.

use std::net::SocketAddr;

use anyhow::Result;
use floodway_guest::protocol::{Listening, Request};

use super::{Agent, CALL_TIMEOUT};

impl Agent {
    /// Opens a server of requests in the guest; port 0 lets its kernel choose.
    ///
    /// # Errors
    /// When the address is not to be had.
    pub fn requests_serve(&self, address: SocketAddr) -> Result<Listening> {
        self.call(&Request::RequestsServe { address }, CALL_TIMEOUT)
    }

    /// Closes a server of requests and its connections.
    ///
    /// # Errors
    /// When there is no such server.
    pub fn requests_close(&self, server: &Listening) -> Result<()> {
        self.call(&Request::RequestsClose { listener: server.listener }, CALL_TIMEOUT)
    }
}
