//! What of the configuration is about connections that follow VMs to other hosts.

use floodway_broker::migration::{Files, MigrationError, Moves, Settings, Trust, TrustError};
use floodway_broker::vm::Vm;
use floodway_switch::config::migration::Trust as TrustConfig;
use floodway_switch::config::{MigrationConfig, NetworkConfig, PortConfig};
use floodway_switch::kept::flows;

/// Lets connections follow VMs as `config` says, if it says so. A switch that `runs` goes on without that if it cannot be, and says why.
///
/// # Errors
/// A file cannot be used, or the address is in use.
pub fn start(config: Option<&MigrationConfig>, runs: bool) -> anyhow::Result<Moves> {
    let Some(MigrationConfig { listen, hosts, trust }) = config else {
        return Ok(Moves::default());
    };
    let trust = files(trust);
    if trust == Trust::Plain {
        tracing::warn!(
            "migration.plain: whoever can reach the hosts' network reads and makes up connections that follow VMs"
        );
    }
    let hosts = hosts.iter().map(|host| (host.name.clone(), host.port)).collect();
    match Moves::start(Settings { listen: *listen, hosts, trust, flows: flows::FORMAT }) {
        Err(error) if runs => {
            tracing::error!(%error, "connections follow no VM until the switch is restarted");
            Ok(Moves::failed(&error))
        }
        Err(MigrationError::Trust(error)) => Err(error.into()),
        started => Ok(started?),
    }
}

/// Reads the files that `config` names, if it names any.
///
/// # Errors
/// One cannot be used.
pub fn check(config: Option<&MigrationConfig>) -> Result<(), TrustError> {
    config.map_or(Ok(()), |config| files(&config.trust).check())
}

fn files(trust: &TrustConfig) -> Trust {
    match trust.clone() {
        TrustConfig::Plain => Trust::Plain,
        TrustConfig::Certificates { certificate, key, authorities } => {
            Trust::Certificates(Files { certificate, key, authorities })
        }
    }
}

/// What tells the VM of a port on all hosts; `None` without an address.
pub fn vm(port: &PortConfig) -> Option<Vm> {
    let network = port.networks().next().map(|network: &NetworkConfig| network.name.clone());
    Some(Vm { network: network.unwrap_or_default(), mac: port.mac?.0 })
}
