//! A hostile front-end: any messages with any descriptors while the rings run, at a bounded cost for each, and another guest served.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| floodway_switch::testing::fuzz::vhost(input));
