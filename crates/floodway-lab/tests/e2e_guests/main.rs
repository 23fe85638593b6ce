//! Networks and control queues with real VMs: Debian's kernels under QEMU on the real switch. Needs root and a
//! `floodway` (`FLOODWAY_BIN`).
//!
//! Counters and contents are judged; timeouts only decide hangs.

mod control_queue;
mod networks;
mod scene;
mod sockets;
