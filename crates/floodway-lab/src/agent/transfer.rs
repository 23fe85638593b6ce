//! Timed transfers from and to a guest.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Result;
use floodway_guest::protocol::{Listening, Request};
use floodway_guest::transfer::{Arrival, Plan, Sent};

use super::{Agent, CALL_TIMEOUT};

impl Agent {
    /// Runs a plan in the guest to its end.
    ///
    /// # Errors
    /// When the plan makes no sense. A transfer that fails is no error: see [`Sent::error`].
    pub fn transfer_send(&self, plan: &Plan) -> Result<Vec<Sent>> {
        self.call(&Request::TransferSend(plan.clone()), Duration::MAX)
    }

    /// Opens a sink in the guest; port 0 lets its kernel choose.
    ///
    /// # Errors
    /// When the address is not to be had.
    pub fn transfer_listen(&self, address: SocketAddr) -> Result<Listening> {
        self.call(&Request::TransferListen { address }, CALL_TIMEOUT)
    }

    /// Takes what has come whole at a sink since the last time.
    ///
    /// # Errors
    /// When there is no such sink.
    pub fn transfer_arrivals(&self, sink: &Listening) -> Result<Vec<Arrival>> {
        self.call(&Request::TransferArrivals { listener: sink.listener }, CALL_TIMEOUT)
    }

    /// Closes a sink.
    ///
    /// # Errors
    /// When there is no such sink.
    pub fn transfer_close(&self, sink: &Listening) -> Result<()> {
        self.call(&Request::TransferClose { listener: sink.listener }, CALL_TIMEOUT)
    }
}
