//! Every mechanism of Floodway, **sans-IO**: no sockets, no threads, no clock, no randomness that
//! is not handed in, no allocation per packet in steady state.
//!
//! Core works on packet metadata (parsed header fields, lengths, port, time) and answers with
//! verdicts and edits; the bytes stay with the caller. The switch runs it on guest memory, the
//! simulator on packets that have no bytes.
//!
//! # Layers
//! Modules import downwards only; `make lint` checks it, also within each of them.
//!
//! | layer | modules |
//! |---|---|
//! | mechanisms | [`offload`], [`inbound`], [`egress`], [`l2`] |
//! | laws and tables | [`congestion`], [`tables`], [`work`], [`watchdog`] |
//! | words | `counters`, [`tcp`] (segments, edits, sequence numbers, round trips), [`token_bucket`], [`time`] |
//!
//! The MAC table and the source policy are one mechanism and stay together in [`l2`]; [`tables`] is what several mechanisms keep flows in.

#![forbid(unsafe_code)]

pub mod congestion;
mod counters;
pub mod egress;
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
