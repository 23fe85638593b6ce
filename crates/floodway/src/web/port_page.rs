//! A port, looked at closely.
//!
//! # Theory of operation
//! Delays and round trips are histograms that only grow. What is shown are quantiles of the last [`WINDOW`] looks: the difference of two histograms. A second alone has too few
//! durations for a 99th percentile, and all since the start too many to show that something changes.

use std::collections::{BTreeMap, VecDeque};

use floodway_switch::api::control::{FlowPage as FlowList, FlowStatus};
use floodway_switch::api::diagnosis::{Diagnosis, Finding, Severity};
use floodway_switch::api::histogram::{Histogram, bounds_s};
use floodway_switch::api::status::{Drops, PortState, PortStatus, VcpuStatus, add_drops};
use serde::Serialize;

use super::series::{Columns, History, Series, push, tail};

/// Looks, a second apart, over which quantiles are taken.
const WINDOW: usize = 10;
/// Connections that are listed: those with the most bytes under way.
const LISTED: usize = 50;

/// Figures by what they are called in documents. Seconds.
const NAMES: [&str; 4] = ["delay_p50", "delay_p99", "rtt_p50", "rtt_p99"];

/// What is known of a port.
#[derive(Debug)]
pub struct PortPage {
    name: String,
    times: VecDeque<u64>,
    series: Series<{ NAMES.len() }>,
    /// Delays and round trips at the last looks.
    histograms: VecDeque<[Histogram; 2]>,
    facts: Option<Facts>,
    problem: Option<String>,
}

/// What one look brings.
#[derive(Debug, Serialize)]
struct Facts {
    state: PortState,
    worker: usize,
    mac: Option<String>,
    network: String,
    tagged: Vec<String>,
    queue_pairs: u16,
    queue_pairs_offered: u16,
    vcpu: Option<VcpuStatus>,
    quarantine: Option<String>,
    /// Frames that wait for the guest's buffers.
    pending_frames: u64,
    /// Interrupts of the guest since the start, and those that were not needed.
    interrupts: [u64; 2],
    drops: Vec<Dropped>,
    /// Delays of the last looks, by bucket.
    delays: Vec<u64>,
    connections: Connections,
    severity: Severity,
    findings: Vec<Finding>,
}

/// Frames dropped since the switch started.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Dropped {
    direction: &'static str,
    reason: String,
    frames: u64,
}

/// Connections of the offload.
#[derive(Debug, Default, Serialize)]
struct Connections {
    transmit: bool,
    receive: bool,
    known: u64,
    online: u64,
    budget_used: u64,
    listed: Vec<FlowStatus>,
}

impl PortPage {
    /// One of which nothing is known yet.
    #[must_use]
    pub fn new(name: &str) -> Self {
        let (times, series, histograms) = Default::default();
        Self { name: name.to_owned(), times, series, histograms, facts: None, problem: None }
    }

    /// Notes what the port is at `time`.
    pub fn note(&mut self, time: u64, status: PortStatus, flows: FlowList, diagnosis: Diagnosis) {
        let delay = sum(status.queues.iter().map(|pair| &pair.rx.delay));
        let now = [delay, status.offload.rtt.clone()];
        let first = self.histograms.front().unwrap_or(&now);
        let recent = [0, 1].map(|n| now[n].since(&first[n]));
        let [delays, rtts] = &recent;
        let quantiles = [(delays, 0.5), (delays, 0.99), (rtts, 0.5), (rtts, 0.99)];
        self.series.push(quantiles.map(|(histogram, q)| histogram.quantile(q)));
        push(&mut self.times, time);
        let [delays, _] = recent;
        self.facts = Some(facts(status, flows, diagnosis, delays.buckets));
        self.problem = None;
        if self.histograms.len() == WINDOW {
            self.histograms.pop_front();
        }
        self.histograms.push_back(now);
    }

    /// Notes that nothing is known at `time`, and why.
    pub fn fail(&mut self, time: u64, problem: String) {
        push(&mut self.times, time);
        self.series.push([None; NAMES.len()]);
        self.histograms.clear();
        self.problem = Some(problem);
    }

    /// The connections that are listed.
    #[must_use]
    pub fn listed(&self) -> &[FlowStatus] {
        self.facts.as_ref().map_or(&[], |facts| &facts.connections.listed)
    }

    /// When it was looked at last.
    #[must_use]
    pub fn time(&self) -> Option<u64> {
        self.times.back().copied()
    }
}

impl History for PortPage {
    fn document(&self, reset: bool, last: usize) -> impl Serialize {
        Document {
            reset,
            name: &self.name,
            times: tail(&self.times, last),
            problem: self.problem.as_deref(),
            window_s: WINDOW,
            bounds: bounds_s().filter(|bound| bound.is_finite()).collect(),
            facts: self.facts.as_ref(),
            series: self.series.last(&NAMES, last),
        }
    }
}

#[derive(Serialize)]
struct Document<'a> {
    reset: bool,
    name: &'a str,
    times: Vec<u64>,
    problem: Option<&'a str>,
    window_s: usize,
    /// Upper bounds of the buckets of `delays`, in seconds; the last one has none.
    bounds: Vec<f64>,
    facts: Option<&'a Facts>,
    series: Columns<'a, { NAMES.len() }>,
}

fn sum<'a>(histograms: impl Iterator<Item = &'a Histogram>) -> Histogram {
    let mut sum = Histogram::default();
    histograms.for_each(|histogram| sum.add(histogram));
    sum
}

fn facts(status: PortStatus, flows: FlowList, diagnosis: Diagnosis, delays: Vec<u64>) -> Facts {
    let drops = dropped(&status);
    let notifications = status.queues.iter().flat_map(|q| [q.rx.notifications, q.tx.notifications]);
    let interrupts = notifications
        .fold([0, 0], |[sent, suppressed], n| [sent + n.sent, suppressed + n.suppressed]);
    Facts {
        state: status.state,
        worker: status.worker,
        queue_pairs: status.queue_pairs_enabled,
        queue_pairs_offered: status.queue_pairs_offered,
        pending_frames: status.queues.iter().map(|pair| pair.rx.pending_frames).sum(),
        interrupts,
        drops,
        delays,
        connections: Connections {
            transmit: status.offload.transmit,
            receive: status.offload.receive,
            known: status.offload.flows,
            online: status.offload.online,
            budget_used: status.offload.budget_used,
            listed: listed(flows.flows),
        },
        severity: diagnosis.severity(),
        findings: diagnosis.findings,
        mac: status.mac,
        network: status.network,
        tagged: status.tagged,
        vcpu: status.vcpu,
        quarantine: status.quarantine,
    }
}

/// Drops of all queues by direction and reason, the most frequent first; only what was dropped.
fn dropped(status: &PortStatus) -> Vec<Dropped> {
    let (mut rx, mut tx) = (Drops::new(), Drops::new());
    for pair in &status.queues {
        add_drops(&mut rx, &pair.rx.traffic.drops);
        add_drops(&mut tx, &pair.tx.traffic.drops);
    }
    add_drops(&mut rx, &status.undelivered);
    let named = |direction, drops: BTreeMap<String, u64>| {
        let drops = drops.into_iter().filter(|(_, frames)| *frames > 0);
        drops.map(move |(reason, frames)| Dropped { direction, reason, frames })
    };
    let mut all: Vec<_> = named("rx", rx).chain(named("tx", tx)).collect();
    all.sort_by_key(|dropped| std::cmp::Reverse(dropped.frames));
    all
}

/// Those with the most bytes under way, the most first; of those with as many, in the order of their ends.
fn listed(mut flows: Vec<FlowStatus>) -> Vec<FlowStatus> {
    let under_way = |flow: &FlowStatus| {
        [flow.held, flow.in_flight, flow.kept].map(u64::from).into_iter().sum::<u64>()
    };
    flows.sort_by(|a, b| {
        let by_bytes = under_way(b).cmp(&under_way(a));
        by_bytes.then_with(|| (&a.guest, &a.peer).cmp(&(&b.guest, &b.peer)))
    });
    flows.truncate(LISTED);
    flows
}

#[cfg(test)]
mod tests {
    use floodway_switch::api::status::QueuePairStatus;

    use super::*;

    fn status(fast: u64, slow: u64) -> PortStatus {
        let mut queue = QueuePairStatus::default();
        queue.rx.delay = Histogram { buckets: vec![fast, 0, 0, slow], sum_ns: fast + slow };
        queue.rx.traffic.drops = Drops::from([("storm".into(), 2), ("runt".into(), 0)]);
        let undelivered = Drops::from([("storm".into(), 3), ("port_down".into(), 4)]);
        PortStatus { queues: vec![queue.clone(), queue], undelivered, ..PortStatus::default() }
    }

    #[test]
    fn quantiles_are_those_of_the_last_looks() {
        let mut page = PortPage::new("vm1");
        let mut p99 = |fast, slow| {
            page.note(1, status(fast, slow), FlowList::default(), Diagnosis::default());
            let value = serde_json::to_value(page.last()).unwrap();
            value["series"]["delay_p99"][0].as_f64()
        };
        let bounds: Vec<_> = bounds_s().map(|bound| f64::from(bound as f32)).collect();
        assert_eq!(p99(1000, 1000), None, "nothing is known of what was before");
        assert_eq!(p99(2000, 1000), Some(bounds[0]));
        assert_eq!(p99(2000, 2000), Some(bounds[3]));
        for n in 0..WINDOW as u64 {
            let _ = p99(3000 + n, 2000);
        }
        assert_eq!(p99(4000, 2000), Some(bounds[0]), "what was slow is long ago");
    }

    #[test]
    fn drops_are_summed_over_queues_and_what_was_not_dropped_is_left_out() {
        let drop =
            |reason: &str, frames| Dropped { direction: "rx", reason: reason.into(), frames };
        assert_eq!(dropped(&status(0, 0)), [drop("storm", 7), drop("port_down", 4)]);
    }

    #[test]
    fn those_with_the_most_under_way_are_listed() {
        let flow = |n: u32| FlowStatus {
            guest: n.to_string(),
            held: n,
            in_flight: u32::MAX,
            ..FlowStatus::default()
        };
        let listed = listed((0..1000).map(flow).collect());
        assert_eq!((listed.len(), listed[0].held, listed[49].held), (LISTED, 999, 950));
    }
}
