use std::path::Path;

use super::*;

fn experiment() -> Experiment {
    experiment_of("vflood-fig7")
}

fn experiment_of(name: &str) -> Experiment {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../experiments").join(name);
    let mut experiment = Experiment::load(&file.with_extension("toml")).unwrap();
    experiment.use_quick_profile();
    experiment
}

fn args(cell: &[&str]) -> Args {
    Args { cell: cell.iter().map(|word| (*word).to_owned()).collect(), ..Args::default() }
}

const CELL: [&str; 2] = ["vms=3", "bytes=50000"];

#[test]
fn a_critical_path_has_every_moment_of_its_transfer_once() {
    for name in ["vflood-fig7", "vsnoop-fig7"] {
        let runs = args(&CELL).select(experiment_of(name).runs().unwrap()).unwrap();
        let seen: usize = runs.iter().map(has_every_moment_once).sum();
        assert!(seen >= 4, "{name}: {seen}");
    }
}

/// Returns how many transfers were seen.
fn has_every_moment_once(run: &Run) -> usize {
    let all = play::all(case(run).unwrap(), run.seed).unwrap();
    for played in &all {
        let [mut at, ended] = play::ends(&played.transfer);
        for stretch in &played.path {
            assert_eq!(stretch.from, at, "{played:?}");
            assert!(stretch.to > at);
            at = stretch.to;
        }
        assert_eq!(at, ended);
        // A connection and its data cross the network there and back.
        let network = played.path.iter().filter(|s| s.spent == path::Spent::Network).count();
        assert!(network >= 4, "{played:?}");
    }
    all.len()
}

#[test]
fn the_same_cell_and_seed_give_the_same_bytes() {
    let outcome = || args(&CELL).run(&experiment(), None).unwrap();
    let (one, other) = (outcome(), outcome());
    assert_eq!(one.svg, other.svg);
    assert_eq!(one.render(), other.render());
    assert_eq!(serde_json::to_string(&one).unwrap(), serde_json::to_string(&other).unwrap());
    let of = |n: usize| &one.variants[n];
    assert_eq!([&of(0).name[..], &of(1).name], ["vanilla", "transmit"]);
    for variant in &one.variants {
        // What is drawn is the transfer of the median.
        let longest = variant.account.mean_ms.values().flatten().sum::<f64>();
        assert!(longest > 0.0 && variant.drawn.whole_ms > 0.0);
        let data =
            variant.drawn.packets.iter().any(|packet| format!("{packet:?}").contains("sent"));
        assert!(data, "{variant:?}");
    }
}

#[test]
fn a_drawing_that_is_cut_says_so() {
    let whole = args(&CELL).run(&experiment(), None).unwrap();
    assert!(!whole.svg.contains("Cut:"));
    let lengths = whole.variants.iter().map(|variant| variant.drawn.whole_ms);
    let half = lengths.fold(0.0, f64::max) / 2.0;
    let cut = Args { to_ms: Some(half), ..args(&CELL) }.run(&experiment(), None).unwrap();
    assert!(cut.svg.contains(&format!("Cut: 0.0 to {half:.1} ms of ")), "{}", cut.svg);
    let packets = |outcome: &Outcome| -> usize {
        outcome.variants.iter().map(|variant| variant.drawn.packets.len()).sum()
    };
    assert!(0 < packets(&cut) && packets(&cut) < packets(&whole));
}

#[test]
fn nothing_is_drawn_of_what_came_after_a_transfer() {
    let outcome = args(&CELL).run(&experiment(), None).unwrap();
    let lengths: Vec<_> = outcome.variants.iter().map(|v| v.drawn.whole_ms).collect();
    assert!((lengths[0] - lengths[1]).abs() > 1.0, "one is longer: {lengths:?}");
    for variant in &outcome.variants {
        let whole = variant.drawn.whole_ms;
        assert!(variant.drawn.vcpus.iter().all(|vcpu| vcpu.end() <= whole + 1e-6), "{variant:?}");
    }
    assert!(!outcome.svg.contains("-0.00"));
}

#[test]
fn a_drawing_that_begins_later_has_the_same_colours_and_goes_on_where_curves_are() {
    let whole = args(&CELL).run(&experiment(), None).unwrap();
    let [_, half] = whole.variants[0].drawn.phases[2].1.map(|ms| ms * 0.999);
    let cut = Args { from_ms: half, ..args(&CELL) }.run(&experiment(), None).unwrap();
    let sent = |outcome: &Outcome| {
        outcome.variants[0].drawn.packets.iter().filter(|p| p.is("sent")).count()
    };
    assert!(sent(&cut) < sent(&whole));
    let curve = cut.svg.matches("line thin s0").count();
    assert_eq!(curve, whole.svg.matches("line thin s0").count());
    let empty = cut.svg.matches("line thin s0\" d=\"\"").count();
    assert_eq!(empty, 0, "the bytes that were sent before are where the curve begins");
}

#[test]
fn a_window_that_is_none_is_an_error() {
    let error = |args: Args| args.run(&experiment(), None).unwrap_err().to_string();
    for from_ms in [-1.0, f64::NAN, f64::INFINITY] {
        let error = error(Args { from_ms, ..args(&CELL) });
        assert!(error.starts_with("--from-ms"), "{error}");
    }
    for to_ms in [0.0, f64::INFINITY] {
        let error = error(Args { to_ms: Some(to_ms), ..args(&CELL) });
        assert!(error.starts_with("--to-ms"), "{error}");
    }
}

#[test]
fn exactly_one_cell_has_to_fit() {
    let error =
        |cell: &[&str]| args(cell).select(experiment().runs().unwrap()).unwrap_err().to_string();
    let several = error(&["vms=3"]);
    assert!(several.starts_with("several cells fit"), "{several}");
    assert!(
        several.contains("bytes=50000")
            && !several
                .contains("bytes=50000 flows=1 host=xen-2011 load_percent=60 path=local vms=2"),
        "{several}"
    );
    assert!(error(&["vms=7"]).starts_with("no cell fits"));
    assert!(error(&["vms"]).contains("no NAME=VALUE"));
}

#[test]
fn a_transfer_that_is_not_there_is_an_error() {
    let missing = Args { transfer: NonZeroUsize::new(1000), ..args(&CELL) };
    let error = missing.run(&experiment(), None).unwrap_err();
    assert!(format!("{error:#}").contains("transfers in the trace"), "{error:#}");
}
