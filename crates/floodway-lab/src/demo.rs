//! `floodway-lab demo`: the experiments that show the switch to somebody who just cloned it.

use anyhow::Result;

use crate::experiment::Experiment;

/// The files are part of the program, so that the demo needs no checkout.
const FILES: [&str; 2] = [
    include_str!("../../../experiments/demo.toml"),
    include_str!("../../../experiments/demo-offload.toml"),
];

/// The demo's experiments, in the order in which they run.
///
/// # Errors
/// Never, while the files that were built in are right.
pub fn experiments() -> Result<Vec<Experiment>> {
    FILES.into_iter().map(Experiment::parse).collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_demo_is_built_in() {
        let names: Vec<_> = super::experiments().unwrap().into_iter().map(|e| e.name).collect();
        assert_eq!(names, ["demo", "demo-offload"]);
    }
}
