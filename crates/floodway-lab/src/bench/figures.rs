//! From rounds to the table, the report's rows and its samples.

use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{ContentArrangement, Table};
use floodway_report::table::number;
use floodway_report::{Row, Samples, stats};

use super::case::{Case, Frames};
use super::peer::PeerKind;
use super::{CONTENDED, Round};

/// A loss above this part of all frames is worth a word.
const LOSSY: f64 = 0.01;

/// Least accepted ratio of the way from guest to guest to bridge and tap.
const CHANNEL_BESIDE_NATIVE: f64 = 1.5;

/// Least accepted ratio to the same program as one process.
const TWO_PROCESSES_BESIDE_ONE: f64 = 0.98;

/// What a case is judged by.
struct Metric {
    name: &'static str,
    unit: &'static str,
    of: fn(&Round) -> Option<f64>,
}

const PACKETS: Metric =
    Metric { name: "pps", unit: "Mpps", of: |round| Some(round.measurement.mpps) };
const BYTES: Metric =
    Metric { name: "throughput", unit: "Gbit/s", of: |round| Some(round.measurement.gbps) };
const CYCLES: Metric = Metric { name: "cycles per packet", unit: "cycles", of: Round::cycles };

/// GSO packets are counted in bits, for that is what they are for.
const fn rate(case: &Case) -> Metric {
    match case.frames {
        Frames::Tso => BYTES,
        _ => PACKETS,
    }
}

/// The comparisons of all cases, with and without cycles. Bands only where Floodway was asked for (`compared`).
pub fn rows(cases: &[Case], kinds: &[PeerKind], rounds: &[Round], compared: bool) -> Vec<Row> {
    let mut rows = Vec::new();
    for (case, peer) in pairs(cases, kinds) {
        let mut row = comparison(case, peer, rounds, &rate(case)).median_row();
        match peer {
            PeerKind::OvsDpdk if compared => {
                row.judge(case.accepted_ratio_to_ovs(), None, None);
            }
            PeerKind::Bridge if compared => row.judge(Some(CHANNEL_BESIDE_NATIVE), None, None),
            PeerKind::SingleProcess if compared => {
                row.judge(Some(TWO_PROCESSES_BESIDE_ONE), None, None);
            }
            _ => {}
        }
        rows.push(row);
        rows.push(comparison(case, peer, rounds, &CYCLES).median_row());
    }
    rows
}

/// What [`rows`] were computed from.
pub fn samples(cases: &[Case], kinds: &[PeerKind], rounds: &[Round]) -> Vec<Samples> {
    pairs(cases, kinds)
        .flat_map(|(case, peer)| {
            [rate(case), CYCLES].map(|metric| comparison(case, peer, rounds, &metric))
        })
        .collect()
}

fn pairs<'a>(
    cases: &'a [Case],
    kinds: &'a [PeerKind],
) -> impl Iterator<Item = (&'a Case, PeerKind)> {
    let peers = kinds.iter().copied().filter(|kind| *kind != PeerKind::Floodway);
    cases.iter().flat_map(move |case| peers.clone().map(move |peer| (case, peer)))
}

fn comparison(case: &Case, peer: PeerKind, rounds: &[Round], metric: &Metric) -> Samples {
    Samples {
        name: format!("{} {} vs {peer}", metric.name, case.name()),
        unit: metric.unit.into(),
        value: values(case, PeerKind::Floodway, rounds, metric),
        baseline: values(case, peer, rounds, metric),
        ..Samples::default()
    }
}

fn values(case: &Case, peer: PeerKind, rounds: &[Round], metric: &Metric) -> Vec<f64> {
    of(case, peer, rounds).filter_map(metric.of).collect()
}

fn of<'a>(case: &Case, peer: PeerKind, rounds: &'a [Round]) -> impl Iterator<Item = &'a Round> {
    let name = case.name();
    rounds.iter().filter(move |round| round.peer == peer && round.case == name)
}

/// One line per case, one column per switch: median (least to most), cycles, and Floodway's ratio.
pub fn table(cases: &[Case], kinds: &[PeerKind], rounds: &[Round]) -> String {
    let mut table = Table::new();
    table.load_style(UTF8_FULL_CONDENSED);
    table.set_content_arrangement(ContentArrangement::Dynamic);
    let header = kinds.iter().map(ToString::to_string);
    table.set_header(["case".to_owned(), "unit".to_owned()].into_iter().chain(header));
    for case in cases {
        let cells = kinds.iter().map(|kind| cell(case, *kind, rounds));
        table.add_row([case.name(), rate(case).unit.to_owned()].into_iter().chain(cells));
    }
    table.to_string()
}

fn cell(case: &Case, kind: PeerKind, rounds: &[Round]) -> String {
    let metric = rate(case);
    let measured = values(case, kind, rounds, &metric);
    let Some(median) = stats::median(&measured) else { return "-".into() };
    let extreme = |q| stats::quantile(&measured, q).map_or_else(String::new, number);
    let mut text = format!("{} ({} to {})", number(median), extreme(0.0), extreme(1.0));
    if let Some(cycles) = stats::median(&values(case, kind, rounds, &CYCLES)) {
        text += &format!(", {cycles:.0} cycles");
    }
    let own = stats::median(&values(case, PeerKind::Floodway, rounds, &metric));
    if let (Some(own), true) = (own, kind != PeerKind::Floodway) {
        text += &format!("\nfloodway {:.2}x", own / median);
    }
    text
}

/// What a reader must know before trusting the figures.
pub fn caveats(rounds: &[Round]) -> Vec<String> {
    let mut caveats = Vec::new();
    let count =
        |wanted: &dyn Fn(&Round) -> bool| rounds.iter().filter(|round| wanted(round)).count();
    let contended = count(&Round::contended);
    if contended > 0 {
        caveats.push(format!(
            "in {contended} of {} measurements other programs had more than {:.0} % of the switch's or the client's core: no cycles are given; stop them and repeat",
            rounds.len(),
            CONTENDED * 100.0
        ));
    }
    let lossy = count(&|round| round.measurement.loss() > LOSSY);
    if lossy > 0 {
        caveats.push(format!(
            "in {lossy} of {} measurements more than {:.0} % of the frames were lost; rates count what arrived",
            rounds.len(),
            LOSSY * 100.0
        ));
    }
    let unsaturated = count(&|round| round.measurement.cycles().is_none());
    if unsaturated > 0 {
        caveats.push(format!(
            "in {unsaturated} of {} measurements the client was the bottleneck: the switch is at least that fast, and no cycles are given",
            rounds.len()
        ));
    }
    caveats
}

#[cfg(test)]
mod tests {
    use super::super::generator::tests::measurement;
    use super::*;
    use crate::bench::case;
    use floodway_report::Verdict;

    fn round(peer: PeerKind, mpps: f64) -> Round {
        let mut measurement = measurement();
        measurement.mpps = mpps;
        let case = "64B 1 flow".into();
        Round { round: 0, peer, case, measurement, switch_waited: 0.0, client_waited: 0.0 }
    }

    const KINDS: [PeerKind; 2] = [PeerKind::Floodway, PeerKind::OvsDpdk];

    #[test]
    fn a_row_compares_medians_and_is_judged_against_ovs() {
        let cases = case::all(&[Frames::B64]);
        let rounds = [
            round(PeerKind::Floodway, 6.0),
            round(PeerKind::OvsDpdk, 8.0),
            round(PeerKind::OvsDpdk, 10.0),
            round(PeerKind::OvsDpdk, 30.0),
        ];
        let rows = rows(&cases, &KINDS, &rounds, true);
        assert_eq!(rows[0].name, "pps 64B 1 flow vs ovs-dpdk");
        assert_eq!((rows[0].value, rows[0].baseline), (Some(6.0), Some(10.0)));
        assert_eq!(rows[0].verdict, Some(Verdict::Ok));
        assert_eq!((rows[1].unit.as_str(), rows[1].baseline), ("cycles", Some(260.0)));
        // The case with many flows was never measured: that is short, not a pass.
        assert_eq!(rows[2].verdict, Some(Verdict::BelowTarget));
    }

    #[test]
    fn two_processes_may_cost_two_percent() {
        let (cases, kinds) =
            (case::all(&[Frames::B64]), [PeerKind::Floodway, PeerKind::SingleProcess]);
        let verdict = |mpps| {
            let rounds = [round(PeerKind::Floodway, mpps), round(PeerKind::SingleProcess, 10.0)];
            rows(&cases, &kinds, &rounds, true)[0].verdict
        };
        assert_eq!(verdict(9.81), Some(Verdict::Ok));
        assert_eq!(verdict(9.79), Some(Verdict::BelowTarget));
    }

    #[test]
    fn baselines_alone_are_not_judged() {
        let cases = case::all(&[Frames::B64]);
        let rows = rows(&cases, &[PeerKind::OvsDpdk], &[round(PeerKind::OvsDpdk, 8.0)], false);
        assert!(rows.iter().all(|row| row.verdict.is_none()));
        assert_eq!((rows[0].value, rows[0].baseline), (None, Some(8.0)));
    }

    #[test]
    fn doubts_are_said() {
        assert!(caveats(&[round(PeerKind::Floodway, 1.0)]).is_empty());
        let mut doubtful = round(PeerKind::Floodway, 1.0);
        doubtful.client_waited = 0.5;
        doubtful.measurement.lost = 3_000_000;
        doubtful.measurement.full_bursts = 0;
        assert_eq!(doubtful.cycles(), None);
        assert_eq!(caveats(&[doubtful]).len(), 3);
    }
}
