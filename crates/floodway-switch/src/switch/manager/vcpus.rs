//! vCPUs of VMs whose ports come and go, where no broker looks after them.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;

use super::{Manager, State};
use crate::config::Config;
use crate::runtime::vcpu::{ManagedVm, SliceController};
use crate::state::port::Port;

impl Manager {
    /// Starts the thread anew that looks after vCPUs if it has other ports to look after.
    pub(super) fn look_after_vcpus(
        &self,
        state: &mut State,
        before: &[Arc<Port>],
        wanted: &Config,
    ) {
        let ports = self.shared.ports();
        let vms = |ports: &[Arc<Port>]| -> BTreeSet<_> {
            ports.iter().filter(|port| port.config.vcpu.is_some()).map(|port| port.id).collect()
        };
        if state.broker.is_some() || vms(before) == vms(ports.list()) {
            return;
        }
        drop(state.vcpus.take());
        match look_after_vcpus(ports.list(), wanted) {
            Ok(keeper) => state.vcpus = keeper,
            Err(error) => tracing::error!(%error, "no thread looks after vCPUs"),
        }
    }
}

/// Starts the thread that looks after vCPUs, if there are any.
pub(super) fn look_after_vcpus(
    ports: &[Arc<Port>],
    config: &Config,
) -> io::Result<Option<SliceController>> {
    SliceController::start(ports.iter().filter_map(ManagedVm::of).collect(), config.vcpu)
}
