//! Inbound rates: connections into several VMs behind one port of an emulated switch.
//!
//! # Theory of operation
//! ```text
//! senders [namespace] - emulated port: rate, finite queue - [host namespace] - uplink - switch - VMs
//! ```
//! A real host's VMs share the port of the switch in front of it; here the `FarEnd`'s link to the host is that port. Each
//! policy is measured with the same VMs: `off` (nothing is divided: the paper's "native"), `share` (the same for each VM,
//! always: "static") and `connections` ("dynamic"). Connections begin and end as `Schedule` says.
//!
//! What counts is seen where it happens: bytes and drops at the port, every `POLL`; rates as the switch gave and
//! measured them; time-outs, retransmissions and each connection's bytes by the kernel of the senders. Their congestion control is
//! `traffic::CONGESTION`, whatever this machine has as its default.

mod figures;
mod schedule;
pub(super) mod traffic;

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use floodway_switch::api::control::{InboundChange, InboundStatus};
use serde::Deserialize;

use super::testbed::{Network, Testbed};
use super::transfer::Path;
use super::transfer::far_end::FarEnd;
use super::transfer::tcp::{self, Place};
use super::{Measured, RealScenario, Run};
use crate::kernel::Series;
use figures::Look;
use schedule::Schedule;
use traffic::{Counts, Sinks};

/// How often port and switch are looked at.
const POLL: Duration = Duration::from_millis(50);
/// Time that figures leave out at the start: slow start, and connections that come one by one.
pub(super) const SETTLE: Duration = Duration::from_secs(2);
/// Core of the emulator.
const EMULATOR_CORE: usize = 1;

/// How the link is divided in one variant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Policy {
    /// Not at all.
    Off,
    /// The same for each VM.
    Share,
    /// By connections.
    Connections,
}

impl Policy {
    const fn name(self) -> &'static str {
        match self {
            Self::Off => "native",
            Self::Share => "static",
            Self::Connections => "dynamic",
        }
    }
}

/// The scenario's parameters.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Inbound {
    /// Kernel of the guests.
    pub kernel: Series,
    /// Rate of the port, in Mbit/s on the wire.
    pub mbit: u32,
    /// Queue of the port, in thousands of bytes.
    pub queue_kb: u32,
    /// Round trip that the network adds, in ms.
    #[serde(default)]
    pub rtt_ms: f64,
    /// What the switch believes of the port, in percent of its rate: a little less, so that a queue
    /// drains.
    #[serde(default = "default_percent")]
    pub capacity_percent: u32,
    /// For each VM, connections at the start and at the end; between them one comes or goes every `step_s`.
    pub connections: Vec<[u32; 2]>,
    /// Seconds of a step.
    #[serde(default)]
    pub step_s: u32,
    /// Seconds of one variant.
    pub seconds: u32,
    /// The variants.
    pub policies: Vec<Policy>,
}

const fn default_percent() -> u32 {
    98
}

impl RealScenario for Inbound {
    fn steps(&self) -> u64 {
        1 + self.policies.len() as u64
    }

    fn use_quick_profile(&mut self) -> Option<String> {
        self.seconds = self.seconds.min(8);
        self.step_s = self.step_s.min(1);
        Some(format!("quick: {} s for each policy", self.seconds))
    }

    fn run(&self, run: &Run) -> Result<Measured> {
        let vms = self.connections.len();
        ensure!((1..=16).contains(&vms), "connections: for 1 to 16 VMs, not {vms}");
        ensure!(self.seconds > 3, "seconds = {}: at least 4", self.seconds);
        run.progress.step(&format!("booting {vms} guests"));
        let testbed = Testbed::start("inbound", &vec![self.kernel; vms], &[Network::Floodway])?;
        let path = Path {
            name: "port".into(),
            rtt_ms: self.rtt_ms,
            mbit: Some(self.mbit),
            queue_kb: Some(self.queue_kb),
            ..Path::default()
        };
        let far = FarEnd::open(
            testbed.host(),
            &testbed.guests()[0],
            &path,
            0,
            (EMULATOR_CORE, run.seed),
        )?;
        self.tell_the_way(&testbed, &far)?;
        tcp::start_every_connection_alike(Place::Host(far.namespace()))?;
        let mut measured = Measured::default();
        for &policy in &self.policies {
            run.progress.step(policy.name());
            self.apply(&testbed, policy)?;
            let schedule = Schedule::new(&self.connections, self.seconds, self.step_s);
            let run = self.measure(&testbed, &far, &schedule)?;
            figures::add(&mut measured, self, policy.name(), &run);
        }
        measured.notes.push(format!(
            "the port runs at {} Mbit/s with {} KB of queue, not at 1 Gbit/s: emulated guests carry no more",
            self.mbit, self.queue_kb
        ));
        Ok(measured)
    }
}

impl Inbound {
    /// Every guest sends to the senders by the host.
    fn tell_the_way(&self, testbed: &Testbed, far: &FarEnd<'_>) -> Result<()> {
        let address = far.address(Network::Floodway);
        let (subnet, _) = address.rsplit_once('.').unwrap_or((&address, ""));
        let way = format!("{subnet}.0/24");
        let router = Network::Floodway.host_address();
        for guest in testbed.guests() {
            Place::Guest(guest).run(&["ip", "route", "replace", &way, "via", &router])?;
        }
        Ok(())
    }

    fn apply(&self, testbed: &Testbed, policy: Policy) -> Result<()> {
        let switch = testbed.switch()?;
        let client = switch.client()?;
        let mbit = u64::from(self.mbit) * u64::from(self.capacity_percent) / 100;
        let change = match policy {
            Policy::Off => InboundChange { capacity_mbit: Some(0), ..InboundChange::default() },
            Policy::Share | Policy::Connections => InboundChange {
                capacity_mbit: Some(mbit),
                policy: Some(if policy == Policy::Share { "share" } else { "connections" }.into()),
                // Half of what the port can queue, for each other's bursts.
                burst_bytes: Some(self.queue_kb * 500),
                ..InboundChange::default()
            },
        };
        client.set_inbound(&change)?;
        Ok(())
    }

    fn measure(
        &self,
        testbed: &Testbed,
        far: &FarEnd<'_>,
        schedule: &Schedule,
    ) -> Result<figures::Variant> {
        let client = testbed.switch()?.client()?;
        let counts = Counts::read(far.namespace())?;
        far.reset_marks()?;
        let addresses = (0..testbed.guests().len())
            .map(|index| Network::Floodway.guest_address(index))
            .collect::<Result<Vec<_>>>()?;
        let sinks = Sinks::open(testbed.guests(), &addresses, schedule)?;
        let watch = || {
            let (start, mut looks) = (Instant::now(), Vec::new());
            let end = Duration::from_secs(self.seconds.into());
            while start.elapsed() < end {
                let status: InboundStatus = client.inbound()?;
                let counters = far.counters()?;
                let port = counters.as_ref().and_then(|counters| counters.port("near"));
                looks.push(Look::new(start.elapsed(), port, &status));
                thread::sleep(POLL);
            }
            Ok(looks)
        };
        let (transfers, looks) = traffic::run(far.namespace(), &sinks, schedule, watch)?;
        sinks.close()?;
        let counts = Counts::read(far.namespace())?.since(counts);
        let emulator_late_us = far.counters()?.map_or(0.0, |counters| counters.longest_delay_us());
        Ok(figures::Variant { looks, transfers, counts, emulator_late_us })
    }
}
