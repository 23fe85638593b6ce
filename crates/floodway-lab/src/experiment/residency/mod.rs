//! Messages between VMs of one host: through the switch's channel and through Linux bridge and tap ("native").
//!
//! # Theory of operation
//! The first VM sends to the second, or to a host beyond a link, with qperf (Debian's; netperf is not free): streams of
//! messages over UDP or TCP, and requests with replies. A round measures each cell on both networks, one right after the other, in
//! turns; figures are medians over rounds.
//!
//! | cores | sender's vCPU | receiver's vCPU | QEMU's other threads, the switch |
//! |---|---|---|---|
//! | `separate` | 0 | 1 | 0 and 1, where there is room |
//! | `shared` | 1 | 1 | 0 |
//!
//! The paper's machine had four cores, and on separate ones the driver domain had two to itself; here it never has. An
//! emulated vCPU needs some ten times the cycles of a real one for a packet, and QEMU's main loop, under a lock that a vCPU needs,
//! for each interrupt: where that is what limits, both networks look alike. `floodway-lab bench` shows the switch without it.
//!
//! What a stream moves is counted where it arrives. `account` says what each party had of the CPUs meanwhile, `counted` what the guests
//! lost and how often they were interrupted.

mod account;
mod counted;
mod profile;
mod remote;
mod traffic;

use anyhow::{Context, Result, ensure};
use floodway_report::Samples;
use serde::Deserialize;

use super::testbed::{Network, Testbed};
use super::{Measured, RealScenario, Run};
use crate::guest_image::{Contents, GuestImage};
use crate::kernel::{Kernel, Series};
use crate::net::Rate;
use account::{Accounts, Parties};
use counted::Counted;
use profile::Profile;
use remote::Remote;
use traffic::{Load, Servers};

/// What the programs of the traffic need of Debian.
const PACKAGES: [&str; 5] =
    ["qperf", "librdmacm1", "libibverbs1", "libnl-3-200", "libnl-route-3-200"];
/// The first is the baseline.
const NETWORKS: [Network; 2] = [Network::Bridge, Network::Floodway];
/// Most streams at once.
const MAX_STREAMS: u32 = 16;

/// What is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Test {
    /// A stream of UDP messages, as fast as the sender can.
    Udp,
    /// A TCP stream, written in messages.
    Tcp,
    /// UDP messages, each answered by one of the same size before the next.
    UdpRr,
    /// The same over TCP.
    TcpRr,
}

impl Test {
    const fn name(self) -> &'static str {
        match self {
            Self::Udp => "udp",
            Self::Tcp => "tcp",
            Self::UdpRr => "udp-rr",
            Self::TcpRr => "tcp-rr",
        }
    }

    const fn unit(self) -> &'static str {
        match self {
            Self::Udp | Self::Tcp => "Mbit/s",
            Self::UdpRr | Self::TcpRr => "1/s",
        }
    }
}

/// Where the VMs run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Cores {
    /// Sender and receiver on one core.
    Shared,
    /// On a core each.
    Separate,
}

impl Cores {
    const fn name(self) -> &'static str {
        match self {
            Self::Shared => "shared",
            Self::Separate => "separate",
        }
    }
}

/// The scenario's parameters.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Residency {
    /// Kernel of the guests.
    pub kernel: Series,
    /// Rounds, at least 1.
    pub rounds: u32,
    /// Seconds of one measurement, at least 1.
    pub seconds: u32,
    /// Where the VMs run.
    pub cores: Vec<Cores>,
    /// What is sent.
    pub tests: Vec<Test>,
    /// Bytes of a message.
    pub sizes: Vec<u32>,
    /// Streams at once, 1 to 16.
    #[serde(default = "one")]
    pub streams: u32,
    /// How many of them go to the co-resident VM, one measurement for each entry; the others go beyond the link. All if
    /// there is none.
    #[serde(default)]
    pub local: Vec<u32>,
    /// The link to the other host; needed when some streams are not local.
    pub link: Option<Rate>,
    /// Addresses in the switch's forwarding table at least.
    #[serde(default)]
    pub entries: u32,
    /// Report also what the parties had of the CPUs.
    #[serde(default)]
    pub accounts: bool,
    /// The taps' cards interrupt as those of the switch do: without MSI-X under emulation.
    #[serde(default)]
    pub equal_interrupts: bool,
    /// Functions of the switch to name for each cell, by their share of its time. Needs perf(1).
    #[serde(default)]
    pub profile: usize,
}

const fn one() -> u32 {
    1
}

/// One cell of the tables.
#[derive(Clone, Copy, Debug)]
struct Cell {
    cores: Cores,
    test: Test,
    size: u32,
    local: u32,
}

/// Samples of one cell.
#[derive(Debug, Default)]
struct CellSamples {
    rate: Samples,
    accounts: Vec<Samples>,
    /// Functions of the switch in the last round, and their shares of its time in percent.
    profile: Vec<(String, f64)>,
}

impl RealScenario for Residency {
    fn steps(&self) -> u64 {
        1 + self.cells().len() as u64
    }

    fn use_quick_profile(&mut self) -> Option<String> {
        (self.rounds, self.seconds) = (1, 1);
        Some("quick: one round of one second; no measurement to rely on".into())
    }

    fn run(&self, run: &Run) -> Result<Measured> {
        self.check()?;
        run.progress.step("booting two guests");
        let packages = crate::guest_image::Packages::fetch(&PACKAGES)?;
        let files = packages.with_libraries(&[traffic::PROGRAM])?;
        let contents = Contents { files, ..Contents::default() };
        let image = GuestImage::build(&Kernel::fetch(self.kernel)?, &contents)?;
        let images = [image.clone(), image];
        let testbed = Testbed::start_images("resid", &images, &NETWORKS, !self.equal_interrupts)?;
        let remote = self.link.map(|link| Remote::start(&testbed, link)).transpose()?;
        remote::fill_table(&testbed, self.entries)?;
        let servers = Servers::start(&testbed, remote.as_ref(), &packages, self.streams)?;
        let parties = Parties::of(&testbed)?;
        let (mut measured, mut medians) = (Measured::default(), Vec::new());
        for cell in self.cells() {
            let name = self.name(&cell);
            run.progress.step(&name);
            parties.place(cell.cores)?;
            let samples = self
                .measure(&testbed, &servers, &parties, &cell, &name)
                .with_context(|| name.clone())?;
            medians.extend(floodway_report::stats::median(&samples.rate.value));
            measured.add_samples(samples.rate);
            samples.accounts.into_iter().for_each(|samples| measured.add_samples(samples));
            for (function, share) in samples.profile {
                measured.add_value(format!("{function}, {name}"), "% of the switch's time", share);
            }
        }
        if self.local.len() > 1 {
            measured.add_value(
                "rises with the local share",
                "1",
                rises(&medians, self.local.len()),
            );
        }
        measured.add_value("frames dropped by the switch", "frames", switch_drops(&testbed)?);
        measured.notes.push("guests are emulated: their own part is much larger than on a real CPU, for both networks".into());
        Ok(measured)
    }
}

impl Residency {
    /// Streams to the co-resident VM, for each measurement.
    fn mixes(&self) -> Vec<u32> {
        if self.local.is_empty() { vec![self.streams] } else { self.local.clone() }
    }

    fn cells(&self) -> Vec<Cell> {
        let mut cells = Vec::new();
        for &cores in &self.cores {
            for &test in &self.tests {
                for &size in &self.sizes {
                    let cell = |local| Cell { cores, test, size, local };
                    cells.extend(self.mixes().into_iter().map(cell));
                }
            }
        }
        cells
    }

    fn name(&self, cell: &Cell) -> String {
        let Cell { cores, test, size, local } = *cell;
        let mix = match self.local[..] {
            [] => String::new(),
            _ if self.streams == 1 && local == 0 => " remote".into(),
            _ => format!(" {}:{local}", self.streams - local),
        };
        format!("{} {size} B{mix} {}", test.name(), cores.name())
    }

    fn check(&self) -> Result<()> {
        ensure!(self.rounds >= 1 && self.seconds >= 1, "rounds and seconds must be at least 1");
        ensure!(
            (1..=MAX_STREAMS).contains(&self.streams),
            "streams = {}: must be 1 to {MAX_STREAMS}",
            self.streams
        );
        for &local in &self.mixes() {
            ensure!(local <= self.streams, "local = {local}: there are {} streams", self.streams);
            ensure!(
                local == self.streams || self.link.is_some(),
                "local = {local}: the others need a link"
            );
        }
        for &size in &self.sizes {
            ensure!((1..=65_507).contains(&size), "sizes: {size} is not 1 to 65507");
        }
        let cells = self.cells();
        ensure!(!cells.is_empty(), "cores, tests and sizes: name at least one each");
        Ok(())
    }

    fn measure(
        &self,
        testbed: &Testbed,
        servers: &Servers,
        parties: &Parties,
        cell: &Cell,
        name: &str,
    ) -> Result<CellSamples> {
        let mut samples = CellSamples {
            rate: Samples {
                name: name.into(),
                unit: cell.test.unit().into(),
                bar: None,
                ..Samples::default()
            },
            accounts: Vec::new(),
            profile: Vec::new(),
        };
        for round in 0..self.rounds {
            let mut order = NETWORKS;
            if round % 2 == 1 {
                order.reverse();
            }
            for network in order {
                let load = Load {
                    test: cell.test,
                    size: cell.size,
                    seconds: self.seconds,
                    local: cell.local,
                    remote: self.streams - cell.local,
                };
                let profile = self.profiles(testbed, network)?;
                let counted = self.counts(testbed, network)?;
                let before = Accounts::read(testbed, parties)?;
                let rate = servers.measure(testbed, network, &load)?;
                let accounts = Accounts::read(testbed, parties)?.since(&before);
                side(&mut samples.rate, network, rate);
                if let Some(profile) = profile {
                    samples.profile = profile.finish(self.profile)?;
                }
                if let (Some(before), Some(now)) = (counted, self.counts(testbed, network)?) {
                    let figures =
                        now.since(&before).figures(accounts.seconds(), cell.test == Test::Udp);
                    add_figures(&mut samples.accounts, network, name, accounts.figures(network));
                    add_figures(&mut samples.accounts, network, name, figures);
                }
            }
        }
        Ok(samples)
    }
}

impl Residency {
    /// What the guests have counted, where accounts are wanted.
    fn counts(&self, testbed: &Testbed, network: Network) -> Result<Option<Counted>> {
        self.accounts.then(|| Counted::read(testbed, network)).transpose()
    }

    /// A profiler of the switch, where one is wanted.
    fn profiles(&self, testbed: &Testbed, network: Network) -> Result<Option<Profile>> {
        if self.profile == 0 || network != Network::Floodway {
            return Ok(None);
        }
        let id = testbed.switch()?.id().context("the switch does not run")?;
        Profile::start(id).map(Some)
    }
}

fn side(samples: &mut Samples, network: Network, figure: f64) {
    match network {
        Network::Floodway => samples.value.push(figure),
        Network::Bridge => samples.baseline.push(figure),
    }
}

fn add_figures(
    all: &mut Vec<Samples>,
    network: Network,
    cell: &str,
    figures: Vec<(String, &'static str, f64)>,
) {
    for (what, unit, figure) in figures {
        let name = format!("{what}, {cell}");
        let found = all.iter().position(|samples| samples.name == name).unwrap_or_else(|| {
            all.push(Samples { name, unit: unit.into(), ..Samples::default() });
            all.len() - 1
        });
        side(&mut all[found], network, figure);
    }
}

/// The part of adjacent mixes where more local streams bring more, 0 to 1. `medians` has one group of `mixes` after the other.
fn rises(medians: &[f64], mixes: usize) -> f64 {
    let pairs = medians.chunks(mixes).flat_map(|group| group.windows(2));
    let (mut rising, mut all) = (0.0, 0.0);
    for pair in pairs {
        all += 1.0;
        rising += f64::from(u8::from(pair[1] > pair[0]));
    }
    rising / all
}

fn switch_drops(testbed: &Testbed) -> Result<f64> {
    Ok(testbed.switch()?.drops()?.values().sum())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::{Experiment, Scenario};

    const TEXT: &str = r#"
        name = "t"
        title = "t"
        [scenario]
        kind = "residency"
        kernel = "6.1"
        rounds = 3
        seconds = 2
        cores = ["shared", "separate"]
        tests = ["udp", "tcp-rr"]
        sizes = [64, 1024]
    "#;

    fn parse(more: &str) -> Residency {
        match Experiment::parse(&format!("{TEXT}{more}")).unwrap().scenario {
            Scenario::Residency(scenario) => scenario,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn cells_have_names_of_their_own() {
        let scenario =
            parse("streams = 5\nlocal = [0, 5]\nlink = { mbit = 100, queue_bytes = 100000 }\n");
        scenario.check().unwrap();
        let names: std::collections::BTreeSet<String> =
            scenario.cells().iter().map(|cell| scenario.name(cell)).collect();
        assert_eq!(names.len(), 2 * 2 * 2 * 2);
        assert!(
            names.contains("udp 64 B 5:0 shared") && names.contains("tcp-rr 1024 B 0:5 separate")
        );
        assert_eq!(parse("").name(&parse("").cells()[0]), "udp 64 B shared");
        assert_eq!(scenario.steps(), 17);
    }

    #[test]
    fn mixes_are_compared_within_their_group() {
        assert_eq!(rises(&[1.0, 2.0, 3.0, 1.0, 5.0, 4.0], 3), 0.75);
    }

    #[test]
    fn senseless_parameters_are_refused_by_name() {
        let refused = |more: &str| parse(more).check().unwrap_err().to_string();
        assert!(refused("streams = 17\n").starts_with("streams = 17"));
        assert!(refused("local = [2]\n").starts_with("local = 2"));
        assert!(refused("local = [0]\n").contains("link"));
    }
}
