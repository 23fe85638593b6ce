//! The competing VM's endless stream.

use std::time::Duration;

use anyhow::Result;

use crate::experiment::iperf::{self, Amount, Place};
use crate::net::Namespace;
use crate::vm::Vm;

/// Sends as much as fits into `length` from a VM to the clients; answers Mbit/s at the receiver.
pub(super) fn measure(
    vm: &Vm,
    clients: &Namespace,
    address: &str,
    length: Duration,
) -> Result<f64> {
    let seconds = u32::try_from(length.as_secs())?;
    let (from, to) = (Place::Guest(vm), Place::Host(clients));
    Ok(iperf::transfer(from, to, address, Amount::Seconds(seconds))?.mbit_s)
}
