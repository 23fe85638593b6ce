#![doc = include_str!("../README.md")]
//!
//! | module | is |
//! |---|---|
//! | [`config`] | the configuration: names, units, ranges and defaults, from TOML and back |
//! | [`status`] | counters and states of a running switch |
//! | [`histogram`] | how many durations were how long |
//! | [`activity`] | the few of them that are shown again and again |
//! | [`control`] | what can be asked of and changed in a running switch |
//! | [`edit`], [`plan`] | changes of a configuration, and what they do to a running switch |
//! | [`settings`] | settings made at run time, and configurations with them |
//! | [`capture`] | what of frames is to be captured |
//! | [`events`] | what happens, and in which words |
//! | [`diagnosis`] | what is wrong with a port, and what to do about it |
//! | [`moves`] | connections that follow VMs to other hosts |
//! | [`networks`] | networks, and who is in them |
//! | [`openapi`] | all that sockets answer, as an OpenAPI document |
//! | [`trace`] | what would become of a frame |
//! | [`client`] | a client of the control socket |

pub mod activity;
pub mod capture;
#[cfg(feature = "client")]
pub mod client;
pub mod config;
pub mod control;
pub mod diagnosis;
pub mod edit;
pub mod events;
pub mod histogram;
pub mod moves;
pub mod networks;
pub mod openapi;
pub mod plan;
pub mod settings;
pub mod status;
pub mod trace;
pub mod transmit;

pub use config::Config;
