//! One host with its VMs, on every network under comparison.
//!
//! # Theory of operation
//!
//! The host is a network namespace. Each guest has one card for each [`Network`], `eth0` on the
//! first and so on, each with addresses of its own, so the same guests, on the same kernels, in the same run
//! talk through the switch or through the bridge, as the destination address says.
//!
//! | network | between guests | to the host |
//! |---|---|---|
//! | Floodway | vhost-user ports of the switch | the switch's TAP uplink, with an address on it |
//! | bridge | taps on a Linux bridge | the bridge's own address |
//!
//! The testbed is ready when the switch says that every port runs and each guest has reached the
//! host on every network: measurements start with warm neighbour and forwarding tables.

use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use floodway_switch::config::Config;
use floodway_wire::ethernet::MacAddr;
use serde::Deserialize;

use crate::agent::Interface;
use crate::cleanup;
use crate::guest_image::GuestImage;
use crate::kernel::Series;
use crate::net::{self, Namespace};
use crate::switch_process::{Switch, port, tap};
use crate::vm::{self, Nic, Vm};

/// How long guests may take until they reach the host. Only to end a run that hangs: a TCG guest on a
/// loaded machine is slow.
const READY_TIMEOUT: Duration = Duration::from_secs(120);
const READY_POLL: Duration = Duration::from_millis(50);

/// Device names inside the host's namespace.
const BRIDGE: &str = "br0";
pub(super) const UPLINK: &str = "fw0";
/// Most guests on one testbed: the last octet of their addresses starts at 11.
const MAX_GUESTS: usize = 200;

/// What connects the guests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Network {
    /// The switch under test.
    Floodway,
    /// Linux bridge and taps.
    Bridge,
}

impl Network {
    /// Third octet of its addresses.
    fn number(self) -> u8 {
        match self {
            Self::Floodway => 1,
            Self::Bridge => 2,
        }
    }

    /// The host's address on it.
    #[must_use]
    pub fn host_address(self) -> String {
        net::address(self.number(), 1)
    }

    /// The address of guest `index` (from 0) on it.
    ///
    /// # Errors
    /// When the index is beyond what a testbed holds.
    pub fn guest_address(self, index: usize) -> Result<String> {
        ensure!(index < MAX_GUESTS, "guest {index}: a testbed has at most {MAX_GUESTS}");
        Ok(net::address(self.number(), u8::try_from(index + 11)?))
    }

    pub(super) fn mac(self, index: usize) -> MacAddr {
        MacAddr([0x52, 0x54, 0, 0, self.number(), (index + 11) as u8])
    }
}

/// A running testbed; everything in it ends when it is dropped.
#[derive(Debug)]
pub struct Testbed {
    // Dropped in this order: guests, the switch, then the namespace that they live in.
    guests: Vec<Vm>,
    switch: Option<Switch>,
    host: Namespace,
    networks: Vec<Network>,
}

impl Testbed {
    /// Boots one guest for each kernel, with cards on `networks`. `name` (letters and digits, unique in
    /// this process) becomes part of interface and directory names.
    ///
    /// # Errors
    /// When something of it cannot be started or does not become ready.
    pub fn start(name: &str, kernels: &[Series], networks: &[Network]) -> Result<Self> {
        let images = kernels.iter().map(|&series| GuestImage::debian(series));
        Self::start_images(name, &images.collect::<Result<Vec<_>>>()?, networks, true)
    }

    /// Boots one guest for each image. With `msix`, cards have MSI-X where QEMU can give it to them; without, none has.
    ///
    /// # Errors
    /// As [`Testbed::start`].
    pub fn start_images(
        name: &str,
        images: &[GuestImage],
        networks: &[Network],
        msix: bool,
    ) -> Result<Self> {
        ensure!(!images.is_empty() && !networks.is_empty(), "a testbed needs guests and networks");
        let host = Namespace::create(name)?;
        if networks.contains(&Network::Bridge) {
            host.bridge(BRIDGE)?;
            host.add_address(BRIDGE, &net::cidr(Network::Bridge.number(), 1))?;
        }
        let dir = cleanup::run_dir()?.join(name);
        std::fs::create_dir_all(&dir)
            .with_context(|| format!("cannot create {}", dir.display()))?;
        let switch = networks
            .contains(&Network::Floodway)
            .then(|| start_switch(&dir, images.len(), &host))
            .transpose()?;
        let mut configs = images
            .iter()
            .enumerate()
            .map(|(index, image)| guest_config(index, image, networks, &host, &dir))
            .collect::<Result<Vec<_>>>()?;
        configs.iter_mut().flat_map(|config| &mut config.nics).for_each(|nic| nic.msix = msix);
        let guests = Vm::boot_all(configs)?;
        let testbed = Self { guests, switch, host, networks: networks.into() };
        testbed.make_ready(0..testbed.guests.len())?;
        Ok(testbed)
    }

    /// The guests, by index.
    #[must_use]
    pub fn guests(&self) -> &[Vm] {
        &self.guests
    }

    /// The host's namespace.
    #[must_use]
    pub fn host(&self) -> &Namespace {
        &self.host
    }

    /// The switch.
    ///
    /// # Errors
    /// When the testbed has none, because its networks do not include [`Network::Floodway`].
    pub fn switch(&self) -> Result<&Switch> {
        self.switch.as_ref().context("this testbed has no switch")
    }

    /// The switch, to kill and start it.
    ///
    /// # Errors
    /// As [`Testbed::switch`].
    pub fn switch_mut(&mut self) -> Result<&mut Switch> {
        self.switch.as_mut().context("this testbed has no switch")
    }

    /// The guests, the switch and the host at once, to restart the switch while guests work.
    ///
    /// # Errors
    /// As [`Testbed::switch`].
    pub fn parts(&mut self) -> Result<(&[Vm], &mut Switch, &Namespace)> {
        let switch = self.switch.as_mut().context("this testbed has no switch")?;
        Ok((&self.guests, switch, &self.host))
    }

    /// Kills guest `index` (SIGKILL), boots it again, and makes it ready. Returns the time from
    /// the kill until it was ready.
    ///
    /// # Errors
    /// When there is no such guest, or it does not come back.
    pub fn reboot_guest(&mut self, index: usize) -> Result<Duration> {
        ensure!(index < self.guests.len(), "there is no guest {index}");
        let guest = self.guests.remove(index);
        let config = guest.config().clone();
        let killed = Instant::now();
        guest.kill()?;
        self.guests.insert(index, Vm::boot(config)?);
        self.make_ready(index..index + 1)?;
        Ok(killed.elapsed())
    }

    /// Configures the cards of some guests and waits until they reach the host.
    fn make_ready(&self, indices: std::ops::Range<usize>) -> Result<()> {
        thread::scope(|scope| {
            let threads: Vec<_> =
                indices.map(|index| scope.spawn(move || self.make_guest_ready(index))).collect();
            threads
                .into_iter()
                .try_for_each(|thread| thread.join().map_err(|_| anyhow!("a thread panicked"))?)
        })
    }

    fn make_guest_ready(&self, index: usize) -> Result<()> {
        let guest = &self.guests[index];
        for (card, network) in self.networks.iter().enumerate() {
            let interface = Interface {
                name: format!("eth{card}"),
                addresses: vec![network.guest_address(index)? + "/24"],
                ..Interface::default()
            };
            guest.agent().configure_interface(&interface)?;
            wait_until_reachable(guest, &network.host_address())
                .with_context(|| format!("guest {} on {network:?}", guest.name()))?;
        }
        Ok(())
    }
}

pub(super) fn wait_until_reachable(guest: &Vm, address: &str) -> Result<()> {
    let deadline = Instant::now() + READY_TIMEOUT;
    loop {
        let Err(error) = guest.agent().exec(&["ping", "-c", "1", "-W", "1", address]) else {
            return Ok(());
        };
        ensure!(Instant::now() < deadline, "cannot reach {address}: {error:#}");
        thread::sleep(READY_POLL);
    }
}

fn start_switch(dir: &std::path::Path, guests: usize, host: &Namespace) -> Result<Switch> {
    let ports = (0..guests)
        .map(|index| port(&guest_name(index), &socket(dir, index), Network::Floodway.mac(index)));
    let config = Config {
        control: dir.join("control.sock"),
        ports: ports.collect(),
        uplinks: vec![tap("host", UPLINK)],
        ..Config::default()
    };
    // Persistent, so that device and address outlive a killed switch, as on an operator's host.
    host.tap(UPLINK)?;
    host.add_address(UPLINK, &net::cidr(Network::Floodway.number(), 1))?;
    Switch::start("switch", dir, &config, Some(host))
}

fn guest_name(index: usize) -> String {
    format!("vm{}", index + 1)
}

/// Where QEMU listens for the switch.
fn socket(dir: &std::path::Path, index: usize) -> PathBuf {
    dir.join(format!("{}.sock", guest_name(index)))
}

fn guest_config(
    index: usize,
    image: &GuestImage,
    networks: &[Network],
    host: &Namespace,
    dir: &std::path::Path,
) -> Result<vm::Config> {
    let mut config = vm::Config::new(guest_name(index), image);
    config.namespace = Some(host.name().into());
    for network in networks {
        let mac = network.mac(index).to_string();
        let nic = match network {
            Network::Floodway => Nic::vhost_user(socket(dir, index), mac),
            Network::Bridge => {
                let tap = format!("tap{}", index + 1);
                host.tap(&tap)?;
                host.ip(&["link", "set", &tap, "master", BRIDGE, "up"])?;
                Nic::tap(tap, mac)
            }
        };
        config = config.nic(nic);
    }
    Ok(config)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_cards_share_an_address() {
        let cards = [Network::Floodway, Network::Bridge]
            .into_iter()
            .flat_map(|network| (0..MAX_GUESTS).map(move |index| (network, index)));
        let macs: std::collections::BTreeSet<_> =
            cards.clone().map(|(network, index)| network.mac(index)).collect();
        let addresses: std::collections::BTreeSet<_> =
            cards.map(|(network, index)| network.guest_address(index).unwrap()).collect();
        assert_eq!((macs.len(), addresses.len()), (2 * MAX_GUESTS, 2 * MAX_GUESTS));
        assert!(!addresses.contains(&Network::Floodway.host_address()));
        assert!(Network::Bridge.guest_address(MAX_GUESTS).is_err());
    }
}
