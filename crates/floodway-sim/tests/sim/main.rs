//! The simulator as its users see it: one binary, so that it is linked once.

mod determinism;
mod friendliness;
mod machine;
mod network;
mod offload;
mod parallel;
mod schedulers;
mod small_flows;
mod support;
mod tcp;
mod tiers;
