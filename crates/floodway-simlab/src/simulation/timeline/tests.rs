use std::path::Path;

use super::*;

fn experiment() -> Experiment {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../experiments/vflood-fig7.toml");
    let mut experiment = Experiment::load(&file).unwrap();
    experiment.use_quick_profile();
    experiment
}

fn args(cell: &[&str]) -> Args {
    Args { cell: cell.iter().map(|word| (*word).to_owned()).collect(), ..Args::default() }
}

const CELL: [&str; 2] = ["vms=3", "bytes=50000"];

#[test]
fn a_critical_path_has_every_moment_of_its_transfer_once() {
    let runs = args(&CELL).select(experiment().runs().unwrap()).unwrap();
    let mut seen = 0;
    for run in &runs {
        let case = case(run).unwrap();
        for played in play::all(case, run.seed).unwrap() {
            let [mut at, ended] = play::ends(case, &played.transfer);
            for stretch in &played.path {
                assert_eq!(stretch.from, at, "{played:?}");
                assert!(stretch.to > at);
                at = stretch.to;
            }
            assert_eq!(at, ended);
            // A connection and its data cross the network there and back.
            let network = played.path.iter().filter(|s| s.spent == path::Spent::Network).count();
            assert!(network >= 4, "{played:?}");
            seen += 1;
        }
    }
    assert!(seen >= 4, "{seen}");
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
