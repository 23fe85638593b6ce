//! Emulated networks as the lab runs them: a process of its own, whose inside is [`floodway_netem`].
//!
//! [`command`] is that process, `floodway-lab path`; [`handle`] starts it as a child and asks it.

pub mod command;
pub mod handle;

pub use handle::Path;
