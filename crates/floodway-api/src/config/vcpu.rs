//! VM scheduling: the sections `[vcpu]` and `[port.vcpu]`.

use std::fmt;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use super::error::Fault;
use super::keys::{Keys, integer, micros};
use super::section::Section;

/// Keys of the sections, in the order in which errors list them.
pub(super) const KEYS: &[&str] = &["latency_slice_us", "throughput_slice_us", "look_every_s"];
pub(super) const PORT_KEYS: &[&str] = &["qmp", "pid", "policy"];

/// Slices that EEVDF takes: it rounds others.
pub const SLICES: RangeInclusive<Duration> =
    Duration::from_micros(100)..=Duration::from_millis(100);

/// What a VM's CPUs are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// Answers: short slices.
    Latency,
    /// Work without end: long slices.
    Throughput,
}

impl Policy {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Latency, Self::Throughput];

    /// The name in configurations and status.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Latency => "latency",
            Self::Throughput => "throughput",
        }
    }
}

/// Slices of the policies, and how often threads are looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slices {
    /// Of [`Policy::Latency`]. Default 0.5 ms.
    pub latency: Duration,
    /// Of [`Policy::Throughput`]. Default 30 ms.
    pub throughput: Duration,
    /// Time between two looks. Default 5 s.
    pub look_every: Duration,
}

impl Default for Slices {
    fn default() -> Self {
        Self {
            latency: Duration::from_micros(500),
            throughput: Duration::from_millis(30),
            look_every: Duration::from_secs(5),
        }
    }
}

impl Slices {
    /// The slice of `policy`.
    #[must_use]
    pub const fn of(&self, policy: Policy) -> Duration {
        match policy {
            Policy::Latency => self.latency,
            Policy::Throughput => self.throughput,
        }
    }
}

/// Where a VM's vCPU threads are found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Vm {
    /// QEMU's control socket.
    Qmp(PathBuf),
    /// QEMU's process.
    Pid(u32),
}

impl fmt::Display for Vm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Qmp(socket) => write!(f, "qmp {}", socket.display()),
            Self::Pid(pid) => write!(f, "pid {pid}"),
        }
    }
}

/// How a port's VM is to be scheduled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VcpuConfig {
    /// The VM.
    pub vm: Vm,
    /// What its CPUs are for.
    pub policy: Policy,
}

/// Slices of the policies: 0.1 to 100 ms.
pub(super) fn slices(root: &Section<'_, '_>) -> Result<Slices, Fault> {
    let default = Slices::default();
    let Some(section) = root.table("vcpu")? else {
        return Ok(default);
    };
    section.allow(KEYS)?;
    let range = SLICES.start().as_micros() as u64..=SLICES.end().as_micros() as u64;
    let slice = |key| section.integer(key, range.clone()).map(|us| us.map(Duration::from_micros));
    let look_every = section.integer("look_every_s", 1..=3600)?.map(Duration::from_secs);
    Ok(Slices {
        latency: slice("latency_slice_us")?.unwrap_or(default.latency),
        throughput: slice("throughput_slice_us")?.unwrap_or(default.throughput),
        look_every: look_every.unwrap_or(default.look_every),
    })
}

/// The VM of the port `port`.
pub(super) fn section(port: &Section<'_, '_>) -> Result<Option<VcpuConfig>, Fault> {
    let Some(section) = port.table("vcpu")? else {
        return Ok(None);
    };
    section.allow(PORT_KEYS)?;
    let pid = section.integer("pid", 1..=4_194_304)?;
    let vm = match (section.string("qmp")?, pid) {
        (Some(path), None) if !path.is_empty() && !path.contains('\0') => Vm::Qmp(path.into()),
        (None, Some(pid)) => Vm::Pid(pid),
        (Some(_), None) => {
            return Err(section.fault("qmp", "must be the path of QEMU's control socket"));
        }
        (Some(_), Some(_)) => return Err(section.fault("pid", "remove it; qmp finds the threads")),
        (None, None) => {
            let missing = "missing; add qmp = \"/run/vm1.qmp\" (QEMU's -qmp socket) or pid = 1234";
            return Err(section.fault("qmp", missing));
        }
    };
    let policies = Policy::ALL.map(|policy| (policy.name(), policy));
    let missing = "missing; add policy = \"latency\" or policy = \"throughput\"";
    let policy =
        section.choice("policy", &policies)?.ok_or_else(|| section.fault("policy", missing));
    Ok(Some(VcpuConfig { vm, policy: policy? }))
}

/// The section that says `slices`.
pub(super) fn slice_keys(slices: Slices) -> Keys {
    let Slices { latency, throughput, look_every } = slices;
    let default = Slices::default();
    let seconds = |time: Duration| integer(time.as_secs());
    Keys::default()
        .changed("latency_slice_us", micros(latency), micros(default.latency))
        .changed("throughput_slice_us", micros(throughput), micros(default.throughput))
        .changed("look_every_s", seconds(look_every), seconds(default.look_every))
}

/// The section of a port that says `config`.
pub(super) fn keys(config: &VcpuConfig) -> Keys {
    let VcpuConfig { vm, policy } = config;
    let keys = match vm {
        Vm::Qmp(socket) => Keys::default().set("qmp", socket.display().to_string()),
        Vm::Pid(pid) => Keys::default().set("pid", integer(*pid)),
    };
    keys.set("policy", policy.name())
}
