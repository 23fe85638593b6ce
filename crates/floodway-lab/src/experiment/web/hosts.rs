//! Four hosts on one network, each with its switch and one VM of the application.
//!
//! ```text
//! VM front    - switch - fw1 ┐
//! VM app      - switch - fw2 ┤ bridge, with the visitors' address
//! VM database - switch - fw3 ┤
//! VM cache    - switch - fw4 ┘
//! ```
//!
//! Everything between two tiers, and between visitors and the first, passes uplinks, as between hosts; the bridge is the
//! network's switch. All of it is in one network namespace.

use anyhow::{Context, Result};
use floodway_switch::config::Config;

use super::tiers::{self, Tier};
use crate::agent::Interface;
use crate::cleanup;
use crate::experiment::testbed::{Network, wait_until_reachable};
use crate::experiment::transfer::contention::{OTHER, Threads, pin_all};
use crate::guest_image::Packages;
use crate::kernel::Series;
use crate::net::{self, Namespace};
use crate::switch_process::{Switch, port, tap};
use crate::vm::{self, Nic, Vm};

const NETWORK: &str = "web";
const BRIDGE: &str = "br0";
const SUBNET: u8 = 1;
/// The largest image takes 70 MB, and as much again while it is unpacked.
const MEMORY_MIB: u32 = 300;

/// The hosts; everything in them ends when they are dropped.
#[derive(Debug)]
pub struct Hosts {
    // Dropped in this order.
    guests: Vec<Vm>,
    switches: Vec<Switch>,
    threads: Threads,
    network: Namespace,
    packages: Packages,
}

impl Hosts {
    /// Boots the VMs and starts the application, with its records.
    ///
    /// # Errors
    /// When something of it cannot be started.
    pub fn start(series: Series) -> Result<Self> {
        let packages = tiers::packages()?;
        pin_all(std::process::id(), OTHER)?;
        let network = Namespace::create(NETWORK)?;
        network.bridge(BRIDGE)?;
        network.add_address(BRIDGE, &net::cidr(SUBNET, 1))?;
        let mut switches = Vec::new();
        let mut configs = Vec::new();
        for (index, tier) in Tier::ALL.into_iter().enumerate() {
            let (switch, nic) = start_host(index, tier, &network)?;
            switches.push(switch);
            let mut config = vm::Config::new(tier.name(), &tier.image(series, &packages)?);
            config.namespace = Some(network.name().into());
            config.memory_mib = MEMORY_MIB;
            configs.push(config.nic(nic));
        }
        let guests = Vm::boot_all(configs)?;
        for switch in &switches {
            pin_all(switch.id().context("a switch has ended")?, OTHER)?;
        }
        let threads = Threads::pin(&guests)?;
        for (tier, guest) in Tier::ALL.into_iter().zip(&guests) {
            make_ready(tier, guest).with_context(|| format!("VM `{}`", tier.name()))?;
        }
        Ok(Self { guests, switches, threads, network, packages })
    }

    /// The VMs, in the order of the tiers.
    pub fn guests(&self) -> &[Vm] {
        &self.guests
    }

    /// Each VM with its switch.
    pub fn pairs(&self) -> impl Iterator<Item = (&Vm, &Switch)> {
        self.guests.iter().zip(&self.switches)
    }

    /// QEMU's threads.
    pub fn threads(&self) -> &Threads {
        &self.threads
    }

    /// Where visitors are.
    pub fn network(&self) -> &Namespace {
        &self.network
    }

    /// The programs of the application and of the load generator.
    pub fn packages(&self) -> &Packages {
        &self.packages
    }
}

fn start_host(index: usize, tier: Tier, network: &Namespace) -> Result<(Switch, Nic)> {
    let name = format!("host{}", index + 1);
    let dir = cleanup::run_dir()?.join(&name);
    std::fs::create_dir_all(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
    let uplink = format!("fw{}", index + 1);
    network.tap(&uplink)?;
    network.ip(&["link", "set", &uplink, "master", BRIDGE, "up"])?;
    let (socket, mac) = (dir.join("vm.sock"), Network::Floodway.mac(index));
    let config = Config {
        control: dir.join("control.sock"),
        ports: vec![port(tier.name(), &socket, mac)],
        uplinks: vec![tap("network", &uplink)],
        ..Config::default()
    };
    let switch = Switch::start("switch", &dir, &config, Some(network))?;
    Ok((switch, Nic::vhost_user(socket, mac.to_string())))
}

fn make_ready(tier: Tier, guest: &Vm) -> Result<()> {
    let eth0 = Interface {
        name: "eth0".into(),
        addresses: vec![tier.address()? + "/24"],
        ..Interface::default()
    };
    guest.agent().configure_interface(&eth0)?;
    wait_until_reachable(guest, &Network::Floodway.host_address())?;
    tier.start(guest.agent())
}
