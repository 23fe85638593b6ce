#![doc = include_str!("../README.md")]
//!
//! [`engine`] knows time, events and seeds. The models stand beside it; each file opens with its
//! theory of operation.
//!
//! Modules import downwards only, which `make lint` checks: [`traffic`] and [`parallel`] stand on [`world`], that and [`hooks`] on [`machine`], that on what
//! all parts of a world share (`env`), that on [`net`], [`cpu`], [`flow`] and [`trace`], then
//! [`tcp`], [`packet`], names (`ids`) and [`engine`].

#![forbid(unsafe_code)]

pub mod cpu;
pub mod engine;
mod env;
pub mod flow;
pub mod hooks;
mod ids;
pub mod machine;
pub mod net;
pub mod packet;
pub mod parallel;
pub mod tcp;
pub mod trace;
pub mod traffic;
pub mod world;

pub use floodway_core::time::{Duration, Instant};
