#![doc = include_str!("../README.md")]
//!
//! [`parse()`] is the way in for the packet path: one pass from bytes to [`Meta`]. The modules named
//! after protocols hold views of and edits to single headers. [`checksum`], [`segmentation`] and
//! [`coalescing`] do in software what network cards call offloads. [`build`] writes whole frames.

#![forbid(unsafe_code)]

pub mod arp;
pub mod bpf;
pub mod build;
mod bytes;
pub mod checksum;
pub mod coalescing;
mod error;
pub mod ethernet;
pub mod flow;
pub mod icmp;
pub mod ipv4;
pub mod ipv6;
pub mod name;
pub mod notice;
pub mod parse;
pub mod pcapng;
pub mod segmentation;
mod sum;
pub mod tcp;
pub mod traffic_class;
pub mod udp;
pub mod vnet;

pub use error::{Error, Layer};
pub use ethernet::MacAddr;
pub use flow::FiveTuple;
pub use name::FlowName;
pub use notice::Notice;
pub use parse::{Meta, Network, TcpMeta, Transport, announced_mac, parse};
