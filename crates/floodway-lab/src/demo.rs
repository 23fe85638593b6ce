//! `floodway-lab demo`: the experiment that shows the switch to somebody who just cloned it.

use anyhow::Result;

use crate::experiment::Experiment;

/// The file is part of the program, so that the demo needs no checkout.
const FILE: &str = include_str!("../../../experiments/demo.toml");

/// The demo's experiment.
///
/// # Errors
/// Never, while the file that was built in is right.
pub fn experiment() -> Result<Experiment> {
    Experiment::parse(FILE)
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_demo_is_built_in() {
        assert_eq!(super::experiment().unwrap().name, "demo");
    }
}
