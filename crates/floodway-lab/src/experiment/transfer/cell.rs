//! One point of a sweep: what it is called, and what was measured in it.

use floodway_experiment::transfer::size;

use super::observation::{Measure, Observation};
use super::phases::Phases;
use super::{Direction, HostLoad, Profile, Transfer, Variant};

/// Where in the sweep.
#[derive(Clone, Debug)]
pub struct Place {
    /// VMs and their load.
    pub host: HostLoad,
    /// Name of the path; none when all are there at once.
    pub path: Option<String>,
    /// Rate of the path's bottleneck.
    pub mbit: Option<u32>,
    /// Size of one transfer.
    pub bytes: u64,
    /// Connections of a round, by path.
    pub flows: Vec<u32>,
}

/// A cell: one place and profile.
#[derive(Clone, Debug)]
pub struct Cell {
    /// Where in the sweep.
    pub place: Place,
    /// Of host and guest.
    pub profile: Profile,
    /// What was measured.
    pub series: Vec<Series>,
    /// Where the time went, by variant.
    pub phases: Vec<Phases>,
}

/// Throughputs of one measure in one variant, in Mbit/s, by round; none where the round failed.
#[derive(Clone, Debug)]
pub struct Series {
    /// Which side of the comparison.
    pub variant: Variant,
    /// Index of the receiver.
    pub receiver: usize,
    /// What was timed.
    pub measure: Measure,
    /// By round.
    pub mbit_s: Vec<Option<f64>>,
}

impl Place {
    /// What tells it apart from other places of the scenario; empty when there is only one.
    pub fn label(&self, scenario: &Transfer) -> String {
        let mut parts = Vec::new();
        if scenario.hosts.len() > 1 {
            parts.push(self.host_label());
        }
        if scenario.path_sets().len() > 1 {
            parts.extend(self.path.clone());
        }
        parts.extend(self.rest(scenario));
        parts.join(", ")
    }

    /// The same without the host, for what is compared across hosts.
    pub fn label_without_host(&self, scenario: &Transfer) -> String {
        let path = (scenario.path_sets().len() > 1).then(|| self.path.clone()).flatten();
        path.into_iter().chain(self.rest(scenario)).collect::<Vec<_>>().join(", ")
    }

    /// The host alone.
    pub fn host_label(&self) -> String {
        let HostLoad { vms, load_percent } = self.host;
        let plural = if vms == 1 { "" } else { "s" };
        match load_percent {
            0 => format!("{vms} VM{plural} idle"),
            _ => format!("{vms} VM{plural} {load_percent} %"),
        }
    }

    fn rest(&self, scenario: &Transfer) -> Vec<String> {
        let mut parts = Vec::new();
        if scenario.bytes.len() > 1 {
            parts.push(size(self.bytes));
        }
        if scenario.flows.len() > 1 {
            parts.push(scenario.flows_label(&self.flows));
        }
        parts
    }
}

/// What one round of flows yields for a receiver: the median of its flows, or all of them together.
/// None when one of them failed.
pub fn round(
    observations: &[Observation],
    receiver: usize,
    measure: Measure,
    scenario: &Transfer,
    bytes: u64,
) -> Option<f64> {
    let own: Vec<_> =
        observations.iter().filter(|observation| observation.sent.receiver == receiver).collect();
    if own.is_empty() || !own.iter().all(|observation| observation.is_complete()) {
        return None;
    }
    if measure == Measure::Aggregate {
        let arrivals = || own.iter().filter_map(|observation| observation.arrival);
        let first = arrivals().map(|arrival| arrival.first_ns).min()?;
        let last = arrivals().map(|arrival| arrival.last_ns).max()?;
        return mbit_s(
            bytes * own.len() as u64,
            last.saturating_sub(first),
            scenario.line_rate_mbit,
        );
    }
    // Both ways count for a whole exchange.
    let exchanged = measure == Measure::Whole && scenario.direction == Direction::Both;
    let bytes = if exchanged { 2 * bytes } else { bytes };
    let each: Option<Vec<f64>> = own
        .iter()
        .map(|observation| {
            let time = observation.nanoseconds(measure, scenario.direction)?;
            mbit_s(bytes, time, scenario.line_rate_mbit)
        })
        .collect();
    floodway_report::stats::median(&each?)
}

/// Throughput, at most `line_rate`.
fn mbit_s(bytes: u64, nanoseconds: u64, line_rate: u32) -> Option<f64> {
    let least = bytes as f64 * 8.0 / (f64::from(line_rate) * 1e6);
    let seconds = (nanoseconds as f64 / 1e9).max(least);
    Some(bytes as f64 * 8.0 / seconds / 1e6)
}

#[cfg(test)]
mod tests {
    use floodway_guest::transfer::{Arrival, Sent};

    use super::*;
    use crate::experiment::{Experiment, Scenario};

    fn scenario(direction: &str) -> Transfer {
        let text = format!(
            r#"
            name = "t"
            title = "t"
            [scenario]
            kind = "transfer"
            direction = "{direction}"
            kernel = "6.1"
            variants = ["vanilla"]
            hosts = [{{ vms = 1, load_percent = 0 }}, {{ vms = 3, load_percent = 60 }}]
            bytes = [100_000, 340_000]
            transfers = 10
        "#
        );
        match Experiment::parse(&text).unwrap().scenario {
            Scenario::Transfer(transfer) => *transfer,
            other => panic!("{other:?}"),
        }
    }

    fn observation(first_ms: u64, last_ms: u64) -> Observation {
        let ms = 1_000_000;
        Observation {
            sent: Sent {
                id: 1,
                receiver: 0,
                connect_ns: ms,
                acked_ns: Some(20 * ms),
                reply_ns: 5 * ms,
                whole_ns: 40 * ms,
                error: None,
            },
            arrival: Some(Arrival {
                id: 1,
                bytes: 100_000,
                intact: true,
                first_ns: first_ms * ms,
                last_ns: last_ms * ms,
            }),
        }
    }

    fn close(value: Option<f64>, expected: f64) -> bool {
        value.is_some_and(|value| (value - expected).abs() < 1e-6)
    }

    #[test]
    fn each_direction_is_timed_where_its_clock_does_not_stand_still() {
        let one = [observation(0, 10)];
        let figure = |direction, measure| round(&one, 0, measure, &scenario(direction), 100_000);
        assert!(close(figure("out", Measure::DataOut), 80.0));
        assert!(close(figure("in", Measure::DataIn), 40.0));
        assert!(close(figure("out", Measure::Whole), 20.0));
        assert!(close(figure("both", Measure::DataOut), 160.0));
        assert!(close(figure("both", Measure::Whole), 40.0), "both ways count");
    }

    #[test]
    fn a_burst_takes_as_long_as_on_the_line() {
        let burst = [observation(7, 7)];
        let value = round(&burst, 0, Measure::DataOut, &scenario("out"), 100_000);
        assert!(close(value, 1000.0), "{value:?}");
    }

    #[test]
    fn flows_of_a_round_count_by_their_median_and_together() {
        let flows = [observation(0, 10), observation(5, 25), observation(10, 90)];
        let scenario = scenario("out");
        assert!(close(round(&flows, 0, Measure::DataOut, &scenario, 100_000), 40.0));
        let together = round(&flows, 0, Measure::Aggregate, &scenario, 100_000);
        assert!(close(together, 3.0 * 0.8 / 0.09), "{together:?}");
        assert_eq!(round(&flows, 1, Measure::DataOut, &scenario, 100_000), None);
    }

    #[test]
    fn a_round_with_a_failure_yields_nothing() {
        let mut flows = [observation(0, 10), observation(0, 10)];
        flows[1].sent.error = Some("reset".into());
        assert_eq!(round(&flows, 0, Measure::DataOut, &scenario("out"), 100_000), None);
        flows[1] = Observation { arrival: None, ..observation(0, 10) };
        assert_eq!(round(&flows, 0, Measure::Whole, &scenario("out"), 100_000), None);
    }

    #[test]
    fn a_label_says_what_varies_and_nothing_else() {
        let mut scenario = scenario("out");
        let place = Place {
            host: scenario.hosts[1],
            path: Some("direct".into()),
            mbit: None,
            bytes: 340_000,
            flows: vec![1],
        };
        assert_eq!(place.label(&scenario), "3 VMs 60 %, 340 KB");
        assert_eq!(place.label_without_host(&scenario), "340 KB");
        scenario.hosts.pop();
        scenario.bytes.pop();
        assert_eq!(place.label(&scenario), "");
    }
}
