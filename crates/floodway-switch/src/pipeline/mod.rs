//! The way of frames: where each goes, what mechanisms see of it on the way, and its delivery.

mod decide;
pub mod delivery;
pub mod forward;
mod groups;
pub mod inbound;
mod migration;
mod taps;
pub mod tcp_offload;
pub mod trace;
mod trunk;
