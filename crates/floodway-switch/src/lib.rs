//! The vhost-user switch: ports, uplinks, workers, control socket.
//!
//! # Layers
//! From the operator's file down to the bytes of a guest:
//!
//! | layer | modules | knows |
//! |---|---|---|
//! | operator | [`config`], [`control`], [`operate`], [`status`], [`socket_file`], `log_limit` | names, units, the control socket |
//! | switch | [`switch`], [`port`], [`worker`], [`polling`], [`descriptors`], `lock_order` | who runs where, what is shared, in which order it is locked |
//! | VM scheduling | [`vcpu`] | slices of vCPU threads |
//! | forwarding | [`forward`], [`delivery`] (and `departure`), [`pairs`], [`frame`], [`vnet_offload`] | frames and where they go |
//! | TCP offload | [`tcp_offload`] | frames between a guest and an uplink, and core's engine |
//! | inbound rates | [`inbound`] | right edges of what leaves, and who gets how much of the link into the host |
//! | egress | [`egress`] | frames on their way into an uplink: meter, tag, segmentation, queue discipline |
//! | queues | [`tx`], [`rx`], [`moderation`], [`ring`], [`call`], [`uplink`] | taking frames and giving them |
//! | guest | [`vhost`], [`virtqueue`], [`memory`], [`mapping`], [`sigbus`], [`dirty_log`], [`segment`] | vhost-user, rings, addresses, memory that goes away |
//!
//! A frame's way: a [`worker`] fills a batch from a [`tx`] queue, [`forward`] decides with core's
//! forwarding table where each frame goes, and [`delivery`] puts it into an [`rx`] queue or [`uplink`]. Each module
//! opens with its theory of operation. [`stats`] counts everything that is forwarded or dropped.

mod affinity;
mod atomics;
pub mod call;
pub mod config;
pub mod control;
mod deadline;
pub mod delivery;
mod departure;
pub mod descriptors;
pub mod dirty_log;
pub mod egress;
pub mod forward;
pub mod frame;
pub mod inbound;
#[cfg(test)]
mod interleavings;
pub mod ledger;
mod lock_order;
mod log_limit;
pub mod mapping;
pub mod memory;
pub mod moderation;
pub mod operate;
pub mod pairs;
pub mod polling;
mod pool;
pub mod port;
pub mod qmp;
pub mod ring;
pub mod rx;
pub mod segment;
pub mod sigbus;
mod snapshot;
pub mod socket_file;
pub mod stats;
pub mod status;
pub mod switch;
pub mod tcp_offload;
pub mod tx;
pub mod uplink;
pub mod vcpu;
pub mod vhost;
pub mod virtqueue;
pub mod vnet_offload;
pub mod watchdog;
#[cfg(any(test, fuzzing))]
pub mod work;
#[cfg(not(any(test, fuzzing)))]
mod work;
pub mod worker;

#[cfg(any(test, feature = "testing"))]
pub mod testing;

pub use config::Config;
pub use switch::Switch;
