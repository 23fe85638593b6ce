//! Runs a scenario: testbeds, profiles, cells, and blocks that alternate between variants.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use floodway_guest::transfer::{Arrival, Plan, Receiver, Sent, Sink};

use super::cell::{self, Cell, Place, Series};
use super::contention::{self, Contended, Slices, Watch};
use super::far_end::FarEnd;
use super::observation::{Measure, Observation};
use super::phases::Phases;
use super::{Direction, HostLoad, Path, Profile, Transfer, Variant, tcp, variant};
use crate::agent::{Counters, Listening};
use crate::experiment::Run;
use crate::noise::Repeats;
use crate::switch_process::Offload;
use crate::transfer;

/// What stands before the names of the switch's counters among a guest's.
pub const SWITCH: &str = "switch ";
/// Rounds before the first block of each variant in a cell, not counted: neighbour tables, page
/// faults, code that the emulator has not translated yet.
const WARM_UP: u32 = 2;
/// Longest time without progress. Only ends a run that hangs.
const PATIENCE: Duration = Duration::from_secs(120);
/// Pauses are up to this many periods of the load, so that a round starts at any phase of it.
const PAUSE_PERIODS: u64 = 2;
/// Any address and port: guests have a card on each network.
const ANY: &str = "0.0.0.0:0";

/// All that was measured.
#[derive(Debug, Default)]
pub struct Results {
    /// In the order of measuring.
    pub cells: Vec<Cell>,
    /// Growth of the guest's and the switch's TCP counters while transfers ran.
    pub counters: BTreeMap<(Profile, Variant), Counters>,
    /// Transfers that came to their end, in blocks that count.
    pub complete: u64,
    /// Transfers that did not, and why the first of them did not.
    pub failed: u64,
    /// See `failed`.
    pub first_failure: Option<String>,
    /// Transfers with other bytes than were sent.
    pub broken: u64,
    /// What others than the VMs used of the contended core: the largest share in any cell.
    pub strangers: f64,
    /// Blocks that were disturbed, by cell.
    pub repeats: Vec<Repeats>,
    /// What vCPUs had of the core while transfers ran.
    pub slices: BTreeMap<Profile, Slices>,
}

/// Measures everything that a scenario asks for.
///
/// # Errors
/// When a part of the testbed fails, or a variant needs what the switch or guest does not have.
pub fn run(scenario: &Transfer, run: &Run) -> Result<Results> {
    let mut results = Results::default();
    for (index, &host) in scenario.hosts.iter().enumerate() {
        run.progress.step(&format!("booting {} VMs", host.vms));
        let contended = Contended::start(&format!("tr{index}"), scenario, host)?;
        for paths in scenario.path_sets() {
            let ends = paths
                .iter()
                .enumerate()
                .map(|(index, path)| {
                    let place = (contention::OTHER, run.seed);
                    FarEnd::open(contended.testbed().host(), contended.guest(), path, index, place)
                })
                .collect::<Result<Vec<_>>>()?;
            for &profile in &scenario.profiles {
                let mut session =
                    Session::open(scenario, run, host, &contended, &paths, &ends, profile)?;
                session.all_cells(&mut results)?;
            }
        }
    }
    Ok(results)
}

/// One testbed in one profile, with its sinks.
struct Session<'a> {
    scenario: &'a Transfer,
    run: &'a Run,
    host: HostLoad,
    contended: &'a Contended,
    paths: &'a [Path],
    ends: &'a [FarEnd<'a>],
    profile: Profile,
    sinks: Sinks,
    next_id: u64,
    _turn: Option<crate::cleanup::Guard>,
}

/// The receiving ends.
enum Sinks {
    /// One behind each path.
    Host(Vec<Sink>),
    /// One in the contended VM.
    Guest(Listening),
}

impl<'a> Session<'a> {
    fn open(
        scenario: &'a Transfer,
        run: &'a Run,
        host: HostLoad,
        contended: &'a Contended,
        paths: &'a [Path],
        ends: &'a [FarEnd<'a>],
        profile: Profile,
    ) -> Result<Self> {
        let any: SocketAddr = ANY.parse()?;
        variant::prepare(contended.guest(), &scenario.variants, profile)?;
        if let Some(bytes) = scenario.guest_receive_buffer {
            tcp::set_receive_buffer(tcp::Place::Guest(contended.guest()), bytes)?;
        }
        if let Some(budget) = scenario.budget {
            let offload =
                Offload { budget: Some(budget), ..variant::offload(Variant::Vanilla, profile) };
            contended.testbed().switch()?.set_offload(contended.guest().name(), &offload)?;
        }
        for end in ends {
            let place = tcp::Place::Host(end.namespace());
            tcp::start_every_connection_alike(place)?;
            tcp::set_initial_window(place, profile.initial_window())?;
        }
        let sinks = match scenario.direction {
            Direction::Out => Sinks::Host(
                ends.iter()
                    .map(|end| transfer::listen(end.namespace(), any))
                    .collect::<Result<_>>()?,
            ),
            Direction::In | Direction::Both => {
                Sinks::Guest(contended.guest().agent().transfer_listen(any)?)
            }
        };
        let turn = contended.threads().schedule(profile, scenario.emulator(profile))?;
        let period = Duration::from_millis(scenario.period_ms);
        contention::load(contended.testbed().guests(), host.load_percent, period)?;
        Ok(Self {
            scenario,
            run,
            host,
            contended,
            paths,
            ends,
            profile,
            sinks,
            next_id: 0,
            _turn: turn,
        })
    }

    fn all_cells(&mut self, results: &mut Results) -> Result<()> {
        for &bytes in &self.scenario.bytes {
            for flows in &self.scenario.flows {
                let place = Place {
                    host: self.host,
                    path: (self.paths.len() == 1).then(|| self.paths[0].name.clone()),
                    mbit: self.paths[0].mbit,
                    bytes,
                    flows: flows.clone(),
                };
                let threads = self.contended.threads();
                let (before, slices) = ((threads.core_time()?, Instant::now()), threads.slices());
                let cell = self.cell(place, results)?;
                let strangers = threads.core_time()?.strangers_since(before.0);
                let sum = results.slices.entry(self.profile).or_default();
                *sum = sum.plus(threads.slices().since(slices));
                let share = strangers.as_secs_f64() / before.1.elapsed().as_secs_f64();
                results.strangers = results.strangers.max(share);
                results.cells.push(cell);
            }
        }
        if let Sinks::Guest(listening) = &self.sinks {
            self.contended.guest().agent().transfer_close(listening)?;
        }
        Ok(())
    }

    /// Measures one cell, block by block, every second time in reverse order.
    fn cell(&mut self, place: Place, results: &mut Results) -> Result<Cell> {
        let variants = &self.scenario.variants;
        let (rounds, bytes) = (self.scenario.rounds(place.bytes), place.bytes);
        let block = super::block_rounds(self.scenario, bytes, &place.flows);
        let measures = Measure::of(self.scenario, &place.flows);
        let mut series: Vec<Series> = variants
            .iter()
            .flat_map(|&variant| (0..place.flows.len()).map(move |receiver| (variant, receiver)))
            .flat_map(|(variant, receiver)| {
                measures.iter().map(move |&measure| Series {
                    variant,
                    receiver,
                    measure,
                    mbit_s: Vec::new(),
                })
            })
            .collect();
        let mut phases: Vec<_> = variants.iter().map(|&variant| Phases::new(variant)).collect();
        let mut repeats = Repeats::default();
        for number in 0..rounds.div_ceil(block) {
            let mut order = variants.clone();
            if number % 2 == 1 {
                order.reverse();
            }
            for variant in order {
                self.announce(&place, variant, number * block, rounds);
                let rounds = block.min(rounds - number * block);
                let warm_up = if number == 0 { WARM_UP } else { 0 };
                let rounds = (warm_up, rounds);
                let observed = self.block(variant, &place, rounds, &mut repeats, results)?;
                for one in &mut phases {
                    one.extend(variant, self.scenario.direction, &observed);
                }
                for one in series.iter_mut().filter(|one| one.variant == variant) {
                    one.mbit_s.extend(observed.iter().map(|round| {
                        cell::round(round, one.receiver, one.measure, self.scenario, bytes)
                    }));
                }
            }
        }
        results.repeats.push(repeats);
        Ok(Cell { place, profile: self.profile, series, phases })
    }

    fn announce(&self, place: &Place, variant: Variant, done: u32, rounds: u32) {
        let label = place.label(self.scenario);
        let (profile, variant) = (self.profile.name(), variant.name());
        self.run.progress.step(&format!("{profile} {label} {variant}, {done} of {rounds} done"));
    }

    /// Switches over to a variant and runs a block. Returns its rounds without those that warm up.
    fn block(
        &mut self,
        variant: Variant,
        place: &Place,
        (warm_up, rounds): (u32, u32),
        repeats: &mut Repeats,
        results: &mut Results,
    ) -> Result<Vec<Vec<Observation>>> {
        let (contended, variants) = (self.contended, &self.scenario.variants);
        let guest = contended.guest();
        variant::activate(variant, variants, self.profile, contended.testbed().switch()?, guest)?;
        if warm_up > 0 {
            self.transfers(variant, place, warm_up)?;
        }
        loop {
            let watch = Watch::start(contended.threads())?;
            let observed = self.counted(variant, place, rounds, results)?;
            if !repeats.again(watch.end(contended.threads())?) {
                let complete = observed.iter().flatten().filter(|one| one.is_complete()).count();
                results.complete += complete as u64;
                return Ok(observed);
            }
            self.run.progress.step_again("the block again: the machine was disturbed");
        }
    }

    /// Runs rounds, and counts what failed in them and what guest and switch counted.
    fn counted(
        &mut self,
        variant: Variant,
        place: &Place,
        rounds: u32,
        results: &mut Results,
    ) -> Result<Vec<Vec<Observation>>> {
        let before = self.counters(variant)?;
        let observed = self.transfers(variant, place, rounds)?;
        let after = self.counters(variant)?;
        let sums = results.counters.entry((self.profile, variant)).or_default();
        for (name, value) in after {
            *sums.entry(name.clone()).or_default() += value - before.get(&name).unwrap_or(&0);
        }
        for observation in observed.iter().flatten() {
            results.count_failure(observation);
        }
        Ok(observed)
    }

    /// The counters of the guest's TCP, and of the switch where that does something for it: the latter with [`SWITCH`] before their
    /// names.
    fn counters(&self, variant: Variant) -> Result<Counters> {
        let (guest, testbed) = (self.contended.guest(), self.contended.testbed());
        let mut counters = guest.agent().counters()?;
        if variant.offloads() {
            let switch = testbed.switch()?.offload_counters(guest.name())?;
            for (name, n) in switch {
                counters.insert(format!("{SWITCH}{name}"), i64::try_from(n)?);
            }
        }
        Ok(counters)
    }

    /// Runs rounds, and puts together what both ends saw.
    fn transfers(
        &mut self,
        variant: Variant,
        place: &Place,
        rounds: u32,
    ) -> Result<Vec<Vec<Observation>>> {
        let plan = self.plan(variant, place, rounds)?;
        self.next_id += u64::from(rounds) * plan.flows();
        let agent = self.contended.guest().agent();
        let (sent, arrivals) = match &self.sinks {
            Sinks::Host(sinks) => {
                let sent = agent.transfer_send(&plan)?;
                (sent, sinks.iter().flat_map(Sink::take).collect())
            }
            Sinks::Guest(listening) => {
                let sent = transfer::send(self.ends[0].namespace(), &plan)?;
                (sent, agent.transfer_arrivals(listening)?)
            }
        };
        Ok(join(sent, arrivals, usize::try_from(plan.flows())?))
    }

    /// Of a source on the host. The guests' is the system's default, since their sinks answer, too; in a
    /// namespace of the host the kernel may refuse to change that.
    fn host_algorithm(&self) -> Option<String> {
        matches!(self.sinks, Sinks::Guest(_)).then(|| self.profile.congestion_control().to_owned())
    }

    fn plan(&self, variant: Variant, place: &Place, rounds: u32) -> Result<Plan> {
        let network = variant::network(variant);
        let receivers = match &self.sinks {
            Sinks::Host(sinks) => {
                let ends = self.ends.iter().zip(sinks).zip(&place.flows);
                ends.map(|((end, sink), &flows)| {
                    let address = address(&end.address(network), sink.address().port())?;
                    Ok(Receiver { address, flows })
                })
                .collect::<Result<_>>()?
            }
            Sinks::Guest(listening) => {
                let address = address(&network.guest_address(0)?, listening.address.port())?;
                vec![Receiver { address, flows: place.flows[0] }]
            }
        };
        let both = self.scenario.direction == Direction::Both;
        Ok(Plan {
            receivers,
            bytes: place.bytes,
            reply_bytes: if both { place.bytes } else { 1 },
            rounds,
            back_to_back: self.scenario.back_to_back,
            pause_max_us: self.scenario.period_ms * 1000 * PAUSE_PERIODS,
            seed: self.run.seed,
            first_id: self.next_id,
            congestion_control: self.host_algorithm(),
            watch_acks: self.scenario.direction != Direction::Out,
            timeout_ms: u64::try_from(PATIENCE.as_millis())?,
        })
    }
}

impl Results {
    /// Counts what failed, in blocks that are measured again, too.
    fn count_failure(&mut self, observation: &Observation) {
        if observation.is_broken() {
            self.broken += 1;
        }
        if observation.is_complete() {
            return;
        }
        self.failed += 1;
        let why = || observation.sent.error.clone().unwrap_or_else(|| "never came whole".into());
        self.first_failure.get_or_insert_with(why);
    }
}

fn address(host: &str, port: u16) -> Result<SocketAddr> {
    Ok(SocketAddr::new(host.parse().with_context(|| format!("address {host}"))?, port))
}

/// Puts together what source and sinks say of each transfer, round by round.
fn join(sent: Vec<Sent>, arrivals: Vec<Arrival>, flows: usize) -> Vec<Vec<Observation>> {
    let mut arrived: BTreeMap<u64, Arrival> =
        arrivals.into_iter().map(|arrival| (arrival.id, arrival)).collect();
    let mut observed = sent
        .into_iter()
        .map(|sent| Observation { arrival: arrived.remove(&sent.id), sent })
        .peekable();
    let mut rounds = Vec::new();
    while observed.peek().is_some() {
        rounds.push(observed.by_ref().take(flows).collect());
    }
    rounds
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ends_are_put_together_by_number_and_round() {
        let sent = |id| Sent {
            id,
            receiver: 0,
            connect_ns: 1,
            acked_ns: None,
            reply_ns: 0,
            whole_ns: 2,
            error: None,
        };
        let arrival = |id| Arrival { id, bytes: 40, intact: id != 2, first_ns: 0, last_ns: id };
        let rounds = join((0..4).map(sent).collect(), vec![arrival(2), arrival(0), arrival(9)], 2);
        let ids: Vec<Vec<_>> =
            rounds.iter().map(|round| round.iter().map(|one| one.sent.id).collect()).collect();
        assert_eq!(ids, [[0, 1], [2, 3]]);
        let mut results = Results::default();
        rounds.iter().flatten().for_each(|observation| results.count_failure(observation));
        assert_eq!((results.failed, results.broken), (2, 1));
        assert_eq!(results.first_failure.as_deref(), Some("never came whole"));
    }
}
