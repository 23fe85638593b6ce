//! A filter of who asks for a capture, and a frame: the program ends, and the frame comes out of the file as it went in.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| floodway_switch::testing::fuzz::capture_filter(input));
