//! From blocks to rows, samples and notes.

use floodway_report::stats;
use floodway_report::{Bar, Measured, Row, Samples};

use super::load::Load;
use super::{Results, WebApplication};
use crate::experiment::transfer::{Profile, Variant, contention};

/// What is compared: name, unit, and where it comes from.
type Measure = (&'static str, &'static str, fn(&Load) -> f64);

const MEASURES: [Measure; 5] = [
    ("operations", "operations/s", Load::rate),
    ("latency mean", "ms", |load| load.mean_us / 1e3),
    ("latency median", "ms", |load| load.p50_us / 1e3),
    ("latency p90", "ms", |load| load.p90_us / 1e3),
    ("latency p99", "ms", |load| load.p99_us / 1e3),
];
/// Lost before there is a connection that could be offloaded.
const SYNS: &str = "TcpExtTCPSynRetrans";
/// Counters of the VMs' kernels that become rows, and whether the kernel counts [`SYNS`] in them as well.
const COUNTERS: [(&str, &str, bool); 3] = [
    ("TcpRetransSegs", "retransmissions", true),
    ("TcpExtTCPTimeouts", "timeouts", true),
    ("TcpExtTCPLossProbes", "loss probes", false),
];

/// The report of a scenario's results. Figures are means over blocks.
pub fn figures(scenario: &WebApplication, results: &Results) -> Measured {
    let mut measured = Measured::default();
    for &profile in &scenario.profiles {
        for measure in MEASURES {
            compare(scenario, results, profile, measure, &mut measured);
        }
        order(scenario, results, profile, &mut measured);
    }
    health(scenario, results, &mut measured);
    for &profile in &scenario.profiles {
        let slices = results.slices.get(&profile).copied().unwrap_or_default();
        contention::tell(&mut measured, profile, scenario.emulator(profile), slices);
    }
    measured
}

fn compare(
    scenario: &WebApplication,
    results: &Results,
    profile: Profile,
    (what, unit, of): Measure,
    measured: &mut Measured,
) {
    let baseline = series(results, profile, scenario.variants[0], of);
    if scenario.variants.len() == 1 {
        let name = format!("{what} {} {}", profile.name(), scenario.variants[0].name());
        measured.rows.push(Row::value(name, unit, stats::mean(&baseline)));
        return;
    }
    for &variant in &scenario.variants[1..] {
        let name = format!("{what} {} {}", profile.name(), variant.name());
        let value = series(results, profile, variant, of);
        let (mean, baseline_mean) = (stats::mean(&value), stats::mean(&baseline));
        measured.rows.push(Row::comparison(&name, unit, mean, baseline_mean));
        measured.samples.push(Samples {
            name,
            unit: unit.into(),
            value,
            baseline: baseline.clone(),
            variants: Some(
                [variant, scenario.variants[0]].map(|variant| variant.name().to_owned()),
            ),
            bar: Some(Bar {
                chart: what.into(),
                series: profile.name().into(),
                label: variant.name().into(),
                ..Bar::default()
            }),
        });
    }
}

fn series(results: &Results, profile: Profile, variant: Variant, of: fn(&Load) -> f64) -> Vec<f64> {
    let blocks = results.blocks.get(&(profile, variant));
    blocks.map_or_else(Vec::new, |blocks| blocks.iter().map(of).collect())
}

/// How many variants do better than the one that is expected right below them.
fn order(scenario: &WebApplication, results: &Results, profile: Profile, measured: &mut Measured) {
    if scenario.order.len() < 2 {
        return;
    }
    let rate = |variant| stats::mean(&series(results, profile, variant, Load::rate));
    let rates: Option<Vec<f64>> = scenario.order.iter().map(|&variant| rate(variant)).collect();
    let steps = rates.map(|rates| rates.windows(2).filter(|pair| pair[0] < pair[1]).count());
    let steps = steps.and_then(|steps| u32::try_from(steps).ok()).map(f64::from);
    let name = format!("variants in order {}", profile.name());
    let unit = format!("of {}", scenario.order.len() - 1);
    measured.rows.push(Row::value(name, &unit, steps));
}

fn health(scenario: &WebApplication, results: &Results, measured: &mut Measured) {
    for ((profile, variant), counters) in &results.counters {
        for (counter, name, has_syns) in COUNTERS {
            let get = |counter| counters.get(counter).copied().unwrap_or(0);
            let row = format!("guest {name} {} {}", profile.name(), variant.name());
            let syns = if has_syns { get(SYNS) } else { 0 };
            let own = get(counter).saturating_sub(syns).max(0);
            measured.add_value(row, "events", own as f64);
        }
    }
    let all = || results.blocks.values().flatten();
    let failed: u64 = all().map(|load| load.failed).sum();
    let answered: u64 = all().map(|load| load.operations).sum();
    measured.add_value("operations", "operations", answered as f64);
    measured.add_value("operations failed", "operations", failed as f64);
    measured.add_value("others on the core of the VMs", "%", results.strangers * 100.0);
    measured.notes.push(format!(
        "{} visitors at once; blocks of {} s, {} in each variant; each VM busy for {} % besides",
        scenario.clients, scenario.block_s, scenario.blocks, scenario.load_percent
    ));
}

#[cfg(test)]
mod tests {
    use floodway_report::report::add_intervals;

    use super::*;
    use crate::kernel::Series;

    const VARIANTS: [Variant; 3] = [Variant::Vanilla, Variant::Receive, Variant::Transmit];

    fn load(rate: u64) -> Load {
        Load {
            operations: rate * 10,
            duration_us: 10_000_000,
            bytes: 1,
            failed: 1,
            mean_us: 2000.0,
            p50_us: 1000.0,
            p90_us: 3000.0,
            p99_us: 4000.0,
        }
    }

    fn measured(rates: [[u64; 3]; 3]) -> Measured {
        let profile = Profile::Today;
        let scenario = WebApplication {
            kernel: Series::V6_1,
            variants: VARIANTS.to_vec(),
            order: VARIANTS.to_vec(),
            profiles: vec![profile],
            load_percent: 30,
            period_ms: 30,
            emulator: None,
            guest_receive_buffer: None,
            clients: 8,
            block_s: 10,
            blocks: 3,
        };
        let mut results = Results::default();
        for (variant, rates) in VARIANTS.into_iter().zip(rates) {
            results.blocks.insert((profile, variant), rates.map(load).to_vec());
            let counters =
                [("TcpRetransSegs", 9), ("TcpExtTCPSynRetrans", 2), ("TcpExtTCPLossProbes", 6)];
            let counters = counters.map(|(name, count)| (name.to_owned(), count)).into();
            results.counters.insert((profile, variant), counters);
        }
        figures(&scenario, &results)
    }

    fn headline(measured: &Measured, name: &str) -> Option<f64> {
        measured
            .rows
            .iter()
            .find(|row| row.name == name)
            .unwrap_or_else(|| panic!("{name}"))
            .headline()
    }

    #[test]
    fn columns_are_compared_with_the_first_by_means_of_blocks() {
        let measured = measured([[10, 20, 30], [22, 22, 22], [30, 30, 30]]);
        assert_eq!(headline(&measured, "operations today receive"), Some(1.1));
        assert_eq!(headline(&measured, "operations today transmit"), Some(1.5));
        assert_eq!(headline(&measured, "latency p99 today transmit"), Some(1.0));
        assert_eq!(headline(&measured, "variants in order today"), Some(2.0));
        assert_eq!(headline(&measured, "operations failed"), Some(9.0));
        assert_eq!(headline(&measured, "guest retransmissions today receive"), Some(7.0));
        assert_eq!(headline(&measured, "guest loss probes today receive"), Some(6.0));
        let mut measured = measured;
        add_intervals(&mut measured.rows, &measured.samples, 1);
        let row = measured.rows.iter().find(|row| row.name == "operations today receive").unwrap();
        assert!(row.interval.is_some_and(|interval| interval.holds(1.0)), "{row:?}");
    }

    #[test]
    fn a_column_that_falls_back_is_out_of_order() {
        let measured = measured([[20, 20, 20], [19, 19, 19], [30, 30, 30]]);
        assert_eq!(headline(&measured, "variants in order today"), Some(1.0));
    }
}
