//! The simulated machine and what is on it: every parameter that a figure may depend on.
//!
//! # Theory of operation
//!
//! A file in `experiments/hosts/` describes a kind of machine and says of each parameter where it comes from. An
//! experiment names the file, and may change single parameters, by their dotted names (`processors.driver`); a sweep
//! does the same, one parameter at a time. So nothing that decides a figure is in the code.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use floodway_core::congestion::Algorithm;
use floodway_core::offload::BufferPolicy;
use floodway_core::rtt::RtoLimits;
use floodway_sim::cpu::{
    Busy, Credit, CreditConfig, Debit, Eevdf, EevdfConfig, LoadConfig, Pause, RoundRobin,
    Scheduler, VcpuSpec,
};
use floodway_sim::machine::{DriverConfig, Interrupts, MachineConfig, VmConfig};
use floodway_sim::net::{NicConfig, QueueConfig};
use floodway_sim::tcp::{Buffer, TcpConfig};
use serde::{Deserialize, Serialize};
use toml::{Table, Value};

/// A kind of machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Host {
    /// For the names of rows.
    pub name: String,
    /// Processors and who runs on them.
    pub processors: Processors,
    /// What keeps the VMs busy.
    pub load: Load,
    /// The driver domain.
    pub driver: Driver,
    /// How its network card gathers interrupts.
    #[serde(default)]
    pub card: Card,
    /// The VMs and their kernels.
    pub guest: Guest,
    /// The TCP of VMs and of their peers.
    pub tcp: Tcp,
    /// The path to the peers.
    pub network: Network,
    /// The switch's offload, when a variant has it.
    pub offload: Offload,
}

/// Processors. The VMs are on core 0.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Processors {
    /// Cores, at least 1.
    pub count: u32,
    /// Who decides.
    pub scheduler: SchedulerName,
    /// Slice of `xen-3.3`, `xen-4.2` and `round-robin`, in ms.
    pub slice_ms: u64,
    /// Least time that a vCPU runs before it can be preempted, in µs, with `xen-3.3` and `xen-4.2`.
    pub rate_limit_us: u64,
    /// A vCPU that is BOOSTed preempts another, with the same two: no version of Xen does that.
    #[serde(default)]
    pub boost_preempts_boost: bool,
    /// At a tick, a vCPU that waits preempts one that has a lower priority, with the same two: the code of Xen does not do that.
    #[serde(default)]
    pub tick_preempts: bool,
    /// Where the driver domain runs.
    pub driver: DriverPlace,
    /// Weight of the driver domain's vCPU; each VM has 256.
    pub driver_weight: u32,
    /// Cost of a change of vCPU, in µs.
    pub switch_cost_us: u64,
    /// Cost of going on after being preempted, on top, in µs.
    pub cache_cost_us: u64,
}

/// Schedulers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SchedulerName {
    /// Xen's credit scheduler; credits are sampled at ticks.
    #[serde(rename = "xen-3.3")]
    Xen33,
    /// Xen's credit scheduler; credits are counted exactly.
    #[serde(rename = "xen-4.2")]
    Xen42,
    /// Turns of a slice, and nobody is preempted.
    #[serde(rename = "round-robin")]
    RoundRobin,
    /// Linux's fair scheduler.
    #[serde(rename = "eevdf")]
    Eevdf,
}

/// Where the driver domain's vCPU may run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DriverPlace {
    /// On the core of the VMs.
    Shared,
    /// On the last core, alone.
    Apart,
    /// Anywhere.
    Free,
}

/// How the load generator counts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Load {
    /// What its busy time is a time of.
    pub busy: BusyBy,
    /// How long it pauses.
    pub pause: PauseFor,
    /// The VM that is measured has the load, too.
    pub in_measured_vm: bool,
    /// Pauses last longer by a random time from 0 to this, in µs: timers come late.
    #[serde(default)]
    pub late_us: u64,
}

/// What a busy time is a time of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BusyBy {
    /// The processor: work is done.
    Processor,
    /// The wall's clock: a loop looks at the time.
    Wall,
}

/// How long a load pauses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PauseFor {
    /// What is left of the period; nothing if the load is late.
    Period,
    /// The idle share of the period, always.
    Fixed,
}

/// The driver domain.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Driver {
    /// Processor time for a packet from a VM, in ns.
    pub tx_cost_ns: u64,
    /// Processor time for a packet to a VM, in ns.
    pub rx_cost_ns: u64,
    /// Descriptors of the card's RX ring.
    pub rx_slots: u32,
    /// Packets that may wait for a VM's buffers.
    pub backlog: u32,
    /// Packets after which a batch ends.
    pub batch: u32,
}

/// How a network card gathers interrupts. When absent, each packet that comes while the driver domain does not poll interrupts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Card {
    /// From the first packet that waits until the interrupt, in µs.
    pub rx_delay_us: u64,
    /// Packets that interrupt before that; 0: any number waits.
    pub rx_frames: u32,
    /// Least time between interrupts, in µs; 0: none.
    pub gap_us: u64,
    /// From the first packet sent until the interrupt for that, in µs; 0: none.
    pub tx_delay_us: u64,
}

/// A VM's kernel.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Guest {
    /// Slots of each ring.
    pub ring_slots: u32,
    /// Packets queued in front of the TX ring.
    pub queue: u32,
    /// Processor time for sending a packet, in ns.
    pub tx_cost_ns: u64,
    /// Processor time for receiving a packet, in ns.
    pub rx_cost_ns: u64,
    /// Processor time for 1000 bytes, sent or received, on top, in ns.
    #[serde(default)]
    pub copy_cost_ns: u64,
    /// Processor time of a system call or timer, in ns.
    pub call_cost_ns: u64,
    /// From an event of the driver domain until a VM that runs sees it, in µs.
    #[serde(default)]
    pub interrupt_us: u64,
    /// An event that comes while a VM runs makes it give its core to whoever waits.
    #[serde(default)]
    pub interrupt_yields: bool,
    /// Period of its timer tick, in ms, if a tick also makes it give its core away; 0 if ticks cost nothing.
    #[serde(default)]
    pub tick_ms: u64,
}

/// TCP.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tcp {
    /// Congestion control, of guests and of the switch for them.
    pub congestion: String,
    /// In segments.
    pub initial_window: u8,
    /// Segments by which one ACK may widen the window of a guest or peer in slow start; 0: as many as it acknowledges.
    #[serde(default)]
    pub slow_start_limit: u32,
    /// HyStart++.
    pub hystart: bool,
    /// SACK.
    pub sack: bool,
    /// Lost retransmissions are found by time (RACK, Linux since 4.4), not by the timer only.
    #[serde(default)]
    pub rack: bool,
    /// Timestamps.
    pub timestamps: bool,
    /// Longest delay of an ACK, in ms.
    pub delayed_ack_ms: u64,
    /// Segments at the start that are acknowledged one by one.
    pub quick_acks: u32,
    /// Smallest retransmission timeout, in ms.
    pub min_rto_ms: u64,
    /// First timeout of a SYN, in ms.
    pub syn_rto_ms: u64,
    /// Receive window in bytes: at the start, and at most.
    pub receive_buffer: [u32; 2],
    /// Send buffer in bytes: at the start, and at most.
    pub send_buffer: [u32; 2],
    /// Largest GSO packet in bytes; 0 for none.
    pub gso_max: u32,
    /// GSO packets hold a millisecond of the rate, not as much as fits (Linux since 3.12).
    #[serde(default)]
    pub gso_autosize: bool,
    /// Bytes of a connection in the queues of its own host (TCP small queues); 0: any number.
    #[serde(default)]
    pub limit_output_bytes: u32,
    /// A timeout does not repeat what queues of the own host still hold (Linux since 3.15).
    #[serde(default)]
    pub skip_queued_rtx: bool,
}

/// The local network: one switch between the machine and each peer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Network {
    /// Rate of every link, in Mbit/s.
    pub rate_mbit: u64,
    /// Round trip of the local network without transmission times, in µs.
    pub rtt_us: u64,
    /// Descriptors of a card's TX ring.
    pub nic_ring: u32,
    /// Packets queued in front of a card.
    pub nic_queue: u32,
    /// Packets queued at a port of the switch.
    pub switch_queue: u32,
}

/// The switch's offload.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Offload {
    /// Budget of a VM, in segments.
    pub segments: u32,
    /// Bytes of a segment.
    pub segment_bytes: u32,
    /// Buffer policy of variants that do not name one.
    pub policy: String,
    /// Smallest retransmission timeout towards the network, in ms.
    pub min_rto_ms: u64,
    /// Processor time for a packet from a VM, in ns.
    pub tx_cost_ns: u64,
    /// Processor time for a packet to a VM, in ns.
    pub rx_cost_ns: u64,
}

/// Reads a host's file as it is, for changes.
///
/// # Errors
/// When it cannot be read or is no TOML.
pub fn load(path: &Path) -> Result<Table> {
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("cannot read host {}", path.display()))?;
    let table: Table = text.parse().with_context(|| format!("host {}", path.display()))?;
    Host::from_table(&table).with_context(|| format!("host {}", path.display()))?;
    Ok(table)
}

/// Sets the parameter of a dotted name.
///
/// # Errors
/// When there is no such parameter: the error names it.
pub fn set(table: &mut Table, name: &str, value: &Value) -> Result<()> {
    let (tables, last) = name.rsplit_once('.').unwrap_or(("", name));
    let mut place = Some(table);
    for part in tables.split('.').filter(|part| !part.is_empty()) {
        place = place.and_then(|table| table.get_mut(part)).and_then(Value::as_table_mut);
    }
    let Some(old) = place.and_then(|table| table.get_mut(last)) else {
        bail!("{name:?}: there is no such parameter")
    };
    *old = value.clone();
    Ok(())
}

const US: fn(u64) -> Duration = Duration::from_micros;
const MS: fn(u64) -> Duration = Duration::from_millis;
const NS: fn(u64) -> Duration = Duration::from_nanos;

impl Host {
    /// A host from its file's content.
    ///
    /// # Errors
    /// When a parameter is missing, unknown or senseless; the error names it.
    pub fn from_table(table: &Table) -> Result<Self> {
        let host: Self = Value::Table(table.clone()).try_into()?;
        host.algorithm()?;
        host.policy()?;
        if host.processors.count == 0 || host.network.rate_mbit == 0 {
            bail!("processors.count and network.rate_mbit must be at least 1");
        }
        Ok(host)
    }

    /// # Errors
    /// When nobody has heard of it.
    pub(super) fn algorithm(&self) -> Result<Algorithm> {
        self.tcp.congestion.parse().context("tcp.congestion")
    }

    /// # Errors
    /// When nobody has heard of it.
    pub(super) fn policy(&self) -> Result<BufferPolicy> {
        self.offload.policy.parse().context("offload.policy")
    }

    pub(super) fn machine(&self) -> MachineConfig {
        let p = &self.processors;
        let driver = match p.driver {
            DriverPlace::Shared => VcpuSpec::pinned(0, p.driver_weight),
            DriverPlace::Apart => VcpuSpec::pinned(p.count - 1, p.driver_weight),
            DriverPlace::Free => VcpuSpec::free(p.driver_weight),
        };
        MachineConfig {
            pcpus: p.count,
            scheduler: self.scheduler(),
            switch_cost: US(p.switch_cost_us),
            cache_cost: US(p.cache_cost_us),
            driver: DriverConfig {
                vcpu: driver,
                tx_cost: NS(self.driver.tx_cost_ns),
                rx_cost: NS(self.driver.rx_cost_ns),
                rx_slots: self.driver.rx_slots,
                interrupts: Interrupts {
                    delay: US(self.card.rx_delay_us),
                    frames: self.card.rx_frames,
                    gap: US(self.card.gap_us),
                    tx_delay: US(self.card.tx_delay_us),
                },
                backlog: self.driver.backlog,
                batch: self.driver.batch,
            },
        }
    }

    fn scheduler(&self) -> Box<dyn Scheduler> {
        let p = &self.processors;
        let (count, slice, rate_limit) = (p.count, MS(p.slice_ms), US(p.rate_limit_us));
        let credit = |debit| {
            let config = CreditConfig {
                slice,
                rate_limit,
                debit,
                boost_preempts_boost: p.boost_preempts_boost,
                tick_preempts: p.tick_preempts,
                ..CreditConfig::xen_4_2()
            };
            Box::new(Credit::new(count, config))
        };
        match self.processors.scheduler {
            SchedulerName::Xen33 => credit(Debit::Sampled),
            SchedulerName::Xen42 => credit(Debit::Exact),
            SchedulerName::RoundRobin => Box::new(RoundRobin::new(count, slice)),
            SchedulerName::Eevdf => Box::new(Eevdf::new(count, EevdfConfig::default())),
        }
    }

    /// A VM on core 0. Its load is busy for `load_percent` of each `period` and begins after `phase`.
    pub(super) fn vm(&self, load_percent: u32, period: Duration, phase: Duration) -> VmConfig {
        let busy = period * load_percent / 100;
        let load = LoadConfig {
            busy: match self.load.busy {
                BusyBy::Processor => Busy::Processor(busy),
                BusyBy::Wall => Busy::Wall(busy),
            },
            pause: match self.load.pause {
                PauseFor::Period => Pause::Period(period),
                PauseFor::Fixed => Pause::Fixed(period.saturating_sub(busy)),
            },
            phase,
            late: US(self.load.late_us),
            operations: 1,
        };
        let load = (load_percent > 0).then_some(load);
        // Guests boot at different times: the tick's phase is as random as the load's.
        let tick = self.tick().as_nanos().max(1);
        self.guest_on(0, load, Duration::from_nanos((phase.as_nanos() % tick) as u64))
    }

    /// Period of guests' ticks, if ticks cost them time slices; else zero.
    pub(super) fn tick(&self) -> Duration {
        MS(self.guest.tick_ms)
    }

    /// A VM on a core.
    pub(super) fn guest_on(
        &self,
        core: u32,
        load: Option<LoadConfig>,
        tick_phase: Duration,
    ) -> VmConfig {
        let g = &self.guest;
        VmConfig {
            vcpu: VcpuSpec::pinned(core, 256),
            ring_slots: g.ring_slots,
            queue: g.queue,
            tx_cost: NS(g.tx_cost_ns),
            rx_cost: NS(g.rx_cost_ns),
            copy_cost: NS(g.copy_cost_ns),
            call_cost: NS(g.call_cost_ns),
            interrupt_delay: US(g.interrupt_us),
            interrupt_yields: g.interrupt_yields,
            tick: self.tick(),
            tick_phase,
            load,
        }
    }

    pub(super) fn stack(&self) -> Result<TcpConfig> {
        self.tcp.stack()
    }

    pub(super) fn nic(&self) -> NicConfig {
        NicConfig {
            ring_bytes: u64::MAX,
            ring_slots: self.network.nic_ring,
            queue: QueueConfig::packets(self.network.nic_queue),
        }
    }

    /// Rate of the local network's links, in bit/s.
    pub(super) const fn network_rate(&self) -> u64 {
        self.network.rate_mbit * 1_000_000
    }

    pub(super) fn rtt(&self) -> Duration {
        US(self.network.rtt_us)
    }
}

impl Tcp {
    /// # Errors
    /// When nobody has heard of the congestion control.
    pub(super) fn stack(&self) -> Result<TcpConfig> {
        Ok(TcpConfig {
            algorithm: self.congestion.parse().context("tcp.congestion")?,
            hystart: self.hystart,
            initial_window: self.initial_window.into(),
            slow_start_limit: self.slow_start_limit,
            sack: self.sack,
            rack: self.rack,
            timestamps: self.timestamps,
            rto: RtoLimits { min: MS(self.min_rto_ms), ..RtoLimits::LINUX },
            syn_rto: MS(self.syn_rto_ms),
            delayed_ack: MS(self.delayed_ack_ms),
            quick_acks: self.quick_acks,
            receive: Buffer { initial: self.receive_buffer[0], max: self.receive_buffer[1] },
            send: Buffer { initial: self.send_buffer[0], max: self.send_buffer[1] },
            gso_max: self.gso_max,
            gso_autosize: self.gso_autosize,
            limit_output: self.limit_output_bytes,
            skip_queued_rtx: self.skip_queued_rtx,
            ..TcpConfig::linux()
        })
    }
}
