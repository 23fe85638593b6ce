//! The offload of a port between two TCP endpoints, in virtual time.
//!
//! A test that fails leaves captures; see [`harness::pcap`].

mod acceptance;
mod black_hole;
mod carried;
mod dying;
mod dying_owing;
mod early_ack;
mod early_ack_hostile;
mod early_sack;
mod forgotten;
mod found;
mod full_queue;
mod guest_repairs;
mod handshake;
mod harness;
mod hostile;
mod invariants;
mod long;
mod merging;
mod moved;
mod notices;
mod plain;
mod recovery;
mod scripts;
mod segments;
mod stalls;
mod stopped;
mod transfers;
