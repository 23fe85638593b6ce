//! The trials on real VMs.
//!
//! # Theory of operation
//! ```text
//! VM - switch - uplink [host namespace] near - emulated path: rate, queue, loss, delay - far [receiver's namespace]
//! Linux senders -------^
//! ```
//! Linux senders are sockets of the host's namespace, through which the guest's frames are routed: both meet at the same link of the
//! emulator, behind the same round trip. The vCPU has a core of its own; switch, emulator, Linux senders and receiver share the other
//! one, so that a Linux sender waits for nobody longer than the switch does.
//!
//! An offloaded flow's state is the switch's ([`crate::switch_process`]), a Linux sender's is TCP_INFO. A guest without offload is asked by `ss`, every
//! [`ASK`], since each question costs it time. Timeouts and recoveries of Linux senders are counted for their namespace, so with two of them in a
//! group they stand with the one that is named last.

use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use floodway_guest::transfer::{Plan, Receiver as To};
use floodway_switch::api::control::FlowQuery;
use floodway_switch::control::ControlClient;

use super::journal::{self, Journal};
use super::receiver::Receiver;
use super::sender::{LinuxSender, counts, look_of_ss};
use super::{Cell, Friendliness, LOOK, Look, Sender, Trace, Trial};
use crate::experiment::Run;
use crate::experiment::testbed::{Network, Testbed};
use crate::experiment::transfer::contention::{OTHER, Threads, pin_all};
use crate::experiment::transfer::far_end::FarEnd;
use crate::experiment::transfer::{Path, tcp};
use crate::switch_process::Offload;
use crate::vm::Vm;

/// Payload of a full segment: an MSS of 1460 less the timestamps.
const PAYLOAD: u32 = 1448;
/// First window of all senders, in segments (RFC 6928).
const INITIAL_WINDOW: u32 = 10;
/// Name of the guest's congestion control for offloaded flows, and what registers it.
const OFFLOADED: &str = "floodway";
const LOADER: &str = "/init";
/// How often a guest is asked for the state of its connection.
const ASK: Duration = Duration::from_secs(1);
/// More than any trial transfers.
const ENDLESS: u64 = 1 << 50;
/// Pause between trials, in which the connections of the last one end.
const PAUSE: Duration = Duration::from_secs(2);

/// Measures all trials that an earlier run has not left in the journal.
pub(super) fn run(scenario: &Friendliness, run: &Run) -> Result<Vec<Trial>> {
    let kept = run.resume.as_ref().map(|dir| dir.join(journal::FILE));
    let mut journal = Journal::open(kept.as_deref())?;
    run.progress.step("booting a guest");
    let testbed = Testbed::start("friendly", &[scenario.kernel], &[Network::Floodway])?;
    pin_all(std::process::id(), OTHER)?;
    pin_all(testbed.switch()?.id().context("the switch does not run")?, OTHER)?;
    Threads::pin(testbed.guests())?;
    let guest = testbed.guests().first().context("no guest")?;
    for place in [tcp::Place::Guest(guest), tcp::Place::Host(testbed.host())] {
        tcp::start_every_connection_alike(place)?;
        tcp::set_initial_window(place, INITIAL_WINDOW)?;
    }
    for cell in scenario.all_cells() {
        let groups = scenario
            .groups
            .iter()
            .flat_map(|group| (0..scenario.rounds).map(move |round| (group, round)));
        let missing: Vec<_> = groups.filter(|(g, round)| !journal.has(&cell, g, *round)).collect();
        if missing.is_empty() {
            continue;
        }
        let place = (OTHER, run.seed);
        let far = FarEnd::open(testbed.host(), guest, &path(&cell), 0, place)?;
        tcp::set_initial_window(tcp::Place::Guest(guest), INITIAL_WINDOW)?;
        for (group, round) in missing {
            let names: Vec<_> = group.iter().map(|sender| sender.name()).collect();
            run.progress.step(&format!("{}: {}, {round}", cell.name(), names.join(" beside ")));
            let stage = Stage { scenario, testbed: &testbed, guest, far: &far, cell: &cell };
            let trial = stage.trial(group, round).with_context(|| cell.name())?;
            journal.add(trial)?;
            thread::sleep(PAUSE);
        }
    }
    let wanted = scenario.all_cells();
    let mut trials = journal.into_trials();
    trials.retain(|trial| wanted.contains(&trial.cell));
    Ok(trials)
}

fn path(cell: &Cell) -> Path {
    Path {
        name: cell.name(),
        rtt_ms: cell.rtt_ms,
        loss_percent: cell.loss_percent,
        jitter_ms: cell.jitter_ms(),
        mbit: cell.bottleneck.as_ref().map(|(mbit, _)| *mbit),
        queue_kb: cell.queue_bytes().map(|bytes| bytes.div_ceil(1000)),
        ..Path::default()
    }
}

/// A path and who is at its ends.
struct Stage<'a> {
    scenario: &'a Friendliness,
    testbed: &'a Testbed,
    guest: &'a Vm,
    far: &'a FarEnd<'a>,
    cell: &'a Cell,
}

/// A sender under way.
enum Flow {
    Linux(LinuxSender),
    /// Where it goes, and the switch's counters at the start.
    Offloaded(SocketAddr, Look),
    Guest {
        state: Look,
        asked: Option<Instant>,
    },
}

impl Stage<'_> {
    fn trial(&self, group: &[Sender], round: u32) -> Result<Trial> {
        ensure!(
            group.iter().filter(|sender| sender.is_guest()).count() <= 1,
            "groups: one guest at most"
        );
        for &sender in group {
            if sender.is_guest() {
                self.prepare_guest(sender)?;
            }
        }
        let mut receivers = group
            .iter()
            .map(|_| Receiver::open(self.far.namespace()))
            .collect::<Result<Vec<_>>>()?;
        thread::scope(|scope| {
            let mut flows = Vec::new();
            let mut sending = None;
            for (&sender, receiver) in group.iter().zip(&mut receivers) {
                let to = self.address(receiver)?;
                let flow = match sender {
                    Sender::Linux | Sender::SecondLinux => Flow::Linux(LinuxSender::start(
                        self.testbed.host(),
                        to,
                        &self.cell.congestion,
                    )?),
                    Sender::Offloaded | Sender::Guest => {
                        let plan = plan(to);
                        sending =
                            Some(scope.spawn(move || self.guest.agent().transfer_send(&plan)));
                        match sender {
                            Sender::Offloaded => Flow::Offloaded(to, self.switch_counters()?),
                            _ => Flow::Guest { state: Look::default(), asked: None },
                        }
                    }
                };
                receiver.accept().with_context(|| sender.name())?;
                flows.push(flow);
            }
            let traces = self.watch(group, &receivers, &mut flows);
            // Receivers first: they reset what still comes.
            drop(receivers);
            drop(flows);
            if let Some(sending) = sending {
                let sent = sending.join().map_err(|_| anyhow::anyhow!("a thread panicked"))??;
                // It always ends by the receiver's reset.
                ensure!(!sent.is_empty(), "the guest has not sent");
            }
            let settle_ms = f64::from(self.scenario.settle_s) * 1e3;
            let cell = self.cell.clone();
            Ok(Trial { cell, round, settle_ms, mss: PAYLOAD, traces: traces? })
        })
    }

    fn address(&self, receiver: &Receiver) -> Result<SocketAddr> {
        Ok(SocketAddr::new(self.far.address(Network::Floodway).parse()?, receiver.port()?))
    }

    /// Switches the port's offload and the guest's congestion control.
    fn prepare_guest(&self, sender: Sender) -> Result<()> {
        let congestion = known(&self.cell.congestion)?;
        let transmit = sender == Sender::Offloaded;
        let place = tcp::Place::Guest(self.guest);
        if transmit {
            let window = INITIAL_WINDOW.to_string();
            let words = [LOADER, "install", "--algorithm", congestion, "--initial-window", &window];
            self.guest.agent().exec(&words).context("the guest's congestion control")?;
        }
        let offload = Offload {
            transmit,
            mode: None,
            receive: false,
            buffer: None,
            budget: None,
            congestion: Some(congestion),
            initial_window: Some(INITIAL_WINDOW),
        };
        self.testbed.switch()?.set_offload(self.guest.name(), &offload)?;
        tcp::set_congestion_control(place, if transmit { OFFLOADED } else { congestion })
    }

    fn watch(
        &self,
        group: &[Sender],
        receivers: &[Receiver],
        flows: &mut [Flow],
    ) -> Result<Vec<Trace>> {
        let client = self.testbed.switch()?.client()?;
        let mut traces: Vec<Trace> =
            group.iter().map(|&sender| Trace { sender, looks: Vec::new() }).collect();
        let begin = counts(self.testbed.host())?;
        let start = Instant::now();
        let end = Duration::from_secs((self.scenario.settle_s + self.scenario.seconds).into());
        while start.elapsed() < end {
            let counts = counts(self.testbed.host())?;
            for ((receiver, flow), trace) in receivers.iter().zip(&mut *flows).zip(&mut traces) {
                let mut look = Look::default();
                match flow {
                    Flow::Linux(sender) => {
                        sender.look(&mut look)?;
                        let only = trace.sender == Sender::Linux;
                        look.timeouts = if only { counts[0] - begin[0] } else { 0 };
                        look.recoveries = if only { counts[1] - begin[1] } else { 0 };
                    }
                    Flow::Offloaded(to, first) => {
                        self.look_at_switch(&client, *to, first, &mut look)?;
                    }
                    Flow::Guest { state, asked } => {
                        if asked.is_none_or(|at| at.elapsed() >= ASK) {
                            let text = self.guest.agent().exec(&["ss", "-tinH"])?.stdout_text();
                            look_of_ss(&text, state);
                            *asked = Some(Instant::now());
                        }
                        look = *state;
                    }
                }
                look.at_ms = start.elapsed().as_secs_f64() * 1e3;
                look.bytes = receiver.bytes();
                trace.looks.push(look);
            }
            thread::sleep(LOOK);
        }
        Ok(traces)
    }

    fn look_at_switch(
        &self,
        client: &ControlClient,
        to: SocketAddr,
        first: &Look,
        look: &mut Look,
    ) -> Result<()> {
        let now = self.counters_by(client)?;
        look.retransmissions = now.retransmissions - first.retransmissions;
        look.timeouts = now.timeouts - first.timeouts;
        look.recoveries = now.recoveries - first.recoveries;
        let flows = client.flows(&FlowQuery::default())?.flows;
        let peer = to.to_string();
        if let Some(flow) = flows.iter().find(|flow| flow.peer == peer) {
            look.srtt_ms = flow.srtt_us.map_or(0.0, |us| us as f64 / 1e3);
            look.cwnd = f64::from(flow.cwnd) / f64::from(PAYLOAD);
        }
        Ok(())
    }

    fn switch_counters(&self) -> Result<Look> {
        self.counters_by(&self.testbed.switch()?.client()?)
    }

    /// What the switch has counted for the guest's port.
    fn counters_by(&self, client: &ControlClient) -> Result<Look> {
        let status = client.status()?;
        let port = status.ports.iter().find(|port| port.name == self.guest.name());
        let counters = port.map(|port| &port.offload.counters).context("no such port")?;
        let of = |name: &str| counters.get(name).copied().with_context(|| format!("no {name}"));
        Ok(Look {
            retransmissions: of("retransmitted")?,
            timeouts: of("timeouts")?,
            recoveries: of("fast_recoveries")?,
            ..Look::default()
        })
    }
}

fn known(congestion: &str) -> Result<&'static str> {
    ["reno", "cubic"]
        .into_iter()
        .find(|name| *name == congestion)
        .with_context(|| format!("congestion = {congestion:?}: reno or cubic"))
}

/// A transfer without end.
fn plan(address: SocketAddr) -> Plan {
    Plan {
        receivers: vec![To { address, flows: 1 }],
        bytes: ENDLESS,
        reply_bytes: 1,
        rounds: 1,
        back_to_back: false,
        pause_max_us: 0,
        seed: 1,
        first_id: 1,
        congestion_control: None,
        watch_acks: false,
        timeout_ms: 120_000,
    }
}
