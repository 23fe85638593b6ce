//! How connections fare that follow VMs from host to host.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Moves of VMs whose connections go along, since the broker was started.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MovesStatus {
    /// VMs whose connections went to another host.
    pub left: u32,
    /// VMs whose connections came from another host.
    pub arrived: u32,
    /// VMs whose connections did not follow them, either way.
    pub failed: u32,
    /// VMs that are about to leave.
    pub leaving: u16,
    /// Ports that wait for VMs from other hosts.
    pub arriving: u16,
    /// The last one that is over.
    pub last: Option<MoveStatus>,
}

/// A move of a VM to another host, or from one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MoveStatus {
    /// One more than that of the one before.
    pub number: u32,
    /// The port.
    pub port: String,
    /// It came here.
    pub inward: bool,
    /// The other host, as the configuration names it, or its address; empty if none was found.
    pub host: String,
    /// Connections whose congestion control the switch had that it came from, as far as that is known.
    pub online: u32,
    /// Those of them that the other switch had then.
    pub carried: u32,
    /// Why connections did not follow the VM, if they did not.
    pub problem: Option<String>,
}
