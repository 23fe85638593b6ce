//! Frames of a VM and its peers through the inbound clamp, and settings of the division.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| floodway_switch::testing::fuzz::inbound_frames(input));
