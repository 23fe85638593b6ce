//! Random cases of a property, one seed each: what fails once fails again.
//!
//! `FLOODWAY_CASES=N` asks for other than the usual number, `FLOODWAY_SEED=S` for the cases from
//! seed `S` on. A search runs many of them; `FLOODWAY_SEED=S FLOODWAY_CASES=1` runs what it found. All cases of
//! a search are run, also after one has failed.

use std::fmt::Debug;

use proptest::prelude::{ProptestConfig, Strategy};
use proptest::test_runner::{RngSeed, TestError, TestRunner};

/// Cases of each property that every run of the tests has.
const CASES: u64 = 48;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Runs `property` on what `strategy` makes.
pub fn check<T: Debug>(strategy: impl Strategy<Value = T>, property: impl Fn(T)) {
    let first = number("FLOODWAY_SEED").unwrap_or(1);
    let cases = number("FLOODWAY_CASES").unwrap_or(CASES);
    let mut failed = Vec::new();
    for seed in first..first + cases {
        let mut runner = TestRunner::new(ProptestConfig {
            cases: 1,
            max_shrink_iters: 0,
            failure_persistence: None,
            rng_seed: RngSeed::Fixed(seed),
            ..ProptestConfig::default()
        });
        let outcome = runner.run(&strategy, |case| {
            property(case);
            Ok(())
        });
        match outcome {
            Ok(()) => {}
            Err(TestError::Fail(reason, case)) => {
                eprintln!("seed {seed}: {reason}\n{case:?}");
                failed.push(seed);
            }
            Err(TestError::Abort(reason)) => panic!("seed {seed}: {reason}"),
        }
    }
    assert!(failed.is_empty(), "{} of {cases} cases failed, seeds {failed:?}", failed.len());
}
