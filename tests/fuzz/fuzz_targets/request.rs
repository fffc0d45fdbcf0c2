//! Fuzz target for the environment and standard input of all plugins.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| cni::testing::request(text));
