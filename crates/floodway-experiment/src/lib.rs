#![doc = include_str!("../README.md")]
//!
//! # Theory of operation
//!
//! An experiment is one TOML file: its name, what to do (the scenario, by `kind`), which figures are accepted (its bands),
//! and, in the table `[sim]`, what the simulator needs beyond that. Each world reads it as a [`File`] of those kinds of
//! scenario that it knows. Kinds that both know are here, with whatever makes their figures comparable: [`transfer`], and
//! [`friendliness`], whose trials both worlds turn into rows in the same way.

mod file;
pub mod friendliness;
mod series;
pub mod transfer;

pub use file::{File, files};
pub use series::Series;
