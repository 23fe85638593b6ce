//! Samples in, rows out.
//!
//! # Theory of operation
//! The model has no clock and asks nobody: it is told a [`Sample`] at a time and makes rates of the difference of two. Their time is the switch's own
//! uptime, so that a slow answer makes no rate wrong.
//!
//! A counter belongs to one life of a port in one life of the switch. Another process or an uptime that went back is another switch, and everything begins
//! anew. A port whose counters went back was removed and added in between: its rates begin anew. Where there is no difference yet there is no rate, which
//! is not a rate of zero.
//!
//! **Delay.** The time that a frame waits for the guest's buffers follows from how many wait and how many leave in a second (Little's law); it is measured where
//! nothing has to be written down for each frame. While frames wait and none leaves, they have waited at least since the last one left.

use std::collections::HashMap;
use std::time::Duration;

use floodway_switch::api::activity::{
    Activity, OffloadActivity, PortActivity, TrafficActivity, UplinkActivity,
};
use floodway_switch::api::status::{Drops, PortState};
use serde::Serialize;

use super::history::History;
use super::sample::{Flows, Sample};
use super::wait::{Load, ThreadTimes};

/// A port as it is shown. Rates are for the time between two looks, and none before there were two.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Row {
    /// The port.
    pub name: String,
    /// Index of the worker that serves it.
    pub worker: usize,
    /// Where it is in its life.
    pub state: PortState,
    /// Its last front-end was cut off.
    pub quarantined: bool,
    /// Process of the front-end.
    pub front_end_pid: Option<i32>,
    /// Bits a second from the guest.
    pub tx_bps: Option<f64>,
    /// Bits a second to the guest.
    pub rx_bps: Option<f64>,
    /// Frames a second from the guest.
    pub tx_pps: Option<f64>,
    /// Frames a second to the guest.
    pub rx_pps: Option<f64>,
    /// Bytes of memory that frames stored by the offload take: held, retained or kept.
    pub stored_bytes: u64,
    /// Bytes acknowledged for the guest and not by it yet.
    pub kept_bytes: u64,
    /// Ranges a second that the switch has sent again in the guest's place.
    pub repairs_per_s: Option<f64>,
    /// Seconds that a frame waits for the guest's buffers.
    pub delay_s: Option<f64>,
    /// Frames a second dropped, both ways.
    pub drops_per_s: Option<f64>,
    /// Share of its worker's work in the last second, 0 to 1.
    pub work_share: f64,
    /// vCPU threads that waited for a CPU, on average; none if the VMM's threads cannot be seen.
    pub vcpu_wait: Option<f64>,
    /// vCPU threads that ran, on average.
    pub vcpu_run: Option<f64>,
    /// Frames a second that the guest neither sent nor received because the switch acted for it.
    pub saved_per_s: Option<f64>,
    /// Frames dropped a second by direction and reason; only what was dropped.
    pub drops: Vec<DropRate>,
    /// Settings and connections of the offload.
    pub offload: OffloadActivity,
}

impl Row {
    /// Bits a second, both ways.
    #[must_use]
    pub fn bps(&self) -> Option<f64> {
        Some(self.tx_bps? + self.rx_bps?)
    }
}

/// Frames that are dropped for one reason.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct DropRate {
    /// `rx` or `tx`, as in the status.
    pub direction: &'static str,
    /// The reason's name.
    pub reason: String,
    /// Frames a second.
    pub per_s: f64,
}

/// What goes through an uplink or all ports.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Total {
    /// The uplink; empty for all ports.
    pub name: String,
    /// Bits a second in, of ports to guests.
    pub rx_bps: Option<f64>,
    /// Bits a second out, of ports from guests.
    pub tx_bps: Option<f64>,
    /// Frames a second in, and out.
    pub rx_pps: Option<f64>,
    /// See above.
    pub tx_pps: Option<f64>,
    /// Frames dropped a second.
    pub drops_per_s: Option<f64>,
    /// Frames of an uplink dropped a second by direction and reason, the most first; only what was dropped.
    pub drops: Vec<DropRate>,
    /// Share of its worker's work in the last second, 0 to 1; of ports, nothing.
    pub work_share: f64,
}

/// A worker as it is shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct WorkerRow {
    /// Position in the configuration, from 0.
    pub index: usize,
    /// The core that it is pinned to.
    pub core: Option<usize>,
    /// Share of the time in which it was not asleep.
    pub awake: Option<f64>,
    /// Share of its rounds that found something to do.
    pub busy: Option<f64>,
}

/// The last minute of a port.
#[derive(Clone, Debug, Default)]
pub struct PortHistory {
    /// Bits a second, both ways.
    pub bps: History,
    /// Frames dropped a second.
    pub drops: History,
    /// Seconds that a frame waits for the guest's buffers.
    pub delay: History,
}

/// What is known of a port beside its last counters.
#[derive(Clone, Debug, Default)]
struct Known {
    history: PortHistory,
    /// Uptime at which frames to the guest were last seen to leave, while others wait.
    last_left: Option<f64>,
}

/// See the module's theory of operation.
#[derive(Debug, Default)]
pub struct Model {
    last: Option<Sample>,
    rows: Vec<Row>,
    uplinks: Vec<Total>,
    workers: Vec<WorkerRow>,
    known: HashMap<String, Known>,
    restarts: u64,
}

impl Model {
    /// Takes a sample in.
    pub fn take(&mut self, sample: Sample) {
        let mut before = self.last.take();
        if before.as_ref().is_some_and(|before| is_another(before, &sample)) {
            before = None;
            self.known.clear();
            self.restarts += 1;
        }
        let step = Step::new(before.as_ref(), &sample);
        let now = &sample.activity;
        self.rows = now.ports.iter().map(|port| step.row(port, &mut self.known)).collect();
        self.uplinks = now.uplinks.iter().map(|uplink| step.uplink(uplink)).collect();
        self.workers = step.workers();
        if self.known.len() > self.rows.len() {
            let names: std::collections::HashSet<_> =
                self.rows.iter().map(|row| &row.name).collect();
            self.known.retain(|name, _| names.contains(name));
        }
        self.last = Some(sample);
    }

    /// Ports, in the order of the configuration.
    #[must_use]
    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// Uplinks, in the order of the configuration.
    #[must_use]
    pub fn uplinks(&self) -> &[Total] {
        &self.uplinks
    }

    /// Workers, in the order of the configuration.
    #[must_use]
    pub fn workers(&self) -> &[WorkerRow] {
        &self.workers
    }

    /// The last sample's document; none before the first.
    #[must_use]
    pub fn activity(&self) -> Option<&Activity> {
        self.last.as_ref().map(|sample| &sample.activity)
    }

    /// Connections of `port`, if the last sample has them.
    #[must_use]
    pub fn flows(&self, port: &str) -> Option<&Flows> {
        self.last.as_ref()?.flows.as_ref().filter(|flows| flows.port == port)
    }

    /// The last minute of `port`; none if there is no such port.
    #[must_use]
    pub fn history(&self, port: &str) -> Option<&PortHistory> {
        self.known.get(port).map(|known| &known.history)
    }

    /// Times that another switch answered than before.
    #[must_use]
    pub fn restarts(&self) -> u64 {
        self.restarts
    }

    /// All ports together.
    #[must_use]
    pub fn total(&self) -> Total {
        let sum = |value: fn(&Row) -> Option<f64>| {
            let known: Vec<f64> = self.rows.iter().filter_map(value).collect();
            (!known.is_empty()).then(|| known.iter().sum())
        };
        Total {
            rx_bps: sum(|row| row.rx_bps),
            tx_bps: sum(|row| row.tx_bps),
            drops_per_s: sum(|row| row.drops_per_s),
            ..Total::default()
        }
    }
}

/// Another switch answers than before.
fn is_another(before: &Sample, now: &Sample) -> bool {
    let (before, now) = (&before.activity.switch, &now.activity.switch);
    before.pid != now.pid || now.uptime_s < before.uptime_s
}

/// From one sample to the next.
struct Step<'a> {
    before: Option<&'a Sample>,
    now: &'a Sample,
    ports: HashMap<&'a str, &'a PortActivity>,
    /// Seconds between the two; none if there are not two, or no time has passed.
    seconds: Option<f64>,
}

impl<'a> Step<'a> {
    fn new(before: Option<&'a Sample>, now: &'a Sample) -> Self {
        let uptime = |sample: &Sample| sample.activity.switch.uptime_s;
        let seconds = before.map(|before| uptime(now) - uptime(before)).filter(|s| *s > 0.0);
        let ports = before.map_or(&[][..], |before| &before.activity.ports);
        let ports = ports.iter().map(|port| (&*port.name, port)).collect();
        Self { before, now, ports, seconds }
    }

    /// What a counter grew by in a second; none if it went back.
    fn rate(&self, before: u64, now: u64) -> Option<f64> {
        Some(now.checked_sub(before)? as f64 / self.seconds?)
    }

    fn row(&self, port: &PortActivity, known: &mut HashMap<String, Known>) -> Row {
        if !known.contains_key(&port.name) {
            known.insert(port.name.clone(), Known::default());
        }
        let known = known.get_mut(&port.name).expect("it was just put there");
        let before = self.ports.get(&*port.name).copied().filter(|before| is_later(before, port));
        let mut row = Row {
            name: port.name.clone(),
            worker: port.worker,
            state: port.state,
            quarantined: port.quarantined,
            front_end_pid: port.front_end_pid,
            stored_bytes: port.offload.stored_bytes,
            kept_bytes: port.offload.kept,
            work_share: port.work.share,
            offload: port.offload,
            ..Row::default()
        };
        let load = self.load(port);
        row.vcpu_wait = load.map(|load| load.waited);
        row.vcpu_run = load.map(|load| load.ran);
        match before {
            Some(before) => self.rates(&mut row, before, port),
            None => known.last_left = None,
        }
        row.delay_s = self.delay(&row, port, known);
        self.note(&row, &mut known.history);
        row
    }

    fn rates(&self, row: &mut Row, before: &PortActivity, port: &PortActivity) {
        let bits = |before: &TrafficActivity, now: &TrafficActivity| {
            self.rate(before.bytes, now.bytes).map(|bytes| bytes * 8.0)
        };
        row.rx_bps = bits(&before.rx, &port.rx);
        row.tx_bps = bits(&before.tx, &port.tx);
        row.rx_pps = self.rate(before.rx.packets, port.rx.packets);
        row.tx_pps = self.rate(before.tx.packets, port.tx.packets);
        let (then, now) = (&before.offload, &port.offload);
        row.repairs_per_s = self.rate(then.retransmitted, now.retransmitted);
        row.saved_per_s = self.rate(then.frames_saved(), now.frames_saved());
        row.drops_per_s = self.rate(dropped(before), dropped(port));
        row.drops = self.drops(&[&before.rx, &before.tx], &[&port.rx, &port.tx]);
    }

    /// What was dropped, to a guest or from a device and the other way, the most first.
    fn drops(&self, before: &[&TrafficActivity; 2], now: &[&TrafficActivity; 2]) -> Vec<DropRate> {
        let way =
            |(n, direction): (usize, _)| self.drops_of(direction, &before[n].drops, &now[n].drops);
        let mut drops: Vec<_> = ["rx", "tx"].into_iter().enumerate().flat_map(way).collect();
        drops.sort_by(|a, b| b.per_s.total_cmp(&a.per_s));
        drops
    }

    fn drops_of(&self, direction: &'static str, before: &Drops, now: &Drops) -> Vec<DropRate> {
        let rate = |(reason, &now): (&String, &u64)| {
            let per_s = self.rate(before.get(reason).copied().unwrap_or(0), now)?;
            (per_s > 0.0).then(|| DropRate { direction, reason: reason.clone(), per_s })
        };
        now.iter().filter_map(rate).collect()
    }

    /// See the module's theory of operation.
    fn delay(&self, row: &Row, port: &PortActivity, known: &mut Known) -> Option<f64> {
        let now = self.now.activity.switch.uptime_s;
        let leaving = row.rx_pps?;
        if port.pending_frames == 0 || leaving > 0.0 {
            known.last_left = Some(now);
            return Some(match port.pending_frames {
                0 => 0.0,
                frames => frames as f64 / leaving,
            });
        }
        let since = *known.last_left.get_or_insert(now - self.seconds?);
        Some(now - since)
    }

    fn load(&self, port: &PortActivity) -> Option<Load> {
        let before = self.before?;
        let pid = port.front_end_pid?;
        let (then, now): (&ThreadTimes, _) =
            (before.threads.get(&pid)?, self.now.threads.get(&pid)?);
        let elapsed: Duration = self.now.clock.checked_sub(before.clock)?;
        now.since(then, elapsed)
    }

    fn note(&self, row: &Row, history: &mut PortHistory) {
        let to = self.now.activity.switch.uptime_s;
        let from = to - self.seconds.unwrap_or(0.0);
        let PortHistory { bps, drops, delay } = history;
        for (history, value) in [(bps, row.bps()), (drops, row.drops_per_s), (delay, row.delay_s)] {
            match value {
                Some(value) => history.note(from, to, value),
                None => history.skip_to(to),
            }
        }
    }

    fn uplink(&self, uplink: &UplinkActivity) -> Total {
        let same = |before: &&UplinkActivity| before.name == uplink.name;
        let before = self.before.and_then(|before| before.activity.uplinks.iter().find(same));
        let rate = |value: fn(&UplinkActivity) -> u64| self.rate(value(before?), value(uplink));
        let bits = |value| rate(value).map(|bytes| bytes * 8.0);
        let drops = |before: &UplinkActivity| {
            self.drops(&[&before.rx, &before.tx], &[&uplink.rx, &uplink.tx])
        };
        Total {
            name: uplink.name.clone(),
            rx_bps: bits(|uplink| uplink.rx.bytes),
            tx_bps: bits(|uplink| uplink.tx.bytes),
            rx_pps: rate(|uplink| uplink.rx.packets),
            tx_pps: rate(|uplink| uplink.tx.packets),
            drops_per_s: rate(|uplink| uplink.rx.dropped() + uplink.tx.dropped()),
            drops: before.map(drops).unwrap_or_default(),
            work_share: uplink.work.share,
        }
    }

    fn workers(&self) -> Vec<WorkerRow> {
        let now = &self.now.activity.workers;
        let before = self.before.map_or(&[][..], |before| &before.activity.workers);
        let row = |(place, now): (usize, &floodway_switch::api::activity::WorkerActivity)| {
            let before = before.get(place);
            let asleep = before.zip(self.seconds);
            let asleep = asleep.map(|(before, seconds)| (now.asleep_s - before.asleep_s) / seconds);
            let polls = before.map(|before| now.polls.saturating_sub(before.polls) as f64);
            let busy = before.map(|before| now.busy_polls.saturating_sub(before.busy_polls) as f64);
            WorkerRow {
                index: now.index,
                core: now.core,
                awake: asleep.map(|share| (1.0 - share).clamp(0.0, 1.0)),
                busy: polls.zip(busy).map(|(polls, busy)| busy / polls.max(1.0)),
            }
        };
        now.iter().enumerate().map(row).collect()
    }
}

/// `now` is the same life of the port as `before`: no counter went back.
fn is_later(before: &PortActivity, now: &PortActivity) -> bool {
    let counters = |port: &PortActivity| {
        let OffloadActivity { retransmitted, .. } = port.offload;
        let saved = port.offload.frames_saved();
        let (rx, tx) = (&port.rx, &port.tx);
        [rx.packets, rx.bytes, tx.packets, tx.bytes, dropped(port), retransmitted, saved]
    };
    counters(before).iter().zip(counters(now)).all(|(&before, now)| before <= now)
}

/// Frames of a port that were dropped, both ways.
fn dropped(port: &PortActivity) -> u64 {
    port.rx.dropped() + port.tx.dropped()
}
