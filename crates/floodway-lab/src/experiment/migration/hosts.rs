//! Two hosts in one namespace, a switch each; the bridge between their uplinks is the network.

use std::path::{Path, PathBuf};

use anyhow::Result;
use floodway_switch::config::Config;

use crate::cleanup;
use crate::experiment::testbed::Network;
use crate::guest_image::GuestImage;
use crate::net::{self, Namespace};
use crate::switch_process::{self, Switch};
use crate::vm::{self, Nic};

const BRIDGE: &str = "br0";
/// Of all addresses.
pub const SUBNET: u8 = 1;

/// Two hosts and the network between them.
#[derive(Debug)]
pub struct Hosts {
    // Dropped in this order.
    pub switches: Vec<Switch>,
    pub namespace: Namespace,
    dir: PathBuf,
}

impl Hosts {
    /// Starts switches as `config` says, but for their control sockets and uplinks: it is given a directory for what both need, and the number of the host. `name` is unique in this process.
    pub fn start(name: &str, config: impl Fn(&Path, usize) -> Config) -> Result<Self> {
        let namespace = Namespace::create(name)?;
        namespace.bridge(BRIDGE)?;
        namespace.add_address(BRIDGE, &net::cidr(SUBNET, 1))?;
        let dir = cleanup::run_dir()?.join(name);
        let mut switches = Vec::new();
        for host in 0..2 {
            let tap = format!("fw{host}");
            namespace.tap(&tap)?;
            namespace.ip(&["link", "set", &tap, "master", BRIDGE, "up"])?;
            let config = Config {
                control: dir.join(format!("control{host}.sock")),
                uplinks: vec![switch_process::tap("network", &tap)],
                ..config(&dir, host)
            };
            switches.push(Switch::start(&format!("host{host}"), &dir, &config, Some(&namespace))?);
        }
        Ok(Self { switches, namespace, dir })
    }

    /// VM `index` as it is on a host.
    pub fn guest(&self, index: usize, name: &str, host: usize, image: &GuestImage) -> vm::Config {
        let mut config = vm::Config::new(name, image);
        config.namespace = Some(self.namespace.name().into());
        let mac = Network::Floodway.mac(index);
        config.nic(Nic::vhost_user(socket(&self.dir, index, host), mac.to_string()))
    }
}

/// The socket of VM `index` on a host.
pub fn socket(dir: &Path, index: usize, host: usize) -> PathBuf {
    dir.join(format!("vm{index}-host{host}.sock"))
}
