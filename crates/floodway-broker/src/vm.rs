//! VMs, as other hosts know them.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What tells a VM's interface on all hosts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Vm {
    /// The name of its network.
    pub network: String,
    /// Its address.
    pub mac: [u8; 6],
}

impl fmt::Display for Vm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let octets: Vec<_> = self.mac.iter().map(|octet| format!("{octet:02x}")).collect();
        write!(f, "{} in network {:?}", octets.join(":"), self.network)
    }
}
