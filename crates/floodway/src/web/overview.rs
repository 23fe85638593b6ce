//! All ports: what a page shows first.

use std::collections::{HashMap, VecDeque};

use floodway_switch::api::status::PortState;
use serde::Serialize;

use super::series::{Columns, History, Series, push, tail};
use crate::top::model::{DropRate, Model, Row, Total, WorkerRow};

/// Figures of a port, by what they are called in documents.
const NAMES: [&str; 10] =
    ["tx", "rx", "drops", "work", "wait", "run", "delay", "stored", "repairs", "saved"];

/// The last minutes of all ports.
#[derive(Debug, Default)]
pub struct Overview {
    /// When samples were taken, in milliseconds of Unix time.
    times: VecDeque<u64>,
    series: HashMap<String, Series<{ NAMES.len() }>>,
    switch: Switch,
    rows: Vec<Row>,
    workers: Vec<WorkerRow>,
    uplinks: Vec<Total>,
    /// Why the switch does not answer.
    problem: Option<String>,
}

/// The process that answers.
#[derive(Clone, Debug, Default, Serialize)]
struct Switch {
    version: String,
    uptime_s: f64,
    /// Data planes before this one.
    restarts: u32,
}

impl Overview {
    /// Notes what `model` knows at `time`.
    pub fn note(&mut self, time: u64, model: &Model) {
        let switch = model.activity().map(|activity| &activity.switch);
        self.switch = switch.map_or_else(Switch::default, |switch| Switch {
            version: switch.version.clone(),
            uptime_s: switch.uptime_s,
            restarts: switch.predecessors.as_ref().map_or(0, |before| before.count),
        });
        self.rows = model.rows().to_vec();
        self.workers = model.workers().to_vec();
        self.uplinks = model.uplinks().to_vec();
        self.problem = None;
        push(&mut self.times, time);
        let mut before = std::mem::take(&mut self.series);
        for row in &self.rows {
            let mut series = before.remove(&row.name).unwrap_or_default();
            series.push(sample(row));
            self.series.insert(row.name.clone(), series);
        }
    }

    /// Notes that nothing is known at `time`, and why.
    pub fn fail(&mut self, time: u64, problem: String) {
        self.problem = Some(problem);
        push(&mut self.times, time);
        self.series.values_mut().for_each(|series| series.push([None; NAMES.len()]));
    }
}

impl History for Overview {
    fn document(&self, reset: bool, last: usize) -> impl Serialize {
        let ports = self.rows.iter().filter_map(|row| {
            let series = self.series.get(&row.name)?;
            Some(port(row, series, last))
        });
        Document {
            reset,
            times: tail(&self.times, last),
            problem: self.problem.as_deref(),
            switch: &self.switch,
            workers: &self.workers,
            uplinks: &self.uplinks,
            ports: ports.collect(),
        }
    }
}

fn sample(row: &Row) -> [Option<f64>; NAMES.len()] {
    let whole = |value: Option<f64>| value.map(f64::round);
    let share = |value: f64| (value * 1e4).round() / 1e4;
    [
        whole(row.tx_bps),
        whole(row.rx_bps),
        row.drops_per_s.map(|rate| (rate * 10.0).round() / 10.0),
        Some(share(row.work_share)),
        row.vcpu_wait.map(share),
        row.vcpu_run.map(share),
        row.delay_s,
        Some(row.stored_bytes as f64),
        whole(row.repairs_per_s),
        whole(row.saved_per_s),
    ]
}

#[derive(Serialize)]
struct Document<'a> {
    reset: bool,
    times: Vec<u64>,
    problem: Option<&'a str>,
    switch: &'a Switch,
    workers: &'a [WorkerRow],
    uplinks: &'a [Total],
    ports: Vec<Port<'a>>,
}

/// A port. Arrays end with the last of `times`; a port that was added since has shorter ones.
#[derive(Serialize)]
struct Port<'a> {
    name: &'a str,
    worker: usize,
    state: PortState,
    quarantined: bool,
    transmit: bool,
    receive: bool,
    draining: bool,
    flows: u64,
    online: u64,
    reasons: &'a [DropRate],
    #[serde(flatten)]
    series: Columns<'a, { NAMES.len() }>,
}

fn port<'a>(row: &'a Row, series: &'a Series<{ NAMES.len() }>, last: usize) -> Port<'a> {
    let offload = &row.offload;
    Port {
        name: &row.name,
        worker: row.worker,
        state: row.state,
        quarantined: row.quarantined,
        transmit: offload.transmit,
        receive: offload.receive,
        draining: offload.draining,
        flows: offload.flows,
        online: offload.online,
        reasons: &row.drops,
        series: series.last(&NAMES, last),
    }
}

#[cfg(test)]
mod tests {
    use floodway_switch::api::activity::{Activity, PortActivity};
    use serde_json::{Value, json};

    use super::*;
    use crate::top::sample::Sample;

    fn look(model: &mut Model, uptime_s: f64, ports: &[(&str, u64)]) {
        let mut activity = Activity::default();
        activity.switch.uptime_s = uptime_s;
        activity.ports = ports
            .iter()
            .map(|(name, bytes)| {
                let mut port = PortActivity { name: (*name).to_owned(), ..Default::default() };
                port.tx.bytes = *bytes;
                port
            })
            .collect();
        model.take(Sample { activity, ..Sample::default() });
    }

    #[test]
    fn arrays_end_with_the_last_time_and_ports_come_and_go() {
        let (mut overview, mut model) = (Overview::default(), Model::default());
        look(&mut model, 1.0, &[("vm1", 0), ("vm2", 0)]);
        overview.note(1000, &model);
        overview.fail(2000, "floodway is not running".to_owned());
        let value = serde_json::to_value(overview.last()).unwrap();
        assert_eq!(
            (&value["problem"], &value["times"]),
            (&json!("floodway is not running"), &json!([2000]))
        );
        look(&mut model, 3.0, &[("vm1", 500), ("vm3", 0)]);
        overview.note(3000, &model);
        let value = serde_json::to_value(overview.all()).unwrap();
        assert_eq!(
            (&value["problem"], &value["times"]),
            (&Value::Null, &json!([1000, 2000, 3000]))
        );
        let ports = value["ports"].as_array().unwrap();
        assert_eq!(ports.len(), 2);
        assert_eq!(
            (&ports[0]["name"], &ports[0]["tx"]),
            (&json!("vm1"), &json!([null, null, 2000]))
        );
        assert_eq!((&ports[1]["name"], &ports[1]["tx"]), (&json!("vm3"), &json!([null])));
    }

    #[test]
    fn a_second_of_a_port_takes_less_than_half_a_kibibyte() {
        let (mut overview, mut model) = (Overview::default(), Model::default());
        let names: Vec<String> = (0..100).map(|n| format!("a-name-of-some-length-{n}")).collect();
        for second in 1..=2 {
            let ports: Vec<_> = names.iter().map(|n| (n.as_str(), second * 123_456_789)).collect();
            look(&mut model, second as f64, &ports);
            overview.note(second * 1000, &model);
        }
        let json = serde_json::to_string(&overview.last()).unwrap();
        assert!(json.len() < 100 * 512, "{}", json.len());
    }
}
