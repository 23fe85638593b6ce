//! Inbound rates under any traffic and settings: what is kept and done is bounded, and rates add up.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| floodway_core::inbound::fuzz::inbound(input));
