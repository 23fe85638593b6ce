//! What workers, front-ends' threads and the control socket share.

pub mod allocator;
pub mod carried;
pub mod front_end;
pub mod inbound;
pub mod limit;
pub mod offload;
pub mod port;
pub mod ports;
pub mod quarantine;
pub mod queue_pair;
pub mod shared;
pub mod supply;
pub mod tables;
pub mod uplink;
pub mod workers;
