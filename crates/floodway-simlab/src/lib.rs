#![doc = include_str!("../README.md")]
//!
//! | module | is |
//! |---|---|
//! | [`simulation`] | `floodway-lab sim`: experiments as lists of independent runs, and their reports |
//! | [`sweep`] | `floodway-lab sweep`: the runs of an experiment for many seeds, in one table, on one machine or many |
//! | [`bench_sim`] | `floodway-lab bench-sim`: the simulator beside ns-3 |

pub mod bench_sim;
pub mod simulation;
pub mod sweep;
