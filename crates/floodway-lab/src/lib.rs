//! The lab: boots real VMs on the switch or on Linux bridge and tap, and runs experiments on them. What they write is
//! [`floodway_report`], what their files say [`floodway_experiment`]; experiments in virtual time are [`floodway_simlab`]. The
//! program `floodway-lab` has the commands of all.
//!
//! The switch under test is always the `floodway` binary, never linked in: what is measured is
//! what an operator runs. Networks between hosts are played by [`floodway_netem`], in a process of its own ([`path`]).

pub mod agent;
pub mod bench;
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
pub mod switch_process;
pub mod transfer;
pub mod vcpu;
pub mod vm;
