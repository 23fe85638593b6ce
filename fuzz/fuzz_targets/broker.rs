//! A data plane that was taken over says anything to the broker, and data planes end at any moment: it gets nothing but what its ports have.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| floodway_broker::testing::data_plane(input));
