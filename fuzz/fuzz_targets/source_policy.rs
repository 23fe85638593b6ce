//! The source policy on any frame: bounded work, and nothing hides behind what was read.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| floodway_core::l2::fuzz::source_policy(input));
