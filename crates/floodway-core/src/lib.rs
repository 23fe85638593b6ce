#![doc = include_str!("../README.md")]
//!
//! # Layers
//! Modules import downwards only; `make lint` checks it, also within each of them.
//!
//! | layer | modules |
//! |---|---|
//! | mechanisms | [`offload`], [`inbound`], [`egress`], [`l2`] |
//! | laws and tables | [`congestion`], [`tables`], [`work`], [`watchdog`] |
//! | words | `counters`, [`histogram`], [`tcp`] (segments, edits, sequence numbers, round trips), [`token_bucket`], [`time`] |
//!
//! The MAC table and the source policy are one mechanism and stay together in [`l2`]; [`tables`] is what several mechanisms keep flows in.

#![forbid(unsafe_code)]

pub mod congestion;
mod counters;
pub mod egress;
pub mod histogram;
pub mod inbound;
pub mod l2;
pub mod offload;
#[cfg(any(test, fuzzing))]
pub mod steps;
#[cfg(not(any(test, fuzzing)))]
mod steps;
pub mod tables;
pub mod tcp;
pub mod time;
pub mod token_bucket;
pub mod watchdog;
pub mod work;

pub use tcp::{rtt, seq};

// What benches and unit tests share names the crate as the benches do.
#[cfg(test)]
extern crate self as floodway_core;
