//! The lab: boots real VMs on the switch or on Linux bridge and tap, runs experiments on them, and
//! writes reports.
//!
//! The switch under test is always the `floodway` binary, never linked in: what is measured is
//! what an operator runs. Networks between hosts are played by [`floodway_netem`], in a process of its own ([`path`]).

pub mod agent;
pub mod bench;
pub mod bench_sim;
pub mod cache;
pub mod child;
pub mod cleanup;
pub mod demo;
pub mod doctor;
pub mod experiment;
pub mod guest_image;
pub mod kernel;
pub mod net;
pub mod path;
pub mod process;
pub mod simulation;
pub mod sweep;
pub mod switch_process;
pub mod transfer;
pub mod vcpu;
pub mod vm;
