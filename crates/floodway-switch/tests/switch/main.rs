//! The switch as VMs see it: real sockets, real shared memory, real threads; guests and front-ends
//! in this process.

mod capture;
mod change;
mod co_resident;
mod control;
mod diagnose;
mod forwarding;
mod hostile;
mod limits;
mod many;
mod migration;
mod multiqueue;
mod net;
mod networks;
mod offloads;
mod queueing;
mod reconnect;
mod sockets;
mod trunks;
mod trust;
