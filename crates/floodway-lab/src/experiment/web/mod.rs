//! A web application of four VMs that wait for their CPU: the papers' application benchmark.
//!
//! # Theory of operation
//!
//! nginx, PHP-FPM, Redis and memcached, stock programs of Debian, run in one VM each (`tiers`), each VM on a host of its own
//! (`hosts`): four switches with four uplinks, so that whatever the tiers say to each other passes the offloads
//! of two hosts. As PHP does without persistent connections, each request makes a connection from front to application and from
//! application to database and cache; so most time goes by in short connections, as in the papers' Apache Olio. Visitors
//! (`load`) are outside, as many at once as `clients`, and each asks again as soon as it has its answer.
//!
//! In the papers each VM shares the core of its host with a load of 30 %. Here all VMs share one core, and each has a part of such a
//! load within (`contention`): a VM waits for the time slices of the others. Switches, network and visitors have the other core.
//!
//! Variants take turns in *blocks* of `block_s` seconds, A B C D D C B A, each after a short run that is not counted. One
//! block gives one sample of operations per second and of each latency; intervals are bootstraps over blocks.

mod figures;
mod hosts;
mod load;
mod tiers;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use super::testbed::Network;
use super::transfer::contention::{self, Slices};
use super::transfer::tcp::{self, Place};
use super::transfer::{Emulator, Profile, Variant, variant};
use super::{Measured, RealScenario, Run};
use crate::agent::Counters;
use crate::kernel::Series;
use hosts::Hosts;
use load::{Load, Visitors};

/// Length of the run at the start of a block, not counted: connections of visitors, code that the emulator has not
/// translated yet.
const WARM_UP_S: u32 = 2;
/// Blocks of each variant of a quick run, at most, and their length.
const QUICK_BLOCKS: u32 = 2;
const QUICK_BLOCK_S: u32 = 5;
/// Bytes that every page has at least; an application that failed says less.
const LEAST_PAGE: usize = 5000;
/// Fewest blocks that say anything.
const LEAST_BLOCKS: u32 = 2;

/// The scenario's parameters.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WebApplication {
    /// Kernel of the VMs.
    pub kernel: Series,
    /// What is compared; the first is the baseline of the others.
    pub variants: Vec<Variant>,
    /// The variants from the least operations to the most, as expected. None: nothing is expected.
    #[serde(default)]
    pub order: Vec<Variant>,
    /// Profiles of hosts and guests.
    pub profiles: Vec<Profile>,
    /// Share of each period that each VM is busy besides the application, 0 to 100.
    pub load_percent: u32,
    /// Period of the load, in ms.
    #[serde(default = "paper_period")]
    pub period_ms: u64,
    /// Where QEMU's main loops run, if not where the profile has them.
    pub emulator: Option<Emulator>,
    /// What the VMs' sockets start with for reception, in bytes, in all variants; none: the kernel's 128 KiB. Receive
    /// offload acknowledges nothing beyond half of it.
    pub guest_receive_buffer: Option<u32>,
    /// Visitors at once, 1 to 200.
    pub clients: u32,
    /// Length of a block in seconds, at least 1.
    pub block_s: u32,
    /// Blocks of each variant, at least 2.
    pub blocks: u32,
}

/// All that was measured.
#[derive(Debug, Default)]
struct Results {
    /// One entry for each block, by profile and variant; entries of the same index are of the same time.
    blocks: BTreeMap<(Profile, Variant), Vec<Load>>,
    /// Growth of the VMs' TCP counters during blocks, all VMs together.
    counters: BTreeMap<(Profile, Variant), Counters>,
    /// What others than the VMs used of the contended core, the largest share in any profile.
    strangers: f64,
    /// What vCPUs had of the core.
    slices: BTreeMap<Profile, Slices>,
}

/// 30 ms, as of the papers' load generator.
fn paper_period() -> u64 {
    30
}

impl RealScenario for WebApplication {
    fn steps(&self) -> u64 {
        1 + self.profiles.len() as u64 * u64::from(self.blocks) * self.variants.len() as u64
    }

    fn use_quick_profile(&mut self) -> Option<String> {
        let (blocks, seconds) = (self.blocks, self.block_s);
        self.blocks = blocks.min(QUICK_BLOCKS);
        self.block_s = seconds.min(QUICK_BLOCK_S);
        Some(format!(
            "quick run: {} of {blocks} blocks in each variant, of {} instead of {seconds} s; no measurement to rely on",
            self.blocks, self.block_s
        ))
    }

    fn run(&self, run: &Run) -> Result<Measured> {
        self.check()?;
        run.progress.step("booting four VMs, starting the application");
        let hosts = Hosts::start(self.kernel)?;
        let visitors = Visitors::new(&hosts, self.clients)?;
        set_up(&visitors)?;
        let mut results = Results::default();
        for &profile in &self.profiles {
            self.profile(profile, run, &hosts, &visitors, &mut results)
                .with_context(|| format!("profile {}", profile.name()))?;
        }
        Ok(figures::figures(self, &results))
    }
}

impl WebApplication {
    fn emulator(&self, profile: Profile) -> Emulator {
        self.emulator.unwrap_or_else(|| profile.emulator())
    }

    fn check(&self) -> Result<()> {
        ensure!(!self.variants.is_empty(), "variants: name at least one");
        ensure!(!self.profiles.is_empty(), "profiles: name at least one");
        ensure!(
            self.variants.iter().all(|variant| variant::network(*variant) == Network::Floodway),
            "variants: the application's hosts have no `bridge`"
        );
        ensure!(
            self.order.iter().all(|variant| self.variants.contains(variant)),
            "order: only what `variants` names can be compared"
        );
        let (load, clients) = (self.load_percent, self.clients);
        ensure!(load <= 100, "load_percent = {load}: must be 0 to 100");
        ensure!((1..=200).contains(&clients), "clients = {clients}: must be 1 to 200");
        ensure!(self.period_ms >= 1, "period_ms = 0: must be at least 1");
        ensure!(self.block_s >= 1, "block_s = 0: must be at least 1");
        let blocks = self.blocks;
        ensure!(blocks >= LEAST_BLOCKS, "blocks = {blocks}: must be at least {LEAST_BLOCKS}");
        Ok(())
    }

    fn profile(
        &self,
        profile: Profile,
        run: &Run,
        hosts: &Hosts,
        visitors: &Visitors<'_>,
        results: &mut Results,
    ) -> Result<()> {
        for guest in hosts.guests() {
            variant::prepare(guest, &self.variants, profile)?;
            if let Some(bytes) = self.guest_receive_buffer {
                tcp::set_receive_buffer(Place::Guest(guest), bytes)?;
            }
        }
        tcp::start_every_connection_alike(Place::Host(hosts.network()))?;
        let _turn = hosts.threads().schedule(profile, self.emulator(profile))?;
        let period = Duration::from_millis(self.period_ms);
        contention::load(hosts.guests(), self.load_percent, period)?;
        let before = (hosts.threads().core_time()?, Instant::now());
        let slices = hosts.threads().slices();
        for number in 0..self.blocks {
            let mut order = self.variants.clone();
            if number % 2 == 1 {
                order.reverse();
            }
            for variant in order {
                let (profile_name, name) = (profile.name(), variant.name());
                let of = self.blocks;
                run.progress.step(&format!("{profile_name} {name}, block {} of {of}", number + 1));
                let seed = run.seed.wrapping_add(number.into());
                self.block(variant, profile, seed, hosts, visitors, results)?;
            }
        }
        let strangers = hosts.threads().core_time()?.strangers_since(before.0);
        results.slices.insert(profile, hosts.threads().slices().since(slices));
        let share = strangers.as_secs_f64() / before.1.elapsed().as_secs_f64();
        results.strangers = results.strangers.max(share);
        for guest in hosts.guests() {
            guest.agent().hog_stop()?;
        }
        Ok(())
    }

    fn block(
        &self,
        variant: Variant,
        profile: Profile,
        seed: u64,
        hosts: &Hosts,
        visitors: &Visitors<'_>,
        results: &mut Results,
    ) -> Result<()> {
        for (guest, switch) in hosts.pairs() {
            variant::activate(variant, &self.variants, profile, switch, guest)?;
        }
        visitors.visit(WARM_UP_S, seed)?;
        let before = counters(hosts)?;
        let load = visitors.visit(self.block_s, seed)?;
        let sums = results.counters.entry((profile, variant)).or_default();
        for (name, value) in counters(hosts)? {
            let growth = value - before.get(&name).unwrap_or(&0);
            *sums.entry(name).or_default() += growth;
        }
        results.blocks.entry((profile, variant)).or_default().push(load);
        Ok(())
    }
}

/// Fills database and cache, and looks whether an answer comes through all tiers as it was stored.
fn set_up(visitors: &Visitors<'_>) -> Result<()> {
    visitors.get("/setup")?;
    for path in ["/", "/tag/3", "/event/7", "/static/style.css"] {
        let answer = visitors.get(path)?;
        let start = String::from_utf8_lossy(&answer[..answer.len().min(500)]).into_owned();
        ensure!(answer.len() >= LEAST_PAGE, "GET {path}: {} bytes: {start}", answer.len());
    }
    let [first, again] = [visitors.get("/photo/1")?, visitors.get("/photo/1")?];
    ensure!(first.len() == 100_000, "GET /photo/1: an answer of {} bytes", first.len());
    ensure!(first == again, "GET /photo/1: two answers differ");
    Ok(())
}

/// TCP counters of all VMs together.
fn counters(hosts: &Hosts) -> Result<Counters> {
    let mut sums = Counters::new();
    for guest in hosts.guests() {
        for (name, value) in guest.agent().counters()? {
            *sums.entry(name).or_default() += value;
        }
    }
    Ok(sums)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::{Experiment, Scenario};

    const TEXT: &str = r#"
        name = "t"
        title = "t"
        [scenario]
        kind = "web-application"
        kernel = "6.1"
        variants = ["vanilla", "transmit"]
        order = ["vanilla", "transmit"]
        profiles = ["2011", "today"]
        load_percent = 30
        clients = 8
        block_s = 20
        blocks = 10
    "#;

    fn parse(from: &str, to: &str) -> Result<WebApplication> {
        assert!(TEXT.contains(from));
        match Experiment::parse(&TEXT.replace(from, to))?.scenario {
            Scenario::WebApplication(scenario) => Ok(scenario),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_quick_run_has_fewer_and_shorter_blocks_and_says_so() {
        let mut scenario = parse("kernel", "kernel").unwrap();
        scenario.check().unwrap();
        assert_eq!(scenario.steps(), 41);
        let note = scenario.use_quick_profile().unwrap();
        assert!(note.contains("2 of 10 blocks") && note.contains("5 instead of 20 s"), "{note}");
        assert_eq!(scenario.steps(), 9);
        scenario.check().unwrap();
    }

    #[test]
    fn senseless_parameters_are_refused_by_name() {
        let refused = |from: &str, to: &str| {
            let error = parse(from, to).and_then(|scenario| scenario.check());
            format!("{:#}", error.unwrap_err())
        };
        assert!(refused("variants = [\"vanilla\"", "variants = [\"bridge\"").contains("`bridge`"));
        assert!(refused("order = [\"vanilla\"", "order = [\"receive\"").starts_with("order"));
        assert!(refused("= 30", "= 101").starts_with("load_percent = 101"));
        assert!(refused("clients = 8", "clients = 0").starts_with("clients = 0"));
        assert!(refused("block_s = 20", "block_s = 0").starts_with("block_s = 0"));
        assert!(refused("blocks = 10", "blocks = 1").starts_with("blocks = 1"));
        assert!(refused("\"2011\", ", "\"1999\", ").contains("1999"));
        assert!(refused("clients = 8", "client = 8").contains("client"));
    }
}
