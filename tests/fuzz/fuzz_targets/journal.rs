//! Fuzz target for the journal beside the agent's database.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| store::testing::journal(bytes));
