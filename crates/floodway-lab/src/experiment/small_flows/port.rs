//! The port of the network's switch that the clients are behind.
//!
//! The host's namespace is a router between the uplink and the emulated path ([`crate::path`]). Only what goes to
//! the clients meets a rate and a queue; their requests and acknowledgements do not.

use anyhow::{Context, Result};
use floodway_netem::model::ClassCounters;
use floodway_netem::{LinkSpec, PortSpec, Spec};
use serde::Deserialize;

use crate::experiment::testbed::{Network, Testbed};
use crate::experiment::transfer::contention::OTHER;
use crate::experiment::transfer::tcp::Place;
use crate::net::{self, Namespace};
use crate::path::Path;

/// Third octet of the clients' subnet; the testbed's networks are below.
const SUBNET: u8 = 100;
const ROUTER: u8 = 1;
const CLIENTS: u8 = 2;
const ROUTER_DEVICE: &str = "near0";
const CLIENT_DEVICE: &str = "far0";
/// The port in the description of the path.
const NAME: &str = "far";
/// DSCP of the switch's high class, by default.
const HIGH_DSCP: u8 = 46;
/// Before the clients, who wait for it.
const PRIORITY: u32 = 2;

/// The port.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PortParameters {
    /// Rate in Mbit/s on the wire.
    pub mbit: u32,
    /// Queue, of each class, in thousands of bytes.
    pub queue_kb: u32,
    /// Delay of the path, each way, in ms.
    #[serde(default)]
    pub delay_ms: f64,
}

impl PortParameters {
    /// What a reader must know of it.
    pub(super) fn note(&self) -> String {
        format!(
            "the port runs at {} Mbit/s with a queue of {} KB, not at 1 Gbit/s: emulated guests carry no more; sizes are scaled down with it",
            self.mbit, self.queue_kb
        )
    }
}

/// A running port. The path goes before the namespace that its device is in.
pub(super) struct Port {
    path: Path,
    namespace: Namespace,
}

/// What passed the port, or was dropped by it, in one class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Class {
    /// Packets that left for the clients.
    pub sent: u64,
    /// Packets for which the queue had no room.
    pub dropped: u64,
    /// Most bytes that waited at once since [`Port::reset_marks`].
    pub longest_queue: u64,
}

impl Class {
    fn of(counters: &ClassCounters) -> Self {
        Self {
            sent: counters.sent.packets,
            dropped: counters.dropped.packets,
            longest_queue: counters.queue_high_water_bytes,
        }
    }

    fn since(&self, earlier: &Self) -> Self {
        let (sent, dropped) = (self.sent - earlier.sent, self.dropped - earlier.dropped);
        Self { sent, dropped, ..*self }
    }

    fn with(&self, other: &Self) -> Self {
        Self {
            sent: self.sent + other.sent,
            dropped: self.dropped + other.dropped,
            longest_queue: self.longest_queue.max(other.longest_queue),
        }
    }
}

/// What the port counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PortCounts {
    pub high: Class,
    pub low: Class,
    /// Frames that the emulator was too late for: none is as it should be.
    pub missed: u64,
}

impl PortCounts {
    /// Returns what was counted since `earlier`.
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            high: self.high.since(&earlier.high),
            low: self.low.since(&earlier.low),
            missed: self.missed - earlier.missed,
        }
    }

    /// Returns both together.
    pub fn with(&self, other: &Self) -> Self {
        Self {
            high: self.high.with(&other.high),
            low: self.low.with(&other.low),
            missed: self.missed + other.missed,
        }
    }
}

impl Port {
    /// Starts the port and tells the guests the way.
    pub fn start(parameters: &PortParameters, testbed: &Testbed, seed: u64) -> Result<Self> {
        let host = testbed.host();
        let namespace = Namespace::create("clients")?;
        let mut near = PortSpec::tap("near", Some(host.name()), ROUTER_DEVICE);
        near.egress.delay_ms = parameters.delay_ms;
        // As much as can be under way: nothing is to be lost here.
        near.egress.queue_bytes = 1 << 30;
        let mut far = PortSpec::tap(NAME, Some(namespace.name()), CLIENT_DEVICE);
        far.egress = LinkSpec {
            rate_mbit: Some(parameters.mbit.into()),
            queue_bytes: parameters.queue_kb.saturating_mul(1000),
            delay_ms: parameters.delay_ms,
            ..LinkSpec::default()
        };
        let mut spec = Spec::path(near, far);
        // A real-time thread's timers need no help; spinning, it would keep the switch and the clients off their core.
        (spec.seed, spec.realtime_priority, spec.spin_us) = (seed, Some(PRIORITY), 0);
        let path = Path::start(&spec, Some(OTHER))?;
        host.add_address(ROUTER_DEVICE, &net::cidr(SUBNET, ROUTER))?;
        namespace.add_address(CLIENT_DEVICE, &net::cidr(SUBNET, CLIENTS))?;
        namespace.ip(&["route", "add", "default", "via", &net::address(SUBNET, ROUTER)])?;
        Place::Host(host).run(&["sysctl", "-q", "-w", "net.ipv4.ip_forward=1"])?;
        let (way, router) = (net::cidr(SUBNET, 0), Network::Floodway.host_address());
        for guest in testbed.guests() {
            Place::Guest(guest).run(&["ip", "route", "replace", &way, "via", &router])?;
        }
        Ok(Self { path, namespace })
    }

    /// Where the clients are.
    pub const fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    /// Their address.
    pub fn address(&self) -> String {
        net::address(SUBNET, CLIENTS)
    }

    /// Serves packets of the high class first, or all alike.
    pub fn set_priority(&mut self, on: bool) -> Result<()> {
        self.path.update(NAME, |link| {
            link.high_dscp = if on { vec![HIGH_DSCP] } else { Vec::new() };
        })
    }

    /// Starts the longest queues anew.
    pub fn reset_marks(&self) -> Result<()> {
        self.path.reset_marks()
    }

    /// What it has counted so far.
    pub fn counters(&self) -> Result<PortCounts> {
        let counters = self.path.counters()?;
        let port = counters.port(NAME).context("the path has no such port")?;
        let missed = counters.ports.iter().map(|port| port.device.missed).sum();
        let [high, low] = [&port.egress.high, &port.egress.low].map(Class::of);
        Ok(PortCounts { high, low, missed })
    }
}
