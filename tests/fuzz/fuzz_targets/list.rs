//! Fuzz target for network configuration lists, delegates and results.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| cni::testing::texts(text));
