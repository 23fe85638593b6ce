//! The inbound clamp in a small network: greedy senders, one port with a finite buffer, VMs that acknowledge.

#[path = "../offload/harness/cases.rs"]
#[allow(dead_code, reason = "shared with the tests of the offload")]
mod cases;
mod network;
mod repetitions;

mod division;
mod excluded;
mod hostile;
mod invariants;
