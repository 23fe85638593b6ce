//! The way of frames: where each goes, what mechanisms see of it on the way, and its delivery.

pub mod delivery;
mod departure;
pub mod forward;
pub mod inbound;
pub mod tcp_offload;
