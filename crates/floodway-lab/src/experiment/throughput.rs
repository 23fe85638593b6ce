//! Rates between two VMs and with their host, through the switch and through Linux bridge and tap.
//!
//! One TCP stream at a time, between guests of the same kernel. A round measures every direction
//! on every network, one right after the other; rates are medians over rounds. The order of the networks
//! alternates from round to round, so that neither always runs on the hotter machine.
//!
//! The guests' counters of checksum errors are read at the end: whatever the switch did to
//! packets, the guests must not have seen a wrong checksum.

use anyhow::{Result, ensure};
use floodway_report::Samples;
use serde::Deserialize;

use super::iperf::{self, Amount, Place, Transfer};
use super::testbed::{Network, Testbed};
use super::{Measured, RealScenario, Run};
use crate::kernel::Series;

/// What the guests' kernels count as checksum errors, by nstat's names.
const CHECKSUM_COUNTERS: [&str; 5] = [
    "TcpInCsumErrors",
    "UdpInCsumErrors",
    "IcmpInCsumErrors",
    "IpExtInCsumErrors",
    "Udp6InCsumErrors",
];

/// The scenario's parameters.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Throughput {
    /// Kernels of guests, one pair of guests each.
    pub kernels: Vec<Series>,
    /// Networks to measure. With both, figures of the bridge are the baseline of those of the switch.
    pub networks: Vec<Network>,
    /// Rounds, at least 1.
    pub rounds: u32,
    /// Length of one transfer in seconds, at least 1.
    pub seconds: u32,
}

/// From where to where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    VmToVm,
    VmToHost,
    HostToVm,
}

impl Direction {
    const ALL: [Self; 3] = [Self::VmToVm, Self::VmToHost, Self::HostToVm];

    fn name(self) -> &'static str {
        match self {
            Self::VmToVm => "vm-to-vm",
            Self::VmToHost => "vm-to-host",
            Self::HostToVm => "host-to-vm",
        }
    }
}

/// Samples of one direction.
#[derive(Debug, Default)]
struct DirectionSamples {
    rate: Samples,
    retransmits: Samples,
    switch_cpu: Samples,
}

impl RealScenario for Throughput {
    fn steps(&self) -> u64 {
        let transfers = Direction::ALL.len() * self.networks.len();
        let per_kernel = 1 + u64::from(self.rounds) * transfers as u64;
        self.kernels.len() as u64 * per_kernel
    }

    fn run(&self, run: &Run) -> Result<Measured> {
        ensure!((1..=2).contains(&self.networks.len()), "networks: name one or two");
        ensure!(self.rounds >= 1 && self.seconds >= 1, "rounds and seconds must be at least 1");
        let mut measured = Measured::default();
        for series in &self.kernels {
            run.progress.step(&format!("booting two guests with kernel {series}"));
            self.measure_pair(*series, run, &mut measured)?;
        }
        Ok(measured)
    }
}

impl Throughput {
    fn measure_pair(&self, series: Series, run: &Run, measured: &mut Measured) -> Result<()> {
        let name = format!("tp{}", series.to_string().replace('.', "x"));
        let testbed = Testbed::start(&name, &[series; 2], &self.networks)?;
        let prefix = format!("debian-{series}");
        let mut directions = Direction::ALL.map(|direction| named(&prefix, direction));
        for round in 0..self.rounds {
            for (direction, samples) in Direction::ALL.into_iter().zip(&mut directions) {
                let label =
                    format!("{prefix} {} round {}/{}", direction.name(), round + 1, self.rounds);
                self.measure_round(&testbed, direction, round, samples, &|network| {
                    run.progress.step(&format!("{label} {network:?}"));
                })?;
            }
        }
        for samples in directions {
            measured.add_samples(samples.rate);
            measured.add_samples(samples.retransmits);
            if !samples.switch_cpu.value.is_empty() {
                measured.add_samples(samples.switch_cpu);
            }
        }
        measured.add_value(
            format!("{prefix}/checksum errors"),
            "packets",
            checksum_errors(&testbed)?,
        );
        Ok(())
    }

    fn measure_round(
        &self,
        testbed: &Testbed,
        direction: Direction,
        round: u32,
        samples: &mut DirectionSamples,
        announce: &dyn Fn(Network),
    ) -> Result<()> {
        let mut order = self.networks.clone();
        if round % 2 == 1 {
            order.reverse();
        }
        for network in order {
            announce(network);
            let before = switch_cpu(testbed, network)?;
            let transfer = transfer(testbed, direction, network, self.seconds)?;
            if let Some((before, after)) = before.zip(switch_cpu(testbed, network)?) {
                samples.switch_cpu.value.push((after - before) / (transfer.bytes / 1e9));
            }
            let side = |samples: &mut Samples, figure| match network {
                Network::Floodway => samples.value.push(figure),
                Network::Bridge => samples.baseline.push(figure),
            };
            side(&mut samples.rate, transfer.mbit_s);
            side(&mut samples.retransmits, transfer.retransmits);
        }
        Ok(())
    }
}

fn named(prefix: &str, direction: Direction) -> DirectionSamples {
    let samples = |what: &str, unit: &str| Samples {
        name: format!("{prefix}/{}{what}", direction.name()),
        unit: unit.into(),
        ..Samples::default()
    };
    DirectionSamples {
        rate: samples("", "Mbit/s"),
        retransmits: samples(" retransmits", "segments"),
        switch_cpu: samples(" switch CPU", "s/GB"),
    }
}

fn transfer(
    testbed: &Testbed,
    direction: Direction,
    network: Network,
    seconds: u32,
) -> Result<Transfer> {
    let [first, second] = [0, 1].map(|index| Place::Guest(&testbed.guests()[index]));
    let host = Place::Host(testbed.host());
    let (from, to, address) = match direction {
        Direction::VmToVm => (first, second, network.guest_address(1)?),
        Direction::VmToHost => (first, host, network.host_address()),
        Direction::HostToVm => (host, second, network.guest_address(1)?),
    };
    iperf::transfer(from, to, &address, Amount::Seconds(seconds))
}

/// CPU seconds of the switch so far; none for a network without a process of its own.
fn switch_cpu(testbed: &Testbed, network: Network) -> Result<Option<f64>> {
    match network {
        Network::Floodway => Ok(Some(testbed.switch()?.usage()?.cpu.as_secs_f64())),
        Network::Bridge => Ok(None),
    }
}

fn checksum_errors(testbed: &Testbed) -> Result<f64> {
    let mut sum = 0;
    for guest in testbed.guests() {
        let counters = guest.agent().counters()?;
        sum += CHECKSUM_COUNTERS.iter().filter_map(|name| counters.get(*name)).sum::<i64>();
    }
    Ok(sum as f64)
}
