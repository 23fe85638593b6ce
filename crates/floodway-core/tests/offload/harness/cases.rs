//! Random cases of a property, one seed each: what fails once fails again.
//!
//! `FLOODWAY_CASES=N` asks for other than the usual number, `FLOODWAY_SEED=S` for the cases from
//! seed `S` on. A search runs many of them; `FLOODWAY_SEED=S FLOODWAY_CASES=1` runs what it found. All cases of
//! a search are run, also after one has failed.
//!
//! `tests/regressions.txt` lists seeds that failed once, a line `binary property seed` for each; every run replays those of its
//! property first. With `FLOODWAY_KEEP` set, a failing seed is added. A seed means another case once a generator has
//! changed: what a search finds becomes a small fixed case as well.

use std::fmt::Debug;
use std::io::Write;

use proptest::prelude::{ProptestConfig, Strategy};
use proptest::test_runner::{RngSeed, TestError, TestRunner};

/// Cases of each property that every run of the tests has.
const CASES: u64 = 48;
const REGRESSIONS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/regressions.txt");
const BINARY: &str = env!("CARGO_CRATE_NAME");

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// The name of the running test. Tests that do not run in threads of their own have none.
fn property_name() -> String {
    let name = std::thread::current().name().unwrap_or("main").to_owned();
    name.rsplit("::").next().unwrap_or_default().to_owned()
}

/// Seeds that failed once; those of all properties if the running test has no name.
fn regressions(binary: &str, property: &str, list: &str) -> Vec<u64> {
    let seeds = list.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        let is_meant = words.next()? == binary && [words.next()?, "main"].contains(&property);
        is_meant.then(|| words.next()?.parse().ok())?
    });
    seeds.collect()
}

fn keep(property: &str, seed: u64) {
    let file = std::fs::OpenOptions::new().create(true).append(true).open(REGRESSIONS);
    if let Err(error) = file.and_then(|mut file| writeln!(file, "{BINARY} {property} {seed}")) {
        eprintln!("seed {seed} is not kept: {REGRESSIONS}: {error}");
    }
}

/// Runs `property` on what `strategy` makes.
pub fn check<T: Debug>(strategy: impl Strategy<Value = T>, property: impl Fn(T)) {
    check_at_least(CASES, strategy, property);
}

/// Runs `property` on `usual` cases, unless `FLOODWAY_CASES` says otherwise.
pub fn check_at_least<T: Debug>(
    usual: u64,
    strategy: impl Strategy<Value = T>,
    property: impl Fn(T),
) {
    let first = number("FLOODWAY_SEED").unwrap_or(1);
    let cases = number("FLOODWAY_CASES").unwrap_or(usual);
    let name = property_name();
    let known =
        regressions(BINARY, &name, &std::fs::read_to_string(REGRESSIONS).unwrap_or_default());
    let failed: Vec<_> = known
        .iter()
        .copied()
        .chain(first..first + cases)
        .filter(|&seed| !holds(&strategy, &property, seed))
        .collect();
    for &seed in &failed {
        let run = "cargo test --locked -p floodway-core --test";
        eprintln!("repeat: FLOODWAY_SEED={seed} FLOODWAY_CASES=1 {run} {BINARY} {name}");
        if std::env::var_os("FLOODWAY_KEEP").is_some() && !known.contains(&seed) {
            keep(&name, seed);
        }
    }
    assert!(failed.is_empty(), "{} of {cases} cases failed, seeds {failed:?}", failed.len());
}

/// Returns `true` if the case of a seed passes.
fn holds<T: Debug>(strategy: &impl Strategy<Value = T>, property: &impl Fn(T), seed: u64) -> bool {
    let mut runner = TestRunner::new(ProptestConfig {
        cases: 1,
        max_shrink_iters: 0,
        failure_persistence: None,
        rng_seed: RngSeed::Fixed(seed),
        ..ProptestConfig::default()
    });
    let outcome = runner.run(strategy, |case| {
        property(case);
        Ok(())
    });
    match outcome {
        Ok(()) => true,
        Err(TestError::Fail(reason, case)) => {
            eprintln!("seed {seed}: {reason}\n{case:?}");
            false
        }
        Err(TestError::Abort(reason)) => panic!("seed {seed}: {reason}"),
    }
}

#[test]
fn seeds_that_failed_once_are_found_by_their_property() {
    let list = "offload one 7\ninbound one 8\noffload two 9\n\noffload one x\n";
    assert_eq!(regressions("offload", "one", list), [7]);
    assert_eq!(regressions("offload", "main", list), [7, 9]);
    assert_eq!(regressions("inbound", "two", list), []);
}
