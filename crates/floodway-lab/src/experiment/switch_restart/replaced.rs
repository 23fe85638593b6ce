//! Replaces a part of the switch under load, again and again: its data plane or its broker by killing it, or all of it by an upgrade.
//!
//! The *outage* of an event is the longest time without a frame from the switch at the host, from the event on and for at least [`WATCH`]; the *calm gap* is the same of the time right before it.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result};
use floodway_guest::requests::Outcome;
use floodway_report::Samples;

use super::load::{Ends, Load, Size};
use super::{Held, arrivals, samples};
use crate::experiment::offloaded::Offloaded;
use crate::experiment::testbed::{Network, Testbed, wait_until_reachable};
use crate::experiment::transfer::far_end::FarEnd;
use crate::experiment::transfer::{Path, Profile, Variant, variant};
use crate::experiment::{Measured, Run};
use crate::switch_process::{Switch, Upgrade};
use crate::vm::Vm;

/// What an offload has done, by name.
type Counters = BTreeMap<String, u64>;

/// Core of the path's emulator.
const PATH_CORE: usize = 0;
/// For how long they are looked at from an event on, if it does not take longer.
const WATCH: Duration = Duration::from_secs(1);

/// What is replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The data plane is killed; its broker starts another one.
    DataPlane,
    /// The broker is killed; the lab starts another one, which takes over the data plane.
    Broker,
    /// All processes are replaced by `floodway upgrade`.
    Upgrade,
}

impl Part {
    fn name(self) -> &'static str {
        match self {
            Self::DataPlane => "data plane",
            Self::Broker => "broker",
            Self::Upgrade => "upgrade",
        }
    }

    fn replace(self, switch: &mut Switch) -> Result<Option<Upgrade>> {
        match self {
            Self::DataPlane => switch.kill_data_plane().map(|()| None),
            Self::Broker => switch.replace_broker().map(|()| None),
            Self::Upgrade => switch.upgrade().map(Some),
        }
    }

    /// For how long arrivals are looked at before an event. Those of a broker are judged by that, so it is much longer than after it: by chance the longest gap is in here.
    fn calm(self) -> Duration {
        Duration::from_secs(if self == Self::Broker { 6 } else { 2 })
    }

    /// For how many seconds a stream is sent that is to last from before an event until after it, on a busy machine, too.
    pub fn seconds(self) -> u32 {
        if self == Self::Broker { 14 } else { 10 }
    }
}

/// The guests that take part.
#[derive(Clone, Copy, Debug)]
pub struct Guests {
    /// The first of the testbed's.
    pub count: usize,
    /// What the switch does for them.
    pub variant: Variant,
}

/// Runs cases between `these` guests and the other end of `path`, one after the other.
///
/// # Errors
/// When a part of the testbed fails.
pub fn run(
    cases: &[Case],
    testbed: &mut Testbed,
    (these, path): (Guests, &Path),
    run: &Run,
    measured: &mut Measured,
) -> Result<()> {
    let (guests, switch, host) = testbed.parts()?;
    let guests = &guests[..these.count];
    switch.keep_store()?;
    let far = FarEnd::open(host, &guests[0], path, 0, (PATH_CORE, run.seed))?;
    for guest in guests {
        wait_until_reachable(guest, &Network::Floodway.host_address())?;
        far.lead(guest)?;
        variant::prepare(guest, &[these.variant], Profile::Today)?;
        variant::activate(these.variant, &[these.variant], Profile::Today, switch, guest)?;
    }
    let ends = Ends { guests, far: &far, host };
    cases.iter().try_for_each(|case| case.run(ends, switch, run, measured))
}

/// A part that is replaced again and again under a load.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    pub part: Part,
    pub load: Load,
    /// How often.
    pub events: u32,
    /// How much the load carries.
    pub size: Size,
    /// Connections that have to owe bytes right before an event.
    pub owing: u64,
}

/// What one event showed.
struct Event {
    outage: Duration,
    calm: Duration,
    /// Connections that were offloaded right before it, and when its outage had been measured.
    online: [u64; 2],
    /// What connections were doing right before it.
    offloaded: Offloaded,
    upgrade: Option<Upgrade>,
    held: Held,
}

impl Case {
    /// Replaces the part as often as it says, and adds what that showed.
    ///
    /// # Errors
    /// When a part of the testbed fails; a connection that is lost is no error.
    fn run(
        self,
        ends: Ends<'_>,
        switch: &mut Switch,
        run: &Run,
        measured: &mut Measured,
    ) -> Result<()> {
        let (mut events, mut total) = (Vec::new(), Outcome::default());
        let before = counters(switch, ends.guests)?;
        while events.len() < self.events as usize {
            let number = events.len() as u64;
            let together = self.together().min(self.events - number as u32);
            let seed = run.seed.wrapping_add(number);
            let work = || {
                (0..together).try_for_each(|_| -> Result<()> {
                    let what = format!("event {}/{}", events.len() + 1, self.events);
                    run.progress.step(&self.row(&what));
                    let event = self.event(ends, switch);
                    events.push(event.with_context(|| self.row(&what))?);
                    Ok(())
                })
            };
            let part = self.row("load");
            let carried = self.load.carry(ends, self.size, seed, work);
            total.add(carried.with_context(|| part)?.1);
        }
        self.report(&events, total, measured);
        self.report_offload(&before, &counters(switch, ends.guests)?, measured);
        Ok(())
    }

    /// Returns through how many events the same connections carry the load. They have to stay offloaded, so that each event meets some that are; and on a path that
    /// loses packets those that have gone on for minutes wait for retransmissions most of the time.
    fn together(self) -> u32 {
        match self.load {
            Load::Iperf3 => 1,
            Load::Requests if self.part == Part::DataPlane => 1,
            Load::Requests => 5,
            Load::Stream => self.events,
        }
    }

    fn event(self, Ends { guests, host, .. }: Ends<'_>, switch: &mut Switch) -> Result<Event> {
        let (calm, ()) = arrivals::longest_gap(host, self.part.calm(), || Ok(()))?;
        let offloaded = Offloaded::once_owing(switch, self.owing)?;
        let before = online_flows(switch, guests)?;
        let (outage, upgrade) = arrivals::longest_gap(host, WATCH, || self.part.replace(switch))?;
        let online = [before, online_flows(switch, guests)?];
        Ok(Event { outage, calm, online, offloaded, upgrade, held: Held::of(guests, switch)? })
    }

    fn row(self, what: &str) -> String {
        format!("{}, {}/{what}", self.part.name(), self.load.name())
    }

    fn report(self, events: &[Event], total: Outcome, measured: &mut Measured) {
        let all = |of: fn(&Event) -> Duration| -> Vec<f64> {
            events.iter().map(|event| milliseconds(of(event))).collect()
        };
        let (outages, calm) = (all(|event| event.outage), all(|event| event.calm));
        let (longest, longest_calm) = (largest(&outages), largest(&calm));
        for (name, value) in [("outage", outages), ("calm gap", calm)] {
            measured.add_samples(Samples { value, ..samples(&self.row(name), "ms") });
        }
        measured.add_value(self.row("longest outage"), "ms", longest);
        measured.add_value(self.row("longest calm gap"), "ms", longest_calm);
        let beyond = (longest - longest_calm).max(0.0);
        measured.add_value(self.row("longest outage beyond the calm gap"), "ms", beyond);
        for (index, when) in ["before", "after"].into_iter().enumerate() {
            let least = events.iter().map(|event| event.online[index]).min().unwrap_or(0);
            let name = self.row(&format!("flows online {when}, least"));
            measured.add_value(name, "flows", least as f64);
        }
        let offloaded: Vec<_> = events.iter().map(|event| event.offloaded).collect();
        Offloaded::report(&offloaded, &self.row(""), measured);
        self.report_upgrades(events, measured);
        self.report_load(total, measured);
        let held: Vec<_> = events.iter().map(|event| event.held).collect();
        Held::report(&held, &self.row(""), measured);
    }

    fn report_upgrades(self, events: &[Event], measured: &mut Measured) {
        let upgrades: Vec<_> = events.iter().filter_map(|event| event.upgrade).collect();
        if upgrades.is_empty() {
            return;
        }
        let lost: u64 = upgrades.iter().map(|it| it.online.saturating_sub(it.carried)).sum();
        let pauses: Vec<_> = upgrades.iter().map(|upgrade| milliseconds(upgrade.pause)).collect();
        let longest = largest(&pauses);
        measured.add_samples(Samples { value: pauses, ..samples(&self.row("pause"), "ms") });
        measured.add_value(self.row("longest pause"), "ms", longest);
        measured.add_value(self.row("flows that went offline"), "flows", lost as f64);
    }

    /// That the offloads took part.
    fn report_offload(self, before: &Counters, after: &Counters, measured: &mut Measured) {
        for (counter, what) in [
            ("stored_bytes", "stored by transmit offload"),
            ("acknowledged_bytes", "acknowledged by receive offload"),
        ] {
            let of = |counters: &Counters| counters.get(counter).copied().unwrap_or(0);
            let bytes = of(after).saturating_sub(of(before)) as f64;
            measured.add_value(self.row(what), "MB", bytes / 1e6);
        }
    }

    fn report_load(self, total: Outcome, measured: &mut Measured) {
        let mut add = |what: &str, unit: &str, count: u64| {
            measured.add_value(self.row(what), unit, count as f64);
        };
        add("connections", "connections", total.connections);
        add("connections lost", "connections", total.lost);
        if self.load != Load::Iperf3 {
            add("requests answered", "requests", total.answered);
            add("requests failed", "requests", total.failed);
            add("digests that differ", "digests", total.differing);
            let longest = milliseconds(Duration::from_nanos(total.longest_ns));
            measured.add_value(self.row("longest request"), "ms", longest);
        }
        let first = total.first_failure;
        measured.notes.extend(first.map(|why| format!("{}: {why}", self.row("first failure"))));
    }
}

/// How many connections of all guests are offloaded.
fn online_flows(switch: &Switch, guests: &[Vm]) -> Result<u64> {
    guests.iter().map(|guest| switch.online_flows(guest.name())).sum()
}

/// What the offloads of all guests have done.
fn counters(switch: &Switch, guests: &[Vm]) -> Result<Counters> {
    let mut sums = Counters::new();
    for guest in guests {
        for (name, count) in switch.offload_counters(guest.name())? {
            *sums.entry(name).or_default() += count;
        }
    }
    Ok(sums)
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// Returns 0 if there are none.
fn largest(values: &[f64]) -> f64 {
    values.iter().copied().fold(0.0, f64::max)
}
