//! What a peer says on a QMP socket: bounded work, and plausible threads or none.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| floodway_switch::testing::fuzz::qmp(input));
