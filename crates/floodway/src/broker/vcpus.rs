//! vCPU threads of VMs, which need a capability to be changed and paths to be found.

use std::io;
use std::sync::Arc;

use floodway_broker::layout::Layout;
use floodway_broker::notices::Notices;
use floodway_process::message::{ToDataPlane, shorten};
use floodway_switch::Config;
use floodway_switch::api::status::VcpuStatus;
use floodway_switch::config::VcpuConfig;
use floodway_switch::runtime::vcpu::{ManagedVm, SliceController};

/// A port whose VM's vCPUs are looked after.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vm {
    name: String,
    number: u16,
    instance: u64,
    config: VcpuConfig,
}

impl Vm {
    /// The port's number, which notices about it carry.
    pub fn number(&self) -> u16 {
        self.number
    }
}

/// The ports of `config`, which `layout` has, that want it.
pub fn of(config: &Config, layout: &Layout) -> Vec<Vm> {
    let vms = config.ports.iter().zip(&layout.ports).filter_map(|(port, place)| {
        let config = port.vcpu.clone()?;
        let name = port.name.clone();
        Some(Vm { name, number: place.number, instance: place.instance, config })
    });
    vms.collect()
}

/// Starts to look after the vCPUs of all ports that want it; data planes hear of it by `notices`. `None` if no port wants it.
///
/// # Errors
/// Threads or descriptors have run out.
pub fn start(
    config: &Config,
    layout: &Layout,
    notices: &Arc<Notices>,
) -> io::Result<Option<SliceController>> {
    let vms = of(config, layout).into_iter().map(|Vm { name, number, config, .. }| {
        let notices = Arc::clone(notices);
        let report = move |status: VcpuStatus| notices.put(number, notice(number, &status));
        ManagedVm { port: name, config, report: Box::new(report) }
    });
    SliceController::start(vms.collect(), config.vcpu)
}

/// What a data plane is told of port number `port`. It knows policy and slice by itself.
fn notice(port: u16, status: &VcpuStatus) -> ToDataPlane {
    let threads = u32::try_from(status.threads).unwrap_or(u32::MAX);
    ToDataPlane::Vcpus { port, threads, problem: status.problem.as_deref().map(shorten) }
}
