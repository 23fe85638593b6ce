//! Friendliness in virtual time: the twin of what [`floodway_experiment::friendliness`] describes.
//!
//! # Theory of operation
//! ```text
//! machine with the guest ----\
//!                             switch - bottleneck: rate, finite queue, random loss, delay - receiver
//! bare hosts, Linux's TCP ---/
//! ```
//! Access links are ten times as fast as the bottleneck, or `network.rate_mbit` without one, and have a jitter of one packet time of
//! the bottleneck, which keeps flows from falling into step with the drops of the queue (see [`floodway_sim::net::Link`]).
//!
//! The bare hosts have the guest's stack ([`floodway_sim::tcp`]): RFC 6675 and 6937 with Linux's parameters, without RACK and tail loss probe. Whether it
//! shares and responds to loss as it should is measured by the same experiments: `second-linux` beside `linux`, and `linux` against the
//! response function. Its congestion control is `floodway_core`'s, as the offload's is, so an error there would not show here, but on real VMs.
//!
//! A run is one trial; its looks become measurements ([`Trial`] is made of them again for the report).

use std::any::Any;
use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use floodway_core::time::Instant;
use floodway_experiment::friendliness::{Cell, LOOK, Look, Sender, Trace, Trial};
use floodway_sim::flow::Side;
use floodway_sim::hooks::offload::SwitchOffload;
use floodway_sim::net::{Builder, Link, Net, Node, QueueConfig, SwitchConfig};
use floodway_sim::packet::Address;
use floodway_sim::traffic::{Bulk, BulkFlow};
use floodway_sim::world::{AppId, MachineId, World};
use serde::{Deserialize, Serialize};

use super::hook::{self, Halves};
use super::host::Host;
use super::measurement::{Measurement, Parameters, Recorder};

const MBIT: u64 = 1_000_000;
/// Bytes on the wire of a full packet.
const PACKET: u32 = 1500;
/// Bytes of a full segment's payload: an MSS of 1460 less the timestamps.
const PAYLOAD: u32 = 1448;
/// Each sender of a group starts this much later than the one before.
const STAGGER: Duration = Duration::from_millis(50);

/// A trial.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Case {
    /// The guest's machine, and all stacks.
    pub(super) host: Host,
    pub(super) cell: Cell,
    pub(super) group: Vec<Sender>,
    pub(super) settle_s: u32,
    pub(super) seconds: u32,
}

/// Names and units of what a look has, besides its time.
const METRICS: [(&str, &str); 6] = [
    ("bytes", "bytes"),
    ("srtt", "ms"),
    ("cwnd", "segments"),
    ("retransmissions", "segments"),
    ("timeouts", "timeouts"),
    ("recoveries", "recoveries"),
];

fn values(look: &Look) -> [f64; METRICS.len()] {
    [
        look.bytes as f64,
        look.srtt_ms,
        look.cwnd,
        look.retransmissions as f64,
        look.timeouts as f64,
        look.recoveries as f64,
    ]
}

/// The world of a trial.
struct Stage {
    world: World,
    machine: Option<MachineId>,
    app: AppId,
}

impl Case {
    /// How long it takes, by no unit.
    pub(super) fn effort(&self) -> u64 {
        let mbit = self.cell.bottleneck.as_ref().map_or(20, |(mbit, _)| *mbit);
        u64::from(self.settle_s + self.seconds) * u64::from(mbit)
    }

    pub(super) fn execute(&self, seed: u64, to: &mut Recorder<'_>) -> Result<()> {
        let mut stage = self.set_up(seed)?;
        let end = Duration::from_secs((self.settle_s + self.seconds).into());
        let mut at = LOOK;
        while at <= end {
            stage.world.run(Instant::ZERO + at);
            for (n, sender) in self.group.iter().enumerate() {
                let look = look(&stage, n, *sender, at);
                let of = [("sender", n.to_string()), ("at_ms", format!("{:09.0}", look.at_ms))];
                for ((metric, unit), value) in METRICS.into_iter().zip(values(&look)) {
                    to.add_of(&of, metric, unit, value);
                }
            }
            at += LOOK;
        }
        Ok(())
    }

    fn set_up(&self, seed: u64) -> Result<Stage> {
        let guests = self.group.iter().filter(|sender| sender.is_guest()).count();
        ensure!(guests <= 1, "a group has one guest at most");
        let mut world = World::new(self.network(seed));
        let receiver = world.add_bare(0);
        let (mut machine, mut from) = (None, Vec::new());
        for (host, &sender) in (1..).zip(&self.group) {
            from.push(if sender.is_guest() {
                let (id, address) = self.add_guest(&mut world, host, sender, seed)?;
                machine = Some(id);
                address
            } else {
                world.add_bare(host)
            });
        }
        let stack = self.host.stack()?;
        let flows = (0..).zip(from).map(|(n, from)| BulkFlow {
            from,
            to: receiver,
            bytes: None,
            start: STAGGER * n,
            stack,
        });
        let app = world.add_app(Bulk::new(flows.collect()));
        Ok(Stage { world, machine, app })
    }

    fn add_guest(
        &self,
        world: &mut World,
        host: u32,
        sender: Sender,
        seed: u64,
    ) -> Result<(MachineId, Address)> {
        let (transmit, receive, policy, early_ack) = (true, false, None, false);
        let offloaded = Halves { transmit, receive, policy, early_ack };
        let halves = (sender == Sender::Offloaded).then_some(&offloaded);
        let hook = hook::make(&self.host, halves, seed)?;
        let machine = world.add_machine(host, self.host.machine(), hook);
        let idle = self.host.vm(0, Duration::from_secs(1), Duration::ZERO);
        Ok((machine, world.add_vm(machine, &idle)))
    }

    fn network(&self, seed: u64) -> Net {
        let mut builder = Builder::new(seed);
        let local = self.host.network_rate();
        let rate = self.cell.bottleneck.as_ref().map_or(local, |(mbit, _)| u64::from(*mbit) * MBIT);
        let queue = self
            .cell
            .queue_bytes()
            .map_or(QueueConfig::packets(u32::MAX), |bytes| QueueConfig::bytes(bytes.into()));
        let centre = builder.switch(SwitchConfig::new(queue));
        let half = Duration::from_secs_f64(self.cell.rtt_ms / 2e3);
        let path = Link::ethernet(rate, half);
        let receiver = builder.host(self.host.nic());
        builder.connect(receiver, centre, path);
        let jitter = path.transmission(PACKET, 1);
        for _ in &self.group {
            let access = Link::ethernet((rate * 10).max(local), Duration::ZERO);
            let host = builder.host(self.host.nic());
            builder.connect(host, centre, access.with_jitter(jitter));
        }
        let mut net = builder.build();
        // Data is lost; an ACK is not, for it makes no difference to the response function.
        let towards = net.ports_between(Node::Switch(0), receiver).next();
        if let Some(port) = towards {
            net.port_mut(port).link_mut().loss = self.cell.loss_percent / 100.0;
        }
        net
    }

    /// The trial that the measurements of a run with this seed and these parameters are of.
    pub(super) fn trial(
        &self,
        round: u32,
        (seed, parameters): (u64, &Parameters),
        all: &[Measurement],
    ) -> Result<Trial> {
        let own = |m: &&Measurement| {
            m.seed == seed && parameters.iter().all(|(k, v)| m.parameters.get(k) == Some(v))
        };
        let mut looks: BTreeMap<(usize, &str), [f64; METRICS.len()]> = BTreeMap::new();
        for m in all.iter().filter(own) {
            let sender = m.parameters.get("sender").and_then(|n| n.parse().ok());
            let (Some(sender), Some(at)) = (sender, m.parameters.get("at_ms")) else { continue };
            if let Some(n) = METRICS.iter().position(|(name, _)| *name == m.metric) {
                looks.entry((sender, at)).or_default()[n] = m.value;
            }
        }
        ensure!(!looks.is_empty(), "{}: nothing was measured", self.cell.name());
        let mut traces: Vec<Trace> =
            self.group.iter().map(|&sender| Trace { sender, looks: Vec::new() }).collect();
        for ((sender, at), [bytes, srtt_ms, cwnd, again, timeouts, recoveries]) in looks {
            traces.get_mut(sender).context("a sender too many")?.looks.push(Look {
                at_ms: at.parse()?,
                bytes: bytes as u64,
                srtt_ms,
                cwnd,
                retransmissions: again as u64,
                timeouts: timeouts as u64,
                recoveries: recoveries as u64,
            });
        }
        let settle_ms = f64::from(self.settle_s) * 1e3;
        Ok(Trial { cell: self.cell.clone(), round, settle_ms, mss: PAYLOAD, traces })
    }
}

/// The state of the `n`-th sender.
fn look(stage: &Stage, n: usize, sender: Sender, at: Duration) -> Look {
    let mut look = Look { at_ms: at.as_secs_f64() * 1e3, ..Look::default() };
    let flow = stage.world.app::<Bulk>(stage.app).and_then(|app| app.flow(n));
    let Some(flow) = flow.and_then(|flow| stage.world.flows().get(flow)) else { return look };
    if let Some(receiver) = &flow.end(Side::Server).connection {
        look.bytes = receiver.receiver().delivered();
    }
    if sender == Sender::Offloaded {
        add_switch(stage, &mut look);
    } else if let Some(connection) = &flow.end(Side::Client).connection {
        let sender = connection.sender();
        let stats = sender.stats();
        look.srtt_ms = sender.srtt().map_or(0.0, |srtt| srtt.as_secs_f64() * 1e3);
        look.cwnd = f64::from(sender.window().cwnd) / f64::from(PAYLOAD);
        look.retransmissions = stats.retransmissions;
        (look.timeouts, look.recoveries) = (stats.timeouts, stats.recoveries);
    }
    look
}

/// What the switch knows of the guest's flow.
fn add_switch(stage: &Stage, look: &mut Look) {
    let hook = stage.machine.map(|machine| stage.world.machine(machine).hook());
    let offload = hook.and_then(|hook| {
        let hook: &dyn Any = hook;
        hook.downcast_ref::<SwitchOffload>()
    });
    let Some(offload) = offload else { return };
    let counters = offload.counters(0);
    look.retransmissions = counters.retransmitted;
    (look.timeouts, look.recoveries) = (counters.timeouts, counters.fast_recoveries);
    let flows = offload.engine(0).map(|engine| engine.flows(0, 1).0).unwrap_or_default();
    if let Some(flow) = flows.first() {
        look.srtt_ms = flow.srtt.map_or(0.0, |srtt| srtt.as_secs_f64() * 1e3);
        look.cwnd = f64::from(flow.cwnd) / f64::from(PAYLOAD);
    }
}

#[cfg(test)]
mod tests {
    use toml::Table;

    use super::*;
    use crate::simulation::{Run, Work, host};

    const HOST: &str = include_str!("../../../../experiments/hosts/lab-today.toml");

    fn case(group: &[Sender], congestion: &str, bottleneck: Option<(u32, f64)>, loss: f64) -> Case {
        let mut host: Table = HOST.parse().unwrap();
        host::set(&mut host, "tcp.congestion", &congestion.into()).unwrap();
        let queue = |bdp| floodway_experiment::friendliness::Queue { name: "queue".into(), bdp };
        Case {
            host: Host::from_table(&host).unwrap(),
            cell: Cell {
                congestion: congestion.into(),
                rtt_ms: 20.0,
                loss_percent: loss,
                bottleneck: bottleneck.map(|(mbit, bdp)| (mbit, queue(bdp))),
            },
            group: group.to_vec(),
            settle_s: 10,
            seconds: 40,
        }
    }

    fn trial(case: &Case, seed: u64) -> Trial {
        let run = Run {
            experiment: "t".into(),
            parameters: [("cell".to_owned(), case.cell.name())].into(),
            seed,
            work: Work::Friendliness(Box::new(case.clone())),
        };
        let all = run.execute().unwrap();
        case.trial(0, (seed, &run.parameters), &all).unwrap()
    }

    #[test]
    fn the_same_seed_gives_the_same_trial_and_another_does_not() {
        let case = case(&[Sender::Offloaded, Sender::Linux], "reno", Some((10, 1.0)), 0.0);
        assert_eq!(trial(&case, 1), trial(&case, 1));
        assert_ne!(trial(&case, 1), trial(&case, 2));
    }

    #[test]
    fn two_simulated_linux_senders_share_a_bottleneck() {
        for congestion in ["reno", "cubic"] {
            let pair = [Sender::SecondLinux, Sender::Linux];
            let trial = trial(&case(&pair, congestion, Some((10, 1.0)), 0.0), 1);
            let [a, b] = pair.map(|sender| trial.rate(sender).unwrap());
            assert!((0.8..1.25).contains(&(a / b)), "{congestion}: {a} {b}");
            // Of 10 Mbit/s, headers take 6 %.
            assert!((9.2..9.5).contains(&(a + b)), "{congestion}: {a} {b}");
        }
    }

    #[test]
    fn a_group_of_two_guests_is_refused() {
        let two = case(&[Sender::Offloaded, Sender::Guest], "reno", None, 1.0);
        assert!(two.set_up(1).is_err());
    }
}
