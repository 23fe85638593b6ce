#![doc = include_str!("../README.md")]

pub mod broker;
pub mod model;
pub mod plane;
pub mod properties;
pub mod scenario;
pub mod step;
pub mod world;

#[cfg(test)]
mod exhaustive;
