//! The inbound clamp in a small network: greedy senders, one port with a finite buffer, VMs that acknowledge.

mod network;
mod repetitions;

mod division;
mod excluded;
mod hostile;
mod invariants;
