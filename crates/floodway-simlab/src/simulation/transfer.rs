//! Timed transfers in virtual time: the twin of what [`floodway_experiment::transfer`] describes.
//!
//! # Theory of operation
//!
//! The world is a star: the machine with its VMs at one port of a switch, a bare machine at another for each
//! receiver (or sender), behind a link as long as its path. The first VM transfers; all VMs, or all others
//! ([`super::host::Load::in_measured_vm`]), carry the load, each from a phase of its own that the seed draws.
//!
//! Figures are throughputs, bytes by time, of rounds of flows, the median of the round's flows for each
//! receiver:
//!
//! | measure | from | to |
//! |---|---|---|
//! | `data-phase` of what a VM sends | the receiver's first byte | its last |
//! | `data-phase` of what a VM receives | the sender's connection stands | everything acknowledged |
//! | `whole` | the call that connects | the receiver's reply is with the sender |
//! | `aggregate` (several flows, not back to back) | first byte of any | last byte of any |
//!
//! A data phase is never counted shorter than its bytes take on the line.

use std::any::Any;
use std::time::Duration;

use anyhow::{Result, ensure};
use floodway_core::offload::FlowSummary;
use floodway_core::time::Instant;
use floodway_report::stats;
use floodway_sim::engine::Rng;
use floodway_sim::hooks::offload::SwitchOffload;
use floodway_sim::net::{Builder, Link, QueueConfig, SwitchConfig};
use floodway_sim::packet::Address;
use floodway_sim::traffic::{Transfer, Transfers, TransfersConfig};
use floodway_sim::world::{AppId, MachineId, World};
use serde::{Deserialize, Serialize};

use super::hook::{self, Halves};
use super::host::Host;
use super::measurement::Recorder;

/// Longest virtual time of a round before its run is given up: 100 MB take 25 minutes if a VM sends a packet per time slice.
const PATIENCE: Duration = Duration::from_secs(7200);
/// Bytes of headers in a full frame of 1538 on the wire that carries 1448 of payload.
const LINE_SHARE: f64 = 1448.0 / 1538.0;

/// A cell of a sweep in one variant, with everything that decides what comes out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Case {
    /// The machine.
    pub host: Host,
    /// The VM sends.
    pub outwards: bool,
    /// VMs on the core, the measured one among them.
    pub vms: u32,
    /// Share of each period that a VM is busy.
    pub load_percent: u32,
    /// Period of the load, in ms.
    pub period_ms: u64,
    /// Bytes of a transfer.
    pub bytes: u64,
    /// Buffer for reception of the VM's sockets, in bytes, if not the host's. Half of it is the first window.
    pub guest_receive_buffer: Option<u32>,
    /// Where transfers go to or come from.
    pub peers: Vec<Peer>,
    /// Rounds.
    pub rounds: u32,
    /// The flows of a round do not wait for each other.
    #[serde(default)]
    pub back_to_back: bool,
    /// The switch's offload; without it, it passes everything on.
    pub offload: Option<Halves>,
    /// Every so many ms, how much of the buffer each flow uses is written down.
    pub occupancy_ms: Option<u64>,
}

/// The other end of transfers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Peer {
    /// For the names of rows.
    pub name: String,
    /// Connections of a round.
    pub flows: u32,
    /// What its path adds to the round trip, in ms.
    pub rtt_ms: f64,
    /// Packets lost on its path, each way, in percent.
    pub loss_percent: f64,
    /// Rate of its link if not the network's, in Mbit/s.
    pub mbit: Option<u32>,
}

/// The world of a case.
pub(super) struct Stage {
    pub(super) world: World,
    pub(super) machine: MachineId,
    guest: Address,
    pub(super) app: AppId,
}

impl Case {
    /// Bytes that are transferred; small transfers count by what surrounds them.
    pub(super) fn effort(&self) -> u64 {
        let flows: u64 = self.peers.iter().map(|peer| u64::from(peer.flows)).sum();
        flows * u64::from(self.rounds) * self.bytes.max(50_000)
    }

    pub(super) fn execute(&self, seed: u64, to: &mut Recorder<'_>) -> Result<()> {
        ensure!(self.vms >= 1 && self.rounds >= 1, "vms and rounds must be at least 1");
        ensure!(!self.peers.is_empty() && self.period_ms >= 1, "peers and period_ms are needed");
        let mut stage = self.set_up(seed)?;
        self.play(&mut stage, to);
        self.tell(&stage, to);
        Ok(())
    }

    pub(super) fn set_up(&self, seed: u64) -> Result<Stage> {
        let mut world = World::new(self.network(seed));
        let machine = world.add_machine(
            0,
            self.host.machine(),
            hook::make(&self.host, self.offload.as_ref(), seed)?,
        );
        let period = Duration::from_millis(self.period_ms);
        let mut rng = Rng::new(seed, "load", 0);
        let mut vms = Vec::new();
        for n in 0..self.vms {
            let phase = Duration::from_nanos(rng.below(period.as_nanos() as u64));
            let loaded = n > 0 || self.host.load.in_measured_vm;
            let percent = if loaded { self.load_percent } else { 0 };
            vms.push(world.add_vm(machine, &self.host.vm(percent, period, phase)));
        }
        let guest = vms[0];
        let peers: Vec<_> = (1..).zip(&self.peers).map(|(host, _)| world.add_bare(host)).collect();
        let mut stacks = [self.host.stack()?; 2];
        if let Some(buffer) = self.guest_receive_buffer {
            let receive = &mut stacks[usize::from(!self.outwards)].receive;
            receive.initial = buffer / 2;
            receive.max = receive.max.max(buffer);
        }
        let to = match self.outwards {
            true => peers.iter().zip(&self.peers).map(|(&at, peer)| (at, peer.flows)).collect(),
            false => vec![(guest, self.peers[0].flows)],
        };
        let app = world.add_app(Transfers::new(TransfersConfig {
            from: if self.outwards { guest } else { peers[0] },
            to,
            bytes: self.bytes,
            rounds: self.rounds,
            back_to_back: self.back_to_back,
            // As in the real lab: up to two periods, so that a round starts at any phase of the load.
            gap: period * 2,
            stacks,
            seed,
        }));
        Ok(Stage { world, machine, guest, app })
    }

    fn network(&self, seed: u64) -> floodway_sim::net::Net {
        let mut builder = Builder::new(seed);
        let queue = QueueConfig::packets(self.host.network.switch_queue);
        let centre = builder.switch(SwitchConfig::new(queue));
        let quarter = self.host.rtt() / 4;
        let rate = self.host.network.rate_mbit * 1_000_000;
        let machine = builder.host(self.host.nic());
        builder.connect(machine, centre, Link::ethernet(rate, quarter));
        for peer in &self.peers {
            let rate = peer.mbit.map_or(rate, |mbit| u64::from(mbit) * 1_000_000);
            let delay = quarter + Duration::from_secs_f64(peer.rtt_ms / 2e3);
            let link = Link::ethernet(rate, delay).with_loss(peer.loss_percent / 100.0);
            let end = builder.host(self.host.nic());
            builder.connect(end, centre, link);
        }
        builder.build()
    }

    /// Runs until all rounds are over, or one hangs.
    pub(super) fn play(&self, stage: &mut Stage, to: &mut Recorder<'_>) {
        let step = Duration::from_millis(self.occupancy_ms.unwrap_or(100).max(1));
        let mut seen = (0, Instant::ZERO);
        loop {
            let now = stage.world.now();
            let Some(app) = stage.world.app::<Transfers>(stage.app) else { return };
            if app.complete().len() != seen.0 {
                seen = (app.complete().len(), now);
            }
            if app.is_done() || now.since(seen.1) > PATIENCE {
                return;
            }
            stage.world.run(now + step);
            if self.occupancy_ms.is_some() {
                self.note_occupancy(stage, to);
            }
        }
    }

    fn note_occupancy(&self, stage: &Stage, to: &mut Recorder<'_>) {
        let Some(engine) = offload(stage).and_then(|offload| offload.engine(0)) else { return };
        let (flows, _) = engine.flows(0, u32::MAX);
        let at = (stage.world.now().as_nanos() / 1_000_000).to_string();
        for (n, peer) in self.peers.iter().enumerate() {
            let own = flows.iter().filter(|flow| self.peer_of(flow, stage) == Some(n));
            let held: u32 = own.map(|flow| flow.held + flow.in_flight).sum();
            let of = [("receiver", peer.name.clone()), ("at_ms", at.clone())];
            to.add_of(&of, "occupancy", "KB", f64::from(held) / 1e3);
        }
    }

    /// Which peer a flow goes to: peers' addresses follow those of the VMs.
    fn peer_of(&self, flow: &FlowSummary, stage: &Stage) -> Option<usize> {
        let last = u32::from_be_bytes(flow.flow.dst.octets()[12..].try_into().ok()?) & 0x00ff_ffff;
        usize::try_from(last.checked_sub(stage.guest.0 + self.vms)?).ok()
    }

    fn tell(&self, stage: &Stage, to: &mut Recorder<'_>) {
        let Some(app) = stage.world.app::<Transfers>(stage.app) else { return };
        let flows: u32 = self.peers.iter().map(|peer| peer.flows).sum();
        for round in 0..self.rounds {
            let all = || app.complete().iter().filter(|t| t.round == round);
            if all().count() != flows as usize {
                continue;
            }
            for (n, peer) in (0..).zip(&self.peers) {
                let own: Vec<_> = all().filter(|t| t.receiver == n).copied().collect();
                self.tell_round(peer, &own, to);
            }
        }
        self.tell_health(stage, app, flows, to);
    }

    fn tell_round(&self, peer: &Peer, own: &[Transfer], to: &mut Recorder<'_>) {
        let of = [("receiver", peer.name.clone())];
        let mut say = |metric: &str, rates: &[f64]| {
            if let Some(rate) = stats::median(rates) {
                to.add_of(&of, metric, "Mbit/s", rate);
            }
        };
        let each = |span: &dyn Fn(&Transfer) -> Duration| -> Vec<f64> {
            own.iter().map(|t| self.rate(t.bytes, span(t))).collect()
        };
        say("data-phase", &each(&|t| self.data_phase(t)));
        say("whole", &each(&|t| t.replied.since(t.begun)));
        if own.len() > 1 && !self.back_to_back {
            let first = own.iter().map(|t| t.first).min().unwrap_or_default();
            let last = own.iter().map(|t| t.last).max().unwrap_or_default();
            let bytes = own.iter().map(|t| t.bytes).sum();
            say("aggregate", &[self.rate(bytes, last.since(first))]);
        }
    }

    fn data_phase(&self, t: &Transfer) -> Duration {
        match self.outwards {
            true => t.last.since(t.first),
            false => t.acknowledged.since(t.connected),
        }
    }

    /// Mbit/s, never more than the line carries.
    fn rate(&self, bytes: u64, span: Duration) -> f64 {
        let line = self.host.network.rate_mbit as f64 * LINE_SHARE;
        (bytes as f64 * 8.0 / 1e6 / span.as_secs_f64().max(1e-9)).min(line)
    }

    /// Whether the run was a healthy one.
    fn tell_health(&self, stage: &Stage, app: &Transfers, flows: u32, to: &mut Recorder<'_>) {
        let world = &stage.world;
        let stats = world.sender_stats(stage.guest);
        let missing = u64::from(flows) * u64::from(self.rounds) - app.complete().len() as u64;
        to.add("transfers failed", "transfers", missing as f64);
        to.add("guest retransmissions", "segments", stats.retransmissions as f64);
        to.add("guest recoveries", "events", stats.recoveries as f64);
        let counters = offload(stage).map(|offload| offload.counters(0)).unwrap_or_default();
        to.add("switch retransmissions", "segments", counters.retransmitted as f64);
        let now = world.now();
        let whole = now.since(Instant::ZERO).as_secs_f64();
        let share = |time: Duration| time.as_secs_f64() / whole * 100.0;
        let machine = world.machine(stage.machine);
        to.add("processor of the measured VM", "%", share(machine.vm_times(0, now).ran));
        let others = (1..self.vms).map(|vm| machine.vm_times(vm, now).ran).sum();
        to.add("processor of the other VMs", "%", share(others));
        to.add("processor of the driver domain", "%", share(machine.driver_times(now).ran));
        to.add("events", "events", world.events() as f64);
    }
}

pub(super) fn offload(stage: &Stage) -> Option<&SwitchOffload> {
    let hook: &dyn Any = stage.world.machine(stage.machine).hook();
    hook.downcast_ref()
}
