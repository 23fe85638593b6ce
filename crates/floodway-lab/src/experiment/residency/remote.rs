//! Other hosts beyond a link, and what the forwarding table holds beside the VMs.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use floodway_switch::frame::iovec::GuestIoVec;
use floodway_switch::uplink::{Sender, packet};
use floodway_wire::vnet::VnetHdr;

use crate::experiment::testbed::{Network, Testbed, UPLINK};
use crate::experiment::transfer::tcp::Place;
use crate::net::{self, Namespace, Rate};
use crate::transfer::inside;

/// The second EtherType for experiments (IEEE 802): nobody listens. The first one is that of our notices, which the switch takes from nobody.
const EXPERIMENTAL: u16 = 0x88b6;
/// How long frames may take into the table. Only ends a run that hangs.
const PATIENCE: Duration = Duration::from_secs(30);

/// Hosts beyond a link, to which the VMs' host routes: one for each network under comparison. The VM's way to it is that network,
/// and what answers from an address of its host's choice has but one.
#[derive(Debug)]
pub(super) struct Remote {
    hosts: Vec<Namespace>,
}

impl Remote {
    pub fn start(testbed: &Testbed, link: Rate) -> Result<Self> {
        Place::Host(testbed.host()).run(&["sysctl", "-q", "-w", "net.ipv4.ip_forward=1"])?;
        let networks = [Network::Bridge, Network::Floodway];
        let hosts = networks.map(|network| beyond(testbed, network, link));
        Ok(Self { hosts: hosts.into_iter().collect::<Result<_>>()? })
    }

    pub fn hosts(&self) -> &[Namespace] {
        &self.hosts
    }

    /// The address to which a VM sends by `network`.
    pub fn address(network: Network) -> String {
        net::address(subnet(network), 2)
    }
}

/// Experiment network of the link to the host for `network`.
const fn subnet(network: Network) -> u8 {
    match network {
        Network::Bridge => 8,
        Network::Floodway => 9,
    }
}

fn beyond(testbed: &Testbed, network: Network, link: Rate) -> Result<Namespace> {
    let (host, subnet) = (testbed.host(), subnet(network));
    let name = format!("far{subnet}");
    let namespace = Namespace::create(&name)?;
    net::join(host, &namespace, &name, link)?;
    host.add_address(&name, &net::cidr(subnet, 1))?;
    namespace.add_address(&name, &net::cidr(subnet, 2))?;
    namespace.ip(&["route", "add", "default", "via", &net::address(subnet, 1)])?;
    let way = ["ip", "route", "replace", &Remote::address(network), "via", &network.host_address()];
    Place::Guest(&testbed.guests()[0]).run(&way)?;
    Ok(namespace)
}

/// Lets the switch learn addresses behind its uplink until it has `entries`.
pub(super) fn fill_table(testbed: &Testbed, entries: u32) -> Result<()> {
    let switch = testbed.switch()?.client()?;
    let known = || -> Result<u32> { Ok(u32::try_from(switch.status()?.l2.len())?) };
    let deadline = Instant::now() + PATIENCE;
    loop {
        let learned = known()?;
        if learned >= entries {
            return Ok(());
        }
        ensure!(
            Instant::now() < deadline,
            "the switch has learned {learned} of {entries} addresses"
        );
        // Those that were lost are sent again.
        inside(testbed.host(), || announce(entries))??;
        thread::sleep(Duration::from_millis(50));
    }
}

/// Sends a frame from each of `count` addresses.
fn announce(count: u32) -> Result<()> {
    let (_, mut sender) = packet::open(UPLINK).context("cannot send on the uplink's device")?;
    for number in 0..count {
        let mut frame = [0; 60];
        frame[..6].fill(0xff);
        frame[6..8].copy_from_slice(&[0x02, 0xee]);
        frame[8..12].copy_from_slice(&number.to_be_bytes());
        frame[12..14].copy_from_slice(&EXPERIMENTAL.to_be_bytes());
        if sender.send(&VnetHdr::default(), &[GuestIoVec::from_slice(&frame)]).is_err() {
            // The device's queue is full.
            thread::sleep(Duration::from_millis(1));
        }
    }
    Ok(())
}
