//! Kills the switch while flows are online, and looks at what the guest sends from then on.
//!
//! # Theory of operation
//!
//! A VM sends several streams over an emulated path that is slower than the VM. With transmit offload it sends far ahead of what
//! the path carries: its own window is out of force, the switch holds the rest. Then the switch is killed (SIGKILL). It cannot say
//! good-bye; what it held is lost; the guest must notice by itself, within the lifetime of the last heartbeat, that
//! nobody stands between it and the network any more, and be back on its *shadow window* (`guest/`).
//!
//! A guest without a switch sends nothing, so silence would prove little: the switch is started again, at once or
//! after a while, without offload or with it. From then on all that the guest sends goes to the network, since a switch does not know connections
//! whose beginning it has not seen, and its only bounds are its own window and the receiver's, which is far larger than the path. A switch with offload
//! tells the guest that it is another one as soon as the guest sends; from one without it nothing is heard.
//!
//! Two observers, both in the guest:
//!
//! - a capture at its card shows each piece of new data and what was in flight then (`flight`); whatever the switch or the path
//!   do, this is what the guest *sent*;
//! - its kernel's trace tells the congestion window of each connection at each packet that comes (`window`).
//!
//! New data is *above the shadow window* as far as the flight that it makes exceeds the shadow window of
//! that time, unless it is a tail loss probe. The time to the shadow window is that from the kill to the last such data; none is 0.

mod capture;
mod flight;
mod order;
mod scoreboard;
mod timing;
mod window;

use std::fs;
use std::net::Ipv4Addr;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, anyhow, ensure};
use serde::Deserialize;

use super::integrity::Direction;
use super::integrity::lanes::{self, Ends, Outcome};
use super::switch_restart::samples;
use super::testbed::{Network, Testbed};
use super::transfer::far_end::FarEnd;
use super::transfer::{Path, Profile, Variant, variant};
use super::{Measured, RealScenario, Run};
use crate::agent::{Agent, Spawned};
use crate::kernel::Series;
use crate::switch_process::Switch;
use crate::vm::Vm;
use flight::NewData;
use window::{Window, Windows};

/// What the guest is prepared for. Without receive offload: what it has acknowledged dies with the switch.
const VARIANTS: [Variant; 1] = [Variant::Transmit];
/// Core of the path's emulator.
const PATH_CORE: usize = 0;
/// From the moment when all flows are online to the kill: time to fill the switch's store.
const FLOOD: Duration = Duration::from_millis(700);
/// How long what the guest sends is looked at, from the start of the new switch.
const OBSERVE: Duration = Duration::from_secs(3);
/// What a heartbeat is believed for, 250 ms, and 50 ms for reading it late: from then on a guest has no excuse.
const GRACE: Duration = Duration::from_millis(300);
/// Ends a run that hangs.
const PATIENCE: Duration = Duration::from_secs(120);
const POLL: Duration = Duration::from_millis(20);
/// How long a process may take to go once it has been killed.
const EXIT_TIMEOUT: Duration = Duration::from_secs(10);
const EXIT_POLL: Duration = Duration::from_millis(1);
/// Where the guest's capture goes.
const CAPTURE: &str = "/killed.pcap";
/// Most cycles of a quick run, for each way of restarting.
const QUICK_CYCLES: u32 = 2;

/// The scenario's parameters.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SwitchKilled {
    /// Kernel of the guest.
    pub kernel: Series,
    /// Kills, for each way of restarting, at least 1.
    pub cycles: u32,
    /// From the end of the killed switch to the start of the next one, in ms.
    pub restart_after_ms: Vec<u64>,
    /// Whether that one has transmit offload. Each is combined with each of `restart_after_ms`.
    #[serde(default = "without")]
    pub offload_again: Vec<bool>,
    /// Connections at once, 1 to 16.
    pub flows: u32,
    /// Bytes of each in MB: enough for several seconds.
    pub flow_mb: u64,
    /// What lies between the switch and the receiver; it must have a rate.
    pub path: Path,
}

fn without() -> Vec<bool> {
    vec![false]
}

/// How the switch comes back.
#[derive(Clone, Copy, PartialEq)]
struct Restart {
    /// After so many ms.
    pause_ms: u64,
    /// With transmit offload.
    offload: bool,
}

impl Restart {
    fn name(self) -> String {
        let offload = if self.offload { " with offload" } else { "" };
        format!("restart after {} ms{offload}", self.pause_ms)
    }
}

/// What one kill showed.
struct Cycle {
    /// One for each connection that sent something new after the kill.
    above: Vec<Above>,
    /// Share of connections whose window was out of force right before the kill.
    flooding: f64,
    streams: Outcome,
}

/// New data that a connection sent above its shadow window after the kill.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Above {
    /// From the kill to the last of it; 0 when there is none.
    until_ms: f64,
    /// Its bytes.
    bytes: u64,
    /// Those of them that were sent when the last heartbeat had surely expired.
    late_bytes: u64,
    /// `bytes` by the receiver's window in force.
    windows: f64,
    /// Bytes that the connection has sent, and that had not come to the card when it went on behind them.
    left_out: u64,
    /// Tail loss probes, which may exceed any window.
    probes: u64,
}

impl RealScenario for SwitchKilled {
    fn steps(&self) -> u64 {
        1 + u64::from(self.cycles) * self.restarts().count() as u64
    }

    fn use_quick_profile(&mut self) -> Option<String> {
        let full = self.cycles;
        self.cycles = full.min(QUICK_CYCLES);
        Some(format!("quick run: {} of {full} kills for each way of restarting", self.cycles))
    }

    fn run(&self, run: &Run) -> Result<Measured> {
        self.check()?;
        run.progress.step("booting the VM");
        let mut testbed = Testbed::start("killed", &[self.kernel], &[Network::Floodway])?;
        let (guests, switch, host) = testbed.parts()?;
        let guest = &guests[0];
        let end = FarEnd::open(host, guest, &self.path, 0, (PATH_CORE, run.seed))?;
        variant::prepare(guest, &VARIANTS, Profile::Today)?;
        let mut report = Report::default();
        let before = link_losses(guest)?;
        for (round, restart) in self.restarts().enumerate() {
            for cycle in 0..self.cycles {
                let name = restart.name();
                run.progress.step(&format!("kill {} of {}, {name}", cycle + 1, self.cycles));
                let seed = run.seed.wrapping_add(((round as u64) << 40) + (u64::from(cycle) << 32));
                let ends = Ends { guest, far: &end, direction: Direction::Out, patience: PATIENCE };
                let shown = self.cycle(switch, &ends, restart, seed);
                report.add(restart, shown.with_context(|| format!("kill {}", cycle + 1))?);
            }
        }
        report.link_losses = link_losses(guest)? - before;
        Ok(report.measured())
    }
}

impl SwitchKilled {
    fn restarts(&self) -> impl Iterator<Item = Restart> {
        let each = self.offload_again.iter();
        each.flat_map(|&offload| {
            self.restart_after_ms.iter().map(move |&pause_ms| Restart { pause_ms, offload })
        })
    }

    fn check(&self) -> Result<()> {
        ensure!(self.cycles >= 1, "cycles = 0: at least 1");
        ensure!(!self.restart_after_ms.is_empty(), "restart_after_ms: name at least one time");
        ensure!(!self.offload_again.is_empty(), "offload_again: name true, false or both");
        ensure!((1..=16).contains(&self.flows), "flows = {}: must be 1 to 16", self.flows);
        ensure!(self.flow_mb >= 1, "flow_mb = 0: at least 1");
        ensure!(
            self.path.mbit.is_some(),
            "path: needs a rate (mbit), or nothing waits at the switch"
        );
        Ok(())
    }

    fn cycle(
        &self,
        switch: &mut Switch,
        ends: &Ends<'_>,
        restart: Restart,
        seed: u64,
    ) -> Result<Cycle> {
        let (guest, agent) = (ends.guest, ends.guest.agent());
        variant::activate(Variant::Transmit, &VARIANTS, Profile::Today, switch, guest)?;
        let tcpdump = start_capture(agent)?;
        window::start_trace(agent)?;
        let lanes = vec![vec![self.flow_mb * 1_000_000]; self.flows as usize];
        let (streams, killed_ns) = thread::scope(|scope| {
            let streams = scope.spawn(|| lanes::run(ends, &lanes, seed));
            self.wait_until_online(switch, guest, &|| streams.is_finished())?;
            thread::sleep(FLOOD);
            let killed_ns = kill_and_restart(switch, restart)?;
            thread::sleep(OBSERVE);
            Ok::<_, anyhow::Error>((joined(streams)?, killed_ns))
        })?;
        // From here on, all times are the guest's.
        let killed_ns = killed_ns + agent.clock_offset()?.offset_ns;
        let windows = window::end_trace(agent)?;
        let file = end_capture(agent, &tcpdump)?;
        let address: Ipv4Addr = Network::Floodway.guest_address(0)?.parse()?;
        let sent =
            flight::new_data(&capture::segments(&file)?, address).context("the guest's capture")?;
        let above = sent.iter().filter_map(|(port, sent)| {
            above_shadow(sent, windows.get(port).map_or(&[][..], Vec::as_slice), killed_ns)
        });
        let above = above.collect();
        Ok(Cycle { above, flooding: self.flooding(&windows, killed_ns), streams })
    }

    fn wait_until_online(
        &self,
        switch: &Switch,
        guest: &Vm,
        ended: &dyn Fn() -> bool,
    ) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let online = switch.online_flows(guest.name())?;
            if online >= u64::from(self.flows) {
                return Ok(());
            }
            ensure!(!ended(), "the streams have ended already; raise flow_mb");
            ensure!(
                Instant::now() < deadline,
                "{online} of {} flows are online after {PATIENCE:?}",
                self.flows
            );
            thread::sleep(POLL);
        }
    }

    /// Share of the connections whose last window before the kill was one of a flow that is online.
    fn flooding(&self, windows: &Windows, killed_ns: i64) -> f64 {
        let last = |windows: &Vec<Window>| {
            windows.iter().rfind(|window| window.at_ns < killed_ns).is_some_and(Window::is_online)
        };
        let flooding = u32::try_from(windows.values().filter(|windows| last(windows)).count());
        f64::from(flooding.unwrap_or(u32::MAX)) / f64::from(self.flows)
    }
}

/// Returns the host's time right before the kill.
fn kill_and_restart(switch: &mut Switch, restart: Restart) -> Result<i64> {
    let data_plane =
        switch.status()?["switch"]["pid"].as_u64().context("a status without a pid")?;
    let killed_ns = host_clock()?;
    switch.kill()?;
    wait_until_gone(data_plane)?;
    thread::sleep(Duration::from_millis(restart.pause_ms));
    switch.restart_with(|config| set_transmit(config, restart.offload))?;
    Ok(killed_ns)
}

/// Waits until a process has closed its files, the tap among them, which the next switch opens. [`Switch::kill`] waits for the broker only.
fn wait_until_gone(pid: u64) -> Result<()> {
    let open_files = format!("/proc/{pid}/fd");
    let deadline = Instant::now() + EXIT_TIMEOUT;
    // A zombie has no open files.
    while fs::read_dir(&open_files).is_ok_and(|mut files| files.next().is_some()) {
        ensure!(Instant::now() < deadline, "process {pid} was killed, and has files open still");
        thread::sleep(EXIT_POLL);
    }
    Ok(())
}

/// Sets whether the ports of a switch with this configuration offload what their guests send.
fn set_transmit(config: &mut toml::Table, transmit: bool) {
    let ports = config.get_mut("port").and_then(toml::Value::as_array_mut);
    for port in ports.into_iter().flatten().filter_map(toml::Value::as_table_mut) {
        let offload = port.entry("offload").or_insert_with(|| toml::Table::new().into());
        if let Some(offload) = offload.as_table_mut() {
            offload.insert("transmit".into(), transmit.into());
        }
    }
}

/// Returns how often the guest's card has lost its link, which QEMU takes down when the card's switch dies.
fn link_losses(guest: &Vm) -> Result<u64> {
    let read = guest.agent().exec(&["cat", "/sys/class/net/eth0/carrier_down_count"])?;
    Ok(String::from_utf8_lossy(&read.stdout).trim().parse()?)
}

/// Starts to write down what passes the guest's card.
fn start_capture(agent: &Agent) -> Result<Spawned> {
    // As root: the image has no other users.
    let words = ["-Z", "root", "-i", "eth0", "-s", "128", "-B", "16384", "-w", CAPTURE, "tcp"];
    let tcpdump = agent.spawn(&[&["tcpdump"], &words[..]].concat())?;
    let deadline = Instant::now() + PATIENCE;
    loop {
        let said = String::from_utf8_lossy(&agent.get(&tcpdump.stderr)?).into_owned();
        if said.contains("listening on") {
            return Ok(tcpdump);
        }
        ensure!(
            agent.wait(&tcpdump, Duration::ZERO)?.is_none() && Instant::now() < deadline,
            "tcpdump in the guest: {said}"
        );
        thread::sleep(POLL);
    }
}

/// The capture, which must be complete.
fn end_capture(agent: &Agent, tcpdump: &Spawned) -> Result<Vec<u8>> {
    agent.signal(tcpdump, libc::SIGINT)?;
    agent.wait(tcpdump, PATIENCE)?.context("tcpdump in the guest does not end")?;
    let said = String::from_utf8_lossy(&agent.get(&tcpdump.stderr)?).into_owned();
    let complete = said.lines().any(|line| line.trim() == "0 packets dropped by kernel");
    ensure!(complete, "the guest's capture has gaps: {said}");
    agent.get(CAPTURE)
}

fn joined<T>(thread: thread::ScopedJoinHandle<'_, Result<T>>) -> Result<T> {
    thread.join().map_err(|_| anyhow!("a thread panicked"))?
}

fn host_clock() -> Result<i64> {
    Ok(i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos())?)
}

/// What a connection sent above its shadow window after the kill; none if it sent nothing new. All times are the guest's.
/// Once the guest has closed its end, the kernel tells no more windows, and nothing is judged.
fn above_shadow(sent: &[NewData], windows: &[Window], killed_ns: i64) -> Option<Above> {
    let grace_ns = i64::try_from(GRACE.as_nanos()).unwrap_or(i64::MAX);
    let mut above = Above::default();
    let (mut any, mut in_force) = (false, 0);
    let known_until = windows.last().map_or(i64::MAX, |window| window.at_ns);
    for new in sent.iter().filter(|new| new.at_ns < known_until) {
        if new.at_ns <= killed_ns + grace_ns {
            in_force = in_force.max(new.window);
        }
        if new.at_ns <= killed_ns {
            continue;
        }
        any = true;
        above.left_out += new.left_out;
        above.probes += u64::from(new.is_probe);
        // One that is not known at all allows nothing.
        let shadow = window::shadow(windows, new.at_ns).unwrap_or(0);
        let bytes = new.flight.saturating_sub(shadow * new.mss).min(new.len);
        if new.is_probe || bytes == 0 {
            continue;
        }
        above.bytes += bytes;
        above.until_ms =
            Duration::from_nanos((new.at_ns - killed_ns).unsigned_abs()).as_secs_f64() * 1e3;
        if new.at_ns > killed_ns + grace_ns {
            above.late_bytes += bytes;
        }
    }
    if above.bytes > 0 {
        above.windows = above.bytes as f64 / in_force as f64;
    }
    any.then_some(above)
}

/// What all kills showed.
#[derive(Default)]
struct Report {
    cycles: Vec<(Restart, Cycle)>,
    link_losses: u64,
}

impl Report {
    fn add(&mut self, restart: Restart, cycle: Cycle) {
        self.cycles.push((restart, cycle));
    }

    fn measured(&self) -> Measured {
        let mut measured = Measured::default();
        let mut reported: Vec<Restart> = Vec::new();
        for (restart, _) in &self.cycles {
            if !reported.contains(restart) {
                reported.push(*restart);
                self.report_restart(*restart, &mut measured);
            }
        }
        let flooding = self.cycles.iter().map(|(_, cycle)| cycle.flooding).fold(1.0, f64::min);
        measured.add_value("flows flooding at the kill, least share", "x", flooding);
        let losses = self.link_losses as f64 / self.cycles.len().max(1) as f64;
        measured.add_value(
            "losses of the link of the guest's card, for each kill",
            "times",
            losses,
        );
        let streams = |of: fn(&Outcome) -> u64| {
            self.cycles.iter().map(|(_, cycle)| of(&cycle.streams)).sum::<u64>() as f64
        };
        measured.add_value("streams intact", "streams", streams(|outcome| outcome.intact));
        measured.add_value("streams broken", "streams", streams(|outcome| outcome.broken));
        let failures =
            self.cycles.iter().filter_map(|(_, cycle)| cycle.streams.first_failure.clone());
        measured.notes.extend(failures.take(1).map(|why| format!("first failure: {why}")));
        measured
    }

    fn report_restart(&self, restart: Restart, measured: &mut Measured) {
        let prefix = restart.name();
        let cycles = self.cycles.iter().filter(|(of, _)| *of == restart);
        let all: Vec<&Above> = cycles.flat_map(|(_, cycle)| &cycle.above).collect();
        let mut times = samples(&format!("{prefix}/time to the shadow window"), "ms");
        times.value = all.iter().map(|above| above.until_ms).collect();
        measured.add_samples(times);
        let mut worst = |what: &str, unit: &str, of: &dyn Fn(&Above) -> f64| {
            // No connection at all is nothing measured.
            let value = all.iter().map(|above| of(above)).reduce(f64::max).unwrap_or(f64::NAN);
            measured.add_value(format!("{prefix}/{what}"), unit, value);
        };
        worst("longest time to the shadow window", "ms", &|above| above.until_ms);
        worst("most sent above it", "KB", &|above| above.bytes as f64 / 1e3);
        worst("most sent above it, in windows", "x", &|above| above.windows);
        worst("most sent above it after 300 ms", "KB", &|above| above.late_bytes as f64 / 1e3);
        worst("most left out", "KB", &|above| above.left_out as f64 / 1e3);
        let probes: u64 = all.iter().map(|above| above.probes).sum();
        measured.add_value(format!("{prefix}/tail loss probes"), "probes", probes as f64);
        measured.add_value(format!("{prefix}/connections"), "connections", all.len() as f64);
    }
}

#[cfg(test)]
mod tests;
