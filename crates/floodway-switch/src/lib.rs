#![doc = include_str!("../README.md")]
//!
//! # Layers
//! From the operator down to the bytes of a guest; imports go down only:
//!
//! | room | modules | knows |
//! |---|---|---|
//! | | [`switch`] | all: builds a switch from its configuration, and stops it |
//! | `control` | | the control socket (feature `control`, on by default) |
//! | `operator` | `snapshot`, `diagnose`, `trace`, `inbound`, `pairs` | what a running switch does for its operator, and its status |
//! | [`runtime`] | `worker`, `polling`, `watchdog`, `vcpu`, `qmp` | threads: who runs when, and for how long |
//! | [`vhost`] | | front-ends: vhost-user messages and what they set up |
//! | [`pipeline`] | `decide`, `forward`, `delivery` (and `migration`), `tcp_offload`, `inbound`, `trace` | frames and where they go |
//! | [`state`] | `port`, `front_end`, `uplink`, `shared` | what is shared, and behind which locks |
//! | [`events`] | `reader` | what operators hear of, and its lines in the log |
//! | [`egress`] | | frames on their way into an uplink: meter, tag, segmentation, queue discipline |
//! | [`capture`] | `tap`, `ring`, `record` | copies of frames for an operator who looks |
//! | [`uplink`] | | devices that frames leave and come by |
//! | [`queues`] | `tx`, `rx`, `moderation`, `ring`, `call`, `virtqueue` | taking frames from guests and giving them |
//! | [`frame`] | `iovec`, `vnet_offload`, `describe`, `headers`, `pool` | one frame: where its bytes are, what its headers claim |
//! | [`memory`] | `mapping`, `sigbus`, `dirty_log` | guest addresses, and memory that goes away |
//! | [`kept`] | `counters`, `addresses` | state that outlives a data plane |
//! | [`host`] | `descriptors`, `socket_file`, `socket_access`, `log_limit` | what a process takes of its host |
//! | [`stats`] | `ledger`, `traffic_matrix` | counters, and whom work is charged to |
//! | [`sync`] | `lock_order`, `deadline`, `waker` | locks and their order; timers that other threads bring forward |
//!
//! Configuration, documents of the control socket and its client are in `floodway-api`, below all of these: [`config`] and [`api`].
//!
//! A frame's way: a [`worker`](runtime::worker) fills a batch from a [`tx`](queues::tx) queue, [`forward`](pipeline::forward) decides with core's
//! forwarding table where each frame goes, and [`delivery`](pipeline::delivery) puts it into an [`rx`](queues::rx) queue or [`uplink`]. Each module
//! opens with its theory of operation. [`stats`] counts everything that is forwarded or dropped.

pub mod capture;
#[cfg(feature = "control")]
pub mod control;
pub mod egress;
pub mod events;
pub mod frame;
pub mod host;
#[cfg(test)]
mod interleavings;
pub mod kept;
pub mod memory;
pub mod operator;
pub mod pipeline;
pub mod queues;
pub mod runtime;
pub mod state;
pub mod stats;
pub mod switch;
pub mod sync;
pub mod uplink;
pub mod vhost;

#[cfg(any(test, feature = "testing"))]
pub mod testing;

pub use floodway_api as api;
pub use floodway_api::config::{self, Config};
pub use switch::Switch;
