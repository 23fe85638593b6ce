//! What of the configuration is about connections that follow VMs to other hosts.

use floodway_broker::migration::{Files, MigrationError, Moves, Settings, Trust};
use floodway_broker::vm::Vm;
use floodway_switch::config::migration::Trust as TrustConfig;
use floodway_switch::config::{MigrationConfig, NetworkConfig, PortConfig};
use floodway_switch::kept::flows;

/// Lets connections follow VMs as `config` says, if it says so.
///
/// # Errors
/// A file cannot be used, or nobody can listen at the address.
pub fn start(config: Option<&MigrationConfig>) -> Result<Moves, MigrationError> {
    let Some(MigrationConfig { listen, hosts, trust }) = config else {
        return Ok(Moves::default());
    };
    let trust = match trust.clone() {
        TrustConfig::Plain => {
            tracing::warn!(
                "migration.plain: whoever can reach the hosts' network reads and makes up connections that follow VMs"
            );
            Trust::Plain
        }
        TrustConfig::Certificates { certificate, key, authorities } => {
            Trust::Certificates(Files { certificate, key, authorities })
        }
    };
    let hosts = hosts.iter().map(|host| (host.name.clone(), host.port)).collect();
    Moves::start(Settings { listen: *listen, hosts, trust, flows: flows::FORMAT })
}

/// What tells the VM of a port on all hosts; `None` without an address.
pub fn vm(port: &PortConfig) -> Option<Vm> {
    let network = port.networks().next().map(|network: &NetworkConfig| network.name.clone());
    Some(Vm { network: network.unwrap_or_default(), mac: port.mac?.0 })
}
