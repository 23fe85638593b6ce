//! The threads that run while the switch does: workers, the watchdog, and what looks after vCPUs.

pub mod polling;
pub mod qmp;
pub mod vcpu;
pub mod watchdog;
pub mod worker;
