//! Fuzz target for frames at all hooks of the datapath, in the simulator.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| verdict::simulator::arbitrary::run(bytes));
