//! Another host beyond a link, and what the forwarding table holds beside the VMs.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use floodway_switch::segment::Segment;
use floodway_switch::uplink::{Sender, packet};
use floodway_wire::vnet::VnetHdr;

use crate::experiment::testbed::{Network, Testbed, UPLINK};
use crate::experiment::transfer::tcp::Place;
use crate::net::{self, Namespace, Rate};
use crate::transfer::inside;

/// Experiment network of the link.
const SUBNET: u8 = 9;
const LINK: &str = "far";
/// The second EtherType for experiments (IEEE 802): nobody listens. The first one is that of our notices, which the switch takes from nobody.
const EXPERIMENTAL: u16 = 0x88b6;
/// How long frames may take into the table. Only ends a run that hangs.
const PATIENCE: Duration = Duration::from_secs(30);

/// A host beyond a link, to which the VMs' host routes.
#[derive(Debug)]
pub(super) struct Remote {
    namespace: Namespace,
}

impl Remote {
    pub fn start(testbed: &Testbed, link: Rate) -> Result<Self> {
        let (host, namespace) = (testbed.host(), Namespace::create("residfar")?);
        net::join(host, &namespace, LINK, link)?;
        host.add_address(LINK, &net::cidr(SUBNET, 1))?;
        Place::Host(host).run(&["sysctl", "-q", "-w", "net.ipv4.ip_forward=1"])?;
        let remote = Self { namespace };
        for network in [Network::Bridge, Network::Floodway] {
            let address = remote.address(network);
            remote.namespace.add_address(LINK, &(address.clone() + "/24"))?;
            // The address says by which network the VM sends.
            let way = ["ip", "route", "replace", &address, "via", &network.host_address()];
            Place::Guest(&testbed.guests()[0]).run(&way)?;
        }
        remote.namespace.ip(&["route", "add", "default", "via", &net::address(SUBNET, 1)])?;
        Ok(remote)
    }

    pub fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    /// Its address for a VM that sends by `network`.
    pub fn address(&self, network: Network) -> String {
        let host = if network == Network::Bridge { 2 } else { 3 };
        net::address(SUBNET, host)
    }
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
        if sender.send(&VnetHdr::default(), &[Segment::from_slice(&frame)]).is_err() {
            // The device's queue is full.
            thread::sleep(Duration::from_millis(1));
        }
    }
    Ok(())
}
