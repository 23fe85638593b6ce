//! From slices to the table, the report's rows and its samples.

use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{ContentArrangement, Table};
use floodway_report::table::number;
use floodway_report::{Row, Samples, Verdict, stats};

use super::kind::Kind;
use super::slices::{Load, Paired, Slice, attackers_share};
use super::{Case, Results};
use crate::bench::peer::PeerKind;

/// What the 99 % quantile of round trips may be, in multiples of calm and microseconds.
const P99_TIMES: f64 = 2.0;
const P99_PLUS_US: f64 = 200.0;

const HEADER: [&str; 8] = [
    "attack",
    "switch",
    "p50 µs",
    "p99 µs (limit)",
    "round trips/s",
    "stream Gbit/s: ratio [95 %], fair",
    "attacker's share",
    "holds",
];

/// The figures of a case.
struct Figures {
    p50: Paired,
    p99: Paired,
    trips: Paired,
    stream: Paired,
    /// Frames a second that are not the victims', under attack and calm.
    foreign: Paired,
    /// 99 % of the client's turns, in microseconds.
    turns: Paired,
    /// Share of the client's time that the attacker's VMs took, in percent.
    attacking: Paired,
    share: Option<f64>,
    fair: f64,
    /// What the victims must keep of it, and of round trips.
    kept: f64,
}

impl Figures {
    fn of(case: &Case) -> Self {
        let of =
            |load, figure: fn(&Slice) -> Option<f64>| Paired::collect(&case.slices, load, figure);
        let share = attackers_share(&case.slices, Load::Stream);
        Self {
            p50: of(Load::RoundTrips, |slice| slice.p50_us),
            p99: of(Load::RoundTrips, |slice| slice.p99_us),
            trips: of(Load::RoundTrips, |slice| Some(slice.rate)),
            stream: of(Load::Stream, |slice| Some(slice.rate)),
            foreign: of(Load::RoundTrips, |slice| Some(slice.foreign)),
            turns: of(Load::RoundTrips, |slice| Some(slice.client.turn_p99_us)),
            attacking: of(Load::RoundTrips, |slice| Some(100.0 * slice.client.attacking)),
            share,
            // Of a switch that does not say it counts as all that the attacker may have.
            fair: case
                .attack
                .fair_share(share.or((case.peer != PeerKind::Floodway).then_some(1.0))),
            kept: case.attack.kept(),
        }
    }

    /// Greatest accepted ratio of the 99 % quantiles.
    fn p99_limit(&self) -> Option<f64> {
        let [calm, _] = self.p99.medians()?;
        Some((P99_TIMES * calm + P99_PLUS_US) / calm)
    }

    /// Name, unit and figure of each row, and the band of its ratio.
    fn judged(&self) -> [(&'static str, &'static str, &Paired, [Option<f64>; 2]); 7] {
        // A limit that is not known is one that nothing keeps.
        let p99 = self.p99_limit().unwrap_or(0.0);
        [
            ("round trip p50", "us", &self.p50, [None, None]),
            ("round trip p99", "us", &self.p99, [None, Some(p99)]),
            ("round trips", "1/s", &self.trips, [Some(self.kept), None]),
            ("stream", "Gbit/s", &self.stream, [Some(self.kept * self.fair), None]),
            ("foreign frames", "1/s", &self.foreign, [None, None]),
            ("client's turn p99", "us", &self.turns, [None, None]),
            ("client's time for the attacker", "%", &self.attacking, [None, None]),
        ]
    }
}

fn name(case: &Case) -> String {
    format!("{}/{}", case.peer, case.attack.name())
}

/// Figures under attack beside those of calm slices. Those of Floodway have bands; a switch that ended has failed them.
pub fn rows(case: &Case) -> Vec<Row> {
    let figures = Figures::of(case);
    let mut rows = Vec::new();
    for (what, unit, paired, [low, high]) in figures.judged() {
        let [calm, attacked] = paired.medians().map_or([None; 2], |medians| medians.map(Some));
        let mut row = Row::comparison(format!("{} {what}", name(case)), unit, attacked, calm);
        if case.peer == PeerKind::Floodway {
            row.judge(low, high, None);
            if case.ended.is_some() && row.verdict.is_some() {
                row.verdict = Some(Verdict::BelowTarget);
            }
        }
        rows.push(row);
    }
    let share = figures.share.map(|share| 100.0 * share);
    rows.push(Row::value(format!("{} attacker's share", name(case)), "%", share));
    let fair = Some(100.0 * figures.fair).filter(|_| !case.slices.is_empty());
    rows.push(Row::value(format!("{} fair share of the stream", name(case)), "%", fair));
    rows
}

/// What [`rows`] were computed from.
pub fn samples(case: &Case) -> Vec<Samples> {
    let figures = Figures::of(case);
    let samples = figures.judged().map(|(what, unit, paired, _)| Samples {
        name: format!("{} {what}", name(case)),
        unit: unit.into(),
        value: paired.attacked.clone(),
        baseline: paired.calm.clone(),
        variants: Some(["under attack".into(), "calm".into()]),
        bar: None,
    });
    samples.into()
}

/// Whether an attack did no more than it may. `None` if it was not measured.
fn holds(case: &Case) -> Option<bool> {
    if case.ended.is_some() {
        return Some(false);
    }
    let figures = Figures::of(case);
    figures.stream.ratio()?;
    Some(figures.judged().iter().all(|(_, _, paired, [low, high])| {
        let ratio = paired.ratio();
        low.is_none_or(|low| ratio.is_some_and(|ratio| ratio >= low))
            && high.is_none_or(|high| ratio.is_some_and(|ratio| ratio <= high))
    }))
}

/// One line for each attack and switch: calm → under attack.
pub fn table(cases: &[Case]) -> String {
    let mut table = Table::new();
    table.load_style(UTF8_FULL_CONDENSED);
    table.set_content_arrangement(ContentArrangement::Dynamic);
    table.set_header(HEADER);
    for case in cases {
        table.add_row(cells(case));
    }
    table.to_string()
}

fn cells(case: &Case) -> [String; 8] {
    let figures = Figures::of(case);
    let change = |paired: &Paired| {
        paired.medians().map_or_else(
            || "-".into(),
            |[calm, attacked]| format!("{} → {}", number(calm), number(attacked)),
        )
    };
    let percent = |share: f64| format!("{:.0} %", 100.0 * share);
    let limit = figures.p99.medians().map(|[calm, _]| P99_TIMES * calm + P99_PLUS_US);
    let verdict = match holds(case) {
        Some(true) => "yes".into(),
        Some(false) => "NO".to_owned(),
        None => "-".into(),
    };
    [
        case.attack.name(),
        case.peer.to_string(),
        change(&figures.p50),
        format!("{} ({})", change(&figures.p99), limit.map_or("-".into(), number)),
        change(&figures.trips),
        format!("{}: {}", change(&figures.stream), stream_ratio(&figures)),
        figures.share.map_or("-".into(), percent),
        [Some(verdict), case.ended.clone()].into_iter().flatten().collect::<Vec<_>>().join(": "),
    ]
}

/// Ratio of the streams, its interval, and the fair one.
fn stream_ratio(figures: &Figures) -> String {
    let ratio = figures.stream.ratio().map_or("-".into(), number);
    let interval = figures.stream.interval();
    let interval = interval.map_or("-".into(), |interval| {
        format!("{} to {}", number(interval.low), number(interval.high))
    });
    format!("{ratio} [{interval}], {}", number(figures.fair))
}

/// What a reader must know before trusting the figures.
pub fn notes(results: &Results, is_short: bool) -> Vec<String> {
    let [kept, captured] = [Kind::SmallFrames, Kind::Capture].map(Kind::kept);
    let mut notes = vec![
        "under attack beside calm slices in turns, medians over slices; all VMs are played by one thread, whose turns are part of each latency".into(),
        format!(
            "holds: the stream keeps {kept} of its fair share, round trips {kept} of their rate (beside a capture {captured}), and their 99 % quantile stays within {P99_TIMES} times calm and {P99_PLUS_US} us"
        ),
    ];
    if let Some(dearer) = results.dearer {
        notes.push(format!(
            "without any switch, a loop that copies the stream's frames in turns with other work that takes as long pays {dearer:.2} times as much for each: half of the time is {:.2} of the frames on this machine",
            0.5 / dearer
        ));
    }
    for case in &results.cases {
        notes.push(note(case));
    }
    for (what, reason) in &results.skipped {
        notes.push(format!("{what}: skipped, {}", reason.lines().next().unwrap_or_default()));
    }
    if is_short {
        notes.push("fewer than 30 slices of each kind: a look at whether all works".into());
    }
    notes
}

/// The interval of a case's stream, what fair is, and what the client takes.
fn note(case: &Case) -> String {
    if let (Some(ended), true) = (&case.ended, case.slices.is_empty()) {
        return format!("{}: {ended}", name(case));
    }
    let figures = Figures::of(case);
    let client = |paired: &Paired| paired.medians().map_or("-".into(), |[_, value]| number(value));
    let longest = case.slices.iter().map(|slice| slice.client.turn_max_us).collect::<Vec<_>>();
    let mut note = format!(
        "{}: stream {}; fair is {}; client: 99 % of its turns within {} us under attack, median of the longest {} us, {} % of its time for the attacker",
        name(case),
        stream_ratio(&figures),
        case.attack.fairness(),
        client(&figures.turns),
        stats::median(&longest).map_or("-".into(), number),
        client(&figures.attacking),
    );
    if let Some(ended) = &case.ended {
        note += &format!("; {ended}");
    }
    note
}

#[cfg(test)]
mod tests {
    use super::super::kind::Kind;
    use super::super::slices::tests::slice;
    use super::*;

    /// Round trips of 50 µs and a stream of 10 Gbit/s in calm slices, and these under attack.
    fn case(peer: PeerKind, p99: f64, stream: f64, share: Option<f64>) -> Case {
        let mut slices = Vec::new();
        for _ in 0..4 {
            slices.push(slice(Load::RoundTrips, false, 50.0));
            slices.push(slice(Load::RoundTrips, true, p99));
            slices.push(slice(Load::Stream, false, 10.0));
            let mut attacked = slice(Load::Stream, true, stream);
            attacked.charged = share.map(|share| [share, 1.0]);
            slices.push(attacked);
        }
        Case { peer, attack: Kind::SmallFrames, slices, ended: None }
    }

    fn floodway(p99: f64, stream: f64, share: Option<f64>) -> Case {
        case(PeerKind::Floodway, p99, stream, share)
    }

    fn verdicts(case: &Case) -> Vec<Verdict> {
        rows(case).iter().filter_map(|row| row.verdict).collect()
    }

    #[test]
    fn a_victim_that_keeps_its_half_and_waits_little_longer_is_isolated() {
        let case = floodway(299.0, 4.6, Some(0.5));
        assert_eq!(verdicts(&case), [Verdict::Ok; 3]);
        assert_eq!(holds(&case), Some(true));
    }

    #[test]
    fn a_99_percent_quantile_beyond_twice_calm_and_200_us_does_not_hold() {
        let case = floodway(301.0, 4.6, Some(0.5));
        assert_eq!(verdicts(&case), [Verdict::BelowTarget, Verdict::Ok, Verdict::Ok]);
        assert_eq!(holds(&case), Some(false));
    }

    #[test]
    fn a_stream_below_its_fair_share_does_not_hold() {
        assert_eq!(holds(&floodway(50.0, 4.4, Some(0.5))), Some(false));
        // An attacker that was charged for little leaves the victim much.
        assert_eq!(holds(&floodway(50.0, 4.6, Some(0.1))), Some(false));
        assert_eq!(holds(&floodway(50.0, 8.2, Some(0.1))), Some(true));
        assert_eq!(holds(&floodway(50.0, 8.2, None)), Some(false), "unknown is nothing");
    }

    #[test]
    fn a_switch_that_ended_does_not_hold_whatever_it_did_before() {
        let ended = Case { ended: Some("it ended".into()), ..floodway(50.0, 10.0, Some(0.0)) };
        assert_eq!(verdicts(&ended), [Verdict::BelowTarget; 3]);
        assert_eq!(holds(&ended), Some(false));
        let nothing = Case { slices: Vec::new(), ..ended };
        assert_eq!(verdicts(&nothing), [Verdict::BelowTarget; 3]);
    }

    #[test]
    fn what_was_not_measured_is_short() {
        let unmeasured = Case { slices: Vec::new(), ..floodway(50.0, 10.0, None) };
        assert_eq!(verdicts(&unmeasured), [Verdict::BelowTarget; 3]);
        assert_eq!(holds(&unmeasured), None);
    }

    #[test]
    fn other_switches_are_measured_and_not_judged() {
        let ovs = case(PeerKind::OvsDpdk, 100_000.0, 0.0, None);
        assert_eq!(verdicts(&ovs), []);
        assert_eq!(holds(&ovs), Some(false));
        assert_eq!(rows(&ovs).last().unwrap().value, Some(50.0), "its share is not known");
        let row = &rows(&ovs)[1];
        assert_eq!((row.value, row.baseline), (Some(100_000.0), Some(50.0)));
    }

    #[test]
    fn the_table_shows_calm_and_attacked_and_the_verdict() {
        let text = table(&[floodway(301.0, 4.6, Some(0.5))]);
        for shown in ["small-frames", "50 → 301", "300", "10 → 4.60", "50 %", "NO"] {
            assert!(text.contains(shown), "{shown} in\n{text}");
        }
    }
}
