//! The forwarding database under frames, arrivals and departures: bounded work, and nobody takes a live address.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| floodway_core::l2::fuzz::mac_table(input));
