//! The other end of transfers, and the path to it.
//!
//! # Theory of operation
//!
//! Without impairments the other end is the host's own namespace, on the switch's uplink. Behind an
//! emulated path ([`crate::path`]) it is a namespace of its own, and the host's is a router:
//!
//! ```text
//! VM - switch - uplink [host namespace] near - emulated path - far [namespace of the other end]
//! ```
//!
//! Each path has a subnet; the VM has a route to it by the uplink, the other end a default route back.
//! Several paths may be there at once.

use anyhow::{Result, ensure};
use floodway_experiment::transfer::Path;
use floodway_netem::spec::Reorder;
use floodway_netem::{Counters, LinkSpec, Loss, PortSpec, Spec};

use super::tcp::Place;
use crate::experiment::testbed::Network;
use crate::net::{self, Namespace};
use crate::path;
use crate::vm::Vm;

/// Third octet of the first path's subnet; the testbed's networks are below.
const FIRST_SUBNET: u8 = 100;
/// Last octets on a path's subnet.
const NEAR: u8 = 1;
const FAR: u8 = 2;
/// Network card of the other end.
const FAR_DEVICE: &str = "far0";

/// One direction of a path.
fn link(path: &Path) -> LinkSpec {
    let default = LinkSpec::default();
    LinkSpec {
        rate_mbit: path.mbit.map(f64::from),
        delay_ms: path.rtt_ms / 2.0,
        jitter_ms: path.jitter_ms,
        queue_bytes: path.queue_kb.map_or(default.queue_bytes, |kb| kb.saturating_mul(1000)),
        loss: (path.loss_percent > 0.0).then(|| Loss::Random(path.loss_percent / 100.0)),
        reorder: (path.reorder_percent > 0.0).then(|| Reorder {
            probability: path.reorder_percent / 100.0,
            extra_ms: path.reorder_ms,
        }),
        duplicate: path.duplicate_percent / 100.0,
        ..default
    }
}

/// Where the other end is.
#[derive(Debug)]
pub struct FarEnd<'a> {
    host: &'a Namespace,
    emulated: Option<Emulated>,
}

/// A path and what is behind it. The path goes before the namespace that its device is in.
#[derive(Debug)]
struct Emulated {
    path: path::Path,
    namespace: Namespace,
    subnet: u8,
}

impl<'a> FarEnd<'a> {
    /// Makes path number `index` (of those that are there at once) and what is at its end, and
    /// tells `guest` the way. The emulator runs on `core`.
    ///
    /// # Errors
    /// When the path makes no sense, or the kernel refuses.
    pub fn open(
        host: &'a Namespace,
        guest: &Vm,
        path: &Path,
        index: usize,
        (core, seed): (usize, u64),
    ) -> Result<Self> {
        if path.is_direct() {
            return Ok(Self { host, emulated: None });
        }
        let subnet = FIRST_SUBNET.checked_add(u8::try_from(index)?);
        let subnet = subnet.filter(|&subnet| subnet < u8::MAX);
        ensure!(subnet.is_some(), "path `{}`: too many paths", path.name);
        let emulated = Emulated::start(host, path, subnet.unwrap_or(FIRST_SUBNET), core, seed)?;
        let end = Self { host, emulated: Some(emulated) };
        end.lead(guest)?;
        Ok(end)
    }

    /// Tells another guest the way.
    ///
    /// # Errors
    /// When the guest refuses.
    pub fn lead(&self, guest: &Vm) -> Result<()> {
        let Some(emulated) = &self.emulated else { return Ok(()) };
        let way = net::address(emulated.subnet, 0) + "/24";
        let router = Network::Floodway.host_address();
        Place::Guest(guest).run(&["ip", "route", "replace", &way, "via", &router]).map(drop)
    }

    /// The namespace to make sockets in.
    pub fn namespace(&self) -> &Namespace {
        self.emulated.as_ref().map_or(self.host, |emulated| &emulated.namespace)
    }

    /// Its address as the guests of a network know it.
    pub fn address(&self, network: Network) -> String {
        match &self.emulated {
            Some(emulated) => net::address(emulated.subnet, FAR),
            None => network.host_address(),
        }
    }

    /// What the path did to packets; nothing without one. Its ports are `near`, the host's, and `far`.
    ///
    /// # Errors
    /// When the emulator has ended.
    pub fn counters(&self) -> Result<Option<Counters>> {
        self.emulated.as_ref().map(|emulated| emulated.path.counters()).transpose()
    }

    /// Starts the path's high-water marks and timing anew.
    ///
    /// # Errors
    /// When the emulator has ended.
    pub fn reset_marks(&self) -> Result<()> {
        self.emulated.as_ref().map_or(Ok(()), |emulated| emulated.path.reset_marks())
    }
}

impl Emulated {
    fn start(host: &Namespace, path: &Path, subnet: u8, core: usize, seed: u64) -> Result<Self> {
        let namespace = Namespace::create(&format!("far{subnet}"))?;
        let near_device = format!("near{subnet}");
        let mut near = PortSpec::tap("near", Some(host.name()), &near_device);
        let mut far = PortSpec::tap("far", Some(namespace.name()), FAR_DEVICE);
        (near.egress, far.egress) = (link(path), link(path));
        let spec = Spec { seed, ..Spec::path(near, far) };
        let path = path::Path::start(&spec, Some(core))?;
        host.add_address(&near_device, &net::cidr(subnet, NEAR))?;
        namespace.add_address(FAR_DEVICE, &net::cidr(subnet, FAR))?;
        namespace.ip(&["route", "add", "default", "via", &net::address(subnet, NEAR)])?;
        Place::Host(host).run(&["sysctl", "-q", "-w", "net.ipv4.ip_forward=1"])?;
        Ok(Self { path, namespace, subnet })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_the_same_both_ways() {
        let path = Path {
            name: "slow".into(),
            rtt_ms: 20.0,
            loss_percent: 1.0,
            reorder_percent: 2.0,
            reorder_ms: 3.0,
            jitter_ms: 0.1,
            duplicate_percent: 4.0,
            mbit: Some(10),
            queue_kb: Some(25),
        };
        let link = link(&path);
        assert_eq!((link.delay_ms, link.rate_mbit, link.queue_bytes), (10.0, Some(10.0), 25_000));
        assert_eq!(link.loss, Some(Loss::Random(0.01)));
        assert_eq!(link.reorder, Some(Reorder { probability: 0.02, extra_ms: 3.0 }));
        assert_eq!((link.duplicate, link.jitter_ms), (0.04, 0.1));
        link.config().unwrap();
        assert!(!path.is_direct() && Path::direct().is_direct());
        assert_eq!(super::link(&Path::direct()), LinkSpec::default());
    }
}
