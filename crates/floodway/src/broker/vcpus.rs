//! vCPU threads of VMs, which need a capability to be changed and paths to be found.

use std::io;
use std::sync::Arc;

use floodway_broker::notices::Notices;
use floodway_process::message::{ToDataPlane, shorten};
use floodway_switch::Config;
use floodway_switch::api::status::VcpuStatus;
use floodway_switch::runtime::vcpu::{ManagedVm, SliceController};

/// Starts to look after the vCPUs of all ports that want it; data planes hear of it by `notices`. `None` if no port wants it.
///
/// # Errors
/// Threads or descriptors have run out.
pub fn start(config: &Config, notices: &Arc<Notices>) -> io::Result<Option<SliceController>> {
    let vms = (0..).zip(&config.ports).filter_map(|(port, port_config)| {
        let notices = Arc::clone(notices);
        let report = move |status: VcpuStatus| notices.put(port, notice(port, &status));
        let vcpu = port_config.vcpu.clone()?;
        Some(ManagedVm { port: port_config.name.clone(), config: vcpu, report: Box::new(report) })
    });
    SliceController::start(vms.collect(), config.vcpu)
}

/// What a data plane is told of port number `port`. It knows policy and slice by itself.
fn notice(port: u16, status: &VcpuStatus) -> ToDataPlane {
    let threads = u32::try_from(status.threads).unwrap_or(u32::MAX);
    ToDataPlane::Vcpus { port, threads, problem: status.problem.as_deref().map(shorten) }
}
