#![doc = include_str!("../README.md")]
//!
//! # Theory of operation
//! Kernels without netem cannot play a long or lossy link. So a process of its own takes frames
//! from the interfaces of two or more hosts, keeps each for as long as a network would, and hands
//! it to the other side, or drops it.
//!
//! | layer | modules | knows |
//! |---|---|---|
//! | description | [`spec`] | names and units |
//! | process | [`engine`], [`control`], [`timing`] | the clock, when to sleep, when to spin; the control socket |
//! | frames | [`device`], [`intake`], [`frame`] | bytes: devices, segmentation, checksums |
//! | network | [`model`] | packets, queues, wires, all in virtual time |
//!
//! The crate is what runs inside that process. Starting it, its CPU and its command line are `floodway-lab path`. Devices
//! are the uplinks of [`floodway_switch`], which read and write taps and packet sockets in the same way.
//!
//! **GSO packets.** Hosts hand over GSO packets of up to 64 KiB and unfinished checksums. A
//! network carries packets, so [`intake`] cuts GSO packets into their segments and completes
//! checksums before anything is queued, counted or lost. What is delivered are single frames with
//! valid checksums; a receiver that wants to coalesce (GRO) does so itself. No interface's offloads
//! need to be changed.
//!
//! **Time.** A packet arrives when the process has read it. All that follows is calculated from
//! that time and not from when the process got to it, so being late costs no bandwidth and does not
//! add up; how late frames were handed over is measured ([`timing`]). The process sleeps when
//! nothing is due and spins for the last few tens of microseconds before something is.

pub mod control;
pub mod device;
pub mod engine;
pub mod frame;
pub mod intake;
pub mod model;
pub mod report;
pub mod spec;
pub mod timing;

pub use report::Counters;
pub use spec::{LinkSpec, Loss, PortSpec, Side, Spec};
