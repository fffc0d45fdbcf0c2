//! Environment and standard input of every plugin.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| cni::testing::request(text));
