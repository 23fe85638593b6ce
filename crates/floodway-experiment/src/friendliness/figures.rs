//! From trials to rows.
//!
//! | row | value | baseline |
//! |---|---|---|
//! | `CELL/offloaded beside Linux` | mean rate of the first over trials | of the second, at the same time |
//! | `... worst trial` | the ratio farthest from 1 | |
//! | `CELL/offloaded against Linux` | mean rate alone | mean rate of the other, alone |
//! | `CELL/offloaded against the response function` | mean rate alone | [`theory::rate`] at the path's loss and the flow's own round trip |
//! | `CELL/gain by the round trip` | round trip of the guest | of the offloaded flow |
//! | `CELL/gain beside the round trip` | the gain of the offload over the guest by that gain | |
//!
//! Others say what the flows did meanwhile, so that a difference can be explained.

use floodway_report::{Bar, Drawn, Measured, Row, Samples, stats};

use super::cell::Cell;
use super::theory;
use super::trial::{Look, Sender, Trial};

/// A counter of a flow.
type Counter = fn(&Look) -> u64;

/// Counters that are rows.
const COUNTERS: [(&str, Counter); 3] = [
    ("retransmissions", |look| look.retransmissions),
    ("timeouts", |look| look.timeouts),
    ("recoveries", |look| look.recoveries),
];

/// Chart of the response functions.
const RESPONSE: &str = "window at random loss";

/// Returns the rows and samples of all trials.
pub fn measured(trials: &[Trial]) -> Measured {
    let mut page = Page { trials, measured: Measured::default() };
    let mut cells: Vec<&Cell> = Vec::new();
    for trial in trials {
        if !cells.contains(&&trial.cell) {
            cells.push(&trial.cell);
        }
    }
    for cell in &cells {
        page.add_together(cell);
        page.add_alone(cell);
    }
    page.measured
}

struct Page<'a> {
    trials: &'a [Trial],
    measured: Measured,
}

impl<'a> Page<'a> {
    /// Trials of a cell with as many senders.
    fn own(&self, cell: &Cell, senders: usize) -> Vec<&'a Trial> {
        let own = |trial: &&Trial| trial.cell == *cell && trial.traces.len() == senders;
        self.trials.iter().filter(own).collect()
    }

    fn compare(&mut self, name: &str, unit: &str, value: Option<f64>, baseline: Option<f64>) {
        self.measured.rows.push(Row::comparison(name, unit, value, baseline));
    }

    /// Pairs that shared the path.
    fn add_together(&mut self, cell: &Cell) {
        let own = self.own(cell, 2);
        let mut pairs: Vec<[Sender; 2]> = Vec::new();
        for trial in &own {
            if let [a, b] = &trial.traces[..]
                && !pairs.contains(&[a.sender, b.sender])
            {
                pairs.push([a.sender, b.sender]);
            }
        }
        for pair in pairs {
            let own: Vec<_> = own.iter().filter(|trial| trial.is_of(&pair)).copied().collect();
            self.add_pair(cell, pair, &own);
        }
    }

    fn add_pair(&mut self, cell: &Cell, pair: [Sender; 2], own: &[&Trial]) {
        let name = format!("{}/{} beside {}", cell.name(), pair[0].name(), pair[1].name());
        let [value, baseline] = pair.map(|sender| rates(own, sender));
        self.compare(&name, "Mbit/s", stats::mean(&value), stats::mean(&baseline));
        let worst = value.iter().zip(&baseline).map(|(a, b)| a / b);
        let worst = worst.max_by(|a, b| a.ln().abs().total_cmp(&b.ln().abs()));
        self.measured.rows.push(Row::value(format!("{name} worst trial"), "x", worst));
        if let Some((mbit, _)) = &cell.bottleneck {
            let total: Vec<f64> = value.iter().zip(&baseline).map(|(a, b)| a + b).collect();
            let share = stats::mean(&total).map(|total| total / f64::from(*mbit));
            let name = format!("{name} share of the bottleneck");
            self.measured.rows.push(Row::value(name, "of the rate", share));
        }
        self.add_states(&name, pair, [own, own]);
        let variants = Some(pair.map(|sender| sender.name().to_owned()));
        self.measured.samples.push(Samples {
            name: name.clone(),
            unit: "Mbit/s".into(),
            value,
            baseline,
            variants: variants.clone(),
            bar: None,
        });
        if let Some(trial) = own.first() {
            self.measured.samples.push(over_time(
                &name,
                pair.map(|sender| trial.rates(sender)),
                variants.clone(),
            ));
        }
    }

    /// Round trip, window, and what was sent again.
    fn add_states(&mut self, name: &str, pair: [Sender; 2], own: [&[&Trial]; 2]) {
        let both = |of: &dyn Fn(&Trial, Sender) -> Option<f64>| -> [Option<f64>; 2] {
            [0, 1].map(|n| {
                let all: Vec<f64> = own[n].iter().filter_map(|trial| of(trial, pair[n])).collect();
                stats::mean(&all)
            })
        };
        let [value, baseline] = both(&|trial, sender| trial.mean(sender, |look| look.srtt_ms));
        self.compare(&format!("{name} round trip"), "ms", value, baseline);
        let [value, baseline] = both(&|trial, sender| trial.mean(sender, |look| look.cwnd));
        self.compare(&format!("{name} window"), "segments", value, baseline);
        for (what, counter) in COUNTERS {
            let [value, baseline] = both(&|trial, sender| trial.growth(sender, counter));
            self.compare(&format!("{name} {what}"), "per trial", value, baseline);
        }
    }

    /// Senders that had the path alone.
    fn add_alone(&mut self, cell: &Cell) {
        let own = self.own(cell, 1);
        let of = |sender| -> Vec<&'a Trial> {
            own.iter().filter(|trial| trial.trace(sender).is_some()).copied().collect()
        };
        let [offloaded, guest, linux] = [Sender::Offloaded, Sender::Guest, Sender::Linux].map(of);
        for (sender, trials) in [(Sender::Offloaded, &offloaded), (Sender::Guest, &guest)] {
            if !trials.is_empty() && !linux.is_empty() {
                self.add_against(cell, [sender, Sender::Linux], [trials, &linux]);
            }
        }
        for (sender, trials) in
            [(Sender::Offloaded, &offloaded), (Sender::Guest, &guest), (Sender::Linux, &linux)]
        {
            self.add_response(cell, sender, trials);
        }
        if !offloaded.is_empty() && !guest.is_empty() {
            self.add_gain(cell, &offloaded, &guest);
        }
    }

    fn add_against(&mut self, cell: &Cell, pair: [Sender; 2], own: [&[&Trial]; 2]) {
        let name = format!("{}/{} against {}", cell.name(), pair[0].name(), pair[1].name());
        let [value, baseline] = [0, 1].map(|n| rates(own[n], pair[n]));
        self.compare(&name, "Mbit/s", stats::mean(&value), stats::mean(&baseline));
        self.add_states(&name, pair, own);
        let variants = Some(pair.map(|sender| sender.name().to_owned()));
        if let ([a, ..], [b, ..]) = (own[0], own[1]) {
            let both = [a.rates(pair[0]), b.rates(pair[1])];
            self.measured.samples.push(over_time(&name, both, variants.clone()));
        }
        self.measured.samples.push(Samples {
            name,
            unit: "Mbit/s".into(),
            value,
            baseline,
            variants,
            bar: None,
        });
    }

    /// The window that the rate means at the flow's round trip, beside the response function.
    fn add_response(&mut self, cell: &Cell, sender: Sender, own: &[&Trial]) {
        let p = cell.loss_percent / 100.0;
        let srtt: Vec<f64> =
            own.iter().filter_map(|trial| trial.mean(sender, |look| look.srtt_ms)).collect();
        let (Some(srtt), Some(rate), Some(first)) =
            (stats::mean(&srtt), stats::mean(&rates(own, sender)), own.first())
        else {
            return;
        };
        let rtt_s = srtt / 1e3;
        let Some(expected) =
            theory::rate(&cell.congestion, p, rtt_s, first.mss).filter(|_| p > 0.0)
        else {
            return;
        };
        let name = format!("{}/{} against the response function", cell.name(), sender.name());
        self.compare(&name, "Mbit/s", Some(rate), Some(expected));
        let segments = |rate: f64| rate * rtt_s / (f64::from(first.mss) * 8e-6);
        self.measured.samples.push(Samples {
            name: format!("{name} window"),
            unit: "segments".into(),
            value: vec![segments(rate)],
            baseline: vec![segments(expected)],
            variants: Some([sender.name().to_owned(), "response function".to_owned()]),
            bar: Some(Bar {
                chart: format!("{RESPONSE}, {}, {} ms", cell.congestion, cell.rtt_ms),
                series: sender.name().to_owned(),
                label: cell.loss_percent.to_string(),
                drawn: Drawn::Points,
            }),
        });
    }

    /// What the offload gains, and how much of that is a shorter round trip.
    fn add_gain(&mut self, cell: &Cell, offloaded: &[&Trial], guest: &[&Trial]) {
        let cell_name = cell.name();
        let rate = |own: &[&Trial], sender| stats::mean(&rates(own, sender));
        let srtt = |own: &[&Trial], sender| {
            let all: Vec<f64> =
                own.iter().filter_map(|trial| trial.mean(sender, |look| look.srtt_ms)).collect();
            stats::mean(&all)
        };
        let [with, without] = [rate(offloaded, Sender::Offloaded), rate(guest, Sender::Guest)];
        self.compare(&format!("{cell_name}/offloaded against guest"), "Mbit/s", with, without);
        let [near, far] = [srtt(offloaded, Sender::Offloaded), srtt(guest, Sender::Guest)];
        self.compare(&format!("{cell_name}/gain by the round trip"), "ms", far, near);
        let gain = with.zip(without).map(|(a, b)| a / b);
        let by_rtt = far.zip(near).map(|(a, b)| a / b);
        let rest = gain.zip(by_rtt).map(|(gain, by_rtt)| gain / by_rtt);
        let name = format!("{cell_name}/gain beside the round trip");
        self.measured.rows.push(Row::value(name, "x", rest));
    }
}

fn rates(own: &[&Trial], sender: Sender) -> Vec<f64> {
    own.iter().filter_map(|trial| trial.rate(sender)).collect()
}

/// A chart of two rates over time, a second a point.
fn over_time(
    name: &str,
    [value, baseline]: [Vec<f64>; 2],
    variants: Option<[String; 2]>,
) -> Samples {
    let series = variants.as_ref().map_or_else(String::new, |[value, _]| value.clone());
    Samples {
        name: format!("{name} over time"),
        unit: "Mbit/s".into(),
        value,
        baseline,
        variants,
        bar: Some(Bar {
            chart: format!("{name}, rate in each second"),
            series,
            label: String::new(),
            drawn: Drawn::OverTime,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::super::trial::Trace;
    use super::*;

    /// A flow at a constant rate and round trip for 60 s after 10 s of nothing.
    fn trace(sender: Sender, mbit: f64, srtt_ms: f64) -> Trace {
        let look = |n: u32| Look {
            at_ms: f64::from(n) * 1000.0,
            bytes: (f64::from(n.saturating_sub(10)) * mbit * 125e3) as u64,
            srtt_ms,
            cwnd: 10.0,
            retransmissions: u64::from(n),
            ..Look::default()
        };
        Trace { sender, looks: (0..=70).map(look).collect() }
    }

    fn trial(round: u32, loss_percent: f64, traces: Vec<Trace>) -> Trial {
        let bottleneck = (loss_percent == 0.0)
            .then(|| (10, super::super::cell::Queue { name: "deep".into(), bdp: 2.0 }));
        let cell = Cell { congestion: "reno".into(), rtt_ms: 20.0, loss_percent, bottleneck };
        Trial { cell, round, settle_ms: 10_000.0, mss: 1448, traces }
    }

    fn row<'a>(measured: &'a Measured, name: &str) -> &'a Row {
        let found = measured.rows.iter().find(|row| row.name == name);
        found.unwrap_or_else(|| panic!("no row {name:?} among {:#?}", measured.rows))
    }

    #[test]
    fn a_pair_is_compared_by_mean_rates_and_its_worst_trial() {
        let pair = |a, b| vec![trace(Sender::Offloaded, a, 30.0), trace(Sender::Linux, b, 31.0)];
        let trials = [trial(0, 0.0, pair(6.0, 3.0)), trial(1, 0.0, pair(3.0, 6.6))];
        let measured = measured(&trials);
        let name = "reno 10 Mbit/s deep/offloaded beside Linux";
        let ratio = row(&measured, name).ratio.unwrap();
        assert!((ratio - 4.5 / 4.8).abs() < 1e-6, "{ratio}");
        let worst = row(&measured, &format!("{name} worst trial")).value.unwrap();
        assert!((worst - 3.0 / 6.6).abs() < 1e-6, "{worst}");
        let share = row(&measured, &format!("{name} share of the bottleneck")).value.unwrap();
        assert!((share - 0.93).abs() < 1e-6, "{share}");
        let again = row(&measured, &format!("{name} retransmissions"));
        assert_eq!((again.value, again.baseline), (Some(60.0), Some(60.0)));
        let drawn = |samples: &&Samples| {
            samples.bar.as_ref().is_some_and(|bar| bar.drawn == Drawn::OverTime)
        };
        let lines: Vec<_> = measured.samples.iter().filter(drawn).collect();
        assert_eq!(lines.len(), 1);
        assert_eq!(lines[0].value.len(), 70);
    }

    #[test]
    fn a_gain_is_divided_into_round_trip_and_rest() {
        let alone = |trace| trial(0, 1.0, vec![trace]);
        let trials = [
            alone(trace(Sender::Offloaded, 9.0, 10.0)),
            alone(trace(Sender::Linux, 8.0, 10.0)),
            alone(trace(Sender::Guest, 2.0, 30.0)),
        ];
        let measured = measured(&trials);
        let ratio =
            |name: &str| row(&measured, &format!("reno 1 % 20 ms/{name}")).headline().unwrap();
        assert!((ratio("offloaded against Linux") - 9.0 / 8.0).abs() < 1e-6);
        assert!((ratio("offloaded against guest") - 4.5).abs() < 1e-6);
        assert!((ratio("gain by the round trip") - 3.0).abs() < 1e-6);
        assert!((ratio("gain beside the round trip") - 1.5).abs() < 1e-6);
        // 12 segments in 10 ms are 13.9 Mbit/s.
        let response = ratio("offloaded against the response function");
        assert!((response - 9.0 / 13.9008).abs() < 1e-3, "{response}");
    }
}
